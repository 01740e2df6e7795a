/*
 * tributary.h - sum gradients between machines.
 *
 * Every worker hands in a tensor, every worker gets the sum over all workers. Summation servers, on machines of their
 * own or colocated in the workers' processes, add the pieces up (BytePS, Jiang et al., OSDI'20).
 *
 * THREADS    A function marked TRIB_ANY_THREAD may be called from any thread at any time between create and destroy.
 *            The others say from where. No function blocks unless its comment says so, with the bound on how long.
 * LIFETIME   trib_engine_create, trib_tensor_declare, trib_group_create and the operations hand out opaque handles. A
 *            tensor's lives until trib_tensor_release or the engine's end, a group's until trib_group_release or that
 *            end; an operation's, if you asked for one, until trib_op_release, before that end. Calls refuse NULL and,
 *            as far as it can be seen, an engine that was destroyed or what never was one (TRIB_INVALID), and in a
 *            forked child its parent's handles (TRIB_STATE, docs/embedding.md); those that return no status do nothing
 *            then. Handles of tensors, groups and operations are numbers, not addresses: one that was given back, or
 *            any other value, is refused (TRIB_INVALID) and never followed. Not from signal handlers, nor after main
 *            has returned (atexit).
 * OUTPUTS    *error, where it is given, always says how the call ended: TRIB_OK with an empty text, or why not. A
 *            handle or memory that a call hands out (*engine_out, *tensor_out, *op_out, *memory_out) is NULL if it
 *            fails.
 * CALLBACKS  An operation that was taken (the call returned TRIB_OK) completes exactly once; one that was not taken was
 *            not touched, and its callback never runs. No callback runs inside the call that caused it, but on another
 *            thread it may run before that call has returned; trib_config.mode chooses where. A callback may call every
 *            TRIB_ANY_THREAD function. Those that block return TRIB_WRONG_THREAD there, but for trib_trace_write and
 *            trib_alloc: its thread waits. It must return: docs/embedding.md says when an exception may leave it. One
 *            that keeps a reactor for more than half of peer_timeout_ns is named in the log.
 * STRUCTS    Parameter structs start with struct_size; fill them with their *_init function, which zeroes the rest.
 *            Unknown flags and non-zero reserved fields are refused: a program built for a newer header fails clearly.
 */
#ifndef TRIBUTARY_H
#define TRIBUTARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRIB_VERSION_MAJOR 0
#define TRIB_VERSION_MINOR 1
#define TRIB_VERSION_PATCH 0
#define TRIB_VERSION_STRING "0.1.0"
/* A number that grows with each release: #if TRIB_VERSION_NUMBER >= 100 is true from 0.1.0 on. */
#define TRIB_VERSION_NUMBER (TRIB_VERSION_MAJOR * 10000 + TRIB_VERSION_MINOR * 100 + TRIB_VERSION_PATCH)

#if defined(__GNUC__)
#define TRIB_API __attribute__((visibility("default")))
#define TRIB_CHECKED __attribute__((warn_unused_result))
#else
#define TRIB_API
#define TRIB_CHECKED
#endif
#define TRIB_ANY_THREAD /* documentation only: the function may be called from any thread */

/* ---- Status codes ------------------------------------------------------------------------------------------------ */

/* All status codes, as X(name, number, text). 0: success, above 0: "not yet", below 0: an error. Errors are grouped by
 * the largest thing that they ruin: a call or operation (-1..), a peer and everything that depended on it (-40..), the
 * engine (-60..). */
#define TRIB_STATUS_LIST(X)                                                                                            \
    X(TRIB_OK, 0, "success")                                                                                           \
    X(TRIB_PENDING, 1, "not finished yet")                                                                             \
    X(TRIB_AGAIN, 2, "no room at the moment, try again later")                                                         \
    X(TRIB_INVALID, -1, "invalid argument")                                                                            \
    X(TRIB_STATE, -2, "call not allowed in this state or mode")                                                        \
    X(TRIB_BUSY, -3, "too many operations in flight (trib_config.ops_max)")                                            \
    X(TRIB_NO_MEMORY, -4, "out of memory")                                                                             \
    X(TRIB_TIMEOUT, -5, "deadline passed")                                                                             \
    X(TRIB_CANCELLED, -6, "cancelled")                                                                                 \
    X(TRIB_MISMATCH, -7, "workers disagree about a tensor or an operation")                                            \
    X(TRIB_WRONG_THREAD, -8, "call not allowed from this thread")                                                      \
    X(TRIB_UNSUPPORTED, -9, "not supported by this build or machine")                                                  \
    X(TRIB_PEER_LOST, -40, "a peer was lost")                                                                          \
    X(TRIB_PEER_LEFT, -41, "a peer left the job")                                                                      \
    X(TRIB_PROTOCOL, -42, "a peer broke the protocol")                                                                 \
    X(TRIB_UNAUTHORIZED, -43, "the peer could not prove the shared token")                                             \
    X(TRIB_JOIN_FAILED, -44, "the job did not come together in time")                                                  \
    X(TRIB_EPOCH_CHANGED, -45, "the membership has changed: call trib_membership_advance")                             \
    X(TRIB_CLOSED, -60, "the engine is closing or closed")                                                             \
    X(TRIB_SYSTEM, -61, "a system call failed")

typedef enum trib_status {
#define TRIB_STATUS_ENUM(name, number, text) name = (number),
    TRIB_STATUS_LIST(TRIB_STATUS_ENUM)
#undef TRIB_STATUS_ENUM
} trib_status;

#define TRIB_ERROR_TEXT_SIZE 384

/* An error in words: the text names the tensor, the peer or the setting, and what to do. */
typedef struct trib_error {
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
} trib_error;

/* The constant's name ("TRIB_TIMEOUT") and its text; never NULL. TRIB_ANY_THREAD. */
TRIB_API const char *trib_status_name(trib_status status);
TRIB_API const char *trib_status_text(trib_status status);

/* "0.1.0" of the library in use, which may differ from the header's. TRIB_ANY_THREAD. */
TRIB_API const char *trib_version(void);
/* TRIB_VERSION_NUMBER of the library in use. TRIB_ANY_THREAD. */
TRIB_API uint32_t trib_version_number(void);
/* True if this library has the feature on this machine: a transport ("tcp", "shm", "rdma"), a device ("cuda": its
 * module can be loaded, which may take a moment), or a part of this interface ("unique_id", "oob", "interfaces",
 * "groups", "batches", "members", "settings", "survive_servers", "survive_workers", "survive_continue", "codecs").
 * False for NULL and unknown names, so that a program may ask for what a later release has. TRIB_ANY_THREAD. */
TRIB_API bool trib_has_feature(const char *name);

/* ---- Types of elements and operations ----------------------------------------------------------------------- */

typedef enum trib_dtype {
    TRIB_FLOAT32 = 0,
    TRIB_FLOAT64 = 1,
    TRIB_FLOAT16 = 2,  /* IEEE binary16; summed in float32, rounded once */
    TRIB_BFLOAT16 = 3, /* summed in float32, rounded once */
    TRIB_INT8 = 4,
    TRIB_UINT8 = 5,
    TRIB_INT32 = 6,
    TRIB_INT64 = 7,
    TRIB_BOOL = 8, /* one byte, which must be 0 or 1 */
    TRIB_INT16 = 9,
    TRIB_UINT16 = 10,
    TRIB_UINT32 = 11,
    TRIB_UINT64 = 12,
    TRIB_FLOAT8_E4M3 = 13, /* OCP's E4M3: no infinity, largest 448; summed in float32, rounded once */
    TRIB_FLOAT8_E5M2 = 14, /* OCP's E5M2: infinities, largest 57344; summed in float32, rounded once */
    TRIB_DTYPE_COUNT = 15
} trib_dtype;

/* SUM and PRODUCT of integers wrap modulo 2^bits. AVG divides by the number of contributors: floats round once,
 * integers are summed wider (64 bits wrap) and truncated. MIN and MAX of floats give NaN if an input is NaN; -0.0 is
 * below +0.0. A NaN that is computed is positive and quiet, without a payload. Of bools, SUM and MAX are OR, PRODUCT
 * and MIN are AND. A value that is too large for an 8-bit float becomes NaN in E4M3 and infinity in E5M2: no result
 * saturates. The bitwise reductions need integers or bools, and AVG of bools does not exist (trib_reduce_suits). One
 * contribution alone is copied bit by bit. GPUs of a machine compute as NCCL does, rounding each time; with no other
 * machine AVG multiplies inputs by 1 / contributors, rounded too. They have no bitwise reductions of integers, no XOR
 * of bools, no 16-bit integers and no 8-bit floats. */
typedef enum trib_reduce {
    TRIB_SUM = 0,
    TRIB_AVG = 1,
    TRIB_MIN = 2,
    TRIB_MAX = 3,
    TRIB_PRODUCT = 4,
    TRIB_BIT_AND = 5,
    TRIB_BIT_OR = 6,
    TRIB_BIT_XOR = 7,
    TRIB_REDUCE_COUNT = 8
} trib_reduce;

