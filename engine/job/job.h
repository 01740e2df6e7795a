/*
 * job.h - the state that all layers of one engine share: settings, environment, roster, and the job's fate. An
 * engine object owns all of it; the library has no global state.
 *
 * Threads: a core's state belongs to its reactor. Membership (member.c, coordinator.c) runs on core 0. `mutex`
 * guards the state that callers' threads share: the tensor table, the operation pool, the job's fate, and the
 * completion queue. Reactors take it only on rare events and to queue completions, never per partition.
 */
#ifndef TRIB_ENGINE_JOB_H
#define TRIB_ENGINE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/tributary.h"
#include "engine/wire/auth.h"
#include "engine/base/counter.h"
#include "engine/base/kernel_ops.h"
#include "engine/codec/codec_rules.h"
#include "engine/job/cause.h"
#include "engine/job/departed.h"
#include "engine/job/formation.h"
#include "engine/job/losses.h"
#include "engine/job/store.h"
#include "engine/reactor/reactor.h"
#include "engine/cluster/roster.h"
#include "transports/transport.h"

struct trib_core;
struct trib_plan;
struct trib_tensor;
struct trib_coordinator;
struct trib_member;
struct trib_tracer;
struct trib_local_group;
struct trib_device;
struct trib_device_ops;
struct trib_host_world;
struct trib_machine_place;

#define TRIB_AWAITED_SIZE 256
#define TRIB_NO_THREAD ((pthread_t)0)
#define TRIB_HOST_NAME_MAX 256 /* bytes with the 0; Linux has 64, other names of the API 255 */
#define TRIB_PLACE_NAME_MAX 44 /* fits in a member's name together with "rank 4095 ()" */

