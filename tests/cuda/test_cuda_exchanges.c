/*
 * test_cuda_exchanges.c - two ranks on one GPU of the fake (fake_cuda.h) exchange device tensors in slices, which the
 * module copies to host memory and back. Results are compared with what each rank computes itself. After a copy that
 * fails both ranks get an error, and nothing is left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/module_job.h"
#include "tests/loop/job.h"

enum { RANKS = 2, KINDS = 2, ROUNDS = 4, LONGEST = 40000, ROOM = 2 * LONGEST };

#define SECOND INT64_C(1000000000)
#define HANGS_S 60 /* then the process is ended */

/* One slice is short, the other needs several partitions. */
static const int lengths[RANKS] = {1000, LONGEST};
static const int total = 1000 + LONGEST;

typedef struct exchange {
    trib_tensor *tensor;
    int32_t source[ROOM], input[ROOM], output[ROOM], wanted[ROOM]; /* input and output are the GPU's */
    int given, taken;
    trib_op *op;
} exchange;

typedef struct rank {
    pthread_t thread;
    const char *address;
    int number;
    trib_engine *engine;
    cudaStream_t stream;
    exchange gathered, scattered;
    unsigned rights, wrongs, errors;
    char text[256];
} rank;

/* Two engines created at once make libudev, which hwloc uses, write its seed twice: the thread sanitizer reports
 * that. */
static pthread_mutex_t one_creates = PTHREAD_MUTEX_INITIALIZER;

static void hush(trib_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

static int32_t element(int from, int at, int round)
{
    return from * 100003 + at * 3 + round * 7;
}

static bool is_right(rank *self, trib_status status, const char *what, const trib_error *error)
{
    if (status != TRIB_OK && self->errors++ == 0) {
        snprintf(self->text, sizeof self->text, "%s: %.200s", what, error->text);
    }
    return status == TRIB_OK;
}

static bool create(rank *self)
{
    trib_config config;
    trib_error error = {.text = ""};
    trib_config_init(&config, sizeof config);
    config.rank = self->number;
    config.worker_count = RANKS;
    config.coordinator = self->address;
    config.device = "cuda";
    config.device_index = 0;
    config.local_size = 1;
    config.log_cb = hush;
    config.op_timeout_ns = config.join_timeout_ns = HANGS_S * SECOND;
    config.pin = false;
    config.partition_bytes = 65536;
    config.chunk_bytes = 16384;
    pthread_mutex_lock(&one_creates);
    const trib_status status = trib_engine_create(&config, &self->engine, &error);
    pthread_mutex_unlock(&one_creates);
    return is_right(self, status, "create", &error) &&
           is_right(self, trib_engine_wait_ready(self->engine, -1, &error), "wait for the other", &error);
}

static bool declare(rank *self, exchange *what, const char *name, int given, int taken)
{
    trib_tensor_desc desc;
    trib_error error = {.text = ""};
    what->given = given;
    what->taken = taken;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_INT32;
    desc.layout = TRIB_SLICES;
    desc.count = (uint64_t)lengths[self->number];
    desc.flags = TRIB_TENSOR_DEVICE;
    return is_right(self, trib_tensor_declare(self->engine, &desc, &what->tensor, &error), name, &error);
}

static void expect(rank *self, int round)
{
    int n = 0;
    for (int from = 0; from < RANKS; from++) {
        for (int i = 0; i < lengths[from]; i++) {
            self->gathered.wanted[n++] = element(from, i, round);
        }
    }
    const int before = self->number == 0 ? 0 : lengths[0];
    for (int i = 0; i < self->scattered.taken; i++) {
        self->scattered.wanted[i] = element(0, before + i, round) + element(1, before + i, round);
    }
}

static bool begin(rank *self, exchange *what, int round)
{
    trib_op_params params;
    trib_error error = {.text = ""};
    const bool gathers = what == &self->gathered;
    for (int i = 0; i < what->given; i++) {
        what->source[i] = element(self->number, i, round);
    }
    memset(what->output, 0xff, sizeof what->output);
    fake_stream_work(self->stream, 500);
    fake_stream_copy(self->stream, what->input, what->source, (size_t)what->given * sizeof(int32_t));
    trib_op_params_init(&params, sizeof params);
    params.tensor = what->tensor;
    params.input = what->input;
    params.output = what->output;
    params.output_bytes = (uint64_t)what->taken * sizeof(int32_t);
    params.stream = self->stream;
    const trib_status status =
        (gathers ? trib_all_gather : trib_reduce_scatter)(self->engine, &params, &what->op, &error);
    return is_right(self, status, gathers ? "gather" : "scatter", &error);
}

static void end(rank *self, exchange *what)
{
    trib_error error = {.text = ""};
    if (what->op == NULL) {
        return;
    }
    if (is_right(self, trib_op_wait(what->op, -1, &error), "wait", &error)) {
        const bool same = memcmp(what->output, what->wanted, (size_t)what->taken * sizeof(int32_t)) == 0;
        *(same ? &self->rights : &self->wrongs) += 1;
    }
    trib_op_release(what->op);
    what->op = NULL;
}

static void *rank_main(void *argument)
{
    rank *self = argument;
    const int own = lengths[self->number];
    self->stream = fake_stream_make(0);
    bool goes_on = create(self) && declare(self, &self->gathered, "gathered", own, total) &&
                   declare(self, &self->scattered, "scattered", total, own);
    for (int round = 0; goes_on && round < ROUNDS; round++) {
        expect(self, round);
        goes_on = begin(self, &self->gathered, round) && begin(self, &self->scattered, round);
        end(self, &self->gathered);
        end(self, &self->scattered);
        goes_on = goes_on && self->errors == 0;
    }
    trib_engine_destroy(self->engine);
    fake_stream_drop(self->stream);
    return NULL;
}

/* Makes the n-th copy fail; 0: none. */
static void run(rank *ranks, unsigned n)
{
    char address[64];
    module_outcome outcome = {.errors = 0};
    job_free_address(address, sizeof address);
    (void)alarm(HANGS_S);
    fake_open(32, module_seed);
    fake_fail(FAKE_COPY, n);
    memset(ranks, 0, RANKS * sizeof *ranks);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].address = address;
        ranks[i].number = i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
    outcome.closed = fake_close();
    outcome.counts = fake_count();
    assert_int_equal(fake_has_failed(), n > 0);
    (void)alarm(0);
    for (int i = 0; i < RANKS; i++) {
        print_message("# copy %u, rank %d: %u right, %u errors (%s)\n", n, i, ranks[i].rights, ranks[i].errors,
                      ranks[i].text);
        assert_int_equal(ranks[i].wrongs, 0);
    }
    assert_int_equal(outcome.counts.faults, 0);
    module_job_expect_nothing_left(&outcome, 0);
}

static void slices_are_exchanged(void **state)
{
    static rank ranks[RANKS];
    (void)state;
    run(ranks, 0);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].rights, ROUNDS * KINDS);
    }
}

/* A rank that has got an error leaves; the other one cannot end the next round without it. All these copies belong to
 * rounds before the last. */
static void a_failed_copy_ends_in_an_error_on_both_ranks(void **state)
{
    static const unsigned copies[] = {1, 2, 5, 9, 14, 20};
    static rank ranks[RANKS];
    (void)state;
    for (unsigned i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        run(ranks, copies[i]);
        for (int j = 0; j < RANKS; j++) {
            assert_true(ranks[j].errors > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_are_exchanged),
        cmocka_unit_test(a_failed_copy_ends_in_an_error_on_both_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