/* Bytes per element; 0 for an unknown type. TRIB_ANY_THREAD. */
TRIB_API size_t trib_dtype_size(trib_dtype dtype);
/* "float32", "sum", ...; "?" for an unknown value. TRIB_ANY_THREAD. */
TRIB_API const char *trib_dtype_name(trib_dtype dtype);
TRIB_API const char *trib_reduce_name(trib_reduce reduce);
/* True for float64, ... float8_e5m2. TRIB_ANY_THREAD. */
TRIB_API bool trib_dtype_is_float(trib_dtype dtype);
/* True if the reduction exists for elements of the type. An operation with another pair is rejected with
 * TRIB_UNSUPPORTED. TRIB_ANY_THREAD. */
TRIB_API bool trib_reduce_suits(trib_dtype dtype, trib_reduce reduce);

/* ---- Configuration ------------------------------------------------------------------------------------------ */

typedef struct trib_engine trib_engine;
typedef struct trib_tensor trib_tensor;
typedef struct trib_group trib_group;
typedef struct trib_op trib_op;
struct ev_loop;

/* How the engine runs and where callbacks run. */
typedef enum trib_mode {
    TRIB_MODE_THREADS = 0,  /* engine threads; callbacks run on them and must be short */
    TRIB_MODE_QUEUE = 1,    /* engine threads; callbacks run inside trib_engine_dispatch, on the caller's thread */
    TRIB_MODE_ATTACHED = 2, /* no threads: one reactor on the caller's own ev_loop; callbacks run from that loop */
} trib_mode;

/* The roles of this process in the job; a set of bits. */
typedef enum trib_role {
    TRIB_ROLE_WORKER = 1,      /* contributes and receives sums */
    TRIB_ROLE_SERVER = 2,      /* sums for others; with WORKER: colocated */
    TRIB_ROLE_COORDINATOR = 4, /* keeps the membership; implied for worker rank 0 unless external_coordinator */
} trib_role;

typedef enum trib_colocate {
    TRIB_COLOCATE_AUTO = 0, /* workers sum a share where that makes the exchange faster (docs/architecture.md) */
    TRIB_COLOCATE_OFF = 1,  /* only dedicated servers sum */
    TRIB_COLOCATE_ON = 2,   /* workers sum the bandwidth-optimal share */
} trib_colocate;

/* In which order contributions are added. */
typedef enum trib_sum_order {
    TRIB_ORDER_RANK = 0,    /* a fixed tree over ranks: the same bits in any order of arrival and on any member */
    TRIB_ORDER_ARRIVAL = 1, /* in the order of arrival: least memory, but bits may differ from run to run */
} trib_sum_order;

/* Whether the workers of a machine sum among themselves first, so that one contribution leaves the machine. Several
 * machines are needed, each with the same number of workers (at least two) and with consecutive ranks; otherwise no
 * machine does it. */
typedef enum trib_local_sum {
    TRIB_LOCAL_SUM_AUTO = 0, /* where machines are so, and the bits of sums do not change (docs/architecture.md) */
    TRIB_LOCAL_SUM_OFF = 1,  /* every worker pushes its own contributions */
    TRIB_LOCAL_SUM_ON = 2, /* where machines are so; the bits of sums may depend on the number of workers per machine */
} trib_local_sum;

typedef enum trib_shares { TRIB_SHARES_FIXED = 0, TRIB_SHARES_FOLLOW = 1 } trib_shares;
/* Payloads that carry a CRC32C for the receiver to check. AUTO: payloads that cross a network over TCP, if the
 * processor has CRC instructions. ON: all payloads that a processor moves, within a machine too. RDMA devices check
 * their payloads themselves. */
typedef enum trib_checksum { TRIB_CHECKSUM_AUTO = 0, TRIB_CHECKSUM_OFF = 1, TRIB_CHECKSUM_ON = 2 } trib_checksum;
/* The members whose loss costs no operation. SERVERS: a dedicated server, for whole tensors in host memory that all
 * workers share (docs/failure.md). WORKERS: as SERVERS; besides, the loss of any other member ends the operations in
 * flight with TRIB_EPOCH_CHANGED, on all workers or on none, and the members that are left go on after
 * trib_membership_advance if they are a majority of the members, or half of them with the coordinator. CONTINUE: as
 * WORKERS, but operations complete with the contributions of the workers that are left, and ranks stay as they were:
 * the program need not do anything. NOTHING (default): the loss of any member ends the job. */
typedef enum trib_survive {
    TRIB_SURVIVE_NOTHING = 0,
    TRIB_SURVIVE_SERVERS = 1,
    TRIB_SURVIVE_WORKERS = 2,
    TRIB_SURVIVE_CONTINUE = 3,
} trib_survive;
typedef enum trib_gpu_direct { TRIB_GPU_DIRECT_AUTO = 0, TRIB_GPU_DIRECT_OFF = 1 } trib_gpu_direct;

typedef enum trib_log_level {
    TRIB_LOG_NONE = 0,
    TRIB_LOG_ERROR = 1,
    TRIB_LOG_WARN = 2,
    TRIB_LOG_INFO = 3,
    TRIB_LOG_DEBUG = 4,
    TRIB_LOG_TRACE = 5
} trib_log_level;

/* One line of log, without newline. May run on any engine thread; must be thread-safe and must not call the engine. */
typedef void (*trib_log_cb)(trib_log_level level, const char *line, void *user);

/* The engine joined its job (status TRIB_OK), or could not (error says who is missing and why). Runs once, where
 * callbacks run. error is valid until the callback returns. */
typedef void (*trib_ready_cb)(trib_engine *engine, const trib_error *error, void *user);

/* The job has ended for this engine, which was not closed: all workers have left (error->status is TRIB_OK, which tells
 * a dedicated server that its work is done), or the job has failed (error says why; after ready_cb if the engine had
 * not joined). Runs once at most, where callbacks run; close or destroy the engine then. error is valid until the
 * callback returns. */
typedef void (*trib_ended_cb)(trib_engine *engine, const trib_error *error, void *user);

/* An id lets a job form without a configured address: one process makes the id, the program hands its bytes to all
 * others by means of its own, and all put it into trib_config.unique_id. The id contains an address, a reserved port
 * and a token. Whoever has read it can join the job, so it must travel as a secret does. */
#define TRIB_UNIQUE_ID_SIZE 256
typedef struct trib_unique_id {
    char bytes[TRIB_UNIQUE_ID_SIZE];
} trib_unique_id;

/* An all-gather of the program's own: `mine` has this worker's `bytes` bytes, and `all` gets those of every worker, in
 * the order of ranks. Blocks until it is done. Returns 0, or another number for a failure. Runs once, inside
 * trib_engine_create, on its thread. */
typedef int (*trib_oob_cb)(const void *mine, void *all, size_t bytes, void *user);

/* Settings of one engine. Strings are copied by trib_engine_create. Zero means "the default" wherever the comment
 * names one. Those marked [job] are decided by the coordinator's process; other members' values are ignored. */
