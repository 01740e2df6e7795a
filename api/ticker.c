/* ticker.c - see ticker.h. */
#include "api/ticker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "api/blocking.h"
#include "engine/base/thread_signals.h"

struct trib_ticker {
    trib_engine *engine;
    trib_ticker_turn turn;
    int64_t first_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopped; /* guarded by the mutex */
};

/* False: the engine closes. */
static bool pause_for(struct trib_ticker *self, int64_t pause_ns)
{
    const struct timespec deadline = trib_api_deadline_in(pause_ns);
    pthread_mutex_lock(&self->mutex);
    while (!self->stopped && pthread_cond_timedwait(&self->changed, &self->mutex, &deadline) == 0) {}
    const bool goes_on = !self->stopped;
    pthread_mutex_unlock(&self->mutex);
    return goes_on;
}

static void *run(void *user)
{
    struct trib_ticker *self = user;
    int64_t pause_ns = self->first_ns;
    while (pause_for(self, pause_ns)) {
        pause_ns = self->turn(self->engine, pause_ns);
    }
    return NULL;
}

static void release(struct trib_ticker *self)
{
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

int trib_ticker_start(struct trib_ticker **ticker_out, trib_engine *engine, trib_ticker_turn turn, int64_t first_ns)
{
    struct trib_ticker *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return ENOMEM;
    }
    *self = (struct trib_ticker){.engine = engine, .turn = turn, .first_ns = first_ns};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    const int error = trib_thread_start(&self->thread, NULL, run, self);
    if (error != 0) {
        release(self);
        return error;
    }
    *ticker_out = self;
    return 0;
}

void trib_ticker_stop(struct trib_ticker *ticker)
{
    if (ticker == NULL) {
        return;
    }
    pthread_mutex_lock(&ticker->mutex);
    ticker->stopped = true;
    pthread_cond_signal(&ticker->changed);
    pthread_mutex_unlock(&ticker->mutex);
    pthread_join(ticker->thread, NULL);
    release(ticker);
}
