/*
 * door_bed.h - the local ranks of a machine hand in what a seed says, in virtual time: they meet at the door (engine/local_group/group_door.h),
 * miss each other there, and break it up. Results must be right, and all must end alike.
 */
#ifndef TRIB_TESTS_SIM_DOOR_BED_H
#define TRIB_TESTS_SIM_DOOR_BED_H

#include "tools/study/job.h"

enum { DOOR_RANKS_MAX = 5, DOOR_STEPS_MAX = 24, DOOR_TENSORS = 6, DOOR_LARGE = 30000 /* elements: several slices */ };

/* What all ranks do in a step; each goes on to the next when its own part is done. */
typedef enum door_kind {
    DOOR_LONE,
    DOOR_BURST, /* each rank in an order and with priorities of its own */
    DOOR_LARGE_ONE,
    DOOR_BROADCAST,
    DOOR_CANCEL, /* one rank cancels */
    DOOR_HURRY,  /* one rank has a deadline */
    DOOR_ODD,    /* one rank wants something else */
    DOOR_KINDS
} door_kind;

typedef enum door_end { DOOR_ENDS_ALL, DOOR_ENDS_LEAVING, DOOR_ENDS_LOST } door_end;

typedef struct door_step {
    door_kind kind;
    uint32_t first, count; /* tensors, round the table */
    uint32_t odd;          /* the rank that does otherwise; broadcast: the root */
    int64_t after_ns;      /* it cancels, or its deadline */
    int64_t late_ns[DOOR_RANKS_MAX];
} door_step;

typedef struct door_plan {
    uint64_t seed;
    uint32_t ranks, step_count;
    door_step steps[DOOR_STEPS_MAX];
    door_end end;
    uint32_t gone; /* the rank that leaves or is lost */
    int64_t gone_ns;
    int64_t device_late_ns; /* a job takes so long on a device, at most; 0: no time */
    int64_t pause_ns;       /* now and then a rank stands still for so long; 0: never */
    bool is_calm;           /* nothing but lone sums, which all ranks hand in at nearly the same time */
    bool is_shut;           /* there is no door */
} door_plan;

typedef struct door_verdict {
    bool held;
    char why[256];
    uint32_t generations; /* of the door: let through, or broken up */
    uint32_t succeeded, failed;
} door_verdict;

void door_draw(uint64_t seed, door_plan *plan);
door_verdict door_run(const door_plan *plan);

#endif
