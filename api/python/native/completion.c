/* completion.c - the threads that tell frameworks of results: a queue with a lock, as entries are few (one an
 * operation). As long as a thread can be had, one waits for the next entry, whatever the others compute: that may need
 * the end of another operation. */
#include "native/completion.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/thread_signals.h"

/* So many computations may wait for another operation's end at a time. */
enum { THREADS_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct completion *first, **end;
    int threads, waiting; /* waiting: for an entry */
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .end = &queue.first};

static void *run(void *unused);

/* The caller holds the lock, and is no thread of an engine's: a thread inherits the core that its maker is pinned to.
 * Returns 0, or what kept the thread from being started. */
static int start_locked(void)
{
    pthread_t thread;
    const int error = trib_thread_start(&thread, NULL, run, NULL);
    if (error == 0) {
        pthread_detach(thread);
        queue.threads++;
    }
    return error;
}

static struct completion *take_locked(void)
{
    queue.waiting++;
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
        if (queue.waiting == 0 && queue.threads < THREADS_MAX) {
            (void)start_locked(); /* without another thread the next entry waits for this one */
        }
        pthread_mutex_unlock(&queue.lock);
        completion->run(completion); /* frees the entry */
    }
    return NULL;
}

trib_status completion_begin(trib_error *error)
{
    pthread_mutex_lock(&queue.lock);
    const int problem = queue.threads > 0 ? 0 : start_locked();
    pthread_mutex_unlock(&queue.lock);
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
