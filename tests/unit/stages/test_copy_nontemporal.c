/* test_copy_nontemporal.c - the copy that bypasses the caches writes all bytes and no others, at every size and
 * alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "stages/kernels/kernels.h"

#define GUARD 64
#define CANARY 0xa5
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t random_next(uint64_t *state)
{
    /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#define LINE 64u
#define COPY_MAX (((size_t)1 << 20) + 77)

/* The canaries around the copy are compared as well. */
static void check_copy(const trib_kernels *kernels, const unsigned char *src, size_t misalignment, size_t size)
{
    static _Alignas(LINE) unsigned char got[GUARD + LINE + COPY_MAX + GUARD], wanted[sizeof(got)];
    const size_t at = GUARD + misalignment, all = at + size + GUARD;
    memset(got, CANARY, all);
    memset(wanted, CANARY, all);
    memcpy(wanted + at, src, size);
    assert_ptr_equal(kernels->copy_nontemporal(got + at, src, size), got + at);
    if (memcmp(got, wanted, all) != 0) {
        fail_msg("%s: %zu bytes from %zu to %zu in a line", kernels->name, size, (uintptr_t)src % LINE, misalignment);
    }
}

static void test_copy_nontemporal(void **unused)
{
    static const size_t large[] = {511, 4096, 8191, 65537, COPY_MAX};
    static _Alignas(LINE) unsigned char src[LINE + COPY_MAX];
    uint64_t state = 9;
    (void)unused;
    for (size_t i = 0; i < sizeof(src); i++) {
        src[i] = (unsigned char)random_next(&state);
    }
    for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
        const trib_kernels *kernels = trib_kernels_at(k);
        if (k > 0 && kernels->copy_nontemporal == trib_kernels_at(k - 1)->copy_nontemporal) {
            continue; /* sizes past the caches take long */
        }
        for (size_t i = 0; i < LINE * LINE; i++) { /* each size at each alignment of source and destination */
            for (size_t size = (i + i / LINE) % 32; size <= 300; size += 32) {
                check_copy(kernels, src + i / LINE, i % LINE, size);
            }
        }
        for (size_t i = 0; i < LENGTH(large) * LINE; i++) {
            check_copy(kernels, src + i * 7 % LINE, i / LENGTH(large), large[i % LENGTH(large)]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copy_nontemporal)};
    return cmocka_run_group_tests_name("copy_nontemporal", tests, NULL, NULL);
}
