/*
 * job.h - what all layers of one engine share: its settings, what it is built on, the roster, and the job's fate. One engine
 * object owns everything; there is no other state.
 *
 * Which thread touches what: a core's state belongs to its reactor. Membership (member.c, coordinator.c) lives on
 * core 0. `mutex` guards what callers' threads share: the tensor table, the operation pool, the job's fate, the
 * completion queue. Reactors take it only on rare events and to hand completions to a queue, never per partition.
 */
#ifndef TRIB_ENGINE_JOB_H
#define TRIB_ENGINE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/tributary.h"
#include "engine/wire/auth.h"
#include "engine/base/counter.h"
#include "engine/base/kernel_ops.h"
#include "engine/job/cause.h"
#include "engine/job/departed.h"
#include "engine/reactor/reactor.h"
#include "engine/cluster/roster.h"
#include "transports/transport.h"

struct trib_core;
struct trib_plan;
struct trib_coordinator;
struct trib_member;
struct trib_tracer;
struct trib_group;
struct trib_device;
struct trib_device_ops;
struct trib_host_world;
struct trib_machine_place;

#define TRIB_AWAITED_SIZE 256
#define TRIB_NO_THREAD ((pthread_t)0)
#define TRIB_PLACE_NAME_MAX 44 /* with "rank 4095 ()" around it still a member's name */

/* What an engine is built on: the seam at which tests and the simulator put their own world. */
typedef struct trib_env {
    const trib_transport_ops *transport;
    const trib_kernels *kernels;
    const struct trib_plan *plans; /* by trib_collective */
    /* Opens reactor i; starts it later, stops and frees it at the end. A started reactor runs after `go`, or is stopped
     * without having run. `go` may be NULL. */
    trib_status (*reactor_open)(trib_engine *engine, uint32_t index, trib_reactor **out);
    trib_status (*reactor_start)(trib_engine *engine, trib_reactor *reactor);
    void (*reactor_go)(trib_engine *engine, trib_reactor *reactor);
    /* On the reactor's thread, when the job has come together; `place` counts the machine's other processes. May be NULL. */
    void (*reactor_settle)(trib_engine *engine, trib_reactor *reactor, const struct trib_machine_place *place);
    void (*reactor_stop)(trib_engine *engine, trib_reactor *reactor); /* returns when its thread is gone */
    void (*reactor_free)(trib_reactor *reactor);
    bool (*on_thread)(const trib_reactor *reactor);   /* is the caller on its thread? */
    bool (*poll)(trib_reactor *reactor);              /* on its thread: trib_engine_dispatch, ATTACHED; may be NULL */
    void *(*memory_alloc)(void *memory, size_t size); /* aligned to pages, if it is smaller than one to 64 bytes */
    /* The same on a caller's thread, which waits until the memory has been registered, and keeps no core waiting. */
    void *(*memory_alloc_blocking)(void *memory, size_t size);
    void (*memory_free)(void *memory, void *block);
    /* Memory of the caller's own that is registered where the arena's is; how much is at base (0: none); no more. As
     * trib_arena_adopt and those with it; NULL: nobody wants to know memory. */
    trib_status (*memory_adopt)(void *memory, void *base, size_t size, trib_error *error);
    size_t (*memory_adopted)(void *memory, const void *base);
    trib_status (*memory_disown)(void *memory, void *base);
    void *memory;            /* the arena */
    void *transport_context; /* what the transport's `context_open` made, or NULL */
    /* False: a core may not take so much small memory, as if there were none; for tests. NULL: it always may. */
    bool (*may_alloc)(void *memory, size_t size);
    void (*fini)(struct trib_env *env); /* gives back what it was made of, after the engine has gone */
    /* By reactor, which of the addresses to listen on is its own, modulo their number; NULL: the i-th. */
    const uint8_t *listen_choice;
    uint32_t cpu_count; /* of this machine, for traces; 0: not known */
    uint64_t kernel;    /* which one runs this process, of all machines' kernels; 0: not known */
    bool placed;        /* the launcher said which of the machine's processes this is */
    /* Tensors on a device; NULL: there is none. */
    const struct trib_device_ops *device;
    void (*device_thread)(void *memory);  /* a thread of the device's has begun: on it, to be placed. May be NULL */
    int64_t poll_window_max_ns;           /* how long threads for the device look for more at most (poll_window.h) */
    struct trib_host_world *device_world; /* of devices in plain memory, shared by a machine's engines in one process */
    /* Tells the arena of a device that copies from and to its memory, and before that goes. May be NULL. */
    void (*memory_attach_device)(void *memory, const struct trib_device_ops *ops, struct trib_device *device);
    void (*memory_detach_device)(void *memory);
    char place[TRIB_PLACE_NAME_MAX]; /* where this process is, for its peers' messages: "host:pid" */
} trib_env;

