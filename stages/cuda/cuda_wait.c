/*
 * cuda_wait.c - streams of callers that wait for operations whose end has not been launched yet.
 *
 * A stream that waits for a word may keep from being launched what writes that word: the driver knows of no such dependency. So streams
 * wait in that way only where neither of two things can happen; else they are refused until what they wait for has been launched, as a
 * wait for that holds nothing up.
 *
 * 1. Who uses a kernel for the first time has it loaded, unless all are when the program starts (CUDA_MODULE_LOADING=EAGER). That waits
 * for all that the GPU has been given, under the context's lock, without which our thread launches nothing. (A job of PyTorch hung so in
 * its first step.)
 *
 * 2. CUDA gives streams hardware queues, and each queue goes on in order: a stream that waits holds its queue up, with all that the
 * driver puts there afterwards, of whatever stream and priority. While there are as many queues as streams each has one for itself,
 * however many wait; with one stream more, one that waits holds others up before long. So the program's streams that the engines have
 * seen, and the engines' own, must be fewer than the queues; and since one that waits may hold up those that come anew, nobody waits
 * before those that come have all come before, for some time. (Seen on an H200, with 2 to 32: docs/decisions/0006-queues.md.) The
 * queues are those of the process's context on a GPU, which its engines share: what has been seen is the process's.
 *
 * Who was refused hears of launches of its own engine's only; the one that it waits for is one of them.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

/* If the environment says nothing else (seen; CUDA's documentation names the first). */
#define QUEUES_USUAL 8u
#define QUEUES_USUAL_COPIES 4u
#define QUEUES_SHARED 2u /* what that of MPS says */
#define QUEUES_MAX 32u
#define GPUS_MAX 64u /* further ones share with others */

/* One of the program's that is never handed in may be busy, too. */
#define UNSEEN 1u

/* How often each of the streams has to come, on the average, before those that come are taken for all there are. */
#define TURNS 4u

#define STALE_NS (10 * INT64_C(1000000000))

typedef struct cuda_seen {
    uint64_t who;
    int64_t last_ns;
} cuda_seen;

/* What a process's engines on a GPU know of streams there. (A forked child cannot use CUDA if there are any.) */
typedef struct cuda_crowd {
    pthread_mutex_t mutex;
    uint32_t engines;
    uint32_t own_copies, own_all; /* streams of theirs, as in trib_device */
    uint32_t held;                /* gates that streams wait for, and nothing opens yet */
    uint32_t since_new;           /* streams came, so often, that had come before */
    uint32_t count;
    cuda_seen seen[QUEUES_MAX]; /* the program's, as many as would matter */
} cuda_crowd;

