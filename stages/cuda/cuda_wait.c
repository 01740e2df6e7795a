/*
 * cuda_wait.c - streams of callers that wait for operations whose end has not been launched yet.
 *
 * CUDA spreads streams over a few hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), and each queue goes on in order. A stream that waits
 * for a word holds its queue up, with all that the driver puts there afterwards, of whatever stream and priority. What opens a gate is
 * launched later, by other streams. With as many waiting streams as queues it could only come behind one of them, and neither would ever
 * go on; the driver cannot see that, as it knows of no dependency. (Seen on an H200, with 1, 2 and 8 queues: as many streams that waited
 * held up every kernel, copies of 4 KiB to the device, and words to be written there; half as many held up nothing.)
 *
 * So only so many streams wait in that way at once that the device has most of the queues for itself, though each of them may have
 * another one of the program's waiting behind it. Who would be one more is refused, until what it waits for has been launched: a wait
 * for that holds nothing up. With few queues that is everybody. It is not enough where a process has more streams than queues: what the
 * device has to do may then lie behind one of those that wait (docs/decisions/0006-queues.md, seen since).
 *
 * Who was refused because of another engine's streams hears of launches of its own engine's only; the one that it waits for is one of
 * them.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

#define QUEUES_USUAL 8u  /* what CUDA's documentation says */
#define QUEUES_SHARED 2u /* what that of MPS says */
#define QUEUES_MAX 32u
#define GPUS_MAX 64u /* further ones share a count with others */

/* Streams that hold a place, by GPU. A process has one context on each, so its engines share the queues there: this is the process's.
 * (A forked child cannot use CUDA if there are any.) */
static atomic_uint waiting_on[GPUS_MAX];

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack; a driver that does not know it says so. */
#define MPS_ENABLED ((CUdevice_attribute)133)

/* Clients of MPS share the queues of its server, which gives each what it can, whatever the environment says. */
static bool is_shared(const trib_device *device)
{
    CUresult (*get_device)(CUdevice *, int) = NULL;
    CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice) = NULL;
    CUdevice driver_device = 0;
    int shared = 0;
    const bool known = cuda_find_driver("cuDeviceGet", &get_device) == cudaSuccess &&
                       cuda_find_driver("cuDeviceGetAttribute", &get_attribute) == cudaSuccess &&
                       get_device(&driver_device, device->index) == CUDA_SUCCESS &&
                       get_attribute(&shared, MPS_ENABLED, driver_device) == CUDA_SUCCESS;
    return known && shared;
}

/* As the driver will have read it when the context was made. */
static uint32_t queues_in(const char *variable)
{
    const char *text = getenv(variable);
    const long wanted = text == NULL ? 0 : strtol(text, NULL, 10);
    return wanted < 1 ? QUEUES_USUAL : wanted < QUEUES_MAX ? (uint32_t)wanted : QUEUES_MAX;
}

/* Those for copies have a number of their own, if it is set. */
static uint32_t queues_of(const trib_device *device)
{
    const uint32_t all = queues_in("CUDA_DEVICE_MAX_CONNECTIONS"),
                   copies = queues_in("CUDA_DEVICE_MAX_COPY_CONNECTIONS");
    const uint32_t least = getenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS") != NULL && copies < all ? copies : all;
    return is_shared(device) && least > QUEUES_SHARED ? QUEUES_SHARED : least;
}

/* One of the program's may wait behind each, and our own take two queues at least. */
void cuda_wait_open(trib_device *device)
{
    _Static_assert(QUEUES_MAX / 2 - 1 <= CUDA_WAITING_MAX, "there is room for all");
    device->queues = queues_of(device);
    device->waiting_most = device->queues < 4 ? 0 : device->queues / 2 - 1;
    if (cuda_find_driver("cuStreamGetId", &device->get_id) != cudaSuccess) {
        device->get_id = NULL;
    }
}

/* Handles, and names of threads, come again for another stream while one that is gone still waits; ids do not. And the default stream
 * has two handles. Without ids: each thread has a stream of its own under one of the handles. */
static uint64_t who_is(const trib_device *device, cudaStream_t stream)
{
    unsigned long long id = 0;
    if (device->get_id != NULL && device->get_id(stream, &id) == CUDA_SUCCESS) {
        return id;
    }
    return stream == cudaStreamPerThread ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
}

