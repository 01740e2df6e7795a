/* quorum_bed.h - conditions that tests of quorums run jobs until; the argument is an array of three exchanges. */
#ifndef TRIB_TESTS_SIM_QUORUM_BED_H
#define TRIB_TESTS_SIM_QUORUM_BED_H

#include "tests/sim/sim_bed.h"

bool quorum_is_any_done(sim_job *job, void *argument);
bool quorum_are_all_done(sim_job *job, void *argument);
/* Servers forget a decision when all of their partitions have come to its round. The argument is not looked at. */
bool quorum_has_no_records(sim_job *job, void *argument);

#endif
