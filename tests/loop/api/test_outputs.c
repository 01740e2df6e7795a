/* test_outputs.c - the outputs of every call: *error is about this call and no earlier one, and a handle is NULL after
 * a failure. An error names a wrong handle or wrong memory as such. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "tests/loop/job.h"

static trib_error error;

static void soil(void)
{
    error = (trib_error){.status = TRIB_SYSTEM, .text = "of an earlier call"};
}

/* The call succeeds, and leaves nothing of an earlier one in its error. */
#define WELL(call)                                                                                                     \
    do {                                                                                                               \
        soil();                                                                                                        \
        assert_int_equal(call, TRIB_OK);                                                                               \
        assert_int_equal(error.status, TRIB_OK);                                                                       \
        assert_string_equal(error.text, "");                                                                           \
    } while (0)

/* Checks that the call fails with a text. */
#define FAILS(status_wanted, call)                                                                                     \
    do {                                                                                                               \
        soil();                                                                                                        \
        assert_int_equal(call, status_wanted);                                                                         \
        assert_int_equal(error.status, status_wanted);                                                                 \
        assert_string_not_equal(error.text, "of an earlier call");                                                     \
        assert_string_not_equal(error.text, "");                                                                       \
    } while (0)

static atomic_bool refused;

static void see_refusal(trib_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == TRIB_LOG_ERROR && strstr(line, "trib_free") != NULL) {
        atomic_store(&refused, true);
    }
}

static trib_engine *open_engine(void)
{
    trib_config config;
    trib_engine *engine = NULL;
    trib_config_init(&config, sizeof config);
    config.log_cb = see_refusal;
    WELL(trib_config_from_env(&config, &error));
    WELL(trib_engine_create(&config, &engine, &error));
    return engine;
}

static trib_tensor_desc describe(const char *name)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.count = 1;
    return desc;
}

static trib_op_params params_of(trib_tensor *tensor, void *data)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    return params;
}

static void error_tells_of_this_call(void **state)
{
    (void)state;
    trib_engine *engine = open_engine();
    const trib_tensor_desc desc = describe("t");
    trib_tensor *tensor = NULL;
    trib_op *op = NULL;
    float data[2000] = {0};
    char path[] = "/tmp/outputs.XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    WELL(trib_engine_wait_ready(engine, -1, &error));
    WELL(trib_tensor_declare(engine, &desc, &tensor, &error));
    const trib_op_params params = params_of(tensor, data);
    WELL(trib_push_pull(engine, &params, &op, &error));
    WELL(trib_op_wait(op, -1, &error));
    trib_op_release(op);
    WELL(trib_broadcast(engine, &params, NULL, &error));
    WELL(trib_barrier(engine, NULL, &op, &error));
    WELL(trib_op_wait(op, -1, &error));
    trib_op_release(op);
    WELL(trib_memory_register(engine, data, sizeof data, &error));
    WELL(trib_memory_unregister(engine, data, &error));
    WELL(trib_trace_start(engine, 0, &error));
    WELL(trib_trace_write(engine, path, &error));
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    unlink(path);
}

