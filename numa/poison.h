/*
 * poison.h - tells AddressSanitizer which bytes of an arena belong to nobody; nothing at all in other builds.
 */
#ifndef TRIB_NUMA_POISON_H
#define TRIB_NUMA_POISON_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define TRIB_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TRIB_POISON 1
#endif
#endif

#ifdef TRIB_POISON
#include <sanitizer/asan_interface.h>

static inline void trib_poison(const void *memory, size_t size)
{
    __asan_poison_memory_region(memory, size);
}

static inline void trib_unpoison(const void *memory, size_t size)
{
    __asan_unpoison_memory_region(memory, size);
}
#else
static inline void trib_poison(const void *memory, size_t size)
{
    (void)memory;
    (void)size;
}

static inline void trib_unpoison(const void *memory, size_t size)
{
    (void)memory;
    (void)size;
}
#endif

#endif
