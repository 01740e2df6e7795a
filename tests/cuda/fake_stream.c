/*
 * fake_stream.c - the fake's streams of GPUs, and the hardware queues in which they run. See fake_cuda.h.
 *
 * A stream has a thread, which runs the launched work in order, but only when the work is first in the stream's
 * queue, too. While a GPU has as many queues as streams that were ever used, each stream has a queue for itself.
 * With more streams, a stream that becomes busy gets any queue.
 *
 * Only a GPU can show how the driver gives out queues; it was seen to share them as soon as there are more streams
 * than queues.
 */
#include "tests/cuda/fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUES_MAX 32u
#define LOOK_NS 100000 /* interval at which a held stream looks whether it may go on */
#define CLOSE_TURNS 5000u

typedef struct fake_queue {
    fake_work *head, *tail;
    fake_stream *owner; /* set while each stream has its own */
} fake_queue;

typedef struct fake_context {
    pthread_mutex_t lock; /* held by launches, and while a call waits for the whole GPU */
    fake_queue queues[QUEUES_MAX];
    unsigned used; /* streams that live and have had work */
} fake_context;

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_moved = PTHREAD_COND_INITIALIZER;

static fake_context contexts[FAKE_GPUS];
static fake_stream *streams;
static unsigned long long ids;
static unsigned queue_count, draw;
static fake_counts counts;
static unsigned to_fail[FAKE_CALLS];
static bool has_failed;

/* ---- Small things ---- */

void fake_fault(const char *text)
{
    counts.faults++;
    printf("# the fake: %s\n", text);
}

fake_counts *fake_counted(void)
{
    return &counts;
}

fake_counts fake_count(void)
{
    pthread_mutex_lock(&fake_mutex);
    const fake_counts seen = counts;
    pthread_mutex_unlock(&fake_mutex);
    return seen;
}

void fake_fail(fake_call call, unsigned n)
{
    pthread_mutex_lock(&fake_mutex);
    memset(to_fail, 0, sizeof to_fail);
    to_fail[call] = n;
    has_failed = false;
    pthread_mutex_unlock(&fake_mutex);
}

bool fake_has_failed(void)
{
    pthread_mutex_lock(&fake_mutex);
    const bool failed = has_failed;
    pthread_mutex_unlock(&fake_mutex);
    return failed;
}

bool fake_fails(fake_call call)
{
    pthread_mutex_lock(&fake_mutex);
    const bool fails = to_fail[call] > 0 && --to_fail[call] == 0;
    has_failed = has_failed || fails;
    pthread_mutex_unlock(&fake_mutex);
    return fails;
}

static unsigned any(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245u + 12345u;
    return below == 0 ? 0 : (*seed >> 8) % below;
}

static void pause_ns(long ns)
{
    const struct timespec pause = {.tv_nsec = ns};
    nanosleep(&pause, NULL);
}

/* Waits until something has changed, or for that long. The caller holds the mutex. */
static void look_again(long ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&fake_moved, &fake_mutex, &until);
}

/* ---- Queues; called with the mutex held ---- */

static fake_queue *queue_own(fake_context *context, const fake_stream *stream)
{
    fake_queue *found = NULL;
    for (unsigned i = 0; i < queue_count; i++) {
        fake_queue *queue = &context->queues[i];
        if (queue->owner == stream) {
            return queue;
        }
        found = found == NULL && queue->owner == NULL && queue->head == NULL ? queue : found;
    }
    return found;
}

/* Chooses a queue for a stream that becomes busy. */
static fake_queue *queue_deal(fake_stream *stream)
{
    fake_context *context = &contexts[stream->gpu];
    if (context->used <= queue_count) {
        fake_queue *queue = queue_own(context, stream);
        if (queue != NULL) {
            queue->owner = stream;
            return queue;
        }
    } else {
        for (unsigned i = 0; i < queue_count; i++) {
            context->queues[i].owner = NULL;
        }
    }
    return &context->queues[any(&draw, queue_count)];
}

static void queue_leave(fake_stream *stream)
{
    fake_context *context = &contexts[stream->gpu];
    context->used -= stream->used ? 1 : 0;
    stream->used = false;
    for (unsigned i = 0; i < queue_count; i++) {
        fake_queue *queue = &context->queues[i];
        queue->owner = queue->owner == stream ? NULL : queue->owner;
    }
}

