/* member_info.c - a member's description of itself when it joins. */
#include <stdio.h>

#include "engine/core/core.h"
#include "engine/membership/member.h"

void trib_member_describe(const trib_engine *engine, trib_member_info *info)
{
    const trib_config *config = &engine->config;
    const char *place = engine->env.place;
    *info = (trib_member_info){
        .roles = config->roles | (engine->coordinator != NULL ? TRIB_ROLE_COORDINATOR : 0),
        .sums = (config->roles & TRIB_ROLE_SERVER) != 0,
        .placed = engine->env.placed,
        .subflows = (engine->cores[0].host.transport->ops->flags & TRIB_TRANSPORT_SUBFLOWS) != 0,
        .reactors = engine->core_count,
        .bandwidth = config->bandwidth_bits,
        .kernel = engine->env.kernel,
        .gpu = engine->env.gpu,
        .start = engine->start,
        .rank = config->roles & TRIB_ROLE_WORKER ? (uint32_t)config->rank : TRIB_NO_MEMBER,
    };
    if ((config->roles & TRIB_ROLE_WORKER) && config->rank >= 0) {
        snprintf(info->name, sizeof info->name, "rank %d (%s)", config->rank, place);
    } else {
        snprintf(info->name, sizeof info->name, "(%s)", place);
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        info->addresses[i] = engine->cores[i].host.address;
    }
}
