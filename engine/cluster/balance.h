/*
 * balance.h - what the links of a job carry, as its members see it, and the shares that follow from that. Pure state and
 * arithmetic; shares.h has what is done with it.
 *
 * A member tells of each peer how many bytes it has sent there, and for how long some of them were with the transport:
 * handed over, and not taken yet. That is about never where the network is faster than what it is given, and always where
 * it is not. A link of one member is what a job waits for if the way to it, or from it, is busy for most of its peers at
 * once; a way that is busy to one peer alone is held up by that peer. What such a link carries is what it can. Of the others
 * it is known that they can more than what they carry.
 */
#ifndef TRIB_ENGINE_BALANCE_H
#define TRIB_ENGINE_BALANCE_H

#include "engine/cluster/placement.h"

#define TRIB_BALANCE_MEMBERS_MAX 256u

typedef struct trib_balance trib_balance;

/* TRIB_NO_MEMORY. members: is_worker, workers first, and what is said of their links' bandwidth. */
TRIB_CHECKED trib_status trib_balance_create(const trib_place_member *members, uint32_t member_count,
                                             trib_balance **out);
void trib_balance_destroy(trib_balance *self); /* NULL is fine */

/* A member's report of the last so many nanoseconds begins. False: it is not wanted. Of each peer that it sent to: so many
 * bytes, and how long the way there was busy, at most all the time. */
bool trib_balance_begin(trib_balance *self, uint32_t sender, int64_t elapsed_ns);
void trib_balance_add(trib_balance *self, uint32_t sender, uint32_t peer, uint64_t bytes, int64_t busy_ns);
/* Has everybody told since the last judgement? */
bool trib_balance_is_full(const trib_balance *self);
/* Shares have changed: forgets what was told since the last judgement, and what each member tells next, which is about
 * before and after. */
void trib_balance_restart(trib_balance *self);

/*
 * Judges, and resets; or waits for another report of each, if less was carried than what a round of all tensors carries.
 * members: is_worker, can_sum and share as they are; round_bytes: of all tensors of a worker. True: other shares have been found
 * four times in a row to be clearly better, and they are in members now, with the rates of the links that they are made for.
 * False: nothing has changed.
 */
bool trib_balance_judge(trib_balance *self, trib_place_member *members, uint64_t round_bytes);

#endif
