/* test_introspection.c - the questions that a caller can ask an engine: what it waits for, the status of an operation,
 * memory. Wrong questions, tensors and operations are refused with a text that names the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

#define COUNT 1000
#define TRIES 3000
#define A_MOMENT_NS INT64_C(10000000)

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

/* ---- Waiting operations ---- */

/* Asks until an entry has this stage and this peer. op stays incomplete in the meantime. */
static void expect_waiting(trib_engine *engine, trib_op *op, const char *stage, const char *peer)
{
    trib_waiting entries[4];
    size_t count = 0;
    for (int tried = 0; tried < TRIES; tried++) {
        assert_int_equal(trib_engine_waiting(engine, entries, 4, &count), TRIB_OK);
        for (size_t i = 0; i < count && i < 4; i++) {
            if (strcmp(entries[i].stage, stage) == 0 && strstr(entries[i].peer, peer) != NULL) {
                assert_string_equal(entries[i].tensor, "weights");
                assert_true(entries[i].since_ns >= 0);
                return;
            }
        }
        assert_int_equal(trib_op_wait(op, A_MOMENT_NS, NULL), TRIB_TIMEOUT);
    }
    fail_msg("nothing waits in %s for %s; the first of %zu: %s, %s", stage, peer, count, entries[0].stage,
             entries[0].peer);
}

static void one_reactor(trib_config *config, int member)
{
    (void)member;
    config->reactors = 1;
}

static void introspection_names_the_awaited_peers(void **state)
{
    (void)state;
    job jobs;
    float data[3][COUNT] = {{0}};
    size_t count = 0;
    job_open(&jobs, 2, 1, NULL);
    trib_tensor *mine = job_declare(jobs.engines[0], "weights", TRIB_FLOAT32, COUNT);
    trib_op *first = job_push_pull(jobs.engines[0], mine, data[0], data[0], TRIB_SUM);
    trib_op *second = job_push_pull(jobs.engines[0], mine, data[1], data[1], TRIB_SUM);
    expect_waiting(jobs.engines[0], first, "PULL", "rank 1");
    expect_waiting(jobs.engines[0], first, "TURN", "an earlier operation");
    assert_int_equal(trib_engine_waiting(jobs.engines[0], NULL, 0, &count), TRIB_OK);
    assert_int_equal(count, 2);
    assert_int_equal(trib_op_status(first), TRIB_PENDING);

    trib_tensor *yours = job_declare(jobs.engines[1], "weights", TRIB_FLOAT32, COUNT);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(job_wait(job_push_pull(jobs.engines[1], yours, data[2], data[2], TRIB_SUM), NULL), TRIB_OK);
    }
    assert_int_equal(trib_op_wait(first, -1, NULL), TRIB_OK);
    assert_int_equal(trib_op_status(first), TRIB_OK);
    trib_op_release(first);
    assert_int_equal(job_wait(second, NULL), TRIB_OK);
    assert_int_equal(trib_engine_waiting(jobs.engines[0], NULL, 0, &count), TRIB_OK);
    assert_int_equal(count, 0);
    assert_int_equal(trib_engine_waiting(jobs.engines[0], NULL, 1, &count), TRIB_INVALID);
    assert_int_equal(trib_engine_waiting(NULL, NULL, 0, &count), TRIB_INVALID);
    job_close(&jobs);
}

/* Where there is no room for all entries, the oldest are reported. */
static void the_oldest_come_first(void **state)
{
    (void)state;
    enum { TENSORS = 5, ROOM = 2 };
    job jobs;
    float data[TENSORS][COUNT] = {{0}};
    job_open(&jobs, 2, 0, one_reactor);
    trib_op *ops[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        trib_tensor *tensor = job_declare(jobs.engines[0], (const char[]){(char)('a' + i), '\0'}, TRIB_FLOAT32, COUNT);
        ops[i] = job_push_pull(jobs.engines[0], tensor, data[i], data[i], TRIB_SUM);
    }
    trib_waiting entries[ROOM];
    size_t count = 0;
    assert_int_equal(trib_engine_waiting(jobs.engines[0], entries, ROOM, &count), TRIB_OK);
    assert_int_equal(count, TENSORS);
    assert_string_equal(entries[0].tensor, "a");
    assert_string_equal(entries[1].tensor, "b");
    trib_engine_close(jobs.engines[0], NULL, NULL);
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(job_wait(ops[i], NULL), TRIB_CLOSED);
    }
    job_close(&jobs);
}

