/*
 * test_coordinator_name.c - the coordinator is given by name. A name that does not resolve yet is looked up again until
 * the join timeout. Text that cannot be a name fails at once.
 */
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define NAME "coordinator.of-the-job.invalid"
#define SECOND_NS INT64_C(1000000000)

static atomic_int asked;          /* number of look-ups so far; later ones come from a thread of their own */
static int known_after;           /* how many of them fail */
static int answer;                /* the failing look-ups' result */
static const char *first, *other; /* the name's addresses; other NULL: it has one */
static int stale_for;             /* so many look-ups find another address, where nobody is */
static char said[512];            /* the last line of the log */

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
    const char *address = asked <= stale_for ? "127.0.0.9" : first;
    const int code = __real_getaddrinfo(address, service, hints, found);
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
    first = "127.0.0.1";
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

/* Rank 0 is at 127.0.0.1, and rank 1 knows the name only. Sums need both. */
static void join_by_name(void)
{
    char address[32], by_name[64];
    job_free_address(address, sizeof address);
    snprintf(by_name, sizeof by_name, "%s%s", NAME, strchr(address, ':'));
    trib_engine *engines[2] = {NULL};
    trib_error error = {.text = ""};
    for (int rank = 0; rank < 2; rank++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.worker_count = 2;
        config.rank = rank;
        config.token = "a token for a name";
        config.coordinator = rank == 0 ? address : by_name;
        config.reactors = 1;
        asked = 0;
        if (trib_engine_create(&config, &engines[rank], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        if (trib_engine_wait_ready(engines[rank], -1, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
    }
    job_close(&(job){.worker_count = 2, .engines = {engines[0], engines[1]}});
}

/* All addresses of a name are tried. */
static void several_addresses(void **state)
{
    (void)state;
    known_after = stale_for = 0;
    first = "127.0.0.9";
    other = "127.0.0.1";
    join_by_name();
    first = "::1";
    join_by_name();
    other = NULL;
}

/* A name that leads nowhere is looked up again. */
static void stale_address(void **state)
{
    (void)state;
    known_after = 0;
    first = "127.0.0.1";
    stale_for = 2;
    join_by_name();
    assert_true(asked > 2);
    stale_for = 0;
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
        cmocka_unit_test(known_later), cmocka_unit_test(several_addresses), cmocka_unit_test(stale_address),
        cmocka_unit_test(never_known), cmocka_unit_test(no_names),
    };
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
