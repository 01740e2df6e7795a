/*
 * test_many_stopped.c - the coordinator, the first candidate and many others stand still at the same time, more than a
 * member asks for signs of life at a time. The next candidate, which asks them in turns, hears that others live all the
 * same, and is elected soon.
 */
#include "engine/membership/election.h"
#include "tests/sim/sim_bed.h"

#define TIMEOUT_NS (4 * SECOND)

enum { WORKERS = 60, ATTEMPTS = 16, HANGING = 28, CANDIDATE = 2 };

static bool is_elected(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[CANDIDATE].engine->formation.coordinates;
}

static void the_next_candidate_is_elected(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    config.engine.peer_timeout_ns = TIMEOUT_NS;
    sim_job *job = sim_bed_open(&config);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    const int64_t began_ns = trib_sim_now(job->sim);
    for (uint32_t i = 0; i < WORKERS; i++) {
        job->members[i].engine->env.half_open_max = ATTEMPTS;
        if (i < CANDIDATE || i + HANGING - CANDIDATE >= WORKERS) {
            trib_sim_process_freeze(job->members[i].process, true);
        }
    }
    /* The loss is known in a quarter of the timeout more, and each of the others has two turns of a second. */
    const int64_t most_ns = TIMEOUT_NS + TIMEOUT_NS / TRIB_ELECTION_DOUBT_SHARE + 5 * SECOND / 2;
    assert_true(sim_job_run(job, began_ns + most_ns, is_elected, NULL));
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (i < CANDIDATE || i + HANGING - CANDIDATE >= WORKERS) {
            sim_job_kill(job, i);
        }
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_candidate_is_elected)};
    return cmocka_run_group_tests_name("many stopped", tests, NULL, NULL);
}
