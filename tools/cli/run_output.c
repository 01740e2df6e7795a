/* run_output.c - writes whole lines with the process's name in front, so that lines of several processes do not
 * mix. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tools/cli/run_output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define READ_BYTES 4096u           /* room for one read */
#define LINE_BYTES_MAX (16u << 20) /* a longer line is cut: a program that never ends its line must not fill memory */
#define PROGRESS_MS 2000           /* a line that is rewritten with carriage returns is passed on so often */

/* The job goes on when its output can no longer be written. The first line that is lost is reported with the
 * reason, and the exit status tells it too. */
static void print_line(const run_output *self, size_t begin, size_t length, const char *name, FILE *to)
{
    const bool told = ferror(to) != 0;
    const bool written = fprintf(to, "[%s] ", name) >= 0 && fwrite(self->line + begin, 1, length, to) == length &&
                         putc('\n', to) != EOF && fflush(to) == 0;
    if (!written && !told) {
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
    free(self->line);
    self->line = NULL;
    self->used = self->capacity = 0;
}

/* Room for one more read. False where the line may not grow, or there is no memory. */
static bool make_room(run_output *self)
{
    if (self->capacity - self->used >= READ_BYTES) {
        return true;
    }
    const size_t capacity = self->capacity == 0 ? READ_BYTES : 2 * self->capacity;
    char *line = capacity <= LINE_BYTES_MAX ? realloc(self->line, capacity) : NULL;
    if (line == NULL) {
        return false;
    }
    self->line = line;
    self->capacity = capacity;
    return true;
}

static void drop(run_output *self, size_t count)
{
    self->used -= count;
    memmove(self->line, self->line + count, self->used);
}

/* The bytes from `from` on are new: what is before them has no end of a line. */
static void print_lines(run_output *self, size_t from, const char *name, int64_t now_ms, FILE *to)
{
    size_t begin = 0;
    for (const char *end; (end = memchr(self->line + from, '\n', self->used - from)) != NULL;) {
        const size_t length = (size_t)(end - self->line) - begin;
        print_line(self, begin, length, name, to);
        begin = from = begin + length + 1;
        self->began_ms = now_ms;
    }
    drop(self, begin);
}

/* A progress bar rewrites its line, and may end it hours later. */
static void print_progress(run_output *self, const char *name, int64_t now_ms, FILE *to)
{
    const char *back = now_ms - self->began_ms >= PROGRESS_MS ? memrchr(self->line, '\r', self->used) : NULL;
    if (back != NULL) {
        const size_t length = (size_t)(back - self->line) + 1;
        print_line(self, 0, length, name, to);
        drop(self, length);
        self->began_ms = now_ms;
    }
}

void run_output_relay(run_output *self, const char *name, int64_t now_ms, FILE *to)
{
    if (!make_room(self) && self->used > 0) {
        print_line(self, 0, self->used, name, to);
        self->used = 0;
    }
    const size_t before = self->used;
    const ssize_t got = self->capacity > before ? read(self->fd, self->line + before, self->capacity - before) : 0;
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (got > 0) {
        self->began_ms = before == 0 ? now_ms : self->began_ms;
        self->used += (size_t)got;
        print_lines(self, before, name, now_ms, to);
        print_progress(self, name, now_ms, to);
        return;
    }
    if (self->used > 0) {
        print_line(self, 0, self->used, name, to);
    }
    run_output_close(self);
}
