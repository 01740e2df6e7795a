/* test_group_order.c - what the leader of a machine's local ranks knows of operations that are issued as they are handed in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/local_group/group.h"

static trib_issued other;
static uint32_t other_rank;

static trib_status add(trib_sequence *sequence, uint32_t rank, uint32_t place, uint64_t tensor, uint32_t variant)
{
    const trib_issued what = {.tensor = tensor, .round = 1, .variant = variant};
    return trib_sequence_add(sequence, rank, place, &what, &other, &other_rank);
}

/* Ranks may be any number of operations apart, and a rank's threads may tell of theirs in another order. */
static void agrees_place_by_place(void **state)
{
    (void)state;
    trib_sequence *sequence = trib_sequence_create(3);
    assert_non_null(sequence);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(add(sequence, 0, i ^ 1, i ^ 1, 0), TRIB_OK);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(add(sequence, 1, i, i, 0), TRIB_OK);
        assert_int_equal(add(sequence, 2, i, i, 0), TRIB_OK);
    }
    trib_sequence_free(sequence);
}

static void tells_who_differs(void **state)
{
    (void)state;
    trib_sequence *sequence = trib_sequence_create(64);
    assert_non_null(sequence);
    assert_int_equal(add(sequence, 5, 0, 7, 0), TRIB_OK);
    assert_int_equal(add(sequence, 5, 1, 8, 0), TRIB_OK);
    assert_int_equal(add(sequence, 63, 0, 7, 0), TRIB_OK);
    assert_int_equal(add(sequence, 0, 0, 8, 0), TRIB_MISMATCH);
    assert_int_equal(other_rank, 5);
    assert_int_equal(other.tensor, 7);
    assert_int_equal(add(sequence, 0, 1, 8, 2), TRIB_MISMATCH); /* another reduction */
    assert_int_equal(other.variant, 0);
    trib_sequence_free(sequence);
}

/* What no honest rank says. */
static void refuses_nonsense(void **state)
{
    (void)state;
    trib_sequence *sequence = trib_sequence_create(2);
    assert_non_null(sequence);
    assert_int_equal(add(sequence, 0, 0, 1, 0), TRIB_OK);
    assert_int_equal(add(sequence, 0, 0, 1, 0), TRIB_PROTOCOL); /* twice */
    assert_int_equal(add(sequence, 1, 0, 1, 0), TRIB_OK);
    assert_int_equal(add(sequence, 1, 0, 1, 0), TRIB_PROTOCOL); /* all have told of it */
    assert_int_equal(add(sequence, 1, 1u << 31, 1, 0), TRIB_PROTOCOL);
    trib_sequence_free(sequence);
}

/* Places are used again. */
static void goes_on(void **state)
{
    (void)state;
    trib_sequence *sequence = trib_sequence_create(2);
    assert_non_null(sequence);
    for (uint64_t i = 0; i < 3000; i++) {
        assert_int_equal(add(sequence, 0, (uint32_t)i, i, 0), TRIB_OK);
        assert_int_equal(add(sequence, 1, (uint32_t)i, i + (i == 2999), 0), i == 2999 ? TRIB_MISMATCH : TRIB_OK);
    }
    assert_int_equal(other.tensor, 2999);
    trib_sequence_free(sequence);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_place_by_place),
        cmocka_unit_test(tells_who_differs),
        cmocka_unit_test(refuses_nonsense),
        cmocka_unit_test(goes_on),
    };
    return cmocka_run_group_tests_name("the order of what is issued", tests, NULL, NULL);
}
