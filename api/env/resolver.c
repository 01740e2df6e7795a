/* resolver.c - see resolver.h. The thread and the engine share the object; the last of them frees it. */
#include "api/env/resolver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/config/address.h"
#include "engine/base/thread_signals.h"

struct trib_resolver {
    pthread_mutex_t mutex;
    bool is_busy, has_found, is_closed;
    trib_address found;
    char text[512];
};

static void release(trib_resolver *self)
{
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static void *run(void *argument)
{
    trib_resolver *self = argument;
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

trib_resolver *trib_resolver_open(const char *text)
{
    trib_resolver *self = calloc(1, sizeof *self);
    if (self != NULL) {
        pthread_mutex_init(&self->mutex, NULL);
        snprintf(self->text, sizeof self->text, "%s", text);
    }
    return self;
}

bool trib_resolver_poll(void *resolve, trib_address *found_out)
{
    trib_resolver *self = resolve;
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

void trib_resolver_close(trib_resolver *self)
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
