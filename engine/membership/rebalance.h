/*
 * rebalance.h - the coordinator's side of shares that follow the measured rates of links.
 *
 * Members report how many bytes they sent to each peer, and how long that took (rate_estimator.h). If other shares
 * would be clearly better, the partitions of all tensors are dealt anew. Each tensor moves independently:
 *
 * - The coordinator proposes the new owners to all workers (MOVE).
 * - Each worker answers from which round on it waits for the decision (MOVE_READY).
 * - From the last of these rounds on, the new owners hold for all workers (MOVE_DECIDED).
 *
 * A server keeps nothing of a partition between rounds, so only the placement changes. The order in which ranks are
 * added does not change either, so sums keep their bits.
 *
 * When a member leaves, undecided moves are called off, and shares stay as they are. Everything here belongs to core 0.
 */
#ifndef TRIB_ENGINE_REBALANCE_H
#define TRIB_ENGINE_REBALANCE_H

#include "engine/membership/coordinator_internal.h"

typedef struct trib_rebalance_state trib_rebalance_state;

/* True if shares can follow the links in a job with that roster. */
bool trib_rebalance_is_possible(const trib_roster *roster);

/* Call after a roster that lets shares follow the links was sent. `members` (as placed) is copied. */
TRIB_CHECKED trib_status trib_rebalance_open(trib_coordinator *self, const trib_place_member *members);
void trib_rebalance_close(trib_coordinator *self);

TRIB_CHECKED trib_status trib_rebalance_take_loads(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                   const void *payload, trib_error *error);
TRIB_CHECKED trib_status trib_rebalance_take_ready(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                   trib_error *error);
/* The rank has released the tensor: it answers no proposal any more. */
void trib_rebalance_released(trib_coordinator *self, trib_registry_entry *entry, uint32_t rank);
/* The tensor has ended, and its entry is about to be freed. */
void trib_rebalance_ended(trib_coordinator *self, const trib_registry_entry *entry);
/* Calls off all undecided moves, because a member leaves. */
void trib_rebalance_stop(trib_coordinator *self);

/* Deals all tensors anew by these shares of the members. Returns false if that is impossible, now or ever. Tests call
 * this, too. */
bool trib_rebalance_deal(trib_coordinator *self, const double *weights);

#endif
