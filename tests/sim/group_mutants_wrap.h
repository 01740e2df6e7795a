/* group_mutants_wrap.h - the bugs of group_mutants.h. Included by test_mutants.c, behind the variable that tells which
 * bug is planted. */
#ifndef TRIB_TESTS_SIM_GROUP_MUTANTS_WRAP_H
#define TRIB_TESTS_SIM_GROUP_MUTANTS_WRAP_H

#include "engine/aggregate/sum_tree.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/server/server_sum.h"

__typeof__(trib_server_sum_contributor) __real_trib_server_sum_contributor, __wrap_trib_server_sum_contributor;
uint32_t __wrap_trib_server_sum_contributor(const trib_server_sum *sum, uint32_t rank, const trib_frame *frame)
{
    const uint32_t contributor = __real_trib_server_sum_contributor(sum, rank, frame);
    return sum->level == TRIB_SUM_GROUP && strikes(BUG_OTHER_MEMBER, 50) ? (contributor + 1) % sum->count : contributor;
}

__typeof__(trib_sum_round_check) __real_trib_sum_round_check, __wrap_trib_sum_round_check;
void __wrap_trib_sum_round_check(trib_summation *self, sum_round *round, const trib_contribution *what)
{
    const bool is_broadcast = what->collective == TRIB_COLLECTIVE_BROADCAST;
    trib_contribution same = *what;
    same.root = is_broadcast && strikes(BUG_ROOTS_IGNORED, 1) ? round->what.root : what->root;
    __real_trib_sum_round_check(self, round, &same);
}

__typeof__(trib_groups_take_create) __real_trib_groups_take_create, __wrap_trib_groups_take_create;
trib_status __wrap_trib_groups_take_create(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                           const void *payload, trib_error *error)
{
    char name[TRIB_TENSOR_NAME_MAX + 1];
    unsigned char other[sizeof name + (2 + TORTURE_WORKERS_MAX) * sizeof(uint32_t)];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, name, sizeof name);
    const trib_group_entry *oldest = NULL;
    for (const trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
        oldest = trib_group_awaits(entry, rank) && strcmp(entry->name, name) == 0 ? entry : oldest;
    }
    if (oldest == NULL || !strikes(BUG_GROUPS_BY_NAME, 1)) {
        return __real_trib_groups_take_create(self, rank, frame, payload, error);
    }
    trib_writer writer = {.data = other, .capacity = sizeof other};
    trib_put_text(&writer, name);
    trib_put_u32(&writer, oldest->ranks->count);
    for (uint32_t i = 0; i < oldest->ranks->count; i++) {
        trib_put_u32(&writer, oldest->ranks->ranks[i]);
    }
    trib_frame changed = *frame;
    changed.payload_size = (uint32_t)writer.size;
    return __real_trib_groups_take_create(self, rank, &changed, other, error);
}

__typeof__(trib_groups_take_release) __real_trib_groups_take_release, __wrap_trib_groups_take_release;
trib_status __wrap_trib_groups_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                            trib_error *error)
{
    for (const trib_group_entry *entry = self->groups; entry != NULL; entry = entry->next) {
        for (uint32_t i = 0; entry->tags[rank] == frame->tensor && i < self->worker_count; i++) {
            const bool is_other = i != rank && trib_rank_set_index(entry->ranks, i) != TRIB_RANK_ABSENT;
            entry->tags[i] = is_other && strikes(BUG_GROUP_ENDS_EARLY, 1) ? TRIB_TAG_RELEASED : entry->tags[i];
        }
    }
    return strikes(BUG_GROUP_RELEASE_LOST, 1) ? TRIB_OK : __real_trib_groups_take_release(self, rank, frame, error);
}

__typeof__(trib_server_end_group) __real_trib_server_end_group, __wrap_trib_server_end_group;
void __wrap_trib_server_end_group(trib_core *core, uint32_t group)
{
    if (!strikes(BUG_GROUP_SUMS_KEPT, 1)) {
        __real_trib_server_end_group(core, group);
    }
}

#endif
