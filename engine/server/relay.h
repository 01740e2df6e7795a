/*
 * relay.h - the workers of a machine sum first: one contribution leaves the machine.
 *
 * Where the coordinator found machines of several workers each (machines.h), a worker pushes a partition not to the
 * member that sums it, its owner, but to a worker of its own machine, its relay. The relay sums the machine's
 * contributions as any server does, gives the partial sum out unrounded, pushes it to the owner in the name of the
 * machine, and hands the sum that comes back to the machine's workers. The owner sums machines (TRIB_SUM_HOST). Nothing
 * else changes: a partial sum is a contribution, a relay is a server to its machine's workers and a worker to the
 * owner.
 *
 * Each partition has one relay on each machine, so that the work is shared: the worker that sums it, if that is of the
 * machine; else the one with the same place on its machine as the owner has on its own, or, for servers, by number.
 * Frames between machines carry TRIB_COLLECTIVE_PARTIAL in `collective`; so both kinds can travel on one link. All
 * workers have the same number of reactors, and what a partition needs is on the reactor of the same index everywhere.
 *
 * Everything here belongs to one core.
 */
#ifndef TRIB_ENGINE_RELAY_H
#define TRIB_ENGINE_RELAY_H

#include "engine/core/core.h"

/* The owner of a partition, in one number: an index into core->owner_links. */
static inline uint32_t trib_relay_owner(uint32_t member, uint32_t reactor)
{
    return member * TRIB_REACTORS_MAX + reactor;
}

/* The place on its machine of those who relay a partition of that member. */
static inline uint32_t trib_relay_local_rank(const trib_roster *roster, uint32_t owner_member, uint32_t partition)
{
    return (owner_member < roster->worker_count ? owner_member : partition) % roster->local_size;
}

/* The relay of that partition on the machine of that rank. */
static inline uint32_t trib_relay_rank(const trib_roster *roster, uint32_t rank, uint32_t owner_member,
                                       uint32_t partition)
{
    return rank / roster->local_size * roster->local_size + trib_relay_local_rank(roster, owner_member, partition);
}

/* With the roster, on workers, when machines sum first. */
TRIB_CHECKED trib_status trib_relay_open(trib_core *core);
void trib_relay_close(trib_core *core);
bool trib_relay_is_idle(const trib_core *core);

/* A frame of a worker of the machine: may it, and is this its relay? */
TRIB_CHECKED trib_status trib_relay_check(const trib_link *link, const trib_frame *frame, trib_error *error);
/* The owner that a PUSH or a WITHDRAW names. */
static inline uint32_t trib_relay_frame_owner(const trib_frame *frame)
{
    return frame->type == TRIB_FRAME_PUSH ? frame->aux : frame->size;
}

/* The owner of the partition has left in good order, so the round that something came for has no end. */
void trib_relay_refuse_left(const trib_core *core, const trib_contribution *what);

/* Upcalls of the machine's summation; user is its trib_server_sum. */
void trib_relay_partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum);
void trib_relay_round_refused(void *user, const trib_contribution *what, trib_status status, const char *text);
/* A worker of the machine is waited for, as the notice says: tells the owner, so that the other machines hear of it. */
void trib_relay_stalled(trib_core *core, const trib_contribution *what, const trib_frame *notice);

/* Is this what trib_relay_stalled sends? On a link to oneself both ways come together. */
bool trib_relay_is_report(const trib_core *core, const trib_frame *frame);

/* Frames from an owner that carry TRIB_COLLECTIVE_PARTIAL. */
TRIB_CHECKED trib_status trib_relay_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                           trib_error *error);
TRIB_CHECKED trib_status trib_relay_received(trib_link *link, const trib_frame *frame, const void *payload,
                                             bool in_place, trib_error *error);
/* A link to an owner has ended. */
void trib_relay_detach(trib_link *link, const char *text);

#endif