/* A reactor, and what is posted to it when the roster has come and when the job has ended. */
typedef struct trib_job_reactor {
    trib_reactor *reactor;
    trib_post *roster_post, *ended_post;
} trib_job_reactor;

/* Functions of the engine's upper layers that lower ones call; set when the engine is opened. */
typedef struct trib_job_hooks {
    /* The last core has closed; before `closed` is called. Any core. */
    void (*core_closed)(trib_engine *engine);
    /* While something is recorded: data begins to move on that core. */
    void (*data_began)(struct trib_core *core, int64_t at_ns);
    /* Run of a tensor's declare_post on core 0: declares it, now or when the job has formed. */
    void (*declare)(trib_reactor *reactor, trib_post *post);
    /* Core 0: what joining waits for, as a text: the missing members, or why the coordinator is not reached. */
    const char *(*awaited)(const trib_engine *engine, char *text, size_t size);
    /* Core 0: a member has left in good order. */
    void (*member_left)(struct trib_core *core);
    /* Core 0: how many of its machine's device collectives this process has carried out, modulo 2^32. */
    uint32_t (*carried_out)(const struct trib_core *core);
    /* Core 0: asks the coordinator for its time; false: it cannot be asked (now). */
    bool (*ask_time)(const trib_engine *engine);
} trib_job_hooks;

typedef enum trib_phase { TRIB_PHASE_JOINING, TRIB_PHASE_READY, TRIB_PHASE_ENDED } trib_phase;

struct trib_engine {
    uint32_t process; /* that made it: in a child of that one it is not to be used (fork.h) */
    trib_env env;
    trib_config config; /* its strings are owned */
    char *job, *token, *coordinator_address, *listen_host;
    unsigned char key[TRIB_KEY_SIZE];
    trib_logger logger;
    const trib_job_hooks *hooks;
    uint32_t core_count;
    struct trib_core *cores;
    trib_job_reactor reactors[TRIB_REACTORS_MAX]; /* core_count of them */
    _Atomic uint32_t member_id;                   /* written on core 0 before the roster is published */

    struct trib_coordinator *coordinator; /* NULL: it is elsewhere */
    struct trib_member *member;
    struct trib_tracer *tracer;
    const struct trib_device_hooks *device_hooks; /* NULL: no device */
    struct trib_device *device;                   /* NULL: none */
    atomic_bool direct_logged;                    /* that bytes go past host memory; logged once */
    _Atomic(struct trib_group *) group;           /* the machine's local ranks; NULL: alone, or not yet */
    atomic_uint launches;                         /* counts where a stream was refused (device.h) */
    atomic_bool refused_logged;                   /* that one was; logged once */
    atomic_uint device_jobs;                      /* with the device, beside those of tasks */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* phase, an operation somebody waits for, a report, closed */
    _Atomic(const trib_roster *) roster;
    _Atomic trib_phase phase;
    trib_cause cause; /* why the job ended; written with the mutex held, final once phase is ENDED */
    trib_error fate;  /* the same, rendered for this process; guarded by mutex, final once phase is ENDED */
    trib_departed departed;
    char awaited[TRIB_AWAITED_SIZE]; /* what joining waits for, guarded by mutex (member.h) */
    atomic_uint cores_joining, cores_open;
    bool joined, close_asked, closed;
    trib_closed_cb closed_cb;
    void *closed_user;
    trib_post ready_post, ended_post, closed_post; /* user callbacks, on core 0 or in trib_engine_dispatch */
    trib_timer close_timer;

