/*
 * keeper.h - sums that wait for a partition's keeper, in a job that goes on without a server (TRIB_SURVIVE=servers).
 *
 * A partition's keeper is the worker of rank (partition modulo workers). Its PUSH may announce that it will keep a copy
 * of the round's sum. The owner then sends the sum to the keeper first, and to the others when the keeper has all of
 * it (KEPT). They are told so in SUM, and need no copy of their own: the sum lands where it is wanted, though that is
 * the input (engine/worker/worker_orphan.h).
 *
 * Waiting is never needed. A sum that has waited for long, or whose memory is needed, goes out without that word, and
 * its receiver takes care of itself.
 *
 * Invariants
 *
 * - Of the sums of a partition and round, a receiver is told of all or of none that the keeper has them.
 */
#ifndef TRIB_ENGINE_KEEPER_H
#define TRIB_ENGINE_KEEPER_H

#include "engine/server/server_sum.h"

/* Notes a checked PUSH: if it is the keeper's and asks for that, the round's sum waits for the keeper. */
void trib_keeper_pushes(trib_server_sum *sum, const trib_link *link, const trib_frame *frame);
/* Takes the sum if it has to wait for the keeper. */
TRIB_CHECKED bool trib_keeper_awaits(trib_core *core, trib_sum_entry *entry);
/* Takes a KEPT frame, by which the keeper says that it has the sum. */
TRIB_CHECKED trib_status trib_keeper_has(const trib_link *link, const trib_frame *frame, trib_error *error);
/* Sends the sums on that have waited since the last check. */
void trib_keepers_check(trib_core *core);
/* Sends all waiting sums on. */
void trib_keepers_release(trib_core *core);
/* Frees what is kept about a tensor that has ended, and sends its waiting sums on. */
void trib_keepers_forget(trib_core *core, uint32_t tensor);
/* Sends all waiting sums on, and frees everything. */
void trib_keepers_close(trib_core *core);

#endif