/* A worker whose job never forms. */
static trib_engine *make_alone_of_two(void)
{
    char address[32];
    trib_config config;
    trib_engine *engine = NULL;
    trib_error error = {.text = ""};
    job_free_address(address, sizeof address);
    trib_config_init(&config, sizeof config);
    config.worker_count = 2;
    config.coordinator = address;
    config.log_level = TRIB_LOG_NONE;
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return engine;
}

/* Where there is room for all entries, all are reported. */
static void thousands(void **state)
{
    (void)state;
    enum { OPS = 5000, ROOM = 5500 };
    float data[COUNT] = {0};
    trib_engine *engine = make_alone_of_two();
    trib_tensor *tensor = job_declare(engine, "weights", TRIB_FLOAT32, COUNT);
    for (int i = 0; i < OPS; i++) {
        trib_op_release(job_push_pull(engine, tensor, data, data, TRIB_SUM));
    }
    trib_waiting *entries = calloc(ROOM, sizeof *entries);
    size_t count = 0;
    assert_non_null(entries);
    assert_int_equal(trib_engine_waiting(engine, entries, ROOM, &count), TRIB_OK);
    assert_int_equal(count, OPS);
    for (uint32_t i = 0; i < OPS; i++) {
        assert_string_equal(entries[i].tensor, "weights");
        assert_int_equal(entries[i].round, i + 1);
    }
    assert_string_equal(entries[OPS].tensor, "");
    free(entries);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void a_job_that_is_not_there_yet(void **state)
{
    (void)state;
    float data[COUNT] = {0};
    trib_error error = {.text = ""};
    trib_engine *engine = make_alone_of_two();
    assert_int_equal(trib_engine_wait_ready(engine, A_MOMENT_NS, &error), TRIB_TIMEOUT);
    assert_says(error.text, "not come together yet");
    trib_tensor *tensor = job_declare(engine, "weights", TRIB_FLOAT32, COUNT);
    trib_op *op = job_push_pull(engine, tensor, data, data, TRIB_SUM);
    expect_waiting(engine, op, "JOIN", "rank 1");
    assert_int_equal(trib_op_wait(op, 0, &error), TRIB_TIMEOUT);
    assert_says(error.text, "\"weights\": not complete yet");
    trib_engine_close(engine, NULL, NULL);
    assert_int_equal(job_wait(op, NULL), TRIB_CLOSED);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

/* ---- Wrong questions ---- */

static void refuse_tensor(trib_engine *engine, trib_tensor_desc desc, trib_status status, const char *words)
{
    trib_tensor *tensor = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, &error), status);
    assert_null(tensor);
    assert_says(error.text, words);
}

