/*
 * test_device_order.c - operations on devices that are issued where they are handed in (trib_config.device_order), with threads:
 * engines of one process stand for the local ranks of a machine, plain memory stands in for their GPUs.
 */
#include <pthread.h>

#include "tests/loop/device/device_wrap.h"

enum { ROUNDS = 3, RANKS_MAX = 4, COUNT = 1000 };

static int agreeing = -1; /* a rank that does not promise */

static void in_order(trib_config *config, int member)
{
    on_devices(config, member);
    config->device_order = member == agreeing ? TRIB_DEVICE_ORDER_AGREED : TRIB_DEVICE_ORDER_PROGRAM;
}

static void short_wait(trib_config *config, int member)
{
    in_order(config, member);
    config->peer_timeout_ns = INT64_C(300000000);
}

static trib_op *sum(trib_engine *engine, const char *name, void *data, uint64_t count)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(engine, name, count, 0, TRIB_OK);
    params.input = params.output = data;
    return push_pull_or(engine, &params, TRIB_OK);
}

/* In a job that may have ended by now, as workers disagree. */
static trib_op *sum_or_mismatch(trib_engine *engine, const char *name, void *data, uint64_t count, trib_reduce reduce)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(engine, name, count, 0, TRIB_MISMATCH);
    params.input = params.output = data;
    params.reduce = reduce;
    return push_pull_or(engine, &params, TRIB_MISMATCH);
}

/* ---- What is promised is kept ---- */

typedef struct handed {
    int32_t *data;
    trib_host_stream *stream;
    trib_op *op;
} handed;

static void hand_in(job *jobs, int round, int rank, int t, handed *what)
{
    char name[32];
    snprintf(name, sizeof name, "tensor %d", t);
    what->data = malloc(counts[t] * sizeof(int32_t) + 1);
    what->stream = (t + rank) % 3 == 0 ? trib_host_stream_create(false) : NULL;
    for (uint64_t i = 0; i < counts[t] && what->stream == NULL; i++) {
        what->data[i] = value(round, t, rank, i);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(jobs->engines[rank], name, counts[t], 0, TRIB_OK);
    params.input = params.output = what->data;
    params.stream = what->stream;
    params.priority = rank;
    params.has_priority = true; /* changes nothing */
    what->op = push_pull_or(jobs->engines[rank], &params, TRIB_OK);
}

static void check(job *jobs, int round, int t, handed *what)
{
    const int n = jobs->worker_count;
    trib_error error = {.status = TRIB_OK};
    if (job_wait(what->op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    for (uint64_t i = 0; i < counts[t]; i++) {
        assert_int_equal(what->data[i], value(round, t, 0, i) * n + 1000 * n * (n - 1) / 2);
    }
    trib_host_stream_free(what->stream);
    free(what->data);
}

/* Tensors in one order, the first time before they have been placed; inputs become ready in another. */
static void race(job *jobs, int rounds)
{
    static handed all[RANKS_MAX][TENSORS];
    for (int round = 0; round < rounds; round++) {
        for (int rank = 0; rank < jobs->worker_count; rank++) {
            for (int k = 0; k < TENSORS; k++) {
                const int t = (k * 5 + round) % TENSORS;
                hand_in(jobs, round, rank, t, &all[rank][t]);
            }
        }
        for (int rank = jobs->worker_count - 1; rank >= 0; rank--) {
            for (int t = 0; t < TENSORS; t++) {
                for (uint64_t i = 0; i < counts[t] && all[rank][t].stream != NULL; i++) {
                    all[rank][t].data[i] = value(round, t, rank, i);
                }
                if (all[rank][t].stream != NULL) {
                    trib_host_stream_open(all[rank][t].stream);
                }
            }
        }
        for (int rank = 0; rank < jobs->worker_count; rank++) {
            for (int t = 0; t < TENSORS; t++) {
                check(jobs, round, t, &all[rank][t]);
            }
        }
    }
}

static void one_order(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks += ranks) {
        job jobs;
        open_job(&jobs, ranks, 0, ranks, in_order);
        race(&jobs, ROUNDS);
        assert_int_equal(trib_host_world_disorders(world), 0);
        close_job(&jobs);
    }
}

static void broadcasts(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 3, 0, 3, in_order);
    static int32_t data[3][COUNT];
    for (int root = 0; root < 3; root++) {
        trib_op *ops[3];
        for (int rank = 0; rank < 3; rank++) {
            data[rank][7] = rank;
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = declare_on_device(jobs.engines[rank], "shared", COUNT, 0, TRIB_OK);
            params.root = root;
            params.input = rank == root ? data[rank] : NULL;
            params.output = rank == root && root == 1 ? NULL : data[rank];
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(trib_broadcast(jobs.engines[rank], &params, &ops[rank], &error), TRIB_OK);
        }
        for (int rank = 0; rank < 3; rank++) {
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
            assert_int_equal(data[rank][7], root);
        }
    }
    close_job(&jobs);
}

/* One process with one device may hand in from any thread: there is nobody to keep an order with. */
static void *hand_in_many(void *argument)
{
    static atomic_int threads;
    trib_engine *engine = argument;
    char name[32];
    snprintf(name, sizeof name, "of thread %d", atomic_fetch_add(&threads, 1));
    static _Thread_local int32_t data[COUNT];
    for (int i = 0; i < 200; i++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(sum(engine, name, data, COUNT), &error) != TRIB_OK) {
            return argument;
        }
    }
    return NULL;
}

