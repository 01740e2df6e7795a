/* test_arena_shared.c - arenas whose extents other processes can map: the files of extents, the files that are refused,
 * and processes that may have no more descriptors. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/unit/numa/arena_cases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "numa/pages.h"
#include "tests/support/descriptors.h"

#define EXTENTS_MAX 64u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* The calls that a registrar has got. */
typedef struct book {
    trib_arena_memory told[EXTENTS_MAX];
    uint32_t count;
} book;

static trib_status note(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    (void)error;
    book *self = user;
    assert_true(self->count < EXTENTS_MAX);
    self->told[self->count++] = *memory;
    *cookie_out = NULL;
    return TRIB_OK;
}

static void forget(void *user, void *base, size_t size, void *cookie)
{
    (void)user;
    (void)base;
    (void)size;
    (void)cookie;
}

static uint32_t keep_book(trib_arena *arena, book *self)
{
    const trib_arena_registrar registrar = {.register_extent = note, .unregister_extent = forget, .user = self};
    uint32_t id = 0;
    memset(self, 0, sizeof *self);
    assert_int_equal(trib_arena_add_registrar(arena, &registrar, &id), TRIB_OK);
    return id;
}

/* Returns the call for the extent in which the address lies. */
static const trib_arena_memory *told_of(const book *self, const void *address)
{
    for (uint32_t i = 0; i < self->count; i++) {
        const uintptr_t base = (uintptr_t)self->told[i].base;
        if ((uintptr_t)address >= base && (uintptr_t)address - base < self->told[i].size) {
            return &self->told[i];
        }
    }
    fail_msg("no extent is known there");
    return NULL;
}

static trib_arena *create_shared(void)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.is_shared = true;
    return create_with(&params);
}