static void handles_are_null_after_failure(void **state)
{
    (void)state;
    trib_engine *engine = open_engine(), *other = engine;
    trib_tensor *tensor = NULL;
    float data = 0;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.worker_count = 0;
    FAILS(TRIB_INVALID, trib_engine_create(&config, &other, &error));
    assert_null(other);
    other = engine;
    FAILS(TRIB_INVALID, trib_engine_create(NULL, &other, &error));
    assert_null(other);

    trib_tensor_desc desc = describe("t");
    WELL(trib_tensor_declare(engine, &desc, &tensor, &error));
    trib_tensor *const declared = tensor;
    desc.count = 2;
    FAILS(TRIB_MISMATCH, trib_tensor_declare(engine, &desc, &tensor, &error));
    assert_null(tensor);
    tensor = declared;
    FAILS(TRIB_INVALID, trib_tensor_declare(engine, NULL, &tensor, &error));
    assert_null(tensor);
    tensor = declared;
    FAILS(TRIB_INVALID, trib_tensor_declare(NULL, &desc, &tensor, &error));
    assert_null(tensor);
    desc = describe("more than all");
    desc.quorum = 2;
    FAILS(TRIB_INVALID, trib_tensor_declare(engine, &desc, &tensor, &error));
    assert_non_null(strstr(error.text, "2 of 1 workers (trib_tensor_desc.quorum)"));

    trib_op_params params = params_of(declared, &data);
    trib_op *const stale = (trib_op *)(void *)&data, *op = stale;
    params.flags = 1u << 31;
    FAILS(TRIB_INVALID, trib_push_pull(engine, &params, &op, &error));
    assert_null(op);
    op = stale;
    FAILS(TRIB_INVALID, trib_broadcast(engine, &params, &op, &error));
    assert_null(op);
    op = stale;
    FAILS(TRIB_INVALID, trib_barrier(engine, &params, &op, &error));
    assert_null(op);
    params.flags = 0;
    params.reduce = TRIB_REDUCE_COUNT;
    op = stale;
    FAILS(TRIB_INVALID, trib_push_pull(engine, &params, &op, &error));
    assert_null(op);
    params.root = 1;
    op = stale;
    FAILS(TRIB_INVALID, trib_broadcast(engine, &params, &op, &error));
    assert_null(op);

    void *memory = &data;
    assert_int_equal(trib_alloc(engine, 0, &memory), TRIB_INVALID);
    assert_null(memory);
    memory = &data;
    assert_int_equal(trib_alloc(engine, (size_t)64 << 40, &memory), TRIB_NO_MEMORY); /* no machine has that much */
    assert_null(memory);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

/* ---- Wrong handles ---- */

static void wrong_memory_is_left_alone(void **state)
{
    (void)state;
    trib_engine *engine = open_engine();
    char own[64];
    void *memory = NULL;
    void *wrong[4];
    assert_int_equal(trib_alloc(engine, 10000, &memory), TRIB_OK);
    wrong[0] = own;
    wrong[1] = (char *)memory + 4096;
    wrong[2] = (char *)memory + 1;
    wrong[3] = memory; /* twice */
    for (int i = 0; i < 4; i++) {
        atomic_store(&refused, false);
        if (i == 3) {
            trib_free(engine, memory);
            assert_false(atomic_load(&refused));
        }
        trib_free(engine, wrong[i]);
        assert_true(atomic_load(&refused));
    }
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

static void no_engine_is_told_from_a_fork(void **state)
{
    (void)state;
    unsigned char *garbage = malloc(1 << 16);
    assert_non_null(garbage);
    memset(garbage, 0x5a, 1 << 16);
    trib_engine *wrong = (trib_engine *)(void *)garbage;
    FAILS(TRIB_INVALID, trib_barrier(wrong, NULL, NULL, &error));
    assert_null(strstr(error.text, "fork"));
    assert_non_null(strstr(error.text, "trib_engine_create"));
    assert_int_equal(trib_engine_destroy(wrong), TRIB_INVALID);
    assert_int_equal(trib_engine_get_fd(wrong), -1);
    free(garbage);
}

static void destroyed_engine_is_told(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("# the sanitizer ends a program that reads freed memory\n");
    skip();
#endif
    trib_engine *engine = open_engine();
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    FAILS(TRIB_INVALID, trib_barrier(engine, NULL, NULL, &error));
    assert_non_null(strstr(error.text, "destroyed"));
    assert_int_equal(trib_engine_destroy(engine), TRIB_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_tells_of_this_call),   cmocka_unit_test(handles_are_null_after_failure),
        cmocka_unit_test(wrong_memory_is_left_alone), cmocka_unit_test(no_engine_is_told_from_a_fork),
        cmocka_unit_test(destroyed_engine_is_told),
    };
    return cmocka_run_group_tests_name("outputs", tests, NULL, NULL);
}
