/* test_interfaces.c - addresses by names and patterns of interfaces. Loopback is the interface that each machine
 * has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "api/config/interfaces.h"

static void expands_to(const char *list, const char *wanted)
{
    trib_address found;
    trib_error error = {.status = TRIB_OK};
    if (trib_interfaces_expand(list, &found, &error) != TRIB_OK) {
        fail_msg("%s: %s", list, error.text);
    }
    assert_string_equal(found.text, wanted);
}

static void refuses(const char *list, const char *words)
{
    trib_address found = {.text = "as it was"};
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_interfaces_expand(list, &found, &error), TRIB_INVALID);
    assert_string_equal(found.text, "as it was");
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
}

static void addresses_stay_as_they_are(void **state)
{
    (void)state;
    expands_to("10.0.0.7", "10.0.0.7");
    expands_to("10.0.0.7,fd00::7", "10.0.0.7,fd00::7");
    expands_to("10.0.0.7,10.0.0.7,10.0.0.70", "10.0.0.7,10.0.0.70");
}

static void names_and_patterns_become_addresses(void **state)
{
    (void)state;
    expands_to("lo", "127.0.0.1");
    expands_to("l*", "127.0.0.1");
    expands_to("l?", "127.0.0.1");
    expands_to("10.0.0.7,lo,127.0.0.1", "10.0.0.7,127.0.0.1");
    expands_to("lo,!docker*", "127.0.0.1");
}

static void what_matches_nothing_is_refused_with_what_there_is(void **state)
{
    (void)state;
    refuses("nosuch0", "\"nosuch0\" is neither a numeric address without a port nor an interface");
    refuses("nosuch0", "there are: lo");
    refuses("lo,nosuch*", "\"nosuch*\"");
    refuses("lo,!lo", "\"lo\"");
    refuses("!*", "\"!*\"");
    refuses("lo,,lo", "\"\"");
    refuses("10.0.0.7:80", "\"10.0.0.7:80\"");
    refuses("a-name-that-is-longer-than-any-interface-or-any-numeric-address-could-be", "neither");
}

/* "*" would also give addresses that lead each peer to itself, so they are left out. */
static void loopback_has_to_be_named(void **state)
{
    (void)state;
    trib_address found = {.text = ""};
    if (trib_interfaces_expand("*", &found, NULL) == TRIB_OK) {
        assert_null(strstr(found.text, "127.0.0.1"));
    }
    if (trib_interfaces_expand("!docker*", &found, NULL) == TRIB_OK) {
        assert_null(strstr(found.text, "127.0.0.1"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_stay_as_they_are),
        cmocka_unit_test(names_and_patterns_become_addresses),
        cmocka_unit_test(what_matches_nothing_is_refused_with_what_there_is),
        cmocka_unit_test(loopback_has_to_be_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
