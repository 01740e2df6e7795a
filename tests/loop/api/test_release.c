/*
 * test_release.c - tensors end: a name can be declared again, as anything. Nothing of an ended tensor stays in a
 * worker, a server or the coordinator. Operations in flight keep a tensor, and tensors that workers declare differently
 * end alike on all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/aggregate/sum_tree.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/server/server_sum.h"
#include "engine/worker/op.h"
#include "tests/loop/job.h"

enum { WORKERS = 3, SERVERS = 1, CYCLES = 300, COUNT_MAX = 40000 };

static float values[WORKERS][COUNT_MAX];

static void several_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
    config->chunk_bytes = 4096;
    config->partition_bytes = 8192;
}

/* The number of tensors that each member knows. It is read while no operation is in flight, and again until it is
 * right, because the end of a tensor reaches the members one after the other. */
typedef struct alive {
    uint32_t tensors, entries, numbers, keys;
} alive;

static alive count_alive(const job *jobs)
{
    alive all = {0};
    for (int i = 0; i < jobs->worker_count + jobs->server_count; i++) {
        trib_engine *engine = jobs->engines[i];
        pthread_mutex_lock(&engine->mutex);
        for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
            all.tensors += engine->tensors[tag]->state != TRIB_TENSOR_UNUSED;
        }
        pthread_mutex_unlock(&engine->mutex);
        for (uint32_t core = 0; core < engine->core_count; core++) {
            for (uint32_t sum = 0; engine->cores[core].sums != NULL && sum < engine->cores[core].sum_count; sum++) {
                trib_aggregator *aggregator = engine->cores[core].sums[sum].aggregator;
                all.keys += aggregator == NULL ? 0 : trib_summation_keys(trib_sum_aggregator_summation(aggregator));
            }
        }
    }
    const trib_coordinator *coordinator = jobs->engines[0]->coordinator;
    all.entries = coordinator->tensors_alive;
    for (uint32_t i = coordinator->number_free; i != 0; i = coordinator->numbers[i - 1].next) {
        all.numbers++;
    }
    all.numbers = coordinator->number_count - all.numbers;
    return all;
}

static void expect_alive(const job *jobs, alive expected)
{
    alive now = {0};
    for (int i = 0; i < 2000; i++) {
        now = count_alive(jobs);
        if (memcmp(&now, &expected, sizeof now) == 0) {
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("alive: %u tensors, %u entries, %u numbers, %u keys", now.tensors, now.entries, now.numbers, now.keys);
}

static trib_tensor *declare(const job *jobs, int rank, const char *name, trib_dtype dtype, uint64_t count)
{
    return job_declare(jobs->engines[rank], name, dtype, count);
}

/* Everybody declares the tensor, sums it some times, and releases it. */
static void live_once(const job *jobs, const char *name, uint64_t count, int sums)
{
    trib_tensor *tensors[WORKERS];
    trib_op *ops[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++) {
        tensors[rank] = declare(jobs, rank, name, TRIB_FLOAT32, count);
    }
    for (int i = 0; i < sums; i++) {
        for (int rank = 0; rank < WORKERS; rank++) {
            for (uint64_t k = 0; k < count; k++) {
                values[rank][k] = (float)(rank + i) + (float)(k % 7);
            }
            ops[rank] = job_push_pull(jobs->engines[rank], tensors[rank], values[rank], values[rank], TRIB_SUM);
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(job_wait(ops[rank], NULL), TRIB_OK);
            for (uint64_t k = 0; k < count; k++) {
                assert_true(values[rank][k] == 3.0f + 3.0f * (float)i + 3.0f * (float)(k % 7));
            }
        }
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_tensor_release(tensors[rank], NULL), TRIB_OK);
    }
}

static void nothing_stays(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, SERVERS, several_reactors);
    live_once(&jobs, "first", 10, 1);
    const alive before = {.tensors = WORKERS, .entries = 1, .numbers = 1, .keys = 0}; /* the barrier's */
    trib_op *barriers[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_barrier(jobs.engines[rank], NULL, &barriers[rank], NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(job_wait(barriers[rank], NULL), TRIB_OK);
    }
    alive expected = before;
    expected.keys = 1;
    expect_alive(&jobs, expected);
    for (int i = 0; i < CYCLES; i++) {
        char name[16];
        snprintf(name, sizeof name, "name %d", i % 3);
        live_once(&jobs, name, (uint64_t)(i * 97 % 37 * 1000), i % 4);
    }
    expect_alive(&jobs, expected);
    for (int rank = 0; rank < WORKERS; rank++) { /* memory follows the number of tensors that live at the same time */
        assert_in_range(jobs.engines[rank]->tensor_count, 2, 32);
    }
    assert_in_range(jobs.engines[0]->coordinator->number_count, 2, 32);
    job_close(&jobs);
}

/* A worker declares and releases without an operation, faster than the coordinator answers, and long before the others:
 * it is held up, so that its memory does not grow. */
static void one_worker_is_far_ahead(void **state)
{
    (void)state;
    enum { AHEAD = 5 * TRIB_TENSORS_ENDING_MAX };
    job jobs;
    job_open(&jobs, WORKERS, 0, several_reactors);
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < AHEAD; i++) {
            assert_int_equal(trib_tensor_release(declare(&jobs, rank, "ahead", TRIB_FLOAT32, 10), NULL), TRIB_OK);
        }
        assert_in_range(jobs.engines[rank]->tensor_count, 1, TRIB_TENSORS_ENDING_MAX + 1);
    }
    live_once(&jobs, "ahead", 10, 1);
    expect_alive(&jobs, (alive){.tensors = WORKERS, .entries = 1, .numbers = 1});
    job_close(&jobs);
}