static cuda_crowd crowds[GPUS_MAX] = {[0 ... GPUS_MAX - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static cuda_crowd *crowd_of(const trib_device *device)
{
    return &crowds[(unsigned)device->index % GPUS_MAX];
}

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack; a driver that does not know it says so. */
#define MPS_ENABLED ((CUdevice_attribute)133)

/* Clients of MPS share the queues of its server, which gives each what it can, whatever the environment says. */
static bool is_shared(const trib_device *device)
{
    CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice) = NULL;
    int shared = 0;
    const bool known = cuda_find_driver("cuDeviceGetAttribute", &get_attribute) == cudaSuccess &&
                       get_attribute(&shared, MPS_ENABLED, device->ordinal) == CUDA_SUCCESS;
    return known && shared;
}

/* Drivers that cannot be asked load all kernels at once. */
static bool loads_late(void)
{
    CUresult (*get_mode)(CUmoduleLoadingMode *) = NULL;
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    return cuda_find_driver("cuModuleGetLoadingMode", &get_mode) == cudaSuccess &&
           (get_mode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_EAGER_LOADING);
}

/* As the driver will have read it when the context was made; 0: it says nothing. */
static uint32_t queues_in(const char *variable)
{
    const char *text = getenv(variable);
    const long wanted = text == NULL ? 0 : strtol(text, NULL, 10);
    return wanted < 1 ? 0 : wanted < QUEUES_MAX ? (uint32_t)wanted : QUEUES_MAX;
}

static uint32_t least(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* Jobs of its own streams: copies each way, collectives; a machine alone has collectives only, a GPU alone copies in their place. */
static void count_own(trib_device *device)
{
    const trib_device_params *params = &device->params;
    device->own_copies = !params->alone ? 2 : params->size == 1 ? 1 : 0;
    device->own_all = params->alone ? 1 : CUDA_STREAMS;
}

void cuda_wait_open(trib_device *device)
{
    const uint32_t all = queues_in("CUDA_DEVICE_MAX_CONNECTIONS"),
                   copies = queues_in("CUDA_DEVICE_MAX_COPY_CONNECTIONS");
    const uint32_t most = is_shared(device) ? QUEUES_SHARED : QUEUES_MAX;
    device->queues = least(all > 0 ? all : QUEUES_USUAL, most);
    device->copy_queues = least(copies > 0 ? copies : all > 0 ? all : QUEUES_USUAL_COPIES, most);
    device->loads_late = loads_late();
    count_own(device);
    cuda_crowd *crowd = crowd_of(device);
    pthread_mutex_lock(&crowd->mutex);
    crowd->engines++;
    crowd->own_copies += device->own_copies;
    crowd->own_all += device->own_all;
    pthread_mutex_unlock(&crowd->mutex);
}

void cuda_wait_close(trib_device *device)
{
    cuda_crowd *crowd = crowd_of(device);
    if (device->own_all == 0) {
        return;
    }
    pthread_mutex_lock(&crowd->mutex);
    crowd->engines--;
    crowd->own_copies -= device->own_copies;
    crowd->own_all -= device->own_all;
    crowd->count = crowd->engines == 0 ? 0 : crowd->count;
    pthread_mutex_unlock(&crowd->mutex);
    device->own_copies = device->own_all = 0;
}

/* Handles, and names of threads, come again for another stream while one that is gone still waits; ids do not. And the default stream
 * has two handles. Without ids: each thread has a stream of its own under one of the handles. */
static uint64_t who_is(const trib_device *device, cudaStream_t stream)
{
    unsigned long long id = 0;
    if (device->driver.get_id != NULL && device->driver.get_id(stream, &id) == CUDA_SUCCESS) {
        return id;
    }
    return stream == cudaStreamPerThread ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
}

/* With the mutex held: as many streams of the program's have queues of their own beside the engines'. */
static uint32_t room_in(const trib_device *device, const cuda_crowd *crowd)
{
    const uint32_t copies = crowd->own_copies + UNSEEN, all = crowd->own_all + UNSEEN;
    return least(device->copy_queues > copies ? device->copy_queues - copies : 0,
                 device->queues > all ? device->queues - all : 0);
}

/* With the mutex held, while none waits for what has not been launched: those that a program does not use any more. What it uses now
 * it has perhaps just begun to use: those that are there have to come often once more. */
static void forget_stale(cuda_crowd *crowd, int64_t now_ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < crowd->count; i++) {
        if (now_ns - crowd->seen[i].last_ns < STALE_NS) {
            crowd->seen[kept++] = crowd->seen[i];
        }
    }
    crowd->since_new = kept == crowd->count ? crowd->since_new : 0;
    crowd->count = kept;
}

/* With the mutex held. */
static void note(cuda_crowd *crowd, uint64_t who)
{
    const int64_t now_ns = cuda_now_ns();
    uint32_t at = 0;
    if (crowd->held == 0) {
        forget_stale(crowd, now_ns);
    }
    while (at < crowd->count && crowd->seen[at].who != who) {
        at++;
    }
    const bool is_new = at == crowd->count;
    crowd->since_new = is_new ? 0 : crowd->since_new + (crowd->since_new < TURNS * QUEUES_MAX);
    if (at < QUEUES_MAX) { /* else there are more than enough */
        crowd->seen[at] = (cuda_seen){.who = who, .last_ns = now_ns};
        crowd->count += is_new;
    }
}

void cuda_wait_note(trib_device *device, cudaStream_t stream)
{
    if (device->loads_late) {
        return; /* none waits for what is not launched, and nobody need be counted */
    }
    const uint64_t who = who_is(device, stream);
    cuda_crowd *crowd = crowd_of(device);
    pthread_mutex_lock(&crowd->mutex);
    note(crowd, who);
    pthread_mutex_unlock(&crowd->mutex);
}

/* With the device's mutex held: the wait is counted, unless it would be refused. */
static bool has_room(const trib_device *device, cuda_gate_end *end)
{
    cuda_crowd *crowd = crowd_of(device);
    pthread_mutex_lock(&crowd->mutex);
    const bool has = crowd->count <= room_in(device, crowd) && crowd->since_new >= TURNS * crowd->count;
    crowd->held += has && !end->is_held;
    end->is_held = end->is_held || has;
    pthread_mutex_unlock(&crowd->mutex);
    return has;
}

typedef enum cuda_way { CUDA_NOT_YET, CUDA_BY_EVENT, CUDA_BY_WORD } cuda_way;

/* How a stream that has been noted may wait. */
static cuda_way way_to_wait(trib_device *device, const trib_device_gate *gate)
{
    cuda_gate_end *end = gate->end;
    pthread_mutex_lock(&device->mutex);
    const cuda_way way = gate->by_end || end->launched == gate->value   ? CUDA_BY_EVENT
                         : !device->loads_late && has_room(device, end) ? CUDA_BY_WORD
                                                                        : CUDA_NOT_YET;
    device->refused = device->refused || way == CUDA_NOT_YET;
    pthread_mutex_unlock(&device->mutex);
    return way;
}

static void say_why_not(const trib_device *device, trib_error *error)
{
    if (device->loads_late) {
        cuda_set_error(error, TRIB_BUSY,
                       "CUDA loads kernels at their first use, and may wait then for a stream that waits, while what "
                       "this one waits for cannot be launched (with CUDA_MODULE_LOADING=EAGER it loads them before)");
        return;
    }
    cuda_crowd *crowd = crowd_of(device);
    pthread_mutex_lock(&crowd->mutex);
    const uint32_t room = room_in(device, crowd);
    pthread_mutex_unlock(&crowd->mutex);
    cuda_set_error(
        error, TRIB_BUSY,
        "CUDA has %u queues here, %u for copies, and where streams are more one that waits could hold up "
        "what it waits for; beside the engine's there is room for %u of the program's, once no new ones come "
        "(CUDA_DEVICE_MAX_CONNECTIONS=32 makes more)",
        device->queues, device->copy_queues, room);
}

static bool is_open(const trib_device_gate *gate)
{
    return (int32_t)(__atomic_load_n(gate->word, __ATOMIC_ACQUIRE) - gate->value) >= 0;
}

/* What waits behind an event takes the GPU a tenth of what waiting for a word does. */
static trib_status make_wait(trib_device *device, cudaStream_t stream, const trib_device_gate *gate, trib_error *error)
{
    const cuda_driver *driver = &device->driver;
    const cuda_gate_end *end = gate->end;
    CUresult code = CUDA_SUCCESS;
    switch (way_to_wait(device, gate)) {
    case CUDA_BY_EVENT:
        code = driver->wait_event(stream, end->slot.event, CU_EVENT_WAIT_DEFAULT);
        break;
    case CUDA_BY_WORD:
        code = driver->wait_value(stream, (CUdeviceptr)(uintptr_t)gate->word, gate->value, CU_STREAM_WAIT_VALUE_GEQ);
        break;
    default:
        say_why_not(device, error);
        return TRIB_BUSY;
    }
    if (code != CUDA_SUCCESS) {
        cuda_set_error(error, TRIB_SYSTEM, "the stream could not be made to wait: %s",
                       cudaGetErrorString((cudaError_t)code));
    }
    return code == CUDA_SUCCESS ? TRIB_OK : TRIB_SYSTEM;
}

trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_gate *gate, trib_error *error)
{
    const cuda_visit visit = cuda_visit_begin(device);
    trib_status status = cuda_check_capture(device, stream, error);
    if (status == TRIB_OK) {
        cuda_wait_note(device, stream); /* whatever it waits for: what comes on it afterwards needs a queue */
    }
    if (status == TRIB_OK && !is_open(gate)) {
        status = make_wait(device, stream, gate, error);
    }
    cuda_visit_end(device, visit);
    return status;
}

