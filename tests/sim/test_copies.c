/*
 * test_copies.c - the copies of all cores share one stream of the device in turn. No core has so many copies in flight
 * that the others' first ones come late.
 */
#include <stdlib.h>

#include "engine/device/device_task.h"
#include "stages/plans.h"
#include "tests/sim/sim_bed.h"

enum { REACTORS = 4, COUNT = 8 << 20, WORKERS = 2 };

static struct {
    const trib_engine *engine; /* the engine that is watched */
    uint64_t most;             /* most bytes in flight on its device at once */
    uint32_t copies[REACTORS]; /* submitted copies, by core */
    uint32_t uneven;           /* most copies that one core was ahead of another */
} seen;

__typeof__(trib_device_submit) __real_trib_device_submit, __wrap_trib_device_submit;
void __wrap_trib_device_submit(trib_core *core, trib_device_task *device, trib_device_job *job,
                               void (*done)(trib_reactor *reactor, trib_post *post))
{
    __real_trib_device_submit(core, device, job, done);
    if (core->engine != seen.engine || job->kind != TRIB_DEVICE_TO_HOST) {
        return;
    }
    uint64_t bytes = 0;
    uint32_t least = UINT32_MAX;
    seen.copies[core->reactor->index]++;
    for (uint32_t i = 0; i < REACTORS; i++) {
        bytes += core->engine->cores[i].stages[TRIB_STAGE_COPY_D2H].bytes;
        least = seen.copies[i] < least ? seen.copies[i] : least;
    }
    const uint32_t ahead = seen.copies[core->reactor->index] - least;
    seen.uneven = ahead > seen.uneven ? ahead : seen.uneven;
    seen.most = bytes > seen.most ? bytes : seen.most;
}

/* A little more than the time of a partition of 512 KiB at 50 GB/s. */
static int64_t copy_ns(void *user, int32_t machine, int32_t rank)
{
    (void)user;
    (void)machine;
    (void)rank;
    return 12000;
}

static void on_machines(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->reactors = REACTORS;
    if (member < WORKERS) {
        config->device = "host";
        config->local_size = 1;
        config->local_rank = 0;
    }
}

static void cores_take_turns(void **state)
{
    (void)state;
    exchange exchanges[WORKERS];
    trib_host_world *world = trib_host_world_create();
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.cores = 2 * REACTORS;
    config.device_world = world;
    config.tweak = on_machines;
    sim_job *job = sim_bed_open(&config);
    const trib_host_pace pace = {.sim = job->sim, .late_ns = copy_ns};
    trib_host_world_pace(world, &pace);
    seen.engine = job->members[0].engine;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
        assert_non_null(exchanges[rank].buffer);
        assert_int_equal(sim_bed_hand_in_on_device(job, rank, COUNT, -1, &exchanges[rank]), TRIB_OK);
    }
    const int64_t until_ns = trib_sim_now(job->sim) + 60 * SECOND;
    assert_true(sim_job_run(job, until_ns, sim_bed_all_done, exchanges));
    const trib_stage_credit *credit = &trib_stage_copy_d2h.credit;
    uint32_t copies = 0;
    for (uint32_t i = 0; i < REACTORS; i++) {
        assert_true(seen.copies[i] > 2 * credit->tasks_least);
        copies += seen.copies[i];
    }
    const uint64_t partition = (uint64_t)COUNT * sizeof(int32_t) / copies;
    assert_true(seen.most <= credit->bytes + REACTORS * partition);
    assert_true(seen.most >= credit->bytes / 2);
    assert_true(seen.uneven * partition <= credit->bytes / REACTORS + 2 * partition);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    trib_host_world_free(world);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        free(exchanges[rank].buffer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cores_take_turns)};
    return cmocka_run_group_tests_name("copies from a device", tests, NULL, NULL);
}
