/*
 * cuda_wait.c - callers' streams that wait for operations whose end has not been launched yet.
 *
 * A stream that waits for a semaphore's word may keep the work that writes the word from being launched, because the
 * driver knows of no such dependency. So a stream may wait that way only where neither of two things can happen.
 * Otherwise the wait is refused until the signal has been launched; then the stream waits for an event, which holds
 * up nothing.
 *
 * 1. CUDA loads a kernel at its first use, unless all are loaded at the start (CUDA_MODULE_LOADING=EAGER). Loading
 * waits for all work of the GPU, under the context's lock, without which the device thread launches nothing. (A
 * PyTorch job hung so in its first step.)
 *
 * 2. CUDA maps streams to hardware queues, and each queue is served in order. A stream that waits holds up its queue,
 * with the work of any stream and priority that the driver puts there later. With as many queues as streams each
 * stream has its own; with one stream more, a waiting stream holds up another before long. So the program's streams
 * that the engines have seen, and the engines' own, must be fewer than the queues. As a waiting stream may also hold
 * up a stream that is used for the first time, no stream waits before all streams have come repeatedly. (Seen on an
 * H200 with 2 to 32 queues: docs/decisions/0006-queues.md.) The queues belong to the process's context on a GPU,
 * which its engines share. So the stream registry, which counts the streams of each GPU, is the process's.
 *
 * A caller whose wait was refused is told of later launches of its own engine, among which is the one it waits for.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

/* Defaults of CUDA: the first is documented, the second was seen. */
#define QUEUES_USUAL 8u
#define QUEUES_USUAL_COPIES 4u
#define QUEUES_SHARED 2u /* under MPS */
#define QUEUES_MAX 32u
#define GPUS_MAX 64u /* further ones share a registry */

/* Room for a stream of the program's that the engines never see. */
#define UNSEEN 1u

/* How often each stream has to come, on average, before the registry is taken to be complete. */
#define TURNS 4u

#define STALE_NS (10 * INT64_C(1000000000))

typedef struct cuda_seen_stream {
    uint64_t who;
    int64_t last_ns;
} cuda_seen_stream;

/* The streams of a process on one GPU. (A forked child of a process that uses CUDA cannot use CUDA.) */
typedef struct cuda_stream_registry {
    pthread_mutex_t mutex;
    uint32_t engines;
    uint32_t own_copies, own_all; /* the engines' streams, as in trib_device */
    uint32_t held;                /* semaphores that streams wait for and whose signal has not been launched */
    uint32_t since_new;           /* uses of known streams since a new one came */
    uint32_t count;
    cuda_seen_stream seen[QUEUES_MAX]; /* the program's streams; more than this many are too many anyway */
} cuda_stream_registry;

