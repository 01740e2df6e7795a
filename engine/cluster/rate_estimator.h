/*
 * rate_estimator.h - estimates the rates of a job's links from its members' reports, and the weights that follow. Pure
 * state and arithmetic; rebalance.h acts on the result.
 *
 * A member reports for each peer how many bytes it has sent there, and for how long the transport had accepted some of
 * them that the peer had not. On a network that is faster than its load that is almost never, on a slower one always.
 * A member's link limits the job if the way to it, or from it, is busy for most of its peers at once; a way that is
 * busy to one peer alone is held up by that peer. A limiting link carries what it can. All others can carry more than
 * they do.
 */
#ifndef TRIB_ENGINE_RATE_ESTIMATOR_H
#define TRIB_ENGINE_RATE_ESTIMATOR_H

#include "engine/cluster/placement.h"

#define TRIB_RATE_MEMBERS_MAX 256u

typedef struct trib_rate_estimator trib_rate_estimator;

/* TRIB_NO_MEMORY. members: is_worker, workers first, and the configured bandwidth of their links. */
TRIB_CHECKED trib_status trib_rate_estimator_create(const trib_place_member *members, uint32_t member_count,
                                                    trib_rate_estimator **out);
void trib_rate_estimator_destroy(trib_rate_estimator *self); /* NULL is allowed */

/* Begins a member's report of the last elapsed_ns nanoseconds; false if it is not wanted. The next function adds for
 * each peer the bytes sent, and the time, at most elapsed_ns, for which the way there was busy. */
bool trib_rate_estimator_begin(trib_rate_estimator *self, uint32_t sender, int64_t elapsed_ns);
void trib_rate_estimator_add(trib_rate_estimator *self, uint32_t sender, uint32_t peer, uint64_t bytes,
                             int64_t busy_ns);
/* True if every member has reported since the last judgement. */
bool trib_rate_estimator_is_full(const trib_rate_estimator *self);
/* The weights were changed: drops all reports since the last judgement, and each member's next one, which covers
 * both. */
void trib_rate_estimator_restart(trib_rate_estimator *self);

/* Judges, and resets; or waits for another report of each member if less was carried than a round of all tensors
 * has. members: is_worker, can_sum and the current weight; round_bytes: all tensors of a worker. True: other weights
 * were found clearly better four times in a row; they are in members now, with the rates of the links. False:
 * nothing has changed. */
bool trib_rate_estimator_decide(trib_rate_estimator *self, trib_place_member *members, uint64_t round_bytes);

#endif
