/*
 * test_verdict.c - members that do not reach each other, while the coordinator hears both (membership/verdict.h). The
 * one that fails to reach the most others is lost, and all others go on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/link/link_cause.h"
#include "engine/membership/verdict.h"
#include "tests/sim/worker_loss.h"

/* The pairs that do not reach each other: the first member of the case, and each of the others. */
typedef struct dispute {
    uint32_t workers, servers, one, others[3], other_count;
    uint32_t loser;
    int64_t apart_ns; /* time from one pair to the next */
    enum { QUIET, ONE_FALLS_SILENT, CONTROL_BREAKS, COORDINATOR_DOUBTS, DOUBTED_GOES, FORGED, REPEATED } trouble;
} dispute;

typedef struct scene {
    bed *bed;
    const dispute *what;
    trib_coordinator *told; /* it has had the first report */
    trib_cause report;
} scene;

static bool decides_at_once; /* the planted bug: the first report decides */
static scene now;

static trib_cause lost(uint32_t subject, uint32_t origin)
{
    return trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_CONNECTION_LOST, TRIB_SUBJECT_MEMBER, subject, origin, "lost");
}

/* Happens with the first report. */
static void make_trouble(trib_coordinator *self, const trib_cause *report)
{
    const dispute *what = now.what;
    const uint32_t one = what->one, other = report->subject == one ? report->origin : report->subject;
    const uint32_t last = what->workers + what->servers - 1;
    if (what->trouble == ONE_FALLS_SILENT) {
        trib_sim_node_block(now.bed->job->members[one].node, true, true);
    } else if (what->trouble == CONTROL_BREAKS) {
        trib_conn *conn = self->slots[other].link->conn;
        conn->transport->ops->conn_close(conn, false);
    } else if (what->trouble == COORDINATOR_DOUBTS) {
        const trib_cause doubt = lost(one, 0);
        trib_verdict_doubt(self, &doubt);
    } else if (what->trouble == DOUBTED_GOES) {
        const trib_cause doubt = lost(last, one), loss = lost(last, TRIB_NO_MEMBER);
        trib_verdict_doubt(self, &doubt);
        trib_coordinator_take_loss(self, &loss);
        assert_true(self->slots[last].lost && !self->over);
    }
}

__typeof__(trib_verdict_waits) __real_trib_verdict_waits, __wrap_trib_verdict_waits;
bool __wrap_trib_verdict_waits(trib_coordinator *self, const trib_cause *cause)
{
    const bool waits = !decides_at_once && __real_trib_verdict_waits(self, cause);
    if (waits && now.told == NULL) {
        now.told = self;
        now.report = *cause;
        make_trouble(self, cause);
    }
    return waits;
}

/* Reports about the first member of the case name the last worker as the one that has lost it. */
__typeof__(trib_link_send_cause) __real_trib_link_send_cause, __wrap_trib_link_send_cause;
void __wrap_trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause)
{
    trib_cause told = *cause;
    const bool is_report = frame.type == TRIB_FRAME_SERVER_LOST && cause->origin == link->host->engine->member_id;
    if (is_report && now.what->trouble == FORGED && cause->subject == now.what->one && cause->origin != 0) {
        told.origin = now.what->workers - 1;
    }
    __real_trib_link_send_cause(link, frame, &told);
}

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
    if (what->trouble == REPEATED && self->told == job->members[0].engine->coordinator && self->told != NULL) {
        (void)__real_trib_verdict_waits(self->told, &self->report);
    }
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
    now = (scene){.what = what};
    now.bed = worker_loss_open(&job, seed);
    sim_member *members = now.bed->job->members;
    const int64_t began_ns = trib_sim_now(now.bed->job->sim);
    (void)sim_job_run(now.bed->job, began_ns + (int64_t)(seed * 61 % 1000) * 1000, NULL, NULL);
    for (uint32_t i = 0; i < what->other_count; i++) {
        (void)sim_job_run(now.bed->job, trib_sim_now(now.bed->job->sim) + (i > 0 ? what->apart_ns : 0), NULL, NULL);
        trib_sim_node_shun(members[what->one].node, members[what->others[i]].node, true);
    }
    const bool over = sim_job_run(now.bed->job, began_ns + 60 * SECOND, have_gone_on, &now);
    for (uint32_t i = 0; i < what->workers; i++) {
        const worker *at = &now.bed->workers[i];
        if (!over || (at->is_out && i != what->loser) || now.bed->wrong > 0) {
            fail_msg("%u does not reach %u others, trouble %d, seed %llu: %s, %u wrong, worker %u: epoch %u of %u, %s",
                     what->one, what->other_count, (int)what->trouble, (unsigned long long)seed,
                     over ? "over" : "not over", now.bed->wrong, i, at->epoch, at->count, now.bed->text);
        }
    }
    now.bed->workers[what->loser].is_out = loses_worker(what);
    worker_loss_check_alike(now.bed);
    worker_loss_close(now.bed);
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
    {.workers = 3, .one = 1, .others = {2}, .other_count = 1, .loser = 1, .trouble = ONE_FALLS_SILENT},
    {.workers = 5, .one = 2, .others = {1, 3, 4}, .other_count = 3, .loser = 2, .trouble = CONTROL_BREAKS},
    {.workers = 3, .one = 1, .others = {2}, .other_count = 1, .loser = 1, .trouble = COORDINATOR_DOUBTS},
    {.workers = 3, .servers = 3, .one = 1, .others = {3}, .other_count = 1, .loser = 3, .trouble = DOUBTED_GOES},
    {.workers = 4, .one = 1, .others = {2}, .other_count = 1, .loser = 2, .trouble = FORGED},
    {.workers = 4, .one = 1, .others = {2, 3}, .other_count = 2, .loser = 1, .trouble = REPEATED},
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
