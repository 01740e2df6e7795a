/* test_blame.c - the words for who is lost: whom they name, where, since when and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/blame.h"
#include "engine/core.h"

static char address[] = "10.0.0.1:7077";

static trib_roster *roster_of_two(void)
{
    trib_roster *roster = trib_roster_create(2);
    assert_non_null(roster);
    snprintf(roster->members[0].name, sizeof roster->members[0].name, "rank 0 (node7:4711)");
    snprintf(roster->members[1].name, sizeof roster->members[1].name, "server 0 (node4:902)");
    return roster;
}

/* By the member that it is in, if it is in one: that is what one has to look at. */
static void the_coordinator_is_named(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    trib_engine *engine = calloc(1, sizeof *engine);
    assert_non_null(engine);
    engine->roster = roster;
    engine->coordinator_address = address;
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_blame_coordinator(engine, "why", text);
    assert_string_equal(text, "lost the coordinator, a process of its own at 10.0.0.1:7077: why");
    assert_true(trib_blame_advises(engine, text));
    roster->members[0].roles = TRIB_ROLE_WORKER | TRIB_ROLE_COORDINATOR;
    trib_blame_coordinator(engine, "why", text);
    assert_string_equal(text, "lost rank 0 (node7:4711), which keeps the membership at 10.0.0.1:7077: why");
    assert_true(trib_blame_advises(engine, text));
    assert_false(trib_blame_advises(engine, "lost server 0 (node4:902): why"));
    free(engine);
    free(roster);
}

/* Others read it, too. */
static void trouble_of_its_own_bears_a_name(void **state)
{
    (void)state;
    static const char *const name = "server 0 (node4:902)";
    char told[TRIB_ERROR_TEXT_SIZE], text[TRIB_ERROR_TEXT_SIZE];
    trib_blame_member(name, TRIB_NO_MEMORY, "out of memory for a sum", told);
    assert_string_equal(told, "server 0 (node4:902): out of memory for a sum");
    trib_blame_member(name, TRIB_NO_MEMORY, told, text);
    assert_string_equal(text, told);
    trib_blame_member(name, TRIB_PEER_LOST, "lost rank 1 (node5:1)", text);
    assert_string_equal(text, "lost rank 1 (node5:1)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_coordinator_is_named),
        cmocka_unit_test(trouble_of_its_own_bears_a_name),
    };
    return cmocka_run_group_tests_name("blame", tests, NULL, NULL);
}