/* The environment of an engine. Tests and the simulator replace it with their own. */
typedef struct trib_env {
    const trib_transport_ops *transport;
    const trib_kernels *kernels;
    const trib_crc32c *crc32c;
    const struct trib_plan *(*choose_plan)(const struct trib_tensor *tensor); /* called at placement */
    /* reactor_open makes reactor i; the other functions start, stop and free it. A started reactor waits for `go`,
     * or is stopped without having run. `go` may be NULL. */
    trib_status (*reactor_open)(trib_engine *engine, uint32_t index, trib_reactor **out);
    trib_status (*reactor_start)(trib_engine *engine, trib_reactor *reactor);
    void (*reactor_go)(trib_engine *engine, trib_reactor *reactor);
    /* Called on the reactor's thread when the job has formed; `place` counts the machine's other processes. May be
     * NULL. */
    void (*reactor_settle)(trib_engine *engine, trib_reactor *reactor, const struct trib_machine_place *place);
    void (*reactor_stop)(trib_engine *engine, trib_reactor *reactor); /* returns after the thread has ended */
    void (*reactor_free)(trib_reactor *reactor);
    bool (*on_thread)(const trib_reactor *reactor); /* true if the caller is on the reactor's thread */
    /* ATTACHED mode: trib_engine_dispatch calls this on the reactor's thread. May be NULL. */
    bool (*poll)(trib_reactor *reactor);
    void *(*memory_alloc)(void *memory, size_t size); /* aligned to a page; a block smaller than a page, to 64 bytes */
    /* The variant of memory_alloc for a caller's thread: the call waits until the memory is registered and delays
     * no core. */
    void *(*memory_alloc_blocking)(void *memory, size_t size);
    void (*memory_free)(void *memory, void *block);
    /* True if it is a block in use. NULL: blocks are not known. */
    bool (*memory_has)(void *memory, const void *block);
    /* These register memory that the caller owns with the arena. `memory_adopted` returns the size adopted at base, 0
     * for none. See trib_arena_adopt. NULL: adoption is not supported. */
    trib_status (*memory_adopt)(void *memory, void *base, size_t size, trib_error *error);
    size_t (*memory_adopted)(void *memory, const void *base);
    trib_status (*memory_disown)(void *memory, void *base);
    void *memory;            /* the arena */
    void *transport_context; /* result of the transport's `context_open`, or NULL */
    /* A test returns false to make an allocation of a core fail. NULL: allocation is always allowed. */
    bool (*may_alloc)(void *memory, size_t size);
    void (*fini)(struct trib_env *env); /* frees the environment's own resources, after the engine is freed */
    /* Core 0: looks the coordinator's addresses up again, without waiting. Returns true if an earlier look-up has found
     * some. NULL: addresses do not change. */
    bool (*resolve)(void *resolver, trib_address *found_out);
    void *resolver;
    const char *modelled_codec; /* text of the codec that a program's codec models in a study; NULL: none */
    /* The store of the job's last epoch (job/store.h). NULL: there is none. */
    const trib_store_ops *store_ops;
    void *store;
    /* By reactor: the index of its own listen address, modulo their number. NULL: reactor i has the i-th. */
    const uint8_t *listen_choice;
    uint32_t cpu_count; /* CPUs of this machine, for traces; 0: unknown */
    /* Connections that are half made at a time: of those that come, and of members that this process asks for signs of
     * life (membership/probe.h). 0: as the process's limits say then. */
    uint32_t half_open_max;
    uint64_t kernel; /* identifies this machine's kernel among all machines; 0: unknown */
    uint64_t gpu;    /* place of this process's GPU (trib_gpu_number); 0: none, or unknown */
    bool placed;     /* the launcher gave this process its place on the machine */
    /* Operations of device tensors. NULL: the engine has no device. */
    const struct trib_device_ops *device;
    void (*device_thread)(void *memory); /* called on a new thread of the device, to place it on CPUs. May be NULL */
    int64_t poll_window_max_ns;          /* longest busy wait of the device's threads (poll_window.h) */
    /* Simulated devices in host memory, shared by a machine's engines in one process. */
    struct trib_host_world *device_world;
    /* Tells the arena which device copies to and from its memory; detach is called before the device closes. May
     * be NULL. */
    void (*memory_attach_device)(void *memory, const struct trib_device_ops *ops, struct trib_device *device);
    void (*memory_detach_device)(void *memory);
    char host[TRIB_HOST_NAME_MAX];   /* the whole name; "": there is only `place` */
    char place[TRIB_PLACE_NAME_MAX]; /* host, perhaps shortened, and process id, for its peers' messages: "host:pid" */
} trib_env;

/* A reactor, and the posts for the arrival of the roster and the end of the job. */
typedef struct trib_job_reactor {
    trib_reactor *reactor;
    trib_post *roster_post, *ended_post;
    trib_transport *transport; /* as in its core, which is empty for a moment between two epochs */
} trib_job_reactor;

/* The kind of host function that runs on a core: the callback of an operation, or one of the engine's own. */
typedef enum trib_callback_kind {
    TRIB_CALLBACK_PUSH_PULL,
    TRIB_CALLBACK_BROADCAST,
    TRIB_CALLBACK_BARRIER,
    TRIB_CALLBACK_READY,
    TRIB_CALLBACK_ENDED,
    TRIB_CALLBACK_CLOSED,
    TRIB_CALLBACK_MEMBERSHIP,
} trib_callback_kind;

typedef struct trib_callback_site {
    _Atomic int64_t since_ns; /* 0: none runs */
    _Atomic uint64_t what;    /* its kind, and the tag of its tensor */
    int64_t warned_ns;        /* since_ns of the last one that was warned of; the watching thread's own */
    /* The last one that took too long: what it was, how long it took, and when it returned; 0: none has. */
    _Atomic uint64_t long_what;
    _Atomic int64_t long_for_ns, long_end_ns;
} trib_callback_site;

