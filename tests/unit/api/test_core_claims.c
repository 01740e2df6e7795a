/* test_core_claims.c - jobs that share a machine: each reads which cores the others have pinned reactors to, and leaves
 * those alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/env/core_claims.h"

enum { CORES = 16 };

static int load(void **state)
{
    const char *directory = getenv("TRIB_TEST_DATA");
    char path[512];
    snprintf(path, sizeof path, "%s/machine_2s_8gpu_4nic.xml", directory != NULL ? directory : "tests/unit/data");
    trib_topo *topo = NULL;
    trib_error error = {.text = ""};
    if (trib_topo_load(path, &topo, &error) != TRIB_OK) {
        print_error("%s\n", error.text);
        return -1;
    }
    *state = topo;
    return 0;
}

static int unload(void **state)
{
    trib_topo_free(*state);
    return 0;
}

static trib_place_plan make(const trib_topo *topo, const trib_place_request *request)
{
    trib_place_plan plan;
    assert_int_equal(trib_place_make(topo, request, &plan, NULL), TRIB_OK);
    return plan;
}

static void take(trib_place_cpus *taken, const trib_place_plan *plan)
{
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        trib_place_cpus_add(taken, plan->reactors[i].cpu);
    }
}

/* If it means the other node, too. */
static void cpus_of_other_jobs_are_left_alone(void **state)
{
    trib_place_cpus taken = {.bits = {0}};
    trib_place_request request;
    trib_place_request_init(&request);
    request.reactors = 4;
    request.taken = &taken;
    for (uint32_t jobs = 0; jobs < 3; jobs++) {
        const trib_place_plan plan = make(*state, &request);
        for (uint32_t i = 0; i < 4; i++) {
            assert_in_range(plan.reactors[i].cpu, 0, CORES - 1);
            assert_false(trib_place_cpus_have(&taken, plan.reactors[i].cpu));
            assert_int_equal(plan.reactors[i].node, jobs < 2 ? 0 : 1);
        }
        take(&taken, &plan);
    }
    request.reactors = 6; /* four are free */
    const trib_place_plan plan = make(*state, &request);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(trib_place_cpus_have(&taken, plan.reactors[i].cpu), i >= 4);
    }
}

static void where_all_are_taken_it_is_as_if_none_were(void **state)
{
    trib_place_cpus taken = {.bits = {UINT64_MAX}};
    trib_place_request request;
    trib_place_request_init(&request);
    const trib_place_plan alone = make(*state, &request);
    request.taken = &taken;
    const trib_place_plan plan = make(*state, &request);
    assert_int_equal(plan.reactor_count, alone.reactor_count);
    assert_memory_equal(plan.reactors, alone.reactors, sizeof plan.reactors);
}

/* Whatever each of them has read. */
static void processes_of_a_job_stay_apart(void **state)
{
    trib_place_cpus taken = {.bits = {0x0ff3}};
    trib_place_request request;
    trib_place_request_init(&request);
    request.reactors = 4;
    request.local_count = 2;
    const trib_place_plan first = make(*state, &request);
    request.local_index = 1;
    request.taken = &taken;
    const trib_place_plan second = make(*state, &request);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_not_equal(first.reactors[i / 4].cpu, second.reactors[i % 4].cpu);
    }
}

/* ---- Claims, written and read ---- */

/* CPU numbers that no test machine has, so that other jobs on this machine cannot claim them. */
static trib_place_plan plan_of(int32_t cpu)
{
    trib_place_plan plan = {.reactor_count = 3};
    plan.reactors[0].cpu = cpu;
    plan.reactors[1].cpu = -1;
    plan.reactors[2].cpu = cpu + 1;
    return plan;
}

static bool is_taken(uint32_t job, const trib_place_plan *mine, int32_t cpu)
{
    trib_place_cpus taken;
    trib_core_claims_read(job, mine, &taken);
    return trib_place_cpus_have(&taken, cpu);
}

