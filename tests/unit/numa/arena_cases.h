/* arena_cases.h - shared by the tests of arenas: an arena for each case, and a churn of random blocks. */
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
#include "tests/support/sanitized.h"

#define MIB ((size_t)1 << 20)

static inline trib_arena *create_with(const trib_arena_params *params)
{
    trib_arena *arena = NULL;
    trib_status status = trib_arena_create_with(params, &arena);
    assert_int_equal(status, TRIB_OK);
    return arena;
}

static inline trib_arena *create(void)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    return create_with(&params);
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

/* Allocates and frees blocks of many sizes in random order. No block touches another, and each lies in one extent. */
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

#endif
