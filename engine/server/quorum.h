/*
 * quorum.h - sums that go on without stragglers: a server's side of a quorum.
 *
 * The owner of a tensor's partition 0 notices that k of n workers have begun a round and that the others have not come
 * in time. It calls for a decision (QUORUM_CALL). The coordinator asks all members that sum which workers have begun
 * the round with them (QUORUM_ASK, QUORUM_BEGUN), and tells them the set (QUORUM_SET): all workers that have begun it
 * with any of them.
 *
 * Invariants
 * - From a core's answer until the set, no worker begins the round with that core: its frames wait on its link. So no
 *   contribution of a worker outside the set is in a sum.
 * - A worker of the set has begun the round, so the rest of its contributions comes, or its withdrawal.
 * - A core that has no memory to keep workers out says that all have begun, and keeps nobody out when the set comes.
 *   One that has taken a set says so, too, if it is decided again: no other set follows.
 * - Nothing waits for other contributions on a link: links would wait for each other. A worker outside the set may be
 *   the first one of a partition. The aggregator learns that it is late before it gets the contribution
 *   (aggregate/sum_quorum.c).
 */
#ifndef TRIB_ENGINE_QUORUM_H
#define TRIB_ENGINE_QUORUM_H

#include "engine/server/server_sum.h"

/* Number of rounds of a tensor that may be complete except for late workers, for whom their sums are kept. When a
 * worker is this far behind, further rounds wait for it. */
#define TRIB_QUORUM_BEHIND_MAX 4u
#define TRIB_QUORUM_SET_BYTES ((TRIB_CONTRIBUTORS_MAX + 7) / 8)

/* True if the PUSH or WITHDRAW may not be taken in yet. trib_server_resume follows when it may. */
bool trib_quorum_holds(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame);
/* Notes that a PUSH or WITHDRAW was accepted. */
void trib_quorum_came(trib_server_sum *sum, const trib_frame *frame);
/* A chunk's sum is about to be sent: tells its receiver, once for each round, which workers were late. Returns true if
 * it did; the sum must not overtake that message. */
bool trib_quorum_tell(const trib_server_sum *sum, uint32_t rank, const trib_contribution *what);
/* Number of workers in a set. */
static inline uint32_t trib_quorum_count(const unsigned char *set, uint32_t workers)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < workers; i++) {
        count += set[i / 8] >> i % 8 & 1;
    }
    return count;
}

/* Brings neutral elements for which there was no memory. */
void trib_quorums_check(trib_core *core);
/* Core 0: takes QUORUM_ASK or QUORUM_SET from the coordinator. */
TRIB_CHECKED trib_status trib_quorum_take(trib_engine *engine, const trib_frame *frame, const void *payload,
                                          trib_error *error);
/* The tensor has ended. */
void trib_quorums_forget(trib_core *core, uint32_t tensor);
void trib_quorums_close(trib_core *core);
/* The reactors have ended. */
void trib_quorum_walks_free(trib_engine *engine);

#endif
