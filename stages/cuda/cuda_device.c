/* cuda_device.c - the device interface (engine/device/device.h) as callers' threads and reactors call it. */
#include "stages/cuda/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (500 * INT64_C(1000)) /* more work mostly follows soon */
#define EXPORT __attribute__((visibility("default")))

EXPORT const trib_device_ops *trib_device_cuda(void);

void cuda_set_error(trib_error *error, trib_status status, const char *format, ...)
{
    if (error != NULL) {
        error->status = status;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
}

/* ---- Streams of callers ---- */

/* On a stream that is being captured nothing runs now, so there is nothing to wait for. */
trib_status cuda_check_capture(const trib_device *device, cudaStream_t stream, trib_error *error)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult code = device->driver.is_capturing(stream, &capture);
    if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
        (code == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)) {
        cuda_set_error(
            error, TRIB_UNSUPPORTED,
            "the stream is being captured into a CUDA graph: operations on device tensors cannot be part of a "
            "graph; end the capture first, and submit between the launches of graphs");
        return TRIB_UNSUPPORTED;
    }
    if (code != CUDA_SUCCESS) {
        cuda_set_error(error, TRIB_INVALID, "the stream: %s", cudaGetErrorString((cudaError_t)code));
        return TRIB_INVALID;
    }
    return TRIB_OK;
}

static cuda_stream_marker *take_marker(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    cuda_stream_marker *marker = device->free_markers;
    device->free_markers = marker != NULL ? marker->next : NULL;
    pthread_mutex_unlock(&device->mutex);
    if (marker != NULL) {
        return marker;
    }
    marker = calloc(1, sizeof *marker);
    if (marker != NULL && cudaEventCreateWithFlags(&marker->event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError(); /* must not show up among the caller's errors */
        free(marker);
        marker = NULL;
    }
    return marker;
}

static void device_marker_drop(trib_device *device, void *given)
{
    if (given != NULL) {
        cuda_marker_release(device, given);
    }
}

void cuda_thread_signal_if_asleep(trib_device *device)
{
    if (device->asleep) {
        pthread_cond_signal(&device->changed);
    }
}

/* Wakes the device thread ahead of the jobs that will follow. */
static void rouse_thread(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    device->kicked = true;
    cuda_thread_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
}

/* True if the stream has no work left. Unknown for the default streams, and for all streams that wait for the legacy
 * default stream, which are those that were not made with cudaStreamNonBlocking. */
static bool is_stream_idle(const trib_device *device, cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        return false;
    }
    unsigned flags = CU_STREAM_DEFAULT;
    return device->driver.get_flags(stream, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) != 0 &&
           device->driver.query_stream(stream) == CUDA_SUCCESS;
}

static CUresult record_marker(trib_device *device, cuda_stream_marker *marker, cudaStream_t stream)
{
    marker->stream = stream;
    marker->began = atomic_fetch_add(&device->markers_recorded, 1);
    const CUresult code = device->driver.record_event(marker->event, stream);
    marker->ended = atomic_load(&device->markers_recorded);
    return code;
}

static trib_status device_marker_record(trib_device *device, void *stream, void **marker_out, trib_error *error)
{
    const cuda_context_guard guard = cuda_context_enter(device);
    *marker_out = NULL;
    rouse_thread(device);
    trib_status status = cuda_check_capture(device, stream, error);
    const bool reached = status == TRIB_OK && is_stream_idle(device, stream);
    if (reached) {
        cuda_context_leave(device, guard);
        return TRIB_OK;
    }
    cuda_stream_marker *marker = status == TRIB_OK ? take_marker(device) : NULL;
    if (status == TRIB_OK && marker == NULL) {
        status = TRIB_NO_MEMORY;
        cuda_set_error(error, status, "no memory for a CUDA event");
    }
    const CUresult code = status == TRIB_OK ? record_marker(device, marker, stream) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) {
        device_marker_drop(device, marker);
        status = TRIB_INVALID;
        cuda_set_error(error, status, "the stream: %s (it must be one of device %d)",
                       cudaGetErrorString((cudaError_t)code), device->index);
    } else if (status == TRIB_OK) {
        *marker_out = marker;
    }
    cuda_context_leave(device, guard);
    return status;
}

/* ---- Memory ---- */

static trib_status device_pin(trib_device *device, void *base, size_t size)
{
    const cuda_context_guard guard = cuda_context_enter(device);
    cudaError_t code = cudaHostRegister(base, size, cudaHostRegisterPortable);
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
    }
    cuda_context_leave(device, guard);
    return code == cudaSuccess ? TRIB_OK : TRIB_SYSTEM;
}

