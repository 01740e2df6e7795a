/*
 * reactor.h - one event loop on one thread: time, timers, file descriptors, and the mailbox from other threads.
 *
 * Everything above this header is written against struct trib_reactor_ops, so the same code runs on libev
 * (reactor_ev.c) and in virtual time (a simulated reactor implements the same table).
 *
 * Invariants
 * - All functions run on the reactor's own thread, except those that post and wake.
 * - No callback runs inside the call that arranged for it: timers, io and deferred posts run from the loop.
 * - A post is intrusive memory of its owner; it is in at most one list at a time and belongs to the reactor until its
 *   run function begins. The mailbox is bounded because whatever is posted comes from a bounded pool (operations,
 *   peers).
 */
#ifndef TRIB_ENGINE_REACTOR_REACTOR_H
#define TRIB_ENGINE_REACTOR_REACTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/limits.h"
#include "api/tributary.h"
#include "engine/base/float_env.h"
#include "engine/base/log.h"

typedef struct trib_reactor trib_reactor;

/* A message to a reactor, embedded in the object that it is about. */
typedef struct trib_post {
    struct trib_post *_Atomic next;
    void (*run)(trib_reactor *reactor, struct trib_post *post);
    bool queued; /* loop thread only: set while the post is deferred, so that it is not queued twice */
} trib_post;

#define TRIB_TIMER_STORAGE 64
typedef struct trib_timer {
    void (*fired)(trib_reactor *reactor, struct trib_timer *timer);
    void *user;
    int64_t due_ns; /* the time for which it was armed last */
    bool armed;
    _Alignas(16) unsigned char storage[TRIB_TIMER_STORAGE]; /* the implementation's own */
} trib_timer;

#define TRIB_IO_READ 1u
#define TRIB_IO_WRITE 2u
#define TRIB_IO_STORAGE 64
typedef struct trib_io {
    void (*ready)(trib_reactor *reactor, struct trib_io *io, unsigned events);
    void *user;
    int fd;
    unsigned events; /* 0: not watched */
    _Alignas(16) unsigned char storage[TRIB_IO_STORAGE];
} trib_io;

/* Kinds of computing that are charged: a simulated reactor lets time pass for them, a real one ignores them. */
typedef enum trib_cost {
    TRIB_COST_SUM,
    TRIB_COST_COPY,
    TRIB_COST_ENCODE, /* bytes of elements, not of their encoded form */
    TRIB_COST_DECODE,
    TRIB_COST_CHECK,
    TRIB_COST_MESSAGE,
} trib_cost;

typedef struct trib_reactor_ops {
    const char *name;
    int64_t (*now_ns)(trib_reactor *reactor);      /* monotonic */
    int64_t (*now_fast_ns)(trib_reactor *reactor); /* loop thread: as now_ns, cheaper, and off by some 100 ns */
    void (*wake)(trib_reactor *reactor);           /* any thread: make the loop run the mailbox */
    void (*timer_arm)(trib_reactor *reactor, trib_timer *timer, int64_t at_ns); /* re-arms if armed */
    void (*timer_stop)(trib_reactor *reactor, trib_timer *timer);               /* no-op if not armed */
    void (*io_watch)(trib_reactor *reactor, trib_io *io, unsigned events);      /* 0 stops watching */
    void (*charge)(trib_reactor *reactor, trib_cost cost, size_t bytes);
    void (*random)(trib_reactor *reactor, void *buffer, size_t size); /* cryptographic, or from the seed */
} trib_reactor_ops;

/*
 * Input that no descriptor announces, such as memory that another process writes to. The loop looks at it in every
 * turn; before it blocks it lets the source ask for wake-ups, which come through a descriptor. A reactor that never
 * blocks (a simulated one) need not know of them.
 */
typedef struct trib_poller {
    struct trib_poller *next;
    /* Takes the input that is there, within bounds; true if there was some. Runs as a callback of the loop. */
    bool (*poll)(trib_reactor *reactor, struct trib_poller *poller);
    /* The loop is about to block, so later input shall wake it. Returns false if input is there already. */
    bool (*before_block)(trib_reactor *reactor, struct trib_poller *poller);
    /* The loop runs again: wake-ups are not needed. */
    void (*after_block)(trib_reactor *reactor, struct trib_poller *poller);
} trib_poller;

/* The resource that listeners of this loop are short of. */
typedef struct trib_shortage {
    int error;                 /* errno's number; 0: nothing is short */
    int64_t since_ns, last_ns; /* when it was noted first, and last */
} trib_shortage;

struct trib_reactor {
    const trib_reactor_ops *ops;
    uint32_t index; /* the reactor's number in its engine */
    void *owner;    /* the engine's per-reactor state */
    trib_logger *logger;
    _Atomic(trib_post *) mail; /* newest first; other threads push */
    trib_post *deferred_head, *deferred_tail;
    trib_poller *pollers;
    /* operations of its owner that wait for answers of other processes, which may come at any moment */
    uint32_t awaited;
    bool got_payload; /* payload has come, so more may follow soon (heartbeats do not count); the loop clears it */
    trib_shortage shortage;
    atomic_bool lost; /* the caller's loop was destroyed: nothing runs any more, and the loop is not touched */
    /* on a loop of the caller's: the caller's floating-point environment, while the reactor works in the default one */
    trib_float_env host_env;
};

