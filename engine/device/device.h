/*
 * device.h - the interface through which the engine moves tensors that live on a GPU.
 *
 * A device takes jobs: it waits for a caller's stream, copies between device and host, or takes part in a collective of
 * the machine's local group. A job is embedded in the object that it works for. `submit` takes it and never blocks. The
 * device gives each job back exactly once: the job's post runs on its reactor, with a status and a text.
 *
 * Invariants
 *
 * - Jobs submitted by one thread begin in that order. Collectives begin in the order of submission and are matched by
 *   that order alone. The engine makes all members of the group use the same order (group.h).
 * - A job begins on the device after its `after` has ended there; no thread of the host waits for that. If `after` is
 *   known to have failed by then, the job fails, too.
 * - After stop every job comes back within STOP_NS, including collectives whose other members are dead.
 * - Until a job is back its memory, and that of its `after`, belong to the device.
 *
 * Implementations: device_host.c, in plain memory of one process, for machines without a GPU and for virtual time; and
 * CUDA with NCCL, in a module of its own (stages/cuda/).
 */
#ifndef TRIB_ENGINE_DEVICE_H
#define TRIB_ENGINE_DEVICE_H

#include "engine/base/limits.h"
#include "engine/base/kernel_ops.h"
#include "engine/codec/codec.h"
#include "engine/reactor/reactor.h"

#define TRIB_DEVICE_ABI 17u
#define TRIB_DEVICE_ID_SIZE 128u
#define TRIB_DEVICE_TEXT_SIZE 160u

typedef struct trib_device trib_device;

typedef enum trib_device_kind {
    TRIB_DEVICE_WAIT,           /* ends when the caller's stream has reached the marker */
    TRIB_DEVICE_TO_HOST,        /* bytes from source (device) to target (host) */
    TRIB_DEVICE_ENCODE,         /* as TO_HOST, but the target gets what a codec makes of the source's elements */
    TRIB_DEVICE_TO_DEVICE,      /* bytes from source (host) to target (device) */
    TRIB_DEVICE_DECODE,         /* as TO_DEVICE, but the target gets the elements that the source's chunks encode */
    TRIB_DEVICE_SEE,            /* makes data that a network device has written to target visible to the device */
    TRIB_DEVICE_REDUCE_SCATTER, /* target gets this member's shard of the sum of the members' sources */
    TRIB_DEVICE_ALL_GATHER,     /* target gets every member's shard; this member's shard is in place already */
    TRIB_DEVICE_ALL_REDUCE,     /* target gets the whole sum; in a group of one a copy */
    TRIB_DEVICE_BROADCAST,      /* target gets the root's source; in a group of one a copy */
    TRIB_DEVICE_MAKE_ID,        /* target (TRIB_DEVICE_ID_SIZE bytes of host memory) gets a new group's name */
    TRIB_DEVICE_JOIN,           /* makes the device a member of the group named at source */
    TRIB_DEVICE_KIND_COUNT
} trib_device_kind;

/* How a device encodes or decodes a partition, chunk by chunk. Each chunk has `room` bytes of host memory: the number
 * of its encoded bytes (uint32_t), and from TRIB_DEVICE_ENCODED_AT on, these. What is to be decoded has been checked
 * (trib_codec.inspect). */
#define TRIB_DEVICE_ENCODED_AT 16u
typedef struct trib_device_encoding {
    const trib_codec_config *config; /* without state */
    trib_codec_place place;          /* of the first chunk; for ENCODE */
    uint32_t chunk_elements;         /* of every chunk but the last */
    uint32_t room;                   /* a multiple of 16 */
    uint64_t encoded_bytes;          /* of all chunks' rooms; the last one may be cut */
    /* For ENCODE with feedback or momentum: the place for the address of the device's memory of the partition, with the
     * residual and the momentum. The first job sets it, and `forget` frees it. What was returned is added first. */
    void **kept;
    const trib_codec_returned *returned;
} trib_device_encoding;

/* The end of an operation on the device, for which streams may wait. The engine clears all but the event before each
 * operation. */