static void device_unpin(trib_device *device, void *base, size_t size)
{
    (void)size;
    if (device->hung) {
        return; /* the driver would wait for work that never ends */
    }
    const cuda_context_guard guard = cuda_context_enter(device);
    (void)cudaHostUnregister(base);
    cuda_context_leave(device, guard);
}

/* Host memory needs no dma-buf, and managed memory moves. The driver exports whole pages. */
static trib_status device_expose(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                                 trib_error *error)
{
    struct cudaPointerAttributes about = {.type = cudaMemoryTypeUnregistered};
    const cuda_context_guard guard = cuda_context_enter(device);
    *memory_out = (trib_device_memory){.fd = -1};
    if (cudaPointerGetAttributes(&about, base) != cudaSuccess) {
        (void)cudaGetLastError();
        about.type = cudaMemoryTypeUnregistered;
    }
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)base & ~(page - 1), to = ((uintptr_t)base + size + page - 1) & ~(page - 1);
    CUresult code = CUDA_SUCCESS;
    const char *refusal = NULL;
    if (about.type == cudaMemoryTypeManaged) {
        refusal = "memory that is managed has no place of its own";
    } else if (about.type == cudaMemoryTypeDevice && about.device != device->index) {
        refusal = "it is another GPU's";
    } else if (about.type == cudaMemoryTypeDevice && device->get_handle == NULL) {
        refusal = "its driver gives no dma-buf of it, or could not make the GPU see what is written";
    } else if (about.type == cudaMemoryTypeDevice) {
        code = device->get_handle(&memory_out->fd, from, to - from, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        memory_out->offset = (uintptr_t)base - from;
    }
    cuda_context_leave(device, guard);
    if (code != CUDA_SUCCESS) {
        memory_out->fd = -1;
        cuda_set_error(error, TRIB_UNSUPPORTED,
                       "memory of GPU %d cannot be registered: no dma-buf of it (CUDA error %d)", device->index,
                       (int)code);
    } else if (refusal != NULL) {
        cuda_set_error(error, TRIB_UNSUPPORTED, "memory of GPU %d cannot be registered: %s", about.device, refusal);
    }
    return code != CUDA_SUCCESS || refusal != NULL ? TRIB_UNSUPPORTED : TRIB_OK;
}

/* ---- Jobs ---- */

static void device_submit(trib_device *device, trib_device_job *job)
{
    trib_assert(job->slot == NULL); /* a job is with the device once at a time */
    job->next = NULL;
    pthread_mutex_lock(&device->mutex);
    *(device->new_tail == NULL ? &device->new_head : &device->new_tail->next) = job;
    device->new_tail = job;
    device->calls_come = device->calls_come || job->kind != TRIB_DEVICE_WAIT;
    cuda_thread_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
}

static void device_stop(trib_device *device, bool orderly)
{
    atomic_store(&device->stop_asked, true);
    pthread_mutex_lock(&device->mutex);
    device->stopping = true;
    device->orderly = orderly;
    cuda_comm_stop(device);
    pthread_cond_signal(&device->changed);
    pthread_mutex_unlock(&device->mutex);
}

/* ---- Life ---- */

static void free_all(trib_device *device)
{
    for (cuda_slot *slot = device->free_slots, *next; slot != NULL; slot = next) {
        next = slot->next;
        (void)cudaEventDestroy(slot->event);
        free(slot);
    }
    for (cuda_stream_marker *marker = device->free_markers, *next; marker != NULL; marker = next) {
        next = marker->next;
        (void)cudaEventDestroy(marker->event);
        free(marker);
    }
    cuda_codec_free(device);
    for (int which = 0; which < CUDA_STREAM_COUNT; which++) {
        if (device->streams[which] != NULL) {
            (void)cudaStreamDestroy(device->streams[which]);
        }
    }
    cuda_ends_free(device);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->mutex);
}

static void device_close(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    device->quits = true;
    pthread_cond_signal(&device->changed);
    pthread_mutex_unlock(&device->mutex);
    pthread_join(device->thread, NULL);
    trib_assert(device->new_head == NULL && device->waits == NULL && device->join == NULL);
    trib_assert(device->ready.head == NULL && device->deferred.head == NULL);
    if (!device->hung) {
        const cuda_context_guard guard = cuda_context_enter(device);
        free_all(device);
        cuda_context_leave(device, guard);
        cuda_context_close(device);
        free(device);
    }
}

/* GPUDirect is used only if the driver exports dma-bufs, and the GPUs that read the memory see a network device's
 * writes in order, or can be made to. In a group of several GPUs all of them may read it. */
