/* pages.c - see pages.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/pages.h"

#include "numa/arena.h"
#include "engine/base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NODE_MASK_WORDS 16
#define WORD_BITS (8 * sizeof(unsigned long))

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Pages are taken when they are touched, and where there are none the process ends. So what the machine can never have
 * is refused before. */
static bool may_be_backed(size_t size)
{
    struct sysinfo machine = {.totalram = 0};
    return sysinfo(&machine) != 0 || size / machine.mem_unit <= machine.totalram + machine.totalswap;
}

/* Maps more than is needed and unmaps the excess, as mmap aligns to small pages only. */
static void *map_aligned(size_t size, int protection)
{
    size_t whole_size = size + TRIB_EXTENT_BYTES - TRIB_PAGE_BYTES;
    if (!may_be_backed(size)) {
        errno = ENOMEM;
        return NULL;
    }
    void *whole = mmap(NULL, whole_size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
        return NULL;
    }
    uintptr_t start = (uintptr_t)whole;
    size_t before = -start & (TRIB_EXTENT_BYTES - 1);
    size_t after = whole_size - before - size;
    uint8_t *base = (uint8_t *)whole + before;
    if (before > 0) {
        munmap(whole, before);
    }
    if (after > 0) {
        munmap(base + size, after);
    }
    return base;
}

void *trib_pages_map(void *user, size_t size)
{
    (void)user;
    return map_aligned(size, PROT_READ | PROT_WRITE);
}

/* Maps the file over addresses that are aligned for huge pages. */
static void *map_file(int fd, size_t size, int protection)
{
    void *base = map_aligned(size, PROT_NONE);
    if (base != NULL && mmap(base, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(base, size);
        base = NULL;
    }
    return base;
}

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x8u
#endif

static int create_memfd(const char *label)
{
    const int fd = trib_descriptor_keep(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
    return fd >= 0 || errno != EINVAL
               ? fd
               : trib_descriptor_keep(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING)); /* before Linux 6.3 */
}

/* Beyond a limit on files' sizes the kernel does not only refuse, but ends the process. */
static bool may_be_file(size_t size)
{
    struct rlimit limit = {.rlim_cur = 0};
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur);
}

int trib_pages_file(const char *label, size_t size)
{
    if (!may_be_file(size)) {
        errno = EFBIG;
        return -1;
    }
    const int fd = create_memfd(label);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        const int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* False under strict accounting: a file's pages may then be missing when they are touched, which ends the process. */
static bool is_overcommitted(void)
{
    char mode = '2';
    const int fd = trib_descriptor_keep(open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC));
    const bool is_known = fd >= 0 && read(fd, &mode, 1) == 1;
    if (fd >= 0) {
        close(fd);
    }
    return !is_known || mode != '2';
}

/* Descriptors are given out lowest first; the upper half of the allowed numbers is left to the host. */
static bool leaves_descriptors(int fd)
{
    struct rlimit limit = {.rlim_cur = 0};
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 2;
}

void *trib_pages_map_shared(size_t size, int *fd_out)
{
    const int fd = is_overcommitted() ? trib_pages_file("tributary memory", size) : -1;
    if (fd < 0) {
        return NULL;
    }
    void *base = leaves_descriptors(fd) && fcntl(fd, F_ADD_SEALS, SEALS) == 0
                     ? map_file(fd, size, PROT_READ | PROT_WRITE)
                     : NULL;
    if (base == NULL) {
        close(fd);
        return NULL;
    }
    *fd_out = fd;
    return base;
}

void *trib_pages_map_foreign(int fd, size_t size)
{
    struct stat about;
    struct statfs system;
    const int seals = fcntl(fd, F_GET_SEALS);
    /* No hugetlbfs either: its pages may run out when a reader touches a hole. */
    const bool is_such = fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC && seals >= 0 &&
                         (seals & F_SEAL_SHRINK) != 0 && size > 0 && size % TRIB_EXTENT_BYTES == 0 &&
                         fstat(fd, &about) == 0 && about.st_size >= 0 && (size_t)about.st_size >= size;
    void *base = is_such ? map_file(fd, size, PROT_READ) : NULL;
    if (base != NULL) { /* the memory is another process's: no child keeps it alive, no core dump holds it */
        (void)madvise(base, size, MADV_DONTFORK);
        (void)madvise(base, size, MADV_DONTDUMP);
    }
    return base;
}

void trib_pages_unmap_shared(void *base, size_t size, int fd)
{
    munmap(base, size);
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
    close(fd);
}

void trib_pages_unmap(void *user, void *base, size_t size)
{
    (void)user;
    munmap(base, size);
}

/* Prefers the node, so that the kernel falls back to another when it is full, rather than kill the process. */
bool trib_pages_bind(void *base, size_t size, int32_t node)
{
    unsigned long mask[NODE_MASK_WORDS] = {0};
    size_t bits = NODE_MASK_WORDS * WORD_BITS;
    if ((size_t)node >= bits - 1) {
        return false;
    }
    mask[(size_t)node / WORD_BITS] |= 1UL << ((size_t)node % WORD_BITS);
    return syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, bits, 0) == 0;
}
