/* descriptor.c - see descriptor.h. */
#include "engine/base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "engine/base/assert.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int guards;
static bool is_held[TRIB_DESCRIPTOR_FIRST]; /* by all guards together, until the last one ends */

/* Keeps the number if it is low. Returns false, and closes the descriptor, if it is not. */
static bool hold(int fd)
{
    const bool is_low = fd >= 0 && fd < TRIB_DESCRIPTOR_FIRST;
    if (is_low) {
        is_held[fd] = true;
    } else if (fd >= 0) {
        close(fd);
    }
    return is_low;
}

/* Gives a low number back. While another thread has a guard, the guard takes the number over: it had this one when the
 * guard took those that were free. */
static void give_back(int fd)
{
    const int null = guards > 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (null < 0) {
        close(fd);
        return;
    }
    is_held[fd] = dup3(null, fd, O_CLOEXEC) == fd;
    hold(null);
}

int trib_descriptor_keep(int fd)
{
    if (fd < 0 || fd >= TRIB_DESCRIPTOR_FIRST) {
        return fd;
    }
    pthread_mutex_lock(&mutex);
    const int kept = fcntl(fd, F_DUPFD_CLOEXEC, TRIB_DESCRIPTOR_FIRST);
    const int error = errno;
    give_back(fd);
    pthread_mutex_unlock(&mutex);
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

void trib_descriptor_guard_begin(void)
{
    pthread_mutex_lock(&mutex);
    guards++;
    while (hold(open("/dev/null", O_RDWR | O_CLOEXEC))) {}
    pthread_mutex_unlock(&mutex);
}

void trib_descriptor_guard_end(void)
{
    const int error = errno;
    pthread_mutex_lock(&mutex);
    trib_assert(guards > 0);
    guards--;
    for (int fd = 0; guards == 0 && fd < TRIB_DESCRIPTOR_FIRST; fd++) {
        if (is_held[fd]) {
            is_held[fd] = false;
            close(fd);
        }
    }
    pthread_mutex_unlock(&mutex);
    errno = error;
}
