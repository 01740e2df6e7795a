/* test_quorum_late.c - workers that come late to a quorum (TRIB_QUORUM), or in the middle of its decision. */
#include <string.h>

#include "engine/server/quorum.h"
#include "engine/worker/op.h"
#include "tests/sim/quorum_bed.h"

enum { CHUNK = 4096, COUNT = 262144 }; /* of int32 */

static int32_t buffers[3][COUNT];

static const trib_tensor *find_tensor(const trib_engine *engine, const char *name)
{
    uint32_t tag = 0;
    while (tag < engine->tensor_count && strcmp(engine->tensors[tag]->name, name) != 0) {
        tag++;
    }
    assert_true(tag < engine->tensor_count);
    return engine->tensors[tag];
}

/* ---- A contribution on its way ---- */

static void slow_down(sim_job *job, uint32_t rank, uint64_t egress_bits)
{
    trib_sim_link link = job->config.link;
    link.egress_bits = egress_bits;
    trib_sim_node_relink(job->members[rank].node, &link);
}

/* The decision is due while the only chunk of a worker arrives: the worker has begun, and is in the set. */
static void who_is_about_to_contribute_is_not_late(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.net.quantum_bytes = 1024; /* the header comes before the payload */
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = SECOND / 2;
    sim_job *job = sim_bed_open(&config);
    exchange all[3];
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = buffers[i]};
        buffers[i][0] = (int32_t)i + 1;
        assert_non_null(sim_bed_declare(job, i, "slow", CHUNK));
    }
    slow_down(job, 1, 80000); /* the payload takes 1.6 s */
    const int64_t began_ns = trib_sim_now(job->sim);
    for (uint32_t i = 0; i < 3; i++) {
        sim_bed_begin(job, i, "slow", CHUNK, &all[i], 0, NULL);
    }
    assert_false(sim_job_run(job, began_ns + SECOND, quorum_is_any_done, all));
    assert_true(sim_job_run(job, began_ns + 10 * SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        assert_int_equal(buffers[i][0], 6);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- Another operation ---- */

static void begin_other(sim_job *job, uint32_t rank, uint32_t count, double postscale, bool is_reduce, exchange *what)
{
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = sim_bed_declare(job, rank, "other", count);
    params.input = params.output = what->buffer;
    params.postscale = postscale;
    params.done_cb = sim_bed_on_done;
    params.user = what;
    trib_engine *engine = job->members[rank].engine;
    assert_int_equal((is_reduce ? trib_reduce_to : trib_push_pull)(engine, &params, NULL, &error), TRIB_OK);
}

static bool are_two_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *all = argument;
    return all[0].done > 0 && all[1].done > 0;
}

/* Rank 2 comes when the others are through, and means a sum of another scale. */
static void a_late_worker_scales_otherwise(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 1);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = SECOND / 1000;
    sim_job *job = sim_bed_open(&config);
    exchange all[3];
    assert_non_null(sim_bed_declare(job, 2, "other", 1));
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = buffers[i]};
        buffers[i][0] = (int32_t)i + 1;
        assert_true(i < 2 || sim_job_run(job, trib_sim_now(job->sim) + SECOND, are_two_done, all));
        begin_other(job, i, 1, i < 2 ? 2 : 3, false, &all[i]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, i < 2 ? TRIB_OK : TRIB_MISMATCH);
        assert_true(i == 2 || buffers[i][0] == 6);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* Rank 2 is late, and the first one at the server of partition 1: nobody has described the operation there. It means
 * another one, and the server that knows that stands still meanwhile. */
static void a_late_worker_comes_first(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(3, 2);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = SECOND / 10;
    config.engine.chunk_bytes = config.engine.partition_bytes = config.engine.push_credit_bytes = sizeof buffers[0] / 2;
    sim_job *job = sim_bed_open(&config);
    exchange all[3];
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (exchange){.buffer = buffers[i]};
        memset(buffers[i], 0, sizeof buffers[i]);
        buffers[i][COUNT - 1] = (int32_t)i + 1;
        assert_non_null(sim_bed_declare(job, i, "other", COUNT));
    }
    slow_down(job, 0, 8000000);
    slow_down(job, 1, 8000000);
    const int64_t began_ns = trib_sim_now(job->sim);
    begin_other(job, 0, COUNT, 1, false, &all[0]);
    begin_other(job, 1, COUNT, 1, false, &all[1]);
    (void)sim_job_run(job, began_ns + SECOND / 4, NULL, NULL);
    const trib_tensor *tensor = find_tensor(job->members[0].engine, "other");
    assert_int_not_equal(tensor->owners[0].member, tensor->owners[1].member);
    trib_sim_process *first = job->members[tensor->owners[0].member].process;
    trib_sim_process_freeze(first, true);
    begin_other(job, 2, COUNT, 1, true, &all[2]);
    (void)sim_job_run(job, began_ns + 2 * SECOND, NULL, NULL);
    trib_sim_process_freeze(first, false);
    assert_true(sim_job_run(job, began_ns + 10 * SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, i < 2 ? TRIB_OK : TRIB_MISMATCH);
        assert_true(i == 2 || buffers[i][COUNT - 1] == 3);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* ---- A partition that is over ---- */

/* Rank 2 cannot reach the server of partition 0 for a while. The other server has all that it brings: it is in the set.
 * Else the parts of a result would have different contributors. */
static void who_is_in_a_part_is_in_all(void **state)
{
    (void)state;
    enum { BOTH = 16384 };
    sim_job_config config = sim_job_config_default(3, 2);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = SECOND / 10;
    config.engine.chunk_bytes = config.engine.partition_bytes = BOTH * sizeof(int32_t) / 2;
    sim_job *job = sim_bed_open(&config);
    exchange all[3];
    const trib_tensor *tensor = NULL;
    for (uint32_t round = 0; round < 2; round++) { /* the tensor has its place after the first one */
        for (uint32_t i = 0; i < 3; i++) {
            all[i] = (exchange){.buffer = buffers[i]};
            buffers[i][0] = buffers[i][BOTH - 1] = (int32_t)i + 1;
            sim_bed_begin(job, i, "both", BOTH, &all[i], 0, NULL);
        }
        if (round == 0) {
            assert_true(sim_job_run(job, trib_sim_now(job->sim) + SECOND, quorum_are_all_done, all));
            tensor = find_tensor(job->members[0].engine, "both");
            assert_int_not_equal(tensor->owners[0].member, tensor->owners[tensor->partition_count - 1].member);
            trib_sim_node_shun(job->members[2].node, job->members[tensor->owners[0].member].node, true);
        }
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    trib_sim_node_shun(job->members[2].node, job->members[tensor->owners[0].member].node, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, quorum_are_all_done, all));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(all[i].status, TRIB_OK);
        assert_int_equal(buffers[i][0], 6);
        assert_int_equal(buffers[i][BOTH - 1], 6);
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_about_to_contribute_is_not_late),
        cmocka_unit_test(a_late_worker_scales_otherwise),
        cmocka_unit_test(a_late_worker_comes_first),
        cmocka_unit_test(who_is_in_a_part_is_in_all),
    };
    return cmocka_run_group_tests_name("late workers of a quorum", tests, NULL, NULL);
}
