/*
 * test_device.c - tensors on devices, with threads. Engines of one process stand for the processes of a few machines,
 * and plain memory for their GPUs. Seeds drive the same code in virtual time in tests/sim.
 */
#include <pthread.h>

#include "tests/loop/device/device_wrap.h"

enum { ROUNDS = 3, WORKERS_MAX = 8 };

static void in_pieces(trib_config *config, int member)
{
    on_devices(config, member);
    config->partition_bytes = 64 << 10;
    config->chunk_bytes = 16 << 10;
}

static trib_tensor *declare(trib_engine *engine, int index, uint64_t count)
{
    char name[32];
    snprintf(name, sizeof name, "tensor %d", index);
    return declare_on_device(engine, name, count, -index, TRIB_OK);
}

static trib_op *submit(trib_engine *engine, trib_tensor *tensor, const void *input, void *output, void *stream)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = input;
    params.output = output;
    params.stream = stream;
    return push_pull_or(engine, &params, TRIB_OK);
}

/* Every rank submits the tensors in an order of its own. */
static void race(job *jobs, uint32_t seed)
{
    int32_t *data[WORKERS_MAX][TENSORS];
    trib_op *ops[WORKERS_MAX][TENSORS];
    const int n = jobs->worker_count;
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < n; rank++) {
            for (int k = 0; k < TENSORS; k++) {
                const int t = (int)((unsigned)k * (rank % 2 == 0 ? 5u : 7u) + seed + (unsigned)rank) % TENSORS;
                data[rank][t] = malloc(counts[t] * sizeof(int32_t) + 1);
                for (uint64_t i = 0; i < counts[t]; i++) {
                    data[rank][t][i] = value(round, t, rank, i);
                }
                trib_tensor *tensor = declare(jobs->engines[rank], t, counts[t]);
                ops[rank][t] = submit(jobs->engines[rank], tensor, data[rank][t], data[rank][t], NULL);
            }
        }
        for (int rank = 0; rank < n; rank++) {
            for (int t = 0; t < TENSORS; t++) {
                trib_error error = {.status = TRIB_OK};
                if (job_wait(ops[rank][t], &error) != TRIB_OK) {
                    fail_msg("%s", error.text);
                }
                for (uint64_t i = 0; i < counts[t]; i++) {
                    assert_int_equal(data[rank][t][i], value(round, t, 0, i) * n + 1000 * n * (n - 1) / 2);
                }
                free(data[rank][t]);
            }
        }
    }
}

static void run_race(int workers, int servers, int on_one)
{
    job jobs;
    open_job(&jobs, workers, servers, on_one, in_pieces);
    race(&jobs, (uint32_t)(workers * 3 + servers));
    assert_int_equal(trib_host_world_order_conflicts(world), 0);
    close_job(&jobs);
}

static void one_device_a_machine(void **state)
{
    (void)state;
    run_race(2, 1, 1);
    run_race(3, 0, 1);
}

/* A share of a small tensor is a fraction of a chunk. */
static void default_sizes(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 4, 1, 2, on_devices);
    race(&jobs, 1);
    close_job(&jobs);
}

static void several_devices_a_machine(void **state)
{
    (void)state;
    run_race(4, 1, 2);
    run_race(8, 0, 4);
}

static void one_machine_alone(void **state)
{
    (void)state;
    run_race(1, 0, 1);
    run_race(4, 0, 4);
}

/* Every rank gets the root's bytes. The root keeps its own, with or without an output. */
static void broadcast_from(job *jobs, int root, int round)
{
    static int32_t data[WORKERS_MAX][TENSORS][262147], copy[TENSORS][262147];
    trib_op *ops[WORKERS_MAX][TENSORS];
    memset(copy, 0, sizeof copy);
    for (int rank = 0; rank < jobs->worker_count; rank++) {
        for (int k = 0; k < TENSORS; k++) {
            const int t = (k * (rank % 2 == 0 ? 5 : 7) + rank) % TENSORS;
            for (uint64_t i = 0; i < counts[t]; i++) {
                data[rank][t][i] = value(round, t, rank, i);
            }
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = declare(jobs->engines[rank], t, counts[t]);
            params.root = root;
            params.input = rank == root ? data[rank][t] : NULL;
            params.output = rank != root ? data[rank][t] : t % 3 == 0 ? NULL : t % 3 == 1 ? copy[t] : data[rank][t];
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(trib_broadcast(jobs->engines[rank], &params, &ops[rank][t], &error), TRIB_OK);
        }
    }
    for (int rank = 0; rank < jobs->worker_count; rank++) {
        for (int t = 0; t < TENSORS; t++) {
            trib_error error = {.status = TRIB_OK};
            assert_int_equal(job_wait(ops[rank][t], &error), TRIB_OK);
            for (uint64_t i = 0; i < counts[t]; i++) {
                assert_int_equal(data[rank][t][i], value(round, t, root, i));
            }
        }
    }
    for (int t = 1; t < TENSORS; t += 3) {
        for (uint64_t i = 0; i < counts[t]; i++) {
            assert_int_equal(copy[t][i], value(round, t, root, i));
        }
    }
}

