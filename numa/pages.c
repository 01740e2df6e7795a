/* pages.c - see pages.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/pages.h"

#include "numa/arena.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODE_MASK_WORDS 16
#define WORD_BITS (8 * sizeof(unsigned long))

/* Maps more than is needed and cuts off what sticks out, as mmap aligns to small pages only. */
void *trib_pages_map(void *user, size_t size)
{
    (void)user;
    size_t whole_size = size + TRIB_EXTENT_BYTES - TRIB_PAGE_BYTES;
    void *whole = mmap(NULL, whole_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
