/* join_mutants.h - the bugs of test_mutants.c that show where workers join and operations are given up. */
#ifndef TRIB_TESTS_SIM_JOIN_MUTANTS_H
#define TRIB_TESTS_SIM_JOIN_MUTANTS_H

#include "tests/sim/torture.h"

#define SEEDS_OF_JOINS 5000u /* from which those that join and give up are taken */

#define JOIN_BUG_LIST(X)                                                                                               \
    X(BUG_GIVEN_UP_UNTOLD, 3416, "members that sum do not hear of rounds that were given up before a join")

static bool joins_and_gives_up(const torture_plan *plan)
{
    return plan->lap > 0 && plan->cancels + plan->hurried > 0 && plan->job.per_machine > 0;
}

#endif
