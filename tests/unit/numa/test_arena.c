/* test_arena.c - arenas: alignment, contents, reuse, and the registration of every extent and of memory that
 * was adopted. */
#include "engine/base/log.h"
#include "numa/pages.h"
#include "tests/unit/numa/arena_cases.h"

static void test_alignment(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 65, 4095, 4096, 4097, 65536, 1 << 20, (2 << 20) + 1, 9 << 20};
    trib_arena *arena = create();
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

static void test_refused(void **state)
{
    (void)state;
    trib_arena *arena = create();
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
    params.map = trib_pages_map; /* and nothing to unmap with */
    assert_int_equal(trib_arena_create_with(&params, &arena), TRIB_INVALID);
}

static void test_churn(void **state)
{
    (void)state;
    trib_arena *arena = create();
    churn(arena, 1, 20000);
    trib_arena_stats stats = stats_of(arena);
    assert_int_equal(stats.blocks_in_use, 0);
    assert_int_equal(stats.bytes_in_use, 0);
    assert_int_equal(stats.bytes_mapped % TRIB_EXTENT_BYTES, 0);
    /* At most 32 MiB are ever in use at once, so freed memory must have been used again. */
    assert_true(stats.bytes_mapped <= 96 * MIB);
    trib_arena_destroy(arena);
}

