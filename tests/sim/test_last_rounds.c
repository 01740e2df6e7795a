/*
 * test_last_rounds.c - round numbers have 32 bits, so a tensor has a last round. The last rounds are summed like all
 * others, one more is rejected, and the rest of the job goes on. The test moves all members' counts forward to reach
 * them.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/worker/op.h"
#include "engine/aggregate/sum_tree.h"
#include "engine/server/server_sum.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 50000, LEFT = 5 };

static int32_t data[WORKERS][COUNT];
static exchange exchanges[WORKERS];

static void submit_all(sim_job *job, const char *name)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            data[rank][i] = (int32_t)(rank * 1000 + i);
        }
        exchanges[rank] = (exchange){.buffer = data[rank]};
        sim_bed_submit(job, rank, name, COUNT, &exchanges[rank], 0);
    }
}

static void await_sums(sim_job *job)
{
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(data[rank][i], WORKERS * i + 3000);
        }
    }
}

/* Moves all of an engine's round counts, between two operations. */
static void move_on(const trib_engine *engine, uint32_t done)
{
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        trib_tensor *tensor = engine->tensors[i];
        tensor->rounds = done;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            assert_null(tensor->cores[k].active);
            tensor->cores[k].round_next = done + 1;
        }
    }
    for (uint32_t k = 0; k < engine->core_count; k++) {
        trib_aggregator *aggregator = engine->cores[k].sums[TRIB_SUM_RANK].aggregator;
        const sum_table *keys = &trib_sum_aggregator_summation(aggregator)->keys;
        for (uint32_t i = 0; i < keys->capacity; i++) {
            if (keys->slots[i].value != NULL) {
                ((sum_key *)keys->slots[i].value)->finished = done;
            }
        }
    }
}

static void expect_refusal(sim_job *job)
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_error error = {.text = ""};
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = sim_bed_declare(job, rank, "old", COUNT);
        params.input = params.output = data[rank];
        assert_int_equal(trib_push_pull(job->members[rank].engine, &params, NULL, &error), TRIB_STATE);
        assert_string_equal(error.text, "tensor \"old\" has had all its 4294966271 operations: declare another");
    }
}

static void tensors_are_used_up(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.reactors = 2;
    config.engine.colocate = TRIB_COLOCATE_ON;
    sim_job *job = sim_bed_open(&config);
    submit_all(job, "old");
    await_sums(job);
    for (uint32_t i = 0; i < job->member_count; i++) {
        move_on(job->members[i].engine, TRIB_ROUNDS_MAX - LEFT);
    }
    for (int i = 0; i < LEFT; i++) {
        submit_all(job, "old");
        await_sums(job);
    }
    expect_refusal(job);
    submit_all(job, "new");
    await_sums(job);
    expect_refusal(job);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_used_up),
    };
    return cmocka_run_group_tests_name("last rounds", tests, NULL, NULL);
}
