/*
 * test_device_kept.c - sums on devices whose buffers stay (TRIB_TENSOR_FIXED, or seen to): what launching them takes is kept where
 * that is so on all local ranks, and only there. Plain memory stands in for GPUs, and counts.
 */
#include "tests/loop/device/device_wrap.h"

enum { RANKS = 3, COUNT = 1000, ROUNDS = 6 };

static int agreeing;      /* all ranks agree on an order; else they promise one */
static unsigned declines; /* bit: rank */

static void either_order(trib_config *config, int member)
{
    on_devices(config, member);
    config->device_order = agreeing ? TRIB_DEVICE_ORDER_AGREED : TRIB_DEVICE_ORDER_PROGRAM;
    config->kept_launches = declines >> member & 1 ? TRIB_KEPT_LAUNCHES_OFF : TRIB_KEPT_LAUNCHES_AUTO;
}

static trib_status try_declare(trib_engine *engine, const char *name, uint32_t flags, trib_tensor **tensor_out,
                               trib_error *error)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.flags = flags;
    return trib_tensor_declare(engine, &desc, tensor_out, error);
}

static trib_status try_sum(trib_engine *engine, const char *name, uint32_t flags, int32_t *input, int32_t *output,
                           trib_reduce reduce, trib_op **op_out, trib_error *error)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = input;
    params.output = output;
    params.reduce = reduce;
    const trib_status status = try_declare(engine, name, flags, &params.tensor, error);
    return status != TRIB_OK ? status : trib_push_pull(engine, &params, op_out, error);
}