typedef struct trib_config {
    uint32_t struct_size; /* set by trib_config_init */
    uint32_t flags;       /* none defined: 0 */

    trib_mode mode;
    uint32_t roles; /* bits of trib_role; default TRIB_ROLE_WORKER */
    /* This worker's rank, 0..worker_count-1. -1: it joins a job that is under way (TRIB_SURVIVE=workers), at the next
     * trib_membership_advance of the others, and learns rank and counts there. Servers: the number wanted, or -1. */
    int32_t rank;
    int32_t worker_count;      /* workers in the job; trib_config_init sets 1; 0 is refused */
    int32_t server_count;      /* number of dedicated servers; default 0 */
    trib_colocate colocate;    /* [job] */
    bool external_coordinator; /* a process of its own (tributary coordinator) keeps the membership instead of rank 0 */

    const char
        *coordinator; /* "host:port", or several with commas; may be NULL in a job of one process or with store */
    /* Address or interface to listen on (docs/operating.md), or several with commas. Several are dealt evenly to
     * reactors, by nearness where it is known, else in turns; the rest are spare. Any address but loopback needs a
     * token. Default 127.0.0.1, or with a token the address that leads to rank 0. */
    const char *listen;
    const char *job; /* the job's name: members of other jobs are refused; default "default" */
    /* Shared secret of at least 8 bytes. Below 32 bytes trib_engine_create takes 0.1 s and 64 MiB to hash it slowly.
     * NULL: none, and then all addresses must be a single loopback address each. */
    const char *token;
    const char *transport; /* "auto" (default: shared memory in a machine, else RDMA, else TCP), "tcp", "shm", "rdma" */

    uint32_t reactors;        /* event loops, one thread and core each; default from cores and processes per machine */
    uint32_t partition_bytes; /* [job] unit that is scheduled, at most; up to 65536 times chunk_bytes; 1 MiB */
    uint32_t chunk_bytes;     /* [job] unit that is summed and sent, at most; 4 KiB..1 MiB, power of two; 256 KiB */
    uint32_t push_credit_bytes; /* credit of a reactor for pushes: bytes that its transport may hold; 1 MiB */
    uint32_t pull_credit_bytes; /* credit of a connection for sums that a server sends; default 1 MiB */
    uint32_t ops_max;           /* operations in flight, and handles not given back; default 65536 */
    uint64_t bandwidth_bits;    /* this machine's link, bits per second each way; 0 = like everyone's */
    trib_sum_order sum_order;   /* [job] */
    bool busy_poll;             /* reactors spin instead of sleeping; default false: an idle engine uses no CPU */
    bool pin;                   /* pin reactors to cores; default true (ATTACHED: never) */

    int64_t join_timeout_ns;  /* time in which the job must form; default 60 s */
    int64_t op_timeout_ns;    /* default deadline of an operation; default 300 s */
    int64_t peer_timeout_ns;  /* [job] silence after which a peer counts as lost; default 10 s */
    int64_t close_timeout_ns; /* longest time that closing may take to flush; default 5 s */
    /* TRIB_MODE_ATTACHED: the caller's loop, which must outlive the engine. If the loop ends first, all calls return
     * TRIB_STATE from then on, and the engine's memory is never freed. */
    struct ev_loop *loop;
    trib_ready_cb ready_cb; /* may be NULL */
    void *ready_user;
    trib_ended_cb ended_cb; /* may be NULL */
    void *ended_user;
    trib_log_level log_level; /* default TRIB_LOG_WARN; trib_config_from_env takes it from TRIB_LOG */
    trib_log_cb log_cb;       /* NULL = standard error */
    void *log_user;
    const char *trace;    /* file for the trace; NULL: no trace; see TRACES below */
    uint64_t trace_bytes; /* memory for the trace's records, of all reactors together; default 64 MiB */
    /* Tensors on GPUs (docs/gpu.md): one process for each GPU; the ranks of a machine are consecutive. */
    const char *device;         /* "none" (default); "cuda": needs the CUDA module */
    int32_t device_index;       /* GPU's index; default -1: the current device of the thread that creates the engine */
    int32_t local_size;         /* processes that share a machine, the same on all machines; default 1 */
    int32_t local_rank;         /* place of this process among them: rank modulo local_size */
    trib_local_sum local_sum;   /* [job] for tensors in host memory */
    int64_t busy_poll_ns;       /* time that a reactor polls before it sleeps; 0: as pays, with a GPU 0.5 to 25 ms */
    trib_shares shares;         /* [job] parts of the sum that members get; FOLLOW (default): by measured link rates */
    trib_gpu_direct gpu_direct; /* AUTO: RDMA reads and writes device memory that was registered, where it can */
    const char *coordinator_source; /* launcher's variables that gave the coordinator, for texts; or NULL */
    trib_checksum checksum;         /* for payloads that this process sends; a received CRC32C is always checked */
    trib_survive survive;           /* [job] members whose loss costs no operation; default TRIB_SURVIVE_NOTHING */
    /* Codec of tensors that name none and can have it, or codecs by tensor name and size: "int8; *.bias=none"
     * (docs/codecs.md); the same on all workers. "auto": the codec that makes a step faster, if any does. NULL: none */
    const char *codec;
    uint64_t codec_min_bytes; /* smaller tensors do not use `codec`; default 64 KiB */
    /* An id takes the place of coordinator and token, whose values are then ignored. Either all members give the same
     * unique_id, or all workers give oob_cb, an exchange of the program's own by which rank 0 passes an id to all. With
     * oob_cb rank 0's coordinator may be "host:0" to say where it listens, as trib_unique_id_create_at takes it. */
    const trib_unique_id *unique_id; /* copied; or NULL */
    trib_oob_cb oob_cb;              /* all workers give it, or none; or NULL */
    void *oob_user;
    /* The program's own codecs, which `codec` and tensors may then name; see CODECS below. Copied; NULL: none. */
    const struct trib_codec_desc *codecs;
    uint32_t codec_count; /* at most TRIB_CODECS_MAX, with those of codec_library */
    /* Quorum of tensors that name none: their all-reduces go on without stragglers once this many workers have begun
     * them and quorum_timeout_ns has passed; see QUORUM below. The same on all workers. 0 (default): all workers
     * contribute */
    uint32_t quorum;
    const char *codec_library; /* shared object with further codecs; NULL: none */
    /* "etcd://host:port/prefix" of a store that records the last epoch and where its coordinator is (docs/failure.md).
     * The same on all members; NULL: none. TRIB_UNSUPPORTED if the library was built without libcurl. */
    const char *store;
    int64_t quorum_timeout_ns; /* from the first contribution on; default 1 s; the same on all workers */
    uint64_t reserved[1];      /* must be 0 */
} trib_config;

/* Fills *config with the defaults; NULL is fine. struct_size must be sizeof(trib_config). TRIB_ANY_THREAD. */
TRIB_API void trib_config_init(trib_config *config, size_t struct_size);

/* Fills ranks, counts, coordinator address and settings from the environment: TRIB_* variables (docs/operating.md),
 * else those of torchrun, Open MPI, MPICH/Hydra, Slurm or BytePS (DMLC_*). A field for which no variable is set keeps
 * its value. Strings point into the environment or static storage of the calling thread; trib_engine_create copies
 * them: call it before the environment changes. TRIB_INVALID: *error (may be NULL) says why. Not thread-safe against
 * setenv. */
TRIB_API TRIB_CHECKED trib_status trib_config_from_env(trib_config *config, trib_error *error);

/* Makes an id in the process that will keep the membership: rank 0, or the coordinator of its own. Its port stays
 * reserved in this process, with a descriptor, until that engine, created with the id, has taken it, or until
 * trib_unique_id_release; each id serves one engine. A process may make several. The host is that of TRIB_COORDINATOR,
 * else the first that TRIB_LISTEN or TRIB_INTERFACE names, else the first address of the machine's interfaces;
 * trib_unique_id_create_at takes "host:0" or "host:port" instead, where the host may be the name or pattern of an
 * interface ("eth0:0", "ib*:0"; docs/operating.md). TRIB_INVALID (no such host or interface), TRIB_SYSTEM (no port, no
 * random bytes), TRIB_NO_MEMORY: *error (may be NULL) says why, and *id_out is 0. May ask a resolver, and block for it.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_unique_id_create(trib_unique_id *id_out, trib_error *error);
TRIB_API TRIB_CHECKED trib_status trib_unique_id_create_at(const char *address, trib_unique_id *id_out,
                                                           trib_error *error);
/* Gives up the port of an id that no engine shall be created with. Does nothing for NULL, an id of another process, or
 * one whose engine has been created. TRIB_ANY_THREAD. */
TRIB_API void trib_unique_id_release(const trib_unique_id *id);

/* ---- The engine --------------------------------------------------------------------------------------------- */

/* Creates an engine and starts joining the job; returns at once, unless the coordinator is given by a name that no
 * resolver knows yet: that is looked up for at most join_timeout_ns. Operations may be submitted right away: they start
 * when the job has come together. config is copied. On failure *engine_out is NULL and *error (may be NULL) says
 * why: TRIB_INVALID (a setting), TRIB_JOIN_FAILED (that name; oob_cb failed, or another worker could not take part; the
 * call returns when oob_cb does), TRIB_UNSUPPORTED (a transport or device),
 * TRIB_NO_MEMORY, TRIB_SYSTEM. ATTACHED: call it on the loop's thread. */
TRIB_API TRIB_CHECKED trib_status trib_engine_create(const trib_config *config, trib_engine **engine_out,
                                                     trib_error *error);

/* Blocks until the job has come together, at most timeout_ns (below 0: the join timeout decides). TRIB_OK,
 * TRIB_TIMEOUT, TRIB_JOIN_FAILED, TRIB_UNAUTHORIZED ... *error (may be NULL) says who is missing, or why the
 * coordinator is not reached. TRIB_STATE in TRIB_MODE_ATTACHED (use ready_cb), TRIB_WRONG_THREAD from a callback. Else
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_wait_ready(trib_engine *engine, int64_t timeout_ns, trib_error *error);

/* Begins to close: new operations are refused, those in flight complete with TRIB_CLOSED, sums that others still wait
 * for are flushed, peers are told. closed_cb (may be NULL) runs once, where callbacks run, at the latest after
 * close_timeout_ns (TRIB_MODE_QUEUE: by then it waits to be dispatched). Calling it again changes nothing: the first
 * callback stands. TRIB_ANY_THREAD (ATTACHED: the loop's thread). */
typedef void (*trib_closed_cb)(trib_engine *engine, void *user);
TRIB_API void trib_engine_close(trib_engine *engine, trib_closed_cb closed_cb, void *user);

/* Asks, on a dedicated server, to leave a job that goes on without it (trib_config.survive): other members take its
 * share, and no operation fails. Returns at once; ended_cb runs when nobody needs the server any more, with TRIB_OK, or
 * with TRIB_CLOSED if nobody else can sum its share: the server has then left as by trib_engine_close. On TRIB_STATE
 * nothing has happened, and *error (may be NULL) says why: this is no dedicated server, or the job does not go on
 * without it, has not come together or is over. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_drain(trib_engine *engine, trib_error *error);

/* Frees the engine, its tensors and its memory; NULL is fine. Closes first if need be, and blocks up to
 * close_timeout_ns (with a GPU 12 s more: docs/gpu.md), and in any case until a callback that runs on an engine's
 * thread has returned: a log line a second later says which one it waits for. ATTACHED: it runs the caller's loop then,
 * which must still be there. QUEUE: it dispatches what is left. The call does nothing and returns TRIB_WRONG_THREAD
 * from a callback or, ATTACHED, while another thread runs the loop; TRIB_OK in a forked child; TRIB_INVALID if the
 * pointer is no engine (any more). */
TRIB_API trib_status trib_engine_destroy(trib_engine *engine);

/* TRIB_MODE_QUEUE: a file descriptor that is readable while callbacks wait; watch it in any event loop and call
 * trib_engine_dispatch when it is. Owned by the engine. -1 in the other modes. TRIB_ANY_THREAD. */
TRIB_API int trib_engine_get_fd(const trib_engine *engine);

