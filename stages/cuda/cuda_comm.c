/*
 * cuda_comm.c - the life of NCCL's communicator: joining, aborting and orderly end.
 *
 * The communicator is a blocking one, because a call on it takes microseconds; on a non-blocking one NCCL starts a
 * thread per call, which takes tens to hundreds. Calls that may wait for other ranks are kept away from the device
 * thread. Joining has a thread of its own, which also runs the first collectives of each kind and size: these make
 * connections, and would wait for a caller's stream that waits for the engine. So has the end. The threads share the
 * communicator by reference counts.
 *
 * The communicator is not aborted while the device thread is inside NCCL, unless that has been there for RESCUE_NS
 * after stop or a failure. Then it waits for a rank that is gone, or for a copy behind a collective, and only an
 * abort lets it out. The rescue thread exists from the start, as there may be no memory for a thread when it is
 * needed.
 *
 * The orderly end is not rescued: both calls would free the communicator. It turns into an abort by itself when it is
 * late. Threads inside NCCL hold up the end of the process (cuda_exit.c).
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RESCUE_NS (2000 * INT64_C(1000000))
#define SET_UP_NS (1000 * INT64_C(1000000)) /* by then NCCL has set itself up, and joining waits for other ranks */
#define REST_NS (200 * INT64_C(1000))
#define WARM_BYTES_MAX ((size_t)64 << 20)
#define WARM_BYTES_MIN 512u
#define WARM_STEP 16u

void cuda_comm_let_go(cuda_comm *comm)
{
    const int before = atomic_fetch_sub(&comm->holders, 1);
    trib_assert(before > 0);
    if (before == 1) {
        sem_destroy(&comm->stop);
        free(comm);
    }
}

/* Starts a detached thread with a reference to the communicator. */
static bool start_holder(cuda_comm *comm, void *(*run)(void *comm))
{
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    atomic_fetch_add(&comm->holders, 1);
    const bool started = trib_thread_start(&thread, &attributes, run, comm) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        atomic_fetch_sub(&comm->holders, 1);
    }
    return started;
}

/* Starts such a thread that is inside NCCL for its whole life, and ends with come_out_of_nccl. */
static bool start_inside_nccl(cuda_comm *comm, void *(*run)(void *comm), bool (*hold)(void))
{
    if (!hold()) {
        return false;
    }
    const bool started = start_holder(comm, run);
    if (!started) {
        cuda_exit_release();
    }
    return started;
}

static void come_out_of_nccl(cuda_comm *comm)
{
    cuda_exit_release();
    cuda_comm_let_go(comm);
}

static void pause_briefly(void)
{
    const struct timespec pause = {.tv_nsec = REST_NS};
    nanosleep(&pause, NULL);
}

/* A thread that is inside comes out when the kernels have ended. */
static void abort_communicator(cuda_comm *comm)
{
    if (cuda_thread_use(comm->index)) {
        (void)comm->api.comm_abort(comm->nccl);
    }
}

/* ---- Rescue ---- */

/* Waits for a stop, or until the device thread is done with the communicator. */
static void *rescue_main(void *argument)
{
    cuda_comm *comm = argument;
    while (sem_wait(&comm->stop) != 0) {} /* interrupted */
    const int64_t until_ns = cuda_now_ns() + RESCUE_NS;
    bool is_late = false;
    while (atomic_load(&comm->inside) > 0 && !is_late) {
        pause_briefly();
        is_late = cuda_now_ns() >= until_ns;
    }
    if (is_late) {
        atomic_store(&comm->shut, true);
    }
    if (is_late && atomic_load(&comm->inside) > 0 && cuda_exit_hold_to_end()) {
        if (!atomic_exchange(&comm->given_up, true)) {
            abort_communicator(comm);
            atomic_store(&comm->over, true);
        }
        cuda_exit_release();
    }
    cuda_comm_let_go(comm);
    return NULL;
}

/* ---- Joining ---- */

static bool is_abandoned(cuda_comm *comm)
{
    return atomic_load(&comm->phase) == CUDA_COMM_ABANDONED;
}

