/* test_many_changes.c - a job whose membership changes many times needs no more memory for that: rosters are freed when
 * nothing reads them any more. An operation that the program keeps tells of the epoch in which it completed. */
#include <malloc.h>

#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, FEW = 40, MANY = 240 };

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    assert_int_equal(now->status, TRIB_OK);
    ++*(uint32_t *)user;
}

static bool all_have_advanced(sim_job *job, void *argument)
{
    const uint32_t *advanced = argument;
    (void)job;
    return *advanced == WORKERS;
}

static void change(sim_job *job, uint32_t changes)
{
    for (uint32_t i = 0; i < changes; i++) {
        uint32_t advanced = 0;
        trib_error error;
        for (uint32_t k = 0; k < WORKERS; k++) {
            assert_int_equal(trib_membership_advance(job->members[k].engine, on_advanced, &advanced, &error), TRIB_OK);
        }
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, all_have_advanced, &advanced));
    }
}

static uint32_t count_rosters(const sim_job *job, uint32_t member)
{
    uint32_t count = 0;
    for (const trib_roster *at = job->members[member].engine->roster; at != NULL; at = at->before) {
        count++;
    }
    return count;
}

static bool all_are_done(sim_job *job, void *argument)
{
    const exchange *all = argument;
    (void)job;
    return all[0].done + all[1].done + all[2].done == WORKERS;
}

static void many_changes_need_no_memory(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    sim_job *job = sim_bed_open(&config);
    int32_t buffers[WORKERS] = {1, 10, 100};
    exchange all[WORKERS];
    trib_op *kept = NULL;
    change(job, 1);
    for (uint32_t i = 0; i < WORKERS; i++) {
        all[i] = (exchange){.buffer = &buffers[i]};
        sim_bed_begin(job, i, "x", 1, &all[i], 0, i == 0 ? &kept : NULL);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, all_are_done, all));
    change(job, FEW);
    /* With sanitizers these figures do not change, and only the number of rosters below says something. */
    const size_t few_bytes = mallinfo2().uordblks;
    change(job, MANY - FEW);
    const size_t many_bytes = mallinfo2().uordblks;
    if (many_bytes > few_bytes + sizeof(trib_roster) + WORKERS * sizeof(trib_member_info)) {
        fail_msg("%zu bytes more after %u changes than after %u", many_bytes - few_bytes, MANY, FEW);
    }
    assert_int_equal(count_rosters(job, 0), 3);
    assert_int_equal(count_rosters(job, 1), 2);
    int32_t ranks[WORKERS] = {-1, -1, -1};
    size_t count = 0;
    trib_error error;
    assert_int_equal(trib_op_contributors(kept, ranks, WORKERS, &count, &error), TRIB_OK);
    assert_int_equal(count, WORKERS);
    for (int32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(ranks[i], i);
    }
    trib_op_release(kept);
    change(job, 1);
    assert_int_equal(count_rosters(job, 0), 2);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_changes_need_no_memory),
    };
    return cmocka_run_group_tests_name("many changes", tests, NULL, NULL);
}
