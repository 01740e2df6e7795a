/* completion.h - the threads on which frameworks are told that results are there.
 *
 * A framework may go on computing on the thread that tells it. An engine's own threads must not do that: they have data
 * to move. So callbacks of operations put an entry into a queue, and another thread runs it. What is computed there may
 * wait for another operation: the next entry gets a thread of its own then. */
#ifndef TRIB_PYTHON_COMPLETION_H
#define TRIB_PYTHON_COMPLETION_H

#include "tributary.h"

/* How an operation ended. The text lies here, so that no failure is lost where memory has run out. */
struct completion {
    struct completion *next;
    void (*run)(struct completion *completion);
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE]; /* why it failed */
};

/* Makes sure that there is a thread to run entries. Called on a thread of the program's before an operation is
 * submitted whose end will be posted. TRIB_SYSTEM with a text where none can be started. */
trib_status completion_begin(trib_error *error);

/* Notes an operation's end without a result of the engine's. */
void completion_set(struct completion *completion, trib_status status, const char *text);

/* Returns why the operation failed, or NULL if it did not. */
const char *completion_failure(const struct completion *completion);

/* Notes how an operation ended, and lets a thread run completion->run. On any thread; never waits. */
void completion_post(struct completion *completion, const trib_result *result);

#endif
