/* completion.h - a thread on which frameworks are told that results are there.
 *
 * A framework may go on computing on the thread that tells it. An engine's own threads must not do that: they have data
 * to move. So callbacks of operations put an entry into a queue, and this thread runs it. */
#ifndef TRIB_PYTHON_COMPLETION_H
#define TRIB_PYTHON_COMPLETION_H

struct completion {
    struct completion *next;
    void (*run)(struct completion *completion);
};

/* Runs completion->run on the thread, which is started at the first call. On any thread; entries run in order. If there
 * is no thread to be had, it runs at once. */
void completion_post(struct completion *completion);

#endif
