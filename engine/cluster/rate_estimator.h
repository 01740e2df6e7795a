/*
 * rate_estimator.h - what the links of a job carry, as its members see it, and the shares that follow from that. Pure state and
 * arithmetic; rebalance.h has what is done with it.
 *
 * A member tells of each peer how many bytes it has sent there, and for how long some of them were with the transport:
 * handed over, and not taken yet. That is about never where the network is faster than what it is given, and always where
 * it is not. A link of one member is what a job waits for if the way to it, or from it, is busy for most of its peers at
 * once; a way that is busy to one peer alone is held up by that peer. What such a link carries is what it can. Of the others
 * it is known that they can more than what they carry.
 */
#ifndef TRIB_ENGINE_RATE_ESTIMATOR_H
#define TRIB_ENGINE_RATE_ESTIMATOR_H

#include "engine/cluster/placement.h"

#define TRIB_RATE_MEMBERS_MAX 256u

typedef struct trib_rate_estimator trib_rate_estimator;

/* TRIB_NO_MEMORY. members: is_worker, workers first, and what is said of their links' bandwidth. */
TRIB_CHECKED trib_status trib_rate_estimator_create(const trib_place_member *members, uint32_t member_count,
                                                    trib_rate_estimator **out);
void trib_rate_estimator_destroy(trib_rate_estimator *self); /* NULL is fine */

/* A member's report of the last so many nanoseconds begins. False: it is not wanted. Of each peer that it sent to: so many
 * bytes, and how long the way there was busy, at most all the time. */
bool trib_rate_estimator_begin(trib_rate_estimator *self, uint32_t sender, int64_t elapsed_ns);
void trib_rate_estimator_add(trib_rate_estimator *self, uint32_t sender, uint32_t peer, uint64_t bytes,
                             int64_t busy_ns);
/* Has everybody told since the last judgement? */
bool trib_rate_estimator_is_full(const trib_rate_estimator *self);
/* Shares have changed: forgets what was told since the last judgement, and what each member tells next, which is about
 * before and after. */
void trib_rate_estimator_restart(trib_rate_estimator *self);

/*
 * Judges, and resets; or waits for another report of each, if less was carried than what a round of all tensors carries.
 * members: is_worker, can_sum and share as they are; round_bytes: of all tensors of a worker. True: other shares have been found
 * four times in a row to be clearly better, and they are in members now, with the rates of the links that they are made for.
 * False: nothing has changed.
 */
bool trib_rate_estimator_decide(trib_rate_estimator *self, trib_place_member *members, uint64_t round_bytes);

#endif
