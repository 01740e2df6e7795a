/* test_leaver.c - a worker leaves in good order while what it has contributed is still on its way: it counts. */
#include <stdlib.h>

#include "api/device_load.h"
#include "engine/device_task.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 2, COUNT = 256 << 10 };

static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member == 1 ? UINT64_C(10000000) : link->egress_bits;
}

/* All that a worker sends is with its kernel at once. */
static sim_job_config with_deep_kernels(void)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.push_credit_bytes = 4 << 20;
    config.net.unsent_bytes = 4 << 20;
    return config;
}

/* Rank 1 hands in its own, a second after or before rank 0, and leaves while that is on its way. */
static void leave_behind(const sim_job_config *config, bool is_last)
{
    sim_job *job = sim_bed_open(config);
    exchange exchanges[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        for (uint32_t i = 0; i < COUNT; i++) {
            exchanges[rank].buffer[i] = (int32_t)(i + rank);
        }
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        (void)sim_bed_declare(job, rank, "sum", COUNT);
    }
    if (is_last) {
        sim_bed_submit(job, 0, "sum", COUNT, &exchanges[0], 0);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL); /* all connections are there */
    sim_bed_submit(job, 1, "sum", COUNT, &exchanges[1], 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 20, NULL, NULL);
    assert_int_equal(exchanges[0].done, 0);
    sim_job_leave(job, 1);
    if (!is_last) {
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 20, NULL, NULL);
        sim_bed_submit(job, 0, "sum", COUNT, &exchanges[0], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[1].status, TRIB_CLOSED);
    assert_int_equal(exchanges[0].status, TRIB_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(exchanges[0].buffer[i], 2 * i + 1);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(exchanges[rank].buffer);
    }
}

/* The news that it has left goes by another connection, and overtakes a megabyte. */
static void what_it_has_sent_counts(void **state)
{
    (void)state;
    sim_job_config config = with_deep_kernels();
    config.tweak = narrow_rank_1;
    leave_behind(&config, true);
}

/* What goes by the slower of two networks comes when the first connection has ended. Sums that the leaver had asked for are
 * ready by then, and nobody gets them. */
static void by_whichever_network(void **state)
{
    (void)state;
    sim_job_config config = with_deep_kernels();
    config.further[0] = config.link;
    config.further[0].egress_bits = UINT64_C(10000000);
    leave_behind(&config, false);
}

/* Who has sent nothing is not waited for. */
static void who_has_sent_nothing_is_missed(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{0}};
    exchanges[0].buffer = calloc(COUNT, sizeof(int32_t));
    exchanges[1].done = 1;
    (void)sim_bed_declare(job, 1, "sum", COUNT);
    sim_bed_submit(job, 0, "sum", COUNT, &exchanges[0], 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    sim_job_leave(job, 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[0].status, TRIB_PEER_LEFT);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    free(exchanges[0].buffer);
}

/* ---- Ranks of one machine, whose operations on devices are under way from the call on ---- */

static void in_program_order(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->device = "host";
    config->device_order = TRIB_DEVICE_ORDER_PROGRAM;
    config->local_size = (int32_t)job->config.workers;
    config->local_rank = (int32_t)member;
}

/* False: the job is over for that rank. root below 0: a sum. */
static bool hand_in(sim_job *job, uint32_t rank, int32_t root, exchange *what)
{
    trib_error error = {.status = TRIB_OK};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "on the device";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = what->buffer;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    params.timeout_ns = -1;
    params.root = root < 0 ? 0 : root;
    trib_engine *engine = job->members[rank].engine;
    trib_status status = trib_tensor_declare(engine, &desc, &params.tensor, &error);
    if (status == TRIB_OK) {
        status = (root < 0 ? trib_push_pull : trib_broadcast)(engine, &params, NULL, &error);
    }
    assert_true(status == TRIB_OK || status == TRIB_PEER_LEFT);
    return status == TRIB_OK;
}

