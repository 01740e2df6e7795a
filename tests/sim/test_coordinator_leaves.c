/*
 * test_coordinator_leaves.c - rank 0 leaves in good order, and the others go on without it. A bug that is planted there
 * must be found.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/membership/coordinator_internal.h"
#include "engine/membership/formation.h"
#include "tests/sim/boundary_program.h"

static bool ends_job; /* the planted bug: a coordinator that leaves ends the job */

__typeof__(trib_formation_end_epoch) __real_trib_formation_end_epoch, __wrap_trib_formation_end_epoch;
void __wrap_trib_formation_end_epoch(trib_coordinator *self, const trib_cause *cause)
{
    if (ends_job && cause->status == TRIB_PEER_LEFT) {
        trib_coordinator_end_job(self, cause);
        return;
    }
    __real_trib_formation_end_epoch(self, cause);
}

/* Rank 0 leaves in good order, and the steps of the others are longer than it waits for them. They go on without it. */
static void the_coordinator_may_leave(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        sim_job_config config = sim_job_config_default(WORKERS, kind / 2);
        config.engine.survive = kind % 2 == 0 ? TRIB_SURVIVE_WORKERS : TRIB_SURVIVE_CONTINUE;
        sim_job *job = sim_bed_open(&config);
        sim_job_leave(job, 0);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * config.engine.close_timeout_ns, NULL, NULL);
        program programs[WORKERS] = {{.job = job}};
        for (uint32_t i = 1; i < WORKERS; i++) {
            programs[i] = (program){.job = job, .index = i};
            advance(&programs[i]);
        }
        survivor others = {.programs = programs, .dead = 0, .before = 0};
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, have_gone_on, &others));
        const char *address = job->members[1].engine->coordinator_address;
        others.before = programs[1].boundaries;
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, have_gone_on, &others));
        /* other threads may still read the text */
        assert_ptr_equal(address, job->members[1].engine->coordinator_address);
        assert_int_equal(job->members[1].engine->roster->worker_count, WORKERS - 1);
        assert_int_equal(job->members[1].engine->roster->lost, 0);
        assert_true(sim_job_close(job, 60 * SECOND));
        sim_job_free(job);
    }
}

static void a_job_that_ends_with_it_is_found(void **state)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
            _exit(0);
        }
        ends_job = true;
        the_coordinator_may_leave(state);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_coordinator_may_leave),
                                       cmocka_unit_test(a_job_that_ends_with_it_is_found)};
    return cmocka_run_group_tests_name("the coordinator leaves", tests, NULL, NULL);
}