typedef struct trib_device_end {
    atomic_uint jobs_launched; /* of the jobs with which the operation ends */
    atomic_bool is_launched;   /* all of them, and the event behind them */
    void *event;               /* for the device, which frees it when it is closed */
} trib_device_end;

typedef struct trib_device_job {
    trib_post post; /* runs on reactor when the job is over */
    trib_reactor *reactor;
    void *owner; /* for post.run */
    trib_device_kind kind;
    trib_dtype dtype;
    trib_reduce reduce;
    const void *source;
    void *target;
    size_t bytes;  /* for collectives: size of the whole piece */
    size_t shard;  /* for collectives: member r has bytes [r * shard, (r + 1) * shard), cut at `bytes` */
    uint32_t root; /* for BROADCAST: a member */
    const trib_device_encoding *encoding; /* for ENCODE and DECODE */
    /* The device had no memory to encode or decode in. An ENCODE has copied the elements as they are then, and a DECODE
     * was carried out by a processor. A device that keeps a residual has memory to encode. */
    bool was_full;
    bool took_back; /* an ENCODE that may have failed has begun to add what was returned to the residual */
    uint64_t label; /* for collectives: the same on all members; checked by the host implementation */
    const struct trib_device_job *after;
    void *marker; /* for WAIT: from marker_record, owned by the job */
    /* The job is one of end_jobs with which an operation ends. They are launched on one stream, so the last of them to
     * be launched ends last. NULL: the operation goes on after it. */
    trib_device_end *end;
    uint32_t end_jobs;
    trib_status status;
    char text[TRIB_DEVICE_TEXT_SIZE];
    struct trib_device_job *next; /* the device's own: its lists of jobs */
    void *slot;                   /* the device's own: what a job in progress uses; NULL before it begins */
} trib_device_job;

/* How a network device reaches a piece of memory. */
typedef struct trib_device_memory {
    int fd;          /* a dma-buf, which the caller of expose closes; -1: ordinary host memory */
    uint64_t offset; /* offset in the dma-buf */
} trib_device_memory;

typedef struct trib_device_params {
    int32_t index;      /* -1: the calling thread's current device */
    int32_t rank, size; /* rank in the local group, and its size */
    int32_t machine;
    const trib_kernels *kernels;
    trib_logger *logger;
    int64_t poll_window_max_ns; /* longest time that a thread of the device spins for more work (poll_window.h) */
    void (*complete)(trib_device_job *job); /* any thread: gives back a job */
    /* Any thread: wakes reactors of the engine. Bit i stands for the reactor with index i. */
    void (*wake)(void *engine, uint32_t reactors);
    /* Any thread: the end of an operation was launched since stream_wait returned TRIB_BUSY. */
    void (*launched)(void *engine);
    void *engine;
    /* called first by each thread of the device, which places the thread; may be NULL */
    void (*thread_began)(void *memory);
    void *memory; /* argument of thread_began */
    void *world;  /* shared by the members of the host implementation in one process */
} trib_device_params;

