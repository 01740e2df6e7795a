/* run_output.c - writes whole lines with the process's name in front, so that lines of several processes do not
 * mix. */
#include "tools/cli/run_output.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The job goes on when its output can no longer be written. The first line that is lost is reported with the
 * reason, and the exit status tells it too. */
static void print_line(const run_output *self, size_t length, const char *name, FILE *to)
{
    const bool told = ferror(to) != 0;
    if ((fprintf(to, "[%s] %.*s\n", name, (int)length, self->line) < 0 || fflush(to) != 0) && !told) {
        fprintf(stderr, "tributary run: cannot write standard %s: %s\n", to == stdout ? "output" : "error",
                strerror(errno));
    }
}

void run_output_refused(int processes, int index)
{
    const int why = errno;
    struct rlimit limit;
    fprintf(stderr, "tributary run: pipe: %s", strerror(why));
    if (why == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        /* All descriptors are in use. Each running process takes two, and the one that is being started holds both
         * ends for a moment. */
        const unsigned long long missing = 2 * (unsigned long long)(processes - index) + 2;
        fprintf(stderr, ": %d processes need %llu, this one may have %llu; raise it: ulimit -n %llu, or more",
                processes, limit.rlim_cur + missing, (unsigned long long)limit.rlim_cur, limit.rlim_cur + missing);
    }
    fputc('\n', stderr);
}

void run_output_close(run_output *self)
{
    if (self->fd >= 0) {
        close(self->fd);
        self->fd = -1;
    }
}

void run_output_relay(run_output *self, const char *name, FILE *to)
{
    ssize_t got = read(self->fd, self->line + self->used, sizeof self->line - self->used);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    self->used += got > 0 ? (size_t)got : 0;
    char *newline;
    while ((newline = memchr(self->line, '\n', self->used)) != NULL) {
        size_t length = (size_t)(newline - self->line);
        print_line(self, length, name, to);
        self->used -= length + 1;
        memmove(self->line, newline + 1, self->used);
    }
    if (self->used == sizeof self->line || (got <= 0 && self->used > 0)) {
        print_line(self, self->used, name, to);
        self->used = 0;
    }
    if (got <= 0) {
        run_output_close(self);
    }
}