/* TRIB_MODE_QUEUE: runs the callbacks of at most max completions (0: of all that are there now) on the calling thread
 * and returns how many ran. ready_cb, ended_cb and closed_cb, where they are given, come so too and count as one each.
 * Never blocks. One thread at a time; a callback must not call it (returns 0). TRIB_MODE_ATTACHED, on the loop's
 * thread: for programs that poll. Does the work of a turn of the loop, callbacks included, except timers and
 * descriptors, and so without system calls: starts submitted operations, and takes messages that other processes of
 * this machine have sent through shared memory. Returns 1 if there was work, else 0. The loop must still run now and
 * then. */
TRIB_API size_t trib_engine_dispatch(trib_engine *engine, size_t max);

typedef struct trib_engine_info {
    uint32_t struct_size; /* set it to sizeof(trib_engine_info) before the call */
    int32_t rank;         /* -1 on a dedicated server */
    int32_t worker_count;
    int32_t server_count;  /* number of dedicated servers */
    int32_t summing_count; /* members that sum: servers and colocated workers; 0 before the job came together */
    uint32_t reactors;
    uint32_t epoch; /* state of the membership; 0 before the job came together */
    uint32_t partition_bytes, chunk_bytes;
    double t_opt_factor; /* least possible exchange time in units of bytes / link rate (OSDI'20); 0 if not known */
    uint32_t local_sum;  /* workers of each machine that sum first; 0: they do not, or the job has not come together */
    uint32_t reserved_32;
    /* This worker's place, by rank, among the workers of its machine (those that listen at one host), and among the
     * workers that have the same local_rank on their machines. Before the job came together, and on servers, ranks are
     * -1 and sizes 0. */
    int32_t local_rank, local_size;
    int32_t cross_rank, cross_size;
    uint64_t reserved[5];
} trib_engine_info;

/* Fills *info with what the engine knows of the job. TRIB_INVALID if struct_size is not known, TRIB_NO_MEMORY.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_get_info(const trib_engine *engine, trib_engine_info *info);

/* A member of the job. */
typedef struct trib_job_member {
    int32_t rank;      /* a worker's rank; -1 for a dedicated server */
    int32_t server;    /* a dedicated server's number; -1 for a worker */
    uint32_t roles;    /* bits of trib_role; SERVER: it sums or may come to sum */
    uint32_t reactors; /* event loops */
    char host[64];     /* name of its machine, shortened if it is long */
    char address[160]; /* where its first reactor listens: numeric, with port; several with commas */
    uint64_t reserved[4];
} trib_job_member;

/* Lists the job's members, workers by rank and then servers: at most capacity entries; *count_out is how many there are
 * in all. TRIB_STATE: the job has not come together yet. TRIB_INVALID. Never blocks. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_get_members(const trib_engine *engine, trib_job_member *members,
                                                          size_t capacity, size_t *count_out);

/* A setting as the engine uses it. Both names are static texts. */
typedef struct trib_setting_value {
    const char *variable; /* "TRIB_CHUNK_BYTES"; NULL: the environment does not have it */
    const char *field;    /* field of trib_config: "chunk_bytes" */
    char value[256];      /* value as the variable would have it, cut off if it is longer; a token is never shown */
} trib_setting_value;

/* Lists the settings of the table in docs/operating.md that are fields of trib_config: at most capacity entries;
 * *count_out is how many there are in all. Once the job has come together, those marked [job] have the coordinator's
 * values, and settings that were left to the engine have the values that it chose. TRIB_INVALID. Never blocks.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_get_settings(const trib_engine *engine, trib_setting_value *settings,
                                                           size_t capacity, size_t *count_out);

/* ---- Membership --------------------------------------------------------------------------------------------- */

/* The members of a job with TRIB_SURVIVE=workers or continue. */
typedef struct trib_membership {
    uint32_t struct_size; /* set it to sizeof(trib_membership) before trib_membership_get */
    uint32_t epoch; /* number of the membership, which grows with each change, by more than 1 at times; 0: none yet */
    /* TRIB_OK: this is the membership now. TRIB_EPOCH_CHANGED: its epoch is over, and operations fail until the program
     * has called trib_membership_advance. Otherwise the status with which the job ended. */
    trib_status status;
    /* This worker's rank, which may change; ranks are 0..worker_count-1. With TRIB_SURVIVE=continue ranks stay, and
     * those of lost workers are missing. -1 on a server. */
    int32_t rank;
    int32_t worker_count, server_count;
    uint32_t lost_count;             /* members that were lost between the membership before and this one */
    char text[TRIB_ERROR_TEXT_SIZE]; /* the member lost last, and the cause; or `status` in words; "": no loss */
    uint64_t reserved[4];
} trib_membership;

/* Runs where the callbacks of operations run. *membership is valid until it returns. */
typedef void (*trib_membership_cb)(trib_engine *engine, const trib_membership *membership, void *user);

/* Sets the callback that reports a change of the membership: an epoch is over, and membership->status is
 * TRIB_EPOCH_CHANGED. With TRIB_SURVIVE=continue the callback runs again, with TRIB_OK, when operations go on; if its
 * first call has not run by then, only the second one does. NULL: no callback. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_membership_watch(trib_engine *engine, trib_membership_cb changed_cb, void *user,
                                                        trib_error *error);

/* The boundary between two memberships, in a job with TRIB_SURVIVE=workers (docs/failure.md). With
 * TRIB_SURVIVE=continue it is needed for workers that join only, and ranks stay. Else, after the loss of a member,
 * every operation fails with TRIB_EPOCH_CHANGED, submitted before (unless it has succeeded on all workers) or after,
 * until all workers that are left have called this. Ranks are dense from then on and keep their order; tensors and
 * prepared operations stay, and their rounds are matched anew. It may be called without a loss, too: then it ends the
 * epoch when all workers have called it. Tensors with TRIB_PAIRS have to be declared anew if the number of workers has
 * changed. Returns at once. advanced_cb (may be NULL) runs when the new membership holds, with status TRIB_OK, or with
 * the status that ended the job. TRIB_UNSUPPORTED: the job ends at a loss. TRIB_STATE: it has not come together yet,
 * this is no worker, or an earlier call is under way or its callback has not run yet. Else the status that ended the
 * job. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_membership_advance(trib_engine *engine, trib_membership_cb advanced_cb,
                                                          void *user, trib_error *error);
/* Blocks until the call of trib_membership_advance that is under way has ended, at most timeout_ns (below 0: as long as
 * it takes; other workers may not have noticed the loss yet). *membership (may be NULL) is filled in. TRIB_TIMEOUT: the
 * call is still under way. TRIB_EPOCH_CHANGED: it has ended, and another member was lost since: call
 * trib_membership_advance again. Else the status that ended the job. Not in TRIB_MODE_ATTACHED (TRIB_STATE) or from a
 * callback (TRIB_WRONG_THREAD). */
TRIB_API TRIB_CHECKED trib_status trib_membership_wait(trib_engine *engine, int64_t timeout_ns,
                                                       trib_membership *membership, trib_error *error);
/* The membership as it is now. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_membership_get(trib_engine *engine, trib_membership *membership);

/* ---- Memory ------------------------------------------------------------------------------------------------- */

/* Page-aligned memory from the engine's arena: on the NUMA node of its reactors, on huge pages where there are any,
 * registered with transports that want it (part of a second for each GiB). Operations may use any memory, but copy
 * least with this kind. In a forked child it may follow the parent's. TRIB_INVALID (size 0), TRIB_NO_MEMORY: also for
 * more than the machine's memory and swap together; within that, pages are taken when they are first touched. Call
 * trib_free before destroy; for other memory, or a second time, trib_free only logs an error. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_alloc(trib_engine *engine, size_t size, void **memory_out);
TRIB_API void trib_free(trib_engine *engine, void *memory);

/* Registers memory of the caller's own that operations will use, such as long-lived buffers or the blocks of a caching
 * allocator. RDMA devices, which move memory by themselves, are told of it now, and a buffer that lies wholly in one
 * registration is then not copied. Other transports need no registration, and the call does nothing. It must be host
 * memory, readable and writable, or memory of trib_config.device (TRIB_UNSUPPORTED where it cannot be registered:
 * docs/rdma.md), and keep its pages until trib_memory_unregister or trib_engine_destroy: a device would go on with
 * pages that were unmapped or given back (munmap, MADV_DONTNEED, cudaFree), and sums would be wrong. Blocks while the
 * pages are locked, for large memory part of a second. TRIB_INVALID (size 0; a part is registered already, or
 * trib_alloc's), TRIB_SYSTEM, TRIB_NO_MEMORY: *error (may be NULL) says why, such as the limit on locked memory; the
 * memory may be used all the same, and is copied. From a callback TRIB_WRONG_THREAD, unless ATTACHED: there the loop
 * waits. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_memory_register(trib_engine *engine, void *memory, size_t size,
                                                       trib_error *error);
/* Must be called before registered memory is unmapped; `memory` is where it begins. TRIB_STATE: an operation in flight
 * uses it, so it stays registered; TRIB_INVALID: it is not registered; TRIB_WRONG_THREAD as above. Nothing may begin to
 * use it meanwhile. */
TRIB_API TRIB_CHECKED trib_status trib_memory_unregister(trib_engine *engine, void *memory, trib_error *error);

/* ---- Groups ------------------------------------------------------------------------------------------------- */

#define TRIB_TENSOR_NAME_MAX 255 /* bytes; of groups' names, too */

