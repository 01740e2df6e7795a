/*
 * test_takeover.c - a server is lost (TRIB_SURVIVE=servers) while one worker still receives a round's sum, and another
 * one has gone on: it has given up the next round, has left, has released the tensor, or does not know of the loss yet.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/summation.h"
#include "engine/base/container_of.h"
#include "engine/job/losses.h"
#include "engine/worker/op.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 16384, SLOW = 1, OTHER = 2 };

/* ---- A worker has sent the last chunk of a copy that it gives away ---- */

static bool keeps_back;        /* what follows from that is kept back until the worker has taken another loss */
static bool is_last;           /* the chunk has just been sent */
static trib_post *kept_back;   /* NULL: nothing yet */
static trib_core *kept_at;     /* the worker's core */
static uint32_t next_owner;    /* to which the copy has gone */
static uint32_t losses_before; /* that the core had taken then */

__typeof__(trib_link_send) __real_trib_link_send, __wrap_trib_link_send;
trib_status __wrap_trib_link_send(trib_link *link, const trib_frame *frame, const void *payload,
                                  void (*done)(trib_send_record *, trib_status), void *context)
{
    const trib_status status = __real_trib_link_send(link, frame, payload, done, context);
    if (keeps_back && frame->type == TRIB_FRAME_PUSH && link->core->orphans != NULL &&
        frame->collective == TRIB_COLLECTIVE_BROADCAST && frame->root == link->core->engine->member_id &&
        frame->chunk + 1 == frame->chunk_count) {
        is_last = true;
        next_owner = link->peer;
    }
    return status;
}

__typeof__(trib_reactor_defer) __real_trib_reactor_defer, __wrap_trib_reactor_defer;
void __wrap_trib_reactor_defer(trib_reactor *reactor, trib_post *post)
{
    if (!is_last) {
        __real_trib_reactor_defer(reactor, post);
        return;
    }
    keeps_back = is_last = false;
    kept_back = post;
    kept_at = reactor->owner;
    losses_before = kept_at->losses_taken;
}

__typeof__(trib_losses_take) __real_trib_losses_take, __wrap_trib_losses_take;
void __wrap_trib_losses_take(trib_losses *losses, uint32_t index)
{
    const trib_engine *engine = trib_container_of(losses, trib_engine, losses);
    __real_trib_losses_take(losses, index);
    if (kept_back != NULL && kept_at->engine == engine && kept_at->losses_taken > losses_before) {
        __real_trib_reactor_defer(kept_at->reactor, kept_back);
        kept_back = NULL;
    }
}

static bool is_kept_back(sim_job *job, void *unused)
{
    (void)job;
    (void)unused;
    return kept_back != NULL;
}

/* ---- The job ---- */

typedef struct bed {
    sim_job *job;
    uint32_t owner, other_server;
    int32_t buffers[WORKERS][COUNT];
    exchange ops[WORKERS];
} bed;

static bool are_done(sim_job *job, void *argument)
{
    const exchange *ops = argument;
    (void)job;
    return ops[0].done > 0 && ops[SLOW].done > 0 && ops[OTHER].done > 0;
}

static bool is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const exchange *)argument)->done > 0;
}

static void run_for(const bed *self, int64_t ns)
{
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + ns, NULL, NULL);
}

typedef trib_status operation(trib_engine *, const trib_op_params *, trib_op **, trib_error *);

static void begin_as(bed *self, uint32_t rank, operation *operate, int64_t timeout_ns)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    for (uint32_t i = 0; i < COUNT; i++) {
        self->buffers[rank][i] = (int32_t)(i * (rank + 1));
    }
    self->ops[rank] = (exchange){.buffer = self->buffers[rank]};
    params.tensor = sim_bed_declare(self->job, rank, "a", COUNT);
    params.input = params.output = self->buffers[rank];
    params.timeout_ns = timeout_ns;
    params.done_cb = sim_bed_on_done;
    params.user = &self->ops[rank];
    assert_int_equal(operate(self->job->members[rank].engine, &params, NULL, &error), TRIB_OK);
}

static void begin(bed *self, uint32_t rank, int64_t timeout_ns)
{
    begin_as(self, rank, trib_push_pull, timeout_ns);
}

static void expect_sum(const bed *self, uint32_t rank)
{
    assert_int_equal(self->ops[rank].status, TRIB_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(self->buffers[rank][i], i * 6);
    }
}

static void begin_all(bed *self)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        begin(self, rank, -1);
    }
}

static void end_all(bed *self)
{
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, are_done, self->ops));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        expect_sum(self, rank);
    }
}

