/* test_local_sum.c - the workers of a machine sum first. The result has the same bits as without, and one contribution
 * leaves each machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/machines.h"
#include "tests/support/sanitized.h"

static machines_shape shape;

static void open_job(job *jobs, int workers, int servers, int local, trib_local_sum mode)
{
    shape.local = local;
    shape.mode = mode;
    machines_open(jobs, workers, servers, shape);
}

static trib_stats stats_of(trib_engine *engine)
{
    trib_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(trib_engine_get_stats(engine, &stats), TRIB_OK);
    return stats;
}

/* ---- Bits ---- */

enum { COUNT = 30001, WORKERS_MAX = 8 };

/* Fills a buffer with numbers whose sums depend on the order of adding. Types that overflow get small numbers. */
static void fill(trib_dtype dtype, int rank, void *buffer)
{
    uint32_t seed = 12345u + 977u * (uint32_t)rank;
    for (int i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(int32_t)seed / 3e6f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        switch (dtype) {
        case TRIB_FLOAT32:
            ((float *)buffer)[i] = value;
            break;
        case TRIB_FLOAT64:
            ((double *)buffer)[i] = value;
            break;
        case TRIB_BFLOAT16:
            ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
            break;
        case TRIB_FLOAT16: /* numbers of moderate size */
            ((uint16_t *)buffer)[i] = (uint16_t)((seed >> 16 & 0x83ff) | (12u + (seed & 3u)) << 10);
            break;
        default:
            memcpy((char *)buffer + (size_t)i * trib_dtype_size(dtype), (uint32_t[]){seed, seed * 7u},
                   trib_dtype_size(dtype));
        }
    }
}

/* Returns all workers' results of every type and reduction, one after the other. */
static unsigned char *results_of(job *jobs, size_t *size_out)
{
    const int n = jobs->worker_count;
    size_t size = 0;
    for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        size += (size_t)n * TRIB_REDUCE_COUNT * COUNT * trib_dtype_size((trib_dtype)dtype);
    }
    unsigned char *all = calloc(1, size), *at = all;
    assert_non_null(all);
    for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype += (int)TSAN_STRIDE) {
        const size_t bytes = COUNT * trib_dtype_size((trib_dtype)dtype);
        for (int reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
            if (!trib_reduce_suits((trib_dtype)dtype, (trib_reduce)reduce)) {
                continue;
            }
            trib_op *ops[WORKERS_MAX];
            unsigned char *inputs = malloc((size_t)n * bytes);
            assert_non_null(inputs);
            for (int i = 0; i < n; i++) {
                trib_tensor *tensor =
                    job_declare(jobs->engines[i], trib_dtype_name((trib_dtype)dtype), (trib_dtype)dtype, COUNT);
                fill((trib_dtype)dtype, i, inputs + (size_t)i * bytes);
                ops[i] = job_push_pull(jobs->engines[i], tensor, inputs + (size_t)i * bytes, at + (size_t)i * bytes,
                                       (trib_reduce)reduce);
            }
            for (int i = 0; i < n; i++) {
                trib_error error = {.status = TRIB_OK};
                if (job_wait(ops[i], &error) != TRIB_OK) {
                    fail_msg("%s", error.text);
                }
                assert_memory_equal(at, at + (size_t)i * bytes, bytes);
            }
            free(inputs);
            at += (size_t)n * bytes;
        }
    }
    *size_out = size;
    return all;
}

static void compare_bits(int workers, int servers, int local, trib_local_sum mode)
{
    job jobs;
    size_t size = 0, size_again = 0;
    open_job(&jobs, workers, servers, local, TRIB_LOCAL_SUM_OFF);
    assert_int_equal(machines_info(jobs.engines[0]).local_sum, 0);
    unsigned char *flat = results_of(&jobs, &size);
    assert_true(stats_of(jobs.engines[0]).bytes_relayed == 0);
    job_close(&jobs);
    open_job(&jobs, workers, servers, local, mode);
    for (int i = 0; i < workers + servers; i++) {
        assert_int_equal(machines_info(jobs.engines[i]).local_sum, local);
    }
    unsigned char *summed_first = results_of(&jobs, &size_again);
    job_close(&jobs);
    assert_true(size == size_again);
    assert_memory_equal(flat, summed_first, size);
    free(flat);
    free(summed_first);
}