typedef struct trib_group_desc {
    uint32_t struct_size; /* set by trib_group_desc_init */
    uint32_t flags;       /* none defined: 0 */
    /* 1..TRIB_TENSOR_NAME_MAX bytes, the same on all members; a worker has one group of a name at a time. The rules of
     * tensor names apply */
    const char *name;
    const int32_t *ranks; /* its members, each once, in the order in which the group counts them from 0; copied */
    uint32_t rank_count;
    uint32_t reserved_32;
    uint64_t reserved[6];
} trib_group_desc;

/* Fills *desc with the defaults; NULL is fine. struct_size must be sizeof(trib_group_desc). TRIB_ANY_THREAD. */
TRIB_API void trib_group_desc_init(trib_group_desc *desc, size_t struct_size);

/* Makes a group of workers, which has tensors and collectives of its own, at any time. Each of its members calls this;
 * names decide which calls belong together. Servers are shared, and tensors of one name in two groups are two tensors.
 * Returns at once, and tensors may be declared in the group at once. The same name with the same ranks gives the same
 * handle; with others TRIB_MISMATCH. If members disagree about its ranks, or about the order of groups of one name, so
 * that they wait for each other, every operation in these groups completes with TRIB_MISMATCH, on every member, and a
 * text that says who gave which ranks; if all workers together have more groups than a job can have, those in the last
 * ones with TRIB_BUSY. TRIB_INVALID (a rank that does not fit or comes twice; this worker is none of them), TRIB_STATE
 * (no worker), TRIB_BUSY (this worker has as many groups as a job can have, 1023, with those that have not ended
 * everywhere since their release), TRIB_NO_MEMORY, TRIB_CLOSED. A group lives until trib_group_release or the engine's
 * end. With TRIB_SURVIVE=workers a group and its tensors end with the epoch: calls that use them then fail with
 * TRIB_EPOCH_CHANGED, and the name may be used for other ranks (TRIB_EPOCH_CHANGED between two epochs). With
 * TRIB_SURVIVE=continue TRIB_UNSUPPORTED. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_group_create(trib_engine *engine, const trib_group_desc *desc,
                                                    trib_group **group_out, trib_error *error);
/* Ends a group, and with it this worker's tensors in it: all these handles are refused from now on, and the group's
 * memory in this process is freed (with the last handle of operations in it). Every member must do so, each in its own
 * time, and may use the name again at once, for the same ranks or others, whether or not other workers have released
 * the group: the n-th group of a name and ranks is the n-th on all its members, and workers that share several groups
 * of one name create these in the same order. Servers and the coordinator forget the group when all its members have
 * released it or left. Operations that other members still submit in it lack this worker's contributions, as if it had
 * not submitted them. TRIB_STATE: operations in the group are in flight or prepared (trib_op_prepare), or another
 * thread is in a call that names it: nothing has changed. TRIB_INVALID. NULL is fine. TRIB_ANY_THREAD, also in a
 * callback, where the operation is complete. */
TRIB_API TRIB_CHECKED trib_status trib_group_release(trib_group *group, trib_error *error);
/* This worker's place in the group, from 0, and the number of its members. NULL, or a handle that was released: -1 and
 * 0. TRIB_ANY_THREAD. */
TRIB_API int32_t trib_group_rank(const trib_group *group);
TRIB_API int32_t trib_group_size(const trib_group *group);

/* ---- Codecs of a program's own ------------------------------------------------------------------------------ */

/* CODECS. A codec that a program brings works like the library's: a text names it with its parameters ("mine,k=3"),
 * with error feedback, momentum and two_way around it (docs/codecs.md). Every worker needs it, and every member that
 * sums: a program gives it with trib_config.codecs; a process without a program of its own (`tributary server`) loads
 * it from the shared object that TRIB_CODEC_LIBRARY names, and so may workers. Its name and version are compared: a
 * tensor whose codec some member lacks, or has in another version, completes its operations with an error that names
 * the member.
 *
 * The functions are called on reactors' threads, for several chunks at once. They must be pure but for the state,
 * return soon, keep no pointer, and call nothing of the library. All members must compute alike. */

#define TRIB_CODEC_NAME_MAX 23
#define TRIB_CODECS_MAX 64u
#define TRIB_CODEC_STATE_MAX 4096u

/* The chunk that a call is about, and the parameters of the codec's text. */
typedef struct trib_codec_chunk {
    void *user; /* trib_codec_desc.user */
    uint64_t seed;
    double ratio;   /* "ratio=0.01", or a k below 1; 0: not in the text */
    uint32_t k;     /* 0: not in the text */
    uint32_t count; /* elements, at least 1; 0 in check */
    trib_dtype dtype;
    /* Set for encode only, else 0: the chunk's place and contributor, the same on all workers except for the rank. When
     * a server encodes a sum, rank is UINT32_MAX and the key is the server's own choice. */
    uint32_t rank;
    uint64_t tensor_key, round;
    uint64_t first_element, partition_first; /* first element of the chunk and of its partition, in the tensor */
    uint64_t partition_count;                /* elements of the partition */
} trib_codec_chunk;

/* Returns 0 if the codec can have chunk->dtype and the parameters, which may come from a peer; or another number, and a
 * text for people in `why`, which has room for `size` bytes. */
typedef int (*trib_codec_check_cb)(const trib_codec_chunk *chunk, char *why, size_t size);
/* Returns the most bytes that encode makes of chunk->count elements; more elements must never give a smaller bound. It
 * should be below the size of the elements, and may be at most 4000 bytes above it. */
typedef uint64_t (*trib_codec_bound_cb)(const trib_codec_chunk *chunk);
/* Encodes the elements at `source` into `room` bytes (the bound), at any alignment. Returns the number of encoded
 * bytes; 0 or less, or more than room: the operation fails with TRIB_INVALID. `state` is that of the partition, whose
 * chunks come in order; NULL without state_bytes. */
typedef int64_t (*trib_codec_encode_cb)(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded,
                                        size_t room);
/* Decodes `size` bytes, which a peer sent and which may be anything, to chunk->count elements; or, as add_encoded, adds
 * the decoded elements to as many accumulators: float32, or float64 for float64. It must read and write nothing else.
 * Returns 0, or another number if encode cannot have made them: adding has changed nothing then, and the job ends with
 * the connection that brought them. */
typedef int (*trib_codec_decode_cb)(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination);

typedef struct trib_codec_desc {
    uint32_t struct_size; /* set by trib_codec_desc_init */
    uint32_t version;     /* any number; change it whenever the bytes that encode makes change */
    const char *name; /* 1 to TRIB_CODEC_NAME_MAX letters, digits, '_', '-', '.'; not the name of a built-in codec */
    void *user;
    uint32_t state_bytes; /* state of encode for each partition, zeros at first; with a state there is no two_way */
    uint32_t reserved_32;
    trib_codec_check_cb check; /* NULL: it can have every float type of 2, 4 or 8 bytes, and all parameters */
    trib_codec_bound_cb bound;
    trib_codec_encode_cb encode;
    trib_codec_decode_cb decode;
    /* May be NULL. A server calls it where a sum waits for the chunk. The result must have the bits of decode followed
     * by an addition of every element; an element that was not sent counts as 0, and 0 added to -0 is 0. */
    trib_codec_decode_cb add_encoded;
    uint64_t reserved; /* must be 0 */
} trib_codec_desc;

/* Fills *desc with the defaults; NULL is fine. struct_size must be sizeof(trib_codec_desc). TRIB_ANY_THREAD. */
TRIB_API void trib_codec_desc_init(trib_codec_desc *desc, size_t struct_size);

/* The function "trib_codec_library" of a shared object that TRIB_CODEC_LIBRARY names: returns *count_out codecs, which
 * stay as they are until the process ends. Called when an engine is created; the object stays loaded. It may call
 * trib_codec_desc_init without being linked with the library. */
typedef const trib_codec_desc *(*trib_codec_library_fn)(uint32_t *count_out);

/* ---- Tensors ------------------------------------------------------------------------------------------------ */

#define TRIB_TENSOR_DIMS_MAX 16

/* trib_tensor_desc.flags. DEVICE: buffers lie in the memory of trib_config.device. NEW: this worker has no tensor of
 * that name yet, else TRIB_STATE; so two models that use the same names do not share tensors unnoticed. NUMBERED: all
 * workers begin the operations on such tensors of a group in one order, and trib_op_params.step is the number of each
 * in it, from 0 on and anew after trib_join and trib_membership_advance. Workers that wait in operations of one number
 * on different tensors get TRIB_MISMATCH after a second or two, and so do later uses of these tensors. Not with
 * name_length. */
#define TRIB_TENSOR_DEVICE 1u
#define TRIB_TENSOR_NEW 2u
#define TRIB_TENSOR_NUMBERED 4u

/* The elements that a worker has of a tensor, which decide the collectives that the tensor takes. */
typedef enum trib_layout {
    TRIB_WHOLE = 0,  /* every worker has all elements: all_reduce, broadcast, reduce */
    TRIB_SLICES = 1, /* every worker has a slice, of a length of its own: all_gather, reduce_scatter */
    TRIB_PAIRS = 2,  /* every worker has a slice for every worker, at most 256 of them: all_to_all */
} trib_layout;

