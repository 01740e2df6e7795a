/* fake_cuda.c - a fake of CUDA's runtime: devices, events, memory and copies. See fake_cuda.h for what it models. */
#include "tests/cuda/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

typedef struct fake_event {
    int gpu;
    const fake_stream *stream; /* NULL: the event has not been recorded */
    uint64_t count;
} fake_event;

static _Thread_local cudaError_t last_error;

static cudaError_t say(cudaError_t code)
{
    last_error = code == cudaSuccess || code == cudaErrorNotReady ? last_error : code;
    return code;
}

/* Counts one more living object, or one less. */
static void count(unsigned *counter, int change)
{
    pthread_mutex_lock(&fake_mutex);
    *counter = (unsigned)((int)*counter + change);
    pthread_mutex_unlock(&fake_mutex);
}

/* ---- Errors and devices ---- */

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory (fake)" : "a call failed (fake)";
}

cudaError_t cudaGetDeviceCount(int *count_out)
{
    *count_out = FAKE_GPUS;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = fake_gpu();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= FAKE_GPUS) {
        return say(cudaErrorInvalidDevice);
    }
    fake_choose(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    (void)pciBusId;
    (void)len;
    (void)device;
    return say(cudaErrorInvalidDevice); /* the machine has no such device */
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)attribute;
    (void)device;
    *value = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
                                               enum cudaFlushGPUDirectRDMAWritesScope scope)
{
    (void)target;
    (void)scope;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static _Thread_local enum cudaStreamCaptureMode present = cudaStreamCaptureModeGlobal;
    const enum cudaStreamCaptureMode before = present;
    present = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- Streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority;
    if (fake_fails(FAKE_STREAM_MAKE)) {
        return say(cudaErrorMemoryAllocation);
    }
    *stream = fake_stream_make(fake_gpu());
    fake_stream_of(*stream)->flags = flags;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_stream_drop(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return fake_stream_is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

/* ---- Events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    fake_event *own = fake_fails(FAKE_EVENT_MAKE) ? NULL : calloc(1, sizeof *own);
    (void)flags;
    if (own == NULL) {
        return say(cudaErrorMemoryAllocation);
    }
    own->gpu = fake_gpu();
    count(&fake_counted()->events, 1);
    *event = (cudaEvent_t)(void *)own;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    count(&fake_counted()->events, -1);
    free((void *)event);
    return cudaSuccess;
}

cudaError_t fake_event_record(cudaEvent_t event, cudaStream_t stream)
{
    fake_event *own = (fake_event *)(void *)event;
    fake_stream *of = fake_stream_of(stream);
    if (of == NULL || of->gpu != own->gpu || fake_fails(FAKE_EVENT_RECORD)) {
        return cudaErrorInvalidResourceHandle;
    }
    uint64_t place = 0;
    const cudaError_t code = fake_launch(stream, &(fake_work){.kind = FAKE_NOTHING, .place = &place});
    pthread_mutex_lock(&fake_mutex);
    own->stream = of;
    own->count = place;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

cudaError_t fake_event_query(cudaEvent_t event)
{
    const fake_event *own = (const fake_event *)(void *)event;
    pthread_mutex_lock(&fake_mutex);
    const bool over = own->stream == NULL || own->stream->ended >= own->count;
    pthread_mutex_unlock(&fake_mutex);
    return over ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t fake_event_wait(cudaStream_t stream, cudaEvent_t event)
{
    const fake_event *own = (const fake_event *)(void *)event;
    pthread_mutex_lock(&fake_mutex);
    const fake_work work = {.kind = FAKE_WAIT_EVENT, .before = own->stream, .before_count = own->count};
    pthread_mutex_unlock(&fake_mutex);
    if (fake_fails(FAKE_ORDER)) {
        return cudaErrorMemoryAllocation;
    }
    return work.before == NULL ? cudaSuccess : fake_launch(stream, &work);
}

/* ---- Memory ---- */

#define BLOCKS_MAX 64

static void *blocks[BLOCKS_MAX]; /* live blocks of GPU memory */

/* Returns where the block is listed, or NULL. The caller holds the mutex. */
static void **block_at(const void *memory)
{
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (blocks[i] == memory) {
            return &blocks[i];
        }
    }
    return NULL;
}

void fake_memory_close(void)
{
    pthread_mutex_lock(&fake_mutex);
    for (int i = 0; i < BLOCKS_MAX; i++) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
    pthread_mutex_unlock(&fake_mutex);
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    pthread_mutex_lock(&fake_mutex);
    void **place = block_at(NULL);
    *devPtr = place != NULL ? calloc(1, size) : NULL;
    if (*devPtr != NULL) {
        *place = *devPtr;
        fake_counted()->device_memory++;
    }
    pthread_mutex_unlock(&fake_mutex);
    return say(*devPtr != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *devPtr)
{
    pthread_mutex_lock(&fake_mutex);
    void **place = devPtr != NULL ? block_at(devPtr) : NULL;
    if (place != NULL) {
        *place = NULL;
        fake_counted()->device_memory--;
        free(devPtr);
    }
    pthread_mutex_unlock(&fake_mutex);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned flags)
{
    (void)ptr;
    (void)size;
    (void)flags;
    count(&fake_counted()->pinned, 1);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr)
{
    (void)ptr;
    count(&fake_counted()->pinned, -1);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    (void)ptr;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const fake_work work = {.kind = FAKE_BYTES, .target = dst, .source = src, .bytes = count};
    (void)kind;
    return say(fake_fails(FAKE_COPY) ? cudaErrorInvalidValue : fake_launch(stream, &work));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    const fake_work work = {.kind = FAKE_BYTES, .target = devPtr, .bytes = count};
    return say(value != 0 ? cudaErrorInvalidValue : fake_launch(stream, &work));
}
