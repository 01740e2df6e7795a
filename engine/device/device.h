/*
 * device.h - the interface through which the engine moves tensors that live on a GPU.
 *
 * A device takes jobs: it waits for a caller's stream, copies between device and host, or takes part in a collective
 * of the machine's local group. A job is embedded in the object that it works for. `submit` takes it and never
 * blocks; it is given back exactly once, when its post runs on its reactor, with a status and a text.
 *
 * Invariants
 * - Jobs submitted by one thread begin in that order. Collectives begin in the order of submission and are matched by
 *   that order alone: the engine sees to it that all members of the group use the same one (group.h).
 * - A job begins on the device after its `after` has ended there; no thread of the host waits for that. If `after` is
 *   known to have failed by then, the job fails, too.
 * - After stop every job comes back within STOP_NS, including collectives whose other members are dead.
 * - Until a job is back its memory, and that of its `after`, belong to the device.
 *
 * Implementations: device_host.c, in plain memory of one process, for machines without a GPU and for virtual time;
 * and CUDA with NCCL, in a module of its own (stages/cuda/).
 */
#ifndef TRIB_ENGINE_DEVICE_H
#define TRIB_ENGINE_DEVICE_H

#include "engine/base/kernel_ops.h"
#include "engine/reactor/reactor.h"

#define TRIB_DEVICE_ABI 12u
#define TRIB_DEVICE_ID_SIZE 128u
#define TRIB_DEVICE_TEXT_SIZE 160u

typedef struct trib_device trib_device;

typedef enum trib_device_kind {
    TRIB_DEVICE_WAIT,           /* ends when the caller's stream has reached the marker */
    TRIB_DEVICE_TO_HOST,        /* bytes from source (device) to target (host) */
    TRIB_DEVICE_TO_DEVICE,      /* bytes from source (host) to target (device) */
    TRIB_DEVICE_SEE,            /* makes the device see what a network device has written to target */
    TRIB_DEVICE_REDUCE_SCATTER, /* target gets this member's share of the sum of the members' sources */
    TRIB_DEVICE_ALL_GATHER,     /* target gets every member's share; this member's is in its place already */
    TRIB_DEVICE_ALL_REDUCE,     /* target gets the whole sum; in a group of one a copy */
    TRIB_DEVICE_BROADCAST,      /* target gets the root's source; in a group of one a copy */
    TRIB_DEVICE_MAKE_ID,        /* target (TRIB_DEVICE_ID_SIZE bytes of host memory) gets a new group's name */
    TRIB_DEVICE_JOIN,           /* become a member of the group named at source */
    TRIB_DEVICE_KIND_COUNT
} trib_device_kind;

/* A stream semaphore, signalled when an operation is complete. A stream waits until the word has reached the value,
 * or for the event, once the work behind which that is recorded has been launched. */
typedef struct trib_device_semaphore {
    uint32_t *word; /* host memory that is mapped into the device; NULL: not made yet */
    uint32_t value; /* of the word, for the present operation */
    void *event;    /* the device's */
} trib_device_semaphore;

typedef struct trib_device_job {
    trib_post post; /* runs on reactor when the job is over */
    trib_reactor *reactor;
    void *owner; /* for post.run */
    trib_device_kind kind;
    trib_dtype dtype;
    trib_reduce reduce;
    const void *source;
    void *target;
    size_t bytes;   /* collectives: of the whole piece */
    size_t shard;   /* collectives: member r has bytes [r * shard, (r + 1) * shard), cut at `bytes` */
    uint32_t root;  /* BROADCAST: a member */
    uint64_t label; /* collectives: the same on all members; checked by the host implementation */
    const struct trib_device_job *after;
    void *marker; /* WAIT: from marker_record, owned by the job */
    /* The job that brings *semaphore_count to semaphore_goal signals the semaphore when it ends on the device; NULL:
     * none. */
    trib_device_semaphore *semaphore;
    atomic_uint *semaphore_count;
    uint32_t semaphore_goal;
    trib_status status;
    char text[TRIB_DEVICE_TEXT_SIZE];
    struct trib_device_job *next; /* the device's */
    void *slot;                   /* the device's */
} trib_device_job;

/* How a network device reaches memory. */
typedef struct trib_device_memory {
    int fd;          /* a dma-buf, which the caller of expose closes; -1: ordinary host memory */
    uint64_t offset; /* in the dma-buf */
} trib_device_memory;

