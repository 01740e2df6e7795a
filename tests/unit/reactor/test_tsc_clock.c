/* test_tsc_clock.c - the processor's counter as a clock: interruptions while it is set do not make it wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "engine/reactor/tsc_clock.h"

#define MS INT64_C(1000000)
#define OFF_MAX (MS / 10) /* from the system's clock; an interruption takes 200 times as long */

static unsigned interruptions; /* still to come, each just after the system's clock was read */

static int64_t system_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pass(int64_t ns)
{
    for (const int64_t end_ns = system_ns() + ns; system_ns() < end_ns;) {}
}

static int64_t interrupted_ns(void)
{
    const int64_t now_ns = system_ns();
    if (interruptions > 0) {
        interruptions--;
        pass(20 * MS);
    }
    return now_ns;
}

static void follows_the_system(trib_tsc_clock *clock, int64_t for_ns)
{
    int64_t last_ns = 0;
    for (const int64_t end_ns = system_ns() + for_ns; last_ns < end_ns;) {
        const int64_t before_ns = system_ns(), said_ns = trib_tsc_clock_now(clock), after_ns = system_ns();
        assert_true(said_ns >= before_ns - OFF_MAX);
        assert_true(said_ns <= after_ns + OFF_MAX);
        assert_true(said_ns >= last_ns);
        last_ns = said_ns;
    }
}

static void uninterrupted_clock_follows_the_system(void **state)
{
    (void)state;
    trib_tsc_clock clock;
    trib_tsc_clock_init(&clock, interrupted_ns);
    follows_the_system(&clock, 20 * MS);
}

static void interrupted_while_it_is_set(void **state)
{
    (void)state;
    for (unsigned times = 1; times <= 6; times++) {
        trib_tsc_clock clock;
        trib_tsc_clock_init(&clock, interrupted_ns);
        pass(5 * MS);
        interruptions = times;
        (void)trib_tsc_clock_set(&clock);
        interruptions = 0;
        follows_the_system(&clock, 5 * MS);
    }
}

static void interrupted_at_its_origin(void **state)
{
    (void)state;
    for (unsigned times = 1; times <= 6; times++) {
        trib_tsc_clock clock;
        interruptions = times;
        trib_tsc_clock_init(&clock, interrupted_ns);
        interruptions = 0;
        pass(5 * MS);
        follows_the_system(&clock, 10 * MS);
    }
}

static void without_a_counter(void **state)
{
    (void)state;
    trib_tsc_clock clock;
    trib_tsc_clock_init(&clock, interrupted_ns);
    clock.usable = false;
    follows_the_system(&clock, 5 * MS);
    assert_int_equal(clock.span, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uninterrupted_clock_follows_the_system),
        cmocka_unit_test(interrupted_while_it_is_set),
        cmocka_unit_test(interrupted_at_its_origin),
        cmocka_unit_test(without_a_counter),
    };
    return cmocka_run_group_tests_name("ticks", tests, NULL, NULL);
}
