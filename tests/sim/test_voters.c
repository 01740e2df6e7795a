/*
 * test_voters.c - what a coordinator or a candidate hears at a bad moment, or does not: half of a vote, nothing of a
 * member whose loss has ended the epoch, a vote of a member that has come back already, a worker's word about an
 * operation after the end of the epoch, or none as it has died. A member hears a decision that it cannot share.
 */
#include <string.h>

#include "engine/membership/commits.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/election_internal.h"
#include "engine/membership/formation.h"
#include "engine/membership/member_internal.h"
#include "engine/worker/op_commit.h"
#include "tests/sim/worker_loss.h"

static void run_for(const bed *self, int64_t for_ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + for_ns, NULL, NULL);
}

static void expect_all_but(bed *self, uint32_t set)
{
    if (!worker_loss_are_over(self, set)) {
        fail_msg("the others have not gone on: %s", self->text);
    }
    worker_loss_check_alike(self);
    worker_loss_close(self);
}

static bool comes_back(sim_job *job, void *argument)
{
    const uint32_t *member = argument;
    const trib_engine *engine = job->members[*member].engine;
    return atomic_load(&engine->changing) && engine->member != NULL && !engine->member->joined;
}

/* ---- A vote that is longer than one frame ---- */

static const trib_engine *slow_voter; /* the last frame of its votes does not leave it */

__typeof__(trib_link_send_copy) __real_trib_link_send_copy, __wrap_trib_link_send_copy;
void __wrap_trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size)
{
    if (link->core->engine == slow_voter && frame.type == TRIB_FRAME_VOTE) {
        frame.root = 0; /* more follows */
    }
    __real_trib_link_send_copy(link, frame, payload, size);
}

/* Of three workers the first one dies, and half of the last one's vote is there: the other one has no majority. */
static void half_a_vote_does_not_count(void **state)
{
    (void)state;
    const setting what = {.workers = 3, .servers = 0, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    run_for(self, SECOND / 1000);
    slow_voter = self->job->members[2].engine;
    sim_job_kill(self->job, 0);
    run_for(self, 2 * SECOND);
    const trib_election *election = self->job->members[1].engine->election;
    assert_non_null(election);
    assert_true(election->is_open && election->votes[2].link != NULL);
    assert_false(self->job->members[1].engine->formation.coordinates);
    slow_voter = NULL;
    assert_true(trib_sim_net_reset(self->job->net, 0)); /* it votes again */
    for (uint64_t i = 1; i < 16; i++) {
        (void)trib_sim_net_reset(self->job->net, i);
    }
    run_for(self, 60 * SECOND);
    expect_all_but(self, 1);
}

/* ---- A member whose loss has ended the epoch ---- */

/* A worker is cut off, and the coordinator dies when the others come back to it. They do not wait for that worker's
 * vote, though its address does not refuse. */
static void a_lost_member_has_no_vote_to_wait_for(void **state)
{
    (void)state;
    const setting what = {.workers = 5, .servers = 0, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    uint32_t first = 1;
    run_for(self, SECOND / 1000);
    trib_sim_node_regroup(self->job->members[4].node, 1);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, comes_back, &first));
    sim_job_kill(self->job, 0);
    run_for(self, SECOND);
    assert_true(worker_loss_are_over(self, 1u | 1u << 4));
    trib_sim_node_regroup(self->job->members[4].node, 0);
    run_for(self, 60 * SECOND);
    expect_all_but(self, 1u | 1u << 4);
}

/* ---- A voter that has come back ---- */

static uint32_t unnoticed; /* so often the coordinator has not noticed that a voter's last connection has ended */

__typeof__(trib_formation_may_return) __real_trib_formation_may_return, __wrap_trib_formation_may_return;
bool __wrap_trib_formation_may_return(const trib_coordinator *self, uint32_t epoch, uint32_t member)
{
    const bool may = __real_trib_formation_may_return(self, epoch, member);
    if (may && unnoticed > 0) {
        unnoticed--;
        return false;
    }
    return may;
}

