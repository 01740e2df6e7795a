/*
 * device.h - how the engine moves tensors that live on a GPU, without knowing what a GPU is.
 *
 * A device takes jobs: to wait for a stream of the caller's, to copy between device and host, to take part in a
 * collective of the machine's local group. Jobs are embedded in what they are about. Each is taken in by submit, which
 * never blocks, and given back exactly once: its post runs on its reactor, with status and text.
 *
 * Invariants
 * - Jobs submitted by one thread begin in that order. Collectives begin in the order of submission and are matched by it
 *   alone: whoever submits them sees to it that all members of the group use the same order (group.h). Where the program
 *   promises one order (in_order) they come by issue instead, and begin in the order of those calls; else one may come by
 *   issue while no other is under way.
 * - A job begins after the job that it names in `after` has ended on the device; nobody waits for that on the host. If that one
 *   is known to have failed by then, this one does, too.
 * - After stop every job comes back within STOP_NS, collectives whose other members are dead too.
 * - Until a job is back its memory, and that of the job in `after`, are the device's.
 *
 * Implementations: device_host.c, in plain memory of one process, for machines without a GPU and for virtual time; CUDA
 * with NCCL in a module of its own (stages/cuda/).
 */
#ifndef TRIB_ENGINE_DEVICE_H
#define TRIB_ENGINE_DEVICE_H

#include "engine/base/kernel_ops.h"
#include "engine/reactor/reactor.h"

#define TRIB_DEVICE_ABI 11u
#define TRIB_DEVICE_ID_SIZE 128u
#define TRIB_DEVICE_TEXT_SIZE 160u
#define TRIB_LOCAL_SIZE_MAX 64

typedef struct trib_device trib_device;

typedef enum trib_device_kind {
    TRIB_DEVICE_WAIT,           /* the caller's stream has come to the mark */
    TRIB_DEVICE_TO_HOST,        /* bytes from source (device) to target (host) */
    TRIB_DEVICE_TO_DEVICE,      /* bytes from source (host) to target (device) */
    TRIB_DEVICE_SEE,            /* what was written to target from outside, and is there, is seen by the device */
    TRIB_DEVICE_REDUCE_SCATTER, /* target is this member's share of the sum of the members' sources */
    TRIB_DEVICE_ALL_GATHER,     /* target gets every member's share; this member's is in its place already */
    TRIB_DEVICE_ALL_REDUCE,     /* target is the whole sum; in a group of one a copy */
    TRIB_DEVICE_BROADCAST,      /* target is the root's source; in a group of one a copy */
    TRIB_DEVICE_MAKE_ID,        /* target (TRIB_DEVICE_ID_SIZE bytes of host memory) is a new group's name */
    TRIB_DEVICE_JOIN,           /* become a member of the group named at source */
    TRIB_DEVICE_KIND_COUNT
} trib_device_kind;

/* Opens for streams when an operation is complete: a word that a stream waits for until it has reached value, or the end of
 * what was issued, where that is known to the device already. */
typedef struct trib_device_gate {
    uint32_t *word; /* host memory that the device sees; NULL: not made yet */
    uint32_t value; /* what opens it for the present operation */
    void *end;      /* the device's: of a job that is issued */
    bool by_end;    /* streams wait for that */
} trib_device_gate;

typedef struct trib_device_job {
    trib_post post; /* runs on reactor when the job is over */
    trib_reactor *reactor;
    void *owner; /* whose job it is, for post.run */
    trib_device_kind kind;
    trib_dtype dtype;
    trib_reduce reduce;
    const void *source;
    void *target;
    size_t bytes;   /* collectives: of the whole piece */
    size_t shard;   /* collectives: member r has bytes [r * shard, (r + 1) * shard) as far as there are so many */
    uint32_t root;  /* BROADCAST: a member */
    uint64_t label; /* collectives: all members must name the same; only checked where that can be done */
    /* Collectives: `keeps`: all members' jobs here have had these buffers before and will again, so that what a launch takes may
     * be kept at *keep (NULL at first; the device frees it) and used the next time. Else what is kept there is dropped. All members
     * must say the same. keep NULL: nothing is ever kept. */
    void **keep;
    bool keeps;
    const struct trib_device_job *after;
    void *mark;     /* from mark(); the job takes it over. WAIT: not NULL; what is issued begins behind it, or NULL */
    uint32_t place; /* of what is issued: so many were before it, modulo 2^32 */
    bool is_issued; /* the device's: it came by issue */
    /* The job that brings *gate_count to gate_goal opens the gate when it ends on the device; NULL: none. */
    trib_device_gate *gate;
    atomic_uint *gate_count;
    uint32_t gate_goal;
    trib_status status;
    char text[TRIB_DEVICE_TEXT_SIZE];
    struct trib_device_job *next; /* the device's */
    void *slot;                   /* the device's */
} trib_device_job;

/* What memory is to a network's device. */
typedef struct trib_device_memory {
    int fd;          /* the device's: a dma-buf, which who asked closes; -1: the processor's as well, as any other */
    uint64_t offset; /* in the dma-buf */
} trib_device_memory;

