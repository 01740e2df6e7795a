/*
 * takeover.h - a server begins to sum a partition whose owner is lost.
 *
 * Every worker reports what it has of the partition (engine/worker/worker_orphan.h). When all have, each round that is
 * not over everywhere goes on in one of three ways:
 *
 * - A worker has the round's sum: it sends the sum to the others, as the root of a broadcast that takes the round's
 *   place. So the sum is neither computed nor scaled again.
 * - No worker has the sum, and all contributors have their input, or have not begun the round: they push again.
 * - Otherwise some worker gave the round up, and it is refused to the others.
 *
 * Workers that are through with a round are counted as present in it. RESUME tells every worker how to go on.
 *
 * In a reduce only the root gets the sum, and other workers may finish the round before it. Such a round is refused.
 */
#ifndef TRIB_ENGINE_TAKEOVER_H
#define TRIB_ENGINE_TAKEOVER_H

#include "engine/server/server_sum.h"

/* Takes a REPORT. */
TRIB_CHECKED trib_status trib_takeover_report(trib_link *link, const trib_frame *frame, const void *payload,
                                              trib_error *error);
/* Goes on without the reports of workers that have left. Ends the job if another worker's report is overdue. */
void trib_takeovers_check(trib_core *core);
/* The tensor has ended. */
void trib_takeovers_forget(trib_core *core, uint32_t tensor);
void trib_takeovers_close(trib_core *core);

#endif