static void several_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    job jobs;
    open_job(&jobs, 1, 0, 1, in_order);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hand_in_many, jobs.engines[0]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    close_job(&jobs);
}

/* ---- What has been issued is carried out, and holds its buffers ---- */

static void a_cancel_waits_for_the_others(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 2, in_order);
    static int32_t data[2][COUNT];
    memset(data, 0, sizeof data);
    trib_error error = {.status = TRIB_OK};
    for (int round = 0; round < 2; round++) {
        data[0][1] = data[1][1] = 5;
        trib_op *mine = sum(jobs.engines[0], "cancelled", data[0], COUNT);
        trib_op_cancel(mine);
        assert_int_equal(trib_op_wait(mine, INT64_C(50000000), &error), TRIB_TIMEOUT);
        assert_int_equal(trib_op_status(mine), TRIB_PENDING);
        assert_int_equal(job_wait(sum(jobs.engines[1], "cancelled", data[1], COUNT), &error), TRIB_OK);
        assert_int_equal(data[1][1], 10);
        assert_int_equal(job_wait(mine, &error), TRIB_CANCELLED);
    }
    race(&jobs, 1);
    close_job(&jobs);
}

static void end_with(trib_op **ops, int ranks, trib_status wanted, const char *word)
{
    for (int rank = 0; rank < ranks; rank++) {
        trib_error error = {.status = TRIB_OK};
        const trib_status status = ops[rank] != NULL ? job_wait(ops[rank], &error) : wanted;
        if (status != wanted || (ops[rank] != NULL && strstr(error.text, word) == NULL)) {
            fail_msg("rank %d: %s: %s", rank, trib_status_name(status), error.text);
        }
    }
}

static void one_never_comes(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 2, short_wait);
    static int32_t data[COUNT];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare_on_device(jobs.engines[0], "lonely", COUNT, 0, TRIB_OK);
    params.input = params.output = data;
    params.timeout_ns = 1000000;
    trib_op *first = push_pull_or(jobs.engines[0], &params, TRIB_OK),
            *second = push_pull_or(jobs.engines[0], &params, TRIB_OK);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(job_wait(first, &error), TRIB_TIMEOUT);
    assert_int_equal(job_wait(second, &error), TRIB_TIMEOUT);
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, NULL, &error), TRIB_TIMEOUT);
    assert_non_null(strstr(error.text, "has not handed in its own"));
    close_job(&jobs);
}

static void one_leaves(int who)
{
    job jobs;
    open_job(&jobs, 3, 0, 3, in_order);
    static int32_t data[3][COUNT];
    trib_op *ops[3] = {NULL};
    for (int rank = 0; rank < 3; rank++) {
        if (rank != who) {
            ops[rank] = sum(jobs.engines[rank], "left", data[rank], COUNT);
        }
    }
    trib_engine_close(jobs.engines[who], NULL, NULL);
    end_with(ops, 3, TRIB_PEER_LEFT, "has left the job");
    close_job(&jobs);
}

