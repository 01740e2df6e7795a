/* fork.c - see fork.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dup3 */
#endif
#include "engine/base/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"

/* Descriptors from this number on are not remembered, so a child keeps them. Linux gives out the lowest numbers
 * first. */
#define DESCRIPTORS_MAX (1u << 20)
#define BITS 64u         /* bits in a word of the sets below */
#define SHARED_MAX 4096u /* pieces of memory that can be remembered */

/* State of the process, not of an engine; the library has no other such state. Pages that are never written take no
 * memory. */
static _Atomic uint64_t owned[DESCRIPTORS_MAX / BITS];
static _Atomic uint64_t watched[DESCRIPTORS_MAX / BITS]; /* the owned ones that loops of the caller watch */
/* Memory that other processes map, too. base 0: the place is free; 1: a thread is filling it. */
static struct {
    _Atomic uintptr_t base;
    atomic_size_t size;
    atomic_int fd;
} shared[SHARED_MAX];
static atomic_uint shared_end; /* no place from this index on was ever used */
static atomic_uint process;
static atomic_bool watching;

static void give_up(int fd, int *stand_in, bool is_watched)
{
    if (is_watched && *stand_in < 0) {
        *stand_in = trib_descriptor_keep(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
    }
    if (!is_watched || dup3(*stand_in, fd, O_CLOEXEC) < 0) {
        close(fd);
    }
}

/* Maps the memory privately. If that fails, an access ends the child, which is better than reaching the parent's
 * memory. */
static void make_private(void *base, size_t size, int fd)
{
    if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        (void)mprotect(base, size, PROT_NONE);
    }
}

/* The handler, which runs in the child before fork returns there. */
static void forked(void)
{
    const int error = errno;
    int stand_in = -1;
    atomic_fetch_add(&process, 1);
    const unsigned end = atomic_load(&shared_end);
    for (unsigned i = 0; i < end; i++) {
        const uintptr_t base = atomic_exchange(&shared[i].base, 0);
        if (base > 1) {
            make_private((void *)base, atomic_load(&shared[i].size), atomic_load(&shared[i].fd));
        }
    }
    for (uint32_t i = 0; i < DESCRIPTORS_MAX / BITS; i++) {
        if (atomic_load_explicit(&owned[i], memory_order_relaxed) == 0) {
            continue;
        }
        const uint64_t here = atomic_exchange(&watched[i], 0);
        for (uint64_t left = atomic_exchange(&owned[i], 0); left != 0; left &= left - 1) {
            give_up((int)(i * BITS) + __builtin_ctzll(left), &stand_in, (here & left & -left) != 0);
        }
    }
    if (stand_in >= 0) {
        close(stand_in);
    }
    errno = error;
}

bool trib_fork_watch(void)
{
    /* Two threads may both get here first. The handler then runs twice, which changes nothing. The C library forgets
     * the handler when this library is unloaded. */
    if (!atomic_load(&watching)) {
        if (pthread_atfork(NULL, NULL, forked) != 0) {
            return false;
        }
        atomic_store(&watching, true);
    }
    return true;
}

uint32_t trib_fork_process(void)
{
    return atomic_load_explicit(&process, memory_order_relaxed);
}

void trib_fork_own(int fd)
{
    trib_assert(fd >= 0);
    if ((uint32_t)fd < DESCRIPTORS_MAX) {
        atomic_fetch_or(&owned[(uint32_t)fd / BITS], UINT64_C(1) << (uint32_t)fd % BITS);
    }
}

bool trib_fork_own_memory(void *base, size_t size, int fd)
{
    for (unsigned i = 0; i < SHARED_MAX; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&shared[i].base, &none, 1)) {
            trib_fork_own(fd); /* owned first, because a child forked between the two steps would keep it */
            atomic_store(&shared[i].size, size);
            atomic_store(&shared[i].fd, fd);
            atomic_store(&shared[i].base, (uintptr_t)base);
            unsigned end = atomic_load(&shared_end);
            while (end < i + 1 && !atomic_compare_exchange_weak(&shared_end, &end, i + 1)) {}
            return true;
        }
    }
    return false;
}

void trib_fork_disown_memory(void *base)
{
    const unsigned end = atomic_load(&shared_end);
    for (unsigned i = 0; i < end; i++) {
        uintptr_t here = (uintptr_t)base;
        const int fd = atomic_load(&shared[i].fd);
        if (atomic_compare_exchange_strong(&shared[i].base, &here, 0)) {
            trib_fork_disown(fd);
            return;
        }
    }
}

void trib_fork_stand_in(int fd)
{
    trib_assert(fd >= 0);
    if ((uint32_t)fd < DESCRIPTORS_MAX) {
        atomic_fetch_or(&watched[(uint32_t)fd / BITS], UINT64_C(1) << (uint32_t)fd % BITS);
    }
}

void trib_fork_disown(int fd)
{
    trib_assert(fd >= 0);
    if ((uint32_t)fd < DESCRIPTORS_MAX) {
        atomic_fetch_and(&watched[(uint32_t)fd / BITS], ~(UINT64_C(1) << (uint32_t)fd % BITS));
        atomic_fetch_and(&owned[(uint32_t)fd / BITS], ~(UINT64_C(1) << (uint32_t)fd % BITS));
    }
}

void trib_fork_close(int fd)
{
    trib_fork_disown(fd);
    close(fd);
}

void trib_fork_close_socket(int fd)
{
    (void)shutdown(fd, SHUT_RDWR); /* fails on a socket that is not connected, which has no connection to end */
    trib_fork_close(fd);
}