/*
 * QUORUM. An all-reduce with a quorum of k waits for all workers, but not for ever: if k workers have begun it when
 * trib_config.quorum_timeout_ns have passed since the first contribution, it goes on with those that have begun it. All
 * its parts have the same contributors, which are decided once. AVG divides by their number; trib_result.contributors
 * and trib_op_contributors tell them. A late worker gets the same result with TRIB_OK, and what it has contributed is
 * dropped. It may be behind by four such operations of a tensor; the others wait for it then. Whole tensors of all
 * workers in host memory without a codec can have a quorum; their other collectives wait for all. Not with
 * trib_config.survive, host sums (trib_config.local_sum) and trib_join. See docs/failure.md.
 */
#define TRIB_QUORUM_ALL UINT32_MAX

typedef struct trib_tensor_desc {
    uint32_t struct_size; /* set by trib_tensor_desc_init */
    uint32_t flags;       /* bits of TRIB_TENSOR_*, or 0 */
    const char *name;     /* 1..TRIB_TENSOR_NAME_MAX bytes, the same on all workers; no control byte, no "__" first */
    trib_dtype dtype;
    int32_t priority; /* operations' default: higher goes first; framework bindings use minus the layer's index */
    /* elements; 0 is allowed, at most 2^44 bytes; SLICES: of this worker's slice; PAIRS: unused */
    uint64_t count;
    const uint64_t *shape; /* NULL, or the sizes of dims dimensions, whose product is count; compared between workers */
    uint32_t dims;         /* 0 (shape is NULL) to TRIB_TENSOR_DIMS_MAX */
    trib_layout layout;
    const uint64_t *splits; /* PAIRS: elements of the slice for each member, in the group's order; copied */
    uint64_t row;           /* elements that stay together, as in a matrix's row; counts are multiples of it; 0: 1 */
    trib_group *group;      /* NULL: all workers */
    uint32_t split_count;   /* PAIRS: members of the group, else 0 */
    /* Number of workers that the tensor's all-reduces wait for in any case (QUORUM above); the same on all workers. 0:
     * trib_config.quorum; TRIB_QUORUM_ALL: all. TRIB_INVALID: more than the job has, as in trib_config.
     * TRIB_UNSUPPORTED: the tensor cannot have a quorum */
    uint32_t quorum;
    /* Codec of the tensor's sums: "onebit,ef=vanilla" (docs/codecs.md), the same on all workers; copied. "none": no
     * codec. NULL: as trib_config.codec says. TRIB_UNSUPPORTED: the tensor cannot have a codec */
    const char *codec;
    /* 0, or how many bytes of `name` from name_begin on are the name that the program knows, and the rest tells its
     * tensors of several types, shapes or kinds of operations apart. All workers use the tensors of such a name in one
     * order: those that wait for each other in different ones, each for the n-th operation of the name, get
     * TRIB_MISMATCH after a second or two, and so does whoever uses these two tensors later. Tensors with other lengths
     * are not compared, and trib_checkpoint takes those of one name for different ones where workers give them other
     * lengths; a tensor that is declared again keeps its first one. A worker that has released a tensor of a
     * name, or whose operation was refused, does not know which ones are the n-th ones any more, and says nothing until
     * trib_join or the next epoch */
    uint32_t name_length;
    uint32_t name_begin; /* of name_length bytes: "broadcast.bias" has 10, so that it is compared with "sum.bias" */
} trib_tensor_desc;

/* Fills *desc with the defaults; NULL is fine. struct_size must be sizeof(trib_tensor_desc). TRIB_ANY_THREAD. */
TRIB_API void trib_tensor_desc_init(trib_tensor_desc *desc, size_t struct_size);

/* Declares a tensor once; workers may do so at any time and in any order: names decide which belong together. Declaring
 * a name again with the same type, count, shape and flags gives the same handle, and sets the default priority of the
 * operations that this worker submits from then on; with other values it returns TRIB_MISMATCH. Shapes are compared
 * only if both are given. Returns at once, but for two cases: of a tensor on devices of several machines, of 16 MiB or
 * more for each rank, it takes and registers host memory, part of a second for each GiB; and where this worker has
 * released thousands of tensors for which the coordinator has not answered, it waits for that, at most peer_timeout_ns,
 * or, where the caller may not block, fails with TRIB_BUSY. Workers compare their declarations later; if these differ,
 * all operations on the tensor that are not over complete with TRIB_MISMATCH, on every worker, and a text that says who
 * declared what (a broadcast may be over before all have declared). TRIB_STATE (no worker), TRIB_INVALID,
 * TRIB_UNSUPPORTED (a device tensor in an engine without a device), TRIB_NO_MEMORY, TRIB_CLOSED, or the status that
 * ended the job. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_tensor_declare(trib_engine *engine, const trib_tensor_desc *desc,
                                                      trib_tensor **tensor_out, trib_error *error);

/* Finds the handle of a tensor of all workers by its name; of a group's, trib_tensor_declare gives it again.
 * TRIB_INVALID: this worker has not declared the tensor, or has released it. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_tensor_find(trib_engine *engine, const char *name, trib_tensor **tensor_out,
                                                   trib_error *error);

/* Ends a tensor, however often it was declared: the handle is refused from now on, the name may be declared again at
 * once, as anything, and the tensor's memory in this process is freed (with the last handle of its operations). Every
 * worker must do so, each in its own time, as each must declare it: the n-th tensor of a name here is the n-th of that
 * name on all others. If a worker does not, the servers and the coordinator keep their state of the tensor until that
 * worker leaves; nothing else happens. A tensor whose declarations differed ends like any other. TRIB_STATE: operations
 * on it are in flight, or prepared (trib_op_prepare): nothing has changed. TRIB_INVALID. NULL is fine. TRIB_ANY_THREAD,
 * also in a callback, where the operation is complete. */
TRIB_API TRIB_CHECKED trib_status trib_tensor_release(trib_tensor *tensor, trib_error *error);
/* The elements of each slice: SLICES: of each member; PAIRS: of each member i for each member j, at i * members + j.
 * counts has room for `capacity` numbers; *count_out is how many there are. TRIB_AGAIN: the members have not all
 * declared the tensor yet; once an operation on it has succeeded they have. TRIB_INVALID (too little room, a WHOLE
 * tensor), TRIB_MISMATCH (their declarations differ, also of a WHOLE tensor). TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_tensor_counts(const trib_tensor *tensor, uint64_t *counts, size_t capacity,
                                                     size_t *count_out, trib_error *error);

/* ---- Operations --------------------------------------------------------------------------------------------- */

typedef struct trib_result {
    trib_status status;
    /* Number of workers whose contributions are in the result, in all of its parts; AVG has divided by it. 1 for a
     * broadcast; 0 on error. trib_op_contributors names the workers. */
    uint32_t contributors;
    uint64_t bytes;      /* size of the tensor; SLICES, PAIRS: of all its slices */
    int64_t duration_ns; /* from submission to completion */
    const char *tensor;  /* the tensor's name; "" for a barrier or TRIB_OP_ONCE, whose names in texts begin with "__" */
    const char *text;    /* on error: what happened, naming peer and tensor; "" otherwise */
} trib_result;

/* Runs exactly once for an operation that was taken. result and its strings are valid until the callback returns.
 * After it has begun, the engine touches the operation's buffers no more. */
typedef void (*trib_done_cb)(const trib_result *result, void *user);

/* The operation that trib_submit_batch and trib_op_prepare carry out; other calls have the operation in their name. */
typedef enum trib_op_kind {
    TRIB_OP_PUSH_PULL = 0, /* all_reduce */
    TRIB_OP_BROADCAST = 1,
    TRIB_OP_REDUCE = 2,
    TRIB_OP_ALL_GATHER = 3,
    TRIB_OP_REDUCE_SCATTER = 4,
    TRIB_OP_ALL_TO_ALL = 5,
    TRIB_OP_KIND_COUNT = 6
} trib_op_kind;

/* trib_op_params.flags. ONCE: the engine names a tensor for this operation, of `bytes` bytes of type `dtype` in host
 * memory; tensor and group are NULL. The n-th such operation of a worker is matched with the n-th of every other one.
 * It takes one more round trip to the coordinator than an operation on a declared tensor. Whole tensors only. */
#define TRIB_OP_ONCE 1u

/* An operation. prescale and postscale: result = (sum of the inputs) * prescale * postscale, and AVG divides that by
 * the number of contributors. Of floats the sum, which is float32 or float64, is multiplied by the product of both
 * factors: the numbers are taken as float64, and the result is rounded once, to the tensor's type. So a prescale
 * costs no accuracy, and a sum of 16-bit floats that is too large for them may still have a result; one of float32 or
 * float64 must not overflow unscaled. Integers are converted to float64 and truncated, as in Horovod: each input
 * times prescale, which is written to the output first, and the sum times postscale (AVG: divided in the same step).
 * A result outside of the type's range becomes its nearest value; float64 keeps 53 bits of a 64-bit integer. Both
 * must be the same on all workers: if they scale the sum differently, the round ends with TRIB_MISMATCH, and the text
 * names two (a prescale of integers is compared as float32). TRIB_INVALID: not finite numbers. TRIB_UNSUPPORTED:
 * operations that do not reduce, device tensors, bools, other reductions than SUM and AVG, and for integers a prescale
 * of another operation than all_reduce, which alone has room for the product. */