typedef struct trib_device_ops {
    uint32_t abi;     /* TRIB_DEVICE_ABI */
    const char *name; /* "cuda", "host memory" */
    /* Any thread, before open: stores the device's PCI address ("0000:3b:00.0"). Returns false if it is unknown. May be
     * NULL. */
    bool (*locate)(int32_t index, char *pci, size_t size);
    /* Any thread: whether the devices of a machine can reduce elements of the type so. Asked only of pairs that suit
     * each other (trib_reduce_suits). */
    bool (*reduces)(trib_dtype dtype, trib_reduce reduce);
    /* Any thread: whether the device takes ENCODE jobs of that codec and type. NULL: it takes none. */
    bool (*encodes)(const trib_codec_config *config, trib_dtype dtype);
    /* The same of DECODE jobs. */
    bool (*decodes)(const trib_codec_config *config, trib_dtype dtype);
    /* Any thread, when no job uses it: frees what a partition's ENCODE jobs have kept. device: NULL if it is closed. */
    void (*forget)(trib_device *device, void *kept);
    trib_status (*open)(const trib_device_params *params, trib_device **out, trib_error *error);
    /* Any thread: takes the job. */
    void (*submit)(trib_device *device, trib_device_job *job);
    /* Caller's thread: records a marker on the stream. A NULL marker means that the stream has no work left.
     * TRIB_UNSUPPORTED: the stream is being captured into a graph. */
    trib_status (*marker_record)(trib_device *device, void *stream, void **marker_out, trib_error *error);
    /* Caller's thread: lets the device thread, which marker_record has woken, wake the reactors. The caller saves a
     * system call for each of them. With `hurries` the device thread takes the task only if it is about to wake some
     * anyway. Returns false if the device thread is in long calls or stops; the caller wakes the reactors itself
     * then. */
    bool (*wake)(trib_device *device, uint32_t reactors, bool hurries);
    /* Any thread: drops a marker that no job owns. */
    void (*marker_drop)(trib_device *device, void *marker);
    /* Caller's thread: later work of the stream waits for the operation's end. TRIB_BUSY: that has not been launched
     * yet, and the stream does not wait; the caller may try again when params.launched is called. */
    trib_status (*stream_wait)(trib_device *device, void *stream, const trib_device_end *end, trib_error *error);
    /* Pins an extent of host memory that will take part in copies. */
    trib_status (*pin)(trib_device *device, void *base, size_t size);
    void (*unpin)(trib_device *device, void *base, size_t size);
    /* Any thread: finds out how network devices can reach that memory. TRIB_UNSUPPORTED: device memory that network
     * devices cannot use, or whose device would not see their writes; *error gives the reason. */
    trib_status (*expose)(trib_device *device, void *base, size_t size, trib_device_memory *memory_out,
                          trib_error *error);
    /* Any thread: gives up all jobs. orderly: the other members are expected to stop, too. */
    void (*stop)(trib_device *device, bool orderly);
    /* Closes the device after its last job is back, in bounded time, from the thread that closes the engine. */
    void (*close)(trib_device *device);
} trib_device_ops;

/* The implementation in plain memory, and the world that the members in one process share. */
extern const trib_device_ops trib_device_host_ops;
typedef struct trib_host_world trib_host_world;
trib_host_world *trib_host_world_create(void); /* NULL when out of memory */
void trib_host_world_free(trib_host_world *world);
/* Lets jobs take time in virtual time, on each member's device independently. Without a pace jobs end at once, and all
 * parts of a collective together. Set before the world runs. */
typedef struct trib_host_pace {
    struct trib_sim *sim;                                          /* NULL: none */
    int64_t (*late_ns)(void *user, int32_t machine, int32_t rank); /* duration of the next job */
    void *user;
} trib_host_pace;
void trib_host_world_pace(trib_host_world *world, const trib_host_pace *pace);
/* Number of times that members of a group came to collectives in different orders, which would hang NCCL. */
uint32_t trib_host_world_order_conflicts(trib_host_world *world);
/* For tests: lets the next jobs of that member fail, or hang until stop, or find no memory to encode or decode in. */
typedef enum trib_host_fault {
    TRIB_HOST_FAULT_NONE,
    TRIB_HOST_FAULT_FAIL,
    TRIB_HOST_FAULT_HANG,
    TRIB_HOST_FAULT_FULL
} trib_host_fault;
void trib_host_world_fault(trib_host_world *world, int32_t machine, int32_t rank, trib_host_fault fault);

/* Ends the member and its device: a collective whose part the member has not finished never ends. */
void trib_host_world_kill(trib_host_world *world, int32_t machine, int32_t rank);

/* A stream of the implementation in plain memory. Its markers count as reached while the stream is open. */
typedef struct trib_host_stream trib_host_stream;
trib_host_stream *trib_host_stream_create(bool open);
void trib_host_stream_open(trib_host_stream *stream);
void trib_host_stream_free(trib_host_stream *stream);

#endif
