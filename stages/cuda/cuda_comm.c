/*
 * cuda_comm.c - the life of NCCL's communicator: how it is made, given up and taken leave of.
 *
 * A call of NCCL's on a blocking communicator takes some microseconds; on a non-blocking one NCCL starts a thread for each
 * call, which takes tens to hundreds. So it is a blocking one, and what may wait for other ranks is kept away from
 * the device's thread: joining, with the first collectives of each kind and size, which make connections (and would wait
 * for streams of the caller's that wait for us), and the end have threads of their own. Those share the communicator with
 * the device; who lets go last frees it.
 *
 * Nobody frees the communicator while a thread is inside NCCL, the device's or a caller's that launches, unless it has been
 * there for RESCUE_NS after stop, or after a failure: then a rank that is gone is waited for, and giving up is what lets the
 * thread out. The same goes for a copy that the driver does not come back from before a collective has ended. The thread that
 * rescues is there from the beginning, because it may be needed where there is no memory for another.
 *
 * Who takes leave is not let out in that way: both calls would free the communicator. It gives up by itself if it has become
 * late before what would wait for other ranks. Whoever is inside NCCL holds the end of the process up (cuda_exit.c).
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RESCUE_NS (2000 * INT64_C(1000000))
#define SET_UP_NS (1000 * INT64_C(1000000)) /* who joins waits for others by then */
#define REST_NS (200 * INT64_C(1000))
#define WARM_BYTES_MAX ((size_t)64 << 20)
#define WARM_BYTES_MIN 512u
#define WARM_STEP 16u

void cuda_comm_let_go(cuda_comm *comm)
{
    if (atomic_fetch_sub(&comm->holders, 1) == 1) {
        sem_destroy(&comm->stop);
        pthread_mutex_destroy(&comm->kept_mutex);
        free(comm);
    }
}

/* A thread that nobody waits for, and that holds on to the communicator until it lets go. */
static bool start(cuda_comm *comm, void *(*run)(void *comm))
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

/* One that is inside NCCL from its beginning to its end, which is to come out. */
static bool start_inside(cuda_comm *comm, void *(*run)(void *comm), bool (*hold)(void))
{
    if (!hold()) {
        return false;
    }
    const bool started = start(comm, run);
    if (!started) {
        cuda_exit_release();
    }
    return started;
}

static void come_out(cuda_comm *comm)
{
    cuda_exit_release();
    cuda_comm_let_go(comm);
}

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = REST_NS};
    nanosleep(&pause, NULL);
}

/* Whoever is inside comes out when its kernels have ended, and drops what is kept then (cuda_comm_exit). */
static void give_up(cuda_comm *comm)
{
    if (!cuda_thread_use(comm->index)) {
        return;
    }
    if (atomic_load(&comm->inside) == 0) {
        cuda_keep_drop_all(comm);
    }
    (void)comm->api.comm_abort(comm->nccl);
}

/* ---- Rescue ---- */

