/*
 * test_arena_ahead.c - which threads wait for a registrar, and how much memory is registered at a time. Memory that is
 * made ahead delays no thread that takes blocks or looks them up, and a heap that needs little takes no more than a
 * limit.
 */
#include <semaphore.h>
#include <stdatomic.h>

#include "numa/heap.h"
#include "tests/unit/numa/arena_cases.h"

#define LARGE (48 * MIB)

/* A registrar that takes as long as the test likes for large memory. */
typedef struct slow {
    sem_t begun, may_end;
    atomic_uint count;
    atomic_bool is_slow;
} slow;

static trib_status slow_register(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    (void)error;
    slow *self = user;
    if (memory->size >= LARGE && atomic_load(&self->is_slow)) {
        sem_post(&self->begun);
        sem_wait(&self->may_end);
    }
    atomic_fetch_add(&self->count, 1);
    *cookie_out = memory->base;
    return TRIB_OK;
}

static void slow_unregister(void *user, void *base, size_t size, void *cookie)
{
    (void)size;
    slow *self = user;
    assert_ptr_equal(base, cookie);
    atomic_fetch_sub(&self->count, 1);
}

static void slow_add(slow *self, trib_arena *arena, uint32_t *id_out)
{
    const trib_arena_registrar registrar = {
        .register_extent = slow_register, .unregister_extent = slow_unregister, .user = self};
    assert_int_equal(sem_init(&self->begun, 0, 0), 0);
    assert_int_equal(sem_init(&self->may_end, 0, 0), 0);
    atomic_init(&self->count, 0);
    atomic_init(&self->is_slow, true);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, id_out), TRIB_OK);
}

static void slow_end(slow *self)
{
    assert_int_equal(atomic_load(&self->count), 0);
    sem_destroy(&self->begun);
    sem_destroy(&self->may_end);
}

typedef struct maker {
    pthread_t thread;
    trib_arena *arena;
    bool is_reserved;
    void *block;
} maker;

static void *reserve_run(void *user)
{
    maker *self = user;
    self->is_reserved = trib_arena_reserve(self->arena, LARGE);
    return NULL;
}

static void *alloc_run(void *user)
{
    maker *self = user;
    self->block = trib_arena_alloc_blocking(self->arena, LARGE, 0);
    return NULL;
}

/* Other threads take blocks, make further extents and look up addresses while the registrar has not returned. */
static void others_go_on(trib_arena *arena, uint32_t id, uint8_t *known)
{
    const trib_arena_stats before = stats_of(arena);
    trib_arena_location location;
    assert_true(trib_arena_find(arena, known, id, &location));
    assert_int_equal(location.status, TRIB_OK);
    for (int i = 0; i < 3; i++) {
        uint8_t *block = trib_arena_alloc(arena, 5 * MIB, 0);
        assert_non_null(block);
        assert_true(trib_arena_find(arena, block, id, &location));
        assert_int_equal(location.status, TRIB_OK);
    }
    assert_true(stats_of(arena).extents > before.extents);
    trib_arena_free(arena, known);
}

static void hold_up_nobody(void *(*make)(void *))
{
    trib_arena *arena = create();
    slow registrar;
    uint32_t id = 99;
    slow_add(&registrar, arena, &id);
    uint8_t *known = trib_arena_alloc(arena, MIB, 0);
    assert_non_null(known);
    maker other = {.arena = arena};
    assert_int_equal(pthread_create(&other.thread, NULL, make, &other), 0);
    sem_wait(&registrar.begun);
    others_go_on(arena, id, known);
    sem_post(&registrar.may_end);
    assert_int_equal(pthread_join(other.thread, NULL), 0);
    const uint64_t extents = stats_of(arena).extents;
    assert_int_equal(atomic_load(&registrar.count), extents);
    assert_true(other.is_reserved || other.block != NULL);
    uint8_t *block = other.is_reserved ? trib_arena_alloc(arena, 20 * MIB, 0) : other.block;
    assert_non_null(block);
    trib_arena_location location;
    assert_true(trib_arena_find(arena, block, id, &location));
    assert_int_equal(location.status, TRIB_OK);
    assert_true(location.size >= LARGE);
    assert_int_equal(stats_of(arena).extents, extents); /* the block is cut from the extent that was made */
    trib_arena_destroy(arena);
    slow_end(&registrar);
}

static void test_reserving(void **state)
{
    (void)state;
    hold_up_nobody(reserve_run);
}

static void test_patience(void **state)
{
    (void)state;
    hold_up_nobody(alloc_run);
}

/* An extent is made only if the heap has no room. */
static void test_free_memory_is_used_first(void **state)
{
    (void)state;
    trib_arena *arena = create();
    assert_true(trib_arena_reserve(arena, 64 * MIB));
    assert_true(trib_arena_reserve(arena, 128 * MIB));
    assert_int_equal(stats_of(arena).extents, 2);
    uint8_t *small = trib_arena_alloc_blocking(arena, 50 * MIB, 0);
    uint8_t *big = trib_arena_alloc_blocking(arena, 100 * MIB, 0);
    assert_non_null(small);
    assert_non_null(big);
    small[0] = small[50 * MIB - 1] = big[0] = big[100 * MIB - 1] = 1;
    assert_int_equal(stats_of(arena).extents, 2); /* neither was lost for the other */
    trib_arena_free(arena, big);
    assert_non_null(trib_arena_alloc_blocking(arena, 100 * MIB, 0));
    assert_int_equal(stats_of(arena).extents, 2);
    uint8_t *aligned = trib_arena_alloc_blocking(arena, 21 * MIB, TRIB_EXTENT_BYTES);
    assert_non_null(aligned);
    assert_int_equal((uintptr_t)aligned % TRIB_EXTENT_BYTES, 0);
    uint8_t *little = trib_arena_alloc_blocking(arena, 100, 0);
    assert_non_null(little);
    little[99] = 1;
    assert_null(trib_arena_alloc_blocking(arena, 0, 0));
    assert_null(trib_arena_alloc_blocking(arena, 32 * MIB, 48));
    assert_null(trib_arena_alloc_blocking(arena, SIZE_MAX / 2, 0));
    trib_arena_destroy(arena);
}

