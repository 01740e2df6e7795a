/* test_cuda_wait.c - a stream waits for launched work, and for nothing else (stages/cuda/cuda_wait.c), with stand-ins
 * for everything that it calls. The test needs no GPU, only CUDA's headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

/* ---- Stand-ins ---- */

static bool is_captured, no_memory, cannot_record, cannot_wait;
static int made, destroyed, recorded, waits, told;
static CUevent recorded_last, awaited_last;
static CUstream waits_last;

trib_status cuda_check_capture(const trib_device *device, cudaStream_t stream, trib_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    return is_captured ? TRIB_UNSUPPORTED : TRIB_OK;
}

static int inside; /* guards that were entered and not left */

cuda_context_guard cuda_context_enter(const trib_device *device)
{
    (void)device;
    inside++;
    return (cuda_context_guard){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
}

void cuda_context_leave(const trib_device *device, cuda_context_guard guard)
{
    (void)device;
    (void)guard;
    inside--;
}

void cuda_set_error(trib_error *error, trib_status status, const char *format, ...)
{
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "it failed";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    if (no_memory) {
        return cudaErrorMemoryAllocation;
    }
    *event = (cudaEvent_t)(uintptr_t)++made;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    destroyed++;
    return cudaSuccess;
}

static CUresult record_event(CUevent event, CUstream stream)
{
    (void)stream;
    recorded += cannot_record ? 0 : 1;
    recorded_last = event;
    return cannot_record ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    waits++;
    waits_last = stream;
    awaited_last = event;
    return cannot_wait ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void launched(void *engine)
{
    trib_device *device = engine;
    assert_int_equal(pthread_mutex_trylock(&device->mutex), 0); /* the engine's mutex is taken before the device's */
    pthread_mutex_unlock(&device->mutex);
    told++;
}

/* ---- The device ---- */

static trib_device device;

static int setup(void **state)
{
    (void)state;
    device = (trib_device){.driver = {.record_event = record_event, .wait_event = wait_event},
                           .params = {.launched = launched, .engine = &device}};
    pthread_mutex_init(&device.mutex, NULL);
    is_captured = no_memory = cannot_record = cannot_wait = false;
    made = destroyed = recorded = waits = told = inside = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(inside, 0);
    cuda_ends_free(&device);
    assert_int_equal(destroyed, made);
    return 0;
}

static cudaStream_t stream_of(uintptr_t number)
{
    return (cudaStream_t)(number + 16);
}

static trib_status wait_for(uintptr_t stream, const trib_device_end *end)
{
    trib_error error = {.status = TRIB_OK};
    return cuda_stream_wait(&device, stream_of(stream), end, &error);
}

static CUresult launch(trib_device_end *end)
{
    return cuda_end_launched(&device, end, stream_of(100));
}

/* ---- Cases ---- */

static void no_stream_waits_before_the_launch(void **state)
{
    (void)state;
    trib_device_end end = {.event = NULL};
    for (uintptr_t i = 0; i < 3; i++) {
        assert_int_equal(wait_for(i, &end), TRIB_BUSY);
    }
    assert_int_equal(waits, 0);
    assert_int_equal(launch(&end), CUDA_SUCCESS);
    assert_int_equal(told, 1);
    assert_int_equal(recorded, 1);
    for (uintptr_t i = 0; i < 3; i++) {
        assert_int_equal(wait_for(i, &end), TRIB_OK);
        assert_int_equal(waits, i + 1);
        assert_ptr_equal(waits_last, stream_of(i));
        assert_ptr_equal(awaited_last, recorded_last);
    }
}

/* The event is used again, but the earlier launch is not the operation's. */
static void the_next_operation_is_launched_anew(void **state)
{
    (void)state;
    trib_device_end end = {.event = NULL};
    for (int i = 1; i <= 3; i++) {
        atomic_store(&end.is_launched, false);
        assert_int_equal(wait_for(0, &end), TRIB_BUSY);
        assert_int_equal(launch(&end), CUDA_SUCCESS);
        assert_int_equal(wait_for(0, &end), TRIB_OK);
        assert_int_equal(recorded, i);
        assert_int_equal(waits, i);
    }
    assert_int_equal(made, 1);
}

/* Each launch since a wait was rejected may be the one that is waited for. */
static void the_engine_is_told_of_launches_that_somebody_waits_for(void **state)
{
    (void)state;
    trib_device_end ends[4] = {{.event = NULL}};
    assert_int_equal(launch(&ends[0]), CUDA_SUCCESS);
    assert_int_equal(told, 0);
    assert_int_equal(wait_for(0, &ends[0]), TRIB_OK);
    assert_int_equal(wait_for(0, &ends[2]), TRIB_BUSY);
    assert_int_equal(launch(&ends[1]), CUDA_SUCCESS);
    assert_int_equal(told, 1);
    assert_int_equal(wait_for(0, &ends[2]), TRIB_BUSY); /* another try after the rejection */
    assert_int_equal(launch(&ends[2]), CUDA_SUCCESS);
    assert_int_equal(told, 2);
    assert_int_equal(launch(&ends[3]), CUDA_SUCCESS);
    assert_int_equal(told, 2);
    assert_int_equal(made, 4);
}

static void a_captured_stream_is_rejected(void **state)
{
    (void)state;
    trib_device_end ends[2] = {{.event = NULL}};
    assert_int_equal(launch(&ends[0]), CUDA_SUCCESS);
    is_captured = true;
    assert_int_equal(wait_for(0, &ends[0]), TRIB_UNSUPPORTED);
    assert_int_equal(wait_for(0, &ends[1]), TRIB_UNSUPPORTED);
    assert_int_equal(waits, 0);
}

static void a_failed_launch_is_not_awaited(void **state)
{
    (void)state;
    trib_device_end end = {.event = NULL};
    no_memory = true;
    assert_int_equal(launch(&end), CUDA_ERROR_OUT_OF_MEMORY);
    no_memory = false;
    cannot_record = true;
    assert_int_equal(launch(&end), CUDA_ERROR_UNKNOWN);
    assert_int_equal(wait_for(0, &end), TRIB_BUSY);
    assert_int_equal(waits, 0);
    cannot_record = false;
    assert_int_equal(launch(&end), CUDA_SUCCESS); /* of the next operation */
    assert_int_equal(wait_for(0, &end), TRIB_OK);
}

static void a_stream_that_cannot_be_made_to_wait_is_an_error(void **state)
{
    (void)state;
    trib_device_end end = {.event = NULL};
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(launch(&end), CUDA_SUCCESS);
    cannot_wait = true;
    assert_int_equal(cuda_stream_wait(&device, stream_of(0), &end, &error), TRIB_SYSTEM);
    assert_non_null(strstr(error.text, "it failed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_stream_waits_before_the_launch, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_operation_is_launched_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(the_engine_is_told_of_launches_that_somebody_waits_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_captured_stream_is_rejected, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_launch_is_not_awaited, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_that_cannot_be_made_to_wait_is_an_error, setup, teardown),
    };
    return cmocka_run_group_tests_name("streams that wait", tests, NULL, NULL);
}
