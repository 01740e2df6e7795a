/* cuda_device.c - the CUDA module's side of the device interface that callers' threads and reactors see. */
#include "stages/cuda/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (500 * INT64_C(1000)) /* after something has moved the next thing mostly comes soon */
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

/* A stream that is being captured into a graph has no "now" to wait for. */
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

static cuda_mark *mark_take(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    cuda_mark *mark = device->marks;
    device->marks = mark != NULL ? mark->next : NULL;
    pthread_mutex_unlock(&device->mutex);
    if (mark != NULL) {
        return mark;
    }
    mark = calloc(1, sizeof *mark);
    if (mark != NULL && cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError(); /* it is told, and is not the caller's */
        free(mark);
        mark = NULL;
    }
    return mark;
}

static void device_mark_drop(trib_device *device, void *given)
{
    if (given != NULL) {
        cuda_mark_give(device, given);
    }
}

void cuda_signal_if_asleep(trib_device *device)
{
    if (device->asleep) {
        pthread_cond_signal(&device->changed);
    }
}

/* Jobs will follow: the thread may wake up meanwhile. */
static void kick(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    device->kicked = true;
    cuda_signal_if_asleep(device);
    pthread_mutex_unlock(&device->mutex);
}

/* Nothing is left to be done on it. Of the default streams this cannot be told, because they wait for others; nor of those that wait
 * for the legacy one, as all do that were not made to be non-blocking. */
static bool is_idle(const trib_device *device, cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        return false;
    }
    unsigned flags = CU_STREAM_DEFAULT;
    return device->driver.get_flags(stream, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) != 0 &&
           device->driver.query_stream(stream) == CUDA_SUCCESS;
}

static CUresult mark_record(trib_device *device, cuda_mark *mark, cudaStream_t stream)
{
    mark->stream = stream;
    mark->began = atomic_fetch_add(&device->marked, 1);
    const CUresult code = device->driver.record_event(mark->event, stream);
    mark->ended = atomic_load(&device->marked);
    return code;
}

static trib_status device_mark(trib_device *device, void *stream, void **mark_out, trib_error *error)
{
    const cuda_visit visit = cuda_visit_begin(device);
    *mark_out = NULL;
    if (!device->params.in_order) { /* else what is handed in is launched first */
        kick(device);
    }
    trib_status status = cuda_check_capture(device, stream, error);
    if (status == TRIB_OK) {
        cuda_wait_note(device, stream);
    }
    const bool reached = status == TRIB_OK && is_idle(device, stream);
    if (reached) {
        cuda_visit_end(device, visit);
        return TRIB_OK;
    }
    cuda_mark *mark = status == TRIB_OK ? mark_take(device) : NULL;
    if (status == TRIB_OK && mark == NULL) {
        status = TRIB_NO_MEMORY;
        cuda_set_error(error, status, "no memory for a CUDA event");
    }
    const CUresult code = status == TRIB_OK ? mark_record(device, mark, stream) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) {
        device_mark_drop(device, mark);
        status = TRIB_INVALID;
        cuda_set_error(error, status, "the stream: %s (it must be one of device %d)",
                       cudaGetErrorString((cudaError_t)code), device->index);
    } else if (status == TRIB_OK) {
        *mark_out = mark;
    }
    cuda_visit_end(device, visit);
    return status;
}

/* ---- Gates ---- */

static trib_status device_gate_make(trib_device *device, trib_device_gate *gate, trib_error *error)
{
    const cuda_visit visit = cuda_visit_begin(device);
    void *end = gate->end != NULL ? gate->end : cuda_gate_end_make(device);
    uint32_t *word = end != NULL ? cuda_gate_word(device) : NULL;
    cuda_visit_end(device, visit);
    *gate = (trib_device_gate){.word = word, .end = end};
    if (word == NULL) {
        /* An end that was made stays with its gate, which is asked for again. */
        cuda_set_error(error, TRIB_NO_MEMORY, "no memory that the GPU sees, or no memory for a CUDA event");
        return TRIB_NO_MEMORY;
    }
    return TRIB_OK;
}

static void device_gate_open(trib_device *device, const trib_device_gate *gate)
{
    __atomic_store_n(gate->word, gate->value, __ATOMIC_RELEASE);
    cuda_wait_end(device, gate);
}

/* ---- Memory ---- */