static void an_operation_in_flight_keeps_it(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 0, NULL);
    trib_tensor *mine = declare(&jobs, 0, "busy", TRIB_FLOAT32, 4), *other = declare(&jobs, 1, "busy", TRIB_FLOAT32, 4);
    trib_op *op = job_push_pull(jobs.engines[0], mine, values[0], values[0], TRIB_SUM);
    trib_error error;
    assert_int_equal(trib_tensor_release(mine, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "tensor \"busy\": 1 operations on it are in flight"));
    trib_op *answer = job_push_pull(jobs.engines[1], other, values[1], values[1], TRIB_SUM);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(trib_tensor_release(mine, &error), TRIB_OK);
    assert_int_equal(trib_tensor_release(mine, &error), TRIB_INVALID);
    assert_int_equal(trib_tensor_release(NULL, &error), TRIB_OK);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = mine;
    params.input = params.output = values[0];
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "was released before"));
    /* The result is there until the handle goes, though the tensor has gone. */
    assert_int_equal(trib_op_wait(answer, -1, NULL), TRIB_OK);
    assert_int_equal(trib_tensor_release(other, &error), TRIB_OK);
    trib_result result;
    assert_int_equal(trib_op_get_result(answer, &result, &error), TRIB_OK);
    assert_string_equal(result.tensor, "busy");
    assert_int_equal(result.bytes, 16);
    trib_op_release(answer);
    expect_alive(&jobs, (alive){.tensors = 2, .entries = 1, .numbers = 1, .keys = 0});
    job_close(&jobs);
}

