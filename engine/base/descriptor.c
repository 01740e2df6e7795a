/* descriptor.c - see descriptor.h. */
#include "engine/base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int trib_descriptor_keep(int fd)
{
    if (fd < 0 || fd >= TRIB_DESCRIPTOR_FIRST) {
        return fd;
    }
    const int kept = fcntl(fd, F_DUPFD_CLOEXEC, TRIB_DESCRIPTOR_FIRST);
    const int error = errno;
    close(fd);
    errno = error;
    return kept;
}

FILE *trib_descriptor_open_text(const char *path)
{
    const int fd = trib_descriptor_keep(open(path, O_RDONLY | O_CLOEXEC));
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (file == NULL && fd >= 0) {
        const int error = errno;
        close(fd);
        errno = error;
    }
    return file;
}

void trib_descriptor_guard_begin(trib_descriptor_guard *guard)
{
    guard->count = 0;
    while (guard->count < TRIB_DESCRIPTOR_FIRST) {
        const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0 || fd >= TRIB_DESCRIPTOR_FIRST) {
            if (fd >= 0) {
                close(fd);
            }
            return;
        }
        guard->held[guard->count++] = fd;
    }
}

void trib_descriptor_guard_end(trib_descriptor_guard *guard)
{
    const int error = errno;
    while (guard->count > 0) {
        close(guard->held[--guard->count]);
    }
    errno = error;
}
