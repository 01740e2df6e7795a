/*
 * cuda_nccl.c - NCCL, loaded at run time, and the collectives of the machine's group.
 *
 * A launch takes microseconds, because NCCL was set up while joining (cuda_comm.c). It would block with very many
 * kernels in CUDA's queue, so their number is bounded.
 */
#include "stages/cuda/cuda_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_LIBRARY "libnccl.so.2"
#define ERRORS_EVERY_NS (50 * INT64_C(1000000))

/* ---- The library ---- */

static bool load_nccl(trib_device *device, char *why, size_t size)
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
    cuda_exit_watch(CUDA_EXIT_LOADED);
    return true;
}

static void describe_error(trib_device *device, ncclResult_t result, char *text, size_t size)
{
    const char *last = device->nccl.last_error(NULL);
    snprintf(text, size, "NCCL: %s%s%.100s", device->nccl.error_text(result),
             last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}

void cuda_nccl_make_id(trib_device *device, trib_device_job *job)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    if (!load_nccl(device, why, sizeof why)) {
        cuda_job_give_back(device, job, TRIB_UNSUPPORTED, "%s", why);
        return;
    }
    if (!cuda_exit_hold()) {
        cuda_job_give_back(device, job, TRIB_CLOSED, "the process ends");
        return;
    }
    ncclUniqueId id;
    ncclResult_t result = device->nccl.get_unique_id(&id);
    cuda_exit_release();
    if (result != ncclSuccess) {
        describe_error(device, result, why, sizeof why);
        cuda_job_give_back(device, job, TRIB_SYSTEM, "%s", why);
        return;
    }
    _Static_assert(sizeof id == TRIB_DEVICE_ID_SIZE, "the name of a group is NCCL's");
    memcpy(job->target, &id, sizeof id);
    cuda_job_give_back(device, job, TRIB_OK, "%s", "");
}

void cuda_nccl_join(trib_device *device, trib_device_job *job)
{
    char why[TRIB_DEVICE_TEXT_SIZE];
    trib_assert(device->join == NULL && device->comm == NULL);
    if (!load_nccl(device, why, sizeof why)) {
        cuda_job_give_back(device, job, TRIB_UNSUPPORTED, "%s", why);
    } else if (!cuda_comm_join(device, job->source)) {
        cuda_job_give_back(device, job, TRIB_NO_MEMORY, "no thread to join the group with");
    } else {
        device->join = job;
        device->comm_state = CUDA_COMM_JOINING;
    }
}

/* ---- Collectives ---- */

static size_t element_size(trib_dtype dtype)
{
    static const size_t sizes[TRIB_DTYPE_COUNT] = {
        [TRIB_FLOAT32] = 4, [TRIB_FLOAT64] = 8, [TRIB_FLOAT16] = 2, [TRIB_BFLOAT16] = 2,
        [TRIB_INT8] = 1,    [TRIB_UINT8] = 1,   [TRIB_INT32] = 4,   [TRIB_INT64] = 8,
        [TRIB_BOOL] = 1,    [TRIB_UINT32] = 4,  [TRIB_UINT64] = 8,
    };
    trib_assert(sizes[dtype] > 0); /* others are rejected when they are submitted */
    return sizes[dtype];
}

bool cuda_nccl_reduces(trib_dtype dtype, trib_reduce reduce)
{
    switch (dtype) {
    case TRIB_BOOL:
        return reduce != TRIB_BIT_XOR;
    case TRIB_INT16:
    case TRIB_UINT16:
    case TRIB_FLOAT8_E4M3: /* only newer releases have it, on newer GPUs, and round after each addition */
    case TRIB_FLOAT8_E5M2:
        return false;
    default:
        return reduce != TRIB_BIT_AND && reduce != TRIB_BIT_OR && reduce != TRIB_BIT_XOR;
    }
}

static ncclDataType_t type_of(trib_dtype dtype)
{
    static const ncclDataType_t types[TRIB_DTYPE_COUNT] = {
        [TRIB_FLOAT32] = ncclFloat32,   [TRIB_FLOAT64] = ncclFloat64, [TRIB_FLOAT16] = ncclFloat16,
        [TRIB_BFLOAT16] = ncclBfloat16, [TRIB_INT8] = ncclInt8,       [TRIB_UINT8] = ncclUint8,
        [TRIB_INT32] = ncclInt32,       [TRIB_INT64] = ncclInt64,     [TRIB_BOOL] = ncclUint8,
        [TRIB_UINT32] = ncclUint32,     [TRIB_UINT64] = ncclUint64,
    };
    return types[dtype];
}