/* A worker goes on with the next tensors of the name while another has not released the first. */
static void workers_release_in_their_own_time(void **state)
{
    (void)state;
    enum { LIVES = 20 };
    job jobs;
    job_open(&jobs, 2, SERVERS, NULL);
    trib_op *ops[LIVES];
    static float sums[LIVES][LIVES];
    for (int i = 0; i < LIVES; i++) { /* each life has another size */
        trib_tensor *tensor = declare(&jobs, 0, "name", TRIB_FLOAT32, (uint64_t)i + 1);
        ops[i] = job_push_pull(jobs.engines[0], tensor, sums[i], sums[i], TRIB_SUM);
        assert_int_equal(trib_tensor_release(tensor, NULL), TRIB_STATE);
        trib_op_cancel(ops[i]); /* the operation is over here, so this worker runs ahead */
        (void)trib_op_wait(ops[i], -1, NULL);
        assert_int_equal(trib_tensor_release(tensor, NULL), TRIB_OK);
        trib_op_release(ops[i]);
    }
    for (int i = 0; i < LIVES; i++) {
        trib_tensor *tensor = declare(&jobs, 1, "name", TRIB_FLOAT32, (uint64_t)i + 1);
        trib_error error = {.text = ""};
        const trib_status status =
            job_wait(job_push_pull(jobs.engines[1], tensor, values[1], values[1], TRIB_SUM), &error);
        /* Not MISMATCH: sizes belong to their lives. OK where the other's contribution was complete when it
         * cancelled. */
        assert_true(status == TRIB_CANCELLED || status == TRIB_OK);
        assert_int_equal(trib_tensor_release(tensor, NULL), TRIB_OK);
    }
    for (int rank = 0; rank < 2; rank++) { /* both are at the same life now */
        trib_tensor *tensor = declare(&jobs, rank, "name", TRIB_FLOAT64, 3);
        assert_non_null(tensor);
    }
    static double ones[2][3] = {{1, 2, 3}, {10, 20, 30}};
    trib_op *both[2];
    for (int rank = 0; rank < 2; rank++) {
        trib_tensor *tensor = NULL;
        assert_int_equal(trib_tensor_find(jobs.engines[rank], "name", &tensor, NULL), TRIB_OK);
        both[rank] = job_push_pull(jobs.engines[rank], tensor, ones[rank], ones[rank], TRIB_SUM);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(both[rank], NULL), TRIB_OK);
        assert_true(ones[rank][0] == 11 && ones[rank][1] == 22 && ones[rank][2] == 33);
    }
    job_close(&jobs);
}

/* Different declarations ruin one tensor, not its name. */
static void a_mismatch_ends_with_the_tensor(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 0, NULL);
    trib_op *ops[2];
    trib_tensor *tensors[2];
    for (int rank = 0; rank < 2; rank++) {
        tensors[rank] = declare(&jobs, rank, "torn", TRIB_FLOAT32, (uint64_t)rank + 4);
        ops[rank] = job_push_pull(jobs.engines[rank], tensors[rank], values[rank], values[rank], TRIB_SUM);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], NULL), TRIB_MISMATCH);
        assert_int_equal(trib_tensor_counts(tensors[rank], NULL, 0, &(size_t){0}, NULL), TRIB_MISMATCH);
        assert_int_equal(trib_tensor_release(tensors[rank], NULL), TRIB_OK);
    }
    for (int rank = 0; rank < 2; rank++) {
        values[rank][0] = 1;
        tensors[rank] = declare(&jobs, rank, "torn", TRIB_FLOAT32, 4);
        ops[rank] = job_push_pull(jobs.engines[rank], tensors[rank], values[rank], values[rank], TRIB_SUM);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], NULL), TRIB_OK);
        assert_true(values[rank][0] == 2);
        assert_int_equal(trib_tensor_release(tensors[rank], NULL), TRIB_OK);
    }
    expect_alive(&jobs, (alive){.tensors = 2, .entries = 1, .numbers = 1, .keys = 0});
    job_close(&jobs);
}

static trib_status declare_shape(trib_engine *engine, const char *name, uint64_t a, uint64_t b, uint32_t flags,
                                 trib_tensor **tensor_out, trib_error *error)
{
    const uint64_t shape[] = {a, b};
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.count = 6;
    desc.shape = a > 0 ? shape : NULL;
    desc.dims = a > 0 ? 2 : 0;
    desc.flags = flags;
    return trib_tensor_declare(engine, &desc, tensor_out, error);
}

