/* test_departed_worker.c - a worker leaves normally while its contribution is still on its way. The contribution
 * counts. */
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 2, COUNT = 256 << 10 };

static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member == 1 ? UINT64_C(10000000) : link->egress_bits;
}

/* The kernel takes everything that a worker sends at once. */
static sim_job_config with_deep_kernels(void)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.push_credit_bytes = 4 << 20;
    config.net.unsent_bytes = 4 << 20;
    return config;
}

/* Rank 1 submits a second after or before rank 0, and leaves while its contribution is on its way. */
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
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL); /* all connections exist now */
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

/* The news of the departure takes another connection, and overtakes a megabyte. */
static void contribution_of_a_departed_worker_counts(void **state)
{
    (void)state;
    sim_job_config config = with_deep_kernels();
    config.tweak = narrow_rank_1;
    leave_behind(&config, true);
}

/* The bytes on the slower network arrive after the first connection has ended. Sums for the departed worker are ready
 * by then, and no member gets them. */
static void by_whichever_network(void **state)
{
    (void)state;
    sim_job_config config = with_deep_kernels();
    config.further[0] = config.link;
    config.further[0].egress_bits = UINT64_C(10000000);
    leave_behind(&config, false);
}

/* The coordinator's process leaves, and keeps its connections while rank 1 is there. With so short a peer timeout they
 * show life more often than a round waits for what may be on its way. One tensor is summed by each worker. */
static void signs_of_life_are_no_contribution(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.peer_timeout_ns = SECOND;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{0}};
    const char *const names[WORKERS] = {"one", "two"};
    for (uint32_t i = 0; i < WORKERS; i++) {
        exchanges[i].buffer = calloc(1, sizeof(int32_t));
        (void)sim_bed_declare(job, 0, names[i], 1);
        sim_bed_submit(job, 1, names[i], 1, &exchanges[i], 0);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    sim_job_leave(job, 0);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, sim_bed_all_done, exchanges));
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(exchanges[i].status, TRIB_PEER_LEFT);
        free(exchanges[i].buffer);
    }
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

static uint32_t count_data_links(const sim_job *job, uint32_t rank)
{
    uint32_t count = 0;
    const trib_engine *engine = job->members[rank].engine;
    for (const trib_link *link = engine->cores[0].host.links; link != NULL; link = link->next) {
        count += link->purpose == TRIB_PURPOSE_DATA && !link->is_self;
    }
    return count;
}

/* Rank 1 is cut off when the coordinator's process leaves, for less than the peer timeout. Rank 0's server refuses rank
 * 1's round when it has said its last word on that link. This word still arrives, over another connection, and so rank
 * 1 does not take rank 0 for lost, whether the coordinator can tell it in time or not. */
static void departure_reaches_who_is_cut_off(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.partition_bytes = config.engine.chunk_bytes = 64 << 10;
    config.engine.peer_timeout_ns = 4 * SECOND;
    config.engine.close_timeout_ns = 20 * SECOND;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{.done = 1}, {.buffer = calloc(COUNT, sizeof(int32_t))}};
    (void)sim_bed_declare(job, 0, "sum", COUNT);
    sim_bed_submit(job, 1, "sum", COUNT, &exchanges[1], 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    const uint32_t links = count_data_links(job, 0);
    assert_true(links > 0);
    trib_sim_node_regroup(job->members[1].node, 1);
    sim_job_leave(job, 0);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
    assert_int_equal(count_data_links(job, 0), links);
    trib_sim_node_regroup(job->members[1].node, 0);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[1].status, TRIB_PEER_LEFT);
    assert_true(sim_job_close(job, 40 * SECOND));
    sim_job_free(job);
    free(exchanges[1].buffer);
}

/* The round does not wait for a departed worker that sent nothing. */
static void departed_worker_without_bytes_is_left_out(void **state)
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

static bool first_is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const exchange *)argument)->done > 0;
}

/* Once nothing of the departed worker can be on its way, each further operation fails at once. */
static void later_operations_fail_at_once(void **state)
{
    (void)state;
    for (uint32_t servers = 0; servers < 2; servers++) {
        sim_job_config config = sim_job_config_default(WORKERS, servers);
        sim_job *job = sim_bed_open(&config);
        int32_t *buffer = calloc(COUNT, sizeof *buffer);
        (void)sim_bed_declare(job, 1, "sum", COUNT);
        sim_job_leave(job, 1);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
        for (uint32_t i = 0; i < 5; i++) {
            exchange what = {.buffer = buffer};
            sim_bed_submit(job, 0, "sum", COUNT, &what, 0);
            assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, first_is_done, &what));
            assert_int_equal(what.status, TRIB_PEER_LEFT);
        }
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        free(buffer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contribution_of_a_departed_worker_counts),  cmocka_unit_test(by_whichever_network),
        cmocka_unit_test(signs_of_life_are_no_contribution),         cmocka_unit_test(departure_reaches_who_is_cut_off),
        cmocka_unit_test(departed_worker_without_bytes_is_left_out), cmocka_unit_test(later_operations_fail_at_once),
    };
    return cmocka_run_group_tests_name("a worker that leaves", tests, NULL, NULL);
}
