/* door_plan.c - draws what the local ranks of door_bed.h do from a seed. */
#include "tests/sim/door_bed.h"

#define MS INT64_C(1000000)

static int64_t between(trib_sim_stream *chance, int64_t low, int64_t high)
{
    return low + (int64_t)trib_sim_draw_below(chance, (uint64_t)(high - low + 1));
}

/* Mostly together; else so late that the others still wait at the door, or no more. */
static int64_t draw_late(trib_sim_stream *chance, bool is_calm)
{
    const int64_t together = between(chance, 0, 20000), late = between(chance, 0, 4 * MS);
    const int64_t very_late = between(chance, 5 * MS, 15 * MS);
    const int64_t which = between(chance, 0, 15);
    return is_calm || which > 2 ? together : which > 0 ? late : very_late;
}

static void draw_step(trib_sim_stream *chance, door_plan *plan, door_step *step)
{
    static const door_kind kinds[] = {DOOR_LONE,      DOOR_LONE,      DOOR_LONE,   DOOR_LONE,  DOOR_BURST, DOOR_BURST,
                                      DOOR_LARGE_ONE, DOOR_BROADCAST, DOOR_CANCEL, DOOR_HURRY, DOOR_ODD};
    step->kind = kinds[between(chance, 0, sizeof kinds / sizeof kinds[0] - 1)];
    step->kind = plan->is_calm ? DOOR_LONE : step->kind;
    step->first = (uint32_t)between(chance, 0, DOOR_TENSORS - 2); /* the last is the large one */
    step->first = step->kind == DOOR_LARGE_ONE ? DOOR_TENSORS - 1 : step->first;
    const bool some = step->kind == DOOR_BURST || (step->kind >= DOOR_BROADCAST && trib_sim_draw_one_in(chance, 3));
    step->count = some ? (uint32_t)between(chance, 2, DOOR_TENSORS) : 1;
    step->odd = (uint32_t)between(chance, 0, plan->ranks - 1);
    step->after_ns = between(chance, 1, trib_sim_draw_one_in(chance, 2) ? 8 * MS : MS / 10);
    for (uint32_t rank = 0; rank < plan->ranks; rank++) {
        step->late_ns[rank] = draw_late(chance, plan->is_calm);
    }
}

void door_draw(uint64_t seed, door_plan *plan)
{
    trib_sim_stream chance = {.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 3};
    *plan = (door_plan){.seed = seed, .is_calm = seed % 4 == 0, .is_shut = seed % 16 == 1};
    plan->ranks = (uint32_t)between(&chance, 2, DOOR_RANKS_MAX);
    plan->step_count = (uint32_t)between(&chance, 8, DOOR_STEPS_MAX);
    plan->device_late_ns = trib_sim_draw_one_in(&chance, 2) ? between(&chance, 1, 2 * MS) : 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        draw_step(&chance, plan, &plan->steps[i]);
    }
    const int64_t sort = plan->is_calm ? 7 : between(&chance, 0, 7);
    plan->end = sort < 2 ? DOOR_ENDS_LEAVING : sort == 2 ? DOOR_ENDS_LOST : DOOR_ENDS_ALL;
    plan->gone = (uint32_t)between(&chance, 0, plan->ranks - 1);
    plan->gone_ns = between(&chance, 1, 60 * MS);
    plan->pause_ns = !plan->is_calm && trib_sim_draw_one_in(&chance, 3) ? between(&chance, 1, 20 * MS) : 0;
}
