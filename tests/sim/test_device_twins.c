/* test_device_twins.c - ranks of a machine that have one GPU are told so, and nobody waits for NCCL to find out. */
#include <string.h>

#include "engine/cluster/gpus.h"
#include "tests/sim/sim_bed.h"

enum { MACHINES = 2, RANKS = 2, WORKERS = MACHINES * RANKS };

static void add_device(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->device = "host";
    config->local_size = RANKS;
    config->local_rank = (int32_t)(member % RANKS);
}

/* Forms a job whose rank i has the GPU of that address; ranks 0 and 1 are one machine, 2 and 3 another one. */
static void form(const char *const gpus[WORKERS], void (*check)(const sim_job *job))
{
    trib_host_world *world = trib_host_world_create();
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.per_machine = RANKS;
    config.device_world = world;
    config.tweak = add_device;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    if (job == NULL) {
        fail_msg("%s", error.text);
        return; /* not reached; for analysers that do not know fail_msg */
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        job->members[i].engine->env.kernel = 1 + i / RANKS;
        job->members[i].engine->env.gpu = trib_gpu_number(gpus[i]);
    }
    assert_true(sim_job_run(job, 30 * SECOND, sim_job_all_ready, NULL));
    check(job);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
    trib_host_world_free(world);
}

static void all_are_told_of_the_twins(const sim_job *job)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        const trib_error *ready = &job->members[i].ready;
        assert_int_equal(ready->status, TRIB_INVALID);
        if (strstr(ready->text, "rank 2 (") == NULL || strstr(ready->text, "rank 3 (") == NULL ||
            strstr(ready->text, "have the same GPU, 0000:3b:00.0") == NULL) {
            fail_msg("rank %u: %s", i, ready->text);
        }
    }
}

static void all_are_ready(const sim_job *job)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(job->members[i].ready.status, TRIB_OK);
    }
}

static void twins_end_the_job(void **state)
{
    (void)state;
    form((const char *const[]){"0000:3b:00.0", "0000:5e:00.0", "0000:3b:00.0", "0000:3b:00.0"},
         all_are_told_of_the_twins);
}

static void machines_have_the_same_addresses(void **state)
{
    (void)state;
    form((const char *const[]){"0000:3b:00.0", "0000:5e:00.0", "0000:3b:00.0", "0000:5e:00.0"}, all_are_ready);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twins_end_the_job),
        cmocka_unit_test(machines_have_the_same_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
