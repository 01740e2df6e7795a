/* test_place.c - placement: near the device, never two processes on one core, and no pinning where that would hurt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "numa/place.h"

static trib_topo *load(const char *name)
{
    const char *directory = getenv("TRIB_TEST_DATA");
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", directory != NULL ? directory : "tests/unit/data", name);
    trib_topo *topo = NULL;
    trib_error error = {.text = ""};
    if (trib_topo_load(path, &topo, &error) != TRIB_OK) {
        fail_msg("%s: %s", path, error.text);
    }
    return topo;
}

static int load_big(void **state)
{
    *state = load("machine_2s_8gpu_4nic.xml");
    return 0;
}

static int load_odd(void **state)
{
    *state = load("machine_4n_odd.xml");
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
    trib_error error = {.text = ""};
    if (trib_place_make(topo, request, &plan, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return plan;
}

static trib_place_request defaults(void)
{
    trib_place_request request;
    trib_place_request_init(&request);
    return request;
}

static void test_default_count(void **state)
{
    static const struct {
        uint32_t processes, reactors;
    } cases[] = {{1, 4}, {2, 4}, {3, 2}, {4, 2}, {5, 1}, {8, 1}, {16, 1}, {17, 1}, {1000, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        trib_place_request request = defaults();
        request.local_count = cases[i].processes;
        assert_int_equal(make(*state, &request).reactor_count, cases[i].reactors);
    }
}

/* Half of the sixteen cores, divided among the processes, and among them all the addresses. */
static void test_default_count_by_addresses(void **state)
{
    static const struct {
        uint32_t processes, addresses, reactors;
    } cases[] = {
        {1, 2, 4},  {1, 3, 3},  {1, 8, 8},  {1, 16, 16},                /* one has them all */
        {2, 2, 4},  {2, 3, 3},  {2, 8, 4},  {2, 16, 8},                 /* a half of them each, or all three */
        {3, 2, 2},  {3, 3, 2},  {4, 8, 2},  {8, 8, 1},     {16, 16, 1}, /* each address has equally many */
        {5, 2, 1},  {5, 3, 1},  {8, 3, 1},  {3, 4, 2},                  /* not even within half of the cores */
        {3, 8, 3},  {5, 8, 2},                                          /* even would be more than there are cores */
        {16, 2, 1}, {17, 2, 1}, {17, 3, 1}, {1000, 16, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("case %zu\n", i);
        trib_place_request request = defaults();
        request.local_count = cases[i].processes;
        request.addresses = cases[i].addresses;
        const trib_place_plan plan = make(*state, &request);
        assert_int_equal(plan.reactor_count, cases[i].reactors);
        assert_int_equal(plan.crowded, cases[i].processes > 16);
    }
}

/* Four of the machine's cores belong to this process, but the addresses are shared by all four processes. */
static void test_default_count_of_the_bound(void **state)
{
    trib_topo topo = *(const trib_topo *)*state;
    topo.cores += 8;
    topo.core_count = 4;
    trib_place_request request = defaults();
    request.local_count = 4;
    request.local_index = 3;
    request.addresses = 8;
    const trib_place_plan plan = make(&topo, &request);
    assert_int_equal(plan.reactor_count, 2);
    assert_int_equal(plan.reactors[0].address, 6);
    assert_int_equal(plan.reactors[1].address, 7);
}

/* Each of eight processes has its GPU: its reactors are on that node, no core is used twice, the NIC is the near one.
 */
static void test_process_per_gpu(void **state)
{
    const trib_topo *topo = *state;
    bool used[16] = {false};
    for (uint32_t i = 0; i < 8; i++) {
        trib_place_request request = defaults();
        request.local_count = 8;
        request.local_index = i;
        request.gpu = (int32_t)i;
        request.reactors = 1;
        request.addresses = 4;
        for (uint32_t n = 0; n < 4; n++) {
            request.nics[n] = topo->nics[n].name;
        }
        trib_place_plan plan = make(topo, &request);
        assert_int_equal(plan.reactor_count, 1);
        assert_int_equal(plan.reactors[0].address, i / 2);
        assert_int_equal(plan.reactors[0].node, i / 4);
        assert_int_equal(plan.arena_node, i / 4);
        assert_int_equal(plan.reactors[0].nic, i / 2);
        assert_int_equal(plan.gpu, i);
        assert_in_range(plan.reactors[0].cpu, 0, 15);
        assert_false(used[plan.reactors[0].cpu]);
        used[plan.reactors[0].cpu] = true;
    }
}

/* Whatever GPU each takes and however many loops: distinct cores, on this machine and on the odd one. */
static void test_always_distinct(void **state)
{
    const trib_topo *topo = *state;
    for (uint32_t processes = 1; processes <= topo->core_count; processes++) {
        for (uint32_t reactors = 1; reactors * processes <= topo->core_count; reactors++) {
            uint32_t used[64] = {0};
            uint32_t pinned = 0;
            for (uint32_t i = 0; i < processes; i++) {
                trib_place_request request = defaults();
                request.local_count = processes;
                request.local_index = i;
                request.reactors = reactors;
                request.gpu = topo->gpu_count > 0 ? (int32_t)((i * 5 + 2) % topo->gpu_count) : -1;
                trib_place_plan plan = make(topo, &request);
                assert_false(plan.crowded);
                for (uint32_t r = 0; r < reactors; r++) {
                    assert_in_range(plan.reactors[r].cpu, 0, 63);
                    assert_int_equal(used[plan.reactors[r].cpu]++, 0);
                    pinned++;
                }
            }
            assert_int_equal(pinned, processes * reactors);
        }
    }
}

static void test_nic_decides(void **state)
{
    trib_place_request request = defaults();
    request.reactors = 2;
    request.nics[0] = "mlx5_3";
    trib_place_plan plan = make(*state, &request);
    assert_int_equal(plan.reactors[0].nic, 3);
    assert_int_equal(plan.reactors[1].nic, 3);
    assert_int_equal(plan.reactors[0].cpu, 8);
    assert_int_equal(plan.reactors[1].cpu, 9);
    assert_int_equal(plan.arena_node, 1);
    request.nics[0] = "veth0"; /* hwloc does not know the name, which is no error */
    plan = make(*state, &request);
    assert_int_equal(plan.reactors[0].nic, -1);
    assert_int_equal(plan.reactors[0].node, 0);
    request.nics[0] = "mlx5_0"; /* named, so taken, but the GPU's node wins */
    request.gpu = 7;
    plan = make(*state, &request);
    assert_int_equal(plan.reactors[0].nic, 0);
    assert_int_equal(plan.reactors[0].node, 1);
}

typedef struct rails_case {
    const char *nics[4]; /* of the addresses */
    uint32_t reactors;
    int32_t gpu; /* 0: no GPU, else its index + 1 */
    uint32_t process;
    uint32_t addresses[6]; /* by reactor, as they should be dealt */
    int32_t nodes[6];      /* where the reactors should run */
} rails_case;

static void assert_dealt(const trib_topo *topo, trib_place_request request, const rails_case *wanted)
{
    request.addresses = 0;
    while (request.addresses < 4 && wanted->nics[request.addresses] != NULL) {
        request.nics[request.addresses] = wanted->nics[request.addresses];
        request.addresses++;
    }
    request.reactors = wanted->reactors;
    request.gpu = wanted->gpu - 1;
    request.local_index = wanted->process;
    request.local_count = wanted->process > 0 ? 2 : 1;
    trib_place_plan plan = make(topo, &request);
    for (uint32_t i = 0; i < wanted->reactors; i++) {
        assert_int_equal(plan.reactors[i].address, wanted->addresses[i]);
        assert_int_equal(plan.reactors[i].node, wanted->nodes[i]);
        assert_int_equal(plan.reactors[i].nic, trib_topo_nic_find(topo, request.nics[plan.reactors[i].address]));
    }
}

/* Two NICs on each socket. Reactors go where their addresses' NICs are; where a GPU decides where they go, they
 * choose. */
static void test_rails(void **state)
{
    static const rails_case cases[] = {
        {{"ib0", "ib2"}, 4, 0, 0, {0, 1, 0, 1}, {0, 1, 0, 1}},
        {{"ib2", "ib0"}, 4, 0, 0, {0, 1, 0, 1}, {1, 0, 1, 0}},
        {{"ib0", "mlx5_1"}, 3, 0, 0, {0, 1, 0}, {0, 0, 0}},
        {{"ib0", "ib1", "ib2", "ib3"}, 6, 0, 0, {0, 1, 2, 3, 0, 1}, {0, 0, 1, 1, 0, 0}},
        {{"ib0", "ib1", "ib2", "ib3"}, 1, 0, 0, {0}, {0}},
        /* The second process continues the turns of the first. */
        {{"ib0", "ib2"}, 1, 0, 1, {1}, {1}},
        {{"ib0", "ib2", "ib3"}, 2, 0, 1, {2, 0}, {1, 0}},
        /* The GPU's own NIC first, then those of its node. Each NIC is used equally often. */
        {{"ib0", "ib1", "ib2", "ib3"}, 1, 8, 0, {3}, {1}},
        {{"ib0", "ib1", "ib2", "ib3"}, 1, 3, 1, {1}, {0}},
        {{"ib0", "ib1", "ib2", "ib3"}, 4, 8, 0, {3, 2, 0, 1}, {1, 1, 1, 1}},
        {{"ib0", "ib3"}, 4, 8, 0, {1, 1, 0, 0}, {1, 1, 1, 1}},
        {{"ib0", "ib3"}, 5, 8, 0, {1, 1, 1, 0, 0}, {1, 1, 1, 1, 1}},
        {{"ib0", "veth0", "ib2"}, 3, 8, 0, {2, 1, 0}, {1, 1, 1}},
        /* A NIC that hwloc does not know is equally near to all. */
        {{"veth0", "veth1"}, 4, 0, 0, {0, 1, 0, 1}, {0, 0, 0, 0}},
        {{"veth0", "ib2"}, 4, 0, 0, {0, 1, 0, 1}, {0, 1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        print_message("case %zu\n", i);
        assert_dealt(*state, defaults(), &cases[i]);
    }
}

/* Without pins all NICs are equally near. A process that its launcher has bound to one socket takes the NICs of that
 * socket. */
static void test_rails_without_pins(void **state)
{
    trib_place_request request = defaults();
    request.pin = false;
    assert_dealt(*state, request, &(rails_case){{"ib2", "ib0"}, 4, 0, 0, {0, 1, 0, 1}, {-1, -1, -1, -1}});
    assert_dealt(*state, request, &(rails_case){{"ib0", "ib2"}, 1, 8, 0, {0}, {-1}});
    assert_dealt(*state, request, &(rails_case){{"ib0", "ib3"}, 1, 8, 0, {1}, {-1}}); /* the GPU's */
    trib_topo topo = *(const trib_topo *)*state;
    topo.cores += 8;
    topo.core_count = 4;
    assert_dealt(&topo, defaults(), &(rails_case){{"ib0", "ib2"}, 2, 0, 0, {1, 0}, {1, 1}});
    assert_dealt(&topo, defaults(), &(rails_case){{"ib0", "ib1", "ib2", "ib3"}, 1, 0, 0, {2}, {1}});
}

/* Nothing is known: all is in turns. */
static void test_rails_in_turns(void **state)
{
    trib_place_request request = defaults();
    request.gpu = 2;
    request.addresses = 3;
    trib_place_plan plan = make(*state, &request);
    assert_int_equal(plan.reactor_count, 3);
    for (uint32_t i = 0; i < plan.reactor_count; i++) {
        assert_int_equal(plan.reactors[i].address, i);
        assert_int_equal(plan.reactors[i].nic, -1);
    }
    trib_error error = {.text = ""};
    request.addresses = TRIB_PLACE_NICS_MAX;
    assert_int_equal(trib_place_make(*state, &request, &plan, &error), TRIB_OK);
    request.addresses = TRIB_PLACE_NICS_MAX + 1;
    assert_int_equal(trib_place_make(*state, &request, &plan, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "17 addresses"));
    request.addresses = 0;
    assert_int_equal(trib_place_make(*state, &request, &plan, &error), TRIB_INVALID);
}

/* More loops than the node has cores: they spill over; memory stays where most of them are. */
static void test_spill(void **state)
{
    trib_place_request request = defaults();
    request.reactors = 10;
    request.gpu = 5;
    trib_place_plan plan = make(*state, &request);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(plan.reactors[i].node, i < 8 ? 1 : 0);
    }
    assert_int_equal(plan.arena_node, 1);
}

static void test_spread_without_device(void **state)
{
    for (uint32_t i = 0; i < 2; i++) {
        trib_place_request request = defaults();
        request.local_count = 2;
        request.local_index = i;
        trib_place_plan plan = make(*state, &request);
        assert_int_equal(plan.reactor_count, 4);
        for (uint32_t r = 0; r < 4; r++) {
            assert_int_equal(plan.reactors[r].node, i);
        }
    }
}

static void test_crowded(void **state)
{
    trib_place_request request = defaults();
    request.local_count = 4;
    request.local_index = 1;
    request.reactors = 4;
    request.busy_poll = true;
    trib_place_plan plan = make(*state, &request);
    assert_false(plan.crowded);
    assert_false(plan.roomy);
    assert_true(plan.reactors[3].cpu >= 0);
    assert_false(plan.busy_poll); /* every core would spin */
    request.reactors = 5;
    plan = make(*state, &request);
    assert_true(plan.crowded);
    assert_false(plan.busy_poll);
    assert_int_equal(plan.arena_node, -1);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(plan.reactors[i].cpu, -1);
    }
    request.reactors = 3;
    plan = make(*state, &request);
    assert_true(plan.busy_poll);
    assert_true(plan.roomy);
    request.local_index = 0;
    request.local_count = 1;
    request.reactors = 16;
    assert_true(make(*state, &request).roomy); /* no other process is there */
    request.reactors = 17;
    assert_false(make(*state, &request).roomy);
}

/* When the other processes are known, their real number of reactors counts: there are 16 cores. */
static void test_others_are_known(void **state)
{
    trib_place_request request = defaults();
    request.local_count = 2;
    request.reactors = 4;
    request.busy_poll = true;
    assert_true(make(*state, &request).busy_poll);
    request.reactors_in_all = 16;
    trib_place_plan plan = make(*state, &request);
    assert_false(plan.busy_poll);
    assert_false(plan.crowded);
    assert_true(plan.reactors[3].cpu >= 0);
    request.reactors_in_all = 17;
    plan = make(*state, &request);
    assert_true(plan.crowded);
    assert_int_equal(plan.sharing, 17);
    assert_int_equal(plan.reactors[3].cpu, -1);
}

static void test_no_pin(void **state)
{
    trib_place_request request = defaults();
    request.pin = false;
    trib_place_plan plan = make(*state, &request);
    assert_int_equal(plan.reactor_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(plan.reactors[i].cpu, -1);
    }
    assert_false(plan.crowded);
}

/* A launcher gave this process four cores of one node of a machine of sixteen. */
static void test_bound_by_launcher(void **state)
{
    trib_topo topo = *(const trib_topo *)*state;
    topo.cores += 8;
    topo.core_count = 4;
    trib_place_request request = defaults();
    request.local_count = 4; /* four times four fit: this part is the process's own */
    request.local_index = 3;
    trib_place_plan plan = make(&topo, &request);
    assert_true(plan.bound);
    assert_false(plan.crowded);
    assert_int_equal(plan.reactor_count, 2);
    assert_int_equal(plan.reactors[0].cpu, -1);
    assert_int_equal(plan.reactors[0].node, 1);
    assert_int_equal(plan.arena_node, 1);
    request.reactors_in_all = 16; /* elsewhere */
    assert_false(make(&topo, &request).crowded);
    request.reactors_in_all = 0;
    request.local_count = 5; /* they do not: they are shared */
    plan = make(&topo, &request);
    assert_int_equal(plan.reactor_count, 1);
    assert_true(plan.crowded);
    assert_int_equal(plan.reactors[0].cpu, -1);
}

static void test_refused(void **state)
{
    const trib_topo *topo = *state;
    trib_place_plan plan;
    trib_error error = {.text = ""};
    trib_place_request request = defaults();
    request.reactors = TRIB_PLACE_REACTORS_MAX;
    assert_int_equal(trib_place_make(topo, &request, &plan, NULL), TRIB_OK);
    request.reactors = TRIB_PLACE_REACTORS_MAX + 1;
    assert_int_equal(trib_place_make(topo, &request, &plan, NULL), TRIB_INVALID);
    assert_int_equal(trib_place_make(topo, &request, &plan, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "65"));
    request = defaults();
    request.local_index = 1;
    assert_int_equal(trib_place_make(topo, &request, &plan, &error), TRIB_INVALID);
    request = defaults();
    request.local_count = 0;
    assert_int_equal(trib_place_make(topo, &request, &plan, &error), TRIB_INVALID);
    request = defaults();
    request.gpu = (int32_t)topo->gpu_count;
    assert_int_equal(trib_place_make(topo, &request, &plan, &error), TRIB_INVALID);
    request.gpu = -2;
    assert_int_equal(trib_place_make(topo, &request, &plan, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "GPU -2"));
}

/* The text is balanced JSON with all entries, whatever the names contain. */
static void test_print(void **state)
{
    trib_topo *topo = *state;
    char name[TRIB_TOPO_NAME_SIZE];
    memcpy(name, topo->nics[0].name, sizeof(name));
    memcpy(topo->nics[0].name, "a\"b\\c\n\x80", 8);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    trib_topo_print(topo, out);
    trib_place_request request = defaults();
    request.gpu = topo->gpu_count > 0 ? 0 : -1;
    request.nics[0] = "ib2";
    request.nics[1] = "ib1";
    request.addresses = 2;
    trib_place_plan plan = make(topo, &request);
    trib_place_print(&plan, topo, out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "\"a?b?c??\""));
    assert_non_null(strstr(text, "{\"pci\": \"0000:13:00.0\", \"model\": \"GH100 [H100 SXM5 80GB]\", \"node\": 0, "));
    assert_non_null(strstr(text, "\"arena_node\": 0"));
    assert_non_null(strstr(text, "{\"cpu\": 0, \"node\": 0, \"address\": 1, \"nic\": \"ib1\"}"));
    int depth = 0;
    size_t quotes = 0;
    for (const char *at = text; *at != '\0'; at++) {
        bool outside = quotes % 2 == 0;
        depth += outside && (*at == '{' || *at == '[');
        depth -= outside && (*at == '}' || *at == ']');
        quotes += *at == '"';
        assert_true(depth >= 0);
    }
    assert_int_equal(depth, 0);
    assert_int_equal(quotes % 2, 0);
    free(text);
    memcpy(topo->nics[0].name, name, sizeof(name));
}

int main(void)
{
    const struct CMUnitTest big[] = {
        cmocka_unit_test(test_default_count),
        cmocka_unit_test(test_default_count_by_addresses),
        cmocka_unit_test(test_default_count_of_the_bound),
        cmocka_unit_test(test_process_per_gpu),
        cmocka_unit_test(test_always_distinct),
        cmocka_unit_test(test_nic_decides),
        cmocka_unit_test(test_rails),
        cmocka_unit_test(test_rails_without_pins),
        cmocka_unit_test(test_rails_in_turns),
        cmocka_unit_test(test_spill),
        cmocka_unit_test(test_spread_without_device),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_others_are_known),
        cmocka_unit_test(test_no_pin),
        cmocka_unit_test(test_bound_by_launcher),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_print),
    };
    const struct CMUnitTest odd[] = {
        cmocka_unit_test(test_always_distinct),
        cmocka_unit_test(test_refused),
    };
    int failed = cmocka_run_group_tests(big, load_big, unload);
    return failed + cmocka_run_group_tests(odd, load_odd, unload);
}
