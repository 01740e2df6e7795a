/*
 * test_arena.c - arenas over both heaps: alignment, contents, reuse, registration of every extent, and running out of memory.
 *
 * The cases of jemalloc are skipped, and say so, where its module is not linked to the test.
 */
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

static trib_arena *create_with(trib_arena_params *params, void **state) {
    params->heap = *(trib_arena_heap *)*state;
    trib_arena *arena = NULL;
    trib_status status = trib_arena_create_with(params, &arena);
    if (status == TRIB_UNSUPPORTED) {
        print_message("the jemalloc module is not linked to this test\n");
        skip();
    }
    assert_int_equal(status, TRIB_OK);
    return arena;
}

static trib_arena *create(void **state) {
    trib_arena_params params;
    trib_arena_params_init(&params);
    return create_with(&params, state);
}

static trib_arena_stats stats_of(trib_arena *arena) {
    trib_arena_stats stats;
    trib_arena_get_stats(arena, &stats);
    return stats;
}

static void test_alignment(void **state) {
    static const size_t sizes[] = {1, 63, 64, 65, 4095, 4096, 4097, 65536, 1 << 20, (2 << 20) + 1, 9 << 20};
    trib_arena *arena = create(state);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *block = trib_arena_alloc(arena, sizes[i], 0);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % (sizes[i] >= TRIB_PAGE_BYTES ? TRIB_PAGE_BYTES : TRIB_CACHE_LINE_BYTES), 0);
        memset(block, 0x5a, sizes[i]);
        for (size_t alignment = 1; alignment <= TRIB_EXTENT_BYTES; alignment *= 2) {
            uint8_t *aligned = trib_arena_alloc(arena, sizes[i], alignment);
            assert_non_null(aligned);
            assert_int_equal((uintptr_t)aligned % alignment, 0);
            aligned[0] = aligned[sizes[i] - 1] = 1;
            trib_arena_free(arena, aligned);
        }
        trib_arena_free(arena, block);
    }
    assert_int_equal(stats_of(arena).blocks_in_use, 0);
    assert_int_equal(stats_of(arena).bytes_in_use, 0);
    trib_arena_destroy(arena);
}

static void test_refused(void **state) {
    trib_arena *arena = create(state);
    assert_null(trib_arena_alloc(arena, 0, 0));
    assert_null(trib_arena_alloc(arena, 64, 48));
    assert_null(trib_arena_alloc(arena, 64, TRIB_EXTENT_BYTES * 2));
    assert_null(trib_arena_alloc(arena, SIZE_MAX, 0));
    assert_null(trib_arena_alloc(arena, SIZE_MAX / 4, 0));
    assert_null(trib_arena_alloc(arena, SIZE_MAX / 2 + 1, 0));
    trib_arena_free(arena, NULL);
    trib_arena_destroy(arena);
    trib_arena_destroy(NULL);
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.heap = (trib_arena_heap)7;
    assert_int_equal(trib_arena_create_with(&params, &arena), TRIB_INVALID);
}

typedef struct random_block {
    uint8_t *memory;
    size_t size;
    uint8_t mark;
} random_block;