static void append(fake_stream *stream, fake_work *work)
{
    if (!stream->used) {
        stream->used = true;
        contexts[stream->gpu].used++;
    }
    if (stream->head == NULL) {
        stream->queue = queue_deal(stream);
    }
    fake_queue *queue = stream->queue;
    *(queue->head == NULL ? &queue->head : &queue->tail->next_in_queue) = work;
    queue->tail = work;
    *(stream->head == NULL ? &stream->head : &stream->tail->next) = work;
    stream->tail = work;
    stream->launched++;
    if (work->place != NULL) {
        *work->place = stream->launched;
    }
}

static void remove_first(fake_stream *stream)
{
    fake_work *work = stream->head;
    stream->head = work->next;
    stream->queue->head = work->next_in_queue;
    stream->ended++;
    free(work);
    pthread_cond_broadcast(&fake_moved);
}

/* ---- A stream's thread ---- */

static void move_bytes(const fake_work *work)
{
    const size_t bytes = work->bytes < FAKE_TOUCHED_MAX ? work->bytes : FAKE_TOUCHED_MAX;
    if (work->source == NULL) {
        memset(work->target, 0, bytes);
    } else {
        memcpy(work->target, work->source, bytes);
    }
}

/* Carries out the work and returns true if it is over. Called with the mutex held, which is released where the work
 * takes time. */
static bool carry_out(fake_work *work)
{
    switch (work->kind) {
    case FAKE_WAIT_EVENT:
        return work->before->ended >= work->before_count;
    case FAKE_HOLD:
        return counts.aborted > 0 || __atomic_load_n(work->go, __ATOMIC_ACQUIRE) != 0;
    case FAKE_BYTES:
    case FAKE_DELAY:
        pthread_mutex_unlock(&fake_mutex);
        if (work->kind == FAKE_BYTES) {
            move_bytes(work);
        } else {
            pause_ns((long)work->micros * 1000);
        }
        pthread_mutex_lock(&fake_mutex);
        return true;
    case FAKE_KERNEL:
        return work->tell(work, FAKE_FIRST);
    default:
        return true;
    }
}

/* Called with the mutex held. */
static void stream_turn(fake_stream *stream)
{
    fake_work *work = stream->head;
    if (stream->queue->head != work || !carry_out(work)) {
        if (work->kind == FAKE_HOLD) {
            look_again(LOOK_NS);
        } else {
            pthread_cond_wait(&fake_moved, &fake_mutex);
        }
        return;
    }
    remove_first(stream);
    if (any(&stream->seed, 8) == 0) { /* others run meanwhile */
        const long ns = (long)any(&stream->seed, 60) * 1000;
        pthread_mutex_unlock(&fake_mutex);
        pause_ns(ns);
        pthread_mutex_lock(&fake_mutex);
    }
}

static void *stream_main(void *argument)
{
    fake_stream *stream = argument;
    pthread_mutex_lock(&fake_mutex);
    while (!stream->dropped || stream->head != NULL) {
        if (stream->head == NULL) {
            pthread_cond_wait(&stream->came, &fake_mutex);
        } else {
            stream_turn(stream);
        }
    }
    queue_leave(stream);
    stream->gone = true;
    pthread_cond_broadcast(&fake_moved);
    pthread_mutex_unlock(&fake_mutex);
    return NULL;
}

/* ---- Launching ---- */

fake_stream *fake_stream_of(cudaStream_t stream)
{
    fake_stream *found = NULL;
    pthread_mutex_lock(&fake_mutex);
    for (fake_stream *at = streams; at != NULL && found == NULL; at = at->next) {
        found = at == (void *)stream && !at->dropped ? at : NULL;
    }
    if (found == NULL) {
        fake_fault("a call for a stream that there is not");
    }
    pthread_mutex_unlock(&fake_mutex);
    return found;
}

cudaError_t fake_launch(cudaStream_t where, const fake_work *work)
{
    fake_stream *stream = fake_stream_of(where);
    fake_work *own = malloc(sizeof *own);
    if (stream == NULL || own == NULL) {
        free(own);
        return cudaErrorInvalidResourceHandle;
    }
    *own = *work;
    own->next = own->next_in_queue = NULL;
    pthread_mutex_lock(&contexts[stream->gpu].lock);
    pthread_mutex_lock(&fake_mutex);
    if (own->tell != NULL) {
        (void)own->tell(own, FAKE_LAUNCHED);
    }
    append(stream, own);
    pthread_cond_signal(&stream->came);
    pthread_mutex_unlock(&fake_mutex);
    pthread_mutex_unlock(&contexts[stream->gpu].lock);
    return cudaSuccess;
}

/* Called with the mutex held. */
static bool is_busy(int gpu)
{
    for (const fake_stream *at = streams; at != NULL; at = at->next) {
        if (at->gpu == gpu && at->head != NULL) {
            return true;
        }
    }
    return false;
}