static void shapes_and_names_are_compared(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 2, 0, NULL);
    trib_tensor *first = NULL, *again = NULL, *tensors[2];
    trib_error error;
    assert_int_equal(declare_shape(jobs.engines[0], "local", 2, 3, TRIB_TENSOR_NEW, &first, &error), TRIB_OK);
    assert_int_equal(declare_shape(jobs.engines[0], "local", 0, 0, 0, &again, &error), TRIB_OK);
    assert_ptr_equal(first, again);
    assert_int_equal(declare_shape(jobs.engines[0], "local", 3, 2, 0, &again, &error), TRIB_MISMATCH);
    assert_non_null(strstr(error.text, "float32[2x3] in host memory, now as float32[3x2]"));
    assert_int_equal(declare_shape(jobs.engines[0], "local", 2, 2, 0, &again, &error), TRIB_INVALID);
    assert_int_equal(declare_shape(jobs.engines[0], "local", 2, 3, TRIB_TENSOR_NEW, &again, &error), TRIB_STATE);
    assert_int_equal(trib_tensor_find(jobs.engines[0], "local", &again, &error), TRIB_OK);
    assert_ptr_equal(first, again);
    assert_int_equal(trib_tensor_find(jobs.engines[1], "local", &again, &error), TRIB_INVALID);
    assert_int_equal(trib_tensor_find(jobs.engines[1], "__barrier", &again, &error), TRIB_INVALID);
    assert_int_equal(trib_tensor_release(first, NULL), TRIB_OK);
    assert_int_equal(trib_tensor_find(jobs.engines[0], "local", &again, &error), TRIB_INVALID);
    assert_int_equal(declare_shape(jobs.engines[0], "local", 3, 2, TRIB_TENSOR_NEW, &again, &error), TRIB_OK);

    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(
            declare_shape(jobs.engines[rank], "shape", rank == 0 ? 2 : 3, rank == 0 ? 3 : 2, 0, &tensors[rank], NULL),
            TRIB_OK);
        ops[rank] = job_push_pull(jobs.engines[rank], tensors[rank], values[rank], values[rank], TRIB_SUM);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], &error), TRIB_MISMATCH);
        assert_non_null(strstr(error.text, "as float32[2x3]"));
        assert_non_null(strstr(error.text, "as float32[3x2]"));
    }
    job_close(&jobs);
}

/* Steps that differ end the round on all workers alike; the next round is as good as ever. Byte counts are checked
 * before anything is sent. */
static void steps_and_bytes_are_compared(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, SERVERS, several_reactors);
    trib_op *ops[WORKERS];
    trib_op_params params[WORKERS];
    trib_error error;
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_op_params_init(&params[rank], sizeof params[rank]);
        params[rank].tensor = declare(&jobs, rank, "stepped", TRIB_FLOAT32, 5000);
        params[rank].input = params[rank].output = values[rank];
        params[rank].bytes = 20004;
        assert_int_equal(trib_push_pull(jobs.engines[rank], &params[rank], NULL, &error), TRIB_INVALID);
        assert_non_null(strstr(error.text, "params->bytes is 20004, but it has 20000 bytes"));
        params[rank].bytes = 20000;
    }
    for (uint32_t step = 1; step < 6; step++) {
        for (int rank = 0; rank < WORKERS; rank++) {
            params[rank].step = step + (step % 2 == 0 && rank == 1 ? 100 : 0);
            values[rank][4999] = 1;
            assert_int_equal(trib_push_pull(jobs.engines[rank], &params[rank], &ops[rank], &error), TRIB_OK);
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            const trib_status status = job_wait(ops[rank], &error);
            if (step % 2 != 0) {
                assert_int_equal(status, TRIB_OK);
                assert_true(values[rank][4999] == WORKERS);
                continue;
            }
            char words[64];
            snprintf(words, sizeof words, "rank 1 at step %u", step + 100);
            char other[64];
            snprintf(other, sizeof other, "rank 1 is at step %u", step + 100);
            assert_int_equal(status, TRIB_MISMATCH);
            assert_true(strstr(error.text, words) != NULL || strstr(error.text, other) != NULL);
        }
    }
    job_close(&jobs);
}

static void once(const trib_result *result, void *user)
{
    assert_string_equal(result->tensor, "");
    *(trib_status *)user = result->status;
}

static void one_operation_needs_no_tensor(void **state)
{
    (void)state;
    enum { TIMES = 50 };
    job jobs;
    job_open(&jobs, WORKERS, SERVERS, NULL);
    static float sums[TIMES][WORKERS][TIMES];
    static trib_status ends[TIMES][WORKERS];
    trib_op *ops[TIMES][WORKERS];
    for (int i = 0; i < TIMES; i++) {
        for (int rank = 0; rank < WORKERS; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.flags = TRIB_OP_ONCE;
            params.dtype = TRIB_FLOAT32;
            params.bytes = (uint64_t)(i + 1) * 4 + 1;
            params.input = params.output = sums[i][rank];
            params.done_cb = once;
            params.user = &ends[i][rank];
            assert_int_equal(trib_push_pull(jobs.engines[rank], &params, &ops[i][rank], NULL), TRIB_INVALID);
            params.bytes--;
            sums[i][rank][i] = (float)(rank + i);
            ends[i][rank] = TRIB_PENDING;
            assert_int_equal(trib_push_pull(jobs.engines[rank], &params, &ops[i][rank], NULL), TRIB_OK);
        }
    }
    for (int i = 0; i < TIMES; i++) {
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(job_wait(ops[i][rank], NULL), TRIB_OK);
            assert_int_equal(ends[i][rank], TRIB_OK);
            assert_true(sums[i][rank][i] == 3.0f + 3.0f * (float)i);
        }
    }
    expect_alive(&jobs, (alive){.tensors = WORKERS, .entries = 1, .numbers = 1, .keys = 0});
    job_close(&jobs);
}

