/* trace_flush.c - see trace_flush.h. */
#include "api/trace_flush.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "api/blocking.h"
#include "engine/base/thread_signals.h"
#include "engine/tracer/tracer.h"

#define FIRST_NS (250 * INT64_C(1000000)) /* of the pauses, which double */
#define LAST_NS (2 * INT64_C(1000000000)) /* at most so much is missing */
#define SHARE 30                          /* a pause is at least so many times as long as the writing before it */

struct trib_trace_flusher {
    trib_engine *engine;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopped; /* guarded by the mutex */
};

/* False: the engine closes. */
static bool pause_for(struct trib_trace_flusher *self, int64_t pause_ns)
{
    const struct timespec deadline = trib_api_deadline_in(pause_ns);
    pthread_mutex_lock(&self->mutex);
    while (!self->stopped && pthread_cond_timedwait(&self->changed, &self->mutex, &deadline) == 0) {}
    const bool goes_on = !self->stopped;
    pthread_mutex_unlock(&self->mutex);
    return goes_on;
}

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *flush_often(void *user)
{
    struct trib_trace_flusher *self = user;
    int64_t least_ns = FIRST_NS, pause_ns = FIRST_NS;
    while (pause_for(self, pause_ns)) {
        const int64_t began_ns = monotonic_ns();
        trib_tracer_flush(self->engine);
        const int64_t took_ns = SHARE * (monotonic_ns() - began_ns);
        least_ns = 2 * least_ns < LAST_NS ? 2 * least_ns : LAST_NS;
        pause_ns = took_ns > least_ns ? took_ns : least_ns;
    }
    return NULL;
}

void trib_trace_flush_start(trib_engine *engine)
{
    struct trib_trace_flusher *self = calloc(1, sizeof *self);
    int error = self == NULL ? ENOMEM : 0;
    if (error == 0) {
        self->engine = engine;
        pthread_mutex_init(&self->mutex, NULL);
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&self->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        error = trib_thread_start(&self->thread, NULL, flush_often, self);
    }
    if (error != 0) {
        char why[TRIB_REASON_MAX];
        trib_log(&engine->logger, TRIB_LOG_WARN, "the trace is written at the end only: no thread for it: %s",
                 trib_log_thread_reason(error, why));
        free(self);
        return;
    }
    engine->trace_flusher = self;
}

void trib_trace_flush_stop(trib_engine *engine)
{
    struct trib_trace_flusher *self = engine->trace_flusher;
    if (self == NULL) {
        return;
    }
    pthread_mutex_lock(&self->mutex);
    self->stopped = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    free(self);
    engine->trace_flusher = NULL;
}
