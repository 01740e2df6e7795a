/*
 * test_device_continue.c - members die in a job whose tensors are in the memory of devices, and whose operations go on
 * with those that are left (TRIB_SURVIVE=continue): as in test_continue.c, while devices copy, and streams come late.
 */
#include <stdio.h>

#include "tests/sim/go_on.h"

static void worker_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 24; kind++) {
        const go_on_setting what = {.workers = 2 + kind / 4 % 4,
                                    .servers = kind / 16,
                                    .deaths = 1,
                                    .colocated = true,
                                    .on_devices = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind / 4 % 2};
        go_on_sweep(&what, 6);
    }
}

static void worker_of_two_on_a_machine_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const go_on_setting what = {.workers = 4 + kind / 4,
                                    .deaths = 1,
                                    .colocated = true,
                                    .on_devices = true,
                                    .shares = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 6);
    }
}

static void two_workers_die(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const go_on_setting what = {.workers = 5,
                                    .deaths = 2,
                                    .first_dies = kind / 2,
                                    .colocated = true,
                                    .on_devices = true,
                                    .gives_up = (kind & 2) != 0,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 12);
    }
}

static void coordinator_beside_servers_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const go_on_setting what = {.workers = 3,
                                    .servers = 1 + kind / 2,
                                    .deaths = 1,
                                    .first_dies = 1,
                                    .on_devices = true,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 12);
    }
}

static void worker_joins(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const go_on_setting what = {.workers = 4 + kind % 2,
                                    .deaths = kind / 4,
                                    .joins = true,
                                    .colocated = true,
                                    .on_devices = true,
                                    .in_place = (kind & 1) != 0,
                                    .reactors = 1 + kind % 2};
        go_on_sweep(&what, 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_dies),     cmocka_unit_test(worker_of_two_on_a_machine_dies),
        cmocka_unit_test(two_workers_die), cmocka_unit_test(coordinator_beside_servers_dies),
        cmocka_unit_test(worker_joins),
    };
    return cmocka_run_group_tests_name("operations on devices go on", tests, NULL, NULL);
}