    struct trib_tensor *tensors_by_name; /* uthash */
    struct trib_tensor *barrier_tensor;
    atomic_uint moves_unsettled; /* tensors that have been told to move and have not on all cores (tensor_move.c) */
    uint32_t tensor_count;
    struct trib_tensor **tensors; /* by tag */
    uint32_t tensors_capacity;

    struct trib_op *free_ops, *all_ops;
    uint32_t ops_made;
    trib_counter ops_submitted;     /* written under the mutex alone */
    _Atomic uint64_t ops_uncounted; /* of those, neither in flight nor with handles not given back */
    atomic_uint waiters;
    trib_post *done_head, *done_tail; /* completions.h; TRIB_MODE_QUEUE */
    int done_fd;
    _Atomic pthread_t dispatcher; /* the thread inside trib_engine_dispatch, or TRIB_NO_THREAD */
    uint32_t callbacks_running;   /* TRIB_MODE_ATTACHED, on the loop's thread; more than one if they run the loop */
    _Atomic uint64_t ops_completed, ops_failed;
};

/* Any core: the job is over for this engine, for that cause. Only the first call counts. */
void trib_job_end(trib_engine *engine, const trib_cause *cause);
/* Any core: a member is lost, or the coordinator is. This function alone decides what that means: the job ends. */
void trib_job_member_lost(trib_engine *engine, const trib_cause *cause);
/* Any core: a failure of this process's own. */
void trib_job_fail(trib_engine *engine, trib_status status, const char *detail);
/* The cause as this process reads it; and as others read it, too, without "this process". */
void trib_job_render(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE]);
void trib_job_render_for_others(const trib_engine *engine, const trib_cause *cause, char text[TRIB_ERROR_TEXT_SIZE]);
/* True if the status is that of an end that needs no alarm. */
static inline bool trib_status_is_orderly(trib_status status)
{
    return status == TRIB_OK || status == TRIB_CLOSED;
}
/* Core 0: the roster is here; tell the cores. Takes it over. */
void trib_engine_publish(trib_engine *engine, const trib_roster *roster);
/* A core has all its links. */
void trib_engine_core_joined(trib_engine *engine);
/* A core has closed its last link after the end. */
void trib_engine_core_closed(trib_engine *engine);
/* Any thread: begins to close. */
void trib_engine_begin_close(trib_engine *engine, trib_closed_cb closed_cb, void *user);
/* TRIB_OK, or why operations cannot be taken. */
TRIB_CHECKED trib_status trib_engine_check_open(trib_engine *engine, trib_error *error);
/* The same with the mutex held: posts that are made before it is let go reach the cores before the end does. */
TRIB_CHECKED trib_status trib_engine_check_open_locked(const trib_engine *engine, trib_error *error);
/* Any thread. */
static inline uint64_t trib_engine_ops_in_flight(const trib_engine *engine)
{
    /* In this order: what is over was submitted before. */
    const uint64_t over = atomic_load(&engine->ops_completed) + atomic_load(&engine->ops_failed);
    return trib_counter_get(&engine->ops_submitted) - over;
}
/* Around each callback of the user's: what may not be called from one can tell. */
static inline void trib_engine_callback_begin(trib_engine *engine)
{
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        engine->callbacks_running++;
    }
}

static inline void trib_engine_callback_end(trib_engine *engine)
{
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        engine->callbacks_running--;
    }
}

/* Memory that is small and zeroed, counted in *allocations; NULL when there is none. Freed with free(). */
void *trib_job_zalloc(trib_engine *engine, trib_counter *allocations, size_t size);

/* How many ranks, each with a device, share this machine; 1 without devices. */
static inline uint32_t trib_engine_local_size(const trib_engine *engine)
{
    return (uint32_t)engine->config.local_size;
}

/* True: the job has one machine. */
static inline bool trib_engine_is_one_machine(const trib_engine *engine)
{
    return engine->config.local_size == engine->config.worker_count;
}

/* Wakes the threads that wait on `changed`. */
void trib_engine_notify(trib_engine *engine);

/* Any thread: wakes those of its reactors, bit i for that with index i. */
void trib_engine_wake(trib_engine *engine, uint32_t reactors);

#endif
