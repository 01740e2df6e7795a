/* test_interface.c - finds the network interface of an address, and the interfaces under a bond or a VLAN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/env/interface.h"

static bool finds(const char *text, const char *wanted)
{
    char name[IF_NAMESIZE] = "";
    return trib_interface_find(text, strlen(text), name) && strcmp(name, wanted) == 0;
}

static void test_find(void **state)
{
    (void)state;
    char name[IF_NAMESIZE] = "untouched";
    assert_true(finds("127.0.0.1", "lo"));
    assert_true(trib_interface_find("127.0.0.1,10.0.0.7", 9, name));
    assert_string_equal(name, "lo");
    static const char *const none[] = {"192.0.2.1",   "[2001:db8::1]",
                                       "localhost",   "",
                                       "[",           "[]",
                                       "127.0.0.1:1", "1111:2222:3333:4444:5555:6666:7777:8888:9999:0000:1111"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        snprintf(name, sizeof name, "untouched");
        assert_false(trib_interface_find(none[i], strlen(none[i]), name));
        assert_string_equal(name, "untouched");
    }
}

static void test_find_ipv6(void **state)
{
    (void)state;
    FILE *there = fopen("/proc/net/if_inet6", "re");
    char line[128] = "";
    bool has = false;
    while (there != NULL && fgets(line, sizeof line, there) != NULL) {
        has = has || strncmp(line, "00000000000000000000000000000001 ", 33) == 0;
    }
    if (there != NULL) {
        fclose(there);
    }
    if (!has) {
        print_message("# no IPv6 here\n");
        skip();
    }
    assert_true(finds("::1", "lo"));
    assert_true(finds("[::1]", "lo"));
}

static void make_folder(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void assert_descends(const char *folder, const char *from, const char *to)
{
    char name[IF_NAMESIZE];
    snprintf(name, sizeof name, "%s", from);
    trib_interface_descend(folder, name);
    assert_string_equal(name, to);
}

/* A VLAN over a bond of two NICs; a NIC; a missing interface; and a circle, which no system has. */
static void test_descend(void **state)
{
    (void)state;
    static const char *const folders[] = {"vlan7",
                                          "vlan7/lower_bond0",
                                          "bond0",
                                          "bond0/lower_eth1",
                                          "bond0/lower_eth0",
                                          "bond0/upper_vlan7",
                                          "eth0",
                                          "eth0/upper_bond0",
                                          "ring0",
                                          "ring0/lower_ring1",
                                          "ring1",
                                          "ring1/lower_ring0"};
    const size_t count = sizeof folders / sizeof folders[0];
    char folder[] = "/tmp/test_interface.XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < count; i++) {
        make_folder(folder, folders[i]);
    }
    assert_descends(folder, "vlan7", "eth0");
    assert_descends(folder, "bond0", "eth0");
    assert_descends(folder, "eth0", "eth0");
    assert_descends(folder, "eth9", "eth9");
    assert_descends(folder, "ring0", "ring0");
    for (size_t i = count; i-- > 0;) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_find_ipv6),
        cmocka_unit_test(test_descend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