static void run_broadcasts(int workers, int servers, int on_one)
{
    job jobs;
    open_job(&jobs, workers, servers, on_one, in_pieces);
    for (int round = 0; round < workers + 1; round++) {
        broadcast_from(&jobs, round % workers, round);
    }
    race(&jobs, 1);
    assert_int_equal(trib_host_world_order_conflicts(world), 0);
    close_job(&jobs);
}

static void broadcasts(void **state)
{
    (void)state;
    run_broadcasts(1, 0, 1);
    run_broadcasts(2, 0, 1);
    run_broadcasts(2, 0, 2);
    run_broadcasts(3, 2, 1);
    run_broadcasts(4, 1, 2);
}

/* Local ranks that disagree about an operation get TRIB_MISMATCH. */
static void local_sizes_disagree(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 3, 0, 3, in_pieces);
    static int32_t data[3][1000];
    for (int round = 0; round < 2; round++) {
        trib_op *ops[3];
        trib_error error = {.status = TRIB_OK};
        for (int rank = 0; rank < 3; rank++) {
            trib_op_params params;
            trib_op_params_init(&params, sizeof params);
            params.tensor = declare(jobs.engines[rank], TENSORS, 1000);
            params.input = params.output = data[rank];
            params.root = round == 0 ? 1 : rank == 2 ? 2 : 0;
            const bool sums = round == 0 && rank == 0;
            assert_int_equal((sums ? trib_push_pull : trib_broadcast)(jobs.engines[rank], &params, &ops[rank], &error),
                             TRIB_OK);
        }
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(job_wait(ops[rank], &error), TRIB_MISMATCH);
        }
    }
    race(&jobs, 1);
    close_job(&jobs);
}

/* The engine reads nothing from the input before the caller's stream has reached the call. */
static void waits_for_the_stream(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 1, 1, in_pieces);
    enum { COUNT = 1000 };
    static int32_t data[2][COUNT];
    memset(data, 0, sizeof data);
    trib_host_stream *stream = trib_host_stream_create(false);
    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        trib_tensor *tensor = declare(jobs.engines[rank], 0, COUNT);
        ops[rank] = submit(jobs.engines[rank], tensor, data[rank], data[rank], rank == 0 ? stream : NULL);
    }
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_op_wait(ops[0], INT64_C(100000000), &error), TRIB_TIMEOUT);
    for (int i = 0; i < COUNT; i++) {
        data[0][i] = i;
    }
    trib_host_stream_open(stream);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(data[rank][i], i);
        }
    }
    close_job(&jobs);
    trib_host_stream_free(stream);
}

/* A device that fails makes the operation fail on every rank, with a text that names the device. */
static void a_device_fails(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 4, 1, 2, in_pieces);
    static int32_t data[4][1000];
    trib_op *ops[4];
    trib_host_world_fault(world, 1, 0, TRIB_HOST_FAULT_FAIL);
    for (int rank = 0; rank < 4; rank++) {
        ops[rank] = submit(jobs.engines[rank], declare(jobs.engines[rank], 0, 1000), data[rank], data[rank], NULL);
    }
    for (int rank = 0; rank < 4; rank++) {
        trib_error error = {.status = TRIB_OK};
        assert_int_not_equal(job_wait(ops[rank], &error), TRIB_OK);
        assert_non_null(strstr(error.text, "tensor 0"));
    }
    close_job(&jobs);
}