void fake_wait_for_gpu(int gpu)
{
    pthread_mutex_lock(&contexts[gpu].lock);
    pthread_mutex_lock(&fake_mutex);
    while (is_busy(gpu)) {
        pthread_cond_wait(&fake_moved, &fake_mutex);
    }
    pthread_mutex_unlock(&fake_mutex);
    pthread_mutex_unlock(&contexts[gpu].lock);
}

/* ---- Streams ---- */

cudaStream_t fake_stream_make(int gpu)
{
    pthread_t thread;
    fake_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        abort();
    }
    stream->gpu = gpu;
    stream->flags = cudaStreamNonBlocking;
    pthread_cond_init(&stream->came, NULL);
    pthread_mutex_lock(&fake_mutex);
    stream->id = ++ids;
    stream->seed = draw + (unsigned)stream->id;
    stream->next = streams;
    streams = stream;
    counts.streams++;
    pthread_mutex_unlock(&fake_mutex);
    if (pthread_create(&thread, NULL, stream_main, stream) != 0 || pthread_detach(thread) != 0) {
        abort();
    }
    return (cudaStream_t)(void *)stream;
}

void fake_stream_drop(cudaStream_t where)
{
    fake_stream *stream = fake_stream_of(where);
    if (stream != NULL) {
        pthread_mutex_lock(&fake_mutex);
        stream->dropped = true;
        counts.streams--;
        pthread_cond_signal(&stream->came);
        pthread_mutex_unlock(&fake_mutex);
    }
}

void fake_stream_copy(cudaStream_t stream, void *target, const void *source, size_t bytes)
{
    (void)fake_launch(stream, &(fake_work){.kind = FAKE_BYTES, .target = target, .source = source, .bytes = bytes});
}

void fake_stream_work(cudaStream_t stream, unsigned micros)
{
    (void)fake_launch(stream, &(fake_work){.kind = FAKE_DELAY, .micros = micros});
}

void fake_stream_hold(cudaStream_t stream, const uint32_t *go)
{
    (void)fake_launch(stream, &(fake_work){.kind = FAKE_HOLD, .go = go});
}

bool fake_stream_is_idle(cudaStream_t where)
{
    const fake_stream *stream = (const fake_stream *)(void *)where;
    pthread_mutex_lock(&fake_mutex);
    const bool idle = stream->head == NULL;
    pthread_mutex_unlock(&fake_mutex);
    return idle;
}

void fake_show(void)
{
    static const char *const names[] = {"nothing", "an event", "bytes", "a delay", "a hold", "a collective"};
    const bool taken = pthread_mutex_trylock(&fake_mutex) == 0;
    for (const fake_stream *at = streams; taken && at != NULL; at = at->next) {
        if (at->head != NULL) {
            printf("# GPU %d, stream %llu: %llu of %llu, at %s%s\n", at->gpu, at->id, (unsigned long long)at->ended,
                   (unsigned long long)at->launched, names[at->head->kind],
                   at->queue->head != at->head ? ", behind another in its queue" : "");
        }
    }
    if (taken) {
        pthread_mutex_unlock(&fake_mutex);
    }
}

/* ---- Opening and closing ---- */

void fake_open(unsigned queues, unsigned seed)
{
    memset(contexts, 0, sizeof contexts);
    for (int gpu = 0; gpu < FAKE_GPUS; gpu++) {
        pthread_mutex_init(&contexts[gpu].lock, NULL);
    }
    queue_count = queues > 0 ? queues : 1;
    draw = seed;
    counts = (fake_counts){.faults = 0};
    memset(to_fail, 0, sizeof to_fail);
    has_failed = false;
}

/* Called with the mutex held. Counts streams that were not destroyed. */
static bool all_gone(void)
{
    for (fake_stream *at = streams; at != NULL; at = at->next) {
        at->dropped = true;
        pthread_cond_signal(&at->came);
        if (!at->gone) {
            return false;
        }
    }
    return true;
}

bool fake_close(void)
{
    pthread_mutex_lock(&fake_mutex);
    for (unsigned turn = 0; turn < CLOSE_TURNS && !all_gone(); turn++) {
        look_again(1000000);
    }
    const bool gone = all_gone();
    fake_stream *at = gone ? streams : NULL;
    streams = gone ? NULL : streams;
    pthread_mutex_unlock(&fake_mutex);
    while (at != NULL) {
        fake_stream *next = at->next;
        pthread_cond_destroy(&at->came);
        free(at);
        at = next;
    }
    if (gone) {
        fake_memory_close();
    }
    return gone && fake_nccl_close();
}
