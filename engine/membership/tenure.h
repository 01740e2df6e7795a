/*
 * tenure.h - decides which process may coordinate, in a job with a store (TRIB_STORE, job/store.h): the store's record
 * names the last epoch.
 *
 * - Each roster has a ticket, a number of its own. Its epoch begins when all members have the roster and the
 *   coordinator has put the ticket into the record, in place of that of an epoch before: one that it knows, since the
 *   last epoch that it knows to have begun. The record changes by compare-and-swap only. So of two coordinators that
 *   want to go on after an epoch, such as those on the two sides of a network cut, one succeeds, and no majority is
 *   needed. The other one finds a ticket that it does not know, and its job ends.
 * - Nothing of an epoch succeeds before it has begun, nor after a worker has left it for another one. So one of two
 *   epochs at most makes progress.
 * - All members have the roster by then, so any of them can go on after it if the coordinator dies.
 * - The sign in the store says where the coordinator is. Workers that join look there, and a job of the same name finds
 *   that there is one.
 *
 * A request that fails is made again, for join_timeout at most where an epoch waits for it. While nobody is lost
 * nothing waits for the store.
 */
#ifndef TRIB_ENGINE_TENURE_H
#define TRIB_ENGINE_TENURE_H

#include "engine/membership/coordinator_internal.h"

typedef struct trib_tenure trib_tenure;

/* A ticket begins with the job's incarnation (wire.h): a record of an earlier epoch is told apart from that of another
 * job of the same name, which has gone on in place of this one. */
#define TRIB_TICKET_RANDOM_BITS (32u + TRIB_EPOCH_NUMBER_BITS)

static inline uint64_t trib_ticket_make(uint32_t epoch, uint64_t random)
{
    const uint64_t rest = random & ((UINT64_C(1) << TRIB_TICKET_RANDOM_BITS) - 1);
    /* 0 means that there is no store */
    return (uint64_t)trib_epoch_incarnation(epoch) << TRIB_TICKET_RANDOM_BITS | rest | 1u;
}

static inline bool trib_tenure_is_used(const trib_engine *engine)
{
    return engine->env.store_ops != NULL;
}

/* Core 0: the coordinator of this process is open, at that address. */
void trib_tenure_begin(trib_coordinator *coordinator, const trib_address *at);
/* Core 0: all members have the roster. Calls trib_formation_begun when its epoch begins, or ends the job. */
void trib_tenure_claim(trib_coordinator *coordinator);
/* Core 0: the epoch is over before it has begun, or the coordinator closes. */
void trib_tenure_forgo(trib_engine *engine);
/* Core 0, in a process that does not coordinate: asks where the coordinator is. Returns true if an earlier call has
 * found that. */
bool trib_tenure_find(trib_engine *engine, trib_address *found_out);
/* The reactors have ended. */
void trib_tenure_close(trib_engine *engine);

#endif