/* Functions of the engine's upper layers that lower layers call. Set when the engine is opened. */
typedef struct trib_job_hooks {
    /* Any core: a core has closed. Called before the engine counts it as closed. */
    void (*core_closed)(trib_engine *engine);
    /* The core begins to send or receive payloads. Called only while a trace is recorded. */
    void (*data_began)(struct trib_core *core, int64_t at_ns);
    /* Runs a tensor's declare_post on core 0: declares the tensor now, or when the job has formed. */
    void (*declare)(trib_reactor *reactor, trib_post *post);
    /* Core 0: the cores have forgotten a released tensor. The coordinator learns of it, now or when the job has
     * formed. */
    void (*tensor_ended)(struct trib_tensor *tensor);
    /* The same for the create_post of a group. */
    void (*create_group)(trib_reactor *reactor, trib_post *post);
    /* The same for its end_post: this process needs the group no more. The coordinator learns of it. */
    void (*group_ended)(trib_reactor *reactor, trib_post *post);
    /* Core 0: describes why the job has not formed: the missing members, or why the coordinator is out of reach. */
    const char *(*awaited)(const trib_engine *engine, char *text, size_t size);
    /* The core has all data links that it needs: operations may run. */
    void (*core_joined)(struct trib_core *core);
    /* Core 0: a member has left in good order. */
    void (*member_left)(struct trib_core *core);
    /* Core 0: returns how many device collectives of its machine this process has carried out, modulo 2^32. */
    uint32_t (*carried_out)(const struct trib_core *core);
    /* Core 0: asks the coordinator for its time. Returns false if the coordinator cannot be asked now. */
    bool (*ask_time)(trib_engine *engine);
    /* Any core: its link to that member is lost, and the job may go on without it, so the coordinator is asked. */
    void (*member_suspected)(trib_engine *engine, uint32_t member);
    /* Any core: it has not reached that member for the peer timeout, and still tries. */
    void (*member_doubted)(trib_engine *engine, uint32_t member);
    /* Any core: all cores have taken one more loss. */
    void (*losses_taken)(trib_engine *engine);
    /* Core 0: sends a frame to the coordinator, if it can be reached. */
    void (*tell_coordinator)(trib_engine *engine, const trib_frame *frame, const void *payload, size_t size);
    /* Core 0, by its post: all cores have closed, and the job goes on: opens them again. */
    void (*reopen)(trib_reactor *reactor, trib_post *post);
    /* Core 0, by its post: the program waits for the next epoch. */
    void (*advance)(trib_reactor *reactor, trib_post *post);
    /* The name of the tensor with that tag. The caller holds the mutex. */
    const char *(*tensor_name)(const trib_engine *engine, uint32_t tag);
} trib_job_hooks;

/* A tensor, and the round that the other workers have come to while this one had no more data. */
typedef struct trib_join_target {
    struct trib_tensor *tensor;
    uint32_t round;
} trib_join_target;

/* Workers that have no more data (trib_join). */
typedef struct trib_uneven_inputs {
    bool is_active; /* this worker has joined, and submits nothing; guarded by the mutex, set under once_mutex too */
    struct trib_op *op;    /* core 0; set under the mutex before the first post */
    trib_post post;        /* goes from core to core, and carries the fields below with it */
    bool is_told, is_over; /* the coordinator knows that this worker has joined; the coordinator has answered */
    int32_t last;          /* the rank that joined last */
    uint32_t left; /* a rank that will never join, plus one: this worker stays without work; 0: all have joined */
    trib_join_target *targets;
    uint32_t target_count, target_capacity;
    trib_post close_post;     /* nobody counts as joined any more: goes from core to core */
    bool is_closing;          /* core 0: close_post is on its way */
    atomic_uint ranks_joined; /* ranks that have joined; set after has_joined */
    atomic_uint joins_over;   /* number of times that all had joined and some passed over rounds given up by others */
    atomic_bool *has_joined;  /* by rank; NULL: nobody has ever joined */
    struct trib_given_up *given_up; /* rounds that they gave up before (server_joined.c); guarded by the mutex */
    atomic_uint given_up_count;     /* set before has_joined */
} trib_uneven_inputs;