enum { RANKS = 3 };

static sim_job *open_ranks(exchange exchanges[RANKS], trib_host_world *world)
{
    sim_job_config config = sim_job_config_default(RANKS, 0);
    config.per_machine = RANKS;
    config.device_world = world;
    config.tweak = in_program_order;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        exchanges[rank] = (exchange){.buffer = calloc(COUNT, sizeof(int32_t))};
    }
    return sim_bed_open(&config);
}

static void close_ranks(sim_job *job, exchange exchanges[RANKS])
{
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        free(exchanges[rank].buffer);
    }
}

/* It hands in its part of a sum and leaves, which takes it back: nobody waits for it, who has come to that sum or does
 * later. */
static void who_takes_it_along_is_missed(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    for (uint32_t leaver = 0; leaver < RANKS; leaver++) {
        exchange exchanges[RANKS];
        sim_job *job = open_ranks(exchanges, world);
        const uint32_t early = (leaver + 1) % RANKS, late = (leaver + 2) % RANKS;
        assert_true(hand_in(job, leaver, -1, &exchanges[leaver]));
        assert_true(hand_in(job, early, -1, &exchanges[early]));
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        sim_job_leave(job, leaver);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        assert_int_equal(exchanges[leaver].status, TRIB_CLOSED);
        assert_int_equal(exchanges[early].done, 1);
        assert_int_equal(exchanges[early].status, TRIB_PEER_LEFT);
        assert_false(hand_in(job, late, -1, &exchanges[late]));
        close_ranks(job, exchanges);
    }
    trib_host_world_free(world);
}

/* What a test's devices were given and have not given back, by rank; NULL: they are plain memory. */
static trib_device_job **held;

trib_status __real_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);
trib_status __wrap_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error);

static void hold(trib_device *device, trib_device_job *job, bool here)
{
    (void)device;
    (void)here;
    const trib_op *op = job->owner;
    held[op->engine->config.rank] = job;
}

trib_status __wrap_trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error)
{
    static trib_device_ops holding;
    const trib_status status = __real_trib_device_load(name, ops_out, error);
    if (status == TRIB_OK && held != NULL) {
        holding = **ops_out;
        holding.issue = hold;
        *ops_out = &holding;
    }
    return status;
}

static void give_back(uint32_t rank)
{
    trib_device_job *job = held[rank];
    assert_non_null(job);
    job->status = TRIB_OK;
    held[rank] = NULL;
    trib_reactor_post(job->reactor, &job->post);
}

/* A root may be through with what it gives to all before they come to it, and leave; their streams take their time. */
static void who_has_given_its_part_may_leave(void **state)
{
    (void)state;
    trib_host_world *world = trib_host_world_create();
    trib_device_job *jobs[RANKS] = {NULL};
    held = jobs;
    for (uint32_t root = 1; root < RANKS; root++) {
        exchange exchanges[RANKS];
        sim_job *job = open_ranks(exchanges, world);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_true(hand_in(job, rank, (int32_t)root, &exchanges[rank]));
        }
        give_back(root);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
        assert_int_equal(exchanges[root].done, 1);
        sim_job_leave(job, root);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 30 * SECOND, NULL, NULL);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(exchanges[rank].done, rank == root);
            if (rank != root) {
                give_back(rank);
            }
        }
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, sim_bed_all_done, exchanges));
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            assert_int_equal(exchanges[rank].status, TRIB_OK);
        }
        close_ranks(job, exchanges);
    }
    held = NULL;
    trib_host_world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_has_sent_counts),          cmocka_unit_test(by_whichever_network),
        cmocka_unit_test(who_has_sent_nothing_is_missed),   cmocka_unit_test(who_takes_it_along_is_missed),
        cmocka_unit_test(who_has_given_its_part_may_leave),
    };
    return cmocka_run_group_tests_name("a worker that leaves", tests, NULL, NULL);
}