static ncclResult_t warm_one_size(const cuda_comm *comm, unsigned char *buffer, size_t bytes, cudaStream_t stream)
{
    const cuda_nccl *nccl = &comm->api;
    const size_t shard = bytes / (size_t)comm->size / sizeof(float) * sizeof(float);
    unsigned char *mine = buffer + shard * (size_t)comm->rank;
    const size_t floats = bytes / sizeof(float);
    ncclResult_t result = nccl->all_reduce(buffer, buffer, floats, ncclFloat32, ncclSum, comm->nccl, stream);
    if (result == ncclSuccess && shard > 0) {
        result = nccl->reduce_scatter(buffer, mine, shard / sizeof(float), ncclFloat32, ncclSum, comm->nccl, stream);
    }
    if (result == ncclSuccess && shard > 0) {
        result = nccl->all_gather(mine, buffer, shard, ncclUint8, comm->nccl, stream);
    }
    if (result == ncclSuccess) {
        result = nccl->reduce(buffer, buffer, floats, ncclFloat32, ncclSum, 0, comm->nccl, stream);
    }
    return result != ncclSuccess ? result : nccl->broadcast(buffer, buffer, bytes, ncclUint8, 0, comm->nccl, stream);
}

static ncclResult_t await_warm_up(cuda_comm *comm, cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess, state = ncclSuccess;
    cudaError_t code = cudaStreamQuery(stream);
    while (code == cudaErrorNotReady && result == ncclSuccess && state == ncclSuccess && !is_abandoned(comm)) {
        pause_briefly();
        result = comm->api.comm_error(comm->nccl, &state);
        code = cudaStreamQuery(stream);
    }
    return result != ncclSuccess                         ? result
           : state != ncclSuccess || code == cudaSuccess ? state
                                                         : ncclUnhandledCudaError;
}

/* Makes NCCL set up all that it sets up on first use: each collective, in sizes for which it may choose other
 * algorithms. All ranks do the same. */
static ncclResult_t warm_up(cuda_comm *comm)
{
    void *buffer = NULL;
    cudaStream_t stream = NULL;
    ncclResult_t result = ncclUnhandledCudaError;
    if (cudaMalloc(&buffer, WARM_BYTES_MAX) == cudaSuccess &&
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
        cudaMemsetAsync(buffer, 0, WARM_BYTES_MAX, stream) == cudaSuccess) {
        result = ncclSuccess;
    }
    for (size_t bytes = WARM_BYTES_MIN; bytes <= WARM_BYTES_MAX && result == ncclSuccess; bytes *= WARM_STEP) {
        result = warm_one_size(comm, buffer, bytes, stream);
    }
    if (result == ncclSuccess) {
        result = await_warm_up(comm, stream);
    }
    if (result == ncclSuccess) { /* else kernels may still use these */
        (void)cudaStreamDestroy(stream);
        (void)cudaFree(buffer);
    }
    return result;
}

static void *join_main(void *argument)
{
    cuda_comm *comm = argument;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t made = NULL;
    ncclResult_t result = cuda_thread_use(comm->index)
                              ? comm->api.comm_init(&made, comm->size, comm->id, comm->rank, &config)
                              : ncclUnhandledCudaError;
    if (result == ncclSuccess) {
        comm->nccl = made;
        result = warm_up(comm);
    }
    if (result == ncclSuccess) {
        cuda_exit_watch(CUDA_EXIT_JOINED);
    }
    comm->result = result;
    int phase = CUDA_COMM_JOINING;
    if (!atomic_compare_exchange_strong(&comm->phase, &phase, CUDA_COMM_READY)) {
        if (comm->nccl != NULL) {
            (void)comm->api.comm_abort(comm->nccl);
        }
        atomic_store(&comm->over, true);
    }
    come_out_of_nccl(comm);
    return NULL;
}

bool cuda_comm_join(trib_device *device, const void *id)
{
    cuda_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return false;
    }
    comm->api = device->nccl;
    comm->index = device->index;
    comm->rank = device->params.rank;
    comm->size = device->params.size;
    comm->began_ns = cuda_now_ns();
    memcpy(&comm->id, id, sizeof comm->id);
    atomic_init(&comm->holders, 1);
    atomic_init(&comm->phase, CUDA_COMM_JOINING);
    (void)sem_init(&comm->stop, 0, 0);
    const bool rescued = start_holder(comm, rescue_main);
    if (!rescued || !start_inside_nccl(comm, join_main, cuda_exit_hold)) {
        (void)sem_post(&comm->stop);
        cuda_comm_let_go(comm);
        return false;
    }
    cuda_exit_enlist(comm);
    pthread_mutex_lock(&device->mutex);
    device->comm = comm;
    pthread_mutex_unlock(&device->mutex);
    return true;
}

