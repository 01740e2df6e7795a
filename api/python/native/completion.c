/* completion.c - the threads that tell frameworks of results: a queue with a lock, as entries are few (one an
 * operation). As long as a thread can be had, one waits for the next entry, whatever the others compute: that may need
 * the end of another operation. */
#include "native/completion.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/thread_signals.h"

/* Computations may wait for other operations' ends, each on a thread; more of them wait for a thread to be free. */
enum { THREADS_MAX = 64 };

/* An engine's threads post under the lock: nothing is started under it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct completion *first, **end;
    int threads; /* that run or are starting */
    int waiting; /* for an entry, or starting: these take one soon */
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .end = &queue.first};

static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER; /* held while completion_begin() starts a thread */
static bool watches_forks;

static void *run(void *unused);

/* A child has none of the threads, and its parent's entries are not its own. The lock may be held there for ever. */
static void forked(void)
{
    pthread_mutex_init(&beginning, NULL);
    pthread_mutex_init(&queue.lock, NULL);
    pthread_cond_init(&queue.filled, NULL);
    queue.first = NULL;
    queue.end = &queue.first;
    queue.threads = queue.waiting = 0;
}

/* Notes that a thread is about to start, if one is missing; the caller holds the lock, and calls start() without it. */
static bool reserve_locked(void)
{
    const bool is_missing = queue.waiting == 0 && queue.threads < THREADS_MAX;
    queue.threads += is_missing;
    queue.waiting += is_missing;
    return is_missing;
}

/* The caller is no thread of an engine's: a thread inherits the core that its maker is pinned to. Returns 0, or what
 * kept the thread from being started. */
static int start(void)
{
    pthread_t thread;
    const int error = trib_thread_start(&thread, NULL, run, NULL);
    if (error == 0) {
        pthread_detach(thread);
        return 0;
    }
    pthread_mutex_lock(&queue.lock);
    queue.threads--;
    queue.waiting--;
    pthread_mutex_unlock(&queue.lock);
    return error;
}

/* The caller counts as waiting. */
static struct completion *take_locked(void)
{
    while (queue.first == NULL) {
        pthread_cond_wait(&queue.filled, &queue.lock);
    }
    queue.waiting--;
    struct completion *completion = queue.first;
    queue.first = completion->next;
    if (queue.first == NULL) {
        queue.end = &queue.first;
    }
    return completion;
}

static void *run(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&queue.lock);
        struct completion *completion = take_locked();
        const bool is_missing = reserve_locked();
        pthread_mutex_unlock(&queue.lock);
        if (is_missing) {
            (void)start(); /* without another thread the next entry waits for this one, or for completion_begin() */
        }
        completion->run(completion); /* frees the entry */
        pthread_mutex_lock(&queue.lock);
        queue.waiting++;
        pthread_mutex_unlock(&queue.lock);
    }
    return NULL;
}

trib_status completion_begin(trib_error *error)
{
    /* One at a time: else a caller might count on a thread that another one then fails to start. */
    pthread_mutex_lock(&beginning);
    pthread_mutex_lock(&queue.lock);
    const bool is_first = queue.threads == 0, is_missing = reserve_locked();
    pthread_mutex_unlock(&queue.lock);
    int problem = watches_forks ? 0 : pthread_atfork(NULL, NULL, forked);
    watches_forks = problem == 0;
    const int not_started = is_missing ? start() : 0;
    problem = problem == 0 && is_first ? not_started : problem; /* other threads come to the entry sooner or later */
    pthread_mutex_unlock(&beginning);
    if (problem != 0) {
        error->status = TRIB_SYSTEM;
        (void)snprintf(error->text, sizeof error->text,
                       "no thread that tells of results could be started: raise the limits of processes and of memory "
                       "(ulimit -u, -v)");
    }
    return problem == 0 ? TRIB_OK : TRIB_SYSTEM;
}

void completion_set(struct completion *completion, trib_status status, const char *text)
{
    completion->status = status;
    (void)snprintf(completion->text, sizeof completion->text, "%s", text);
}

const char *completion_failure(const struct completion *completion)
{
    return completion->status == TRIB_OK ? NULL : completion->text;
}

void completion_post(struct completion *completion, const trib_result *result)
{
    completion_set(completion, result->status, result->text);
    completion->next = NULL;
    pthread_mutex_lock(&queue.lock);
    *queue.end = completion;
    queue.end = &completion->next;
    pthread_cond_signal(&queue.filled);
    pthread_mutex_unlock(&queue.lock);
}