/* Long enough for small messages to arrive. The test covers less if they do not. */
static void let_messages_arrive(void)
{
    const struct timespec time = {.tv_nsec = 300000000};
    nanosleep(&time, NULL);
}

/* A rank that waits for a departed local rank, or needs one that left earlier, reads its name. */
static void one_leaves(int who, bool later)
{
    job jobs;
    open_job(&jobs, 3, 1, 3, in_pieces);
    static int32_t data[3][1000];
    trib_op *ops[3] = {NULL};
    char name[16];
    snprintf(name, sizeof name, "rank %d (", who);
    if (later) {
        trib_engine_close(jobs.engines[who], NULL, NULL);
        let_messages_arrive();
    }
    for (int rank = 0; rank < 3; rank++) {
        if (rank != who) {
            ops[rank] = submit(jobs.engines[rank], declare(jobs.engines[rank], 0, 1000), data[rank], data[rank], NULL);
        }
    }
    if (!later) {
        trib_engine_close(jobs.engines[who], NULL, NULL);
    }
    for (int rank = 0; rank < 3; rank++) {
        trib_error error = {.status = TRIB_OK};
        if (rank != who) {
            assert_int_equal(job_wait(ops[rank], &error), TRIB_PEER_LEFT);
            if (strstr(error.text, name) == NULL || strstr(error.text, "has left the job") == NULL) {
                fail_msg("%s", error.text);
            }
        }
    }
    close_job(&jobs);
}

static void a_local_rank_leaves(void **state)
{
    (void)state;
    for (int who = 0; who < 3; who++) { /* rank 0 also coordinates the job */
        one_leaves(who, false);
        one_leaves(who, true);
    }
}

static void refuse(trib_engine *engine, trib_op_params *params, trib_status wanted, const char *word)
{
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_push_pull(engine, params, NULL, &error), wanted);
    assert_non_null(strstr(error.text, word));
}

static void refuses_what_cannot_be(void **state)
{
    (void)state;
    job jobs;
    open_job(&jobs, 2, 0, 2, in_pieces);
    static int32_t data[10];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = data;
    params.tensor = declare(jobs.engines[0], 0, 10);
    params.reduce = TRIB_AVG;
    refuse(jobs.engines[0], &params, TRIB_UNSUPPORTED, "AVG");
    params.reduce = TRIB_SUM;
    params.tensor = job_declare(jobs.engines[0], "in host memory", TRIB_INT32, 10);
    params.stream = data;
    refuse(jobs.engines[0], &params, TRIB_INVALID, "TRIB_TENSOR_DEVICE");
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_broadcast(jobs.engines[0], &params, NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "TRIB_TENSOR_DEVICE"));
    close_job(&jobs);
}

/* Threads of one process submit operations on tensors of their own. */
static void *hand_in_many(void *argument)
{
    static atomic_int threads;
    static _Thread_local int32_t data[1000];
    trib_engine *engine = argument;
    char name[32];
    snprintf(name, sizeof name, "of thread %d", atomic_fetch_add(&threads, 1));
    for (int i = 0; i < 200; i++) {
        trib_error error = {.status = TRIB_OK};
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = declare_on_device(engine, name, 1000, 0, TRIB_OK);
        params.input = params.output = data;
        if (job_wait(push_pull_or(engine, &params, TRIB_OK), &error) != TRIB_OK) {
            return argument;
        }
    }
    return NULL;
}

static void several_threads_hand_in(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    job jobs;
    open_job(&jobs, 1, 0, 1, on_devices);
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

static void no_device_no_tensor(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, NULL);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "t";
    desc.dtype = TRIB_FLOAT32;
    desc.count = 1;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_tensor_declare(jobs.engines[0], &desc, &tensor, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "cuda"));
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_a_machine), cmocka_unit_test(several_devices_a_machine),
        cmocka_unit_test(one_machine_alone),    cmocka_unit_test(default_sizes),
        cmocka_unit_test(waits_for_the_stream), cmocka_unit_test(a_device_fails),
        cmocka_unit_test(a_local_rank_leaves),  cmocka_unit_test(refuses_what_cannot_be),
        cmocka_unit_test(no_device_no_tensor),  cmocka_unit_test(broadcasts),
        cmocka_unit_test(local_sizes_disagree), cmocka_unit_test(several_threads_hand_in),
    };
    return cmocka_run_group_tests_name("tensors on devices", tests, NULL, NULL);
}