bool cuda_comm_joined(const trib_device *device, ncclResult_t *result)
{
    if (atomic_load(&device->comm->phase) != CUDA_COMM_READY) {
        if (cuda_now_ns() - device->comm->began_ns > SET_UP_NS) {
            cuda_exit_watch(CUDA_EXIT_JOINING);
        }
        return false;
    }
    *result = device->comm->result;
    return true;
}

/* ---- Calls ---- */

bool cuda_comm_enter(trib_device *device)
{
    cuda_comm *comm = device->comm;
    const unsigned before = atomic_fetch_add(&comm->inside, 1);
    trib_assert(before == 0); /* only the device thread enters */
    if (atomic_load(&device->stop_asked) || atomic_load(&comm->shut)) {
        atomic_fetch_sub(&comm->inside, 1);
        return false;
    }
    return true;
}

void cuda_comm_exit(trib_device *device)
{
    const unsigned before = atomic_fetch_sub(&device->comm->inside, 1);
    trib_assert(before == 1);
}

/* ---- Abort ---- */

static void *abort_main(void *argument)
{
    cuda_comm *comm = argument;
    abort_communicator(comm);
    atomic_store(&comm->over, true);
    come_out_of_nccl(comm);
    return NULL;
}

/* Starts an abort, unless one has been started. False: it could not be. */
static bool begin_abort_once(cuda_comm *comm)
{
    if (atomic_exchange(&comm->given_up, true)) {
        return true;
    }
    int phase = CUDA_COMM_JOINING;
    if (atomic_compare_exchange_strong(&comm->phase, &phase, CUDA_COMM_ABANDONED)) {
        return true; /* the joining thread aborts it */
    }
    if (comm->nccl != NULL && start_inside_nccl(comm, abort_main, cuda_exit_hold_to_end)) {
        return true;
    }
    atomic_store(&comm->over, true);
    return comm->nccl == NULL; /* joining has failed, and there is nothing to abort */
}

void cuda_comm_abort(trib_device *device)
{
    cuda_comm *comm = device->comm;
    if (comm == NULL || atomic_load(&comm->given_up)) {
        return;
    }
    trib_assert(atomic_load(&comm->inside) == 0);
    if (!atomic_exchange(&comm->shut, true)) {
        (void)sem_post(&comm->stop); /* starts the rescue thread's time, also without a stop */
    }
    device->hung = !begin_abort_once(comm) || device->hung; /* its kernels end with the process */
}

void cuda_comm_give_up(cuda_comm *comm)
{
    atomic_store(&comm->shut, true);
    (void)begin_abort_once(comm);
}

void cuda_comm_stop(trib_device *device)
{
    if (device->comm != NULL) {
        (void)sem_post(&device->comm->stop);
    }
}

/* ---- Orderly end ---- */

static void *leave_main(void *argument)
{
    cuda_comm *comm = argument;
    if (cuda_thread_use(comm->index)) {
        const bool in_order = comm->api.comm_finalize(comm->nccl) == ncclSuccess;
        if (in_order && !atomic_load(&comm->late)) {
            (void)comm->api.comm_destroy(comm->nccl);
        } else {
            (void)comm->api.comm_abort(comm->nccl); /* does not wait for other ranks */
        }
    }
    atomic_store(&comm->over, true);
    come_out_of_nccl(comm);
    return NULL;
}

static bool await_communicator_end(const cuda_comm *comm, int64_t timeout_ns)
{
    const int64_t until_ns = cuda_now_ns() + timeout_ns;
    while (!atomic_load(&comm->over) && cuda_now_ns() < until_ns) {
        pause_briefly();
    }
    return atomic_load(&comm->over);
}

void cuda_comm_end(trib_device *device)
{
    cuda_comm *comm = device->comm;
    if (comm == NULL) {
        return;
    }
    if (device->comm_state != CUDA_COMM_READY || device->hung) {
        cuda_comm_abort(device);
    } else if (!atomic_exchange(&comm->given_up, true) && !start_inside_nccl(comm, leave_main, cuda_exit_hold_to_end)) {
        device->hung = true;
        atomic_store(&comm->over, true);
    }
    if (!await_communicator_end(comm, TRIB_CUDA_STOP_NS)) {
        atomic_store(&comm->late, true);
        device->hung = !await_communicator_end(comm, RESCUE_NS) || device->hung;
    }
    pthread_mutex_lock(&device->mutex);
    device->comm = NULL;
    pthread_mutex_unlock(&device->mutex);
    cuda_exit_delist(comm);
    (void)sem_post(&comm->stop); /* no thread is inside: the rescue thread ends */
    cuda_comm_let_go(comm);
}
