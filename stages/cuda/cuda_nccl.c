/*
 * cuda_nccl.c - the machine's group: NCCL's communicator, its collectives, and how it is given up.
 *
 * The communicator is a non-blocking one: NCCL answers "in progress", and is asked again from the device's thread. One
 * collective at a time is given to it; when it is on the stream the next follows, while the first still runs.
 */
#include "stages/cuda/cuda_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NCCL_LIBRARY "libnccl.so.2"
#define ERRORS_EVERY_NS (50 * INT64_C(1000000))
#define LEAVE_NS (1000 * INT64_C(1000000))

/* ---- The library ---- */

static bool load(trib_device *device, char *why, size_t size)
{
    if (device->nccl_loaded) {
        return true;
    }
    void *library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (library == NULL) {
        /* NOLINTNEXTLINE(concurrency-mt-unsafe): glibc has a text for each thread */
        snprintf(why, size, "NCCL could not be loaded: %s (LD_LIBRARY_PATH may say where it is)", dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"ncclGetUniqueId", &device->nccl.get_unique_id},
        {"ncclCommInitRankConfig", &device->nccl.comm_init},
        {"ncclCommFinalize", &device->nccl.comm_finalize},
        {"ncclCommDestroy", &device->nccl.comm_destroy},
        {"ncclCommAbort", &device->nccl.comm_abort},
        {"ncclCommGetAsyncError", &device->nccl.comm_error},
        {"ncclGetErrorString", &device->nccl.error_text},
        {"ncclGetLastError", &device->nccl.last_error},
        {"ncclReduce", &device->nccl.reduce},
        {"ncclBroadcast", &device->nccl.broadcast},
        {"ncclAllReduce", &device->nccl.all_reduce},
        {"ncclReduceScatter", &device->nccl.reduce_scatter},
        {"ncclAllGather", &device->nccl.all_gather},
        {"ncclGroupStart", &device->nccl.group_start},
        {"ncclGroupEnd", &device->nccl.group_end},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (symbol == NULL) {
            snprintf(why, size, NCCL_LIBRARY " has no %s: NCCL 2.14 or newer is needed", wanted[i].name);
            return false;
        }
        memcpy(wanted[i].where, &symbol, sizeof symbol);
    }
    device->nccl_loaded = true;
    return true;
}

static void describe(trib_device *device, ncclResult_t result, char *text, size_t size)
{
    const char *last = device->nccl.last_error(device->comm);
    snprintf(text, size, "NCCL: %s%s%.100s", device->nccl.error_text(result),
             last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}

/* ---- Joining ---- */

void cuda_nccl_make_id(trib_device *device, trib_device_job *job)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    if (!load(device, why, sizeof why)) {
        cuda_give_back(device, job, TRIB_UNSUPPORTED, "%s", why);
        return;
    }
    ncclUniqueId id;
    ncclResult_t result = device->nccl.get_unique_id(&id);
    if (result != ncclSuccess) {
        describe(device, result, why, sizeof why);
        cuda_give_back(device, job, TRIB_SYSTEM, "%s", why);
        return;
    }
    _Static_assert(sizeof id == TRIB_DEVICE_ID_SIZE, "the name of a group is NCCL's");
    memcpy(job->target, &id, sizeof id);
    cuda_give_back(device, job, TRIB_OK, "%s", "");
}

static void join_failed(trib_device *device, ncclResult_t result)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    describe(device, result, why, sizeof why);
    trib_device_job *job = device->join;
    device->join = NULL;
    device->comm_state = CUDA_COMM_FAILED;
    device->comm_result = result;
    cuda_give_back(device, job, TRIB_SYSTEM, "%s", why);
}

void cuda_nccl_join(trib_device *device, trib_device_job *job)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    if (!load(device, why, sizeof why)) {
        cuda_give_back(device, job, TRIB_UNSUPPORTED, "%s", why);
        return;
    }
    ncclUniqueId id;
    memcpy(&id, job->source, sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    device->join = job;
    device->comm_state = CUDA_COMM_JOINING;
    ncclResult_t result = device->nccl.comm_init(&device->comm, device->params.size, id, device->params.rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) {
        join_failed(device, result);
    }
}

/* ---- Collectives ---- */

static size_t element_size(trib_dtype dtype)
{
    static const size_t sizes[TRIB_DTYPE_COUNT] = {
        [TRIB_FLOAT32] = 4, [TRIB_FLOAT64] = 8, [TRIB_FLOAT16] = 2, [TRIB_BFLOAT16] = 2,
        [TRIB_INT8] = 1,    [TRIB_UINT8] = 1,   [TRIB_INT32] = 4,   [TRIB_INT64] = 8,
    };
    return sizes[dtype];
}

static ncclDataType_t type_of(trib_dtype dtype)
{
    static const ncclDataType_t types[TRIB_DTYPE_COUNT] = {
        [TRIB_FLOAT32] = ncclFloat32,   [TRIB_FLOAT64] = ncclFloat64, [TRIB_FLOAT16] = ncclFloat16,
        [TRIB_BFLOAT16] = ncclBfloat16, [TRIB_INT8] = ncclInt8,       [TRIB_UINT8] = ncclUint8,
        [TRIB_INT32] = ncclInt32,       [TRIB_INT64] = ncclInt64,
    };
    return types[dtype];
}