static uint32_t random_next(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Many blocks of many sizes, in random order: none ever touches another, and each lies in one extent. */
static void churn(trib_arena *arena, uint64_t seed, uint32_t steps) {
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

static void test_churn(void **state) {
    trib_arena *arena = create(state);
    churn(arena, 1, 20000);
    trib_arena_stats stats = stats_of(arena);
    assert_int_equal(stats.blocks_in_use, 0);
    assert_int_equal(stats.bytes_in_use, 0);
    assert_int_equal(stats.bytes_mapped % TRIB_EXTENT_BYTES, 0);
    /* At most 32 MiB are ever in use at once; what was freed must have been used again. */
    assert_true(stats.bytes_mapped <= 96 * MIB);
    trib_arena_destroy(arena);
}

typedef struct churner {
    pthread_t thread;
    trib_arena *arena;
    uint64_t seed;
} churner;

static void *churner_run(void *user) {
    churner *self = user;
    churn(self->arena, self->seed, 4000);
    return NULL;
}

static void test_threads(void **state) {
    trib_arena *arena = create(state);
    churner churners[4];
    for (uint64_t i = 0; i < 4; i++) {
        churners[i] = (churner){.arena = arena, .seed = i + 10};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, churner_run, &churners[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
    }
    assert_int_equal(stats_of(arena).blocks_in_use, 0);
    trib_arena_destroy(arena);
}

/* What goes on in the steady state - the same blocks again and again - maps nothing. */
static void test_steady(void **state) {
    trib_arena *arena = create(state);
    uint64_t mapped = 0;
    for (uint32_t round = 0; round < 200; round++) {
        void *blocks[8];
        for (size_t i = 0; i < 8; i++) {
            blocks[i] = trib_arena_alloc(arena, MIB + i * 4096, 0);
            assert_non_null(blocks[i]);
        }
        for (size_t i = 0; i < 8; i++) {
            trib_arena_free(arena, blocks[(i * 3) % 8]);
        }
        if (round == 1) {
            mapped = stats_of(arena).bytes_mapped;
        }
    }
    assert_int_equal(stats_of(arena).bytes_mapped, mapped);
    trib_arena_destroy(arena);
}

/* A registrar that keeps books: what is registered now, and that nothing is registered twice. */
typedef struct ledger {
    void *bases[64];
    size_t sizes[64];
    uint32_t count, calls, refuse_from;
} ledger;

static trib_status ledger_register(void *user, void *base, size_t size, void **cookie_out) {
    ledger *book = user;
    assert_int_equal((uintptr_t)base % TRIB_EXTENT_BYTES, 0);
    assert_int_equal(size % TRIB_EXTENT_BYTES, 0);
    if (++book->calls > book->refuse_from) {
        return TRIB_NO_MEMORY;
    }
    for (uint32_t i = 0; i < book->count; i++) {
        assert_ptr_not_equal(book->bases[i], base);
    }
    assert_true(book->count < 64);
    book->bases[book->count] = base;
    book->sizes[book->count++] = size;
    *cookie_out = (uint8_t *)base + 1;
    return TRIB_OK;
}

static void ledger_unregister(void *user, void *base, size_t size, void *cookie) {
    ledger *book = user;
    assert_ptr_equal(cookie, (uint8_t *)base + 1);
    for (uint32_t i = 0; i < book->count; i++) {
        if (book->bases[i] == base) {
            assert_int_equal(book->sizes[i], size);
            book->count--;
            book->bases[i] = book->bases[book->count];
            book->sizes[i] = book->sizes[book->count];
            return;
        }
    }
    fail_msg("an extent was unregistered that is not registered");
}

static trib_arena_registrar ledger_registrar(ledger *book) {
    return (trib_arena_registrar){.register_extent = ledger_register, .unregister_extent = ledger_unregister, .user = book};
}

static void test_registrars(void **state) {
    trib_arena *arena = create(state);
    ledger early = {.refuse_from = UINT32_MAX};
    ledger late = {.refuse_from = UINT32_MAX};
    trib_arena_registrar registrar = ledger_registrar(&early);
    uint32_t early_id = 99;
    uint32_t late_id = 99;
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &early_id), TRIB_OK);
    uint8_t *first = trib_arena_alloc(arena, 3 * MIB, 0);
    assert_non_null(first);
    registrar = ledger_registrar(&late);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &late_id), TRIB_OK);
    assert_int_not_equal(early_id, late_id);
    assert_int_equal(late.count, early.count); /* told of what was there */
    uint8_t *second = trib_arena_alloc(arena, 17 * MIB, 0);
    assert_non_null(second);
    assert_int_equal(early.count, stats_of(arena).extents);
    assert_int_equal(late.count, early.count);
    trib_arena_location location;
    assert_true(trib_arena_find(arena, second + 17 * MIB - 1, late_id, &location));
    assert_int_equal(location.status, TRIB_OK);
    assert_ptr_equal(location.cookie, (uint8_t *)location.base + 1);
    assert_true((uint8_t *)location.base <= second);
    assert_true(trib_arena_find(arena, first, 7, &location));
    assert_int_equal(location.status, TRIB_INVALID);
    assert_true(trib_arena_find(arena, first, UINT32_MAX, &location));
    assert_int_equal(location.status, TRIB_INVALID);
    assert_false(trib_arena_find(arena, &location, early_id, &location));
    assert_false(trib_arena_find(arena, NULL, early_id, &location));
    trib_arena_remove_registrar(arena, early_id);
    trib_arena_remove_registrar(arena, early_id);
    trib_arena_remove_registrar(arena, UINT32_MAX);
    assert_int_equal(early.count, 0);
    assert_int_equal(late.count, stats_of(arena).extents);
    trib_arena_destroy(arena); /* with both blocks in use */
    assert_int_equal(late.count, 0);
}

