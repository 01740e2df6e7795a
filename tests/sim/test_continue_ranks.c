/*
 * test_continue_ranks.c - a worker that joins a job whose ranks stay (TRIB_SURVIVE=continue) gets a rank that nobody
 * has had, also where the one of the highest rank is lost, and the coordinator that knew of it.
 */
#include "tests/sim/sim_bed.h"

enum { WORKERS = 5, JOINS = WORKERS - 1, HIGHEST = WORKERS - 2 };

static void joins_later(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)link;
    config->worker_count = JOINS;
    config->coordinator = "n0:4000,n1:4000,n2:4000";
    config->rank = member == JOINS ? -1 : config->rank;
}

static bool are_ready(sim_job *job, void *unused)
{
    bool all = true;
    (void)unused;
    for (uint32_t i = 0; i < JOINS; i++) {
        all = all && job->members[i].ready_told;
    }
    return all;
}

/* True if all that live, but for the one that joins, are so many in an epoch. */
static bool are_so_many(sim_job *job, void *argument)
{
    bool all = true;
    for (uint32_t i = 0; i < JOINS; i++) {
        trib_membership now = {.struct_size = sizeof now};
        all = all &&
              (job->members[i].killed || (trib_membership_get(job->members[i].engine, &now) == TRIB_OK &&
                                          now.status == TRIB_OK && now.worker_count == *(const int32_t *)argument));
    }
    return all;
}

static void lose(sim_job *job, uint32_t lost, int32_t left)
{
    sim_job_kill(job, lost);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, are_so_many, &left));
}

static bool has_joined(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[JOINS].ready_told;
}

static void join(sim_job *job)
{
    trib_error error = {.text = ""};
    for (uint32_t i = 0; i < JOINS; i++) {
        if (!job->members[i].killed) {
            assert_int_equal(trib_membership_advance(job->members[i].engine, NULL, NULL, &error), TRIB_OK);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, has_joined, NULL));
    trib_membership now = {.struct_size = sizeof now};
    assert_int_equal(trib_membership_get(job->members[JOINS].engine, &now), TRIB_OK);
    assert_int_equal(now.rank, JOINS);
}

static sim_job *open_job(void)
{
    trib_error error = {.text = ""};
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    config.engine.colocate = TRIB_COLOCATE_ON;
    config.tweak = joins_later;
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    assert_true(sim_job_run(job, 10 * SECOND, are_ready, NULL));
    return job;
}

static void ranks_are_not_used_again(void **state)
{
    (void)state;
    for (uint32_t deaths = 1; deaths <= 2; deaths++) {
        sim_job *job = open_job();
        lose(job, HIGHEST, 3);
        if (deaths == 2) {
            lose(job, 0, 2);
        }
        (void)sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, NULL, NULL); /* it finds the coordinator */
        join(job);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_are_not_used_again)};
    return cmocka_run_group_tests_name("ranks that stay", tests, NULL, NULL);
}
