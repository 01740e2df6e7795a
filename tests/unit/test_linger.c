/* test_linger.c - how long a thread looks for more work: the pauses of the past decide. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/linger.h"

#define US INT64_C(1000)

static void looks_for_the_least_time(void **state)
{
    (void)state;
    trib_linger linger = trib_linger_between(500 * US, 10000 * US);
    trib_linger_worked(&linger, 100000 * US, false);
    assert_true(trib_linger_goes_on(&linger, 100499 * US));
    assert_false(trib_linger_goes_on(&linger, 100500 * US));
}

static void looks_as_long_as_pauses_are(void **state)
{
    (void)state;
    trib_linger linger = trib_linger_between(500 * US, 10000 * US);
    int64_t now = 0;
    trib_linger_worked(&linger, now, true);
    for (int i = 0; i < 20; i++) {
        now += 3000 * US;
        assert_int_equal(trib_linger_goes_on(&linger, now), i > 0); /* it was caught asleep once */
        trib_linger_worked(&linger, now, true);
    }
    assert_true(trib_linger_goes_on(&linger, now + 3000 * US));
    assert_false(trib_linger_goes_on(&linger, now + 10000 * US));
    for (int i = 0; i < 20; i++) {
        now += 9000 * US;
        trib_linger_worked(&linger, now, true);
    }
    assert_true(trib_linger_goes_on(&linger, now + 9999 * US));
    assert_false(trib_linger_goes_on(&linger, now + 10000 * US)); /* never for longer than the most */
}

static void forgets_when_work_is_rare(void **state)
{
    (void)state;
    trib_linger linger = trib_linger_between(500 * US, 10000 * US);
    int64_t now = 5000 * US;
    trib_linger_worked(&linger, now, true);
    assert_true(trib_linger_goes_on(&linger, now + 5000 * US));
    for (int i = 0; i < 10; i++) {
        now += 50000 * US;
        trib_linger_worked(&linger, now, true);
    }
    assert_true(trib_linger_goes_on(&linger, now + 499 * US));
    assert_false(trib_linger_goes_on(&linger, now + 500 * US));
}

/* Heartbeats of many members come every few milliseconds: an idle engine is to sleep between them. */
static void what_does_not_teach_changes_nothing(void **state)
{
    (void)state;
    trib_linger linger = trib_linger_between(500 * US, 10000 * US);
    int64_t now = 0;
    for (int i = 0; i < 20; i++) {
        now += 4000 * US;
        trib_linger_worked(&linger, now, false);
        assert_true(trib_linger_goes_on(&linger, now + 499 * US));
        assert_false(trib_linger_goes_on(&linger, now + 500 * US));
    }
}

static void sleeps_at_once_where_it_is_told_so(void **state)
{
    (void)state;
    trib_linger linger = trib_linger_between(0, 0);
    for (int64_t now = 0; now < 100 * US; now += US) {
        trib_linger_worked(&linger, now, true);
        assert_false(trib_linger_goes_on(&linger, now));
    }
    linger = trib_linger_between(700 * US, 0); /* one bound: the window stays as it is */
    for (int64_t now = 0; now < 100000 * US; now += 1000 * US) {
        trib_linger_worked(&linger, now, true);
        assert_true(trib_linger_goes_on(&linger, now + 699 * US));
        assert_false(trib_linger_goes_on(&linger, now + 700 * US));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_for_the_least_time),           cmocka_unit_test(looks_as_long_as_pauses_are),
        cmocka_unit_test(forgets_when_work_is_rare),          cmocka_unit_test(what_does_not_teach_changes_nothing),
        cmocka_unit_test(sleeps_at_once_where_it_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
