/*
 * test_coordinator_name.c - the coordinator is given by name. A name that does not resolve yet is looked up again until
 * the join timeout. Text that cannot be a name fails at once.
 */
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define NAME "coordinator.of-the-job.invalid"
#define SECOND_NS INT64_C(1000000000)

static int asked, known_after; /* number of look-ups so far, and how many of them fail */
static int answer;             /* the failing look-ups' result */
static const char *other;      /* a second address of the name */
static char said[512];         /* the last line of the log */

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found);
__attribute__((visibility("default"))) int __wrap_getaddrinfo(const char *host, const char *service,
                                                              const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    if (strcmp(host, NAME) != 0) {
        return __real_getaddrinfo(host, service, hints, found);
    }
    if (asked++ < known_after) {
        return answer;
    }
    const int code = __real_getaddrinfo("127.0.0.1", service, hints, found);
    if (code == 0 && other != NULL && __real_getaddrinfo(other, service, hints, &(*found)->ai_next) != 0) {
        fail_msg("no address: %s", other);
    }
    return code;
}

static void note_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    (void)user;
    snprintf(said, sizeof said, "%s", line);
}

static trib_status create(const char *coordinator, int64_t join_timeout_ns, trib_engine **engine_out, trib_error *error)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = 1;
    config.coordinator = coordinator;
    config.reactors = 1;
    config.join_timeout_ns = join_timeout_ns;
    config.log_cb = note_line;
    said[0] = '\0';
    asked = 0;
    return trib_engine_create(&config, engine_out, error);
}

static void has(const char *text, const char *what)
{
    if (strstr(text, what) == NULL) {
        fail_msg("\"%s\" is not in: %s", what, text);
    }
}

static void known_later(void **state)
{
    (void)state;
    const int answers[] = {EAI_AGAIN, EAI_NONAME, EAI_NODATA, EAI_FAIL};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        char address[32], coordinator[64];
        job_free_address(address, sizeof address);
        snprintf(coordinator, sizeof coordinator, "%s%s", NAME, strchr(address, ':'));
        trib_engine *engine = NULL;
        trib_error error = {.text = ""};
        answer = answers[i];
        known_after = 3;
        if (create(coordinator, 60 * SECOND_NS, &engine, &error) != TRIB_OK ||
            trib_engine_wait_ready(engine, -1, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(asked, known_after + 1);
        has(said, coordinator);
        has(said, "it is looked up until 60 s have passed");
        assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    }
}

/* A coordinator that listens at the wrong one of its name's addresses logs the others. */
static void several_addresses(void **state)
{
    (void)state;
    static const char *const others[] = {"127.0.0.2", "127.0.0.1", "::1"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char address[32], coordinator[64];
        job_free_address(address, sizeof address);
        snprintf(coordinator, sizeof coordinator, "%s%s", NAME, strchr(address, ':'));
        trib_engine *engine = NULL;
        trib_error error = {.text = ""};
        known_after = 0;
        other = others[i];
        assert_int_equal(create(coordinator, 60 * SECOND_NS, &engine, &error), TRIB_OK);
        other = NULL;
        if (i == 0) {
            has(said, "\" is 127.0.0.1:");
            has(said, "here, and 127.0.0.2:");
        } else {
            assert_string_equal(said, "");
        }
        assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    }
}

static void never_known(void **state)
{
    (void)state;
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    answer = EAI_NONAME;
    known_after = INT32_MAX;
    assert_int_equal(create(NAME ":7077", SECOND_NS / 2, &engine, &error), TRIB_JOIN_FAILED);
    assert_null(engine);
    assert_true(asked > 1);
    has(error.text, "could not look up the coordinator (TRIB_COORDINATOR) within 0.5 s: address \"" NAME ":7077\"");
    has(error.text, "or DNS must know it");
}

/* The deadline is far away, so the test would hang if a look-up were tried again. */
static void no_names(void **state)
{
    (void)state;
    static const char *const addresses[] = {
        "10.0.0.300:7077", "10.0.0.1.:7077", "a..b:7077", ".:7077",    "http//host:7077", "my host:7077",
        "host!:7077",      "[fe80::x]:7077", "host",      "host:port", "host:70777",      "127.0.0.1:1,10.0.0.300:2",
    };
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        trib_engine *engine = NULL;
        trib_error error = {.text = ""};
        assert_int_equal(create(addresses[i], 3600 * SECOND_NS, &engine, &error), TRIB_INVALID);
        assert_string_equal(said, "");
        has(error.text, strstr(addresses[i], "10.0.0.300") != NULL ? "10.0.0.300:" : addresses[i]);
    }
    /* A failure that has nothing to do with names is not tried again either. */
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    answer = EAI_MEMORY;
    known_after = INT32_MAX;
    assert_int_equal(create(NAME ":7077", 3600 * SECOND_NS, &engine, &error), TRIB_INVALID);
    assert_int_equal(asked, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_later),
        cmocka_unit_test(several_addresses),
        cmocka_unit_test(never_known),
        cmocka_unit_test(no_names),
    };
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
