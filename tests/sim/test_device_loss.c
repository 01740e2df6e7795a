/*
 * test_device_loss.c - members die in a job whose tensors are in the memory of devices, and which goes on without them
 * (TRIB_SURVIVE=workers): as in test_worker_loss.c, while devices copy, and streams come late.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/worker_loss.h"

static void colocated_worker_dies(void **state)
{
    (void)state;
    for (uint32_t workers = 2; workers <= WORKERS_MAX; workers++) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            const setting what = {.workers = workers,
                                  .deaths = 1,
                                  .colocated = true,
                                  .on_devices = true,
                                  .in_place = (kind & 1) != 0,
                                  .mixes = (kind & 2) != 0,
                                  .reactors = 1 + workers % 2};
            worker_loss_sweep(&what, 12);
        }
    }
}

/* Workers of a machine sum first, in host memory, where every machine has as many. */
static void worker_of_two_on_a_machine_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 3 + kind % 2,
                              .servers = kind / 4,
                              .deaths = 1,
                              .colocated = true,
                              .on_devices = true,
                              .shares = true,
                              .in_place = (kind & 2) != 0,
                              .mixes = (kind & 1) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 12);
    }
}

/* The last server is one that recovery replaces, or none is left. */
static void server_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 16; kind++) {
        const setting what = {.workers = 3,
                              .servers = 1 + kind / 8,
                              .deaths = 1,
                              .server_dies = (kind & 4) == 0,
                              .colocated = (kind & 3) == 3,
                              .on_devices = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 12);
    }
}

static void coordinator_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const uint32_t deaths = 1 + kind % 2;
        const setting what = {.workers = deaths == 1 ? 3 : 5,
                              .servers = kind / 4,
                              .deaths = deaths,
                              .first_dies = 1 + (kind % 4 == 3),
                              .colocated = true,
                              .on_devices = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 12);
    }
}

static void worker_joins(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 2 + (kind & 1) * 2,
                              .servers = kind / 4,
                              .joins = 1,
                              .boundaries = 1,
                              .colocated = true,
                              .on_devices = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        const int64_t none[DEATHS_MAX] = {0};
        (void)worker_loss_run(&what, none, kind + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_worker_dies), cmocka_unit_test(worker_of_two_on_a_machine_dies),
        cmocka_unit_test(server_dies),           cmocka_unit_test(coordinator_dies),
        cmocka_unit_test(worker_joins),
    };
    return cmocka_run_group_tests_name("devices and lost members", tests, NULL, NULL);
}
