/*
 * rebalance.h - the coordinator's side of shares that follow what links are seen to carry.
 *
 * Members report what they have sent to whom and how long that took (rate_estimator.h). When other shares would be clearly better
 * the partitions of all tensors are dealt anew, and each tensor moves for itself: its new owners are proposed to all
 * workers (MOVE), each says from which round on it will wait (MOVE_READY), and from the last of these on the new owners hold
 * for everybody (MOVE_DECIDED). A server keeps nothing of a partition between rounds, so nothing but
 * the placement changes hands, and the order in which ranks are added stays what it is: so do the bits of sums.
 *
 * When a member leaves, what has not been decided is called off, and shares stay as they are. All on core 0.
 */
#ifndef TRIB_ENGINE_REBALANCE_H
#define TRIB_ENGINE_REBALANCE_H

#include "engine/membership/coordinator_internal.h"

typedef struct trib_rebalance_state trib_rebalance_state;

/* True if weights can follow the links in a job with that roster. */
bool trib_rebalance_is_possible(const trib_roster *roster);

/* The roster has been sent, and says that shares follow. members: as they were placed; copied. */
TRIB_CHECKED trib_status trib_rebalance_open(trib_coordinator *self, const trib_place_member *members);
void trib_rebalance_close(trib_coordinator *self);

TRIB_CHECKED trib_status trib_rebalance_take_loads(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                   const void *payload, trib_error *error);
TRIB_CHECKED trib_status trib_rebalance_take_ready(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                   trib_error *error);
/* A member leaves. */
void trib_rebalance_stop(trib_coordinator *self);

/* Deals all tensors anew, by these shares of the members. False: not now, or it cannot be done. For tests, too. */
bool trib_rebalance_deal(trib_coordinator *self, const double *weights);

#endif
