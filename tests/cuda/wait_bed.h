/*
 * wait_bed.h - a device and its semaphores, for stages/cuda/cuda_wait.c, with stand-ins for everything that it
 * calls. It needs no GPU, only CUDA's headers. For one test program.
 */
#ifndef TRIB_TESTS_WAIT_BED_H
#define TRIB_TESTS_WAIT_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stages/cuda/cuda_internal.h"

/* ---- Stand-ins ---- */

static int64_t now_ns = 1;

int64_t cuda_now_ns(void)
{
    return now_ns;
}

static bool is_captured, is_shared;
static int words, events, told; /* waits of streams for words and for events, and how often the engine was told */

trib_status cuda_check_capture(const trib_device *device, cudaStream_t stream, trib_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    return is_captured ? TRIB_UNSUPPORTED : TRIB_OK;
}

cuda_context_guard cuda_context_enter(const trib_device *device)
{
    (void)device;
    return (cuda_context_guard){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
}

void cuda_context_leave(const trib_device *device, cuda_context_guard guard)
{
    (void)device;
    (void)guard;
}

void cuda_set_error(trib_error *error, trib_status status, const char *format, ...)
{
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

static bool fails, cannot_write;
static char steps[8]; /* what the device's thread put on a stream: e, the event; w, the word */

static void note_step(char step)
{
    const size_t length = strlen(steps);
    assert_true(length + 1 < sizeof steps);
    steps[length] = step;
    steps[length + 1] = '\0';
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    events++;
    return fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult record_event(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    note_step('e');
    return fails ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags)
{
    (void)stream;
    (void)word;
    (void)value;
    (void)flags;
    note_step('w');
    return cannot_write ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "it failed";
}

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    assert_int_equal(attribute, 133);
    *value = is_shared;
    return CUDA_SUCCESS;
}

/* NULL: the driver cannot be asked. */
static CUmoduleLoadingMode eager = CU_MODULE_EAGER_LOADING, lazy = CU_MODULE_LAZY_LOADING;
static const CUmoduleLoadingMode *loading = &eager;

static CUresult get_mode(CUmoduleLoadingMode *mode)
{
    *mode = *loading;
    return CUDA_SUCCESS;
}

/* Like the driver's ids: no id is used again, and a stream has one id under all its handles. */
static bool has_ids;
static unsigned long long replaced; /* streams that were created again, under the handles of earlier ones */
static _Thread_local unsigned long long own_id;

static CUresult get_id(CUstream stream, unsigned long long *id)
{
    static unsigned long long threads = 1000000;
    if (stream == cudaStreamPerThread) {
        threads += own_id == 0 ? 1 : 0;
        own_id = own_id == 0 ? threads : own_id;
        *id = own_id;
    } else {
        *id = stream == NULL || stream == cudaStreamLegacy ? 1 : (uintptr_t)stream + replaced * 1000;
    }
    return CUDA_SUCCESS;
}

cudaError_t cuda_find_driver(const char *name, void *where)
{
    if (strcmp(name, "cuModuleGetLoadingMode") == 0) {
        const void *mode = (const void *)get_mode;
        memcpy(where, &mode, sizeof mode);
        return loading != NULL ? cudaSuccess : cudaErrorNotSupported;
    }
    const void *found = (const void *)get_attribute;
    assert_string_equal(name, "cuDeviceGetAttribute");
    memcpy(where, &found, sizeof found);
    return cudaSuccess;
}

static CUresult wait_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags)
{
    (void)stream;
    (void)word;
    (void)value;
    (void)flags;
    words++;
    return CUDA_SUCCESS;
}

static cuda_driver driver_now(void)
{
    return (cuda_driver){.wait_value = wait_value,
                         .write_value = write_value,
                         .wait_event = wait_event,
                         .record_event = record_event,
                         .get_id = has_ids ? get_id : NULL};
}

static void launched(void *engine)
{
    trib_device *device = engine;
    assert_int_equal(pthread_mutex_trylock(&device->mutex), 0); /* the engine's mutex is taken before the device's */
    pthread_mutex_unlock(&device->mutex);
    told++;
}

/* ---- The device, and semaphores ---- */

enum { SEMAPHORES = 40 };

static trib_device device;
static int size = 1; /* of its group, which may be the whole job */
static bool alone;
static cuda_semaphore_event ends[SEMAPHORES];
static uint32_t semaphore_words[SEMAPHORES];
static trib_device_semaphore semaphores[SEMAPHORES];

static cudaStream_t stream_of(uintptr_t number)
{
    return (cudaStream_t)(number + 16);
}

static void launch_all(void)
{
    for (int i = 0; i < SEMAPHORES; i++) {
        cuda_semaphore_note_launched(&device, &semaphores[i]);
    }
}

static void open_with(const char *connections)
{
    if (device.driver.wait_value != NULL) { /* of the operation before */
        launch_all();
        cuda_registry_leave(&device);
    }
    if (connections == NULL) {
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    } else {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    }
    memset(&device, 0, sizeof device);
    pthread_mutex_init(&device.mutex, NULL);
    device.driver = driver_now();
    device.params.launched = launched;
    device.params.engine = &device;
    memset(ends, 0, sizeof ends);
    memset(semaphore_words, 0, sizeof semaphore_words);
    for (int i = 0; i < SEMAPHORES; i++) {
        semaphores[i] = (trib_device_semaphore){.word = &semaphore_words[i], .value = 1, .event = &ends[i]};
    }
    words = events = told = 0;
    steps[0] = '\0';
    is_captured = false;
    device.params.size = size;
    device.params.alone = alone;
    cuda_registry_join(&device);
}

/* Waits often enough that no other stream is expected. */
static void come_often(trib_device *of, cudaStream_t stream)
{
    for (int i = 0; i < 200; i++) {
        cuda_stream_note(of, stream);
    }
}

static trib_status wait_at_once(uintptr_t stream, int semaphore)
{
    trib_error error = {.status = TRIB_OK};
    return cuda_stream_wait(&device, stream_of(stream), &semaphores[semaphore], &error);
}

static trib_status wait_for(uintptr_t stream, int semaphore)
{
    come_often(&device, stream_of(stream));
    return wait_at_once(stream, semaphore);
}

/* Checks that this many of the program's streams may wait beside the engine's own. */
static void assert_room(const char *connections, const char *copies, uintptr_t room)
{
    if (copies == NULL) {
        unsetenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS");
    } else {
        setenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS", copies, 1);
    }
    open_with(connections);
    for (uintptr_t i = 0; i < room; i++) {
        assert_int_equal(wait_for(i, 0), TRIB_OK);
    }
    assert_int_equal(wait_for(room, 0), TRIB_BUSY);
    assert_int_equal(wait_for(0, 1), TRIB_BUSY); /* there is one more stream now, and it may have work */
    unsetenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS");
}

static void *wait_on_own_stream(void *argument)
{
    trib_error error = {.status = TRIB_OK};
    come_often(&device, cudaStreamPerThread);
    *(trib_status *)argument = cuda_stream_wait(&device, cudaStreamPerThread, &semaphores[0], &error);
    return NULL;
}

#endif
