/* test_env_polling.c - which processes poll for more work before they sleep, and for how long at most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/env/env_polling.h"

#define US INT64_C(1000)
#define MS (1000 * US)

static trib_config config_of(uint32_t roles)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.roles = roles;
    return config;
}

static void expect(const trib_config *config, int64_t device_most_ns, uint32_t local_count, bool crowded,
                   int64_t least_ns, int64_t most_ns)
{
    const trib_place_plan plan = {.crowded = crowded, .roomy = !crowded};
    const trib_env_polling polling = trib_env_polling_of(config, device_most_ns, local_count, &plan);
    assert_int_equal(polling.least_ns, least_ns);
    assert_int_equal(polling.most_ns, most_ns);
}

static void workers_poll_for_their_neighbours(void **state)
{
    (void)state;
    const trib_config worker = config_of(TRIB_ROLE_WORKER), both = config_of(TRIB_ROLE_WORKER | TRIB_ROLE_SERVER);
    expect(&worker, 0, 1, false, 0, 0);
    expect(&both, 0, 1, false, 0, 0);
    expect(&worker, 0, 2, false, 0, 50 * US);
    expect(&both, 0, 2, true, 0, 50 * US); /* the reactor yields its core after each poll */
}

static void servers_poll_longer_where_they_have_cores(void **state)
{
    (void)state;
    trib_config server = config_of(TRIB_ROLE_SERVER);
    expect(&server, 0, 1, false, 0, 8 * MS);
    expect(&server, 0, 4, false, 0, 8 * MS);
    expect(&server, 0, 1, true, 0, 0);
    expect(&server, 0, 4, true, 0, 50 * US);
    server.mode = TRIB_MODE_ATTACHED; /* the loop is the caller's, and the caller may want the core */
    expect(&server, 0, 1, false, 0, 0);
    expect(&server, 0, 2, false, 0, 50 * US);
    server.mode = TRIB_MODE_THREADS;
    const trib_place_plan full = {.crowded = false, .roomy = false};
    /* Other processes' callers want their cores. */
    assert_int_equal(trib_env_polling_of(&server, 0, 4, &full).most_ns, 50 * US);
}

static void a_given_window_is_kept(void **state)
{
    (void)state;
    trib_config config = config_of(TRIB_ROLE_SERVER);
    config.busy_poll_ns = 200 * US;
    expect(&config, 0, 1, false, 200 * US, 0);
    expect(&config, 0, 4, true, 200 * US, 0);
    config.roles = TRIB_ROLE_WORKER;
    expect(&config, 0, 1, false, 200 * US, 0);
}

/* With a GPU the engine polls for busy_poll_ns. */
static void gpus_have_reactors_poll_where_there_are_cores(void **state)
{
    (void)state;
    trib_config worker = config_of(TRIB_ROLE_WORKER);
    worker.busy_poll_ns = 500 * US;
    expect(&worker, 25 * MS, 1, false, 500 * US, 25 * MS);
    expect(&worker, 8 * MS, 4, false, 500 * US, 8 * MS);
    expect(&worker, 8 * MS, 4, true, 0, 50 * US);
    expect(&worker, 8 * MS, 1, true, 0, 0);
    worker.mode = TRIB_MODE_ATTACHED;
    expect(&worker, 8 * MS, 1, false, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_poll_for_their_neighbours),
        cmocka_unit_test(servers_poll_longer_where_they_have_cores),
        cmocka_unit_test(a_given_window_is_kept),
        cmocka_unit_test(gpus_have_reactors_poll_where_there_are_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