/* A registrar that cannot register any more: the memory is there all the same, and find tells. */
static void test_registrar_fails(void **state) {
    trib_arena *arena = create(state);
    ledger book = {.refuse_from = 1};
    trib_arena_registrar registrar = ledger_registrar(&book);
    uint32_t id = 99;
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    uint8_t *first = trib_arena_alloc(arena, MIB, 0);
    uint8_t *second = trib_arena_alloc(arena, 32 * MIB, 0);
    assert_non_null(first);
    assert_non_null(second);
    memset(second, 1, 32 * MIB);
    trib_arena_location location;
    assert_true(trib_arena_find(arena, first, id, &location));
    assert_int_equal(location.status, TRIB_OK);
    assert_true(trib_arena_find(arena, second, id, &location));
    assert_int_equal(location.status, TRIB_NO_MEMORY);
    assert_null(location.cookie);
    assert_true(stats_of(arena).registration_failures >= 1);
    trib_arena_destroy(arena);
    assert_int_equal(book.count, 0);
}

static void test_registrars_max(void **state) {
    trib_arena *arena = create(state);
    ledger books[TRIB_ARENA_REGISTRARS_MAX + 1];
    uint32_t id = 99;
    for (uint32_t i = 0; i <= TRIB_ARENA_REGISTRARS_MAX; i++) {
        books[i] = (ledger){.refuse_from = UINT32_MAX};
        trib_arena_registrar registrar = ledger_registrar(&books[i]);
        trib_status wanted = i < TRIB_ARENA_REGISTRARS_MAX ? TRIB_OK : TRIB_BUSY;
        assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), wanted);
    }
    assert_int_equal(id, TRIB_ARENA_REGISTRARS_MAX - 1);
    trib_arena_remove_registrar(arena, 3);
    trib_arena_registrar registrar = ledger_registrar(&books[TRIB_ARENA_REGISTRARS_MAX]);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    assert_int_equal(id, 3);
    trib_arena_destroy(arena);
}

/* Mappings that fail from the n-th on. */
typedef struct stingy {
    uint32_t left, mapped;
} stingy;

static void *stingy_map(void *user, size_t size) {
    stingy *self = user;
    if (self->left == 0) {
        return NULL;
    }
    self->left--;
    self->mapped++;
    return aligned_alloc(TRIB_EXTENT_BYTES, size);
}

static void stingy_unmap(void *user, void *base, size_t size) {
    (void)size;
    stingy *self = user;
    self->mapped--;
    free(base);
}

static void test_no_memory(void **state) {
    for (uint32_t maps = 0; maps < 4; maps++) {
        stingy source = {.left = maps};
        trib_arena_params params;
        trib_arena_params_init(&params);
        params.map = stingy_map;
        params.unmap = stingy_unmap;
        params.map_user = &source;
        trib_arena *arena = create_with(&params, state);
        uint8_t *blocks[256];
        uint32_t count = 0;
        while (count < 256 && (blocks[count] = trib_arena_alloc(arena, 256 << 10, 0)) != NULL) {
            memset(blocks[count], (int)count, 256 << 10);
            count++;
        }
        assert_true(count < 256);
        assert_true(maps == 0 || count >= 4);
        assert_true(stats_of(arena).map_failures > 0);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(blocks[i][0], i);
            assert_int_equal(blocks[i][(256 << 10) - 1], i);
            trib_arena_free(arena, blocks[i]);
        }
        /* What was freed can be had again. */
        for (uint32_t i = 0; i < count; i++) {
            blocks[i] = trib_arena_alloc(arena, 256 << 10, 0);
            assert_non_null(blocks[i]);
        }
        trib_arena_destroy(arena);
        assert_int_equal(source.mapped, 0);
    }
}

