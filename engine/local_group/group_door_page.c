/* group_door_page.c - see group_door_page.h. */
#include "engine/local_group/group_door_page.h"

#define GENERATION_MASK 0xfffffu
#define GONE_MASK 0x7fffu

/* ---- The state ---- */

typedef struct door_state {
    uint32_t generation, broken, gone, count;
    bool steady;
} door_state;

static uint64_t pack(door_state state)
{
    return (uint64_t)(state.generation & GENERATION_MASK) << 44 | (uint64_t)state.broken << 24 |
           (state.gone & GONE_MASK) << 9 | state.count << 1 | (state.steady ? 1 : 0);
}

static door_state unpack(uint64_t state)
{
    return (door_state){.generation = (uint32_t)(state >> 44),
                        .broken = (uint32_t)(state >> 24) & GENERATION_MASK,
                        .gone = (uint32_t)(state >> 9) & GONE_MASK,
                        .count = (uint32_t)(state >> 1) & 0xff,
                        .steady = (state & 1) != 0};
}

uint32_t trib_door_generation(uint64_t state)
{
    return unpack(state).generation;
}

uint32_t trib_door_count(uint64_t state)
{
    return unpack(state).count;
}

bool trib_door_is_steady(uint64_t state)
{
    return unpack(state).steady;
}

/* The next generation gathers; nobody of this one passes. */
static uint64_t broken(uint64_t state)
{
    door_state next = unpack(state);
    next.generation++;
    next.broken += next.broken == GENERATION_MASK ? 0 : 1;
    next.count = 0;
    return pack(next);
}

bool trib_door_has_passed(uint64_t state, uint32_t generation)
{
    const door_state now = unpack(state);
    const uint32_t later = (now.generation - generation) & GENERATION_MASK;
    return now.broken != GENERATION_MASK && later == now.broken + 1;
}

/* ---- The page ---- */

bool trib_door_page_is_open(const trib_door_page *page, uint32_t local_size)
{
    return atomic_load(&page->here) == local_size && atomic_load(&page->elsewhere) == 0;
}

/* Who comes last: do all want the same? */
static bool agree(const trib_door_page *page, uint32_t local_size, bool *steady_out)
{
    *steady_out = true;
    for (uint32_t i = 0; i < local_size; i++) {
        if (atomic_load(&page->ranks[i].tensor_round) != atomic_load(&page->ranks[0].tensor_round) ||
            atomic_load(&page->ranks[i].variant) != atomic_load(&page->ranks[0].variant)) {
            return false;
        }
        *steady_out = *steady_out && atomic_load(&page->ranks[i].steady);
    }
    return true;
}

bool trib_door_page_come(trib_door_page *page, uint32_t local_size, uint32_t local_rank, const trib_door_wish *wish,
                         uint64_t *state_out)
{
    atomic_store(&page->ranks[local_rank].tensor_round, (uint64_t)wish->tensor << 32 | wish->round);
    atomic_store(&page->ranks[local_rank].variant, wish->variant);
    atomic_store(&page->ranks[local_rank].steady, wish->steady);
    uint64_t state = atomic_load(&page->state), next = 0;
    do {
        door_state then = unpack(state);
        then.count++;
        if (then.count == local_size) {
            if (!agree(page, local_size, &then.steady)) {
                return false;
            }
            then.generation++;
            then.broken = then.count = 0;
        }
        next = pack(then);
    } while (!atomic_compare_exchange_weak(&page->state, &state, next));
    *state_out = next;
    return true;
}

uint64_t trib_door_page_go(trib_door_page *page, uint32_t generation)
{
    uint64_t state = atomic_load(&page->state);
    while (trib_door_generation(state) == generation && trib_door_count(state) > 0) {
        door_state then = unpack(state);
        then.count--;
        then.gone++;
        if (atomic_compare_exchange_weak(&page->state, &state, pack(then))) {
            return pack(then);
        }
    }
    return state;
}

uint64_t trib_door_page_close(trib_door_page *page, uint32_t generation)
{
    uint64_t state = atomic_load(&page->state);
    while (trib_door_generation(state) == generation) {
        if (atomic_compare_exchange_weak(&page->state, &state, broken(state))) {
            return broken(state);
        }
    }
    return state;
}

bool trib_door_page_break_up(trib_door_page *page)
{
    uint64_t state = atomic_load(&page->state);
    while (trib_door_count(state) > 0) {
        if (atomic_compare_exchange_weak(&page->state, &state, broken(state))) {
            return true;
        }
    }
    return false;
}