/* Two workers are through with round 2, and one is not. */
static bed *open_bed_of(uint32_t servers, uint32_t partitions, uint64_t slow_bits)
{
    sim_job_config config = sim_job_config_default(WORKERS, servers);
    config.engine.survive = TRIB_SURVIVE_SERVERS;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.chunk_bytes = 4096;
    config.engine.partition_bytes = COUNT * sizeof(int32_t) / partitions;
    bed *self = calloc(1, sizeof *self);
    self->job = sim_bed_open(&config);
    begin_all(self);
    end_all(self);
    const trib_engine *engine = self->job->members[0].engine;
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        const trib_tensor *tensor = engine->tensors[i];
        self->owner = strcmp(tensor->name, "a") == 0 ? tensor->owners[SLOW % partitions].member : self->owner;
    }
    assert_true(self->owner >= WORKERS);
    trib_sim_link link = config.link;
    link.ingress_bits = slow_bits;
    trib_sim_node_relink(self->job->members[SLOW].node, &link);
    begin_all(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[0]));
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[OTHER]));
    assert_int_equal(self->ops[SLOW].done, 0);
    return self;
}

static bed *open_bed(void)
{
    return open_bed_of(2, 1, 1000000); /* the sum takes half a second */
}

static void lose_owner(bed *self)
{
    sim_job_kill(self->job, self->owner);
}

static void close_bed(bed *self)
{
    assert_true(sim_job_close(self->job, 60 * SECOND));
    sim_job_free(self->job);
    free(self);
}

/* The worker that gives the sum of round 2 away has given up later rounds, which it withdraws behind that sum. It may
 * be in another one already. */
static void give_up_later_rounds(uint32_t rounds, bool goes_on)
{
    bed *self = open_bed();
    trib_sim_node_block(self->job->members[OTHER].node, true, true);
    for (uint32_t i = 0; i < rounds; i++) {
        begin(self, 0, SECOND / 100);
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[0]));
        assert_int_equal(self->ops[0].status, TRIB_TIMEOUT);
    }
    if (goes_on) {
        begin(self, 0, -1);
        run_for(self, SECOND / 100);
    }
    trib_sim_node_block(self->job->members[OTHER].node, false, false);
    assert_int_equal(self->ops[SLOW].done, 0);
    lose_owner(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, is_done, &self->ops[SLOW]));
    expect_sum(self, SLOW);
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t rank = SLOW; rank <= OTHER; rank++) {
            begin(self, rank, -1);
        }
        for (uint32_t rank = SLOW; rank <= OTHER; rank++) {
            const int64_t until_ns = trib_sim_now(self->job->sim) + 20 * SECOND;
            assert_true(sim_job_run(self->job, until_ns, is_done, &self->ops[rank]));
            assert_int_equal(self->ops[rank].status, TRIB_TIMEOUT);
        }
    }
    for (uint32_t rank = goes_on ? SLOW : 0; rank <= OTHER; rank++) {
        begin(self, rank, -1);
    }
    end_all(self);
    close_bed(self);
}

static void the_giver_has_given_up_later_rounds(void **state)
{
    (void)state;
    for (uint32_t rounds = 1; rounds <= 2; rounds++) {
        give_up_later_rounds(rounds, false);
        give_up_later_rounds(rounds, true);
    }
}

/* The slow worker is the keeper of that partition, and has not got all of its sum yet. The others have waited for it in
 * vain, and have kept the sum themselves. */
static void the_keeper_lacks_the_sum(void **state)
{
    (void)state;
    bed *self = open_bed_of(2, 4, 200000);
    lose_owner(self);
    end_all(self);
    begin_all(self);
    end_all(self);
    close_bed(self);
}

/* A worker that was through with the round has left: the others have the sum nevertheless. */
static void a_worker_has_left(void **state)
{
    (void)state;
    bed *self = open_bed();
    sim_job_leave(self->job, OTHER);
    run_for(self, SECOND / 10);
    lose_owner(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, is_done, &self->ops[SLOW]));
    expect_sum(self, SLOW);
    close_bed(self);
}

/* It has released the tensor, and knows no partition of it any more. */
static void a_worker_has_released_the_tensor(void **state)
{
    (void)state;
    trib_error error;
    bed *self = open_bed();
    assert_int_equal(trib_tensor_release(sim_bed_declare(self->job, OTHER, "a", COUNT), &error), TRIB_OK);
    run_for(self, SECOND / 10);
    lose_owner(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, is_done, &self->ops[SLOW]));
    expect_sum(self, SLOW);
    close_bed(self);
}

