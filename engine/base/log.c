/* log.c - formats log lines and error texts. No other file of the library writes to standard error. */
#include "engine/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#undef trib_error_set /* this file defines the function itself */

static const char *const level_names[] = {"", "error", "warn", "info", "debug", "trace"};

void trib_logger_init(trib_logger *logger, const trib_config *config)
{
    logger->level = config->log_level;
    logger->cb = config->log_cb;
    logger->user = config->log_user;
    if (config->roles & TRIB_ROLE_WORKER) {
        snprintf(logger->prefix, sizeof logger->prefix, "tributary rank %d", config->rank);
    } else {
        snprintf(logger->prefix, sizeof logger->prefix, "tributary %s",
                 config->roles & TRIB_ROLE_SERVER ? "server" : "coordinator");
    }
}

/* Writes a line with the date in UTC, because people compare the logs of servers on several machines. */
static void write_stderr(trib_log_level level, const char *line)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm parts;
    char date[32];
    gmtime_r(&now.tv_sec, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
    fprintf(stderr, "%s.%03ldZ %-5s %s\n", date, now.tv_nsec / 1000000, level_names[level], line);
}

void trib_log(trib_logger *logger, trib_log_level level, const char *format, ...)
{
    if (level > logger->level) {
        return;
    }
    char line[TRIB_LOG_LINE_MAX];
    int used = snprintf(line, sizeof line, "%s: ", logger->prefix);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    if (logger->cb != NULL) {
        logger->cb(level, line, logger->user);
    } else {
        write_stderr(level, line);
    }
}

const char *trib_log_reason(int number, char text[TRIB_REASON_MAX])
{
    char buffer[128];
    const char *why = strerror_r(number, buffer, sizeof buffer);
    struct rlimit limit;
    const int process = (int)getpid(); /* named, because people may read the text elsewhere */
    if (number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        snprintf(text, TRIB_REASON_MAX,
                 "%s: process %d may have %llu (ulimit -n); raise it: ulimit -n 65536, LimitNOFILE= in a systemd unit, "
                 "nofile in /etc/security/limits.conf",
                 why, process, (unsigned long long)limit.rlim_cur);
    } else if (number == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        snprintf(text, TRIB_REASON_MAX, "%s: process %d may have %llu MiB of addresses (ulimit -v); raise it", why,
                 process, (unsigned long long)limit.rlim_cur >> 20);
    } else if (number == ENOMEM && getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        snprintf(text, TRIB_REASON_MAX, "%s: process %d may have %llu MiB of data (ulimit -d); raise it", why, process,
                 (unsigned long long)limit.rlim_cur >> 20);
    } else if (number == ENOMEM) {
        snprintf(text, TRIB_REASON_MAX,
                 "%s: no limit of process %d says so (ulimit -v, -d), but the machine: see sysctl "
                 "vm.overcommit_memory and vm.max_map_count",
                 why, process);
    } else if (number == ENFILE) {
        snprintf(text, TRIB_REASON_MAX, "%s: raise it for the machine: sysctl fs.file-max", why);
    } else {
        snprintf(text, TRIB_REASON_MAX, "%s", why);
    }
    return text;
}

const char *trib_log_thread_reason(int number, char text[TRIB_REASON_MAX])
{
    char buffer[128];
    const char *why = strerror_r(number, buffer, sizeof buffer);
    struct rlimit limit;
    if (number != EAGAIN) {
        return trib_log_reason(number, text);
    }
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        snprintf(text, TRIB_REASON_MAX,
                 "%s: process %d may have %llu MiB of addresses (ulimit -v), of which a thread needs its stack "
                 "(ulimit -s); raise it",
                 why, (int)getpid(), (unsigned long long)limit.rlim_cur >> 20);
    } else {
        snprintf(text, TRIB_REASON_MAX,
                 "%s: too many processes and threads: raise ulimit -u, TasksMax= in a systemd unit, pids.max of the "
                 "container",
                 why);
    }
    return text;
}

const char *trib_log_status_reason(trib_status status, int number, char text[TRIB_REASON_MAX])
{
    return status == TRIB_SYSTEM && number != 0 ? trib_log_reason(number, text) : trib_status_text(status);
}

trib_status trib_error_set(trib_error *error, trib_status status, const char *format, ...)
{
    if (error != NULL) {
        error->status = status;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}
