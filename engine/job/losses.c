/* losses.c - see losses.h. */
#include "engine/job/losses.h"

#include <stdlib.h>

#include "engine/base/assert.h"

trib_status trib_losses_open(trib_losses *losses, uint32_t members)
{
    trib_assert(atomic_load(&losses->capacity) == 0);
    losses->order = calloc(members, sizeof *losses->order);
    losses->suspected = calloc(members, sizeof *losses->suspected);
    losses->doubted = calloc(members, sizeof *losses->doubted);
    losses->taken_by = calloc(members, sizeof *losses->taken_by);
    if (losses->order == NULL || losses->suspected == NULL || losses->doubted == NULL || losses->taken_by == NULL) {
        return TRIB_NO_MEMORY;
    }
    atomic_store(&losses->capacity, members);
    return TRIB_OK;
}

void trib_losses_close(trib_losses *losses)
{
    free(losses->order);
    free(losses->suspected);
    free(losses->doubted);
    free(losses->taken_by);
    losses->taken_by = NULL;
    losses->order = NULL;
    losses->suspected = losses->doubted = NULL;
    atomic_store(&losses->capacity, 0);
    atomic_store(&losses->count, 0);
}

void trib_losses_add(trib_losses *losses, uint32_t member)
{
    const uint32_t count = atomic_load(&losses->count);
    trib_assert(count < losses->capacity);
    trib_assert(member < losses->capacity);
    trib_assert(!trib_losses_has(losses, member));
    losses->order[count] = (uint16_t)member;
    atomic_store_explicit(&losses->count, count + 1, memory_order_release); /* publishes what was written before */
}

bool trib_losses_has(const trib_losses *losses, uint32_t member)
{
    return trib_losses_has_among(losses, atomic_load(&losses->count), member);
}

bool trib_losses_has_among(const trib_losses *losses, uint32_t first, uint32_t member)
{
    trib_assert(first <= atomic_load(&losses->count));
    for (uint32_t i = 0; i < first; i++) {
        if (losses->order[i] == member) {
            return true;
        }
    }
    return false;
}

void trib_losses_take(trib_losses *losses, uint32_t number)
{
    trib_assert(number < atomic_load(&losses->count));
    atomic_fetch_add(&losses->taken_by[number], 1);
}

uint32_t trib_losses_taken(const trib_losses *losses, uint32_t core_count)
{
    const uint32_t count = atomic_load(&losses->count);
    uint32_t taken = 0;
    while (taken < count && atomic_load(&losses->taken_by[taken]) == core_count) {
        taken++;
    }
    trib_assert(taken == count || atomic_load(&losses->taken_by[taken]) <= core_count);
    return taken;
}
