/* completion.c - the thread that tells frameworks of results: a queue with a lock, as entries are few (one an
 * operation). */
#include "native/completion.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct completion *first, **end;
    bool is_started;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER, .end = &queue.first};

static void *run(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&queue.lock);
        while (queue.first == NULL) {
            pthread_cond_wait(&queue.filled, &queue.lock);
        }
        struct completion *completion = queue.first;
        queue.first = NULL;
        queue.end = &queue.first;
        pthread_mutex_unlock(&queue.lock);
        while (completion != NULL) {
            struct completion *next = completion->next; /* run() frees the entry */
            completion->run(completion);
            completion = next;
        }
    }
    return NULL;
}

/* Starts the thread, without signals: handlers are the program's, and run on its threads. */
static bool start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_t thread;
    bool is_started = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (is_started) {
        pthread_detach(thread);
    }
    return is_started;
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
    pthread_mutex_lock(&queue.lock);
    if (!queue.is_started) {
        queue.is_started = start();
    }
    bool is_queued = queue.is_started;
    if (is_queued) {
        completion->next = NULL;
        *queue.end = completion;
        queue.end = &completion->next;
        pthread_cond_signal(&queue.filled);
    }
    pthread_mutex_unlock(&queue.lock);
    if (!is_queued) {
        completion->run(completion);
    }
}
