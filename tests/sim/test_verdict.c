/*
 * test_verdict.c - members that do not reach each other, while the coordinator hears both (membership/verdict.h). The
 * one that does not reach most others is lost, and all others go on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/membership/verdict.h"
#include "tests/sim/worker_loss.h"

/* The pairs that do not reach each other: the first member of the case, and each of the others. */
typedef struct dispute {
    uint32_t workers, servers, one, others[3], other_count;
    uint32_t loser;
    int64_t apart_ns; /* time from one pair to the next */
} dispute;

static bool decides_at_once; /* the planted bug: the first report decides */

__typeof__(trib_verdict_waits) __real_trib_verdict_waits, __wrap_trib_verdict_waits;
bool __wrap_trib_verdict_waits(trib_coordinator *self, const trib_cause *cause)
{
    return !decides_at_once && __real_trib_verdict_waits(self, cause);
}

typedef struct scene {
    bed *bed;
    const dispute *what;
} scene;

static bool loses_worker(const dispute *what)
{
    return what->loser < what->workers;
}

/* The others are at work without the loser, and that one knows it. */
static bool have_gone_on(sim_job *job, void *argument)
{
    const scene *self = argument;
    const dispute *what = self->what;
    bool all = job->members[what->loser].ended_told;
    for (uint32_t i = 0; i < what->workers; i++) {
        const worker *at = &self->bed->workers[i];
        all = all && (i == what->loser || at->is_out ||
                      (!at->changing && at->through == TENSORS && (loses_worker(what) ? at->epoch == 2 : true)));
    }
    return all;
}

static void run(const dispute *what, uint64_t seed)
{
    const setting job = {.workers = what->workers,
                         .servers = what->servers,
                         .colocated = what->servers == 0,
                         .in_place = seed % 2 == 0,
                         .reactors = 1 + seed % 2};
    scene self = {.bed = worker_loss_open(&job, seed), .what = what};
    sim_member *members = self.bed->job->members;
    const int64_t began_ns = trib_sim_now(self.bed->job->sim);
    (void)sim_job_run(self.bed->job, began_ns + (int64_t)(seed * 61 % 1000) * 1000, NULL, NULL);
    for (uint32_t i = 0; i < what->other_count; i++) {
        (void)sim_job_run(self.bed->job, trib_sim_now(self.bed->job->sim) + (i > 0 ? what->apart_ns : 0), NULL, NULL);
        trib_sim_node_shun(members[what->one].node, members[what->others[i]].node, true);
    }
    const bool over = sim_job_run(self.bed->job, began_ns + 60 * SECOND, have_gone_on, &self);
    for (uint32_t i = 0; i < what->workers; i++) {
        const worker *at = &self.bed->workers[i];
        if (!over || (at->is_out && i != what->loser) || self.bed->wrong > 0) {
            fail_msg("%u does not reach %u others, seed %llu: %s, %u wrong, worker %u: epoch %u of %u, %s", what->one,
                     what->other_count, (unsigned long long)seed, over ? "over" : "not over", self.bed->wrong, i,
                     at->epoch, at->count, self.bed->text);
        }
    }
    self.bed->workers[what->loser].is_out = loses_worker(what);
    worker_loss_check_alike(self.bed);
    worker_loss_close(self.bed);
}

static const dispute disputes[] = {
    {.workers = 4, .one = 3, .others = {1, 2}, .other_count = 2, .loser = 3},
    {.workers = 4, .one = 1, .others = {2, 3}, .other_count = 2, .loser = 1},
    {.workers = 4, .one = 1, .others = {2, 3}, .other_count = 2, .loser = 1, .apart_ns = 5 * SECOND},
    {.workers = 3, .one = 1, .others = {2}, .other_count = 1, .loser = 2},
    {.workers = 5, .one = 2, .others = {1, 3, 4}, .other_count = 3, .loser = 2},
    {.workers = 3, .servers = 2, .one = 1, .others = {3}, .other_count = 1, .loser = 3},
    {.workers = 3, .servers = 2, .one = 1, .others = {3, 4}, .other_count = 2, .loser = 1},
    {.workers = 4, .servers = 3, .one = 2, .others = {4, 5, 6}, .other_count = 3, .loser = 2},
};

static void sweep(void)
{
    for (size_t i = 0; i < sizeof disputes / sizeof disputes[0]; i++) {
        for (uint64_t seed = 1; seed <= 6; seed++) {
            run(&disputes[i], seed);
        }
    }
}

static void the_one_that_reaches_fewest_is_lost(void **state)
{
    (void)state;
    sweep();
}

static void a_first_report_that_decides_is_found(void **state)
{
    (void)state;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL) {
            _exit(0);
        }
        decides_at_once = true;
        sweep();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_one_that_reaches_fewest_is_lost),
                                       cmocka_unit_test(a_first_report_that_decides_is_found)};
    return cmocka_run_group_tests_name("verdict", tests, NULL, NULL);
}
