/*
 * test_worker_loss.c - workers and servers die in a job that goes on without them (TRIB_SURVIVE=workers). Each job is
 * run many times, and members die at other moments each time. An operation succeeds on all workers that are left or on
 * none, every result is the reference's, and the others go on with new ranks.
 */
#include <stdio.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/membership/commits.h"
#include "engine/membership/election.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/worker_loss.h"
#include "tests/support/sanitized.h"

static void colocated_worker_dies(void **state)
{
    (void)state;
    for (uint32_t workers = 2; workers <= WORKERS_MAX; workers++) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            const setting what = {.workers = workers,
                                  .deaths = 1,
                                  .colocated = true,
                                  .in_place = (kind & 1) != 0,
                                  .mixes = (kind & 2) != 0,
                                  .reactors = 1 + workers % 2};
            worker_loss_sweep(&what, 25);
        }
    }
}

static void worker_with_servers_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 3,
                              .servers = 1 + kind % 2,
                              .deaths = 1,
                              .colocated = (kind & 4) != 0,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 25);
    }
}

static void two_workers_die(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {.workers = 4,
                              .deaths = 2,
                              .colocated = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 25);
    }
}

/* Rank 0 dies, alone or with others, at work or between epochs. The others elect another coordinator. */
static void coordinator_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 12; kind++) {
        const uint32_t deaths = 1 + kind % 2, servers = kind / 4;
        const setting what = {.workers = deaths == 1 ? 3 : 5,
                              .servers = servers,
                              .deaths = deaths,
                              .first_dies = 1 + (kind % 4 == 3),
                              .colocated = servers == 0 || (kind & 1) != 0,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        worker_loss_sweep(&what, 25);
    }
}

static void worker_joins(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 2 + (kind & 1) * 2,
                              .servers = kind / 4,
                              .joins = 1,
                              .boundaries = 1,
                              .colocated = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        const int64_t none[DEATHS_MAX] = {0};
        (void)worker_loss_run(&what, none, kind + 1);
    }
}

static bool has_summed(const bed *self, uint32_t member)
{
    trib_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(trib_engine_get_stats(self->job->members[member].engine, &stats), TRIB_OK);
    return stats.bytes_summed > 0;
}

static bool has_servers(sim_job *job, void *argument)
{
    const bed *self = argument;
    (void)job;
    bool all = true;
    for (uint32_t i = 0; i < self->what->workers; i++) {
        const worker *at = &self->workers[i];
        all = all && at->servers == self->what->servers - self->deaths_left && at->through == TENSORS && !at->changing;
    }
    return all || self->text[0] != '\0';
}

/* A server starts while the job runs, beside others, after one is killed (which is how it comes back), or as the only
 * one. It waits, is admitted at the next boundary, and sums. */
static void server_joins(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 12; kind++) {
        const setting what = {.workers = 2 + (kind & 1),
                              .servers = 1 + kind / 4,
                              .late = 1,
                              .boundaries = 6,
                              .colocated = kind < 4,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1 + kind % 2};
        bed *self = worker_loss_open(&what, kind + 1);
        const uint32_t last = what.workers + what.servers - 1;
        const bool comes_back = what.servers == 3;
        if (comes_back) {
            sim_job_kill(self->job, last - 1);
            self->deaths_left = 1;
        }
        worker_loss_start_late(self, last);
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 100 * SECOND, has_servers, self));
        if (self->text[0] != '\0' || self->wrong > 0 || !self->job->members[last].ready_told) {
            worker_loss_fail(self, self->text);
        }
        assert_true(self->workers[0].epoch > 1 && has_summed(self, last));
        worker_loss_check_alike(self);
        worker_loss_close(self);
    }
}

static void last_server_dies(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {.workers = 3,
                              .servers = 1,
                              .deaths = 1,
                              .server_dies = true,
                              .in_place = (kind & 1) != 0,
                              .mixes = (kind & 2) != 0,
                              .reactors = 1};
        worker_loss_sweep(&what, 25);
    }
}

/* The silent worker is given up: the others are at work in another epoch, or know that the job is over. */
static bool is_given_up(sim_job *job, void *argument)
{
    const bed *self = argument;
    (void)job;
    bool goes_on = true;
    for (uint32_t i = 0; i < self->what->workers - 1; i++) {
        goes_on = goes_on && (i + 1 == self->what->silent || self->workers[i].epoch == 2);
    }
    return goes_on || self->text[0] != '\0';
}

/* A worker, or the coordinator's process, stands still between two epochs, and none of its connections ends. */
static void silence_between_epochs(void **state)
{
    (void)state;
    for (uint32_t silent = 1; silent <= 3; silent += 2) {
        const setting what = {.workers = 4, .colocated = true, .reactors = 1, .silent = silent};
        bed *self = worker_loss_open(&what, silent);
        const int64_t began_ns = trib_sim_now(self->job->sim);
        (void)sim_job_run(self->job, began_ns + SECOND / 1000, NULL, NULL);
        sim_job_kill(self->job, 3);
        (void)sim_job_run(self->job, began_ns + 2 * SECOND, NULL, NULL);
        assert_int_equal(self->workers[1].epoch, 1); /* all but the silent one wait for it */
        trib_sim_process_freeze(self->job->members[silent - 1].process, true);
        assert_true(sim_job_run(self->job, began_ns + 30 * SECOND, is_given_up, self));
        assert_int_equal(self->text[0] != '\0', silent == 1);
        assert_true(silent != 1 || strstr(self->text, "rank 0") != NULL);
        trib_sim_process_freeze(self->job->members[silent - 1].process, false);
        sim_job_kill(self->job, silent - 1);
        worker_loss_close(self);
    }
}