typedef struct trib_device_params {
    int32_t index;      /* which device; -1: the calling thread's present one */
    int32_t rank, size; /* in the local group */
    int32_t machine;
    bool alone;    /* there is no other machine: nothing is copied to the host or back */
    bool in_order; /* all members hand in their collectives in one order: all are issued */
    const trib_kernels *kernels;
    trib_logger *logger;
    int64_t poll_window_max_ns; /* how long a thread of the device's looks for more at most (poll_window.h) */
    void (*complete)(trib_device_job *job); /* any thread: hands a job back */
    /* Any thread: wakes those of the engine's reactors, bit i for that with index i. */
    void (*wake)(void *engine, uint32_t reactors);
    /* Any thread: something has been launched, or is over, since a stream was refused (stream_wait). */
    void (*launched)(void *engine);
    void *engine;
    void (*thread_began)(void *memory); /* a thread of the device's own calls it first, to be placed; may be NULL */
    void *memory;                       /* for that */
    void *world;                        /* what the members of an implementation inside one process share */
} trib_device_params;

typedef struct trib_device_ops {
    uint32_t abi;     /* TRIB_DEVICE_ABI */
    const char *name; /* "cuda", "host memory" */
    /* NULL, or the device's PCI address ("0000:3b:00.0"); false: not known. Any thread, before open. */
    bool (*locate)(int32_t index, char *pci, size_t size);
    trib_status (*open)(const trib_device_params *params, trib_device **out, trib_error *error);
    /* Any thread: takes the job. */
    void (*submit)(trib_device *device, trib_device_job *job);
    /* Any thread: takes a collective that begins behind its mark, and behind what was issued before. `here`: this thread may
     * make the calls that launch it, which take some microseconds, or when another member is lost until stop. If it may
     * not, or that cannot be done yet, the device does it later. */
    void (*issue)(trib_device *device, trib_device_job *job, bool here);
    /* Caller's thread: may a launch with that buffer be kept, although the program has not promised that the buffer stays? */
    bool (*may_keep)(trib_device *device, const void *buffer);
    /* Caller's thread: remembers where the stream is now; NULL: it has come here already. TRIB_UNSUPPORTED while it is
     * being captured into a graph. */
    trib_status (*mark)(trib_device *device, void *stream, void **mark_out, trib_error *error);
    /* Caller's thread, after mark: has those reactors woken soon (params.wake), by a thread of the device's, which mark has
     * roused; that spares the caller a system call for each. `hurries`: only if that thread is about to wake some anyway. False: it
     * is in calls that may last, or stops, and the caller wakes them itself. */
    bool (*wake)(trib_device *device, uint32_t reactors, bool hurries);
    /* Any thread: a mark that no job takes over. */
    void (*mark_drop)(trib_device *device, void *mark);
    /* Any thread. The gate is zeroed, or as a call left it that failed. The word is freed with the device. */
    trib_status (*gate_make)(trib_device *device, trib_device_gate *gate, trib_error *error);
    /* Any thread: opens it from the host. */
    void (*gate_open)(trib_device *device, const trib_device_gate *gate);
    /* Caller's thread: what is put on the stream from now on waits for the gate. TRIB_BUSY: what opens it has not been launched yet,
     * and might come behind what waits. It is worth asking again when params.launched is called. */
    trib_status (*stream_wait)(trib_device *device, void *stream, const trib_device_gate *gate, trib_error *error);
    /* Extents of host memory that will take part in copies. */
    trib_status (*pin)(trib_device *device, void *base, size_t size);
    void (*unpin)(trib_device *device, void *base, size_t size);
    /* Any thread: how network devices can be told of that memory. TRIB_UNSUPPORTED: it is the device's, and they cannot use it
     * (or what they write there could not be made seen): *error says why. */
    trib_status (*expose)(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                          trib_error *error);
    /* Any thread: gives up all that is under way. orderly: the other members are believed to do the same. */
    void (*stop)(trib_device *device, bool orderly);
    /* After the last job is back, from the thread that closes the engine. Bounded. */
    void (*close)(trib_device *device);
} trib_device_ops;

/* The implementation in plain memory, and what the members of one process share. */
extern const trib_device_ops trib_device_host_ops;
typedef struct trib_host_world trib_host_world;
trib_host_world *trib_host_world_create(void); /* NULL when out of memory */
void trib_host_world_free(trib_host_world *world);
/* In virtual time: jobs end on each member's device when that is asked. Others do at once, all members' parts of a collective
 * together. Before the world runs. */
typedef struct trib_host_pace {
    struct trib_sim *sim;                                          /* NULL: none */
    int64_t (*late_ns)(void *user, int32_t machine, int32_t rank); /* how long the next job takes; 0: no time */
    void *user;
} trib_host_pace;
void trib_host_world_pace(trib_host_world *world, const trib_host_pace *pace);
/* How often members of a group came to a collective in different orders, which hangs a real one. */
uint32_t trib_host_world_disorders(trib_host_world *world);
/* Members' parts in collectives that found kept what launching them would have taken. */
uint64_t trib_host_world_kept(trib_host_world *world);
/* The next jobs of that machine's member fail or hang, until stop; for tests of failures. */
typedef enum trib_host_fault { TRIB_HOST_FAULT_NONE, TRIB_HOST_FAULT_FAIL, TRIB_HOST_FAULT_HANG } trib_host_fault;
void trib_host_world_fault(trib_host_world *world, int32_t machine, int32_t rank, trib_host_fault fault);

/* That machine's member is no more, nor what its device was busy with: no collective that it has not come through ends. */
void trib_host_world_kill(trib_host_world *world, int32_t machine, int32_t rank);

/* A stream of the implementation in plain memory: what is marked on it has been reached while it is open. */
typedef struct trib_host_stream trib_host_stream;
trib_host_stream *trib_host_stream_create(bool open);
void trib_host_stream_open(trib_host_stream *stream);
void trib_host_stream_free(trib_host_stream *stream);

#endif
