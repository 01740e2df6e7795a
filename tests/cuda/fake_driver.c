/*
 * fake_driver.c - a fake of what the module needs of the driver and the loader: contexts, streams, and NCCL and the
 * module as libraries to be loaded. See fake_cuda.h.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake_cuda.h"

#include "engine/device/device.h"

/* ---- Contexts: each thread has a stack of them; the runtime replaces the uppermost ---- */

enum { DEPTH_MAX = 8 };

static char primaries[FAKE_GPUS];
static _Thread_local CUcontext stack[DEPTH_MAX];
static _Thread_local unsigned depth;

static CUcontext primary_of(int gpu)
{
    return (CUcontext)(void *)&primaries[gpu];
}

int fake_gpu(void)
{
    return depth > 0 ? (int)((const char *)(void *)stack[depth - 1] - primaries) : 0;
}

void fake_choose(int gpu)
{
    depth += depth == 0 ? 1 : 0;
    stack[depth - 1] = primary_of(gpu);
}

void fake_expect_chosen(int gpu)
{
    pthread_mutex_lock(&fake_mutex);
    if (gpu < 0 ? depth != 0 : depth != 1 || fake_gpu() != gpu) {
        fake_fault("a thread has another device than it has chosen");
    }
    pthread_mutex_unlock(&fake_mutex);
}

static CUresult retain_context(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&fake_mutex);
    fake_counted()->contexts++;
    pthread_mutex_unlock(&fake_mutex);
    *context = primary_of(device);
    return CUDA_SUCCESS;
}

static CUresult release_context(CUdevice device)
{
    (void)device;
    pthread_mutex_lock(&fake_mutex);
    fake_counted()->contexts--;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

static CUresult get_context(CUcontext *context)
{
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
    if (depth == DEPTH_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop_context(CUcontext *context)
{
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

/* ---- Streams ---- */

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode same = (enum cudaStreamCaptureMode) * mode;
    const CUresult code = (CUresult)cudaThreadExchangeStreamCaptureMode(&same);
    *mode = (CUstreamCaptureMode)same;
    return code;
}

static CUresult get_flags(CUstream stream, unsigned *flags)
{
    const fake_stream *found = fake_stream_of(stream);
    *flags = found != NULL ? found->flags : 0;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult query_stream(CUstream stream)
{
    return fake_stream_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult record_event(CUevent event, CUstream stream)
{
    return (CUresult)fake_event_record(event, stream);
}

static CUresult query_event(CUevent event)
{
    return (CUresult)fake_event_query(event);
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags)
{
    return flags == CU_EVENT_WAIT_DEFAULT ? (CUresult)fake_event_wait(stream, event) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_device(CUdevice *device, int index)
{
    *device = index;
    return CUDA_SUCCESS;
}

/* The machine has no dma-bufs. */
static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)attribute;
    (void)device;
    *value = 0;
    return CUDA_SUCCESS;
}

/* The program never captures. */
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    const fake_stream *own = fake_stream_of(stream);
    if (own == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* ---- Symbols ---- */

typedef void (*fake_function)(void);

static void store(void *where, fake_function function)
{
    memcpy(where, &function, sizeof function);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *driverStatus)
{
    static const struct {
        const char *name;
        fake_function function;
    } all[] = {
        {"cuDevicePrimaryCtxRetain", (fake_function)retain_context},
        {"cuDevicePrimaryCtxRelease", (fake_function)release_context},
        {"cuCtxGetCurrent", (fake_function)get_context},
        {"cuCtxPushCurrent", (fake_function)push_context},
        {"cuCtxPopCurrent", (fake_function)pop_context},
        {"cuThreadExchangeStreamCaptureMode", (fake_function)exchange_mode},
        {"cuStreamIsCapturing", (fake_function)is_capturing},
        {"cuStreamGetFlags", (fake_function)get_flags},
        {"cuStreamQuery", (fake_function)query_stream},
        {"cuEventRecord", (fake_function)record_event},
        {"cuEventQuery", (fake_function)query_event},
        {"cuStreamWaitEvent", (fake_function)wait_event},
        {"cuDeviceGet", (fake_function)get_device},
        {"cuDeviceGetAttribute", (fake_function)get_attribute},
    };
    (void)version;
    (void)flags;
    *driverStatus = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(symbol, all[i].name) == 0) {
            store((void *)funcPtr, all[i].function);
            *driverStatus = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}

const trib_device_ops *trib_device_cuda(void);
void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);

static int nccl_library, module_library;

void *__wrap_dlopen(const char *name, int flags)
{
    if (name != NULL && strstr(name, "libnccl.so") != NULL) {
        return &nccl_library;
    }
    if (name != NULL && strstr(name, "libtributary-cuda.so") != NULL) {
        return &module_library;
    }
    return __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *library, const char *name)
{
    void *symbol = NULL;
    if (library == &nccl_library) {
        return fake_nccl_symbol(name);
    }
    if (library == &module_library) {
        store((void *)&symbol, (fake_function)trib_device_cuda);
        return symbol;
    }
    return __real_dlsym(library, name);
}