#define TRIB_BOUNDARY_ELEMENTS 7u

/* Boundaries between operations (engine/worker/boundary.h). */
typedef struct trib_boundaries {
    /* Operations submitted among all workers so far, and their digest. Guarded by the engine's mutex. */
    uint64_t operations, digest;
    /* Guards the fields up to `number`. Whoever holds it may hold the engine's mutex, but does not take that. */
    pthread_mutex_t mutex;
    uint64_t failures, failures_digest;  /* operations of those that have failed here and that no boundary has told */
    struct trib_op *op;                  /* the boundary under way; NULL: none */
    uint64_t digest_before;              /* `digest` when the boundary was submitted */
    uint64_t digest_base;                /* that of the last boundary that has told of other operations; else 0 */
    uint64_t told_failures, told_digest; /* failures when the boundary was submitted */
    uint64_t late_failures, late_digest; /* failures since, of operations that were under way then */
    uint64_t number;                     /* number of the last boundary that succeeded */
    atomic_uint left;                    /* number of operations that boundaries wait for */
    struct trib_op_core *waiting;        /* core 0: boundaries that wait for earlier operations */
    atomic_bool is_posted;
    trib_post post;
    uint64_t own[TRIB_BOUNDARY_ELEMENTS], all[TRIB_BOUNDARY_ELEMENTS]; /* input and output of the one under way */
} trib_boundaries;

/* An operation that this worker waits for, and the answer about the worker that it waits for
 * (engine/worker/worker_stall.c). */
typedef struct trib_stalls {
    bool has_gap; /* of tensors of all workers; see trib_rank_group_gap */
    /* Core 0: when the coordinator is told next, and the operation of which it was told last. */
    int64_t next_ns;
    uint32_t tag, round;
    uint64_t number;
    pthread_mutex_t mutex;  /* guards the answer, which follows; nothing else is locked inside */
    uint64_t answer_number; /* the operation that the answer is about; 0: there is none */
    int64_t answer_ns;
    uint32_t answer_rank;
    bool is_crossed;                   /* that worker waits for this one */
    char answer[TRIB_ERROR_TEXT_SIZE]; /* the operation that the worker of answer_rank waits for; "": not known */
} trib_stalls;

typedef enum trib_phase { TRIB_PHASE_JOINING, TRIB_PHASE_READY, TRIB_PHASE_ENDED } trib_phase;

#define TRIB_ENGINE_ALIVE UINT64_C(0x6c61746972747562)
#define TRIB_ENGINE_DESTROYED UINT64_C(0x64656164747269ad)

/* An address at which the coordinator has been. */
typedef struct trib_noted_address {
    struct trib_noted_address *next;
    char text[];
} trib_noted_address;

struct trib_engine {
    uint32_t process; /* the process that opened the engine; a forked child must not use it (fork.h) */
    trib_env env;
    /* Tells an engine from one that was destroyed and from anything else. Not at the beginning, where an allocator
     * writes into memory that was freed. */
    _Atomic uint64_t magic;
    trib_config config; /* its strings belong to the engine */
    char *job, *listen_host;
    struct trib_noted_address *coordinators; /* they stay as long as the engine */
    const char *_Atomic coordinator_address; /* the text of one of `coordinators`; any core may read it */
    char *store;                             /* the store as configured, for texts; NULL: none */
    char *coordinator_list;       /* addresses as configured; coordinator_address is where the coordinator is now */
    trib_codec_rules codec_rules; /* rules of config.codec, which is NULL here */
    trib_codec_set codecs;        /* codecs that the program brings */
    /* The variable that coordinator_address comes from, for texts. */
    char coordinator_source[TRIB_COORDINATOR_SOURCE_SIZE];
    unsigned char key[TRIB_KEY_SIZE];
    trib_logger logger;
    const trib_job_hooks *hooks;
    uint32_t core_count;
    struct trib_core *cores;
    trib_job_reactor reactors[TRIB_REACTORS_MAX]; /* the first core_count are in use */
    _Atomic uint32_t member_id;                   /* written on core 0 before the roster is published */
    /* As in `config`, which only core 0 reads without the mutex: in this epoch. */
    _Atomic int32_t rank, worker_count, server_count;