typedef struct trib_op_params {
    uint32_t struct_size; /* set by trib_op_params_init */
    uint32_t flags;       /* bits of TRIB_OP_*, or 0 */
    trib_tensor *tensor;
    const void *input;  /* count elements; read until completion */
    void *output;       /* count elements; may equal input, must not overlap it otherwise; written until completion */
    trib_reduce reduce; /* all_reduce, reduce, reduce_scatter */
    int32_t root;       /* broadcast, reduce: the rank that gives or gets; in a group, its place in the group */
    int32_t priority;   /* higher goes first; taken instead of the tensor's if has_priority */
    bool has_priority;
    int64_t timeout_ns;   /* 0: trib_config.op_timeout_ns; below 0: none */
    trib_done_cb done_cb; /* may be NULL */
    void *user;
    void *stream; /* device tensors: the cudaStream_t that fills input; it is ready when the stream gets to this call */
    uint64_t bytes; /* size of the buffers: another size than the tensor's is refused (TRIB_INVALID). 0: not checked */
    /* step tag, any number: a round in which workers differ ends with TRIB_MISMATCH on all, naming two */
    uint32_t step;
    trib_op_kind kind;     /* trib_submit_batch, trib_op_prepare */
    uint64_t input_bytes;  /* bytes at input, which must be as many as the operation reads; 0: not checked */
    uint64_t output_bytes; /* room at output; all_gather, all_to_all: needed; else 0: not checked */
    trib_group *group;     /* barrier, *_bytes: NULL: all; elsewhere NULL, or the tensor's (else TRIB_INVALID) */
    trib_dtype dtype;      /* TRIB_OP_ONCE */
    uint32_t reserved_32;
    double prescale, postscale; /* SUM and AVG: factors of the inputs and of the result, as above; 0: 1 */
    uint64_t reserved[1];
} trib_op_params;

/* trib_op_params.flags. ALLOCATE_OUTPUT: output is NULL, the engine takes memory for it, and trib_op_output tells where
 * it is, until trib_op_release: for results whose length is not known before, of SLICES and PAIRS. It is in host
 * memory, also of a tensor on a device. Operations without a tensor have no flags (TRIB_UNSUPPORTED). */
#define TRIB_OP_ALLOCATE_OUTPUT 2u

/* Fills *params with the defaults; NULL is fine. struct_size must be sizeof(trib_op_params). TRIB_ANY_THREAD. */
TRIB_API void trib_op_params_init(trib_op_params *params, size_t struct_size);

/* output = reduction of all workers' inputs. Each worker must issue the same operations on a tensor in the same order
 * (the n-th is its round n, 4294966271 the last); between tensors order is free, while ops_max holds all. Operations on
 * one tensor run one after the other; those on different tensors run at once, by priority. The buffers must stay valid
 * until completion. op_out may be NULL; else the handle must be given to trib_op_release. Returns TRIB_OK (taken),
 * TRIB_INVALID, TRIB_BUSY (ops_max in flight or not given back), TRIB_STATE (no round left), TRIB_NO_MEMORY,
 * TRIB_CLOSED, or TRIB_PEER_LOST / TRIB_PEER_LEFT / TRIB_JOIN_FAILED if the job has failed; error (may be NULL) says
 * more. TRIB_ANY_THREAD, some microseconds, never waits for the network. */
TRIB_API TRIB_CHECKED trib_status trib_all_reduce(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                  trib_error *error);
/* BytePS's name for all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_push_pull(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                 trib_error *error);

/* output on every worker = root's input. On the root output may be NULL or equal to input. Else as trib_all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_broadcast(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                 trib_error *error);

/* output on the root = reduction of all workers' inputs. Elsewhere output is not used and may be NULL. Else as
 * trib_all_reduce. On a device only in a group: TRIB_UNSUPPORTED. */
TRIB_API TRIB_CHECKED trib_status trib_reduce_to(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                 trib_error *error);

/* output on every worker = the slices of all, in order of rank. input is this worker's slice; it may lie at its place
 * in the output, and must not overlap the output otherwise. The tensor is SLICES. The output's length is known when all
 * have declared the tensor (trib_tensor_counts): if output_bytes is less, the operation fails with TRIB_INVALID, and
 * with the others TRIB_CANCELLED. TRIB_OP_ALLOCATE_OUTPUT saves asking. Else as trib_all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_all_gather(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                  trib_error *error);

/* output = this worker's slice of the reduction of all workers' inputs, which have all slices, in order of rank. The
 * tensor is SLICES. output may lie at its place in the input, and must not overlap it otherwise. Else as
 * trib_all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_reduce_scatter(trib_engine *engine, const trib_op_params *params,
                                                      trib_op **op_out, trib_error *error);

/* output = the slices that the others have for this worker, in order of rank; input has this worker's slices for the
 * others. The tensor is PAIRS. output must not overlap input. Else as trib_all_gather. */
TRIB_API TRIB_CHECKED trib_status trib_all_to_all(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                  trib_error *error);

/* Collectives on bytes whose length only their senders know. broadcast_bytes: every worker gets the root's input_bytes
 * bytes at input. all_gather_bytes: every worker gets the bytes of all, in order of rank. The result is at
 * trib_op_output, and the lengths are at trib_op_counts: op_out must not be NULL. No tensor is declared before: calls
 * belong together in order, for each group. Of params input, input_bytes, root, group, priority, timeout_ns, done_cb
 * and user count. Else as trib_all_gather. */
TRIB_API TRIB_CHECKED trib_status trib_broadcast_bytes(trib_engine *engine, const trib_op_params *params,
                                                       trib_op **op_out, trib_error *error);
TRIB_API TRIB_CHECKED trib_status trib_all_gather_bytes(trib_engine *engine, const trib_op_params *params,
                                                        trib_op **op_out, trib_error *error);

/* Where the result of an operation is, and its length in bytes; with TRIB_OP_ALLOCATE_OUTPUT until trib_op_release.
 * TRIB_STATE if the operation has not succeeded. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_output(const trib_op *op, void **data_out, uint64_t *bytes_out,
                                                 trib_error *error);
/* The ranks whose contributions are in the result, ascending (in a group its order): at most `capacity` of them;
 * *count_out is how many there are, as in trib_result. They are the ranks at the time of completion; where ranks
 * change, other workers may have them by now. TRIB_STATE if the operation has not succeeded. TRIB_INVALID.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_contributors(const trib_op *op, int32_t *ranks, size_t capacity,
                                                       size_t *count_out, trib_error *error);
/* The slices' lengths, as trib_tensor_counts has them. TRIB_STATE if the operation has not succeeded.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_counts(const trib_op *op, uint64_t *counts, size_t capacity,
                                                 size_t *count_out, trib_error *error);

/* Completes when every worker has called it. Of params only group, timeout_ns, done_cb and user count; params may be
 * NULL. */
TRIB_API TRIB_CHECKED trib_status trib_barrier(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                               trib_error *error);

/* A consistent boundary between operations, at which a program may save its state (docs/membership.md). All workers
 * call this at the same place of their programs. It completes when on every worker all operations are over that were
 * submitted before the call; those that are submitted later do not wait for it, and are not in what it tells. It
 * succeeds if all workers had submitted the same operations and the same of them had failed, else it ends with
 * TRIB_MISMATCH on all, naming two workers that differ; a failure, and as many operations under other names, are told
 * by one boundary, so the next one may succeed.
 * After the loss of a worker it ends as any operation does: alike on all that are left with TRIB_SURVIVE=workers or
 * continue. What has succeeded on one worker may be saved there: no operation of a later step is in any sum before it.
 * Operations in groups are waited for, and not compared. A worker that has joined (trib_join) counts as come, as in
 * barriers, and cannot call this until all have. Of params step (the step that the program has finished: the same on
 * all, or TRIB_MISMATCH), timeout_ns, done_cb and user count; params may be NULL. TRIB_STATE: an earlier call is under
 * way. TRIB_UNSUPPORTED: params->group is not NULL. Else as trib_all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_checkpoint(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                  trib_error *error);

/* The result of a checkpoint, which is the same on all workers. */
typedef struct trib_boundary {
    uint32_t struct_size; /* set it to sizeof(trib_boundary) before trib_op_boundary */
    uint32_t epoch;       /* number of the membership in which it was completed, as in trib_membership */
    uint64_t number;      /* number of the boundary in this job, from 1 */
    /* Operations of all workers that each had submitted before, since the job began or the last boundary between
     * memberships (trib_membership_advance) or trib_join of all; 0 elements count, barriers too. */
    uint64_t operations;
    uint32_t step;        /* the step in the call's params */
    int32_t worker_count; /* workers that took part; trib_op_contributors names them */
    uint64_t reserved[4];
} trib_boundary;

/* Fills in the result of an operation of trib_checkpoint; its callback may call this, too. TRIB_STATE: the operation
 * has not succeeded. TRIB_INVALID. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_boundary(const trib_op *op, trib_boundary *boundary, trib_error *error);
/* How many operations this worker had submitted on the tensor when it called trib_checkpoint last, counted as
 * trib_boundary.operations is; 0: it has not, or the tensor is younger. TRIB_INVALID. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_tensor_rounds(const trib_tensor *tensor, uint32_t *rounds_out,
                                                     trib_error *error);

/* This worker has no more data, and others may have: from here on it counts in their all-reduces among all workers,
 * of tensors in host memory, with elements that change nothing (0 in a SUM, 1 in a PRODUCT, the largest number in a
 * MIN), also for tensors that it has never declared. AVG goes on dividing by the number of all workers, as in
 * Horovod, and trib_result.contributors counts them. In barriers it counts as come. Other operations of the others
 * (broadcast, reduce, all_gather ..., on all workers or on a group that it is in) end with TRIB_UNSUPPORTED on all
 * that take part. The worker goes on summing for others. What it has submitted before comes first; until the
 * operation is complete it submits nothing more (TRIB_STATE). It completes when all workers have joined, and
 * *(int32_t *)output, if output is not NULL, is the rank that joined last; then everything is as before. If a worker
 * leaves instead, it ends with TRIB_PEER_LEFT, and this worker submits nothing any more. It has no deadline and
 * cannot be cancelled. Of params only output, done_cb and user count; params may be NULL. TRIB_UNSUPPORTED where this
 * worker has tensors on devices, or TRIB_SURVIVE is set. Else as trib_all_reduce. */