/* Another process can map every extent, for reading only, and sees there what this process writes. */
static void test_seen_elsewhere(void **state)
{
    (void)state;
    trib_arena *arena = create_shared();
    static const size_t sizes[] = {100, 3 * MIB, 17 * MIB, 70 * MIB};
    book early, late;
    keep_book(arena, &early);
    uint8_t *blocks[4];
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = trib_arena_alloc(arena, sizes[i], 0);
        assert_non_null(blocks[i]);
        blocks[i][sizes[i] - 1] = 1;
    }
    keep_book(arena, &late);
    const int zeroes = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < 4; i++) {
        const trib_arena_memory *memory = told_of(&early, blocks[i]);
        struct stat about;
        assert_true(memory->fd >= 0 && !memory->is_adopted);
        assert_int_equal(told_of(&late, blocks[i])->fd, memory->fd);
        assert_int_equal(fcntl(memory->fd, F_GET_SEALS) & SEALS, SEALS);
        assert_int_equal(fcntl(memory->fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(fstat(memory->fd, &about), 0);
        assert_int_equal(about.st_size, memory->size);
        uint8_t *foreign = trib_pages_map_foreign(memory->fd, memory->size);
        assert_non_null(foreign);
        assert_int_equal((uintptr_t)foreign % TRIB_EXTENT_BYTES, 0);
        uint8_t *there = foreign + (blocks[i] - (uint8_t *)memory->base);
        assert_int_equal(there[sizes[i] - 1], 1);
        blocks[i][sizes[i] - 1] = 77;
        assert_int_equal(there[sizes[i] - 1], 77);
        assert_int_equal(read(zeroes, there, 1), -1); /* it cannot be written to */
        assert_int_equal(errno, EFAULT);
        trib_pages_unmap(NULL, foreign, memory->size);
    }
    close(zeroes);
    churn(arena, 3, 2000);
    trib_arena_destroy(arena);
}

/* Extents have no file by default, nor where the caller maps the memory. */
static void *mapped_elsewhere(void *user, size_t size)
{
    (void)user;
    return aligned_alloc(TRIB_EXTENT_BYTES, size);
}

static void unmapped_elsewhere(void *user, void *base, size_t size)
{
    (void)user;
    (void)size;
    free(base);
}

static void test_not_shared(void **state)
{
    (void)state;
    trib_arena_params params;
    trib_arena_params_init(&params);
    assert_false(params.is_shared);
    for (int i = 0; i < 2; i++) {
        trib_arena *arena = create_with(&params);
        book all;
        keep_book(arena, &all);
        const void *block = trib_arena_alloc(arena, MIB, 0);
        assert_int_equal(told_of(&all, block)->fd, -1);
        trib_arena_destroy(arena);
        params.is_shared = true;
        params.map = mapped_elsewhere;
        params.unmap = unmapped_elsewhere;
    }
}

/* No other process can map adopted memory, which a late registrar learns, too. */
static void test_adopted(void **state)
{
    (void)state;
    trib_arena *arena = create_shared();
    book early, late;
    uint8_t *own = malloc(MIB);
    assert_non_null(own);
    keep_book(arena, &early);
    assert_int_equal(trib_arena_adopt(arena, own, MIB, NULL, NULL), TRIB_OK);
    keep_book(arena, &late);
    assert_int_equal(told_of(&early, own)->fd, -1);
    assert_int_equal(told_of(&late, own)->fd, -1);
    assert_true(told_of(&late, own)->is_adopted);
    trib_arena_destroy(arena);
    free(own);
}

static void test_closes_descriptors(void **state)
{
    (void)state;
    const uint32_t before = descriptors_open();
    for (int i = 0; i < 3; i++) {
        trib_arena *arena = create_shared();
        assert_non_null(trib_arena_alloc(arena, MIB, 0));
        assert_non_null(trib_arena_alloc(arena, 65 * MIB, 0));
        assert_true(trib_arena_reserve(arena, 64 * MIB));
        assert_int_equal(descriptors_open(), before + stats_of(arena).extents);
        trib_arena_destroy(arena);
        assert_int_equal(descriptors_open(), before);
    }
}

/* ---- Limits: memory is there all the same ---- */

/* Lowers the limit, and returns the one before. */
static struct rlimit lower(__rlimit_resource_t what, rlim_t most)
{
    struct rlimit before;
    assert_int_equal(getrlimit(what, &before), 0);
    assert_true(before.rlim_cur > most);
    const struct rlimit lowered = {.rlim_cur = most, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(what, &lowered), 0);
    return before;
}

/* Extents that are made under the limit work, but have no descriptors. Later extents have descriptors again. */
static void lives_with(__rlimit_resource_t what, rlim_t most)
{
    trib_arena *arena = create_shared();
    book all;
    keep_book(arena, &all);
    const uint8_t *first = trib_arena_alloc(arena, MIB, 0);
    assert_true(told_of(&all, first)->fd >= 0);
    const struct rlimit before = lower(what, most);
    uint8_t *block = trib_arena_alloc(arena, 65 * MIB, 0);
    const bool reserved = trib_arena_reserve(arena, 68 * MIB);
    assert_int_equal(setrlimit(what, &before), 0);
    assert_true(block != NULL && reserved);
    memset(block, 7, 65 * MIB);
    assert_int_equal(told_of(&all, block)->fd, -1);
    assert_int_equal(all.told[all.count - 1].fd, -1);
    assert_int_equal(stats_of(arena).map_failures, 0);
    const void *last = trib_arena_alloc(arena, 75 * MIB, 0);
    assert_true(told_of(&all, last)->fd >= 0);
    churn(arena, 9, 2000);
    trib_arena_destroy(arena);
}

/* The kernel would end the process that makes a larger file. */
static void test_file_size_limit(void **state)
{
    (void)state;
    lives_with(RLIMIT_FSIZE, TRIB_EXTENT_BYTES - 1);
}

static void test_no_descriptors(void **state)
{
    (void)state;
    const uint32_t before = descriptors_open();
    lives_with(RLIMIT_NOFILE, 3);
    assert_int_equal(descriptors_open(), before);
}

/* The arena leaves some descriptors to the rest of the process. */
static void test_spares_descriptors(void **state)
{
    (void)state;
    trib_arena *arena = create_shared();
    book all;
    keep_book(arena, &all);
    const int next = dup(STDIN_FILENO), most = 2 * next + 8;
    assert_true(next >= 0 && close(next) == 0);
    const struct rlimit before = lower(RLIMIT_NOFILE, (rlim_t)most);
    bool is_there = true;
    for (int i = 0; i < most - next; i++) {
        is_there = trib_arena_alloc(arena, 65 * MIB, 0) != NULL && is_there;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(is_there && all.told[0].fd >= 0);
    for (uint32_t i = 0; i < all.count; i++) {
        assert_true(all.told[i].fd < most - 2);
    }
    trib_arena_destroy(arena);
}

/* ---- Other processes' memory ---- */

static int file_of(off_t size, int seals)
{
    const int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, size) == 0);
    assert_true(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void refuses(int fd, size_t size)
{
    assert_null(trib_pages_map_foreign(fd, size));
    close(fd);
}

/* Files that another process can shrink are refused, because reading them could end this process. */
static void test_foreign_refused(void **state)
{
    (void)state;
    const size_t size = 2 * TRIB_EXTENT_BYTES;
    const uint32_t before = descriptors_open();
    refuses(file_of((off_t)size, 0), size);
    refuses(file_of((off_t)size, F_SEAL_GROW | F_SEAL_SEAL), size);
    refuses(file_of((off_t)size, SEALS), size + TRIB_EXTENT_BYTES);
    refuses(file_of((off_t)size, SEALS), size - TRIB_PAGE_BYTES);
    refuses(file_of((off_t)size - 1, SEALS), size);
    refuses(file_of((off_t)size, SEALS), 0);
    refuses(file_of(0, SEALS), TRIB_EXTENT_BYTES);
    refuses(file_of((off_t)1 << 62, SEALS), (size_t)1 << 62); /* more than there are addresses */
    refuses(open("/dev/zero", O_RDONLY | O_CLOEXEC), size);
    assert_null(trib_pages_map_foreign(-1, size));
    char path[64];
    const int writable = file_of((off_t)size, SEALS);
    snprintf(path, sizeof path, "/proc/self/fd/%d", writable);
    refuses(open(path, O_WRONLY | O_CLOEXEC), size);
    uint8_t *part = trib_pages_map_foreign(writable, size - TRIB_EXTENT_BYTES); /* less than there is is well */
    assert_non_null(part);
    trib_pages_unmap(NULL, part, size - TRIB_EXTENT_BYTES);
    close(writable);
    assert_int_equal(descriptors_open(), before);
}

/* The memory is freed with the arena, even while another process or a child of a fork has it mapped. */
static void test_gives_pages_back(void **state)
{
    (void)state;
    trib_arena *arena = create_shared();
    book told;
    keep_book(arena, &told);
    uint8_t *block = trib_arena_alloc(arena, 3 * MIB, 0);
    assert_non_null(block);
    memset(block, 5, 3 * MIB);
    const trib_arena_memory memory = *told_of(&told, block);
    uint8_t *foreign = trib_pages_map_foreign(memory.fd, memory.size);
    assert_non_null(foreign);
    const int other = fcntl(memory.fd, F_DUPFD_CLOEXEC, 0);
    assert_true(other >= 0);
#ifndef UNDER_TSAN /* TSan begins a thread in the child, and its stack may lie at that address */
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsigned char there = 0;
        _exit(mincore(foreign, TRIB_PAGE_BYTES, &there) == -1 && errno == ENOMEM ? 0 : 1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
#endif
    struct stat about;
    assert_int_equal(fstat(other, &about), 0);
    assert_true(about.st_blocks >= (blkcnt_t)(3 * MIB / 512));
    trib_arena_destroy(arena);
    assert_int_equal(fstat(other, &about), 0);
    assert_int_equal(about.st_blocks, 0);
    assert_int_equal(foreign[0], 0);
    trib_pages_unmap(NULL, foreign, memory.size);
    close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_elsewhere),
        cmocka_unit_test(test_not_shared),
        cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_closes_descriptors),
        cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_spares_descriptors),
        cmocka_unit_test(test_gives_pages_back),
        cmocka_unit_test(test_foreign_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