/* An extent that cannot be made leaves nothing behind, and is counted. */
static void test_no_room(void **state)
{
    (void)state;
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.bytes_max = 40 * MIB;
    trib_arena *arena = create_with(&params);
    assert_false(trib_arena_reserve(arena, 41 * MIB));
    assert_int_equal(stats_of(arena).map_failures, 1);
    assert_int_equal(stats_of(arena).bytes_mapped, 0);
    assert_null(trib_arena_alloc_blocking(arena, 41 * MIB, 0));
    assert_int_equal(stats_of(arena).bytes_mapped, 0);
    assert_non_null(trib_arena_alloc_blocking(arena, 20 * MIB, 0));
    assert_true(trib_arena_reserve(arena, 18 * MIB));
    assert_in_range(stats_of(arena).bytes_mapped, 38 * MIB, 40 * MIB);
    trib_arena_destroy(arena);
}

static void *no_map(void *user, size_t size)
{
    (void)user;
    (void)size;
    return NULL;
}

static void no_unmap(void *user, void *base, size_t size)
{
    (void)user;
    (void)base;
    (void)size;
}

static void test_no_memory(void **state)
{
    (void)state;
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.map = no_map;
    params.unmap = no_unmap;
    trib_arena *arena = create_with(&params);
    assert_false(trib_arena_reserve(arena, 4 * MIB));
    assert_int_equal(stats_of(arena).map_failures, 1);
    assert_int_equal(stats_of(arena).bytes_mapped, 0);
    assert_int_equal(stats_of(arena).extents, 0);
    trib_arena_destroy(arena);
}

/* Threads that may wait, threads that must not, and threads that only look up addresses run at the same time. */
static void *blocking_run(void *user)
{
    churner *self = user;
    for (uint32_t step = 0; step < 50; step++) {
        const size_t size = (16 + random_next(&self->seed) % 32) * MIB;
        uint8_t *block = trib_arena_alloc_blocking(self->arena, size, 0);
        assert_non_null(block);
        trib_arena_location location;
        assert_true(trib_arena_find(self->arena, block, 0, &location));
        assert_true((uintptr_t)block + size <= (uintptr_t)location.base + location.size);
        block[0] = block[size - 1] = (uint8_t)step;
        trib_arena_free(self->arena, block);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    trib_arena *arena = create();
    slow registrar;
    uint32_t id = 99;
    slow_add(&registrar, arena, &id);
    atomic_store(&registrar.is_slow, false);
    churner churners[4];
    for (uint32_t i = 0; i < 4; i++) {
        churners[i] = (churner){.arena = arena, .seed = i + 1};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, i < 2 ? blocking_run : churner_run, &churners[i]),
                         0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
    }
    assert_int_equal(stats_of(arena).blocks_in_use, 0);
    assert_int_equal(atomic_load(&registrar.count), stats_of(arena).extents);
    trib_arena_destroy(arena);
    slow_end(&registrar);
}

/* Remembers the size of the largest extent that the arena asked for. */
static trib_status largest_register(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    (void)error;
    size_t *largest = user;
    *largest = memory->size > *largest ? memory->size : *largest;
    *cookie_out = user;
    return TRIB_OK;
}

static void largest_unregister(void *user, void *base, size_t size, void *cookie)
{
    (void)base;
    (void)size;
    assert_ptr_equal(user, cookie);
}

static void test_growth(void **state)
{
    (void)state;
    trib_arena *arena = create();
    size_t largest = 0;
    uint32_t id = 99;
    const trib_arena_registrar registrar = {
        .register_extent = largest_register, .unregister_extent = largest_unregister, .user = &largest};
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    for (int i = 0; i < 90; i++) {
        assert_non_null(trib_arena_alloc(arena, 8 * MIB, 0));
    }
    assert_int_equal(largest, TRIB_HEAP_GROWTH_BYTES_MAX);
    /* One block is larger than the limit. The heap takes as much as the block needs, and no more. */
    assert_non_null(trib_arena_alloc(arena, 321 * MIB, 0));
    assert_in_range(largest, 321 * MIB, 321 * MIB + TRIB_EXTENT_BYTES - 1);
    assert_non_null(trib_arena_alloc(arena, 8 * MIB, 0));
    largest = 0;
    for (int i = 0; i < 20; i++) {
        assert_non_null(trib_arena_alloc(arena, 8 * MIB, 0));
    }
    assert_int_equal(largest, TRIB_HEAP_GROWTH_BYTES_MAX); /* nor does it grow by as much from then on */
    trib_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reserving),
        cmocka_unit_test(test_patience),
        cmocka_unit_test(test_free_memory_is_used_first),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