static void set_up_gpu_direct(trib_device *device)
{
    CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice) = NULL;
    int has_dmabuf = 0, ordering = 0, options = 0;
    const bool known =
        cuda_find_driver("cuDeviceGetAttribute", &get_attribute) == cudaSuccess &&
        get_attribute(&has_dmabuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device->ordinal) == CUDA_SUCCESS &&
        cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, device->index) == cudaSuccess &&
        cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, device->index) == cudaSuccess;
    device->seen_by =
        device->params.size > 1 ? cudaFlushGPUDirectRDMAWritesToAllDevices : cudaFlushGPUDirectRDMAWritesToOwner;
    device->flushes = ordering < (int)device->seen_by;
    const bool can_see = !device->flushes || (options & cudaFlushGPUDirectRDMAWritesOptionHost) != 0;
    if (!known || !has_dmabuf || !can_see ||
        cuda_find_driver("cuMemGetHandleForAddressRange", &device->get_handle) != cudaSuccess) {
        device->get_handle = NULL;
    }
    (void)cudaGetLastError();
}

static cudaError_t set_up_device(trib_device *device)
{
    int least = 0, greatest = 0;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int which = 0; code == cudaSuccess && which < CUDA_STREAM_COUNT; which++) {
        code = cudaStreamCreateWithPriority(&device->streams[which], cudaStreamNonBlocking, greatest);
    }
    if (code == cudaSuccess) {
        code = cuda_codec_load();
    }
    if (code == cudaSuccess) {
        set_up_gpu_direct(device);
    }
    return code;
}

/* Inside a context guard. */
static cudaError_t start_device(trib_device *device)
{
    cudaError_t code = set_up_device(device);
    if (code == cudaSuccess && trib_thread_start(&device->thread, NULL, cuda_thread_main, device) != 0) {
        code = cudaErrorMemoryAllocation;
    }
    if (code != cudaSuccess) {
        free_all(device);
    }
    return code;
}

static bool device_locate(int32_t index, char *pci, size_t size)
{
    int found = index;
    cudaError_t code = index < 0 ? cudaGetDevice(&found) : cudaSuccess;
    if (code == cudaSuccess) {
        code = cudaDeviceGetPCIBusId(pci, (int)size, found);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* device_open reports it */
    }
    return code == cudaSuccess;
}

/* The mutex is held for moments only, but often, by a device thread that spins: a thread that finds it locked spins
 * as well. */
static void make_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static trib_status device_open(const trib_device_params *params, trib_device **out, trib_error *error)
{
    int count = 0, before = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || cudaGetDevice(&before) != cudaSuccess) {
        (void)cudaGetLastError(); /* must not show up among the caller's errors */
        cuda_set_error(error, TRIB_UNSUPPORTED, "device \"cuda\": %s",
                       code != cudaSuccess ? cudaGetErrorString(code) : "no present device");
        return TRIB_UNSUPPORTED;
    }
    if (params->index >= count) {
        cuda_set_error(error, TRIB_INVALID, "device_index %d: this process sees %d CUDA devices", (int)params->index,
                       count);
        return TRIB_INVALID;
    }
    trib_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        cuda_set_error(error, TRIB_NO_MEMORY, "out of memory");
        return TRIB_NO_MEMORY;
    }
    device->params = *params;
    device->poll_window = trib_poll_window_between(LOOK_NS, params->poll_window_max_ns);
    device->index = params->index < 0 ? before : params->index;
    make_mutex(&device->mutex);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    code = cuda_context_open(device);
    if (code == cudaSuccess) {
        const cuda_context_guard guard = cuda_context_enter(device);
        code = start_device(device);
        cuda_context_leave(device, guard);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* must not show up among the caller's errors */
        cuda_set_error(error, TRIB_SYSTEM, "CUDA device %d: %s", device->index, cudaGetErrorString(code));
        cuda_context_close(device);
        free(device);
        return TRIB_SYSTEM;
    }
    *out = device;
    return TRIB_OK;
}

const trib_device_ops *trib_device_cuda(void)
{
    static const trib_device_ops ops = {
        .abi = TRIB_DEVICE_ABI,
        .name = "cuda",
        .locate = device_locate,
        .reduces = cuda_nccl_reduces,
        .encodes = cuda_encodes,
        .decodes = cuda_decodes,
        .forget = cuda_codec_forget,
        .open = device_open,
        .submit = device_submit,
        .marker_record = device_marker_record,
        .wake = cuda_thread_wake,
        .marker_drop = device_marker_drop,
        .stream_wait = cuda_stream_wait,
        .pin = device_pin,
        .unpin = device_unpin,
        .expose = device_expose,
        .stop = device_stop,
        .close = device_close,
    };
    return &ops;
}