static trib_status device_pin(trib_device *device, void *base, size_t size)
{
    const cuda_visit visit = cuda_visit_begin(device);
    cudaError_t code = cudaHostRegister(base, size, cudaHostRegisterPortable);
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
    }
    cuda_visit_end(device, visit);
    return code == cudaSuccess ? TRIB_OK : TRIB_SYSTEM;
}

static void device_unpin(trib_device *device, void *base, size_t size)
{
    (void)size;
    if (device->hung) {
        return; /* the driver would wait for what does not end */
    }
    const cuda_visit visit = cuda_visit_begin(device);
    (void)cudaHostUnregister(base);
    cuda_visit_end(device, visit);
}

/* Host memory is as any other, and managed memory moves about. The driver gives whole pages. */
static trib_status device_expose(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                                 trib_error *error)
{
    struct cudaPointerAttributes about = {.type = cudaMemoryTypeUnregistered};
    const cuda_visit visit = cuda_visit_begin(device);
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
    cuda_visit_end(device, visit);
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
    job->next = NULL;
    pthread_mutex_lock(&device->mutex);
    *(device->new_tail == NULL ? &device->new_head : &device->new_tail->next) = job;
    device->new_tail = job;
    device->calls_come = device->calls_come || job->kind != TRIB_DEVICE_WAIT;
    cuda_signal_if_asleep(device);
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
    for (cuda_mark *mark = device->marks, *next; mark != NULL; mark = next) {
        next = mark->next;
        (void)cudaEventDestroy(mark->event);
        free(mark);
    }
    for (int stream_id = 0; stream_id < CUDA_STREAMS; stream_id++) {
        if (device->streams[stream_id] != NULL) {
            (void)cudaStreamDestroy(device->streams[stream_id]);
        }
    }
    cuda_keep_close(device);
    cuda_gates_free(device);
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
    cuda_wait_close(device);
    if (!device->hung) {
        const cuda_visit visit = cuda_visit_begin(device);
        free_all(device);
        cuda_visit_end(device, visit);
        cuda_visit_close(device);
        free(device);
    }
}

/* Only where all of it is sure to work: the driver gives dma-bufs, and what is written by others is seen in good order by
 * those who use it, or can be made so. With other GPUs in the group these may read it here. */
static void set_up_direct(trib_device *device)
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

static cudaError_t set_up(trib_device *device)
{
    int least = 0, greatest = 0;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int stream_id = 0; code == cudaSuccess && stream_id < CUDA_STREAMS; stream_id++) {
        code = cudaStreamCreateWithPriority(&device->streams[stream_id], cudaStreamNonBlocking, greatest);
    }
    if (code == cudaSuccess) {
        set_up_direct(device);
        cuda_wait_open(device);
        code = cuda_keep_open(device);
    }
    if (code == cudaSuccess) {
        code = cuda_gates_open(device) ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    return code;
}

/* In a visit. */
static cudaError_t start(trib_device *device)
{
    cudaError_t code = set_up(device);
    if (code == cudaSuccess && trib_thread_start(&device->thread, NULL, cuda_thread_main, device) != 0) {
        code = cudaErrorMemoryAllocation;
    }
    if (code != cudaSuccess) {
        cuda_wait_close(device);
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
        (void)cudaGetLastError(); /* opening will say what is wrong */
    }
    return code == cudaSuccess;
}

/* It is held for moments only, and by the thread often while that looks about: who finds it taken does better to look again
 * than to sleep. */
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
        (void)cudaGetLastError(); /* as below */
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
    device->can_launch = params->size == 1;
    make_mutex(&device->mutex);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    code = cuda_visit_open(device);
    if (code == cudaSuccess) {
        const cuda_visit visit = cuda_visit_begin(device);
        code = start(device);
        cuda_visit_end(device, visit);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* it is told here, and is not the caller's */
        cuda_set_error(error, TRIB_SYSTEM, "CUDA device %d: %s", device->index, cudaGetErrorString(code));
        cuda_visit_close(device);
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
        .open = device_open,
        .submit = device_submit,
        .issue = cuda_issue,
        .may_keep = cuda_keep_may,
        .mark = device_mark,
        .wake = cuda_wake,
        .mark_drop = device_mark_drop,
        .gate_make = device_gate_make,
        .gate_open = device_gate_open,
        .stream_wait = cuda_stream_wait,
        .pin = device_pin,
        .unpin = device_unpin,
        .expose = device_expose,
        .stop = device_stop,
        .close = device_close,
    };
    return &ops;
}