/* Mappings that lie side by side, as the kernel likes to place them. */
typedef struct adjacent {
    uint8_t *next;
    size_t left;
} adjacent;

static void *adjacent_map(void *user, size_t size) {
    adjacent *self = user;
    if (size > self->left) {
        return NULL;
    }
    uint8_t *base = self->next;
    self->next += size;
    self->left -= size;
    return base;
}

static void adjacent_unmap(void *user, void *base, size_t size) {
    (void)user;
    (void)base;
    (void)size;
}

/* Free neighbours in two extents stay two: a block across both would be covered by neither registration. */
static void test_adjacent_extents(void **state) {
    size_t size = 128 * MIB;
    uint8_t *whole = aligned_alloc(TRIB_EXTENT_BYTES, size);
    assert_non_null(whole);
    adjacent source = {.next = whole, .left = size};
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.map = adjacent_map;
    params.unmap = adjacent_unmap;
    params.map_user = &source;
    trib_arena *arena = create_with(&params, state);
    for (size_t wanted = MIB; wanted <= 16 * MIB; wanted *= 2) {
        void *blocks[3];
        for (size_t i = 0; i < 3; i++) {
            blocks[i] = trib_arena_alloc(arena, wanted, 0);
            if (blocks[i] != NULL) {
                trib_arena_location location;
                assert_true(trib_arena_find(arena, blocks[i], 0, &location));
                assert_true((uint8_t *)blocks[i] + wanted <= (uint8_t *)location.base + location.size);
            }
        }
        for (size_t i = 0; i < 3; i++) {
            trib_arena_free(arena, blocks[i]);
        }
    }
    assert_true(stats_of(arena).extents >= 2);
    trib_arena_destroy(arena);
    free(whole);
}

static void test_bytes_max(void **state) {
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.bytes_max = 8 * MIB;
    trib_arena *arena = create_with(&params, state);
    assert_null(trib_arena_alloc(arena, 9 * MIB, 0));
    void *block = trib_arena_alloc(arena, 5 * MIB, 0);
    assert_non_null(block);
    assert_null(trib_arena_alloc(arena, 5 * MIB, 0));
    trib_arena_free(arena, block);
    assert_non_null(trib_arena_alloc(arena, 5 * MIB, 0));
    assert_true(stats_of(arena).bytes_mapped <= 8 * MIB);
    trib_arena_destroy(arena);
}

#ifndef SANITIZED
/* Runs in a child: 0 if an arena gives memory, then none, then again, under a limit of the kernel's. */
static int starve(trib_arena *arena) {
    void *kept = trib_arena_alloc(arena, MIB, 0);
    struct rlimit none = {.rlim_cur = MIB, .rlim_max = MIB};
    struct rlimit little = {.rlim_cur = 0, .rlim_max = 0};
    if (kept == NULL || setrlimit(RLIMIT_AS, &none) != 0 || setrlimit(RLIMIT_MEMLOCK, &little) != 0) {
        return 2;
    }
    if (trib_arena_alloc(arena, 64 * MIB, 0) != NULL) {
        return 3;
    }
    memset(kept, 1, MIB);
    trib_arena_free(arena, kept);
    void *again = trib_arena_alloc(arena, MIB, 0);
    if (again == NULL) {
        return 4;
    }
    trib_arena_free(arena, again);
    return stats_of(arena).map_failures > 0 ? 0 : 5;
}

