/* test_link_refused.c - lines about rejected connections: each kind has its own, an address has a few of them, and the
 * rest is summed up by address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/link/link_refused.h"
#include "engine/reactor/reactor.h"

#define SECOND INT64_C(1000000000)

static uint32_t lines;
static trib_log_level last_level;
static char last[512];

static void on_log(trib_log_level level, const char *line, void *user)
{
    (void)user;
    lines++;
    last_level = level;
    snprintf(last, sizeof last, "%s", line);
}

static trib_logger logger;
static trib_reactor reactor = {.logger = &logger};

static void begin(void)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.log_cb = on_log;
    config.log_level = TRIB_LOG_INFO;
    trib_logger_init(&logger, &config);
    lines = 0;
}

static void knock(trib_refused *self, int64_t now_ns, trib_refusal kind, const char *host, uint32_t port)
{
    char address[64];
    snprintf(address, sizeof address, "%s:%u", host, port);
    trib_refused_note(self, &reactor, now_ns, kind, address, "no handshake within 10 s");
}

/* A scan from one address costs a few lines, and hides neither other addresses nor other kinds. */
static void a_scan_hides_nothing(void **state)
{
    (void)state;
    trib_refused self = {.last_member = ""};
    begin();
    for (uint32_t i = 0; i < 1000; i++) {
        knock(&self, SECOND, TRIB_REFUSAL_STRANGER, "10.0.0.7", 1000 + i);
    }
    assert_int_equal(lines, 5);
    knock(&self, SECOND, TRIB_REFUSAL_STRANGER, "10.0.0.8", 1);
    assert_int_equal(lines, 6);
    assert_non_null(strstr(last, "turned away 10.0.0.8:1: no handshake within 10 s"));
    for (uint32_t i = 0; i < 100; i++) {
        char host[32];
        snprintf(host, sizeof host, "10.1.0.%u", i);
        knock(&self, SECOND, TRIB_REFUSAL_STRANGER, host, 1);
    }
    assert_int_equal(lines, 20);
    knock(&self, SECOND, TRIB_REFUSAL_MEMBER, "10.0.0.7", 1);
    knock(&self, SECOND, TRIB_REFUSAL_TOKEN, "10.0.0.7", 1);
    assert_int_equal(lines, 22);
    trib_refused_report(&self, &reactor, 60 * SECOND, false);
    assert_int_equal(lines, 22);
    trib_refused_report(&self, &reactor, 61 * SECOND, false);
    assert_int_equal(lines, 23);
    assert_non_null(strstr(last, "turned away 1081 more strangers: 995 from 10.0.0.7, 86 from elsewhere; the last one: "
                                 "10.1.0.99:1: no handshake within 10 s"));
    assert_int_equal(last_level, TRIB_LOG_WARN);
    trib_refused_report(&self, &reactor, 200 * SECOND, true);
    assert_int_equal(lines, 23);
}

/* The next minute begins anew. */
static void minutes_pass(void **state)
{
    (void)state;
    trib_refused self = {.last_member = ""};
    begin();
    for (uint32_t i = 0; i < 6; i++) {
        knock(&self, SECOND, TRIB_REFUSAL_STRANGER, "[fe80::1]", i);
    }
    assert_int_equal(lines, 5);
    knock(&self, 62 * SECOND, TRIB_REFUSAL_STRANGER, "[fe80::1]", 9);
    assert_int_equal(lines, 7);
    assert_non_null(strstr(last, "turned away [fe80::1]:9: "));
    assert_non_null(strstr(self.last_member, "[fe80::1]:9: no handshake"));
}

/* Peers that go before their proof are no warning, and do not hide who was turned away last. */
static void who_goes_is_no_warning(void **state)
{
    (void)state;
    trib_refused self = {.last_member = ""};
    begin();
    knock(&self, SECOND, TRIB_REFUSAL_TOKEN, "10.0.0.7", 1);
    for (uint32_t i = 0; i < 7; i++) {
        knock(&self, SECOND, TRIB_REFUSAL_GONE, "10.0.0.9", i);
        assert_int_equal(last_level, TRIB_LOG_INFO);
    }
    assert_int_equal(lines, 6);
    assert_non_null(strstr(last, "gone in the handshake: 10.0.0.9:4: "));
    assert_non_null(strstr(self.last_member, "10.0.0.7:1: "));
    trib_refused_report(&self, &reactor, 2 * SECOND, true);
    assert_int_equal(last_level, TRIB_LOG_INFO);
    assert_non_null(strstr(last, "gone in the handshake: 2 more peers: 2 from 10.0.0.9; the last one: 10.0.0.9:6: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scan_hides_nothing),
        cmocka_unit_test(minutes_pass),
        cmocka_unit_test(who_goes_is_no_warning),
    };
    return cmocka_run_group_tests_name("rejected connections", tests, NULL, NULL);
}