TRIB_API TRIB_CHECKED trib_status trib_join(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                            trib_error *error);

/* Submits count operations, each as params[i].kind says, in this order and in one call, so that the cost of handing
 * operations to the engine is paid once. Either all are taken or none, and *error says which one is at fault. ops_out
 * (may be NULL) gets count handles, or NULLs. Else as trib_push_pull. */
TRIB_API TRIB_CHECKED trib_status trib_submit_batch(trib_engine *engine, const trib_op_params *params, size_t count,
                                                    trib_op **ops_out, trib_error *error);

/* Prepares an operation for being started again and again: params is checked and copied, nothing is submitted. *op_out
 * is used like any handle, and stands for the operation that was started last; before the first start its status is
 * TRIB_OK. Its tensor cannot be released before it. TRIB_INVALID (TRIB_OP_ONCE, too), TRIB_NO_MEMORY.
 * TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_prepare(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                                  trib_error *error);
/* Starts count prepared operations of one engine, in this order, as trib_submit_batch submits: all or none. step is
 * their step tag, instead of params'. TRIB_STATE: one of them is not complete (its own callback may start it again), or
 * is in the list twice. Else as trib_push_pull. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_start(trib_op *const *ops, size_t count, uint32_t step, trib_error *error);

/* Asks that an operation end soon with TRIB_CANCELLED (it may still succeed), when a device has given its buffers back.
 * The round is spent: the others' ends with TRIB_CANCELLED too, naming this worker, unless its contribution was
 * complete. TRIB_ANY_THREAD. */
TRIB_API void trib_op_cancel(trib_op *op);

/* Makes a stream (cudaStream_t) wait: work that is put on it from now on starts when the operation on a device tensor
 * is over, successful or not. Blocks until the GPU has been given the last step of the operation, or the operation is
 * over (docs/gpu.md). In a job with TRIB_SURVIVE=workers or continue it blocks until all workers are through with the
 * operation, or it has failed. Where a thread must not wait for that it is TRIB_STATE on your loop, TRIB_WRONG_THREAD
 * in a callback. TRIB_INVALID (no device tensor), TRIB_UNSUPPORTED (the stream is being captured into a graph),
 * TRIB_SYSTEM. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_stream_wait(trib_op *op, void *stream, trib_error *error);

/* The operation's status: TRIB_PENDING until it is complete (TRIB_MODE_QUEUE: and dispatched). TRIB_ANY_THREAD. */
TRIB_API trib_status trib_op_status(const trib_op *op);

/* Fills *result with what the callback gets, in every mode and without a callback; result's strings are valid until the
 * handle is released or started again. TRIB_PENDING: not complete, and *result is untouched. TRIB_INVALID; TRIB_STATE:
 * prepared and never started. Else TRIB_OK, also if the operation has failed. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_op_get_result(const trib_op *op, trib_result *result, trib_error *error);

/* Blocks until op is complete (its callback, if any, has run), at most timeout_ns (below 0: as long as the operation's
 * own deadline lets it). Returns its status, or TRIB_TIMEOUT when timeout_ns is over: trib_op_status, called then, is
 * TRIB_PENDING, or how it ended. *error (may be NULL) gets the text. TRIB_MODE_QUEUE: dispatches meanwhile.
 * TRIB_MODE_ATTACHED: TRIB_STATE. From a callback: TRIB_WRONG_THREAD. */
TRIB_API trib_status trib_op_wait(trib_op *op, int64_t timeout_ns, trib_error *error);

/* Blocks until at least `least` of count operations of one engine are complete, well or not (1: any; count: all), as
 * trib_op_wait does. *done_count_out (may be NULL) says how many are, and done_out (NULL, or room for count) gets their
 * indices, ascending, whatever is returned. Returns TRIB_OK, the status of the first of them that has failed (*error
 * gets its text), or TRIB_TIMEOUT when timeout_ns is over and too few are complete. least 0 never waits, and works in
 * every mode and in callbacks. TRIB_INVALID: a handle is wrong, or least exceeds count; then nothing is listed. */
TRIB_API trib_status trib_op_wait_some(trib_op *const *ops, size_t count, size_t least, int64_t timeout_ns,
                                       size_t *done_out, size_t *done_count_out, trib_error *error);

/* Gives the handle back, before trib_engine_destroy; the operation goes on. NULL is fine. TRIB_ANY_THREAD. */
TRIB_API void trib_op_release(trib_op *op);

/* ---- Seeing ------------------------------------------------------------------------------------------------- */

/* Something an operation of this process waits for. */
typedef struct trib_waiting {
    char tensor[TRIB_TENSOR_NAME_MAX + 1];
    uint32_t partition;
    uint32_t round;
    char stage[16];   /* "JOIN", "DECLARE", "PUSH", "PULL", ... */
    char peer[64];    /* "server 1 (host:pid)", or, if known, the rank that has not contributed or joined */
    int64_t since_ns; /* how long it has been in that stage */
} trib_waiting;

/* Lists what the engine is waiting for now: at most capacity entries, oldest first within a reactor; *count_out is
 * how many there are in all. Blocks up to 1 s for the reactors to answer: TRIB_TIMEOUT if one did not (entries of the
 * others are there). TRIB_WRONG_THREAD from a callback, except in TRIB_MODE_ATTACHED, where it never blocks. */
TRIB_API TRIB_CHECKED trib_status trib_engine_waiting(trib_engine *engine, trib_waiting *entries, size_t capacity,
                                                      size_t *count_out);

typedef struct trib_stats {
    uint32_t struct_size;                              /* set it to sizeof(trib_stats) before the call */
    uint32_t connections;                              /* open now, between a worker's and a server's reactor */
    uint64_t ops_completed, ops_failed, ops_in_flight; /* completed: with TRIB_OK */
    uint64_t bytes_pushed, bytes_pulled;               /* payload this worker sent and received */
    uint64_t bytes_summed;                             /* payload this process's server received */
    uint64_t bytes_sum_sent;                           /* payload of sums this process's server sent */
    uint64_t messages_sent, messages_received;
    uint64_t system_calls;     /* by the transports, for data */
    uint64_t allocations;      /* by the engine since it was created; constant in the steady state */
    uint64_t peers_refused;    /* connections turned away: wrong token, version, job, garbage */
    uint64_t bytes_copied;     /* payload that transports copied in this process; RDMA: none of registered memory */
    uint64_t bytes_relayed;    /* payload that this process pushed in the name of its machine (trib_config.local_sum) */
    uint64_t bytes_direct;     /* of device tensors, that went past host memory (docs/rdma.md), each way */
    uint64_t payloads_damaged; /* messages that were damaged on their way; each has ended a connection */
    uint64_t reserved[12];
} trib_stats;

/* A snapshot; reactors' counters may be microseconds apart. TRIB_INVALID: unknown struct_size. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_engine_get_stats(trib_engine *engine, trib_stats *stats);

/* TRACES. An engine can record what happens to every operation, partition and chunk, in a ring of 32-byte records on
 * each reactor; the file says how many a full ring has lost. `tributary trace` reads the files of all processes of a
 * job together (docs/trace.md). With trib_config.trace (TRIB_TRACE) it records from the beginning; a thread writes the
 * file every 2 s, and it is whole when the engine's links are closed, also when the job failed. In the name %r is the
 * member (rank2, server0, coordinator), %p the process id, %h the host; to one without % ".%r.%p.trib" is appended. */

/* Starts a recording; an earlier one is dropped. bytes: memory for records, of all reactors together, used as it is
 * filled; 0: as before, or 64 MiB. TRIB_STATE: there has been a recording of another size. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_trace_start(trib_engine *engine, uint64_t bytes, trib_error *error);
/* Stops recording; the records stay. TRIB_ANY_THREAD. */
TRIB_API void trib_trace_stop(trib_engine *engine);
/* Writes the records to a file, named as above, which is replaced as a whole or left as it was; recording goes on.
 * Blocks for the file system only. TRIB_STATE if nothing was recorded, TRIB_SYSTEM, TRIB_NO_MEMORY. TRIB_ANY_THREAD. */
TRIB_API TRIB_CHECKED trib_status trib_trace_write(trib_engine *engine, const char *path, trib_error *error);

/* A description of this machine as the engine sees it: cores, caches, NUMA nodes, NICs, GPUs, where reactors would be
 * placed, transports and modules that are compiled in and usable, kernels in use, limits that hurt (memlock, open
 * files), and the settings of the environment, or the fault in them. JSON, malloc'ed; free it with free(). NULL when
 * out of memory. Needs no engine. TRIB_ANY_THREAD. */
TRIB_API char *trib_describe_machine(void);

#ifdef __cplusplus
}
#endif
#endif
