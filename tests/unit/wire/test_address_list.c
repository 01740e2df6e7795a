/* test_address_list.c - lists of hosts: which host is the least, and in which order hosts are tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/wire/address_list.h"

static void assert_begins(const char *text, const char *with)
{
    if (text == NULL || strncmp(text, with, strlen(with)) != 0) {
        fail_msg("\"%s\" should begin with \"%s\"", text != NULL ? text : "(null)", with);
    }
}

static void the_least_is_found(void **state)
{
    (void)state;
    assert_begins(trib_address_list_least("10.0.0.1:9"), "10.0.0.1:9");
    assert_begins(trib_address_list_least("10.0.0.1:9,"), "10.0.0.1:9"); /* no address follows the comma */
    assert_begins(trib_address_list_least("10.1.0.1:1,10.0.0.1:2+rdma,"), "10.0.0.1:2");
    assert_begins(trib_address_list_least("10.1.0.1:1,,10.0.0.1:2,,"), "10.0.0.1:2");
    assert_begins(trib_address_list_least("[fd00::10]:1,[fd00::2]:7,[fd01::2]:7,"), "[fd00::2]:7");
    assert_string_equal(trib_address_list_least(""), "");
}

static void a_port_is_no_part_of_a_host(void **state)
{
    (void)state;
    assert_int_equal(trib_address_list_compare("10.0.0.1:99,10.0.0.2:1", "10.0.0.1"), 0);
    assert_int_equal(trib_address_list_compare("[fd00::7]:99", "fd00::7,10.0.0.1"), 0);
    assert_int_equal(trib_address_list_compare("[fd00::7]", "fd00::7"), 0);
    assert_true(trib_address_list_compare("fd00::7", "fd00::8") < 0);
    assert_true(trib_address_list_compare("10.0.0.10:1", "10.0.0.2:1") > 0);
    assert_true(trib_address_list_compare("m0/n1:1", "m0/n0:2") > 0);
}

static void machines_are_told_by_their_least_hosts(void **state)
{
    (void)state;
    assert_int_equal(trib_address_list_compare_machines("m0/n1:1", "m0/n0:2"), 0);
    assert_true(trib_address_list_compare_machines("m0/n1:1", "m1/n0:2") < 0);
    assert_true(trib_address_list_compare_machines("m10/n1:1", "m1/n1:1") > 0);
    assert_true(trib_address_list_compare_machines("n0:1", "n1:1") < 0);
    assert_int_equal(trib_address_list_compare_machines("10.0.0.2:1,10.1.0.2:2", "10.1.0.2:3+rdma,10.0.0.2:4,"), 0);
    assert_int_equal(trib_address_list_compare_machines("[fd00::7]:1,[fd01::7]:1", "[fd01::7]:2,[fd00::7]:2"), 0);
    assert_true(trib_address_list_compare_machines("127.0.0.1:1", "127.0.0.2:1") < 0);
}

/* All hosts of one network come before all hosts of the other, whatever their last parts are. */
static void hosts_of_a_network_lie_together(void **state)
{
    (void)state;
    static const char *const networks[][3] = {
        {"10.77.0.9:1", "10.77.0.10:2", "10.77.0.100:3"},      {"10.78.0.9:1", "10.78.0.10:2", "10.78.0.100:3"},
        {"10.100.0.1:1", "10.100.0.9:1", "10.100.0.255:1"},    {"192.168.1.1", "192.168.1.77", "192.168.1.200"},
        {"192.168.16.5", "192.168.17.5", "192.168.31.255"},    {"192.168.32.5", "192.168.40.5", "192.168.100.1"},
        {"[fd00:1::9]:1", "[fd00:1::10]:1", "[fd00:1::a]:1"},  {"[fd00:2::9]:1", "[fd00:2::10]:1", "[fd00:2::a]:1"},
        {"[fd00:10::9]:1", "[fd00:10::a]:1", "[fd00:10::b]:1"}};
    const size_t count = sizeof networks / sizeof networks[0];
    for (size_t i = 0; i < count * 3; i++) {
        for (size_t k = 0; k < count * 3; k++) {
            const char *one = networks[i / 3][i % 3], *other = networks[k / 3][k % 3];
            const int order = trib_address_list_compare(one, other), expected = i < k ? -1 : i > k;
            if ((order > 0) - (order < 0) != expected) {
                fail_msg("%s and %s: %d, not %d", one, other, order, expected);
            }
        }
    }
}

/* "own" is the host of that index; the others follow from the least on, each once. */
static void assert_order(const char *list, size_t index, const char *const *expected)
{
    const char *const own = trib_address_list_at(list, index), *host = NULL;
    for (size_t i = 0; expected[i] != NULL; i++) {
        host = trib_address_list_next(list, own, host);
        assert_begins(host, expected[i]);
    }
    assert_null(trib_address_list_next(list, own, host));
}

static void all_are_tried_from_the_least_on(void **state)
{
    (void)state;
    assert_order("a", 7, (const char *const[]){"a", NULL});
    assert_order("a,", 1, (const char *const[]){"a", NULL});
    assert_order("b,a", 0, (const char *const[]){"b", "a", NULL});
    assert_order("b,a", 3, (const char *const[]){"a", "b", NULL});
    assert_order("c,b,a,d", 1, (const char *const[]){"b", "a", "c", "d", NULL});
    assert_order("a,a,b", 1, (const char *const[]){"a", "b", NULL}); /* more of the reactors have it */
    assert_order("a,b,b,c", 3, (const char *const[]){"c", "a", "b", NULL});
    assert_order("10.0.0.10,fd00::2,10.0.0.9,fd00::1", 0,
                 (const char *const[]){"10.0.0.10", "10.0.0.9", "fd00::1", "fd00::2", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_is_found),
        cmocka_unit_test(a_port_is_no_part_of_a_host),
        cmocka_unit_test(machines_are_told_by_their_least_hosts),
        cmocka_unit_test(hosts_of_a_network_lie_together),
        cmocka_unit_test(all_are_tried_from_the_least_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
