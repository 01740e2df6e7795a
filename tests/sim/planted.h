/* planted.h - a test program that plants bugs in itself: each must make its scenes fail, in a process of its own. The
 * program lists them as BUG_LIST(X) with X(NAME, "text") before it includes this, and does what `planted` says. */
#ifndef TRIB_TESTS_PLANTED_H
#define TRIB_TESTS_PLANTED_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUG_ENUM(name, text) PLANT_##name,
#define BUG_NAME(name, text) [PLANT_##name] = (text),

enum { PLANT_NOTHING, BUG_LIST(BUG_ENUM) PLANT_COUNT };

static const char *const bugs[PLANT_COUNT] = {BUG_LIST(BUG_NAME)};
static int planted;
static bool was_found[PLANT_COUNT];

static bool is_found(int bug, const struct CMUnitTest *scenes, size_t count)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        planted = bug;
        const bool is_silent = freopen("/dev/null", "w", stdout) != NULL && freopen("/dev/null", "w", stderr) != NULL;
        _exit(is_silent && _cmocka_run_group_tests("planted", scenes, count, NULL, NULL) > 0 ? 1 : 0);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
    for (int bug = PLANT_NOTHING + 1; bug < PLANT_COUNT; bug++) {
        if (!was_found[bug]) {
            fail_msg("not found: %s", bugs[bug]);
        }
    }
}

/* Runs the scenes without and with the bugs; returns how many tests failed. */
static int run_with_bugs(const char *name, const struct CMUnitTest *scenes, size_t count)
{
    for (int bug = PLANT_NOTHING + 1; bug < PLANT_COUNT; bug++) {
        was_found[bug] = is_found(bug, scenes, count);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(planted_bugs_are_found)};
    const int failed = _cmocka_run_group_tests(name, scenes, count, NULL, NULL);
    return failed + cmocka_run_group_tests_name("planted bugs", tests, NULL, NULL);
}

#endif