/* A member is cut off at the end of an epoch, and votes when it is back. */
static void a_voter_whose_place_is_taken_comes_again(void **state)
{
    (void)state;
    const setting what = {.workers = 5, .servers = 0, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    run_for(self, SECOND / 1000);
    trib_sim_node_regroup(self->job->members[3].node, 1);
    sim_job_kill(self->job, 4);
    run_for(self, 3 * SECOND);
    unnoticed = 2;
    trib_sim_node_regroup(self->job->members[3].node, 0);
    run_for(self, 60 * SECOND);
    assert_int_equal(unnoticed, 0);
    expect_all_but(self, 1u << 4);
}

/* ---- Words that come late ---- */

enum { LATE_ROUND = 1000 };
static bool says_late;        /* all workers are through with a round when the epoch has just ended */
static uint32_t late_commits; /* workers that were told of it */

__typeof__(trib_formation_end_epoch) __real_trib_formation_end_epoch, __wrap_trib_formation_end_epoch;
void __wrap_trib_formation_end_epoch(trib_coordinator *self, const trib_cause *cause)
{
    const bool was_over = self->over;
    __real_trib_formation_end_epoch(self, cause);
    for (uint32_t i = 0; says_late && !was_over && self->over && i < self->worker_count; i++) {
        unsigned char payload[TRIB_SETTLED_BYTES];
        trib_writer writer = {.data = payload, .capacity = sizeof payload};
        trib_error error = {.status = TRIB_OK};
        trib_put_u32(&writer, 0);
        trib_put_u32(&writer, LATE_ROUND);
        const trib_frame frame = {.type = TRIB_FRAME_SETTLED, .payload_size = sizeof payload};
        assert_int_equal(trib_commits_take_settled(self, i, &frame, payload, &error), TRIB_OK);
    }
}

__typeof__(trib_commit_take) __real_trib_commit_take, __wrap_trib_commit_take;
trib_status __wrap_trib_commit_take(trib_core *core, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    (void)trib_get_u32(&reader);
    late_commits += trib_get_u32(&reader) == LATE_ROUND;
    return __real_trib_commit_take(core, frame, payload, error);
}

/* Workers have been told of the end, which decides. Some would take a success that others do not hear of. */
static void a_success_after_the_end_is_none(void **state)
{
    (void)state;
    const setting what = {.workers = 3, .servers = 0, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    run_for(self, SECOND / 1000);
    says_late = true;
    sim_job_kill(self->job, 2);
    run_for(self, 60 * SECOND);
    says_late = false;
    assert_int_equal(late_commits, 0);
    expect_all_but(self, 1u << 2);
}

/* ---- A worker that dies before it says that it is through ---- */

static bool both_hold(sim_job *job, void *unused)
{
    (void)unused;
    return atomic_load(&job->members[0].engine->ops_held) + atomic_load(&job->members[1].engine->ops_held) == 2;
}

/* Two of three workers have the sum. The third one, which has contributed and does not hear of it, dies. */
static void who_is_dead_holds_no_success(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.survive = TRIB_SURVIVE_WORKERS;
    sim_job *job = sim_bed_open(&config);
    int32_t data[3] = {1, 2, 4};
    exchange ops[3] = {{.buffer = &data[0]}, {.buffer = &data[1]}, {.buffer = &data[2]}};
    for (uint32_t rank = 0; rank < 3; rank++) {
        sim_bed_begin(job, 2 - rank, "a", 1, &ops[2 - rank], 0, NULL);
        if (rank == 0) { /* the tensor is known, and the contribution is on its way */
            (void)sim_bed_declare(job, 0, "a", 1);
            (void)sim_bed_declare(job, 1, "a", 1);
            (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
            trib_sim_node_block(job->members[2].node, false, true);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, both_hold, NULL));
    assert_int_equal(ops[0].done + ops[1].done, 0);
    sim_job_kill(job, 2);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, NULL, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(ops[rank].done, 1);
        assert_int_equal(ops[rank].status, TRIB_OK);
        assert_int_equal(data[rank], 7);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* The coordinator lives and awaits a worker that was cut off, and that has taken another decision. Nobody else was
 * elected. */
static void a_coordinator_that_decides_otherwise_is_told(void **state)
{
    (void)state;
    const setting what = {.workers = 4, .colocated = true, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    const sim_member *last = &self->job->members[3];
    sim_job_kill(self->job, 1);
    trib_sim_node_regroup(self->job->members[3].node, 1);
    run_for(self, 9 * SECOND / 2);
    assert_true(trib_election_is_open(last->engine));
    last->engine->formation.is_settled = last->engine->formation.at_boundary = true;
    trib_sim_node_regroup(self->job->members[3].node, 0);
    run_for(self, SECOND / 2);
    trib_sim_node_regroup(self->job->members[3].node, 1);
    run_for(self, 90 * SECOND);
    assert_true(last->ended_told);
    if (strstr(last->ended.text, "the coordinator has decided otherwise which operations succeeded") == NULL) {
        fail_msg("%s", last->ended.text);
    }
    worker_loss_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_vote_does_not_count),
        cmocka_unit_test(a_lost_member_has_no_vote_to_wait_for),
        cmocka_unit_test(a_voter_whose_place_is_taken_comes_again),
        cmocka_unit_test(a_success_after_the_end_is_none),
        cmocka_unit_test(who_is_dead_holds_no_success),
        cmocka_unit_test(a_coordinator_that_decides_otherwise_is_told),
    };
    return cmocka_run_group_tests_name("voters", tests, NULL, NULL);
}