/* Bools, 0 or 1, are bytes to NCCL: the largest is their OR, the smallest their AND. */
static ncclRedOp_t op_of(trib_dtype dtype, trib_reduce reduce)
{
    static const ncclRedOp_t ops[TRIB_BIT_AND] = {
        [TRIB_SUM] = ncclSum, [TRIB_AVG] = ncclAvg,      [TRIB_MIN] = ncclMin,
        [TRIB_MAX] = ncclMax, [TRIB_PRODUCT] = ncclProd,
    };
    if (dtype == TRIB_BOOL) {
        return reduce == TRIB_SUM || reduce == TRIB_MAX || reduce == TRIB_BIT_OR ? ncclMax : ncclMin;
    }
    trib_assert(reduce < TRIB_BIT_AND);
    return ops[reduce];
}

/* Shards of unequal size: a reduction or a broadcast per rank, as one group of NCCL's. */
static ncclResult_t launch_uneven(trib_device *device, const trib_device_job *job)
{
    const cuda_nccl *nccl = &device->nccl;
    cudaStream_t stream = device->streams[CUDA_COLLECTIVE];
    ncclResult_t result = nccl->group_start();
    for (int root = 0; result == ncclSuccess && root < device->params.size; root++) {
        const size_t begin = (size_t)root * job->shard, left = begin < job->bytes ? job->bytes - begin : 0;
        const size_t bytes = left < job->shard ? left : job->shard;
        if (bytes == 0) {
            continue;
        }
        if (job->kind == TRIB_DEVICE_REDUCE_SCATTER) {
            result =
                nccl->reduce((const unsigned char *)job->source + begin,
                             root == device->params.rank ? job->target : NULL, bytes / element_size(job->dtype),
                             type_of(job->dtype), op_of(job->dtype, job->reduce), root, device->comm->nccl, stream);
        } else {
            unsigned char *at = (unsigned char *)job->target + begin;
            result = nccl->broadcast(at, at, bytes, ncclUint8, root, device->comm->nccl, stream);
        }
    }
    ncclResult_t ended = nccl->group_end();
    return result != ncclSuccess ? result : ended;
}

static ncclResult_t launch_collective(trib_device *device, const trib_device_job *job)
{
    const cuda_nccl *nccl = &device->nccl;
    cudaStream_t stream = device->streams[CUDA_COLLECTIVE];
    trib_assert(job->kind >= TRIB_DEVICE_REDUCE_SCATTER && job->kind <= TRIB_DEVICE_BROADCAST);
    trib_assert(atomic_load(&device->comm->inside) == 1);
    if (job->kind == TRIB_DEVICE_ALL_REDUCE) {
        return nccl->all_reduce(job->source, job->target, job->bytes / element_size(job->dtype), type_of(job->dtype),
                                op_of(job->dtype, job->reduce), device->comm->nccl, stream);
    }
    if (job->kind == TRIB_DEVICE_BROADCAST) {
        return nccl->broadcast(job->source, job->target, job->bytes, ncclUint8, (int)job->root, device->comm->nccl,
                               stream);
    }
    if (job->bytes != job->shard * (size_t)device->params.size) {
        return launch_uneven(device, job);
    }
    if (job->kind == TRIB_DEVICE_REDUCE_SCATTER) {
        return nccl->reduce_scatter(job->source, job->target, job->shard / element_size(job->dtype),
                                    type_of(job->dtype), op_of(job->dtype, job->reduce), device->comm->nccl, stream);
    }
    return nccl->all_gather((const unsigned char *)job->target + (size_t)device->params.rank * job->shard, job->target,
                            job->shard, ncclUint8, device->comm->nccl, stream);
}

/* Gives the communicator up, which ends its kernels and the work behind them; comm_text says why. */
static void end_group(trib_device *device)
{
    device->comm_state = CUDA_COMM_FAILED;
    cuda_comm_abort(device);
}

static void fail_communicator(trib_device *device, ncclResult_t result)
{
    describe_error(device, result, device->comm_text, sizeof device->comm_text);
    end_group(device);
}

void cuda_nccl_give_up(trib_device *device, const trib_device_job *job, const char *text)
{
    if (device->params.size > 1 && job->kind >= TRIB_DEVICE_REDUCE_SCATTER) {
        snprintf(device->comm_text, sizeof device->comm_text, "%s", text);
        end_group(device);
    }
}

/* A collective in a group of one is a copy at most. */
static cudaError_t copy_in_group_of_one(const trib_device *device, const trib_device_job *job)
{
    if (job->kind < TRIB_DEVICE_ALL_REDUCE || job->source == job->target || job->bytes == 0) {
        return cudaSuccess;
    }
    return cudaMemcpyAsync(job->target, job->source, job->bytes, cudaMemcpyDeviceToDevice,
                           device->streams[CUDA_COLLECTIVE]);
}