void trib_reactor_init(trib_reactor *reactor, const trib_reactor_ops *ops, uint32_t index, trib_logger *logger);

/* Any thread: runs post->run on the reactor soon, in order of posting from one thread. */
void trib_reactor_post(trib_reactor *reactor, trib_post *post);
/* As trib_reactor_post without a wake-up: the caller makes sure that trib_reactor_wake is called soon. */
void trib_reactor_post_nowake(trib_reactor *reactor, trib_post *post);

/* Posts that are to be posted together, in the order in which they were added. All zero: there are none. */
typedef struct trib_post_list {
    trib_post *newest, *oldest;
} trib_post_list;

static inline void trib_post_list_add(trib_post_list *list, trib_post *post)
{
    atomic_store_explicit(&post->next, list->newest, memory_order_relaxed);
    list->newest = post;
    list->oldest = list->oldest == NULL ? post : list->oldest;
}
/* Any thread: as trib_reactor_post_nowake for each post of the list, which is not empty, at the cost of one. */
void trib_reactor_post_list_nowake(trib_reactor *reactor, trib_post_list *list);
/* Any thread. */
static inline void trib_reactor_wake(trib_reactor *reactor)
{
    reactor->ops->wake(reactor);
}

/* Loop thread: runs post->run later in this turn, after the present callback has returned. A post that is deferred
 * already stays queued once. */
void trib_reactor_defer(trib_reactor *reactor, trib_post *post);

/* For implementations: runs what is in the mailbox and deferred, at most a bounded number; true if some is left. */
bool trib_reactor_run_posts(trib_reactor *reactor);
/* Sequentially consistent, for a loop that has just announced that it goes to sleep. */
static inline bool trib_reactor_has_posts(const trib_reactor *reactor)
{
    return reactor->deferred_head != NULL || atomic_load(&reactor->mail) != NULL;
}

/* Loop thread, not from inside a poller's own functions. */
void trib_reactor_poller_add(trib_reactor *reactor, trib_poller *poller);
void trib_reactor_poller_remove(trib_reactor *reactor, trib_poller *poller);

/* For implementations; each asks all pollers. trib_reactor_poll: true if one had something. rest: true if the loop may
 * block; woken must follow, whatever the answer was. */
bool trib_reactor_poll(trib_reactor *reactor);
bool trib_reactor_before_block(trib_reactor *reactor);
void trib_reactor_after_block(trib_reactor *reactor);

/* For implementations: the work of a turn, apart from timers and descriptors. Polls and runs posts, bounded; with
 * `looks` also polls for about a microsecond when no poller had input, as long as something is awaited. */
typedef struct trib_turn {
    bool worked; /* there was something to do */
    bool posted; /* some of it came by post */
} trib_turn;
trib_turn trib_reactor_turn(trib_reactor *reactor, bool polls_more);

static inline int64_t trib_timeout_clamp(int64_t timeout_ns)
{
    return timeout_ns < TRIB_TIMEOUT_MAX_NS ? timeout_ns : TRIB_TIMEOUT_MAX_NS;
}

static inline int64_t trib_now(trib_reactor *reactor)
{
    return reactor->ops->now_ns(reactor);
}

static inline int64_t trib_now_fast(trib_reactor *reactor)
{
    return reactor->ops->now_fast_ns(reactor);
}

static inline void trib_timer_arm(trib_reactor *reactor, trib_timer *timer, int64_t at_ns)
{
    timer->due_ns = at_ns;
    reactor->ops->timer_arm(reactor, timer, at_ns);
}

/* True if a timer that looks for silent peers fired late by more than the tolerance: this reactor itself was away, and
 * messages may lie unread. The caller then judges peers the next time the timer fires, late or not; otherwise a loop
 * that is always late would never judge. */
static inline bool trib_timer_stalled_locally(trib_reactor *reactor, const trib_timer *timer, int64_t tolerance_ns)
{
    return trib_now(reactor) - timer->due_ns > tolerance_ns;
}

static inline void trib_timer_stop(trib_reactor *reactor, trib_timer *timer)
{
    reactor->ops->timer_stop(reactor, timer);
}

static inline void trib_io_watch(trib_reactor *reactor, trib_io *io, unsigned events)
{
    reactor->ops->io_watch(reactor, io, events);
}

/* A listener that lacks a resource to accept a connection notes the shortage at each attempt, several times in this
 * time: a shortage that was not noted for so long is over. */
#define TRIB_SHORTAGE_GAP_NS (1000 * INT64_C(1000000))
void trib_reactor_note_shortage(trib_reactor *reactor, int error);

/* A connection has been accepted: the shortage is over. */
static inline void trib_reactor_end_shortage(trib_reactor *reactor)
{
    reactor->shortage.error = 0;
}

/* The present shortage, as errno's number, and for how long it has lasted; 0: none. */
int trib_reactor_find_shortage(trib_reactor *reactor, int64_t *for_ns_out);

static inline void trib_charge(trib_reactor *reactor, trib_cost cost, size_t bytes)
{
    reactor->ops->charge(reactor, cost, bytes);
}

#endif