static void bits_are_those_of_the_flat_sum(void **state)
{
    (void)state;
    shape = (machines_shape){.reactors = 2};
    compare_bits(4, 0, 2, TRIB_LOCAL_SUM_AUTO);
    shape = (machines_shape){.reactors = 1};
    compare_bits(8, 0, 4, TRIB_LOCAL_SUM_AUTO);
    compare_bits(6, 0, 2, TRIB_LOCAL_SUM_AUTO);
}

static void bits_with_servers(void **state)
{
    (void)state;
    shape = (machines_shape){.reactors = 2};
    compare_bits(4, 1, 2, TRIB_LOCAL_SUM_AUTO);
    compare_bits(4, 2, 2, TRIB_LOCAL_SUM_AUTO);
    shape.colocate = TRIB_COLOCATE_OFF;
    compare_bits(4, 1, 2, TRIB_LOCAL_SUM_AUTO);
}

/* ---- Contributions that leave a machine ---- */

static void one_contribution_leaves_a_machine(void **state)
{
    (void)state;
    enum { ELEMENTS = 1 << 20, BYTES = 4 * ELEMENTS };
    job jobs;
    shape = (machines_shape){.reactors = 1};
    open_job(&jobs, 8, 0, 4, TRIB_LOCAL_SUM_AUTO);
    trib_op *ops[8];
    float *data[8];
    for (int i = 0; i < 8; i++) {
        data[i] = calloc(ELEMENTS, sizeof(float));
        assert_non_null(data[i]);
        trib_tensor *tensor = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, ELEMENTS);
        ops[i] = job_push_pull(jobs.engines[i], tensor, data[i], data[i], TRIB_SUM);
    }
    uint64_t relayed[2] = {0, 0}, pushed = 0;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
        free(data[i]);
    }
    for (int i = 0; i < 8; i++) {
        const trib_stats stats = stats_of(jobs.engines[i]);
        assert_true(stats.bytes_relayed > 0); /* every worker relays a part */
        relayed[i / 4] += stats.bytes_relayed;
        pushed += stats.bytes_pushed;
    }
    assert_true(pushed == UINT64_C(8) * BYTES);
    /* Each machine sums half of the bytes, so each pushes the other's half, once. */
    assert_true(relayed[0] + relayed[1] == BYTES);
    /* The factor counts two machines, not eight workers. */
    assert_true(machines_info(jobs.engines[0]).t_opt_factor == 1.0);
    job_close(&jobs);
}

static void local_sum_is_off_where_it_cannot_be(void **state)
{
    (void)state;
    job jobs;
    shape = (machines_shape){.reactors = 1};
    open_job(&jobs, 4, 0, 4, TRIB_LOCAL_SUM_ON); /* one machine */
    assert_int_equal(machines_info(jobs.engines[0]).local_sum, 0);
    job_close(&jobs);
    open_job(&jobs, 5, 0, 2, TRIB_LOCAL_SUM_ON); /* machines of 2, 2 and 1 workers */
    assert_int_equal(machines_info(jobs.engines[0]).local_sum, 0);
    job_close(&jobs);
    open_job(&jobs, 6, 0, 3, TRIB_LOCAL_SUM_AUTO); /* a local sum would change the bits */
    assert_int_equal(machines_info(jobs.engines[0]).local_sum, 0);
    job_close(&jobs);
    open_job(&jobs, 6, 0, 3, TRIB_LOCAL_SUM_ON);
    assert_int_equal(machines_info(jobs.engines[5]).local_sum, 3);
    size_t size = 0;
    free(results_of(&jobs, &size)); /* results_of checks that all workers have the same bits */
    job_close(&jobs);
}

/* Members of a machine start with different addresses of it. An address list holds only four of the six. */
static void machines_with_several_addresses(void **state)
{
    (void)state;
    static const int hosts[] = {2, 4, 6};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        job jobs;
        shape = (machines_shape){.reactors = 1, .hosts = hosts[i]};
        open_job(&jobs, 8, 0, 4, TRIB_LOCAL_SUM_AUTO);
        assert_int_equal(machines_info(jobs.engines[0]).local_sum, 4);
        size_t size = 0;
        free(results_of(&jobs, &size));
        job_close(&jobs);
    }
}

