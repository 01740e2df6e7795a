/* test_engine.c - whole jobs over loopback TCP: sums, broadcast, barrier, order, disagreement, cancellation, deadlines,
 * leaving. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define COUNT 700001u

static float value_of(int rank, size_t index)
{
    return (float)((int)(index % 1000) - 500) * (float)(rank + 1) * 0.37f;
}

/* The reference sum, computed independently: the same fixed tree, element by element, on values that this function
 * makes. */
static float tree_sum(int low, int span, int workers, size_t index)
{
    if (span == 1) {
        return value_of(low, index);
    }
    float left = tree_sum(low, span / 2, workers, index);
    return low + span / 2 >= workers ? left : left + tree_sum(low + span / 2, span / 2, workers, index);
}

static void check_sums(int workers, int servers, job_tweak tweak, int rounds)
{
    job jobs;
    job_open(&jobs, workers, servers, tweak);
    float *data[JOB_MEMBERS_MAX];
    trib_tensor *tensors[JOB_MEMBERS_MAX];
    int span = 1;
    while (span < workers) {
        span *= 2;
    }
    for (int i = 0; i < workers; i++) {
        data[i] = malloc(COUNT * sizeof(float));
        tensors[i] = job_declare(jobs.engines[i], "weights", TRIB_FLOAT32, COUNT);
    }
    for (int round = 0; round < rounds; round++) {
        trib_op *ops[JOB_MEMBERS_MAX];
        for (int i = 0; i < workers; i++) {
            for (size_t at = 0; at < COUNT; at++) {
                data[i][at] = value_of(i, at + (size_t)round);
            }
            ops[i] = job_push_pull(jobs.engines[i], tensors[i], data[i], data[i], TRIB_SUM);
        }
        for (int i = 0; i < workers; i++) {
            trib_error error = {.status = TRIB_OK};
            if (job_wait(ops[i], &error) != TRIB_OK) {
                fail_msg("rank %d: %s", i, error.text);
            }
        }
        for (size_t at = 0; at < COUNT; at++) {
            float expected = tree_sum(0, span, workers, at + (size_t)round);
            for (int i = 0; i < workers; i++) {
                if (memcmp(&data[i][at], &expected, sizeof expected) != 0) {
                    fail_msg("round %d rank %d element %zu: %a, expected %a", round, i, at, (double)data[i][at],
                             (double)expected);
                }
            }
        }
    }
    job_close(&jobs);
    for (int i = 0; i < workers; i++) {
        free(data[i]);
    }
}

static void alone(void **state)
{
    (void)state;
    check_sums(1, 0, NULL, 3);
}

static void two_colocated(void **state)
{
    (void)state;
    check_sums(2, 0, NULL, 3);
}

static void four_workers_two_servers(void **state)
{
    (void)state;
    check_sums(4, 2, NULL, 3);
}

static void colocate(trib_config *config, int member)
{
    (void)member;
    config->colocate = TRIB_COLOCATE_ON;
}

static void five_mixed(void **state)
{
    (void)state;
    check_sums(5, 2, colocate, 2);
}

static void several_reactors(trib_config *config, int member)
{
    config->reactors = 1 + (uint32_t)member % 3;
    config->chunk_bytes = 16384;
    config->partition_bytes = 65536;
}

static void uneven_reactors(void **state)
{
    (void)state;
    check_sums(3, 2, several_reactors, 3);
}

static void broadcast_and_barrier(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 3, 1, NULL);
    static int32_t data[3][100000];
    for (int root = 0; root < 3; root++) {
        trib_op *ops[3];
        for (int i = 0; i < 3; i++) {
            for (int at = 0; at < 100000; at++) {
                data[i][at] = i * 1000000 + at + root;
            }
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = job_declare(jobs.engines[i], "to all", TRIB_INT32, 100000);
            params.input = data[i];
            params.output = data[i];
            params.root = root;
            assert_int_equal(trib_broadcast(jobs.engines[i], &params, &ops[i], NULL), TRIB_OK);
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
            for (int at = 0; at < 100000; at++) {
                assert_int_equal(data[i][at], root * 1000000 + at + root);
            }
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(trib_barrier(jobs.engines[i], NULL, &ops[i], NULL), TRIB_OK);
        }
        for (int i = 0; i < 3; i++) {
            assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        }
    }
    job_close(&jobs);
}