static void a_local_rank_leaves(void **state)
{
    (void)state;
    one_leaves(0); /* which keeps the membership, too */
    one_leaves(2);
}

static void a_device_fails(void **state)
{
    (void)state;
    for (int fault = TRIB_HOST_FAULT_FAIL; fault <= TRIB_HOST_FAULT_HANG; fault++) {
        job jobs;
        open_job(&jobs, 2, 0, 2, short_wait);
        static int32_t data[2][COUNT];
        trib_op *ops[2];
        trib_host_world_fault(world, 0, 1, (trib_host_fault)fault);
        for (int rank = 0; rank < 2; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = declare_on_device(jobs.engines[rank], "broken", COUNT, 0, TRIB_OK);
            params.input = params.output = data[rank];
            params.timeout_ns = fault == TRIB_HOST_FAULT_HANG ? 1000000 : 0;
            ops[rank] = push_pull_or(jobs.engines[rank], &params, TRIB_OK);
        }
        for (int rank = 0; rank < 2; rank++) { /* who hears of it from the other has lost that one */
            trib_error error = {.status = TRIB_OK};
            const trib_status status = job_wait(ops[rank], &error);
            assert_true(status == (fault == TRIB_HOST_FAULT_HANG ? TRIB_TIMEOUT : TRIB_SYSTEM) ||
                        (status == TRIB_PEER_LOST && rank == 0));
            assert_non_null(strstr(error.text, "broken"));
        }
        close_job(&jobs);
    }
}

/* ---- What is promised is not kept ---- */

static void different_orders(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 3, 0, 3, in_order);
    static int32_t data[3][2][COUNT];
    trib_op *ops[2][3];
    for (int rank = 0; rank < 3; rank++) {
        for (int i = 0; i < 2; i++) {
            const int which = rank == 1 ? 1 - i : i;
            ops[which][rank] =
                sum_or_mismatch(jobs.engines[rank], which == 0 ? "one" : "other", data[rank][which], COUNT, TRIB_SUM);
        }
    }
    for (int which = 0; which < 2; which++) {
        end_with(ops[which], 3, TRIB_MISMATCH, "TRIB_DEVICE_ORDER");
    }
    close_job(&jobs);
}

static void different_reductions(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 2, in_order);
    static int32_t data[2][COUNT];
    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        ops[rank] = sum_or_mismatch(jobs.engines[rank], "disputed", data[rank], COUNT, rank == 0 ? TRIB_SUM : TRIB_MAX);
    }
    end_with(ops, 2, TRIB_MISMATCH, "not the same reduction");
    close_job(&jobs);
}

static void different_sizes(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 2, in_order);
    static int32_t data[2][COUNT];
    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        ops[rank] = sum_or_mismatch(jobs.engines[rank], "disputed", data[rank], (uint64_t)(COUNT - rank), TRIB_SUM);
    }
    end_with(ops, 2, TRIB_MISMATCH, "disputed");
    close_job(&jobs);
}

/* One promises, the other does not. */
static void different_promises(void **state)
{
    (void)state;
    for (agreeing = 0; agreeing < 2; agreeing++) {
        job jobs;
        open_job(&jobs, 2, 0, 2, in_order);
        static int32_t data[2][COUNT];
        trib_op *ops[2];
        for (int rank = 0; rank < 2; rank++) {
            ops[rank] = sum_or_mismatch(jobs.engines[rank], "promised", data[rank], COUNT, TRIB_SUM);
        }
        end_with(ops, 2, TRIB_MISMATCH, "must be the same on all ranks of a machine");
        close_job(&jobs);
    }
    agreeing = -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_order),
        cmocka_unit_test(broadcasts),
        cmocka_unit_test(several_threads),
        cmocka_unit_test(a_cancel_waits_for_the_others),
        cmocka_unit_test(one_never_comes),
        cmocka_unit_test(a_local_rank_leaves),
        cmocka_unit_test(a_device_fails),
        cmocka_unit_test(different_orders),
        cmocka_unit_test(different_reductions),
        cmocka_unit_test(different_sizes),
        cmocka_unit_test(different_promises),
    };
    return cmocka_run_group_tests_name("devices in program order", tests, NULL, NULL);
}