/* ---- Other operations ---- */

static void broadcast_from(job *jobs, trib_tensor *const *tensors, int root)
{
    const int n = jobs->worker_count;
    static int32_t data[WORKERS_MAX][COUNT];
    trib_op *ops[WORKERS_MAX];
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < COUNT; k++) {
            data[i][k] = i == root ? root * 1000003 + k : -1;
        }
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.tensor = tensors[i];
        params.input = params.output = data[i];
        params.root = root;
        assert_int_equal(trib_broadcast(jobs->engines[i], &params, &ops[i], NULL), TRIB_OK);
    }
    for (int i = 0; i < n; i++) {
        trib_error error = {.status = TRIB_OK};
        if (job_wait(ops[i], &error) != TRIB_OK) {
            fail_msg("root %d: %s", root, error.text);
        }
    }
    for (int i = 0; i < n; i++) {
        assert_memory_equal(data[i], data[root], sizeof data[root]);
    }
    assert_int_equal(data[0][5], root * 1000003 + 5);
}

static void broadcasts_and_barriers(void **state)
{
    (void)state;
    job jobs;
    for (uint32_t servers = 0; servers < 2; servers++) {
        shape = (machines_shape){.reactors = 2};
        open_job(&jobs, 6, (int)servers, 2, TRIB_LOCAL_SUM_AUTO);
        trib_tensor *tensors[6];
        for (int i = 0; i < 6; i++) {
            tensors[i] = job_declare(jobs.engines[i], "b", TRIB_INT32, COUNT);
        }
        for (int root = 0; root < 6; root++) {
            broadcast_from(&jobs, tensors, root);
            trib_op *ops[6];
            for (int i = 5; i >= 0; i--) {
                assert_int_equal(trib_barrier(jobs.engines[i], NULL, &ops[i], NULL), TRIB_OK);
            }
            for (int i = 0; i < 6; i++) {
                assert_int_equal(job_wait(ops[i], NULL), TRIB_OK);
            }
        }
        job_close(&jobs);
    }
}

/* Each worker submits the tensors in an order of its own, several rounds of each. */
static void orders_differ(void **state)
{
    (void)state;
    enum { TENSORS = 23 /* a prime */, ROUNDS = 4, SIZE = 6000 };
    job jobs;
    shape = (machines_shape){.reactors = 2};
    open_job(&jobs, 4, 0, 2, TRIB_LOCAL_SUM_AUTO);
    int32_t(*data)[TENSORS][ROUNDS][SIZE] = calloc(4, sizeof *data);
    trib_op *ops[4][TENSORS][ROUNDS];
    trib_tensor *tensors[4][TENSORS];
    assert_non_null(data);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < TENSORS; k++) {
            const int which = (k * (2 * i + 1) + 5 * i) % TENSORS;
            char name[16];
            snprintf(name, sizeof name, "t%d", which);
            tensors[i][which] = job_declare(jobs.engines[i], name, TRIB_INT32, SIZE);
        }
        for (int k = 0; k < TENSORS * ROUNDS; k++) {
            const int which = (k % TENSORS * (2 * i + 1) * 5 + 7 * i) % TENSORS, round = k / TENSORS;
            int32_t *at = data[i][which][round];
            for (int x = 0; x < SIZE; x++) {
                at[x] = (i + 1) * (x + which) + round;
            }
            ops[i][which][round] = job_push_pull(jobs.engines[i], tensors[i][which], at, at, TRIB_SUM);
        }
    }
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < TENSORS * ROUNDS; k++) {
            const int which = k % TENSORS, round = k / TENSORS;
            assert_int_equal(job_wait(ops[i][which][round], NULL), TRIB_OK);
            assert_int_equal(data[i][which][round][SIZE - 1], 10 * (SIZE - 1 + which) + 4 * round);
        }
    }
    free(data);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_the_flat_sum),    cmocka_unit_test(bits_with_servers),
        cmocka_unit_test(one_contribution_leaves_a_machine), cmocka_unit_test(local_sum_is_off_where_it_cannot_be),
        cmocka_unit_test(broadcasts_and_barriers),           cmocka_unit_test(orders_differ),
        cmocka_unit_test(machines_with_several_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
