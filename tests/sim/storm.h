/*
 * storm.h - jobs that go on without members (TRIB_SURVIVE=workers), and whose members die, stand still and are cut off
 * at random, the coordinator's process among them, while others join. Each seed draws a job and its faults.
 */
#ifndef TRIB_TESTS_SIM_STORM_H
#define TRIB_TESTS_SIM_STORM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct storm_run {
    uint64_t seed;
    bool tells; /* prints the faults, and how the workers end */
} storm_run;

/* Fails the test if something is wrong. Returns true if somebody goes on. */
bool storm_seed(const storm_run *how);

#endif
