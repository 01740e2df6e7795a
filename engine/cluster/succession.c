/* succession.c - see succession.h. */
#include "engine/cluster/succession.h"

#include "engine/base/assert.h"

static bool may_follow(const trib_roster *roster, uint32_t member, uint32_t reactor)
{
    const trib_member_info *info = &roster->members[member];
    return info->sums && !info->stands_by && info->reactors > reactor;
}

/* Spreads the partitions of a tensor, and the first partitions of many tensors. */
static uint32_t mix(uint32_t tensor, uint32_t partition)
{
    uint64_t mixed = ((uint64_t)tensor << 32 | partition) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(mixed >> 32);
}

bool trib_succession_find(const trib_roster *roster, bool (*is_gone)(const void *user, uint32_t member),
                          const void *user, uint32_t tensor, uint32_t partition, trib_place_owner *owner)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        count += may_follow(roster, i, owner->reactor) && !is_gone(user, i);
    }
    uint32_t turn = count == 0 ? 0 : mix(tensor, partition) % count;
    for (uint32_t i = 0; count > 0 && i < roster->member_count; i++) {
        if (may_follow(roster, i, owner->reactor) && !is_gone(user, i) && turn-- == 0) {
            owner->member = (uint16_t)i;
            return true;
        }
    }
    trib_assert(count == 0);
    return false;
}
