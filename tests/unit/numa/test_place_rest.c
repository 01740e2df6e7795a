/* test_place_rest.c - the cores that are left beside reactors, on machines described by files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "numa/place.h"

static trib_topo *load(const char *name)
{
    const char *directory = getenv("TRIB_TEST_DATA");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", directory != NULL ? directory : "tests/unit/data", name);
    trib_topo *topo = NULL;
    trib_error error = {.text = ""};
    if (trib_topo_load(path, &topo, &error) != TRIB_OK) {
        fail_msg("%s: %s", path, error.text);
    }
    return topo;
}

static trib_place_plan make(const trib_topo *topo, uint32_t processes, uint32_t reactors, int32_t gpu, bool pin)
{
    trib_place_request request;
    trib_place_request_init(&request);
    request.local_count = processes;
    request.local_index = processes - 1;
    request.reactors = reactors;
    request.gpu = gpu;
    request.pin = pin;
    trib_place_plan plan;
    assert_int_equal(trib_place_make(topo, &request, &plan, NULL), TRIB_OK);
    return plan;
}

static bool has_reactor(const trib_place_plan *plan, const trib_topo_core *core)
{
    for (uint32_t r = 0; r < plan->reactor_count; r++) {
        if (plan->reactors[r].cpu == core->cpu) {
            return true;
        }
    }
    return false;
}

/* Checks that the rest are the free cores on the GPU's node or, if that has none, all free cores. */
static void check(const trib_topo *topo, const trib_place_plan *plan)
{
    const int32_t node = plan->gpu >= 0 ? topo->gpus[plan->gpu].node : -1;
    trib_place_cpus rest;
    trib_place_rest(topo, plan, &rest);
    bool any_near = false;
    for (uint32_t i = 0; i < topo->core_count; i++) {
        any_near = any_near || (topo->cores[i].node == node && !has_reactor(plan, &topo->cores[i]));
    }
    for (uint32_t i = 0; i < topo->core_count; i++) {
        const trib_topo_core *core = &topo->cores[i];
        const bool wanted = !has_reactor(plan, core) && (!any_near || core->node == node);
        assert_int_equal(trib_place_cpus_have(&rest, core->cpu), wanted);
    }
}

static void beside_reactors(void **state)
{
    (void)state;
    trib_topo *topo = load("machine_2s_8gpu_4nic.xml");
    for (uint32_t reactors = 1; reactors <= 16; reactors++) {
        for (int32_t gpu = -1; gpu < (int32_t)topo->gpu_count; gpu++) {
            const trib_place_plan plan = make(topo, 1, reactors, gpu, true);
            check(topo, &plan);
        }
    }
    const trib_place_plan plan = make(topo, 8, 2, 7, true);
    check(topo, &plan); /* other processes' reactors need not be taken into account */
    trib_topo_free(topo);
}

/* A reactor that is not pinned runs anywhere, so no cores are set aside for other threads. */
static void nothing_where_nothing_is_pinned(void **state)
{
    (void)state;
    trib_topo *topo = load("machine_2s_8gpu_4nic.xml");
    const trib_place_plan plans[] = {make(topo, 1, 2, 3, false), make(topo, 4, 5, 3, true)};
    assert_true(plans[1].crowded);
    for (int i = 0; i < 2; i++) {
        trib_place_cpus rest;
        trib_place_rest(topo, &plans[i], &rest);
        for (int32_t cpu = 0; cpu < TRIB_PLACE_CPUS_MAX; cpu++) {
            assert_false(trib_place_cpus_have(&rest, cpu));
        }
    }
    trib_topo_free(topo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_reactors),
        cmocka_unit_test(nothing_where_nothing_is_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
