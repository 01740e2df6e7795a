/* test_arena_limits.c - arenas on a machine that refuses: no memory, limits, unknown nodes, adjoining mappings. */
#include "tests/unit/numa/arena_cases.h"

#include "numa/extents.h"

/* Mappings that fail from the n-th on. */
typedef struct stingy {
    uint32_t left, mapped;
} stingy;

static void *stingy_map(void *user, size_t size)
{
    stingy *self = user;
    if (self->left == 0) {
        return NULL;
    }
    self->left--;
    self->mapped++;
    return aligned_alloc(TRIB_EXTENT_BYTES, size);
}

static void stingy_unmap(void *user, void *base, size_t size)
{
    (void)size;
    stingy *self = user;
    self->mapped--;
    free(base);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (uint32_t maps = 0; maps < 4; maps++) {
        stingy source = {.left = maps};
        trib_arena_params params;
        trib_arena_params_init(&params);
        params.map = stingy_map;
        params.unmap = stingy_unmap;
        params.map_user = &source;
        trib_arena *arena = create_with(&params);
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
        /* Freed memory can be taken again. */
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

static void *adjacent_map(void *user, size_t size)
{
    adjacent *self = user;
    if (size > self->left) {
        return NULL;
    }
    uint8_t *base = self->next;
    self->next += size;
    self->left -= size;
    return base;
}

static void adjacent_unmap(void *user, void *base, size_t size)
{
    (void)user;
    (void)base;
    (void)size;
}

/* Free neighbours in two extents stay two: a block across both would be covered by neither registration. */
static void test_adjacent_extents(void **state)
{
    (void)state;
    size_t size = 128 * MIB;
    uint8_t *whole = aligned_alloc(TRIB_EXTENT_BYTES, size);
    assert_non_null(whole);
    adjacent source = {.next = whole, .left = size};
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.map = adjacent_map;
    params.unmap = adjacent_unmap;
    params.map_user = &source;
    trib_arena *arena = create_with(&params);
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

static void test_bytes_max(void **state)
{
    (void)state;
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.bytes_max = 8 * MIB;
    trib_arena *arena = create_with(&params);
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
/* Runs in a child under a limit of the kernel's. Returns 0 if the arena gives memory, then fails, then gives memory
 * again. */
static int exhaust(trib_arena *arena)
{
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

static void test_address_space_limit(void **state)
{
    (void)state;
    trib_arena *arena = create();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(exhaust(arena));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    trib_arena_destroy(arena);
}
#else
static void test_address_space_limit(void **state)
{
    (void)state;
    print_message("# a sanitizer's own shadow memory needs more than the limit\n");
    skip();
}
#endif

/* A node that exists is used. Nodes that cannot exist are counted, and are not fatal. */
static void test_nodes(void **state)
{
    (void)state;
    static const int32_t nodes[] = {0, 1000, 1023, 1024, INT32_MAX};
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        trib_arena_params params;
        trib_arena_params_init(&params);
        params.node = nodes[i];
        trib_arena *arena = create_with(&params);
        uint8_t *block = trib_arena_alloc(arena, MIB, 0);
        assert_non_null(block);
        memset(block, 1, MIB);
        assert_true(i == 0 || stats_of(arena).bind_failures > 0);
        assert_int_equal(stats_of(arena).node, nodes[i]);
        trib_arena_destroy(arena);
    }
}

static void test_many_arenas(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        trib_arena *one = create();
        trib_arena *two = create();
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_adjacent_extents),
        cmocka_unit_test(test_bytes_max), cmocka_unit_test(test_address_space_limit),
        cmocka_unit_test(test_nodes),     cmocka_unit_test(test_many_arenas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