/* Puts the slot's job on its stream. False: slot->code or slot->result says why not. */
static bool launch_slot(trib_device *device, cuda_slot *slot)
{
    const trib_device_job *job = slot->job;
    slot->result = ncclSuccess;
    slot->code = cudaSuccess;
    if (device->params.size == 1) {
        slot->code = copy_in_group_of_one(device, job);
    } else if (job->bytes > 0) {
        slot->result = launch_collective(device, job);
    }
    return slot->code == cudaSuccess && slot->result == ncclSuccess;
}

/* Ends a collective that could not be launched. */
static void end_failed_slot(trib_device *device, cuda_slot *slot)
{
    const bool stopped = atomic_load(&device->stop_asked);
    if (slot->result != ncclSuccess) {
        fail_communicator(device, slot->result);
    } else {
        cuda_nccl_give_up(device, slot->job, cudaGetErrorString(slot->code));
    }
    cuda_slot_end(device, slot, stopped ? TRIB_CLOSED : TRIB_SYSTEM,
                  stopped                       ? "the device was stopped"
                  : slot->result != ncclSuccess ? device->comm_text
                                                : cudaGetErrorString(slot->code));
}

/* False: no collective can be launched any more. */
static bool launch_first_ready(trib_device *device)
{
    const bool enters = device->params.size > 1;
    if (!cuda_exit_hold()) {
        return false; /* the process ends */
    }
    if (enters && !cuda_comm_enter(device)) {
        cuda_exit_release();
        return false; /* a stop will be handled in the next turn */
    }
    cuda_slot *slot = cuda_queue_pop(&device->ready);
    const bool launched = launch_slot(device, slot);
    if (enters) {
        cuda_comm_exit(device);
    }
    cuda_exit_release();
    if (launched) {
        cuda_slot_issued(device, slot, CUDA_COLLECTIVE);
    } else {
        end_failed_slot(device, slot);
    }
    return true;
}

/* Fails a collective that must not be launched. The other ranks launch theirs and would sum wrong bytes, so the group
 * ends. */
static void refuse_first_ready(trib_device *device, trib_status status, const char *why)
{
    cuda_slot *slot = cuda_queue_pop(&device->ready);
    cuda_nccl_give_up(device, slot->job, why);
    cuda_slot_end(device, slot, status, why);
}

/* False: no collective can be launched now. */
static bool launch_next_ready(trib_device *device)
{
    const cuda_slot *slot = device->ready.head;
    if (slot == NULL || device->collectives >= CUDA_LAUNCHED_MAX) {
        return false;
    }
    const char *why = "";
    const trib_status order = cuda_stream_order_after(device, slot->job, CUDA_COLLECTIVE, &why);
    if (order != TRIB_OK && order != TRIB_BUSY) {
        refuse_first_ready(device, order, why);
        return true;
    }
    return order == TRIB_OK && launch_first_ready(device);
}

/* Looks for asynchronous errors of running collectives. */
static void check_errors(trib_device *device)
{
    if (device->issued[CUDA_COLLECTIVE].head == NULL || cuda_now_ns() - device->checked_ns < ERRORS_EVERY_NS) {
        return;
    }
    if (!cuda_exit_hold()) {
        return; /* the process ends */
    }
    if (!cuda_comm_enter(device)) {
        cuda_exit_release();
        return; /* the communicator may be freed at any time */
    }
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = device->nccl.comm_error(device->comm->nccl, &state);
    cuda_comm_exit(device);
    cuda_exit_release();
    device->checked_ns = cuda_now_ns();
    result = result != ncclSuccess ? result : state;
    if (result != ncclSuccess && result != ncclInProgress) {
        fail_communicator(device, result);
    }
}

static void progress_join(trib_device *device)
{
    ncclResult_t result = ncclSuccess;
    if (!cuda_comm_joined(device, &result)) {
        return;
    }
    trib_device_job *job = device->join;
    device->join = NULL;
    if (result == ncclSuccess) {
        device->comm_state = CUDA_COMM_READY;
        cuda_job_give_back(device, job, TRIB_OK, "%s", "");
    } else {
        fail_communicator(device, result);
        cuda_job_give_back(device, job, TRIB_SYSTEM, "%s", device->comm_text);
    }
}

void cuda_nccl_progress(trib_device *device)
{
    if (device->params.size == 1) {
        while (launch_next_ready(device)) {}
        return;
    }
    if (device->comm_state == CUDA_COMM_JOINING) {
        progress_join(device);
    }
    while (device->comm_state == CUDA_COMM_READY && launch_next_ready(device)) {}
    if (device->comm_state == CUDA_COMM_READY) {
        check_errors(device);
    }
    while (device->comm_state == CUDA_COMM_FAILED && device->ready.head != NULL) {
        cuda_slot_end(device, cuda_queue_pop(&device->ready), TRIB_SYSTEM, device->comm_text);
    }
}

bool cuda_nccl_is_busy(const trib_device *device)
{
    return device->comm_state == CUDA_COMM_JOINING || device->ready.head != NULL;
}
