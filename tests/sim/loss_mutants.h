/* loss_mutants.h - the bugs of test_mutants.c that show where a server is lost and the job goes on. */
#ifndef TRIB_TESTS_SIM_LOSS_MUTANTS_H
#define TRIB_TESTS_SIM_LOSS_MUTANTS_H

#include "tests/sim/torture.h"

#define SEEDS_OF_LOSSES 4000u /* of which those with a lost server are run */

#define LOSS_BUG_LIST(X)                                                                                               \
    X(BUG_COPY_FORGOTTEN, 264, "a worker keeps no copy of a sum")                                                      \
    X(BUG_TORN_INPUT, 30, "a sum lands in the input before all of it is there")                                        \
    X(BUG_COPY_OF_ANOTHER_ROUND, 45, "a sum lands in a copy that still counts for the round before")                   \
    X(BUG_GIVER_IGNORED, 264, "a worker pushes its input again where another one gives the sum away")                  \
    X(BUG_ROUNDS_BEFORE_FORGOTTEN, 45, "the next owner does not learn which rounds are over")                          \
    X(BUG_OTHER_SUCCESSOR, 130, "members disagree about a lost server's successor")                                    \
    X(BUG_LATE_WORKER_SILENT, 30, "a worker that is told of a tensor after the loss is not asked for its report")      \
    X(BUG_SUMMED_AGAIN, 264, "the next owner takes no note of copies")                                                 \
    X(BUG_REDUCE_GIVEN, 783, "the sum of a reduce is given to all, as that of an all-reduce is")                       \
    X(BUG_KEEPER_EMPTY, 2113, "a keeper says that it has a sum which it does not keep")                                \
    X(BUG_KEPT_TOO_SOON, 264, "the owner takes a sum for kept when it has left for the keeper")                        \
    X(BUG_LET_GO_AT_ONCE, 8, "a server that asks to go is let go while workers still have to do with it")

static bool loses_server(const torture_plan *plan)
{
    bool loses = false;
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        loses = loses || plan->faults[i].kind == TORTURE_LOSE;
    }
    return loses;
}

#endif
