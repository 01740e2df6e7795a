/*
 * test_group_settling.c - what is left of groups that are in conflict (group_registry.c). Requests and releases come in
 * an order that no worker's engine makes, as it releases a group only when that has been made or refused; the rules are
 * the coordinator's nevertheless.
 */
#include <stdio.h>
#include <string.h>

#include "engine/membership/coordinator_internal.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 4, TAG = 5000 };

static void take(trib_coordinator *self, uint32_t rank, trib_frame frame, const void *payload, size_t size)
{
    trib_error error = {.text = ""};
    frame.payload_size = (uint32_t)size;
    const trib_status status = frame.type == TRIB_FRAME_GROUP_CREATE
                                   ? trib_groups_take_create(self, rank, &frame, payload, &error)
                                   : trib_groups_take_release(self, rank, &frame, &error);
    if (status != TRIB_OK) {
        fail_msg("rank %u: %s", rank, error.text);
    }
}

static void ask(trib_coordinator *self, uint32_t rank, uint32_t tag, const char *name, const uint32_t *ranks,
                uint32_t count)
{
    unsigned char payload[128];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_text(&writer, name);
    trib_put_u32(&writer, count);
    for (uint32_t i = 0; i < count; i++) {
        trib_put_u32(&writer, ranks[i]);
    }
    assert_false(writer.overflow);
    take(self, rank, (trib_frame){.type = TRIB_FRAME_GROUP_CREATE, .tensor = tag}, payload, writer.size);
}

static void release(trib_coordinator *self, uint32_t rank, uint32_t tag)
{
    take(self, rank, (trib_frame){.type = TRIB_FRAME_GROUP_RELEASE, .tensor = tag}, NULL, 0);
}

/* All numbers are taken, and one will be free, as a member of its group has released it. */
static void take_all_numbers(trib_coordinator *self)
{
    static const uint32_t alone[] = {0}, both[] = {0, 1};
    for (uint32_t i = 0; i + 2 < TRIB_GROUPS_MAX; i++) {
        char name[32];
        snprintf(name, sizeof name, "group %u", i);
        ask(self, 0, i, name, alone, 1);
    }
    ask(self, 0, TAG, "held", both, 2);
    ask(self, 1, TAG, "held", both, 2);
    assert_int_equal(self->groups_numbered, TRIB_GROUPS_MAX - 1);
    release(self, 1, TAG);
}

static const trib_group_entry *find(const trib_coordinator *self, uint32_t rank, uint32_t tag)
{
    const trib_group_entry *entry = self->groups;
    while (entry != NULL && entry->tags[rank] != tag) {
        entry = entry->next;
    }
    return entry;
}

/* Three groups are in conflict. The one that rank 1 has asked for, and released, ends at once: it has no number, and
 * rank 3 does not ask for it any more. Rank 1 is asked for no other one nevertheless, so that its next group is a new
 * one. */
static void a_group_of_the_conflict_ends_first(void **state)
{
    (void)state;
    static const uint32_t first[] = {1, 2}, second[] = {1, 3}, third[] = {3, 2};
    const sim_job_config config = sim_job_config_default(WORKERS, 0);
    sim_job *job = sim_bed_open(&config);
    trib_coordinator *self = job->members[0].engine->coordinator;
    take_all_numbers(self);
    ask(self, 2, TAG + 1, "of others", first, 2);
    ask(self, 1, TAG + 1, "of others", second, 2);
    release(self, 1, TAG + 1);
    ask(self, 3, TAG + 1, "of others", third, 2);
    assert_true(find(self, 2, TAG + 1)->bad && find(self, 3, TAG + 1)->bad);
    release(self, 2, TAG + 1);
    release(self, 3, TAG + 1);
    ask(self, 2, TAG + 2, "of others", first, 2);
    ask(self, 1, TAG + 2, "of others", first, 2);
    const trib_group_entry *next = find(self, 1, TAG + 2);
    assert_true(next == find(self, 2, TAG + 2) && !next->bad && next->conflict == 0);
    assert_true(self->groups == next && next->next->conflict == 0);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_group_of_the_conflict_ends_first)};
    return cmocka_run_group_tests_name("settling of groups", tests, NULL, NULL);
}