static void tensors_that_cannot_be(void **state)
{
    (void)state;
    job jobs;
    trib_tensor_desc good, bad;
    char long_name[TRIB_TENSOR_NAME_MAX + 2];
    job_open(&jobs, 1, 1, NULL);
    trib_engine *worker = jobs.engines[0];
    trib_tensor_desc_init(&good, sizeof good);
    good.name = "w";
    good.dtype = TRIB_FLOAT32;
    good.count = 1;
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    const char *const names[][2] = {{"", "1 to 255 bytes"},
                                    {"__mine", "not starting with \"__\""},
                                    {long_name, "1 to 255 bytes"},
                                    {"a\nb", "control byte 0x0a"},
                                    {"a\x7f", "control byte 0x7f"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bad = good;
        bad.name = names[i][0];
        refuse_tensor(worker, bad, TRIB_INVALID, names[i][1]);
    }
    bad = good;
    bad.dtype = (trib_dtype)99;
    refuse_tensor(worker, bad, TRIB_INVALID, "unknown dtype 99");
    bad = good;
    bad.count = (UINT64_C(1) << 44) / trib_dtype_size(bad.dtype) + 1;
    refuse_tensor(worker, bad, TRIB_INVALID, "2^44 bytes");
    bad = good;
    bad.flags = 1u << 31;
    refuse_tensor(worker, bad, TRIB_INVALID, "unknown flags");
    bad = good;
    bad.name_begin = 1;
    bad.name_length = (uint32_t)strlen(bad.name);
    refuse_tensor(worker, bad, TRIB_INVALID, "more than the name has");
    bad.name_begin = 0;
    bad.flags = TRIB_TENSOR_NUMBERED;
    refuse_tensor(worker, bad, TRIB_INVALID, "whatever their names are");
    bad = good;
    bad.struct_size = 3;
    refuse_tensor(worker, bad, TRIB_INVALID, "trib_tensor_desc_init and build against");
    refuse_tensor(jobs.engines[1], good, TRIB_STATE, "only workers declare");
    job_close(&jobs);
}

static void refuse_push_pull(trib_engine *engine, trib_op_params params, trib_status status, const char *words)
{
    trib_op *op = NULL;
    trib_error error = {.text = ""};
    assert_int_equal(trib_push_pull(engine, &params, &op, &error), status);
    assert_null(op);
    assert_says(error.text, words);
}

static void operations_that_cannot_be(void **state)
{
    (void)state;
    job jobs;
    float data[2 * COUNT] = {0};
    trib_op_params good, bad;
    job_open(&jobs, 1, 1, NULL);
    trib_op_params_init(&good, sizeof good);
    good.tensor = job_declare(jobs.engines[0], "weights", TRIB_FLOAT32, COUNT);
    good.input = good.output = data;
    bad = good;
    bad.reduce = TRIB_REDUCE_COUNT;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "\"weights\": unknown reduction");
    bad.reduce = TRIB_BIT_OR;
    refuse_push_pull(jobs.engines[0], bad, TRIB_UNSUPPORTED, "\"weights\": there is no bit_or of float32");
    bad = good;
    bad.tensor = job_declare(jobs.engines[0], "mask", TRIB_BOOL, COUNT);
    bad.reduce = TRIB_AVG;
    refuse_push_pull(jobs.engines[0], bad, TRIB_UNSUPPORTED, "\"mask\": there is no avg of bool");
    bad = good;
    bad.input = NULL;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "\"weights\": input is NULL");
    bad = good;
    bad.output = NULL;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "\"weights\": output is NULL");
    bad = good;
    bad.output = data + COUNT - 1;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "overlap without being equal");
    bad = good;
    bad.tensor = NULL;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "params->tensor is NULL");
    bad = good;
    bad.flags = 1u << 31;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "unknown flags 0x80000000 in params");
    bad = good;
    bad.struct_size--;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "trib_op_params_init and build against");
    refuse_push_pull(NULL, good, TRIB_INVALID, "engine is NULL");
    bad = good;
    bad.reserved[0] = 1;
    refuse_push_pull(jobs.engines[0], bad, TRIB_INVALID, "reserved field of params");
    refuse_push_pull(jobs.engines[1], good, TRIB_STATE, "only workers take part");
    job_close(&jobs);
}

static void memory_of_the_engine(void **state)
{
    (void)state;
    job jobs;
    void *memory = NULL;
    job_open(&jobs, 1, 0, NULL);
    assert_int_equal(trib_alloc(jobs.engines[0], 0, &memory), TRIB_INVALID);
    assert_int_equal(trib_alloc(jobs.engines[0], 1, NULL), TRIB_INVALID);
    assert_int_equal(trib_alloc(jobs.engines[0], SIZE_MAX / 2, &memory), TRIB_NO_MEMORY);
    assert_null(memory);
    assert_int_equal(trib_alloc(jobs.engines[0], COUNT * sizeof(float), &memory), TRIB_OK);
    assert_int_equal((uintptr_t)memory % 4096, 0);
    float *values = memory;
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    trib_tensor *tensor = job_declare(jobs.engines[0], "weights", TRIB_FLOAT32, COUNT);
    assert_int_equal(job_wait(job_push_pull(jobs.engines[0], tensor, values, values, TRIB_SUM), NULL), TRIB_OK);
    assert_true(values[COUNT - 1] == (float)(COUNT - 1));
    void *small[4];
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        assert_int_equal(trib_alloc(jobs.engines[0], 1 + 40 * i, &small[i]), TRIB_OK);
        assert_int_equal((uintptr_t)small[i] % 4096, 0);
    }
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        trib_free(jobs.engines[0], small[i]);
    }
    trib_free(jobs.engines[0], memory);
    trib_free(jobs.engines[0], NULL);
    job_close(&jobs);
}