static ncclRedOp_t op_of(trib_reduce reduce)
{
    static const ncclRedOp_t ops[TRIB_REDUCE_COUNT] = {
        [TRIB_SUM] = ncclSum, [TRIB_AVG] = ncclAvg, [TRIB_MIN] = ncclMin, [TRIB_MAX] = ncclMax};
    return ops[reduce];
}

/* Shares that are not equal: one reduction or broadcast for each member, as one group. */
static ncclResult_t launch_uneven(trib_device *device, const trib_device_job *job)
{
    const cuda_nccl *nccl = &device->nccl;
    cudaStream_t stream = device->streams[CUDA_COLLECTIVE];
    ncclResult_t result = nccl->group_start();
    for (int root = 0; result == ncclSuccess && root < device->params.size; root++) {
        const size_t begin = (size_t)root * job->share, left = begin < job->bytes ? job->bytes - begin : 0;
        const size_t bytes = left < job->share ? left : job->share;
        if (bytes == 0) {
            continue;
        }
        if (job->kind == TRIB_DEVICE_REDUCE_SCATTER) {
            result = nccl->reduce((const unsigned char *)job->source + begin,
                                  root == device->params.rank ? job->target : NULL, bytes / element_size(job->dtype),
                                  type_of(job->dtype), op_of(job->reduce), root, device->comm, stream);
        } else {
            unsigned char *at = (unsigned char *)job->target + begin;
            result = nccl->broadcast(at, at, bytes, ncclUint8, root, device->comm, stream);
        }
        result = result == ncclInProgress ? ncclSuccess : result;
    }
    ncclResult_t ended = nccl->group_end();
    return result != ncclSuccess ? result : ended;
}

static ncclResult_t launch(trib_device *device, const trib_device_job *job)
{
    const cuda_nccl *nccl = &device->nccl;
    cudaStream_t stream = device->streams[CUDA_COLLECTIVE];
    const size_t element = element_size(job->dtype);
    if (job->kind == TRIB_DEVICE_ALL_REDUCE) {
        return nccl->all_reduce(job->source, job->target, job->bytes / element, type_of(job->dtype), op_of(job->reduce),
                                device->comm, stream);
    }
    if (job->bytes != job->share * (size_t)device->params.size) {
        return launch_uneven(device, job);
    }
    if (job->kind == TRIB_DEVICE_REDUCE_SCATTER) {
        return nccl->reduce_scatter(job->source, job->target, job->share / element, type_of(job->dtype),
                                    op_of(job->reduce), device->comm, stream);
    }
    return nccl->all_gather((const unsigned char *)job->target + (size_t)device->params.rank * job->share, job->target,
                            job->share, ncclUint8, device->comm, stream);
}

static void comm_failed(trib_device *device, ncclResult_t result)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    describe(device, result, why, sizeof why);
    device->comm_state = CUDA_COMM_FAILED;
    device->comm_result = result;
    if (device->launching != NULL) {
        cuda_slot *slot = device->launching;
        device->launching = NULL;
        cuda_slot_end(device, slot, TRIB_SYSTEM, why);
    }
    /* Ends the kernels that run, and with them what waits for them. */
    cuda_nccl_abort(device);
}

/* In a group of one there is nobody to ask. */
static void copy_alone(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    cudaError_t code = cudaSuccess;
    if (job->kind == TRIB_DEVICE_ALL_REDUCE && job->source != job->target && job->bytes > 0) {
        code = cudaMemcpyAsync(job->target, job->source, job->bytes, cudaMemcpyDeviceToDevice,
                               device->streams[CUDA_COLLECTIVE]);
    }
    if (code != cudaSuccess) {
        cuda_slot_end(device, slot, TRIB_SYSTEM, cudaGetErrorString(code));
    } else {
        cuda_issued(device, slot, CUDA_COLLECTIVE);
    }
}

static void launch_next(trib_device *device)
{
    cuda_slot *slot = device->ready.head;
    if (!cuda_order_after(device, slot->job, CUDA_COLLECTIVE)) {
        return;
    }
    (void)cuda_queue_pop(&device->ready);
    if (slot->job->bytes == 0) {
        cuda_issued(device, slot, CUDA_COLLECTIVE);
        return;
    }
    device->launching = slot;
    device->launched_ns = cuda_now_ns();
    ncclResult_t result = launch(device, slot->job);
    if (result == ncclSuccess) {
        device->launching = NULL;
        cuda_issued(device, slot, CUDA_COLLECTIVE);
    } else if (result != ncclInProgress) {
        comm_failed(device, result);
    }
}

/* NCCL's state; also notices what went wrong with a collective that runs. */
static ncclResult_t ask(trib_device *device)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = device->nccl.comm_error(device->comm, &state);
    device->checked_ns = cuda_now_ns();
    return result != ncclSuccess ? result : state;
}