typedef struct trib_device_params {
    int32_t index;      /* -1: the calling thread's current device */
    int32_t rank, size; /* in the local group */
    int32_t machine;
    bool alone; /* the job has one machine: no copies to the host or back */
    const trib_kernels *kernels;
    trib_logger *logger;
    int64_t poll_window_max_ns; /* longest time that a thread of the device spins for more work (poll_window.h) */
    void (*complete)(trib_device_job *job); /* any thread: gives a job back */
    /* Any thread: wakes reactors of the engine; bit i is for index i. */
    void (*wake)(void *engine, uint32_t reactors);
    /* Any thread: some work has been launched, or has ended, since stream_wait refused a stream. */
    void (*launched)(void *engine);
    void *engine;
    void (*thread_began)(void *memory); /* called first by each thread of the device, to be placed; may be NULL */
    void *memory;                       /* argument of thread_began */
    void *world;                        /* shared by the members of the host implementation in one process */
} trib_device_params;

typedef struct trib_device_ops {
    uint32_t abi;     /* TRIB_DEVICE_ABI */
    const char *name; /* "cuda", "host memory" */
    /* Stores the device's PCI address ("0000:3b:00.0"). False: unknown. May be NULL. Any thread, before open. */
    bool (*locate)(int32_t index, char *pci, size_t size);
    trib_status (*open)(const trib_device_params *params, trib_device **out, trib_error *error);
    /* Any thread: takes the job. */
    void (*submit)(trib_device *device, trib_device_job *job);
    /* Caller's thread: records a marker on the stream. NULL: the stream has no work left. TRIB_UNSUPPORTED: the
     * stream is being captured into a graph. */
    trib_status (*marker_record)(trib_device *device, void *stream, void **marker_out, trib_error *error);
    /* Caller's thread, after marker_record, which has woken the device thread: has that wake the reactors, which
     * spares the caller a system call for each. `hurries`: only if the device thread is about to wake some anyway.
     * False: the device thread is in calls that may take long, or stops, and the caller wakes the reactors itself. */
    bool (*wake)(trib_device *device, uint32_t reactors, bool hurries);
    /* Any thread: drops a marker that no job owns. */
    void (*marker_drop)(trib_device *device, void *marker);
    /* Any thread. The semaphore is zeroed, or as a failed call has left it. Its memory is freed with the device. */
    trib_status (*semaphore_make)(trib_device *device, trib_device_semaphore *semaphore, trib_error *error);
    /* Any thread: signals it from the host. */
    void (*semaphore_signal)(trib_device *device, const trib_device_semaphore *semaphore);
    /* Caller's thread: later work of the stream waits for the semaphore. TRIB_BUSY: the signal has not been launched
     * yet, and could end up behind the wait. Another try makes sense when params.launched is called. */
    trib_status (*stream_wait)(trib_device *device, void *stream, const trib_device_semaphore *semaphore,
                               trib_error *error);
    /* Extents of host memory that will take part in copies. */
    trib_status (*pin)(trib_device *device, void *base, size_t size);
    void (*unpin)(trib_device *device, void *base, size_t size);
    /* Any thread: how network devices can reach that memory. TRIB_UNSUPPORTED: it is the device's, and they cannot
     * use it, or the device would not see their writes; *error says why. */
    trib_status (*expose)(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                          trib_error *error);
    /* Any thread: gives up all jobs. orderly: the other members are expected to do the same. */
    void (*stop)(trib_device *device, bool orderly);
    /* After the last job is back, from the thread that closes the engine. Bounded. */
    void (*close)(trib_device *device);
} trib_device_ops;

/* The implementation in plain memory, and the world that the members in one process share. */
extern const trib_device_ops trib_device_host_ops;
typedef struct trib_host_world trib_host_world;
trib_host_world *trib_host_world_create(void); /* NULL when out of memory */
void trib_host_world_free(trib_host_world *world);
/* In virtual time jobs take time, on each member's device its own. Without a pace they end at once, and all parts of a
 * collective together. Set before the world runs. */
typedef struct trib_host_pace {
    struct trib_sim *sim;                                          /* NULL: none */
    int64_t (*late_ns)(void *user, int32_t machine, int32_t rank); /* time of the next job */
    void *user;
} trib_host_pace;
void trib_host_world_pace(trib_host_world *world, const trib_host_pace *pace);
/* How often members of a group came to collectives in different orders, which would hang NCCL. */
uint32_t trib_host_world_disorders(trib_host_world *world);
/* For tests: the next jobs of that member fail, or hang until stop. */
typedef enum trib_host_fault { TRIB_HOST_FAULT_NONE, TRIB_HOST_FAULT_FAIL, TRIB_HOST_FAULT_HANG } trib_host_fault;
void trib_host_world_fault(trib_host_world *world, int32_t machine, int32_t rank, trib_host_fault fault);

/* The member and its device are gone: a collective whose part it has not finished never ends. */
void trib_host_world_kill(trib_host_world *world, int32_t machine, int32_t rank);

/* A stream of the implementation in plain memory: its markers count as reached while it is open. */
typedef struct trib_host_stream trib_host_stream;
trib_host_stream *trib_host_stream_create(bool open);
void trib_host_stream_open(trib_host_stream *stream);
void trib_host_stream_free(trib_host_stream *stream);

#endif