    /* Core 0: this member leaves, and the coordinator has announced that or cannot be told. */
    atomic_bool leave_settled;
    atomic_bool job_over;           /* core 0: the coordinator has ended the job, or its link has ended */
    atomic_uint questions, answers; /* core 0: how often the coordinator was asked for its time, and has answered */
    _Atomic int64_t coordinator_heard_ns; /* time of the coordinator's last PING, on the reactors' clock; 0: none yet */

    uint32_t start;                       /* core 0: drawn when it opens, and never again (membership/election.h) */
    struct trib_coordinator *coordinator; /* NULL: another process coordinates */
    struct trib_member *member;
    struct trib_election *election; /* core 0: the coordinator is lost; NULL: it is there */
    struct trib_tenure *tenure;     /* core 0: this process's requests to the store; NULL: none yet */
    struct trib_tracer *tracer;
    struct trib_ticker *trace_flusher, *callback_watcher; /* threads of api/; NULL: none */
    const struct trib_device_hooks *device_hooks;         /* NULL: no device */
    struct trib_device *device;                           /* NULL: none */
    bool device_stopped;                                  /* core 0: it gives up all jobs, as the job is over */
    atomic_bool full_logged;                              /* whether the log has said that the device is full */
    atomic_bool direct_logged;                            /* whether the log has said that bytes bypass host memory */
    _Atomic(struct trib_local_group *) group; /* local ranks of this machine; NULL: alone, or not open yet */
    atomic_uint launches;                     /* counts what stream_wait may be tried again for (device.h) */
    atomic_uint device_jobs;                  /* jobs that the device has, other than those of tasks */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* signals phase, a waited-for operation, a report, and closed */
    /* Only threads of reactors, whose cores are closed before two others follow it, read it without the mutex. */
    _Atomic(const trib_roster *) roster;
    atomic_uint ranks_used; /* as that roster says; 0: there is none yet */
    _Atomic trib_phase phase;
    trib_cause cause; /* why the job ended; written with the mutex held, final once phase is ENDED */
    /* The coordinator's cause of the job's end, which this member passes on instead of its own. Written on core 0
     * before job_over is set; status TRIB_OK: none. */
    trib_cause verdict;
    trib_error fate; /* the cause rendered for this process; guarded by mutex, final once phase is ENDED */
    trib_departed departed;
    trib_losses losses;
    char awaited[TRIB_AWAITED_SIZE]; /* why the job has not formed yet, guarded by mutex (member.h) */
    atomic_uint cores_joining, cores_open;
    atomic_bool shrinks;   /* the job goes on after the loss of a worker, as the roster says */
    atomic_bool continues; /* operations go on, too (worker/op_carry.h) */
    atomic_bool changing;  /* an epoch has ended, and the next one has not begun: no operation is taken */
    trib_formation formation;
    /* operations that have settled, for core 0, newest first (worker/op_commit.h) */
    _Atomic(struct trib_op *) settled_ops;
    trib_post settled_post;
    atomic_uint ops_held;
    bool joined, close_asked, closed;
    trib_closed_cb closed_cb;
    void *closed_user;
    trib_post ready_post, ended_post, closed_post; /* user callbacks; run on core 0 or in trib_engine_dispatch */

    struct trib_tensor *tensors_by_name; /* uthash */
    struct trib_tensor *barrier_tensor;
    atomic_uint moves_unsettled;  /* tensors whose move some core has not carried out yet (tensor_move.c) */
    uint32_t tensor_count;        /* entries of `tensors`, with those free for the next tensor */
    struct trib_tensor **tensors; /* by tag; with the free ones, which are in the list below too */
    struct trib_tensor *free_tensors;
    atomic_uint tensors_ending; /* without references, and not forgotten by the coordinator yet */
    /* Number of operations so far whose tensor the engine named (op_submit.c). once_mutex is held while one is
     * submitted, so that their numbers have their order; `mutex` is taken inside it. */
    uint64_t once_count;
    pthread_mutex_t once_mutex;
    uint32_t tensors_capacity;