static atomic_uint *count_of(const trib_device *device)
{
    return &waiting_on[(unsigned)device->index % GPUS_MAX];
}

/* May one more stream wait there? */
static bool count_one(const trib_device *device)
{
    atomic_uint *count = count_of(device);
    unsigned seen = atomic_load(count);
    do {
        if (seen >= device->waiting_most) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(count, &seen, seen + 1));
    return true;
}

/* With the mutex held. The stream's place, a new one, or NULL. */
static cuda_waiting *place_of(trib_device *device, uint64_t who)
{
    cuda_waiting *none = NULL;
    for (unsigned i = 0; i < device->waiting_most; i++) {
        cuda_waiting *one = &device->waiting[i];
        if (one->gates > 0 && one->who == who) {
            return one;
        }
        none = none == NULL && one->gates == 0 ? one : none;
    }
    return none != NULL && count_one(device) ? none : NULL;
}

/* May the stream wait for the word? */
static bool may_wait(trib_device *device, cudaStream_t stream, const trib_device_gate *gate)
{
    cuda_gate_end *end = gate->end;
    const uint64_t who = who_is(device, stream);
    pthread_mutex_lock(&device->mutex);
    const bool is_launched = end->launched == gate->value;
    cuda_waiting *one = is_launched ? NULL : place_of(device, who);
    if (one != NULL) {
        const uint32_t bit = 1u << (one - device->waiting);
        one->who = who;
        one->gates += (end->waiting & bit) == 0;
        end->waiting |= bit;
    }
    const bool may = is_launched || one != NULL;
    device->refused = device->refused || !may;
    pthread_mutex_unlock(&device->mutex);
    return may;
}

static bool is_open(const trib_device_gate *gate)
{
    return (int32_t)(__atomic_load_n(gate->word, __ATOMIC_ACQUIRE) - gate->value) >= 0;
}

static trib_status wait_for_word(trib_device *device, cudaStream_t stream, const trib_device_gate *gate, int *code,
                                 trib_error *error)
{
    if (is_open(gate)) {
        return TRIB_OK;
    }
    if (!may_wait(device, stream, gate)) {
        cuda_set_error(
            error, TRIB_BUSY,
            "CUDA spreads streams over %u queues (CUDA_DEVICE_MAX_CONNECTIONS), in which a stream can hold up what it "
            "waits for; %u at a time may wait for what has not been launched",
            device->queues, device->waiting_most);
        return TRIB_BUSY;
    }
    *code = (int)device->wait_value(stream, (CUdeviceptr)(uintptr_t)gate->word, gate->value, CU_STREAM_WAIT_VALUE_GEQ);
    return TRIB_OK;
}

trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_gate *gate, trib_error *error)
{
    const cuda_visit visit = cuda_visit_begin(device);
    trib_status status = cuda_check_capture(stream, error);
    int code = 0;
    if (status == TRIB_OK && gate->by_end) {
        /* A tenth of what waiting for a word takes the GPU. */
        code = (int)cudaStreamWaitEvent(stream, ((const cuda_gate_end *)gate->end)->slot.event, 0);
        (void)cudaGetLastError();
    } else if (status == TRIB_OK) {
        status = wait_for_word(device, stream, gate, &code, error);
    }
    if (code != 0) {
        status = TRIB_SYSTEM;
        cuda_set_error(error, status, "the stream could not be made to wait (CUDA error %d)", code);
    }
    cuda_visit_end(visit);
    return status;
}

void cuda_wait_end(trib_device *device, const trib_device_gate *gate)
{
    cuda_gate_end *end = gate->end;
    pthread_mutex_lock(&device->mutex);
    end->launched = gate->value;
    for (unsigned i = 0; i < device->waiting_most; i++) {
        cuda_waiting *one = &device->waiting[i];
        if ((end->waiting & 1u << i) != 0 && --one->gates == 0) {
            atomic_fetch_sub(count_of(device), 1);
        }
    }
    end->waiting = 0;
    const bool tells = device->refused;
    device->refused = false;
    pthread_mutex_unlock(&device->mutex);
    if (tells) {
        device->params.launched(device->params.engine); /* it has a mutex of its own, under which ours is taken */
    }
}
