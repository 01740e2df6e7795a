/* test_blame.c - the texts about lost members: which member they name, where, since when and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/core/blame.h"
#include "engine/core/core.h"

static char address[] = "10.0.0.1:7077";

static trib_roster *roster_of_two(void)
{
    trib_roster *roster = trib_roster_create(2);
    assert_non_null(roster);
    snprintf(roster->members[0].name, sizeof roster->members[0].name, "rank 0 (node7:4711)");
    snprintf(roster->members[1].name, sizeof roster->members[1].name, "server 0 (node4:902)");
    return roster;
}

static trib_core *core_of(const trib_roster *roster)
{
    trib_core *core = calloc(1, sizeof *core);
    assert_non_null(core);
    core->engine = calloc(1, sizeof *core->engine);
    assert_non_null(core->engine);
    core->engine->roster = roster;
    return core;
}

static void core_free(trib_core *core)
{
    free(core->engine);
    free(core);
}

/* The coordinator is named by the member that runs it, if there is one, because a reader has to look at that
 * process. */
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

/* Other members read the text, too. */
static void trouble_of_its_own_bears_a_name(void **state)
{
    (void)state;
    static const char *const name = "server 0 (node4:902)";
    char reported[TRIB_ERROR_TEXT_SIZE], text[TRIB_ERROR_TEXT_SIZE];
    trib_blame_member(name, TRIB_NO_MEMORY, "out of memory for a sum", reported);
    assert_string_equal(reported, "server 0 (node4:902): out of memory for a sum");
    trib_blame_member(name, TRIB_NO_MEMORY, reported, text);
    assert_string_equal(text, reported);
    trib_blame_member(name, TRIB_PEER_LOST, "lost rank 1 (node5:1)", text);
    assert_string_equal(text, "lost rank 1 (node5:1)");
}

/* A member passes on a report about itself, and the reader's text then means another process. */
static void this_process_is_who_reads_it(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    trib_engine *engine = calloc(1, sizeof *engine);
    assert_non_null(engine);
    engine->roster = roster;
    char text[TRIB_ERROR_TEXT_SIZE];
    static const char *const reported = "lost the connection to this process, server 0 (node4:902): why";
    trib_blame_self(engine, reported, text);
    assert_string_equal(text, "lost the connection to server 0 (node4:902): why");
    engine->member_id = 1;
    trib_blame_self(engine, reported, text);
    assert_string_equal(text, reported);
    trib_blame_self(engine, "lost the connection to this process, rank 0 (node7:4711), as server 0 (node4:902) says",
                    text);
    assert_string_equal(text, "lost the connection to rank 0 (node7:4711), as this process, server 0 (node4:902) says");
    free(engine);
    free(roster);
}

/* A text that bears its sender's name does not name the sender again. */
static void who_speaks_is_named_once(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    trib_core *core = core_of(roster);
    const trib_link link = {.core = core, .end_from_peer = true};
    const char *name = roster->members[1].name;
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_blame_end(&link, "to", name, "server 0 (node4:902) could let nobody else connect", text);
    assert_string_equal(text, "server 0 (node4:902) could let nobody else connect");
    trib_blame_end(&link, "to", name, "lost rank 2 (node5:1)", text);
    assert_string_equal(text, "lost rank 2 (node5:1), as server 0 (node4:902) says");
    core_free(core);
    free(roster);
}

/* A connection that was never made is not called lost. A reader who looks for the reason needs the address. */
static void who_is_not_reached_has_an_address(void **state)
{
    (void)state;
    trib_roster *roster = roster_of_two();
    trib_core *core = core_of(roster);
    snprintf(roster->members[1].addresses[2].text, TRIB_ADDRESS_MAX, "10.0.0.4:81+shm,10.1.0.4:82");
    trib_link link = {.core = core, .peer = 1, .peer_reactor = 2, .outgoing = true};
    const char *name = roster->members[1].name;
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_blame_end(&link, "to", name, "cannot connect: No route to host", text);
    assert_string_equal(text, "could not connect to server 0 (node4:902) at 10.0.0.4:81: No route to host");
    trib_blame_end(&link, "to", name, "connection closed by the peer", text);
    assert_string_equal(text,
                        "could not connect to server 0 (node4:902) at 10.0.0.4:81: connection closed by the peer");
    link.proved = true;
    trib_blame_end(&link, "to", name, "why", text);
    assert_string_equal(text, "lost the connection to server 0 (node4:902): why");
    core_free(core);
    free(roster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_coordinator_is_named),          cmocka_unit_test(trouble_of_its_own_bears_a_name),
        cmocka_unit_test(this_process_is_who_reads_it),      cmocka_unit_test(who_speaks_is_named_once),
        cmocka_unit_test(who_is_not_reached_has_an_address),
    };
    return cmocka_run_group_tests_name("blame", tests, NULL, NULL);
}