static trib_op *sum(trib_engine *engine, const char *name, uint32_t flags, int32_t *input, int32_t *output)
{
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    if (try_sum(engine, name, flags, input, output, TRIB_SUM, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

static int32_t inputs[RANKS][2][COUNT], outputs[RANKS][2][COUNT];

/* So many rounds of sums; who is in `moving` (bit: rank) has other buffers every time. */
static void sum_rounds(job *jobs, const char *name, uint32_t flags, int rounds, unsigned moving)
{
    for (int round = 0; round < rounds; round++) {
        trib_op *ops[RANKS];
        for (int rank = 0; rank < RANKS; rank++) {
            const int at = (moving >> rank & 1) && round % 2 == 1;
            for (int i = 0; i < COUNT; i++) {
                inputs[rank][at][i] = rank + round + i;
            }
            ops[rank] = sum(jobs->engines[rank], name, flags, inputs[rank][at], outputs[rank][at]);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
            const int at = (moving >> rank & 1) && round % 2 == 1;
            assert_int_equal(outputs[rank][at][7], 3 + 3 * (round + 7));
        }
    }
}

static void open_ranks(job *jobs, int agreed)
{
    agreeing = agreed;
    open_job(jobs, RANKS, 0, RANKS, either_order);
}

/* The second sum in the same buffers makes what the third finds. */
static void seen_to_stay(void **state)
{
    (void)state;
    job jobs;
    open_ranks(&jobs, true);
    sum_rounds(&jobs, "stays", TRIB_TENSOR_DEVICE, ROUNDS, 0);
    assert_int_equal(trib_host_world_kept(world), (ROUNDS - 2) * RANKS);
    close_job(&jobs);
}

static void one_that_moves_is_enough(void **state)
{
    (void)state;
    job jobs;
    open_ranks(&jobs, true);
    for (unsigned moving = 1; moving < 1u << RANKS; moving++) {
        char name[32];
        snprintf(name, sizeof name, "moves %u", moving);
        sum_rounds(&jobs, name, TRIB_TENSOR_DEVICE, ROUNDS, moving);
    }
    assert_int_equal(trib_host_world_kept(world), 0);
    close_job(&jobs);
}

/* In program order the others have launched theirs by the time they could say. */
static void promises_decide_in_program_order(void **state)
{
    (void)state;
    job jobs;
    open_ranks(&jobs, false);
    sum_rounds(&jobs, "stays", TRIB_TENSOR_DEVICE, ROUNDS, 0);
    assert_int_equal(trib_host_world_kept(world), 0);
    sum_rounds(&jobs, "promised", TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED, ROUNDS, 0);
    assert_int_equal(trib_host_world_kept(world), (ROUNDS - 1) * RANKS);
    close_job(&jobs);
}

/* What is kept is for one reduction: another one is done, and what is kept in program order outlives it. */
static void another_reduction(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        open_ranks(&jobs, agreed);
        const uint32_t flags = TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED;
        sum_rounds(&jobs, "both", flags, 2, 0);
        assert_int_equal(trib_host_world_kept(world), RANKS);
        trib_op *ops[RANKS] = {NULL};
        trib_error error = {.status = TRIB_OK};
        for (int rank = 0; rank < RANKS; rank++) {
            inputs[rank][0][7] = 5 - rank;
            assert_int_equal(try_sum(jobs.engines[rank], "both", flags, inputs[rank][0], outputs[rank][0], TRIB_MAX,
                                     &ops[rank], &error),
                             TRIB_OK);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
            assert_int_equal(outputs[rank][0][7], 5);
        }
        assert_int_equal(trib_host_world_kept(world), RANKS);
        sum_rounds(&jobs, "both", flags, 1, 0);
        assert_int_equal(trib_host_world_kept(world), agreed ? RANKS : 2 * RANKS);
        close_job(&jobs);
    }
}

static void other_buffers_are_refused(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        open_ranks(&jobs, agreed);
        const uint32_t flags = TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED;
        trib_error error = {.status = TRIB_OK};
        trib_op *op = NULL;
        /* What was not taken has promised nothing. */
        assert_int_equal(try_sum(jobs.engines[0], "fixed", flags, inputs[0][1], NULL, TRIB_SUM, &op, &error),
                         TRIB_INVALID);
        sum_rounds(&jobs, "fixed", flags, 2, 0);
        assert_int_equal(try_sum(jobs.engines[0], "fixed", flags, inputs[0][1], outputs[0][0], TRIB_SUM, &op, &error),
                         TRIB_INVALID);
        assert_non_null(strstr(error.text, "TRIB_TENSOR_FIXED"));
        assert_int_equal(try_sum(jobs.engines[0], "fixed", flags, inputs[0][0], outputs[0][1], TRIB_SUM, &op, &error),
                         TRIB_INVALID);
        sum_rounds(&jobs, "fixed", flags, 2, 0); /* no round was spent */
        assert_int_equal(trib_host_world_kept(world), 3 * RANKS);
        close_job(&jobs);
    }
}

/* A first sum that fails has had its buffers all the same. */
static void a_first_sum_that_fails(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        open_ranks(&jobs, agreed);
        const uint32_t flags = TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED;
        trib_op *ops[RANKS] = {NULL};
        trib_error error = {.status = TRIB_OK};
        for (int rank = 0; rank < RANKS; rank++) {
            ops[rank] = sum(jobs.engines[rank], "fixed", flags, inputs[rank][0], outputs[rank][0]);
            if (rank == 0) {
                trib_op_cancel(ops[0]);
            }
        }
        for (int rank = 0; rank < RANKS; rank++) {
            const trib_status status = job_wait(ops[rank], &error);
            assert_true(status == TRIB_CANCELLED || (rank > 0 && !agreed && status == TRIB_OK));
        }
        trib_op *op = NULL;
        assert_int_equal(try_sum(jobs.engines[1], "fixed", flags, inputs[1][1], outputs[1][1], TRIB_SUM, &op, &error),
                         TRIB_INVALID);
        sum_rounds(&jobs, "fixed", flags, 2, 0);
        close_job(&jobs);
    }
}

/* What is promised is about sums. */
static void broadcasts_are_free(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        open_ranks(&jobs, agreed);
        const uint32_t flags = TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED;
        sum_rounds(&jobs, "fixed", flags, 2, 0);
        trib_op *ops[RANKS] = {NULL};
        trib_error error = {.status = TRIB_OK};
        for (int rank = 0; rank < RANKS; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            assert_int_equal(try_declare(jobs.engines[rank], "fixed", flags, &params.tensor, &error), TRIB_OK);
            params.input = params.output = inputs[rank][1];
            inputs[rank][1][7] = rank;
            params.root = 2;
            assert_int_equal(trib_broadcast(jobs.engines[rank], &params, &ops[rank], &error), TRIB_OK);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
            assert_int_equal(inputs[rank][1][7], 2);
        }
        sum_rounds(&jobs, "fixed", flags, 1, 0);
        assert_int_equal(trib_host_world_kept(world), 2 * RANKS);
        close_job(&jobs);
    }
}

