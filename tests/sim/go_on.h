/*
 * go_on.h - a job whose operations go on with the workers that are left (TRIB_SURVIVE=continue), in which members die
 * at given times. The workers' programs know nothing of it. An operation has the contributions of the workers that its
 * result names, the same on all that are left.
 */
#ifndef TRIB_TESTS_SIM_GO_ON_H
#define TRIB_TESTS_SIM_GO_ON_H

#include "tests/sim/sim_devices.h"

enum { GO_ON_WORKERS_MAX = 5, GO_ON_DEATHS_MAX = 3 };

enum {
    BUG_NONE,
    BUG_OLD_CONTRIBUTORS,
    BUG_INPUT_LOST,
    BUG_DONE_TWICE,
    BUG_OTHER_ORDER,
    BUG_SPENT_FORGOTTEN,
    BUG_ROOT_MOVES,
    BUG_COUNT
};
extern int go_on_planted; /* the bug in this process */
/* The run that is under way, where a process that waits for this one wants to know it; else NULL. */
extern volatile uint64_t *go_on_seed;

typedef struct go_on_setting {
    uint32_t workers, servers, reactors, deaths;
    bool in_place, colocated;
    uint32_t first_dies; /* so many of the deaths hit the first members, the coordinator's process before others */
    bool joins;          /* the last worker joins at the boundary after the first phase */
    bool on_devices;     /* declared tensors are in the memory of devices, whose jobs and streams take time */
    bool shares;         /* two workers share a machine */
    bool gives_up;       /* some operations are cancelled, or have no time */
} go_on_setting;

/* Makes `times` runs, in each of which members die at random times. */
void go_on_sweep(const go_on_setting *what, uint32_t times);

#endif