/* Each worker declares and uses many tensors in an order of its own; some are empty. */
static void orders_differ(void **state)
{
    (void)state;
    enum { TENSORS = 300 };
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    static int64_t data[2][TENSORS][40];
    static trib_op *ops[2][TENSORS];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < TENSORS; k++) {
            int tensor = i == 0 ? k : TENSORS - 1 - k;
            char name[32];
            snprintf(name, sizeof name, "tensor %d", tensor);
            for (int at = 0; at < 40; at++) {
                data[i][tensor][at] = tensor * 100 + at + i;
            }
            trib_tensor *handle = job_declare(jobs.engines[i], name, TRIB_INT64, (uint64_t)(tensor % 41));
            ops[i][k] = job_push_pull(jobs.engines[i], handle, data[i][tensor], data[i][tensor], TRIB_MAX);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < TENSORS; k++) {
            assert_int_equal(job_wait(ops[i][k], NULL), TRIB_OK);
        }
        for (int tensor = 0; tensor < TENSORS; tensor++) {
            for (int at = 0; at < 40; at++) {
                assert_int_equal(data[i][tensor][at], tensor * 100 + at + (at < tensor % 41 ? 1 : i));
            }
        }
    }
    job_close(&jobs);
}

static void sizes_disagree(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 3, 1, NULL);
    float data[3][64] = {{0}};
    trib_op *ops[3];
    for (int i = 0; i < 3; i++) {
        trib_tensor *tensor = job_declare(jobs.engines[i], "odd one", TRIB_FLOAT32, i == 2 ? 64 : 32);
        ops[i] = job_push_pull(jobs.engines[i], tensor, data[i], data[i], TRIB_SUM);
    }
    for (int i = 0; i < 3; i++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_equal(job_wait(ops[i], &error), TRIB_MISMATCH);
        assert_non_null(strstr(error.text, "odd one"));
        assert_non_null(strstr(error.text, "float32[64]"));
        assert_non_null(strstr(error.text, "rank 2"));
    }
    job_close(&jobs);
}

static void operations_disagree(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    float data[2][64] = {{0}};
    trib_op *ops[2];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            trib_tensor *tensor = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, 64);
            trib_reduce reduce = i == 1 && round == 0 ? TRIB_MAX : TRIB_SUM;
            ops[i] = job_push_pull(jobs.engines[i], tensor, data[i], data[i], reduce);
        }
        for (int i = 0; i < 2; i++) {
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(job_wait(ops[i], &error), round == 0 ? TRIB_MISMATCH : TRIB_OK);
        }
    }
    job_close(&jobs);
}

static void cancel_and_deadline(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    float data[2][64] = {{0}};
    trib_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        tensors[i] = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, 64);
    }
    trib_error error = {.status = TRIB_OK};
    trib_op *op = job_push_pull(jobs.engines[0], tensors[0], data[0], data[0], TRIB_SUM);
    trib_op_cancel(op);
    trib_op_cancel(op);
    assert_int_equal(job_wait(op, &error), TRIB_CANCELLED);

    /* The other worker hears of the cancelled round; it does not wait for its deadline. */
    op = job_push_pull(jobs.engines[1], tensors[1], data[1], data[1], TRIB_SUM);
    trib_status status = job_wait(op, &error);
    assert_true(status == TRIB_CANCELLED || status == TRIB_OK);

    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensors[0];
    params.input = params.output = data[0];
    params.timeout_ns = 50000000;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, &op, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_TIMEOUT);
    assert_non_null(strstr(error.text, "\"t\""));
    job_close(&jobs);
}

static void listen_on_two(trib_config *config, int member)
{
    (void)member;
    config->listen = "127.0.0.1,127.0.0.2";
    config->token = "a secret of theirs, and long enough";
    config->reactors = 2;
}

/* One loopback address does not exempt the other address from needing a token. */
static void several_addresses_want_a_token(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, listen_on_two); /* the members reach each other by both addresses */
    trib_error error;
    job_close(&jobs);
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.listen = "127.0.0.1,10.0.0.7";
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "TRIB_TOKEN"));
}

static void wrong_arguments(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, NULL);
    trib_error error;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    float data[16] = {0};
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT32, 8);
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    params.input = data;
    params.output = data + 1;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "overlap"));
    params.output = data;
    params.reserved[0] = 1;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    params.reserved[0] = 0;
    params.root = 1;
    assert_int_equal(trib_broadcast(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_tensor *tensor = NULL;
    desc.name = "";
    assert_int_equal(trib_tensor_declare(jobs.engines[0], &desc, &tensor, &error), TRIB_INVALID);
    desc.name = "t";
    desc.count = 9;
    assert_int_equal(trib_tensor_declare(jobs.engines[0], &desc, &tensor, &error), TRIB_MISMATCH);
    assert_int_equal(trib_engine_get_fd(jobs.engines[0]), -1);
    job_close(&jobs);
}

static void count_done(const trib_result *result, void *user)
{
    assert_int_equal(result->status, TRIB_OK);
    ++*(int *)user;
}

static void queue_mode(trib_config *config, int member)
{
    (void)member;
    config->mode = TRIB_MODE_QUEUE;
}

/* Callbacks run inside dispatch and nowhere else. */
static void completion_queue(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, queue_mode);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    double data[8] = {1, 2, 3};
    int done = 0;
    params.tensor = job_declare(jobs.engines[0], "t", TRIB_FLOAT64, 8);
    params.input = params.output = data;
    params.done_cb = count_done;
    params.user = &done;
    trib_op *op = NULL;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(trib_push_pull(jobs.engines[0], &params, i == 99 ? &op : NULL, NULL), TRIB_OK);
    }
    assert_int_equal(done, 0);
    assert_true(trib_engine_get_fd(jobs.engines[0]) >= 0);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(done, 100);
    job_close(&jobs);
}