static void test_threads(void **state)
{
    (void)state;
    trib_arena *arena = create();
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

/* The steady state, in which the same blocks are taken again and again, maps no more memory. */
static void test_steady(void **state)
{
    (void)state;
    trib_arena *arena = create();
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

/* A registrar that keeps a list of registered memory, and checks that nothing is registered twice. */
typedef struct ledger {
    void *bases[64];
    size_t sizes[64];
    uint32_t count, calls, refuse_from, adopted;
    trib_arena_dmabuf dmabuf; /* of the last call; fd -1: the memory had none */
} ledger;

static trib_status ledger_register(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    ledger *book = user;
    void *const base = memory->base;
    book->dmabuf = memory->dmabuf != NULL ? *memory->dmabuf : (trib_arena_dmabuf){.fd = -1};
    assert_true(memory->is_adopted || (uintptr_t)base % TRIB_EXTENT_BYTES == 0);
    assert_true(memory->is_adopted || memory->size % TRIB_EXTENT_BYTES == 0);
    book->adopted += memory->is_adopted;
    if (++book->calls > book->refuse_from) {
        return trib_error_set(error, TRIB_NO_MEMORY, "the ledger is full");
    }
    for (uint32_t i = 0; i < book->count; i++) {
        assert_ptr_not_equal(book->bases[i], base);
    }
    assert_true(book->count < 64);
    book->bases[book->count] = base;
    book->sizes[book->count++] = memory->size;
    *cookie_out = (uint8_t *)base + 1;
    return TRIB_OK;
}

static void ledger_unregister(void *user, void *base, size_t size, void *cookie)
{
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

static trib_arena_registrar ledger_registrar(ledger *book)
{
    return (trib_arena_registrar){
        .register_extent = ledger_register, .unregister_extent = ledger_unregister, .user = book};
}

static void test_registrars(void **state)
{
    (void)state;
    trib_arena *arena = create();
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
    assert_int_equal(late.count, early.count); /* the new registrar got the extents that existed before it */
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

/* An extent that is made ahead is registered at once, and blocks are cut from it later. */
static void test_reserved(void **state)
{
    (void)state;
    trib_arena *arena = create();
    ledger book = {.refuse_from = UINT32_MAX};
    const trib_arena_registrar registrar = ledger_registrar(&book);
    uint32_t id = 99;
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    assert_true(trib_arena_reserve(arena, 63 * MIB));
    assert_int_equal(book.calls, 1);
    assert_int_equal(book.sizes[0], 64 * MIB);
    assert_true(trib_arena_reserve(arena, 64 * MIB)); /* the second reservation finds the first one's extent */
    for (int i = 0; i < 5; i++) {
        const uint8_t *block = trib_arena_alloc(arena, 3 * MIB, 0);
        assert_true((uintptr_t)block >= (uintptr_t)book.bases[0]);
        assert_true((uintptr_t)block + 3 * MIB <= (uintptr_t)book.bases[0] + 64 * MIB);
    }
    assert_int_equal(book.calls, 1);
    assert_non_null(trib_arena_alloc(arena, 65 * MIB, 0)); /* more than there is room for */
    assert_int_equal(book.calls, 2);
    assert_false(trib_arena_reserve(arena, SIZE_MAX / 2));
    trib_arena_destroy(arena);
    assert_int_equal(book.count, 0);
}

/*
 * A registrar cannot register any more. The memory can be used all the same, and trib_arena_find reports the failure.
 */
static void test_registrar_fails(void **state)
{
    (void)state;
    trib_arena *arena = create();
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

static void test_registrars_max(void **state)
{
    (void)state;
    trib_arena *arena = create();
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

static void assert_adopts(trib_arena *arena, void *base, size_t size, trib_status status, const char *words)
{
    trib_error error = {.text = ""};
    assert_int_equal(trib_arena_adopt(arena, base, size, NULL, &error), status);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
}

/*
 * Every registrar, early or late, knows the test's own memory, from its first byte to its last, until it is disowned.
 */
static void test_adopted(void **state)
{
    (void)state;
    trib_arena *arena = create();
    uint8_t *own = malloc(3 * MIB);
    ledger early = {.refuse_from = UINT32_MAX};
    ledger late = {.refuse_from = UINT32_MAX};
    trib_arena_registrar registrar = ledger_registrar(&early);
    uint32_t early_id = 99;
    uint32_t late_id = 99;
    trib_arena_location location;
    assert_non_null(own);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &early_id), TRIB_OK);
    const uint32_t extents = early.count;
    assert_adopts(arena, own + 100, MIB, TRIB_OK, "");
    registrar = ledger_registrar(&late);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &late_id), TRIB_OK);
    assert_int_equal(early.count, extents + 1);
    assert_int_equal(late.count, early.count);
    assert_int_equal(early.adopted, 1);
    assert_int_equal(late.adopted, 1); /* a registrar learns of extents that are older than itself, too */
    assert_int_equal(stats_of(arena).adopted, 1);
    assert_int_equal(stats_of(arena).extents, extents);
    assert_int_equal(trib_arena_adopted_size(arena, own + 100), MIB);
    assert_int_equal(trib_arena_adopted_size(arena, own + 101), 0);
    for (size_t at = 100; at <= 100 + MIB - 1; at += MIB - 1) {
        assert_true(trib_arena_find(arena, own + at, late_id, &location));
        assert_int_equal(location.status, TRIB_OK);
        assert_ptr_equal(location.base, own + 100);
        assert_int_equal(location.size, MIB);
    }
    assert_false(trib_arena_find(arena, own + 99, early_id, &location));
    assert_false(trib_arena_find(arena, own + 100 + MIB, early_id, &location));
    /* These ranges overlap or touch the adopted memory. */
    assert_adopts(arena, own + 99, 2, TRIB_INVALID, "part of them is registered");
    assert_adopts(arena, own + 99 + MIB, MIB, TRIB_INVALID, "part of them is registered");
    assert_adopts(arena, own, 2 * MIB, TRIB_INVALID, "part of them is registered");
    assert_adopts(arena, own + 200, 1, TRIB_INVALID, "part of them is registered");
    assert_adopts(arena, own, 100, TRIB_OK, "");
    assert_adopts(arena, own + 100 + MIB, MIB, TRIB_OK, "");
    assert_int_equal(trib_arena_disown(arena, own + 101), TRIB_INVALID);
    assert_int_equal(trib_arena_disown(arena, own + 100), TRIB_OK);
    assert_int_equal(trib_arena_disown(arena, own + 100), TRIB_INVALID);
    assert_int_equal(early.count, extents + 2);
    assert_int_equal(late.count, early.count);
    assert_false(trib_arena_find(arena, own + 100, early_id, &location));
    trib_arena_remove_registrar(arena, early_id);
    assert_int_equal(early.count, 0);
    churn(arena, 5, 2000); /* the heap takes no blocks of adopted memory */
    trib_arena_destroy(arena);
    assert_int_equal(late.count, 0);
    memset(own, 1, 3 * MIB); /* still there */
    free(own);
}

/* Present registrars register a device's memory by its dma-buf. Later registrars do not register it. */
static void test_adopted_on_device(void **state)
{
    (void)state;
    trib_arena *arena = create();
    ledger early = {.refuse_from = UINT32_MAX}, late = {.refuse_from = UINT32_MAX};
    trib_arena_registrar registrar = ledger_registrar(&early);
    uint32_t early_id = 99, late_id = 99;
    trib_arena_location where;
    uint8_t *there = (uint8_t *)(UINTPTR_MAX / 2); /* no processor reaches it */
    const trib_arena_dmabuf dmabuf = {.fd = 123, .offset = 456};
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &early_id), TRIB_OK);
    assert_int_equal(trib_arena_adopt(arena, there, MIB, &dmabuf, NULL), TRIB_OK);
    assert_int_equal(early.dmabuf.fd, 123);
    assert_int_equal(early.dmabuf.offset, 456);
    assert_true(trib_arena_find(arena, there + MIB - 1, early_id, &where));
    assert_int_equal(where.status, TRIB_OK);
    registrar = ledger_registrar(&late);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &late_id), TRIB_OK);
    assert_int_equal(late.calls, early.calls - 1); /* extents there may be, for the heap's own use */
    assert_true(trib_arena_find(arena, there, late_id, &where));
    assert_int_equal(where.status, TRIB_UNSUPPORTED);
    assert_int_equal(trib_arena_disown(arena, there), TRIB_OK);
    assert_int_equal(early.count, late.count);
    assert_int_equal(trib_arena_adopt(arena, there, MIB, NULL, NULL), TRIB_OK);
    assert_int_equal(late.dmabuf.fd, -1);
    trib_arena_destroy(arena);
    assert_int_equal(early.count + late.count, 0);
}

