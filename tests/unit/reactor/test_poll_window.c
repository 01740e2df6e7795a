/* test_poll_window.c - how long a thread polls for more work: past pauses decide. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/reactor/poll_window.h"

#define US INT64_C(1000)

static void polls_for_the_least_time(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(500 * US, 10000 * US);
    trib_poll_window_note_work(&window, 100000 * US, false);
    assert_true(trib_poll_window_is_open(&window, 100499 * US));
    assert_false(trib_poll_window_is_open(&window, 100500 * US));
}

static void polls_as_long_as_pauses_are(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(500 * US, 10000 * US);
    int64_t now = 0;
    trib_poll_window_note_work(&window, now, true);
    for (int i = 0; i < 20; i++) {
        now += 3000 * US;
        assert_int_equal(trib_poll_window_is_open(&window, now), i > 0); /* it was found asleep once */
        trib_poll_window_note_work(&window, now, true);
    }
    assert_true(trib_poll_window_is_open(&window, now + 3000 * US));
    assert_false(trib_poll_window_is_open(&window, now + 10000 * US));
    for (int i = 0; i < 20; i++) {
        now += 9000 * US;
        trib_poll_window_note_work(&window, now, true);
    }
    assert_true(trib_poll_window_is_open(&window, now + 9999 * US));
    assert_false(trib_poll_window_is_open(&window, now + 10000 * US)); /* never for longer than the limit */
}

static void forgets_when_work_is_rare(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(500 * US, 10000 * US);
    int64_t now = 5000 * US;
    trib_poll_window_note_work(&window, now, true);
    assert_true(trib_poll_window_is_open(&window, now + 5000 * US));
    for (int i = 0; i < 10; i++) {
        now += 50000 * US;
        trib_poll_window_note_work(&window, now, true);
    }
    assert_true(trib_poll_window_is_open(&window, now + 499 * US));
    assert_false(trib_poll_window_is_open(&window, now + 500 * US));
}

/* Heartbeats of many members arrive every few milliseconds, and an idle engine sleeps between them. */
static void heartbeats_leave_the_window_unchanged(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(500 * US, 10000 * US);
    int64_t now = 0;
    for (int i = 0; i < 20; i++) {
        now += 4000 * US;
        trib_poll_window_note_work(&window, now, false);
        assert_true(trib_poll_window_is_open(&window, now + 499 * US));
        assert_false(trib_poll_window_is_open(&window, now + 500 * US));
    }
}

/* A program that had work every few milliseconds and then has none still gets messages of its peers. */
static void learned_window_is_forgotten(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(500 * US, 10000 * US);
    int64_t now = 0;
    for (int i = 0; i < 20; i++) {
        now += 5000 * US;
        trib_poll_window_note_work(&window, now, true);
    }
    for (const int64_t idle = now; now < idle + 990000 * US; now += 3000 * US) {
        trib_poll_window_note_work(&window, now, false); /* an operation may take this long */
        assert_true(trib_poll_window_is_open(&window, now + 7000 * US));
    }
    now += 20000 * US;
    for (int i = 0; i < 20; i++, now += 3000 * US) {
        trib_poll_window_note_work(&window, now, false);
        assert_true(trib_poll_window_is_open(&window, now + 499 * US));
        assert_false(trib_poll_window_is_open(&window, now + 500 * US));
    }
}

static void sleeps_at_once_without_a_window(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(0, 0);
    for (int64_t now = 0; now < 100 * US; now += US) {
        trib_poll_window_note_work(&window, now, true);
        assert_false(trib_poll_window_is_open(&window, now));
    }
    window = trib_poll_window_between(700 * US, 0); /* both bounds are equal: the window stays */
    for (int64_t now = 0; now < 100000 * US; now += 1000 * US) {
        trib_poll_window_note_work(&window, now, true);
        assert_true(trib_poll_window_is_open(&window, now + 699 * US));
        assert_false(trib_poll_window_is_open(&window, now + 700 * US));
    }
}

/* A reactor without settings polls for work that comes soon. */
static void the_default_polls_while_it_pays(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(0, 50 * US);
    int64_t now = 5000 * US;
    trib_poll_window_note_work_since(&window, now, now, true);
    assert_false(trib_poll_window_is_open(&window, now));
    for (int i = 0; i < 10; i++) {
        trib_poll_window_note_work_since(&window, now + 30 * US, now + 80 * US, true); /* 50 us of work: no pause */
        now += 80 * US;
    }
    assert_true(trib_poll_window_is_open(&window, now + 40 * US));
    assert_false(trib_poll_window_is_open(&window, now + 50 * US));
    for (int i = 0; i < 20; i++) {
        now += 1000 * US;
        trib_poll_window_note_work_since(&window, now, now, true);
    }
    assert_false(trib_poll_window_is_open(&window, now));
}

static void late_scheduling_ends_polling(void **state)
{
    (void)state;
    trib_poll_window window = trib_poll_window_between(0, 50 * US), told = trib_poll_window_between(50 * US, 0);
    int64_t now = 5000 * US;
    for (int i = 0; i < 4; i++, now += 20 * US) {
        trib_poll_window_note_work(&window, now, true);
        trib_poll_window_note_work(&told, now, true);
    }
    trib_poll_window_note_yield(&window, now, now + 10 * US); /* a yield that ends soon is no reason to sleep */
    assert_true(trib_poll_window_is_open(&window, now));
    const int64_t back = now + 3000 * US;
    trib_poll_window_note_yield(&window, now, back);
    trib_poll_window_note_yield(&told, now, back);
    for (now = back; now < back + 96000 * US; now += 20 * US) {
        trib_poll_window_note_work(&window, now, true);
        trib_poll_window_note_work(&told, now, true);
        assert_false(trib_poll_window_is_open(&window, now));
        assert_true(trib_poll_window_is_open(&told, now));
    }
    trib_poll_window_note_work(&window, now, true);
    assert_true(trib_poll_window_is_open(&window, now));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(polls_for_the_least_time),        cmocka_unit_test(polls_as_long_as_pauses_are),
        cmocka_unit_test(forgets_when_work_is_rare),       cmocka_unit_test(heartbeats_leave_the_window_unchanged),
        cmocka_unit_test(learned_window_is_forgotten),     cmocka_unit_test(sleeps_at_once_without_a_window),
        cmocka_unit_test(the_default_polls_while_it_pays), cmocka_unit_test(late_scheduling_ends_polling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