    /* By number: the ranks of the groups of the job, written on core 0 before the member says that it knows them. */
    _Atomic(const struct trib_rank_set *) rank_sets[TRIB_GROUPS_MAX];
    struct trib_group *groups;      /* groups of this worker, newest first; guarded by the mutex */
    struct trib_group *free_groups; /* groups that have ended, whose memory the next ones take; guarded by the mutex */
    uint32_t group_count, groups_alive; /* groups made so far; groups in the list `groups` */
    uint32_t bytes_calls;               /* operations on bytes in the whole job so far */

    trib_uneven_inputs join;
    trib_boundaries boundaries;
    trib_stalls stalls;

    uint64_t op_number; /* operations so far, guarded by the mutex */
    struct trib_op *free_ops, *all_ops;
    struct trib_forget *forgets;            /* core 0: tensors' ends on their way through the cores (server_forget.c) */
    struct trib_quorum_walk *quorum_walks;  /* frames about quorums on their way through the cores; behind the mutex */
    _Atomic(struct trib_op *) returned_ops; /* free operations, too: a core that frees a slot takes no lock */
    struct trib_prepared *free_prepared, *all_prepared;
    uint32_t ops_made;
    trib_counter ops_submitted;     /* written only under the mutex */
    _Atomic uint64_t ops_uncounted; /* submitted operations that are complete and whose handle was given back */
    atomic_uint waiters;
    trib_post *done_head, *done_tail; /* the completion queue of TRIB_MODE_QUEUE (completions.h) */
    int done_fd;
    _Atomic pthread_t dispatcher; /* the thread inside trib_engine_dispatch, or TRIB_NO_THREAD */
    /* Callbacks of the host (callback.h). */
    trib_callback_site callback_sites[TRIB_REACTORS_MAX];
    trib_post *callbacks;      /* on the host's thread: posts whose callbacks run, the innermost first */
    uintptr_t callbacks_frame; /* stack frame of the outermost of these callbacks */
    trib_post *batch;          /* posts that the dispatcher has taken from the completion queue, and not run yet */
    _Atomic uint64_t ops_completed, ops_failed;
};

/* Any core: ends the job on this engine with that cause. Only the first call counts. */
void trib_job_end(trib_engine *engine, const trib_cause *cause);
/* Returns true if the cause is the loss of a server that costs no operation: the job goes on without that server. */
bool trib_job_survives(const trib_engine *engine, const trib_cause *cause);
/* Any core: a member or the coordinator is lost. */
void trib_job_member_lost(trib_engine *engine, const trib_cause *cause);
/* Core 0: the coordinator has ended the epoch, and the job goes on. */
void trib_job_change(trib_engine *engine, const trib_cause *cause);
/* Core 0: the cores are open again, and join the next epoch. */
void trib_job_reopened(trib_engine *engine);
/* Fills in the membership as it is now; struct_size is set. The caller holds the mutex. */
void trib_job_membership(const trib_engine *engine, trib_membership *membership);
/* Any core: ends the job because of a failure of this process. */
void trib_job_fail(trib_engine *engine, trib_status status, const char *detail);
/* Render the cause for this process, or for other readers (without "this process"). Threads of reactors call them; any
 * other thread holds the mutex. */
void trib_job_render(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE]);
void trib_job_render_for_others(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE]);
/* As trib_job_render; if this process itself may count as lost for a callback that ran too long, the callback is named,
 * too. */
