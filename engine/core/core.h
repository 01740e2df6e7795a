/*
 * core.h - the state that one reactor of an engine owns: its links, its share of every tensor's partitions, and the
 * keys it sums.
 *
 * Only the reactor's thread uses this state, except the statistics: the reactor writes them, and any thread may read
 * them.
 */
#ifndef TRIB_ENGINE_CORE_H
#define TRIB_ENGINE_CORE_H

#include "engine/base/counter.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/link/link_host.h"
#include "engine/link/listeners.h"
#include "engine/cluster/roster.h"
#include "engine/aggregate/aggregator.h"
#include "engine/trace/trace_ring.h"

struct trib_op_core;
struct trib_tensor;
struct trib_stage_state;
struct trib_load_report;

/* A sum that waits for its turn on the link to its receiver; see server_plan.c. */
typedef struct trib_sum_entry trib_sum_entry;

typedef struct trib_core {
    trib_engine *engine;
    trib_reactor *reactor;
    trib_listeners listeners;
    trib_listeners meeting; /* core 0: where members look for the coordinator, if it is in this process */
    trib_address meeting_at;
    trib_link_host host;    /* its links */
    uint32_t links_missing; /* data links that are not READY yet */
    /* Data links that could not be made (wireup.h), the oldest first. ask_number numbers the question to the
     * coordinator about them; 0: core 0 has not asked yet. */
    struct trib_doubt *doubts;
    trib_timer doubt;
    trib_post ask_post;
    atomic_bool ask_posted;
    atomic_uint ask_number;
    bool joined;  /* all data links are READY, so operations may run */
    bool ended;   /* the job is over for this core; ended_status and ended_text hold the cause */
    bool closing; /* the core is closing its links */
    int64_t close_deadline_ns;
    int64_t leave_by_ns; /* core 0: the latest time to tell the coordinator that the member leaves */
    trib_status ended_status;
    char ended_text[TRIB_ERROR_TEXT_SIZE];
    trib_post roster_post, ended_post;
    /* Others may post these while the core is closed and opened again. */
    trib_post report_post;
    trib_post reopen_post;
    trib_timer tick;

    struct trib_load_report *load_report;
    atomic_bool loads_are_open;

    /* Worker. */
    trib_link **owner_links;      /* [member * TRIB_REACTORS_MAX + reactor]; NULL where this core has no link */
    struct trib_tensor **tensors; /* by id */
    uint32_t *rounds_over;        /* by id: rounds up to this one belong to tensors that have ended */
    uint32_t tensors_capacity;
    struct trib_op_core *op_cores;     /* operations that arrived and are not done, newest first */
    struct trib_op *held, **held_last; /* core 0: operations that wait for the other workers (op_commit.h) */
    bool *left_owners;                 /* by member: it has left in good order; NULL in jobs that survive no loss */
    bool join_waits;                   /* trib_join waits until the core has no operation (op_join.h) */
    struct trib_orphan *orphans;       /* worker_orphan.h */
    trib_post lost_post;
    atomic_bool lost_posted;
    uint32_t losses_taken;  /* lost servers whose partitions have new owners here */
    unsigned char *discard; /* receives payloads that are not needed any more */

    struct trib_stage_state *stages; /* by trib_stage_id: the dispatcher's state for each stage (pipeline.h) */

    /* Server. */
    /* its aggregators (server_sum.h); NULL before the roster is here and after the core has closed */
    struct trib_server_sum *sums;
    uint32_t sum_count;
    uint32_t *sums_over; /* by a tensor's id: rounds up to this one belong to tensors that all workers have released */
    uint32_t sums_over_capacity;
    struct trib_served_tensor **served; /* by id: the tensors that the coordinator has told of (server_tensor.h) */
    uint32_t served_capacity;
    struct trib_server_sum **group_sums;    /* by group; NULL: no group has contributed to this core yet */
    struct trib_server_sum *group_sum_list; /* those that are there */
    struct trib_takeover *takeovers;        /* partitions of lost servers that this core begins to sum (takeover.h) */
    struct trib_keeper *keepers;            /* partitions whose sums a worker keeps (keeper.h) */
    struct trib_quorum *quorums;            /* rounds that are to go on without some workers (quorum.h) */
    trib_timer quorum_timer;                /* of the next round that may; `fired` is NULL if no tensor has a quorum */
    int64_t quorum_at_ns;                   /* when it fires; 0: not at all */
    struct trib_relay *relay; /* set on a core that sums for the workers of its machine first (relay.h), else NULL */
    trib_link **worker_links; /* by rank */
    bool *wireup_awaited;     /* by rank: the worker has yet to connect to this core (wireup.h); NULL: not known yet */
    /* posted when a rank has joined, so that work that waited for it goes on (server_joined.c) */
    trib_post joined_post;
    atomic_bool joined_posted;
    int64_t next_scan_ns; /* time of the next scan of waiting rounds while the core ends */
    trib_sum_entry *free_entries;
    struct trib_server_codec *codec; /* for encoded chunks (server_codec.c); NULL: none has come yet */
    uint32_t entries_waiting;        /* sums not sent yet */
    /* time of the last check while contributions find no memory (server_memory.c), else 0 */
    int64_t out_of_memory_at_ns;
    int64_t out_of_memory_ns; /* duration of the shortage so far, without time in which this process was stopped */
    bool out_of_memory_asks;  /* a contribution found no memory since the last check */
    bool out_of_memory_logged;

    trib_core_stats stats;
    trib_trace_ring trace;
    const void *traced_sum; /* the sum whose completion was traced last (server_plan.c) */
} trib_core;

