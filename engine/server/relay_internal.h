/* relay_internal.h - declarations that the files of the relay share: relay.c (the way to owners), relay_answer.c (the
 * way back). */
#ifndef TRIB_ENGINE_RELAY_INTERNAL_H
#define TRIB_ENGINE_RELAY_INTERNAL_H

#include "engine/aggregate/summation.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"

static inline uint32_t trib_relay_machine(const trib_core *core, uint32_t rank)
{
    return rank / core->engine->roster->local_size;
}

/* The summation of the machine's workers. */
static inline trib_summation *trib_relay_summation(const trib_core *core)
{
    return trib_sum_aggregator_summation(core->sums[TRIB_SUM_RANK].aggregator);
}

static inline bool trib_relay_has_root(const trib_core *core, const trib_contribution *what)
{
    return trib_relay_machine(core, what->root) == trib_relay_machine(core, core->engine->member_id);
}

/* relay.c: takes the round's partial sums out of the outboxes where they still wait. */
void trib_relay_drop_pushes(trib_core *core, const trib_contribution *what);

#endif