void trib_job_render_loss(trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE]);
/* Returns true for an end that needs no alarm. */
static inline bool trib_status_is_orderly(trib_status status)
{
    return status == TRIB_OK || status == TRIB_CLOSED;
}
/* Core 0, with the mutex held: takes ownership of the roster of the epoch that begins, and frees what is past. */
void trib_engine_take_roster_locked(trib_engine *engine, const trib_roster *roster);
/* Core 0: tells the cores of that roster. */
void trib_engine_publish(trib_engine *engine);
/* Notes that a core has all its links. */
void trib_engine_core_joined(trib_engine *engine);
/* Notes that a core has closed its last link after the job's end, or the epoch's: then it goes on, as `changing` was
 * when the core looked. */
void trib_engine_core_closed(trib_engine *engine, bool goes_on);
/* Any thread: begins to close the engine. Only the first call counts. */
void trib_engine_begin_close(trib_engine *engine, trib_closed_cb closed_cb, void *user);
/* Returns TRIB_OK, or the reason why the engine takes no operations. */
TRIB_CHECKED trib_status trib_engine_check_open(trib_engine *engine, trib_error *error);
/* The same, with the mutex held by the caller. A post made before the mutex is released reaches a core before the
 * job's end does. */
TRIB_CHECKED trib_status trib_engine_check_open_locked(const trib_engine *engine, trib_error *error);
/* Any thread: the number of operations submitted and not complete. */
static inline uint64_t trib_engine_ops_in_flight(const trib_engine *engine)
{
    /* The ended counts are read first, so that they never exceed the submitted count. */
    const uint64_t over = atomic_load(&engine->ops_completed) + atomic_load(&engine->ops_failed);
    return trib_counter_get(&engine->ops_submitted) - over;
}
/* Allocates small zeroed memory and counts it in *allocations. Returns NULL if there is none. Freed with free(). */
void *trib_job_zalloc(trib_engine *engine, trib_counter *allocations, size_t size);

/* The number of local ranks with a device on this machine; 1 without devices. */
static inline uint32_t trib_engine_local_size(const trib_engine *engine)
{
    return (uint32_t)engine->config.local_size;
}

/* Returns true if the job runs on one machine. */
static inline bool trib_engine_is_one_machine(const trib_engine *engine)
{
    return engine->config.local_size == engine->config.worker_count;
}

/* True if each device passes its tensors through host memory by itself: the communicators of a machine's devices do not
 * outlive one of them, and this job goes on without members. Before the roster comes this process's own setting is
 * taken for the job's. */
static inline bool trib_engine_stages_devices(const trib_engine *engine)
{
    /* Callers without the mutex must not look into the roster, which a change of the membership may free. */
    return engine->roster != NULL ? atomic_load(&engine->shrinks) : engine->config.survive >= TRIB_SURVIVE_WORKERS;
}

/* True while the engine has never been ready: the program need not know of an epoch that ends before. The caller holds
 * the mutex. */
static inline bool trib_engine_is_joining(const trib_engine *engine)
{
    return atomic_load(&engine->phase) == TRIB_PHASE_JOINING || (atomic_load(&engine->changing) && !engine->joined);
}

/* The ranks of a group; NULL: there is no such group. */
static inline const struct trib_rank_set *trib_engine_rank_set(const trib_engine *engine, uint32_t group)
{
    return group < TRIB_GROUPS_MAX ? atomic_load_explicit(&engine->rank_sets[group], memory_order_acquire) : NULL;
}

/* This process's rank, and the job's counts, as its settings or a roster say. The caller holds the mutex. */
void trib_engine_set_counts(trib_engine *engine, int32_t rank, int32_t workers, int32_t servers);

/* Wakes the threads that wait on `changed`. */
void trib_engine_notify(trib_engine *engine);
/* The caller holds the mutex. The post will run where callbacks run; the queue mode skips a post without a callback. */
void trib_job_tell(trib_engine *engine, trib_post *post, bool is_wanted);

/* Any thread: wakes the reactors in the bit set; bit i stands for the reactor with index i. */
void trib_engine_wake(trib_engine *engine, uint32_t reactors);

#endif
