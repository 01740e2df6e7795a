/* test_topo.c - the topology of machines described by files, of this machine, and of one that hwloc cannot see. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "numa/pin.h"
#include "numa/topo.h"
#include "numa/topo_fallback.h"

/* Directory of the machines' files; tests run from the project's root. */
static const char *data_path(const char *name, char path[512])
{
    const char *directory = getenv("TRIB_TEST_DATA");
    (void)snprintf(path, 512, "%s/%s", directory != NULL ? directory : "tests/unit/data", name);
    return path;
}

static trib_topo *load(const char *name)
{
    char path[512];
    trib_topo *topo = NULL;
    trib_error error = {.text = ""};
    if (trib_topo_load(data_path(name, path), &topo, &error) != TRIB_OK) {
        fail_msg("%s: %s", path, error.text);
    }
    return topo;
}

static void test_two_sockets(void **state)
{
    (void)state;
    trib_topo *topo = load("machine_2s_8gpu_4nic.xml");
    assert_false(topo->fallback);
    assert_int_equal(topo->node_count, 2);
    assert_int_equal(topo->nodes[1].os_index, 1);
    assert_int_equal(topo->nodes[1].package, 1);
    assert_int_equal(topo->nodes[1].core_count, 8);
    assert_int_equal(topo->nodes[1].memory_bytes, UINT64_C(1) << 39);
    /* Sixteen cores with two hardware threads each: the first of the two counts. */
    assert_int_equal(topo->core_count, 16);
    assert_int_equal(topo->machine_core_count, 16);
    for (int32_t i = 0; i < 16; i++) {
        const trib_topo_core *core = &topo->cores[i];
        assert_int_equal(core->cpu, i);
        assert_int_equal(core->node, i / 8);
        assert_int_equal(core->package, i / 8);
        assert_int_equal(core->l2, i);
        assert_int_equal(core->l2_bytes, 1 << 20);
        assert_int_equal(core->l3, i / 8);
        assert_int_equal(core->l3_bytes, 32 << 20);
    }
    trib_topo_free(topo);
}

static void test_devices(void **state)
{
    (void)state;
    trib_topo *topo = load("machine_2s_8gpu_4nic.xml");
    assert_int_equal(topo->nic_count, 4);
    for (int32_t i = 0; i < 4; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "ib%d", i);
        assert_string_equal(topo->nics[i].name, name);
        assert_int_equal(trib_topo_nic_find(topo, name), i);
        (void)snprintf(name, sizeof(name), "mlx5_%d", i);
        assert_string_equal(topo->nics[i].rdma_device, name);
        assert_int_equal(trib_topo_nic_find(topo, name), i);
        assert_int_equal(topo->nics[i].node, i / 2);
    }
    assert_int_equal(trib_topo_nic_find(topo, ""), -1);
    assert_int_equal(topo->gpu_count, 8);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(topo->gpus[i].node, i / 4);
        assert_int_equal(topo->gpus[i].nic, i / 2); /* the one behind the same switch */
        assert_int_equal(trib_topo_gpu_find(topo, topo->gpus[i].pci), i);
    }
    assert_string_equal(topo->gpus[0].pci, "0000:13:00.0");
    assert_int_equal(trib_topo_gpu_find(topo, "00000000:53:00.0"), 4);
    assert_int_equal(trib_topo_gpu_find(topo, "53:00.0"), 4);
    assert_int_equal(trib_topo_gpu_find(topo, "0001:53:00.0"), -1);
    assert_int_equal(trib_topo_gpu_find(topo, "3:00.0"), -1);
    assert_int_equal(trib_topo_gpu_find(topo, ""), -1);
    assert_int_equal(trib_topo_nic_find(topo, "ib4"), -1);
    trib_topo_free(topo);
}