static uint64_t allocations_of(const job *jobs)
{
    uint64_t sum = 0;
    for (int i = 0; i < jobs->worker_count + jobs->server_count; i++) {
        trib_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(trib_engine_get_stats(jobs->engines[i], &stats), TRIB_OK);
        sum += stats.allocations;
    }
    return sum;
}

/* After warm-up no member allocates memory per operation. Pools may still grow when more happens at once than ever
 * before, so one stretch of a hundred rounds without an allocation is enough: an allocation per operation would leave
 * none. */
static void steady_state_allocates_nothing(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    static float data[2][300000];
    uint64_t before = 0, after = UINT64_MAX;
    trib_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        tensors[i] = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, 300000);
    }
    for (int hundred = 0; hundred < 20 && after != before; hundred++) {
        before = after;
        for (int round = 0; round < 100; round++) {
            trib_op *ops[2];
            for (int i = 0; i < 2; i++) {
                ops[i] = job_push_pull(jobs.engines[i], tensors[i], data[i], data[i], TRIB_AVG);
            }
            for (int i = 0; i < 2; i++) {
                assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
            }
        }
        after = allocations_of(&jobs);
    }
    assert_int_equal(after, before);
    job_close(&jobs);
}

/* A worker that closes normally ends the others' later operations with its name, but not their engines. */
static void worker_leaves(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 3, 1, NULL);
    assert_int_equal(trib_engine_destroy(jobs.engines[2]), TRIB_OK);
    jobs.engines[2] = NULL;
    float data[2][8] = {{0}};
    trib_op *ops[2];
    for (int i = 0; i < 2; i++) {
        trib_tensor *tensor = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, 8);
        ops[i] = job_push_pull(jobs.engines[i], tensor, data[i], data[i], TRIB_SUM);
    }
    for (int i = 0; i < 2; i++) {
        trib_error error = {.status = TRIB_OK};
        trib_status status = job_wait(ops[i], &error);
        if (status != TRIB_PEER_LEFT && status != TRIB_CANCELLED) {
            fail_msg("%s: %s", trib_status_name(status), error.text);
        }
    }
    job_close(&jobs);
}

static void join_fails_without_peers(void **state)
{
    (void)state;
    trib_config config;
    trib_config_init(&config, sizeof config);
    char address[32];
    job_free_address(address, sizeof address);
    config.worker_count = 3;
    config.server_count = 1;
    config.coordinator = address;
    config.join_timeout_ns = 200000000;
    config.log_level = TRIB_LOG_NONE;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    assert_int_equal(trib_engine_wait_ready(engine, -1, &error), TRIB_JOIN_FAILED);
    assert_non_null(strstr(error.text, "rank 1, rank 2 and 1 of 1 servers"));
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void wrong_token(trib_config *config, int member)
{
    config->token = member == 0 ? "the right one" : "a wrong one";
}

static void token_is_needed(void **state)
{
    (void)state;
    char address[32];
    job_free_address(address, sizeof address);
    trib_engine *engines[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        trib_config config;
        trib_config_init(&config, sizeof config);
        config.rank = i;
        config.worker_count = 2;
        config.coordinator = address;
        config.log_level = TRIB_LOG_NONE;
        config.join_timeout_ns = INT64_C(3000000000);
        wrong_token(&config, i);
        assert_int_equal(trib_engine_create(&config, &engines[i], NULL), TRIB_OK);
    }
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_engine_wait_ready(engines[1], -1, &error), TRIB_UNAUTHORIZED);
    assert_non_null(strstr(error.text, "token"));
    trib_stats stats = {.struct_size = sizeof stats};
    for (int i = 1; i >= 0; i--) {
        if (i == 0) {
            assert_int_equal(trib_engine_get_stats(engines[0], &stats), TRIB_OK);
        }
        assert_int_equal(trib_engine_destroy(engines[i]), TRIB_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(two_colocated),
        cmocka_unit_test(several_addresses_want_a_token),
        cmocka_unit_test(four_workers_two_servers),
        cmocka_unit_test(five_mixed),
        cmocka_unit_test(uneven_reactors),
        cmocka_unit_test(broadcast_and_barrier),
        cmocka_unit_test(orders_differ),
        cmocka_unit_test(sizes_disagree),
        cmocka_unit_test(operations_disagree),
        cmocka_unit_test(cancel_and_deadline),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(completion_queue),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(worker_leaves),
        cmocka_unit_test(join_fails_without_peers),
        cmocka_unit_test(token_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
