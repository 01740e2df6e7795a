/*
 * log.h - log lines for people: a level, a prefix that names the member, "name value" pairs.
 *
 * The threads of an engine share a logger. It holds no lock, because a line is formatted on the stack and written as a
 * whole.
 */
#ifndef TRIB_ENGINE_BASE_LOG_H
#define TRIB_ENGINE_BASE_LOG_H

#include <stdarg.h>

#include "api/tributary.h"

#define TRIB_LOG_LINE_MAX 1024

typedef struct trib_logger {
    trib_log_level level;
    trib_log_cb cb; /* NULL: standard error */
    void *user;
    char prefix[48]; /* "tributary rank 3" */
} trib_logger;

/* Takes the level, the callback and the member's name from the settings. */
void trib_logger_init(trib_logger *logger, const trib_config *config);
void trib_log(trib_logger *logger, trib_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define TRIB_REASON_MAX 256
/* Fills text with the system's message for that errno. If a limit of the system may be the cause, the text names the
 * limit and how to raise it. Returns text. */
const char *trib_log_reason(int number, char text[TRIB_REASON_MAX]);

/* Does the same for a thread that could not be made. Returns text. */
const char *trib_log_thread_reason(int number, char text[TRIB_REASON_MAX]);

/* Returns the reason for a status that a function below has returned: the system's message if the status is TRIB_SYSTEM
 * and number is the errno, else the status's own text. Fills text if needed. */
const char *trib_log_status_reason(trib_status status, int number, char text[TRIB_REASON_MAX]);

/* Fills *error (may be NULL) and returns status, so that callers can return both in one statement. */
trib_status trib_error_set(trib_error *error, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Makes an empty error; NULL is fine. An initializer would write all of its text, which would cost time for every
 * message. */
static inline void trib_error_clear(trib_error *error)
{
    if (error == NULL) {
        return;
    }
    error->status = TRIB_OK;
    error->text[0] = '\0';
}
/* Tells clang's analyzer, which does not look into other files, that the given status is returned. */
#ifdef __clang_analyzer__
#define trib_error_set(error, status, ...) ((void)trib_error_set(error, status, __VA_ARGS__), (status))
#endif

#endif