/* With the mutex held; the engine is to be told, once it is not. */
static bool note_launched(trib_device *device, const trib_device_gate *gate)
{
    cuda_gate_end *end = gate->end;
    end->launched = gate->value;
    if (end->is_held) {
        cuda_crowd *crowd = crowd_of(device);
        pthread_mutex_lock(&crowd->mutex);
        crowd->held--;
        pthread_mutex_unlock(&crowd->mutex);
        end->is_held = false;
    }
    const bool tells = device->refused;
    device->refused = false;
    return tells;
}

static void tell(const trib_device *device)
{
    device->params.launched(device->params.engine); /* it has a mutex of its own, under which ours is taken */
}

void cuda_wait_end(trib_device *device, const trib_device_gate *gate)
{
    pthread_mutex_lock(&device->mutex);
    const bool tells = note_launched(device, gate);
    pthread_mutex_unlock(&device->mutex);
    if (tells) {
        tell(device);
    }
}

/* Whoever waits for the event already knows what it is; the word is for those that came before. */
CUresult cuda_wait_launched(trib_device *device, const trib_device_gate *gate, cudaStream_t stream)
{
    const cuda_gate_end *end = gate->end;
    bool tells = false;
    CUresult code = device->driver.record_event(end->slot.event, stream);
    if (code != CUDA_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&device->mutex);
    const bool is_awaited = end->is_held;
    if (!is_awaited) {
        tells = note_launched(device, gate);
    }
    pthread_mutex_unlock(&device->mutex);
    if (is_awaited) {
        code = device->driver.write_value(stream, (CUdeviceptr)(uintptr_t)gate->word, gate->value,
                                          CU_STREAM_WRITE_VALUE_DEFAULT);
        if (code == CUDA_SUCCESS) {
            cuda_wait_end(device, gate);
        }
    } else if (tells) {
        tell(device);
    }
    return code;
}