static void progress_join(trib_device *device)
{
    ncclResult_t state = ask(device);
    if (state == ncclSuccess) {
        trib_device_job *job = device->join;
        device->join = NULL;
        device->comm_state = CUDA_COMM_READY;
        cuda_give_back(device, job, TRIB_OK, "%s", "");
    } else if (state != ncclInProgress) {
        join_failed(device, state);
    }
}

static void fail_ready(trib_device *device)
{
    while (device->ready.head != NULL) {
        char why[TRIB_DEVICE_TEXT_SIZE];
        describe(device, device->comm_result, why, sizeof why);
        cuda_slot_end(device, cuda_queue_pop(&device->ready), TRIB_SYSTEM, why);
    }
}

void cuda_nccl_progress(trib_device *device)
{
    if (device->params.size == 1) {
        while (device->ready.head != NULL && cuda_order_after(device, device->ready.head->job, CUDA_COLLECTIVE)) {
            copy_alone(device, cuda_queue_pop(&device->ready));
        }
        return;
    }
    if (device->comm_state == CUDA_COMM_JOINING) {
        progress_join(device);
    }
    if (device->comm_state == CUDA_COMM_READY && device->launching != NULL) {
        ncclResult_t state = ask(device);
        if (state == ncclSuccess) {
            cuda_slot *slot = device->launching;
            device->launching = NULL;
            cuda_issued(device, slot, CUDA_COLLECTIVE);
        } else if (state != ncclInProgress) {
            comm_failed(device, state);
        }
    }
    while (device->comm_state == CUDA_COMM_READY && device->launching == NULL && device->ready.head != NULL) {
        const cuda_slot *first = device->ready.head;
        launch_next(device);
        if (device->ready.head == first) {
            return; /* it waits for a job that has not been issued */
        }
    }
    if (device->comm_state == CUDA_COMM_READY && device->issued[CUDA_COLLECTIVE].head != NULL &&
        cuda_now_ns() - device->checked_ns > ERRORS_EVERY_NS) {
        ncclResult_t state = ask(device);
        if (state != ncclSuccess && state != ncclInProgress) {
            comm_failed(device, state);
        }
    }
    if (device->comm_state == CUDA_COMM_FAILED) {
        fail_ready(device);
    }
}

bool cuda_nccl_is_busy(const trib_device *device)
{
    return device->comm_state == CUDA_COMM_JOINING || device->launching != NULL || device->ready.head != NULL;
}

/* ---- Giving up ---- */

/* Shared by the device and the thread that aborts; whoever lets go last frees it. */
struct cuda_abandoned {
    ncclComm_t comm;
    int index;
    ncclResult_t (*comm_abort)(ncclComm_t);
    atomic_bool done;
    atomic_int holders;
};

static void let_go(cuda_abandoned *what)
{
    if (atomic_fetch_sub(&what->holders, 1) == 1) {
        free(what);
    }
}

/* A thread of its own, because NCCL may take its time, or never return. */
static void *abort_main(void *argument)
{
    cuda_abandoned *what = argument;
    if (cudaSetDevice(what->index) == cudaSuccess) {
        (void)what->comm_abort(what->comm);
    }
    atomic_store(&what->done, true);
    let_go(what);
    return NULL;
}

static bool start_abort(cuda_abandoned *what)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool started = pthread_create(&thread, &attributes, abort_main, what) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

void cuda_nccl_abort(trib_device *device)
{
    if (device->comm == NULL) {
        return;
    }
    cuda_abandoned *what = calloc(1, sizeof *what);
    if (what != NULL) {
        what->comm = device->comm;
        what->index = device->index;
        what->comm_abort = device->nccl.comm_abort;
        atomic_store(&what->holders, 2);
        if (!start_abort(what)) {
            free(what);
            what = NULL;
        }
    }
    device->hung = device->hung || what == NULL; /* the communicator is lost; what it does ends with the process */
    device->abandoned = what;
    device->comm = NULL;
    device->comm_state = CUDA_COMM_FAILED;
    device->comm_result = ncclRemoteError;
}

static void rest(int64_t ns)
{
    const struct timespec pause = {.tv_nsec = ns};
    nanosleep(&pause, NULL);
}

void cuda_nccl_wait_abort(trib_device *device)
{
    if (device->abandoned == NULL) {
        return;
    }
    const int64_t until_ns = cuda_now_ns() + TRIB_CUDA_STOP_NS;
    while (!atomic_load(&device->abandoned->done) && cuda_now_ns() < until_ns) {
        rest(200000);
    }
    device->hung = device->hung || !atomic_load(&device->abandoned->done);
    let_go(device->abandoned);
    device->abandoned = NULL;
}

void cuda_nccl_leave(trib_device *device)
{
    if (device->comm == NULL) {
        return;
    }
    const int64_t until_ns = cuda_now_ns() + LEAVE_NS;
    ncclResult_t state = device->nccl.comm_finalize(device->comm);
    while (state == ncclInProgress && cuda_now_ns() < until_ns) {
        rest(200000);
        state = ask(device);
    }
    if (state == ncclSuccess) {
        (void)device->nccl.comm_destroy(device->comm);
        device->comm = NULL;
    } else {
        cuda_nccl_abort(device);
    }
}