static void test_address_space_limit(void **state) {
    trib_arena *arena = create(state);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(starve(arena));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    trib_arena_destroy(arena);
}
#else
static void test_address_space_limit(void **state) {
    (void)state;
    skip(); /* a sanitizer's own shadow memory needs more than the limit */
}
#endif

/* The host may fork at any time, while others allocate; the child uses malloc and ends. */
static void test_fork(void **state) {
#ifdef UNDER_TSAN
    (void)state;
    skip(); /* ThreadSanitizer takes the parent's other thread for a leak of the child's */
#else
    trib_arena *arena = create(state);
    churner busy = {.arena = arena, .seed = 77};
    assert_int_equal(pthread_create(&busy.thread, NULL, churner_run, &busy), 0);
    for (uint32_t i = 0; i < 20; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            void *memory = malloc(100000);
            _exit(memory != NULL ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(pthread_join(busy.thread, NULL), 0);
    trib_arena_destroy(arena);
#endif
}

/* A node that is there, and ones that cannot be: the latter are counted, not fatal. */
static void test_nodes(void **state) {
    static const int32_t nodes[] = {0, 1000, 1023, 1024, INT32_MAX};
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        trib_arena_params params;
        trib_arena_params_init(&params);
        params.node = nodes[i];
        trib_arena *arena = create_with(&params, state);
        uint8_t *block = trib_arena_alloc(arena, MIB, 0);
        assert_non_null(block);
        memset(block, 1, MIB);
        assert_true(i == 0 || stats_of(arena).bind_failures > 0);
        assert_int_equal(stats_of(arena).node, nodes[i]);
        trib_arena_destroy(arena);
    }
}

static void test_many_arenas(void **state) {
    for (uint32_t i = 0; i < 300; i++) {
        trib_arena *one = create(state);
        trib_arena *two = create(state);
        uint8_t *a = trib_arena_alloc(one, 8192, 0);
        uint8_t *b = trib_arena_alloc(two, 8192, 0);
        trib_arena_location location;
        assert_true(trib_arena_find(one, a, 0, &location));
        assert_false(trib_arena_find(one, b, 0, &location));
        assert_true(trib_arena_find(two, b, 0, &location));
        trib_arena_destroy(one);
        b[8191] = 1;
        trib_arena_destroy(two);
    }
}

/* The host's malloc is its own: jemalloc's names lead nowhere, and each side frees what it took. */
static void test_default(void **state) {
    (void)state;
    trib_arena *arena = NULL;
    assert_int_equal(trib_arena_create(-1, &arena), TRIB_OK);
    void *own = malloc(1 << 20);
    assert_non_null(own);
    trib_arena_location location;
    assert_false(trib_arena_find(arena, own, 0, &location));
    free(own);
    void *block = trib_arena_alloc(arena, 1 << 20, 0);
    assert_non_null(block);
    assert_int_equal(stats_of(arena).blocks_in_use, 1);
    assert_true(stats_of(arena).bytes_in_use >= 1 << 20);
    print_message("the default heap is %s\n", stats_of(arena).heap);
    trib_arena_free(arena, block);
    trib_arena_destroy(arena);
}

#define BOTH(name)                                                                                                     \
    {"pool: " #name, name, NULL, NULL, &pool}, {                                                                       \
        "jemalloc: " #name, name, NULL, NULL, &jemalloc                                                                \
    }

int main(void) {
    trib_arena_heap pool = TRIB_ARENA_HEAP_POOL;
    trib_arena_heap jemalloc = TRIB_ARENA_HEAP_JEMALLOC;
    const struct CMUnitTest tests[] = {
        BOTH(test_alignment),      BOTH(test_refused),         BOTH(test_churn),
        BOTH(test_threads),        BOTH(test_steady),          BOTH(test_registrars),
        BOTH(test_registrar_fails), BOTH(test_registrars_max), BOTH(test_no_memory),
        BOTH(test_bytes_max),      BOTH(test_address_space_limit), BOTH(test_fork),
        BOTH(test_nodes),          BOTH(test_many_arenas),     BOTH(test_adjacent_extents), cmocka_unit_test(test_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