/* Waits for the stop, or for the device to let go. */
static void *rescue_main(void *argument)
{
    cuda_comm *comm = argument;
    while (sem_wait(&comm->stop) != 0) {} /* a signal */
    const int64_t until_ns = cuda_now_ns() + RESCUE_NS;
    bool is_late = false;
    while (atomic_load(&comm->inside) > 0 && !is_late) {
        rest();
        is_late = cuda_now_ns() >= until_ns;
    }
    if (is_late) {
        atomic_store(&comm->shut, true);
    }
    if (is_late && atomic_load(&comm->inside) > 0 && cuda_exit_hold_to_end()) {
        if (!atomic_exchange(&comm->given_up, true)) {
            give_up(comm);
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

static ncclResult_t await(cuda_comm *comm, cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess, state = ncclSuccess;
    cudaError_t code = cudaStreamQuery(stream);
    while (code == cudaErrorNotReady && result == ncclSuccess && state == ncclSuccess && !is_abandoned(comm)) {
        rest();
        result = comm->api.comm_error(comm->nccl, &state);
        code = cudaStreamQuery(stream);
    }
    return result != ncclSuccess                         ? result
           : state != ncclSuccess || code == cudaSuccess ? state
                                                         : ncclUnhandledCudaError;
}

/* Everything that NCCL makes when it is first needed: of each collective, in the sizes for which it may choose another
 * way. All ranks do the same. */
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
        result = await(comm, stream);
    }
    if (result == ncclSuccess) { /* else its kernels may still be at it */
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
    come_out(comm);
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
    pthread_mutex_init(&comm->kept_mutex, NULL);
    const bool rescued = start(comm, rescue_main);
    if (!rescued || !start_inside(comm, join_main, cuda_exit_hold)) {
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

/* Who gives it up may wait until what is kept is dropped. */
static void leave(cuda_comm *comm)
{
    if (atomic_fetch_sub(&comm->inside, 1) == 1 && atomic_load(&comm->shut)) {
        cuda_keep_drop_all(comm);
    }
}

bool cuda_comm_enter(trib_device *device)
{
    cuda_comm *comm = device->comm;
    atomic_fetch_add(&comm->inside, 1);
    if (atomic_load(&device->stop_asked) || atomic_load(&comm->shut)) {
        leave(comm);
        return false;
    }
    return true;
}

void cuda_comm_exit(trib_device *device)
{
    leave(device->comm);
}

/* ---- Giving up ---- */

static void *abort_main(void *argument)
{
    cuda_comm *comm = argument;
    give_up(comm);
    atomic_store(&comm->over, true);
    come_out(comm);
    return NULL;
}

/* Unless somebody has. False: it could not. */
static bool begin_abort(cuda_comm *comm)
{
    if (atomic_exchange(&comm->given_up, true)) {
        return true;
    }
    int phase = CUDA_COMM_JOINING;
    if (atomic_compare_exchange_strong(&comm->phase, &phase, CUDA_COMM_ABANDONED)) {
        return true; /* who joins sees to it */
    }
    if (comm->nccl != NULL && start_inside(comm, abort_main, cuda_exit_hold_to_end)) {
        return true;
    }
    atomic_store(&comm->over, true);
    return comm->nccl == NULL; /* the join has failed */
}

void cuda_comm_abort(trib_device *device)
{
    cuda_comm *comm = device->comm;
    device->abort_due = false;
    if (comm == NULL || atomic_load(&comm->given_up)) {
        return;
    }
    if (!atomic_exchange(&comm->shut, true)) {
        (void)sem_post(&comm->stop); /* who is inside has its time now, also where nothing has been stopped yet */
    }
    if (atomic_load(&comm->inside) > 0) {
        device->abort_due = true; /* the thread comes here again */
        return;
    }
    device->hung = !begin_abort(comm) || device->hung; /* what it does ends with the process */
}

void cuda_comm_give_up(cuda_comm *comm)
{
    atomic_store(&comm->shut, true);
    (void)begin_abort(comm);
}

void cuda_comm_stop(trib_device *device)
{
    if (device->comm != NULL) {
        (void)sem_post(&device->comm->stop);
    }
}

/* ---- Leaving ---- */

static void *leave_main(void *argument)
{
    cuda_comm *comm = argument;
    if (cuda_thread_use(comm->index)) {
        cuda_keep_drop_all(comm);
        const bool in_order = comm->api.comm_finalize(comm->nccl) == ncclSuccess;
        if (in_order && !atomic_load(&comm->late)) {
            (void)comm->api.comm_destroy(comm->nccl);
        } else {
            (void)comm->api.comm_abort(comm->nccl); /* waits for no other rank */
        }
    }
    atomic_store(&comm->over, true);
    come_out(comm);
    return NULL;
}

static bool await_end(const cuda_comm *comm, int64_t timeout_ns)
{
    const int64_t until_ns = cuda_now_ns() + timeout_ns;
    while (!atomic_load(&comm->over) && cuda_now_ns() < until_ns) {
        rest();
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
    } else if (!atomic_exchange(&comm->given_up, true) && !start_inside(comm, leave_main, cuda_exit_hold_to_end)) {
        device->hung = true;
        atomic_store(&comm->over, true);
    }
    if (!await_end(comm, TRIB_CUDA_STOP_NS)) {
        atomic_store(&comm->late, true);
        device->hung = !await_end(comm, RESCUE_NS) || device->hung;
    }
    pthread_mutex_lock(&device->mutex);
    device->comm = NULL;
    pthread_mutex_unlock(&device->mutex);
    cuda_exit_delist(comm);
    (void)sem_post(&comm->stop); /* nobody is inside: the rescuer leaves */
    cuda_comm_let_go(comm);
}