/* Nodes out of order, one with memory only; a console that is no GPU, a disk that is no NIC, a NIC near no node. */
static void test_odd_machine(void **state)
{
    (void)state;
    static const int32_t cpus[8] = {2, 3, 6, 7, 0, 1, 4, 5};
    static const int32_t numbers[5] = {0, 1, 2, 3, 5};
    trib_topo *topo = load("machine_4n_odd.xml");
    assert_int_equal(topo->node_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(topo->nodes[i].os_index, numbers[i]);
        assert_int_equal(topo->nodes[i].core_count, i < 4 ? 2 : 0);
        assert_int_equal(topo->nodes[i].package, i < 4 ? 0 : -1);
    }
    assert_int_equal(topo->core_count, 8);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(topo->cores[i].cpu, cpus[i]);
        assert_int_equal(topo->cores[i].node, i / 2);
        assert_int_equal(topo->cores[i].l3, -1);
    }
    assert_int_equal(topo->gpu_count, 0);
    assert_int_equal(topo->nic_count, 1);
    assert_string_equal(topo->nics[0].name, "ens1f0");
    assert_string_equal(topo->nics[0].rdma_device, "");
    assert_int_equal(topo->nics[0].node, -1);
    trib_topo_free(topo);
}

static void test_bad_files(void **state)
{
    (void)state;
    trib_topo *topo = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_topo_load("/nowhere/machine.xml", &topo, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "/nowhere/machine.xml"));
    assert_int_equal(trib_topo_load("/nowhere/machine.xml", &topo, NULL), TRIB_INVALID);
    char path[] = "/tmp/tributary-topo-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "<topology", 9), 9);
    (void)close(file);
    assert_int_equal(trib_topo_load(path, &topo, &error), TRIB_INVALID);
    assert_int_equal(error.status, TRIB_INVALID);
    assert_null(topo);
    (void)unlink(path);
}

static void check_this_machine(const trib_topo *topo)
{
    assert_true(topo->core_count >= 1);
    assert_true(topo->machine_core_count >= topo->core_count);
    assert_true(topo->node_count >= 1);
    uint32_t cores = 0;
    for (uint32_t i = 0; i < topo->node_count; i++) {
        cores += topo->nodes[i].core_count;
    }
    assert_int_equal(cores, topo->core_count);
    for (uint32_t i = 0; i < topo->core_count; i++) {
        assert_true(topo->cores[i].cpu >= 0);
        assert_in_range(topo->cores[i].node, 0, topo->node_count - 1);
    }
}

static void test_this_machine(void **state)
{
    (void)state;
    trib_topo *topo = NULL;
    assert_int_equal(trib_topo_load(NULL, &topo, NULL), TRIB_OK);
    check_this_machine(topo);
    /* Every listed CPU can be used. When the process is bound to one CPU, only that one is listed. */
    int32_t cpu = topo->cores[topo->core_count - 1].cpu;
    uint32_t machine_cores = topo->machine_core_count;
    trib_topo_free(topo);
    trib_place_cpus alone = {.bits = {0}};
    trib_place_cpus_add(&alone, cpu);
    assert_int_equal(trib_pin_among(gettid(), &alone), TRIB_OK);
    assert_int_equal(sched_getcpu(), cpu);
    assert_int_equal(trib_topo_load(NULL, &topo, NULL), TRIB_OK);
    check_this_machine(topo);
    assert_int_equal(topo->core_count, 1);
    assert_int_equal(topo->cores[0].cpu, cpu);
    assert_int_equal(topo->machine_core_count, topo->fallback ? 1 : machine_cores);
    trib_topo_free(topo);
}

static void test_fallback(void **state)
{
    (void)state;
    trib_topo *topo = calloc(1, sizeof(*topo));
    assert_non_null(topo);
    assert_int_equal(trib_topo_fallback(topo), TRIB_OK);
    check_this_machine(topo);
    assert_true(topo->fallback);
    assert_int_equal(topo->node_count, 1);
    trib_topo_free(topo);
    trib_topo_free(NULL);
}

static void test_pin(void **state)
{
    (void)state;
    trib_place_cpus cpus = {.bits = {0}};
    assert_int_equal(trib_pin_among(0, &cpus), TRIB_INVALID);
    trib_place_cpus_add(&cpus, TRIB_PLACE_CPUS_MAX - 1);
    assert_int_equal(trib_pin_among(0, &cpus), TRIB_SYSTEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_sockets),  cmocka_unit_test(test_devices),  cmocka_unit_test(test_odd_machine),
        cmocka_unit_test(test_bad_files),    cmocka_unit_test(test_fallback), cmocka_unit_test(test_pin),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
