/*
 * test_overtaking.c - a round is given up, and its WITHDRAW waits behind bulk on a link's first connection. The next
 * round of the tensor is urgent, and must not reach the server before it by the second connection (link_priority.h).
 */
#include <stdlib.h>

#include "engine/membership/rebalance.h"
#include "tests/sim/sim_bed.h"

enum { LIGHT = 1 << 10, HEAVY = 1536 << 10, WORKERS = 2 };

typedef struct dealing {
    trib_post post;
    double weights[2 * WORKERS];
    bool dealt;
} dealing;

static void deal(trib_reactor *reactor, trib_post *post)
{
    dealing *self = (dealing *)((char *)post - offsetof(dealing, post));
    const trib_core *core = reactor->owner;
    self->dealt = trib_rebalance_deal(core->engine->coordinator, self->weights);
}

/* Moves all partitions of all tensors to one of the two servers. The move takes some messages to and fro. */
static void deal_to(sim_job *job, uint32_t server)
{
    dealing one = {.post.run = deal, .weights = {[WORKERS] = server == 0, [WORKERS + 1] = server == 1}};
    trib_reactor_post(job->members[0].engine->cores[0].reactor, &one.post);
    sim_job_run(job, trib_sim_now(job->sim) + SECOND / 20, NULL, NULL);
    assert_true(one.dealt);
}

static void begin(sim_job *job, const char *name, uint32_t count, exchange exchanges[WORKERS], int32_t priority)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].done = 0;
        sim_bed_submit(job, rank, name, count, &exchanges[rank], priority);
    }
}

static void finish(sim_job *job, const exchange exchanges[WORKERS])
{
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, sim_bed_all_done, (void *)(uintptr_t)exchanges));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
    }
}

/* A small sum overtakes bulk that is under way, by the links' second connections, if they are there. */
static void sum_beside_bulk(sim_job *job, const char *name, exchange small[WORKERS], exchange heavy[WORKERS])
{
    begin(job, "heavy", HEAVY, heavy, 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, NULL, NULL);
    begin(job, name, LIGHT, small, 1);
    finish(job, small);
    finish(job, heavy);
}

/* Rank 1 gives a round up that waits behind bulk, and begins the next one, which does not wait. */
static void overtake(sim_job *job, exchange light[WORKERS], exchange heavy[WORKERS], exchange other[WORKERS])
{
    exchange first[WORKERS] = {{.buffer = light[0].buffer}, {.buffer = light[1].buffer}};
    begin(job, "heavy", HEAVY, heavy, 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 20, NULL, NULL);
    trib_op *op;
    sim_bed_submit(job, 0, "light", LIGHT, &first[0], 0);
    sim_bed_begin(job, 1, "light", LIGHT, &first[1], 0, &op);
    trib_op_cancel(op);
    trib_op_release(op);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 1000, NULL, NULL);
    assert_int_equal(first[1].status, TRIB_CANCELLED);
    begin(job, "other", LIGHT, other, 1);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 1000, NULL, NULL);
    light[1].done = 0;
    sim_bed_submit(job, 1, "light", LIGHT, &light[1], 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, sim_bed_all_done, first));
    assert_int_equal(first[0].status, TRIB_CANCELLED);
    light[0].done = 0;
    sim_bed_submit(job, 0, "light", LIGHT, &light[0], 1);
    finish(job, light);
    finish(job, other);
    finish(job, heavy);
}

/* `moves`: the tensor's rounds have gone by the second connection to another server before. */
static void run(bool moves)
{
    sim_job_config config = sim_job_config_default(WORKERS, 2);
    config.engine.shares = TRIB_SHARES_FOLLOW;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.link.egress_bits = config.link.ingress_bits = UINT64_C(100000000);
    config.net.window_bytes = 64 << 10;
    config.net.unsent_bytes = 2 << 20;
    config.net.second_connections = true;
    sim_job *job = sim_bed_open(&config);
    exchange light[WORKERS] = {{0}}, heavy[WORKERS] = {{0}}, other[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        light[rank].buffer = calloc(LIGHT, sizeof(int32_t));
        other[rank].buffer = calloc(LIGHT, sizeof(int32_t));
        heavy[rank].buffer = calloc(HEAVY, sizeof(int32_t));
    }
    begin(job, "light", LIGHT, light, 0);
    begin(job, "other", LIGHT, other, 0);
    begin(job, "heavy", HEAVY, heavy, 0);
    finish(job, light);
    finish(job, other);
    finish(job, heavy);
    deal_to(job, 0);
    if (moves) {
        sum_beside_bulk(job, "other", other, heavy);
        sum_beside_bulk(job, "light", light, heavy);
        deal_to(job, 1);
    }
    overtake(job, light, heavy, other);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(light[rank].buffer);
        free(other[rank].buffer);
        free(heavy[rank].buffer);
    }
}

static void a_round_that_was_given_up_comes_first(void **state)
{
    (void)state;
    run(false);
}

static void it_comes_first_at_another_owner(void **state)
{
    (void)state;
    run(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_round_that_was_given_up_comes_first),
                                       cmocka_unit_test(it_comes_first_at_another_owner)};
    return cmocka_run_group_tests_name("overtaking", tests, NULL, NULL);
}