static void register_as(trib_engine *engine, void *memory, size_t size, trib_status status, const char *words)
{
    trib_error error = {.text = ""};
    assert_int_equal(trib_memory_register(engine, memory, size, &error), status);
    assert_says(error.text, words);
}

static void unregister_as(trib_engine *engine, void *memory, trib_status status, const char *words)
{
    trib_error error = {.text = ""};
    assert_int_equal(trib_memory_unregister(engine, memory, &error), status);
    assert_says(error.text, words);
}

typedef struct asked {
    trib_engine *engine;
    trib_status registered, unregistered;
} asked;

static void ask_from_callback(const trib_result *result, void *user)
{
    (void)result;
    asked *self = user;
    self->registered = trib_memory_register(self->engine, self, sizeof *self, NULL);
    self->unregistered = trib_memory_unregister(self->engine, self, NULL);
}

/* Every transport gives the same answers, so a wrong call is found on any. */
static void memory_of_the_caller(void **state)
{
    (void)state;
    job jobs;
    void *taken = NULL;
    static float data[3][2 * COUNT];
    job_open(&jobs, 2, 0, NULL);
    trib_engine *mine = jobs.engines[0];
    register_as(mine, data[0], sizeof data[0], TRIB_OK, "");
    register_as(mine, data[0] + COUNT, sizeof data[0], TRIB_INVALID, "part of them is registered");
    register_as(mine, NULL, 1, TRIB_INVALID, "memory is NULL");
    register_as(NULL, data[0], 1, TRIB_INVALID, "engine is NULL");
    register_as(mine, data[1], 0, TRIB_INVALID, "size is 0");
    assert_int_equal(trib_alloc(mine, sizeof data[0], &taken), TRIB_OK);
    register_as(mine, taken, sizeof data[0], TRIB_INVALID, "the engine's own memory");
    trib_free(mine, taken);

    trib_tensor *tensor = job_declare(mine, "weights", TRIB_FLOAT32, COUNT);
    trib_tensor *yours = job_declare(jobs.engines[1], "weights", TRIB_FLOAT32, COUNT);
    /* The operation uses only the second half of data[0]. */
    trib_op *op = job_push_pull(mine, tensor, data[1], data[0] + COUNT, TRIB_SUM);
    unregister_as(mine, data[0], TRIB_STATE, "tensor \"weights\": an operation in flight");
    register_as(jobs.engines[1], data[0], sizeof data[0], TRIB_OK, ""); /* each engine has its own registrations */
    unregister_as(jobs.engines[1], data[0], TRIB_OK, "");
    assert_int_equal(job_wait(job_push_pull(jobs.engines[1], yours, data[2], data[2], TRIB_SUM), NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    unregister_as(mine, data[0] + 1, TRIB_INVALID, "no memory is registered that begins at");
    unregister_as(mine, data[0], TRIB_OK, "");
    unregister_as(mine, data[0], TRIB_INVALID, "no memory is registered that begins at");
    register_as(mine, data, sizeof data, TRIB_OK, ""); /* stays registered until the end */

    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    asked answers = {.engine = mine};
    params.done_cb = ask_from_callback;
    params.user = &answers;
    assert_int_equal(trib_barrier(mine, &params, &op, NULL), TRIB_OK);
    assert_int_equal(trib_barrier(jobs.engines[1], NULL, NULL, NULL), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_int_equal(answers.registered, TRIB_WRONG_THREAD);
    assert_int_equal(answers.unregistered, TRIB_WRONG_THREAD);
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(introspection_names_the_awaited_peers),
        cmocka_unit_test(the_oldest_come_first),
        cmocka_unit_test(thousands),
        cmocka_unit_test(a_job_that_is_not_there_yet),
        cmocka_unit_test(tensors_that_cannot_be),
        cmocka_unit_test(operations_that_cannot_be),
        cmocka_unit_test(memory_of_the_engine),
        cmocka_unit_test(memory_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
