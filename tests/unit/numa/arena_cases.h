/*
 * arena_cases.h - what the tests of arenas share: one arena per case over either heap, and a churn of random blocks.
 *
 * The cases of jemalloc are skipped, and say so, where its module is not linked to the test.
 */
#ifndef TRIB_TESTS_UNIT_ARENA_CASES_H
#define TRIB_TESTS_UNIT_ARENA_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "numa/arena.h"

#define MIB ((size_t)1 << 20)

#if defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#define UNDER_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED 1
#define UNDER_TSAN 1
#elif __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

static inline trib_arena *create_with(trib_arena_params *params, void **state)
{
    params->heap = *(trib_arena_heap *)*state;
    trib_arena *arena = NULL;
    trib_status status = trib_arena_create_with(params, &arena);
    if (status == TRIB_UNSUPPORTED) {
#ifdef UNDER_TSAN
        print_message("# jemalloc is not linked under ThreadSanitizer (docs/decisions/0001-jemalloc.md)\n");
#else
        print_message("# the jemalloc module is not linked to this test\n");
#endif
        skip();
    }
    assert_int_equal(status, TRIB_OK);
    return arena;
}

static inline trib_arena *create(void **state)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    return create_with(&params, state);
}

static inline trib_arena_stats stats_of(trib_arena *arena)
{
    trib_arena_stats stats;
    trib_arena_get_stats(arena, &stats);
    return stats;
}

typedef struct random_block {
    uint8_t *memory;
    size_t size;
    uint8_t mark;
} random_block;

static inline uint32_t random_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Many blocks of many sizes, in random order: none ever touches another, and each lies in one extent. */
static inline void churn(trib_arena *arena, uint64_t seed, uint32_t steps)
{
    random_block blocks[64] = {{.memory = NULL}};
    for (uint32_t step = 0; step < steps; step++) {
        random_block *block = &blocks[random_next(&seed) % 64];
        if (block->memory != NULL) {
            assert_int_equal(block->memory[0], block->mark);
            assert_int_equal(block->memory[block->size / 2], block->mark);
            assert_int_equal(block->memory[block->size - 1], block->mark);
            trib_arena_free(arena, block->memory);
            block->memory = NULL;
            continue;
        }
        size_t size = 1 + (random_next(&seed) & (((size_t)1 << (random_next(&seed) % 19 + 1)) - 1));
        uint8_t *memory = trib_arena_alloc(arena, size, (size_t)1 << (random_next(&seed) % 14));
        assert_non_null(memory);
        trib_arena_location location;
        assert_true(trib_arena_find(arena, memory, 0, &location));
        size_t offset = (size_t)(memory - (uint8_t *)location.base);
        assert_true(offset + size <= location.size);
        *block = (random_block){.memory = memory, .size = size, .mark = (uint8_t)step};
        memset(memory, block->mark, size);
    }
    for (size_t i = 0; i < 64; i++) {
        trib_arena_free(arena, blocks[i].memory);
    }
}

typedef struct churner {
    pthread_t thread;
    trib_arena *arena;
    uint64_t seed;
} churner;

static inline void *churner_run(void *user)
{
    churner *self = user;
    churn(self->arena, self->seed, 4000);
    return NULL;
}

#define BOTH(name)                                                                                                     \
    {"pool: " #name, name, NULL, NULL, &pool},                                                                         \
    {                                                                                                                  \
        "jemalloc: " #name, name, NULL, NULL, &jemalloc                                                                \
    }

#endif
