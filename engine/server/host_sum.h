/*
 * host_sum.h - the sums of the machines' partial sums: where the workers of a machine sum first (relay.h), the contributors are the
 * machines, and a machine is spoken for by the partition's relay on it.
 */
#ifndef TRIB_ENGINE_HOST_SUM_H
#define TRIB_ENGINE_HOST_SUM_H

#include "engine/core/core.h"

/* On members that sum, when machines sum first. */
TRIB_CHECKED trib_status trib_host_sum_open(trib_core *core);
void trib_host_sum_close(trib_core *core);
/* A frame that carries TRIB_COLLECTIVE_PARTIAL: may its sender speak for its machine, to this member? */
TRIB_CHECKED trib_status trib_host_sum_check(const trib_link *link, const trib_frame *frame, trib_error *error);
void trib_host_sum_tick(trib_core *core);
bool trib_host_sum_owes(const trib_core *core); /* see trib_summation_owes */
/* A relay says whom of its machine everybody waits for. */
void trib_host_sum_take_stall(trib_core *core, const trib_contribution *what, const trib_frame *report);

#endif
