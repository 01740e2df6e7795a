/* test_gpus.c - the numbers of GPUs, and which members of a machine share one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/cluster/gpus.h"

static void addresses_have_numbers(void **state)
{
    (void)state;
    static const char *const known[] = {"0000:00:00.0", "0000:3b:00.0", "0001:3b:00.0",    "0000:3c:00.0",
                                        "0000:3b:1f.0", "0000:3b:00.7", "ffffffff:ff:1f.7"};
    static const char *const unknown[] = {"", "0", "0000:3b:00", "0000:3b:00.0 ", "0000:3b:00.00", "GPU-1234", ":::."};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char text[TRIB_GPU_TEXT_SIZE];
        trib_gpu_text(trib_gpu_number(known[i]), text);
        assert_string_equal(text, known[i]);
        for (size_t other = 0; other < i; other++) {
            assert_true(trib_gpu_number(known[other]) != trib_gpu_number(known[i]));
        }
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_true(trib_gpu_number(unknown[i]) == 0);
    }
    assert_true(trib_gpu_number("00000000:3B:00.0") == trib_gpu_number("0000:3b:00.0")); /* NVML's way to write it */
}

static void a_machine_has_each_gpu_once(void **state)
{
    (void)state;
    const uint64_t a = trib_gpu_number("0000:3b:00.0"), b = trib_gpu_number("0000:5e:00.0");
    const struct {
        uint64_t kernels[4], gpus[4];
        uint32_t first, count, pair[2]; /* both 0: nobody shares */
    } cases[] = {
        {{7, 7, 7, 7}, {a, b, a, b}, 0, 4, {0, 2}}, {{7, 7, 7, 7}, {a, b, b, b}, 0, 4, {1, 2}},
        {{7, 7, 8, 8}, {a, b, a, b}, 0, 4, {0, 0}}, {{7, 7, 7, 7}, {a, b, a, b}, 0, 2, {0, 0}},
        {{7, 7, 7, 7}, {a, b, a, a}, 2, 2, {2, 3}}, {{7, 7, 7, 7}, {a, b, a, a}, 3, 2, {0, 0}},
        {{7, 7, 7, 7}, {0, 0, 0, 0}, 0, 4, {0, 0}}, {{0, 0, 0, 0}, {a, a, a, a}, 0, 4, {0, 0}},
        {{7, 8, 7, 8}, {a, b, b, b}, 0, 4, {1, 3}},
    };
    trib_roster *roster = trib_roster_create(4);
    assert_non_null(roster);
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        for (uint32_t i = 0; i < 4; i++) {
            roster->members[i].kernel = cases[at].kernels[i];
            roster->members[i].gpu = cases[at].gpus[i];
        }
        uint32_t pair[2] = {0, 0};
        const bool is_shared = trib_gpu_is_shared(roster, cases[at].first, cases[at].count, pair);
        assert_int_equal(is_shared, cases[at].pair[1] != 0);
        assert_int_equal(pair[0], cases[at].pair[0]);
        assert_int_equal(pair[1], cases[at].pair[1]);
    }
    free(roster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_have_numbers),
        cmocka_unit_test(a_machine_has_each_gpu_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
