/*
 * wire_bytes.h - bytes for the decoders' tests: words at an offset, and buffers whose end may not be passed. Bytes
 * to decode lie right before a page that must not be touched. So a read past the end crashes in every build, not
 * only under the address sanitizer.
 */
#ifndef TRIB_TESTS_WIRE_BYTES_H
#define TRIB_TESTS_WIRE_BYTES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/wire/wire.h"

#define ENCODED_MAX 8192u

typedef struct guarded {
    unsigned char *map;
    size_t usable, size;
} guarded;

static inline guarded guarded_create(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t usable = (ENCODED_MAX + page - 1) / page * page;
    void *map = mmap(NULL, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    guarded memory = {.map = map, .usable = usable, .size = usable + page};
    assert_int_equal(mprotect(memory.map + usable, page, PROT_NONE), 0);
    return memory;
}

/* The reader's last byte is the last one before the forbidden page. */
static inline trib_reader guarded_reader(const guarded *memory, const void *bytes, size_t size)
{
    assert_true(size <= memory->usable);
    unsigned char *at = memory->map + memory->usable - size;
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): assert_true does not return after a failure */
    memcpy(at, bytes, size);
    return (trib_reader){.data = at, .left = size};
}

static inline void guarded_destroy(guarded *memory)
{
    assert_int_equal(munmap(memory->map, memory->size), 0);
}

static inline uint32_t load_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void store_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> 8 * i);
    }
}

#endif