/* A worker has given up so many rounds that it pushes no further one before the owner answers. */
static void a_worker_is_held_back(void **state)
{
    (void)state;
    bed *self = open_bed();
    end_all(self);
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        begin(self, 0, SECOND / 100);
        assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[0]));
        assert_int_equal(self->ops[0].status, TRIB_TIMEOUT);
    }
    begin(self, 0, -1);
    run_for(self, SECOND / 10);
    lose_owner(self);
    run_for(self, SECOND / 10);
    for (uint32_t i = 0; i < TRIB_SUM_KEPT_ROUNDS_MAX; i++) {
        for (uint32_t rank = SLOW; rank <= OTHER; rank++) {
            begin(self, rank, -1);
            assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[rank]));
            assert_int_equal(self->ops[rank].status, TRIB_TIMEOUT);
        }
    }
    begin(self, SLOW, -1);
    begin(self, OTHER, -1);
    end_all(self);
    close_bed(self);
}

/* The root has given a broadcast up, and the server was lost before it could hear of that. */
static void a_root_has_given_up(void **state)
{
    (void)state;
    bed *self = open_bed();
    end_all(self);
    begin_as(self, SLOW, trib_broadcast, -1);
    begin_as(self, OTHER, trib_broadcast, -1);
    run_for(self, SECOND / 10);
    trib_sim_node_shun(self->job->members[0].node, self->job->members[self->owner].node, true);
    begin_as(self, 0, trib_broadcast, SECOND / 100);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 4 * SECOND, is_done, &self->ops[0]));
    lose_owner(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, are_done, self->ops));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(self->ops[rank].status, TRIB_TIMEOUT);
    }
    begin_all(self);
    end_all(self);
    close_bed(self);
}

/* The root of a reduce has the sum, and one of the others has not heard that it is complete. */
static void a_reduce_is_called_off(void **state)
{
    (void)state;
    bed *self = open_bed();
    end_all(self);
    begin_as(self, SLOW, trib_reduce_to, -1);
    begin_as(self, OTHER, trib_reduce_to, -1);
    run_for(self, SECOND / 10);
    trib_sim_node_block(self->job->members[SLOW].node, false, true);
    begin_as(self, 0, trib_reduce_to, -1);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[0]));
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, is_done, &self->ops[OTHER]));
    expect_sum(self, 0);
    lose_owner(self);
    trib_sim_node_block(self->job->members[SLOW].node, false, false);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, are_done, self->ops));
    assert_int_equal(self->ops[OTHER].status, TRIB_OK);
    assert_int_equal(self->ops[SLOW].status, TRIB_CANCELLED);
    begin_all(self);
    end_all(self);
    close_bed(self);
}

/* The next owner asks a worker for its report before that one has heard of the loss. */
static void a_worker_hears_of_the_loss_late(void **state)
{
    (void)state;
    bed *self = open_bed();
    trib_sim_node_shun(self->job->members[0].node, self->job->members[SLOW].node, true);
    lose_owner(self);
    run_for(self, SECOND);
    trib_sim_node_shun(self->job->members[0].node, self->job->members[SLOW].node, false);
    end_all(self);
    begin_all(self);
    end_all(self);
    close_bed(self);
}

/* The server to which a worker has given the sum away is lost, too, and the worker hears of that in the turn in which
 * it has sent the last chunk: the sum is given to a third one. */
static void a_copy_is_given_away_twice(void **state)
{
    (void)state;
    bed *self = open_bed_of(3, 1, 1000000);
    keeps_back = true;
    lose_owner(self);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 20 * SECOND, is_kept_back, NULL));
    assert_true(next_owner >= WORKERS && next_owner != self->owner);
    sim_job_kill(self->job, next_owner);
    end_all(self);
    assert_false(is_kept_back(self->job, NULL));
    begin_all(self);
    end_all(self);
    close_bed(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_giver_has_given_up_later_rounds),
        cmocka_unit_test(the_keeper_lacks_the_sum),
        cmocka_unit_test(a_worker_has_left),
        cmocka_unit_test(a_worker_has_released_the_tensor),
        cmocka_unit_test(a_worker_is_held_back),
        cmocka_unit_test(a_root_has_given_up),
        cmocka_unit_test(a_reduce_is_called_off),
        cmocka_unit_test(a_worker_hears_of_the_loss_late),
        cmocka_unit_test(a_copy_is_given_away_twice),
    };
    return cmocka_run_group_tests_name("takeovers", tests, NULL, NULL);
}