/* The threads of each worker declare, sum and release tensors of their own, and one name that each declares and no
 * thread sums. */
enum { THREADS = 4, TURNS = 100 };

typedef struct racer {
    trib_engine *engine;
    int index, rank;
    float value[100];
    trib_status status;
} racer;

static trib_status race_once(racer *self, int turn)
{
    trib_error error;
    trib_op *op = NULL;
    trib_tensor *shared = NULL;
    trib_op_params params;
    trib_tensor_desc desc;
    char name[32];
    snprintf(name, sizeof name, "racer %d", self->index);
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params_init(&params, sizeof params);
    desc.name = name;
    desc.count = (uint64_t)(turn % 100) + 1;
    desc.flags = TRIB_TENSOR_NEW;
    params.input = params.output = self->value;
    params.bytes = desc.count * 4;
    params.step = (uint32_t)turn;
    self->value[turn % 100] = (float)(self->rank + turn);
    trib_status status = trib_tensor_declare(self->engine, &desc, &params.tensor, &error);
    status = status == TRIB_OK ? trib_push_pull(self->engine, &params, &op, &error) : status;
    status = status == TRIB_OK ? trib_op_wait(op, -1, &error) : status;
    trib_op_release(op);
    if (status == TRIB_OK && self->value[turn % 100] != 1.0f + 2.0f * (float)turn) {
        status = TRIB_SYSTEM;
    }
    status = status == TRIB_OK ? trib_tensor_release(params.tensor, &error) : status;
    desc.name = "shared by threads";
    desc.count = 3;
    desc.flags = 0;
    if (status == TRIB_OK) {
        status = trib_tensor_declare(self->engine, &desc, &shared, &error);
    }
    if (status == TRIB_OK) { /* another thread may have released it */
        const trib_status end = trib_tensor_release(shared, &error);
        status = end == TRIB_INVALID ? TRIB_OK : end;
    }
    return status;
}

static void *race(void *user)
{
    racer *self = user;
    for (int turn = 0; turn < TURNS && self->status == TRIB_OK; turn++) {
        self->status = race_once(self, turn);
    }
    return NULL;
}

static void threads_race(void **state)
{
    (void)state;
    job jobs;
    static racer racers[2][THREADS];
    pthread_t threads[2][THREADS];
    job_open(&jobs, 2, SERVERS, several_reactors);
    for (int i = 0; i < 2 * THREADS; i++) {
        racer *mine = &racers[i % 2][i / 2];
        *mine = (racer){.engine = jobs.engines[i % 2], .rank = i % 2, .index = i / 2};
        assert_int_equal(pthread_create(&threads[i % 2][i / 2], NULL, race, mine), 0);
    }
    for (int i = 0; i < 2 * THREADS; i++) {
        assert_int_equal(pthread_join(threads[i % 2][i / 2], NULL), 0);
        assert_int_equal(racers[i % 2][i / 2].status, TRIB_OK);
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stays),
        cmocka_unit_test(one_worker_is_far_ahead),
        cmocka_unit_test(an_operation_in_flight_keeps_it),
        cmocka_unit_test(workers_release_in_their_own_time),
        cmocka_unit_test(a_mismatch_ends_with_the_tensor),
        cmocka_unit_test(shapes_and_names_are_compared),
        cmocka_unit_test(steps_and_bytes_are_compared),
        cmocka_unit_test(one_operation_needs_no_tensor),
        cmocka_unit_test(threads_race),
    };
    return cmocka_run_group_tests_name("tensors that end", tests, NULL, NULL);
}