static cuda_stream_registry registries[GPUS_MAX] = {[0 ... GPUS_MAX - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static cuda_stream_registry *registry_of(const trib_device *device)
{
    return &registries[(unsigned)device->index % GPUS_MAX];
}

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which older headers lack. A driver that does not know it returns an error. */
#define MPS_ENABLED ((CUdevice_attribute)133)

/* Clients of MPS share the queues of its server, whatever the environment says. */
static bool shares_queues(const trib_device *device)
{
    CUresult (*get_attribute)(int *, CUdevice_attribute, CUdevice) = NULL;
    int shared = 0;
    const bool known = cuda_find_driver("cuDeviceGetAttribute", &get_attribute) == cudaSuccess &&
                       get_attribute(&shared, MPS_ENABLED, device->ordinal) == CUDA_SUCCESS;
    return known && shared;
}

/* Drivers without this function load all kernels at the start. */
static bool loads_late(void)
{
    CUresult (*get_mode)(CUmoduleLoadingMode *) = NULL;
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    return cuda_find_driver("cuModuleGetLoadingMode", &get_mode) == cudaSuccess &&
           (get_mode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_EAGER_LOADING);
}

/* The variable as the driver has read it when the context was made; 0: unset or no number. */
static uint32_t read_queue_count(const char *variable)
{
    const char *text = getenv(variable);
    const long wanted = text == NULL ? 0 : strtol(text, NULL, 10);
    return wanted < 1 ? 0 : wanted < QUEUES_MAX ? (uint32_t)wanted : QUEUES_MAX;
}

static uint32_t lesser_of(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* The engine has streams for copies each way and for collectives. On one machine it uses only the last; with one GPU
 * that one copies instead. */
static void count_own_streams(trib_device *device)
{
    const trib_device_params *params = &device->params;
    device->own_copies = !params->alone ? 2 : params->size == 1 ? 1 : 0;
    device->own_all = params->alone ? 1 : CUDA_STREAM_COUNT;
}

void cuda_registry_join(trib_device *device)
{
    const uint32_t all = read_queue_count("CUDA_DEVICE_MAX_CONNECTIONS"),
                   copies = read_queue_count("CUDA_DEVICE_MAX_COPY_CONNECTIONS");
    const uint32_t most = shares_queues(device) ? QUEUES_SHARED : QUEUES_MAX;
    device->queues = lesser_of(all > 0 ? all : QUEUES_USUAL, most);
    device->copy_queues = lesser_of(copies > 0 ? copies : all > 0 ? all : QUEUES_USUAL_COPIES, most);
    device->loads_late = loads_late();
    count_own_streams(device);
    cuda_stream_registry *registry = registry_of(device);
    pthread_mutex_lock(&registry->mutex);
    registry->engines++;
    registry->own_copies += device->own_copies;
    registry->own_all += device->own_all;
    pthread_mutex_unlock(&registry->mutex);
}

void cuda_registry_leave(trib_device *device)
{
    cuda_stream_registry *registry = registry_of(device);
    if (device->own_all == 0) {
        return;
    }
    pthread_mutex_lock(&registry->mutex);
    trib_assert(registry->engines > 0);
    trib_assert(registry->own_copies >= device->own_copies && registry->own_all >= device->own_all);
    registry->engines--;
    registry->own_copies -= device->own_copies;
    registry->own_all -= device->own_all;
    registry->count = registry->engines == 0 ? 0 : registry->count;
    pthread_mutex_unlock(&registry->mutex);
    device->own_copies = device->own_all = 0;
}

/* The driver's number of a stream is never used again; a handle may be, while the stream that had it still waits. The
 * default stream has two handles, and each thread's default stream the same one. Without numbers the thread tells the
 * latter apart. */
static uint64_t identify_stream(const trib_device *device, cudaStream_t stream)
{
    unsigned long long id = 0;
    if (device->driver.get_id != NULL && device->driver.get_id(stream, &id) == CUDA_SUCCESS) {
        return id;
    }
    return stream == cudaStreamPerThread ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
}

/* With the mutex held: how many streams of the program's have queues of their own beside the engines'. */
static uint32_t count_room(const trib_device *device, const cuda_stream_registry *registry)
{
    const uint32_t copies = registry->own_copies + UNSEEN, all = registry->own_all + UNSEEN;
    return lesser_of(device->copy_queues > copies ? device->copy_queues - copies : 0,
                     device->queues > all ? device->queues - all : 0);
}

/* With the mutex held, while no stream waits for a word: drops streams that the program does not use any more. It may
 * have changed to other streams, so those that remain have to come repeatedly again. */
static void forget_stale_streams(cuda_stream_registry *registry, int64_t now_ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < registry->count; i++) {
        if (now_ns - registry->seen[i].last_ns < STALE_NS) {
            registry->seen[kept++] = registry->seen[i];
        }
    }
    registry->since_new = kept == registry->count ? registry->since_new : 0;
    registry->count = kept;
}

/* With the mutex held. */
static void note_stream(cuda_stream_registry *registry, uint64_t who)
{
    const int64_t now_ns = cuda_now_ns();
    uint32_t at = 0;
    if (registry->held == 0) {
        forget_stale_streams(registry, now_ns);
    }
    while (at < registry->count && registry->seen[at].who != who) {
        at++;
    }
    const bool is_new = at == registry->count;
    registry->since_new = is_new ? 0 : registry->since_new + (registry->since_new < TURNS * QUEUES_MAX);
    if (at < QUEUES_MAX) { /* else there are too many already */
        registry->seen[at] = (cuda_seen_stream){.who = who, .last_ns = now_ns};
        registry->count += is_new;
    }
}

void cuda_stream_note(trib_device *device, cudaStream_t stream)
{
    if (device->loads_late) {
        return; /* no stream may wait for a word, so none need be counted */
    }
    const uint64_t who = identify_stream(device, stream);
    cuda_stream_registry *registry = registry_of(device);
    pthread_mutex_lock(&registry->mutex);
    note_stream(registry, who);
    pthread_mutex_unlock(&registry->mutex);
}

/* With the device's mutex held: may a stream wait for the word? If so the semaphore counts as held. */
static bool has_room(const trib_device *device, cuda_semaphore_event *event)
{
    cuda_stream_registry *registry = registry_of(device);
    pthread_mutex_lock(&registry->mutex);
    const bool has = registry->count <= count_room(device, registry) && registry->since_new >= TURNS * registry->count;
    registry->held += has && !event->is_held;
    event->is_held = event->is_held || has;
    pthread_mutex_unlock(&registry->mutex);
    return has;
}

typedef enum cuda_way { CUDA_NOT_YET, CUDA_BY_EVENT, CUDA_BY_WORD } cuda_way;

/* How a stream that is in the registry may wait. */
static cuda_way choose_way(trib_device *device, const trib_device_semaphore *semaphore)
{
    cuda_semaphore_event *event = semaphore->event;
    pthread_mutex_lock(&device->mutex);
    const cuda_way way = event->launched == semaphore->value              ? CUDA_BY_EVENT
                         : !device->loads_late && has_room(device, event) ? CUDA_BY_WORD
                                                                          : CUDA_NOT_YET;
    device->refused = device->refused || way == CUDA_NOT_YET;
    pthread_mutex_unlock(&device->mutex);
    return way;
}

static void explain_refusal(const trib_device *device, trib_error *error)
{
    if (device->loads_late) {
        cuda_set_error(error, TRIB_BUSY,
                       "CUDA loads kernels at their first use, and may wait then for a stream that waits, while what "
                       "this one waits for cannot be launched (with CUDA_MODULE_LOADING=EAGER it loads them before)");
        return;
    }
    cuda_stream_registry *registry = registry_of(device);
    pthread_mutex_lock(&registry->mutex);
    const uint32_t room = count_room(device, registry);
    pthread_mutex_unlock(&registry->mutex);
    cuda_set_error(
        error, TRIB_BUSY,
        "CUDA has %u queues here, %u for copies, and where streams are more one that waits could hold up "
        "what it waits for; beside the engine's there is room for %u of the program's, once no new ones come "
        "(CUDA_DEVICE_MAX_CONNECTIONS=32 makes more)",
        device->queues, device->copy_queues, room);
}

static bool is_signalled(const trib_device_semaphore *semaphore)
{
    return (int32_t)(__atomic_load_n(semaphore->word, __ATOMIC_ACQUIRE) - semaphore->value) >= 0;
}

/* A wait for an event takes the GPU a tenth of the time of a wait for a word. */
static trib_status put_wait_on_stream(trib_device *device, cudaStream_t stream, const trib_device_semaphore *semaphore,
                                      trib_error *error)
{
    const cuda_driver *driver = &device->driver;
    const cuda_semaphore_event *event = semaphore->event;
    CUresult code = CUDA_SUCCESS;
    switch (choose_way(device, semaphore)) {
    case CUDA_BY_EVENT:
        code = driver->wait_event(stream, event->event, CU_EVENT_WAIT_DEFAULT);
        break;
    case CUDA_BY_WORD:
        code = driver->wait_value(stream, (CUdeviceptr)(uintptr_t)semaphore->word, semaphore->value,
                                  CU_STREAM_WAIT_VALUE_GEQ);
        break;
    default:
        explain_refusal(device, error);
        return TRIB_BUSY;
    }
    if (code != CUDA_SUCCESS) {
        cuda_set_error(error, TRIB_SYSTEM, "the stream could not be made to wait: %s",
                       cudaGetErrorString((cudaError_t)code));
    }
    return code == CUDA_SUCCESS ? TRIB_OK : TRIB_SYSTEM;
}

trib_status cuda_stream_wait(trib_device *device, void *stream, const trib_device_semaphore *semaphore,
                             trib_error *error)
{
    const cuda_context_guard guard = cuda_context_enter(device);
    trib_status status = cuda_check_capture(device, stream, error);
    if (status == TRIB_OK) {
        cuda_stream_note(device, stream); /* also if it need not wait: its later work needs a queue */
    }
    if (status == TRIB_OK && !is_signalled(semaphore)) {
        status = put_wait_on_stream(device, stream, semaphore, error);
    }
    cuda_context_leave(device, guard);
    return status;
}

/* With the mutex held. True: tell_engine must be called after it was released. */
static bool note_launched(trib_device *device, const trib_device_semaphore *semaphore)
{
    cuda_semaphore_event *event = semaphore->event;
    event->launched = semaphore->value;
    if (event->is_held) {
        cuda_stream_registry *registry = registry_of(device);
        pthread_mutex_lock(&registry->mutex);
        trib_assert(registry->held > 0);
        registry->held--;
        pthread_mutex_unlock(&registry->mutex);
        event->is_held = false;
    }
    const bool tells = device->refused;
    device->refused = false;
    return tells;
}

static void tell_engine(const trib_device *device)
{
    device->params.launched(device->params.engine); /* takes a mutex that comes before this device's */
}

void cuda_semaphore_note_launched(trib_device *device, const trib_device_semaphore *semaphore)
{
    pthread_mutex_lock(&device->mutex);
    const bool tells = note_launched(device, semaphore);
    pthread_mutex_unlock(&device->mutex);
    if (tells) {
        tell_engine(device);
    }
}

/* Streams that come after the launch wait for the event; the word is for those that came before. */
CUresult cuda_semaphore_signal_behind(trib_device *device, const trib_device_semaphore *semaphore, cudaStream_t stream)
{
    const cuda_semaphore_event *event = semaphore->event;
    bool tells = false;
    CUresult code = device->driver.record_event(event->event, stream);
    if (code != CUDA_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&device->mutex);
    const bool is_awaited = event->is_held;
    if (!is_awaited) {
        tells = note_launched(device, semaphore);
    }
    pthread_mutex_unlock(&device->mutex);
    if (is_awaited) {
        code = device->driver.write_value(stream, (CUdeviceptr)(uintptr_t)semaphore->word, semaphore->value,
                                          CU_STREAM_WRITE_VALUE_DEFAULT);
        if (code == CUDA_SUCCESS) {
            cuda_semaphore_note_launched(device, semaphore);
        }
    } else if (tells) {
        tell_engine(device);
    }
    return code;
}