/* Memory that cannot be adopted is unknown to all registrars afterwards. */
static void test_adopted_not(void **state)
{
    (void)state;
    trib_arena *arena = create();
    uint8_t *own = malloc(MIB);
    ledger willing = {.refuse_from = UINT32_MAX};
    ledger full = {.refuse_from = 0};
    uint32_t id = 99;
    trib_arena_location location;
    assert_non_null(own);
    trib_arena_registrar registrar = ledger_registrar(&willing);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    registrar = ledger_registrar(&full);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    uint8_t *block = trib_arena_alloc(arena, MIB, 0);
    assert_non_null(block);
    const uint32_t known = willing.count;
    assert_adopts(arena, own, MIB, TRIB_NO_MEMORY, "the ledger is full");
    assert_int_equal(trib_arena_adopt(arena, own, MIB, NULL, NULL), TRIB_NO_MEMORY);
    assert_int_equal(willing.count, known);
    assert_false(trib_arena_find(arena, own, 0, &location));
    assert_int_equal(trib_arena_disown(arena, own), TRIB_INVALID);
    assert_adopts(arena, block, MIB, TRIB_INVALID, "the engine's own memory");
    assert_int_equal(trib_arena_disown(arena, block), TRIB_INVALID);
    assert_adopts(arena, NULL, 1, TRIB_INVALID, "are no memory");
    assert_adopts(arena, own, 0, TRIB_INVALID, "are no memory");
    assert_adopts(arena, own, SIZE_MAX, TRIB_INVALID, "are no memory");
    full.refuse_from = UINT32_MAX;
    assert_adopts(arena, own, MIB, TRIB_OK, "");
    trib_arena_destroy(arena);
    assert_int_equal(willing.count, 0);
    free(own);
}

/* Threads adopt and disown memory while others do the same, and while blocks are taken and freed. */
static void *adopter_run(void *user)
{
    churner *self = user;
    uint8_t *own = malloc(64 * TRIB_PAGE_BYTES);
    assert_non_null(own);
    for (uint32_t step = 0; step < 300; step++) {
        uint8_t *piece = own + (random_next(&self->seed) % 32) * TRIB_PAGE_BYTES;
        trib_arena_location location;
        assert_int_equal(trib_arena_adopt(self->arena, piece, 32 * TRIB_PAGE_BYTES, NULL, NULL), TRIB_OK);
        assert_true(trib_arena_find(self->arena, piece + 5 * TRIB_PAGE_BYTES, 0, &location));
        assert_ptr_equal(location.base, piece);
        assert_int_equal(trib_arena_disown(self->arena, piece), TRIB_OK);
    }
    free(own);
    return NULL;
}

static void test_adopted_by_threads(void **state)
{
    (void)state;
    trib_arena *arena = create();
    churner churners[4];
    for (uint32_t i = 0; i < 4; i++) {
        churners[i] = (churner){.arena = arena, .seed = i + 1};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, i < 2 ? adopter_run : churner_run, &churners[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
    }
    assert_int_equal(stats_of(arena).adopted, 0);
    trib_arena_destroy(arena);
}

/* The host's malloc is separate from the library's, so each side frees its own memory. */
static void test_default(void **state)
{
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
    trib_arena_free(arena, block);
    trib_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_registrars),
        cmocka_unit_test(test_registrar_fails),
        cmocka_unit_test(test_registrars_max),
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_adopted_not),
        cmocka_unit_test(test_adopted_by_threads),
        cmocka_unit_test(test_adopted_on_device),
        cmocka_unit_test(test_reserved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
