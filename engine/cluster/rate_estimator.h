/*
 * rate_estimator.h - estimates what each member's link carries, and the shares that follow from it. Pure state and
 * arithmetic; rebalance.h applies the result.
 *
 * A member reports for each peer how many bytes it sent there, and how long the transport had some of them in hand:
 * given to it, and not taken yet. A network that is faster than its input is almost never busy in this sense, and a
 * slower one always is.
 *
 * The job waits for a member's link if the ways to or from that member are busy for most of its peers at once. If a
 * way is busy to one peer only, that peer holds it up. A link for which the job waits carries what it can. Of the
 * other links it is known only that they can carry more than they do.
 */
#ifndef TRIB_ENGINE_RATE_ESTIMATOR_H
#define TRIB_ENGINE_RATE_ESTIMATOR_H

#include "engine/cluster/placement.h"

#define TRIB_RATE_MEMBERS_MAX 256u

typedef struct trib_rate_estimator trib_rate_estimator;

/* Returns TRIB_NO_MEMORY when memory is short. members: is_worker, with workers first, and the configured bandwidth
 * of their links. */
TRIB_CHECKED trib_status trib_rate_estimator_create(const trib_place_member *members, uint32_t member_count,
                                                    trib_rate_estimator **out);
void trib_rate_estimator_destroy(trib_rate_estimator *self); /* NULL is allowed */

/* Begins a member's report of the last elapsed_ns. Returns false if no report is wanted. The report then has an
 * entry for each peer: the bytes sent to it, and for how long the way there was busy, at most all the time. */
bool trib_rate_estimator_begin(trib_rate_estimator *self, uint32_t sender, int64_t elapsed_ns);
void trib_rate_estimator_add(trib_rate_estimator *self, uint32_t sender, uint32_t peer, uint64_t bytes,
                             int64_t busy_ns);
/* True if every member has reported since the last judgement. */
bool trib_rate_estimator_is_full(const trib_rate_estimator *self);
/* Called when shares have changed: drops what was reported since the last judgement, and each member's next report,
 * which covers time before and after the change. */
void trib_rate_estimator_restart(trib_rate_estimator *self);

/*
 * Judges the reports and resets; waits for another report of each member if fewer bytes were carried than in a round
 * of all tensors. members: is_worker, can_sum and share as they are. round_bytes: the sum over all tensors of a
 * worker. Returns true if other shares were clearly better four times in a row: `members` then holds them, with the
 * link rates for which they are made. Returns false if nothing has changed.
 */
bool trib_rate_estimator_decide(trib_rate_estimator *self, trib_place_member *members, uint64_t round_bytes);

#endif
