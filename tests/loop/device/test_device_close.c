/*
 * test_device_close.c - an engine is closed while a call submits an operation on a device, and while a submitted
 * operation waits. The last case checks in which order the parts are freed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <cmocka.h>

#include "api/config/config.h"
#include "api/env/env_host.h"
#include "engine/device/device.h"
#include "tests/loop/job.h"

enum { COUNT = 1000 };

trib_status __real_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);
trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);

/* A test's hook inside calls of the device; else NULL. */
static const trib_device_ops *device_real;
static trib_device_ops device_held;
static void (*when_stream_is_marked)(void);

/* Reactors freed so far, and how many of them before the device. */
static unsigned reactors_freed, freed_before;
static void (*reactor_free_real)(trib_reactor *reactor);

static trib_status held_marker_record(trib_device *device, void *stream, void **marker_out, trib_error *error)
{
    if (when_stream_is_marked != NULL) {
        when_stream_is_marked();
    }
    return device_real->marker_record(device, stream, marker_out, error);
}

static void held_close(trib_device *device)
{
    freed_before = reactors_freed;
    device_real->close(device);
}

static void held_reactor_free(trib_reactor *reactor)
{
    reactors_freed++;
    reactor_free_real(reactor);
}

trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error)
{
    trib_status status = __real_trib_env_host_init(env, config, error);
    if (status == TRIB_OK && env->device != NULL) {
        device_real = env->device;
        device_held = *env->device;
        device_held.marker_record = held_marker_record;
        device_held.close = held_close;
        env->device = &device_held;
        reactor_free_real = env->reactor_free;
        env->reactor_free = held_reactor_free;
    }
    return status;
}

static void on_a_device(trib_config *config, int member)
{
    (void)member;
    config->device = "host";
    config->reactors = 2;
}

static struct {
    trib_engine *engine;
    sem_t closed;
} closing;

static void closing_closed(trib_engine *engine, void *user)
{
    (void)engine;
    (void)user;
    (void)sem_post(&closing.closed);
}

/* The wait ends when the engine is closed. The limit only matters if the call ignores the close. */
static void close_now(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    trib_engine_close(closing.engine, closing_closed, NULL);
    (void)sem_timedwait(&closing.closed, &until);
}

static trib_tensor *declare(trib_engine *engine)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "closed";
    desc.dtype = TRIB_INT32;
    desc.count = COUNT;
    desc.flags = TRIB_TENSOR_DEVICE;
    trib_tensor *tensor = NULL;
    assert_int_equal(trib_tensor_declare(engine, &desc, &tensor, NULL), TRIB_OK);
    return tensor;
}

static trib_status submit_and_close(job *jobs, trib_op **op_out)
{
    static int32_t data[COUNT];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare(jobs->engines[0]);
    params.input = params.output = data;
    closing.engine = jobs->engines[0];
    trib_error error = {.status = TRIB_OK};
    return trib_push_pull(jobs->engines[0], &params, op_out, &error);
}

/* The call submits nothing once the engine is closed. */
static void a_call_notices_the_close(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, on_a_device);
    assert_int_equal(sem_init(&closing.closed, 0, 0), 0);
    trib_op *op = NULL;
    when_stream_is_marked = close_now;
    assert_int_equal(submit_and_close(&jobs, &op), TRIB_CLOSED);
    when_stream_is_marked = NULL;
    job_close(&jobs);
    sem_destroy(&closing.closed);
}

/* The text names only what the operation can wait for. This job has no other ranks. */
static void text_names_the_awaited_kind(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, 1, 0, on_a_device);
    static int32_t data[COUNT];
    trib_host_stream *stream = trib_host_stream_create(true);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare(jobs.engines[0]);
    params.input = params.output = data;
    params.stream = stream;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, &op, &error), TRIB_OK);
    assert_int_equal(job_wait(op, &error), TRIB_OK); /* the tensor has its placement now */
    trib_host_stream *late = trib_host_stream_create(false);
    params.stream = late;
    assert_int_equal(trib_push_pull(jobs.engines[0], &params, &op, &error), TRIB_OK);
    trib_engine_close(jobs.engines[0], NULL, NULL);
    assert_int_equal(job_wait(op, &error), TRIB_CLOSED);
    if (strstr(error.text, "waiting for the caller's stream)") == NULL) {
        fail_msg("%s", error.text);
    }
    job_close(&jobs);
    trib_host_stream_free(stream);
    trib_host_stream_free(late);
}

/* The device is freed first: its thread may still wake a reactor after it has returned its last job. */
static void a_device_goes_before_reactors(void **state)
{
    (void)state;
    job jobs;
    reactors_freed = freed_before = 0;
    job_open(&jobs, 1, 0, on_a_device);
    job_close(&jobs);
    assert_int_equal(reactors_freed, 2);
    assert_int_equal(freed_before, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_notices_the_close),
        cmocka_unit_test(text_names_the_awaited_kind),
        cmocka_unit_test(a_device_goes_before_reactors),
    };
    return cmocka_run_group_tests_name("devices and close", tests, NULL, NULL);
}
