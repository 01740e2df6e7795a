/*
 * relay.h - host sums: the workers of a machine sum first, and one contribution per machine goes over the network.
 *
 * The coordinator turns this on when it finds machines with several workers each (machines.h). A worker then pushes a
 * partition to its relay, which is a worker of the same machine. The member that sums the partition for the job is its
 * owner. The relay sums the machine's contributions as any server does. The relay pushes the unrounded partial sum to
 * the owner on behalf of the machine, and hands the finished sum to the machine's workers. The owner sums machines
 * (TRIB_SUM_HOST). A partial sum is a contribution like any other: a relay is a server to its machine's workers and a
 * worker to the owner.
 *
 * Each partition has one relay on each machine, which spreads the work. The owner relays for its own machine. On every
 * other machine, the relay is the worker with the owner's local rank. A dedicated server has no local rank, so the
 * partition's number picks the local rank instead. Frames between machines carry TRIB_COLLECTIVE_PARTIAL in
 * `collective`, so that both kinds of frames can share a link. All workers have the same number of reactors, and a
 * partition uses the reactor of the same index on all of them.
 *
 * Only the reactor of the core touches this state.
 */
#ifndef TRIB_ENGINE_RELAY_H
#define TRIB_ENGINE_RELAY_H

#include "engine/core/core.h"

/* The owner's member and reactor in one number, which indexes core->owner_links. */
static inline uint32_t trib_relay_owner(uint32_t member, uint32_t reactor)
{
    return member * TRIB_REACTORS_MAX + reactor;
}

/* The local rank, on every machine, of the relay of that member's partition. */
static inline uint32_t trib_relay_local_rank(const trib_roster *roster, uint32_t owner_member, uint32_t partition)
{
    return (owner_member < roster->worker_count ? owner_member : partition) % roster->local_size;
}

/* The rank of the partition's relay on the machine of `rank`. */
static inline uint32_t trib_relay_rank(const trib_roster *roster, uint32_t rank, uint32_t owner_member,
                                       uint32_t partition)
{
    return rank / roster->local_size * roster->local_size + trib_relay_local_rank(roster, owner_member, partition);
}

/* Called when the roster is here, on workers of a job that sums by machine first. */
TRIB_CHECKED trib_status trib_relay_open(trib_core *core);
void trib_relay_close(trib_core *core);
bool trib_relay_is_idle(const trib_core *core);

/* server_frame.c: accepts a frame only from a worker of this machine, for an owner that this core relays to. */
TRIB_CHECKED trib_status trib_relay_check(const trib_link *link, const trib_frame *frame, trib_error *error);
/* The owner that a PUSH or a WITHDRAW to a relay names, as trib_relay_owner() writes it. */
static inline uint32_t trib_relay_frame_owner(const trib_frame *frame)
{
    return frame->type == TRIB_FRAME_PUSH ? frame->aux : frame->size;
}

/* Refuses the round of `what`, whose owner has left in good order: its sum will never come. */
void trib_relay_refuse_left(const trib_core *core, const trib_contribution *what);

/* Upcalls of the machine's summation. `user` is its trib_server_sum. */
void trib_relay_partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum);
void trib_relay_round_refused(void *user, const trib_contribution *what, trib_status status, const char *text);
/* Reports a missing worker of this machine to the owner, which tells the other machines. */
void trib_relay_stalled(trib_core *core, const trib_contribution *what, const trib_frame *notice,
                        const unsigned char *list);

/* True for a report of trib_relay_stalled(). A link to oneself carries both reports and notices, so they must be
 * told apart. */
bool trib_relay_is_report(const trib_core *core, const trib_frame *frame);

/* ---- relay_answer.c ---- */
/* Both take frames from an owner that carry TRIB_COLLECTIVE_PARTIAL. */
TRIB_CHECKED trib_status trib_relay_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                           trib_error *error);
TRIB_CHECKED trib_status trib_relay_received(trib_link *link, const trib_frame *frame, const void *payload,
                                             bool in_place, trib_error *error);
/* Refuses the rounds of an owner that left in good order, when its link has ended. */
void trib_relay_detach(trib_link *link, const char *text);

#endif