/* A member that waits for others to join logs this once after this delay, if the join timeout is longer. The join
 * timers fire then and again at the timeout. */
#define TRIB_JOIN_NOTICE_NS (10 * INT64_C(1000000000))

static inline int64_t trib_join_first_ns(int64_t timeout_ns)
{
    return timeout_ns > TRIB_JOIN_NOTICE_NS ? TRIB_JOIN_NOTICE_NS : timeout_ns;
}

static inline bool trib_join_notice_is_due(int64_t timeout_ns, bool *noticed)
{
    const bool due = timeout_ns > TRIB_JOIN_NOTICE_NS && !*noticed;
    *noticed = true;
    return due;
}

/* Prepares a core before it runs. `incoming` holds the upcalls for accepted links. */
void trib_core_init(trib_core *core, trib_engine *engine, trib_reactor *reactor, const trib_link_upcalls *incoming);
/* Opens the core's transport, which listens for other members. */
TRIB_CHECKED trib_status trib_core_listen(trib_core *core, trib_error *error);
TRIB_CHECKED trib_status trib_core_open(trib_core *core, trib_engine *engine, trib_reactor *reactor, trib_error *error);
/* Frees what is left, after the core's reactor has stopped, or on it. */
void trib_core_close(trib_core *core);
/* On the core's reactor, after the core has closed its links: makes the core as it was when it was opened. Its
 * transport and listeners stay: whoever finds that nobody listens there knows that the process has gone. */
TRIB_CHECKED trib_status trib_core_reopen(trib_core *core, trib_error *error);

/* Allocates zeroed memory, which is counted in stats.allocations and freed with free(). Returns NULL when out of
 * memory. */
static inline void *trib_core_zalloc(trib_core *core, size_t size)
{
    return trib_link_zalloc(&core->host, size);
}

/* True if the caller is on the thread that owns the core. */
static inline bool trib_core_is_here(const trib_core *core)
{
    return core->engine->env.on_thread(core->reactor);
}

/* worker.c: links to the servers, and the frames that arrive on them. */
extern const trib_link_upcalls trib_worker_upcalls;
TRIB_CHECKED trib_status trib_worker_open(trib_core *core, trib_error *error);
void trib_worker_close(trib_core *core);
void trib_worker_joined(trib_core *core);      /* the last link is READY: waiting operations may run */
void trib_worker_check_stall(trib_core *core); /* at every tick: worker_stall.c */
void trib_worker_fail_all(trib_core *core, trib_status status, const char *text);
TRIB_CHECKED trib_status trib_worker_received(trib_link *link, const trib_frame *frame, const void *payload,
                                              bool in_place, trib_error *error);

/* server.c: links from workers, and the frames that arrive on them. */
extern const trib_link_upcalls trib_server_upcalls;
TRIB_CHECKED trib_status trib_server_open(trib_core *core, trib_error *error);
void trib_server_close(trib_core *core);
void trib_server_adopt(trib_link *link); /* an accepted data link has authenticated itself */
void trib_server_tick(trib_core *core);
void trib_server_resume(trib_core *core); /* links that had to wait try again */
bool trib_server_is_idle(const trib_core *core);
/* server_memory.c: notes the result of a contribution's request for that much memory. The check runs at every tick. */
void trib_server_note_memory(trib_core *core, trib_status status, uint32_t size);
void trib_server_check_memory(trib_core *core);
TRIB_CHECKED trib_status trib_server_received(trib_link *link, const trib_frame *frame, const void *payload,
                                              bool in_place, trib_error *error);

#endif
