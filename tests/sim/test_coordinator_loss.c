/*
 * test_coordinator_loss.c - members die, stand still and are cut off at random, the coordinator's process among them,
 * in a job that goes on without them, and others join (storm.h).
 *
 *     test_coordinator_loss                  seeds 1 to 300, with a sanitizer to 100
 *     test_coordinator_loss FIRST LAST       runs those seeds
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/storm.h"
#include "tests/sim/worker_loss.h"
#include "tests/support/sanitized.h"

static uint64_t first_seed = 1, last_seed = 300 / SWEEP_STRIDE;

static void storms(void **state)
{
    (void)state;
    uint64_t going = 0;
    for (uint64_t seed = first_seed; seed <= last_seed; seed++) {
        going += storm_seed(&(storm_run){.seed = seed, .tells = first_seed == last_seed});
    }
    printf("%llu of %llu jobs went on\n", (unsigned long long)going, (unsigned long long)(last_seed - first_seed + 1));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms)};
    if (argc == 3) {
        first_seed = strtoull(argv[1], NULL, 10);
        last_seed = strtoull(argv[2], NULL, 10);
    }
    return cmocka_run_group_tests_name("coordinator loss", tests, NULL, NULL);
}