static void others_read_what_one_says(void **state)
{
    (void)state;
    /* Another build's test of this machine has other numbers. */
    const int32_t first = 4096 + 4 * (getpid() % 1000);
    const trib_place_plan one = plan_of(first), nowhere = {.reactor_count = 1, .reactors[0].cpu = -1};
    const int claim = trib_core_claims_make(7, &one), again = trib_core_claims_make(7, &one);
    assert_true(claim >= 0 && again >= 0);
    assert_int_equal(trib_core_claims_make(7, &nowhere), -1);
    assert_false(is_taken(7, NULL, first)); /* by its own job */
    for (int32_t cpu = first - 1; cpu <= first + 2; cpu++) {
        assert_int_equal(is_taken(8, NULL, cpu), cpu == first || cpu == first + 1);
    }
    /* Two jobs have claimed a core at the same moment. The one with the lower number stays. */
    assert_true(is_taken(8, &one, first + 1));
    assert_false(is_taken(6, &one, first + 1));
    trib_core_claims_drop(claim);
    assert_true(is_taken(8, NULL, first + 1));
    trib_core_claims_drop(again);
    trib_core_claims_drop(-1);
    assert_false(is_taken(8, NULL, first + 1));
}

__attribute__((format(printf, 1, 2))) static int socket_named(const char *format, ...)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(name.sun_path + 1, sizeof name.sun_path - 1, format, arguments);
    va_end(arguments);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, size), 0);
    return fd;
}

static void nonsense_is_passed_over(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "1",
                                        "1/",
                                        "1/2",
                                        "x/y/z",
                                        "1/2/-5",
                                        "1/2/8192",
                                        "1/2/99999999999999999999",
                                        "1/2/,8100",
                                        "1/2/8101,",
                                        "1/2/8102,x,8103"};
    int fds[sizeof names / sizeof names[0]];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fds[i] = socket_named("tributary-cores/%s", names[i]);
    }
    assert_true(is_taken(8, NULL, 8101) && is_taken(8, NULL, 8102));
    assert_false(is_taken(8, NULL, 8100) || is_taken(8, NULL, 8103));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        close(fds[i]);
    }
}

/* A reactor looks at its input between two pieces of a long list. A claim is found among the other names, wherever a
 * piece ends. */
static void a_long_list_is_read_in_pieces(void **state)
{
    (void)state;
    enum { OTHERS = 600, EVERY = 20, NAME = 80, LAST = 8190 };
    static int fds[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        fds[i] = i % EVERY == 0 ? socket_named("tributary-cores/1/2/%d", LAST - i / EVERY)
                                : socket_named("tributary-test/%d/%0*d", (int)getpid(), NAME, i);
    }
    trib_place_cpus taken;
    trib_core_claims_reading reading;
    size_t pieces = 0;
    trib_core_claims_begin(&reading, 8, NULL, &taken);
    while (trib_core_claims_read_more(&reading)) {
        pieces++;
    }
    assert_true(pieces >= OTHERS * NAME / sizeof reading.text);
    for (int i = 0; i < OTHERS; i += EVERY) {
        assert_true(trib_place_cpus_have(&taken, LAST - i / EVERY));
    }
    assert_false(trib_core_claims_read_more(&reading));
    trib_core_claims_begin(&reading, 8, NULL, &taken);
    assert_true(trib_core_claims_read_more(&reading));
    trib_core_claims_end(&reading);
    assert_false(trib_core_claims_read_more(&reading));
    for (int i = 0; i < OTHERS; i++) {
        close(fds[i]);
    }
}

/* All members of a job compute the same number. Two jobs of one process have two numbers. */
static void jobs_have_numbers(void **state)
{
    (void)state;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.coordinator = "10.0.0.1:7077";
    const uint32_t alone = trib_core_claims_job(&config);
    config.worker_count = 2;
    const uint32_t job = trib_core_claims_job(&config);
    config.rank = 1;
    assert_int_equal(trib_core_claims_job(&config), job);
    assert_int_not_equal(alone, job);
    config.coordinator = "10.0.0.1:7078";
    assert_int_not_equal(trib_core_claims_job(&config), job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpus_of_other_jobs_are_left_alone),
        cmocka_unit_test(where_all_are_taken_it_is_as_if_none_were),
        cmocka_unit_test(processes_of_a_job_stay_apart),
        cmocka_unit_test(others_read_what_one_says),
        cmocka_unit_test(nonsense_is_passed_over),
        cmocka_unit_test(a_long_list_is_read_in_pieces),
        cmocka_unit_test(jobs_have_numbers),
    };
    return cmocka_run_group_tests_name("core claims", tests, load, unload);
}
