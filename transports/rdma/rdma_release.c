/*
 * rdma_release.c - see rdma_release.h.
 *
 * Invariants
 * - `pending` counts what was handed over and is not destroyed. The queue has all of that except the one that the
 *   thread is destroying.
 * - If the thread is stuck at the close it frees the releaser should it come back; otherwise close frees it.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/assert.h"
#include "engine/base/fork.h"
#include "engine/base/thread_signals.h"
#include "transports/rdma/rdma_release.h"

#define PATIENCE_S 2

struct verbs_releaser {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    verbs_remains *head, *tail;
    uint32_t pending;
    bool has_thread, closed, abandoned;
    bool short_wait; /* one wait was in vain, so there will be no other */
};

static void releaser_free(verbs_releaser *self)
{
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static void destroy_remains(verbs_remains *remains)
{
    if (remains->id != NULL) {
        rdma_destroy_id(remains->id);
    } else {
        trib_fork_disown(remains->channel->fd);
        rdma_destroy_event_channel(remains->channel);
    }
    free(remains);
}

static void *thread_main(void *argument)
{
    verbs_releaser *self = argument;
    trib_thread_set_timer_slack(false); /* the reactor that starts this thread may be prompt */
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        verbs_remains *remains = self->head;
        if (remains != NULL) {
            self->head = remains->next;
            pthread_mutex_unlock(&self->mutex);
            destroy_remains(remains);
            pthread_mutex_lock(&self->mutex);
            trib_assert(self->pending > 0);
            self->pending--;
            pthread_cond_broadcast(&self->changed);
        } else if (self->closed) {
            break;
        } else {
            pthread_cond_wait(&self->changed, &self->mutex);
        }
    }
    bool abandoned = self->abandoned;
    pthread_mutex_unlock(&self->mutex);
    if (abandoned) {
        releaser_free(self);
    }
    return NULL;
}

verbs_releaser *trib_rdma_releaser_create(void)
{
    verbs_releaser *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return self;
}

void trib_rdma_release(verbs_releaser *self, verbs_remains *remains)
{
    trib_assert((remains->id != NULL) != (remains->channel != NULL));
    if (remains->id != NULL) {
        remains->id->context = NULL;
    }
    remains->next = NULL;
    pthread_mutex_lock(&self->mutex);
    trib_assert(!self->closed);
    self->has_thread = self->has_thread || trib_thread_start(&self->thread, NULL, thread_main, self) == 0;
    if (self->has_thread) {
        if (self->head != NULL) {
            self->tail->next = remains;
        } else {
            self->head = remains;
        }
        self->tail = remains;
        self->pending++;
        remains = NULL;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->mutex);
    if (remains != NULL) { /* there is no thread */
        destroy_remains(remains);
    }
}

uint32_t trib_rdma_releaser_drain(verbs_releaser *self)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&self->mutex);
    int error = 0;
    while (self->pending > 0 && !self->short_wait && error == 0) {
        error = pthread_cond_timedwait(&self->changed, &self->mutex, &until);
    }
    self->short_wait = self->short_wait || error != 0;
    uint32_t left = self->pending;
    pthread_mutex_unlock(&self->mutex);
    return left;
}

void trib_rdma_releaser_close(verbs_releaser *self)
{
    if (self == NULL) {
        return;
    }
    bool stuck = trib_rdma_releaser_drain(self) > 0;
    pthread_mutex_lock(&self->mutex);
    bool has_thread = self->has_thread;
    pthread_t thread = self->thread;
    self->closed = true;
    self->abandoned = stuck;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (stuck) {
        pthread_detach(thread);
        return;
    }
    if (has_thread) {
        pthread_join(thread, NULL);
    }
    releaser_free(self);
}

#endif