static void declared_otherwise(void **state)
{
    (void)state;
    job jobs;
    open_ranks(&jobs, true);
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    const uint32_t with = TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED, without = TRIB_TENSOR_DEVICE;
    assert_int_equal(try_declare(jobs.engines[0], "with", with, &tensor, &error), TRIB_OK);
    assert_int_equal(try_declare(jobs.engines[0], "with", with, &tensor, &error), TRIB_OK);
    assert_int_equal(try_declare(jobs.engines[0], "with", without, &tensor, &error), TRIB_MISMATCH);
    assert_non_null(strstr(error.text, "before with TRIB_TENSOR_FIXED"));
    assert_int_equal(try_declare(jobs.engines[0], "without", without, &tensor, &error), TRIB_OK);
    assert_int_equal(try_declare(jobs.engines[0], "without", with, &tensor, &error), TRIB_MISMATCH);
    assert_non_null(strstr(error.text, "before without TRIB_TENSOR_FIXED"));
    close_job(&jobs);
}

/* In agreed order the ranks ask each other; in program order they have launched different things. */
static void promised_by_some(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        open_ranks(&jobs, agreed);
        for (int round = 0; round < (agreed ? ROUNDS : 1); round++) {
            trib_op *ops[RANKS] = {NULL};
            for (int rank = 0; rank < RANKS; rank++) {
                trib_error error = {.status = TRIB_OK};
                const uint32_t flags = TRIB_TENSOR_DEVICE | (rank == 1 ? TRIB_TENSOR_FIXED : 0);
                const trib_status status = try_sum(jobs.engines[rank], "disputed", flags, inputs[rank][0],
                                                   outputs[rank][0], TRIB_SUM, &ops[rank], &error);
                assert_true(status == TRIB_OK || (!agreed && status == TRIB_MISMATCH));
            }
            for (int rank = 0; rank < RANKS; rank++) {
                trib_error error = {.status = TRIB_OK};
                const trib_status status = ops[rank] != NULL ? job_wait(ops[rank], &error) : TRIB_MISMATCH;
                assert_int_equal(status, agreed ? TRIB_OK : TRIB_MISMATCH);
                assert_true(agreed || ops[rank] == NULL ||
                            strstr(error.text, "TRIB_TENSOR_FIXED or kept_launches not alike") != NULL);
            }
        }
        assert_int_equal(trib_host_world_kept(world), agreed ? (ROUNDS - 2) * RANKS : 0);
        close_job(&jobs);
    }
}

/* In agreed order one rank is enough, in program order all have to. */
static void turned_off(void **state)
{
    (void)state;
    for (int agreed = 0; agreed < 2; agreed++) {
        job jobs;
        declines = agreed ? 1u << 1 : (1u << RANKS) - 1;
        open_ranks(&jobs, agreed);
        declines = 0;
        sum_rounds(&jobs, "stays", TRIB_TENSOR_DEVICE, ROUNDS, 0);
        sum_rounds(&jobs, "promised", TRIB_TENSOR_DEVICE | TRIB_TENSOR_FIXED, ROUNDS, 0);
        assert_int_equal(trib_host_world_kept(world), 0);
        close_job(&jobs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seen_to_stay),
        cmocka_unit_test(one_that_moves_is_enough),
        cmocka_unit_test(promises_decide_in_program_order),
        cmocka_unit_test(another_reduction),
        cmocka_unit_test(other_buffers_are_refused),
        cmocka_unit_test(a_first_sum_that_fails),
        cmocka_unit_test(broadcasts_are_free),
        cmocka_unit_test(declared_otherwise),
        cmocka_unit_test(promised_by_some),
        cmocka_unit_test(turned_off),
    };
    return cmocka_run_group_tests_name("sums whose buffers stay", tests, NULL, NULL);
}
