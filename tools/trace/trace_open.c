/*
 * trace_open.c - opens files that may be traces, and files that must not be traces: see trace_read.h.
 *
 * A reader loads a whole file into memory. Another file may be endless, or huge, or a pipe without a writer; so the
 * kind of the file and its header are checked first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/trace/trace_read.h"

static trib_status check_beginning(FILE *from, uint64_t size, const char *path, trib_error *error)
{
    unsigned char header[TRIB_TRACE_HEADER_BYTES];
    const bool whole = fread(header, 1, sizeof header, from) == sizeof header;
    if (!whole && ferror(from) != 0) {
        return trib_error_set(error, TRIB_SYSTEM, "%s: %s", path, strerror(errno));
    }
    if (!whole || memcmp(header, TRIB_TRACE_MAGIC, 8) != 0) {
        return trib_error_set(error, TRIB_INVALID, "%s: it is not a trace of Tributary", path);
    }
    const uint64_t told = trib_trace_load_u64(header + 24);
    if (told != size) {
        return trib_error_set(error, TRIB_INVALID,
                              "%s: it has %llu bytes of %llu: it was cut off, or something was added", path,
                              (unsigned long long)size, (unsigned long long)told);
    }
    rewind(from);
    return TRIB_OK;
}

trib_status trace_file_open(const char *path, FILE **from_out, size_t *size_out, trib_error *error)
{
    const int descriptor =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe without a writer would block */
    struct stat about = {.st_size = 0};
    FILE *from = descriptor >= 0 && fstat(descriptor, &about) == 0 ? fdopen(descriptor, "rb") : NULL;
    if (from == NULL) {
        trib_status status = trib_error_set(error, TRIB_SYSTEM, "%s: %s", path, strerror(errno));
        if (descriptor >= 0) {
            close(descriptor);
        }
        return status;
    }
    trib_status status = S_ISREG(about.st_mode) ? check_beginning(from, (uint64_t)about.st_size, path, error)
                                                : trib_error_set(error, TRIB_SYSTEM, "%s: not a file", path);
    if (status != TRIB_OK) {
        fclose(from);
        return status;
    }
    *from_out = from;
    *size_out = (size_t)about.st_size;
    return TRIB_OK;
}

FILE *trace_output_open(const char *path, trib_error *error)
{
    unsigned char magic[8];
    struct stat about;
    FILE *there = stat(path, &about) == 0 && S_ISREG(about.st_mode) ? fopen(path, "rbe") : NULL;
    if (there != NULL) {
        const bool is_trace =
            fread(magic, 1, sizeof magic, there) == sizeof magic && memcmp(magic, TRIB_TRACE_MAGIC, sizeof magic) == 0;
        fclose(there);
        if (is_trace) {
            (void)trib_error_set(error, TRIB_INVALID, "cannot write %s: it is a trace; which file shall be written?",
                                 path);
            return NULL;
        }
    }
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        (void)trib_error_set(error, TRIB_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    return out;
}