/* ---- Bugs that are worker_loss_planted, each in a process of its own, which must fail ---- */

__typeof__(trib_commits_take_settled) __real_trib_commits_take_settled, __wrap_trib_commits_take_settled;
trib_status __wrap_trib_commits_take_settled(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                             const void *payload, trib_error *error)
{
    const bool over = self->over;
    self->over =
        over && worker_loss_planted != BUG_COMMITS_TOO_LATE; /* a round is committed behind the end of the epoch */
    trib_status status = __real_trib_commits_take_settled(self, rank, frame, payload, error);
    for (uint32_t i = 0; worker_loss_planted == BUG_COMMITS_TOO_SOON && status == TRIB_OK && i + 1 < self->worker_count;
         i++) {
        status = __real_trib_commits_take_settled(self, i, frame, payload, error); /* all but one count for nothing */
    }
    self->over = over;
    return status;
}

__typeof__(trib_commit_take) __real_trib_commit_take, __wrap_trib_commit_take;
trib_status __wrap_trib_commit_take(trib_core *core, const trib_frame *frame, const void *payload, trib_error *error)
{
    static uint32_t calls;
    const bool strikes =
        worker_loss_planted == BUG_COMMIT_IGNORED && ++calls % 20 == 0; /* a worker does not hear of a success */
    return strikes ? TRIB_OK : __real_trib_commit_take(core, frame, payload, error);
}

static void planted_bugs_are_found(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("# planted bugs are looked for without sanitizers\n");
    skip();
#endif
    worker_loss_seed = mmap(NULL, sizeof *worker_loss_seed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(worker_loss_seed != MAP_FAILED);
    for (int bug = BUG_NONE; bug < BUG_COUNT; bug++) {
        *worker_loss_seed = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
                _exit(0);
            }
            worker_loss_planted = bug;
            const setting what = {.workers = 5, .deaths = 1, .colocated = true, .reactors = 2};
            worker_loss_sweep(&what, bug == BUG_NONE ? 400 : 2000);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (passed != (bug == BUG_NONE)) {
            fail_msg("planted bug %d %s", bug, passed ? "is not found" : "is found where there is none");
        }
        if (!passed) {
            printf("planted bug %d is found by run %llu\n", bug, (unsigned long long)*worker_loss_seed);
        }
    }
    munmap((void *)(uintptr_t)worker_loss_seed, sizeof *worker_loss_seed);
    worker_loss_seed = NULL;
}

static bool is_through(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool all = true;
    for (uint32_t i = 0; i < self->what->workers; i++) {
        const worker *at = &self->workers[i];
        /* where workers sum, too, it takes no epoch to go on without the server */
        const bool has_none = at->servers == 0 || self->what->colocated;
        all = all && (job->members[i].killed || (!at->changing && has_none && at->through == TENSORS));
    }
    return all;
}

static void expect_through(bed *self, uint32_t kind)
{
    if (!sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, is_through, self) ||
        self->text[0] != '\0') {
        fail_msg("kind %u: %s", kind, self->text);
    }
    worker_loss_check_alike(self);
    worker_loss_close(self);
}

static bool elects(sim_job *job, void *argument)
{
    return trib_election_is_open(job->members[*(const uint32_t *)argument].engine);
}

/* A server is drained after the coordinator has died. It votes, and asks the next one. */
static void a_server_goes_after_an_election(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        const setting what = {.workers = 2, .servers = 1, .reactors = 1 + kind / 2};
        bed *self = worker_loss_open(&what, kind + 1);
        uint32_t server = 2;
        (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + (1 + kind) * (SECOND / 5000), NULL, NULL);
        sim_job_kill(self->job, 0);
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, elects, &server));
        assert_true(sim_job_drain(self->job, server));
        expect_through(self, kind);
    }
}

/* A server is drained, which ends the epoch. One worker sees it go before it hears that from the coordinator. */
static void a_server_goes_before_the_word(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 8; kind++) {
        const setting what = {.workers = 3, .servers = 1, .colocated = (kind & 1) != 0, .reactors = 1 + kind / 4};
        bed *self = worker_loss_open(&what, kind + 1);
        const int64_t began_ns = trib_sim_now(self->job->sim);
        trib_sim_node *coordinator = self->job->members[0].node, *other = self->job->members[2].node;
        (void)sim_job_run(self->job, began_ns + (1 + kind) * (SECOND / 5000), NULL, NULL);
        trib_sim_node_shun(coordinator, other, true);
        assert_true(sim_job_drain(self->job, 3));
        (void)sim_job_run(self->job, began_ns + SECOND / 2, NULL, NULL);
        trib_sim_node_shun(coordinator, other, false);
        expect_through(self, kind);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_worker_dies),
        cmocka_unit_test(worker_with_servers_dies),
        cmocka_unit_test(two_workers_die),
        cmocka_unit_test(last_server_dies),
        cmocka_unit_test(coordinator_dies),
        cmocka_unit_test(worker_joins),
        cmocka_unit_test(silence_between_epochs),
        cmocka_unit_test(planted_bugs_are_found),
        cmocka_unit_test(server_joins),
        cmocka_unit_test(a_server_goes_before_the_word),
        cmocka_unit_test(a_server_goes_after_an_election),
    };
    return cmocka_run_group_tests_name("worker loss", tests, NULL, NULL);
}
