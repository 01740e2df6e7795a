/* look_up.c - see look_up.h. The thread and the engine share the object; the last of them frees it. */
#include "api/env/look_up.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/config/address.h"
#include "engine/base/thread_signals.h"

struct trib_look_up {
    pthread_mutex_t mutex;
    bool is_busy, has_found, is_closed;
    trib_address found;
    char text[512];
};

static void release(trib_look_up *self)
{
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static void *run(void *argument)
{
    trib_look_up *self = argument;
    trib_address found;
    trib_error error = {.text = ""};
    const trib_status status = trib_address_resolve(self->text, &found, &error);
    pthread_mutex_lock(&self->mutex);
    self->is_busy = false;
    if (status == TRIB_OK) {
        self->found = found;
        self->has_found = true;
    }
    const bool is_last = self->is_closed;
    pthread_mutex_unlock(&self->mutex);
    if (is_last) {
        release(self);
    }
    return NULL;
}

trib_look_up *trib_look_up_open(const char *text)
{
    trib_look_up *self = calloc(1, sizeof *self);
    if (self != NULL) {
        pthread_mutex_init(&self->mutex, NULL);
        snprintf(self->text, sizeof self->text, "%s", text);
    }
    return self;
}

bool trib_look_up_ask(void *look_up, trib_address *found_out)
{
    trib_look_up *self = look_up;
    pthread_mutex_lock(&self->mutex);
    const bool has_found = self->has_found;
    if (has_found) {
        *found_out = self->found;
        self->has_found = false;
    }
    pthread_t thread;
    if (!self->is_busy && trib_thread_start(&thread, NULL, run, self) == 0) {
        self->is_busy = true;
        pthread_detach(thread);
    }
    pthread_mutex_unlock(&self->mutex);
    return has_found;
}

void trib_look_up_close(trib_look_up *self)
{
    if (self == NULL) {
        return;
    }
    pthread_mutex_lock(&self->mutex);
    self->is_closed = true;
    const bool is_last = !self->is_busy;
    pthread_mutex_unlock(&self->mutex);
    if (is_last) {
        release(self);
    }
}
