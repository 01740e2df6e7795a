/* test_null.c - every public function rejects NULL for a handle or an output, with a text that names it, and changes
 * nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/tributary.h"

/* Checks that the call is rejected, and that the text says that `what` is NULL. */
#define REFUSED(call, what)                                                                                            \
    do {                                                                                                               \
        trib_error error = {.text = ""};                                                                               \
        assert_int_equal(call, TRIB_INVALID);                                                                          \
        if (strstr(error.text, what) == NULL || strstr(error.text, "NULL") == NULL) {                                  \
            fail_msg("%s: \"%s\"", #call, error.text);                                                                 \
        }                                                                                                              \
    } while (0)

static void no_engine(void **state)
{
    (void)state;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_tensor *tensor = NULL;
    char byte = 0;
    REFUSED(trib_engine_wait_ready(NULL, 0, &error), "engine");
    REFUSED(trib_engine_drain(NULL, &error), "engine");
    REFUSED(trib_tensor_declare(NULL, &desc, &tensor, &error), "engine");
    REFUSED(trib_push_pull(NULL, &params, NULL, &error), "engine");
    REFUSED(trib_broadcast(NULL, &params, NULL, &error), "engine");
    REFUSED(trib_barrier(NULL, &params, NULL, &error), "engine");
    REFUSED(trib_barrier(NULL, NULL, NULL, &error), "engine");
    REFUSED(trib_memory_register(NULL, &byte, 1, &error), "engine");
    REFUSED(trib_memory_unregister(NULL, &byte, &error), "engine");
    REFUSED(trib_trace_start(NULL, 0, &error), "engine");
    REFUSED(trib_trace_write(NULL, "never", &error), "engine");
    trib_stats stats = {.struct_size = sizeof stats};
    trib_engine_info info = {.struct_size = sizeof info};
    size_t count = 0;
    void *memory = NULL;
    assert_int_equal(trib_engine_get_stats(NULL, &stats), TRIB_INVALID);
    assert_int_equal(trib_engine_get_info(NULL, &info), TRIB_INVALID);
    assert_int_equal(trib_engine_waiting(NULL, NULL, 0, &count), TRIB_INVALID);
    assert_int_equal(trib_alloc(NULL, 1, &memory), TRIB_INVALID);
    assert_int_equal(trib_engine_get_fd(NULL), -1);
    assert_int_equal(trib_engine_dispatch(NULL, 0), 0);
    assert_int_equal(trib_engine_destroy(NULL), TRIB_OK);
    trib_engine_close(NULL, NULL, NULL);
    trib_free(NULL, NULL);
    trib_free(NULL, &byte);
    trib_trace_stop(NULL);
}

static void no_operation(void **state)
{
    (void)state;
    REFUSED(trib_op_wait(NULL, 0, &error), "op");
    REFUSED(trib_op_stream_wait(NULL, NULL, &error), "op");
    assert_int_equal(trib_op_status(NULL), TRIB_INVALID);
    trib_op_cancel(NULL);
    trib_op_release(NULL);
}

static void no_struct(void **state)
{
    (void)state;
    trib_config_init(NULL, sizeof(trib_config));
    trib_tensor_desc_init(NULL, sizeof(trib_tensor_desc));
    trib_op_params_init(NULL, sizeof(trib_op_params));
    trib_engine *engine = NULL;
    trib_config config;
    trib_config_init(&config, sizeof config);
    REFUSED(trib_config_from_env(NULL, &error), "config");
    REFUSED(trib_engine_create(NULL, &engine, &error), "config");
    REFUSED(trib_engine_create(&config, NULL, &error), "engine_out");
    assert_null(engine);
}

static void no_answer(void **state)
{
    (void)state;
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.pin = false;
    trib_engine *engine = NULL;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "weights";
    trib_tensor *tensor = NULL;
    REFUSED(trib_tensor_declare(engine, NULL, &tensor, &error), "desc");
    REFUSED(trib_tensor_declare(engine, &desc, NULL, &error), "tensor_out");
    REFUSED(trib_push_pull(engine, NULL, NULL, &error), "params");
    REFUSED(trib_broadcast(engine, NULL, NULL, &error), "params");
    REFUSED(trib_memory_register(engine, NULL, 1, &error), "memory");
    REFUSED(trib_memory_unregister(engine, NULL, &error), "memory");
    REFUSED(trib_trace_write(engine, NULL, &error), "path");
    assert_int_equal(trib_engine_get_stats(engine, NULL), TRIB_INVALID);
    assert_int_equal(trib_engine_get_info(engine, NULL), TRIB_INVALID);
    assert_int_equal(trib_engine_waiting(engine, NULL, 0, NULL), TRIB_INVALID);
    assert_int_equal(trib_alloc(engine, 1, NULL), TRIB_INVALID);
    trib_free(engine, NULL);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_engine),
        cmocka_unit_test(no_operation),
        cmocka_unit_test(no_struct),
        cmocka_unit_test(no_answer),
    };
    return cmocka_run_group_tests_name("null", tests, NULL, NULL);
}
