/*
 * link.h - one connection to one reactor of another member: handshake, frames, and what waits for its turn to be sent.
 *
 * A link is made by trib_link_connect or from an accepted connection; it proves the token, becomes READY, carries
 * frames and ends with exactly one `closed` upcall, after which it is gone. A link to this process's own server on
 * the same reactor has no connection: its frames are handed over on the same thread, payloads handed over in place.
 *
 * What may be sent by priority waits in the link's outbox, a heap ordered by (priority, age); it sends chunk by chunk
 * while fewer than `credit` bytes are with the transport, so what is urgent never waits behind more than that.
 */
#ifndef TRIB_ENGINE_LINK_H
#define TRIB_ENGINE_LINK_H

#include "engine/wire/auth.h"
#include "engine/link/egress.h"
#include "engine/base/kernel_ops.h"
#include "engine/wire/cause_wire.h"
#include "engine/wire/wire.h"

typedef struct trib_link trib_link;
typedef struct trib_send_record trib_send_record;
struct trib_core;

typedef enum trib_link_state {
    TRIB_LINK_CONNECTING,      /* connector: waits for the transport */
    TRIB_LINK_AWAIT_CHALLENGE, /* connector: HELLO sent */
    TRIB_LINK_AWAIT_WELCOME,   /* connector: PROOF sent */
    TRIB_LINK_AWAIT_HELLO,     /* acceptor */
    TRIB_LINK_AWAIT_PROOF,     /* acceptor: CHALLENGE sent */
    TRIB_LINK_READY,           /* frames flow */
    TRIB_LINK_CLOSING,         /* waits for the transport's closed */
} trib_link_state;

/* What an accepted link turned out to be for, once the upper layer has adopted it. */
typedef enum trib_link_role { TRIB_LINK_ROLE_NONE, TRIB_LINK_ROLE_SERVER } trib_link_role;

typedef enum trib_purpose {
    TRIB_PURPOSE_CONTROL = 1,
    TRIB_PURPOSE_DATA = 2,
    TRIB_PURPOSE_GROUP = 3,
    TRIB_PURPOSE_PRIORITY = 4,
    TRIB_PURPOSE_SUBFLOW = 5,
} trib_purpose;

/* Which of a link's connections something may take; see link_priority.h. Where the link has subflows (link_subflow.h) what
 * begins may take any of those, unless it is to follow what went before. */
typedef enum trib_route {
    TRIB_ROUTE_MAIN,   /* the first, as what was sent before it */
    TRIB_ROUTE_ANY,    /* either: it is one small message, and nothing that was sent before must come before it */
    TRIB_ROUTE_PINNED, /* the request's `connection`, if it is there */
} trib_route;

#define TRIB_SUBFLOWS_MAX                                                                                              \
    3u /* of a link: with the first connection as many as an address can have rails (failover.h) */
#define TRIB_CONNECTIONS_MAX (TRIB_SUBFLOWS_MAX + 2u)

#define TRIB_SEND_IDLE UINT32_MAX
#define TRIB_SEND_BEGUN (UINT32_MAX - 1)

/* Something that waits for a link's credit; embedded in what it is about. */
typedef struct trib_send_request {
    int32_t priority;
    trib_route route;
    uint64_t sequence;   /* age: lower goes first among equals */
    uint32_t heap_index; /* or TRIB_SEND_IDLE: not waiting; TRIB_SEND_BEGUN: one of the link's connections has it */
    uint8_t connection;  /* of TRIB_ROUTE_PINNED: as trib_link_connection counts */
    struct trib_send_request *begun_next;
    /* Sends one chunk over that link, or another of its connections if the route allows that; false: that was the last. */
    bool (*send_chunk)(trib_link *link, struct trib_send_request *request);
    void (*on_drop)(struct trib_send_request *request); /* the link ended first; may be NULL */
} trib_send_request;

/*
 * header may come for several frames before the first of them is received (transport.h). It answers where the payload shall
 * land; if it names no buffer the link has memory for it, until `received` returns. An error, or TRIB_AGAIN, that it answers
 * while earlier frames are still to be received may be due to that: it is asked again when one of them has been, and only
 * what it answers to the frame whose turn it is counts.
 */
typedef struct trib_link_upcalls {
    void (*ready)(trib_link *link);
    trib_status (*header)(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error);
    trib_status (*received)(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error);
    void (*closed)(trib_link *link, trib_status status, const char *reason);
} trib_link_upcalls;

/*
 * Whom a payload lands for. A `header` that names a buffer of its own fills this in (link->recv_claim) if somebody must hear
 * of the payload's fate, and exactly one of two things follows: `received` finds it there again, or `abandon` is called,
 * before `closed`. Each frame has its own, so it does not matter which others are asked about in between.
 */
typedef struct trib_recv_claim {
    void (*abandon)(trib_link *link, const struct trib_recv_claim *recv_claim);
    void *what; /* NULL: nobody must hear of it */
    void *owner;
} trib_recv_claim;

/* A frame whose header has been taken, until it is received. */
typedef struct trib_arrival {
    trib_frame frame;
    trib_recv_claim recv_claim;
    void *memory; /* the link's, where the payload lands; NULL: `header` named a place, or there is none */
} trib_arrival;

struct trib_link {
    trib_link_host *host;
    struct trib_core *core; /* the host's owner, for the upper layers */
    const trib_link_upcalls *upcalls;
    trib_conn *conn;            /* NULL: self */
    trib_link *next, *previous; /* the core's list */
    trib_link *pump_next;
    bool pump_queued;
    trib_link_state state;
    trib_purpose purpose;
    trib_link_role role;
    bool outgoing;
    bool proved;       /* it has been READY, or could have been */
    bool bye;          /* the peer said it closes in good order */
    bool has_farewell; /* ... or not: `end` is the cause that the peer told, unless is_ended */
    unsigned char farewell[TRIB_CAUSE_PAYLOAD_MAX];
    uint32_t peer; /* member id, TRIB_NO_MEMBER if not known */
    uint32_t peer_reactor;
    trib_handshake handshake;
    unsigned char scratch[64];
    trib_arrival arrivals[TRIB_AHEAD_MAX]; /* a ring */
    uint32_t arrival_first, arrival_count;
    bool asks_again;            /* a header was turned down while arrivals were awaited */
    trib_recv_claim recv_claim; /* of the frame that `header` or `received` is about */
    void *user;                 /* the upper layer's */
    trib_timer deadline;
    int64_t last_received_ns;
    uint64_t in_flight; /* bytes with the transport */
    uint32_t credit;
    int64_t busy_since_ns;    /* until when it has been counted how long some was in flight (load_report.h) */
    uint64_t busy_seen_ns;    /* what the transport itself had counted then; 0: nothing */
    bool is_counted;          /* among those that a load is about */
    bool is_busy;             /* ... some is in flight, and will be counted when it is back */
    bool waits;               /* something in the outbox waits for credit */
    trib_link *priority_link; /* its second connection; NULL: none */
    trib_link *subflows[TRIB_SUBFLOWS_MAX]; /* its connections by other networks; NULL: none */
    bool has_subflows;                      /* or has had */
    trib_link *main;          /* what a priority one or a subflow belongs to, once that is known; NULL of all others */
    bool forks;               /* what is begun over one of its connections goes on there: it may have subflows */
    uint8_t rail;             /* which of the peer's networks it goes by, of those that it may have subflows for */
    trib_send_request *begun; /* what has been begun over it, or must go over it: by priority, then by age */
    bool priority_failed;     /* it could not be made */
    bool has_received;        /* of one with a main one: something has come over it */
    bool conn_closed;         /* the connection is gone, and `closed` waits for the end of the other ones */
    trib_egress_flow flow;    /* of a link that this core pushes over */
    trib_send_request **heap;
    uint32_t heap_size, heap_capacity;
    trib_send_record *self_head, *self_tail; /* self: frames handed over on the next turn */
    trib_post self_post;
    trib_cause end;     /* why it ends; link_cause.h makes of it what the job is told */
    bool is_ended;      /* `end` is final */
    bool end_from_peer; /* `end` is the cause that the peer told */
};

/* The i-th of the frames whose headers have been taken, oldest first. */
static inline const trib_arrival *trib_link_arrival(const trib_link *link, uint32_t i)
{
    return &link->arrivals[(link->arrival_first + i) % TRIB_AHEAD_MAX];
}

/* Its connections: 0 itself, 1 the priority one, then the subflows; NULL where there is none. So many need be looked at: */
static inline uint32_t trib_link_connections(const trib_link *link)
{
    return link->has_subflows ? TRIB_CONNECTIONS_MAX : link->priority_link != NULL ? 2 : 1;
}

static inline trib_link *trib_link_connection(trib_link *link, uint32_t i)
{
    return i == 0 ? link : i == 1 ? link->priority_link : link->subflows[i - 2];
}

static inline bool trib_link_carries_data(const trib_link *link)
{
    return link->purpose == TRIB_PURPOSE_DATA || link->purpose == TRIB_PURPOSE_SUBFLOW;
}

static inline bool trib_link_has_others(trib_link *link)
{
    bool has = false;
    for (uint32_t i = 1; i < trib_link_connections(link); i++) {
        has = has || trib_link_connection(link, i) != NULL;
    }
    return has;
}

/* Which of its main link's it is. */
static inline uint8_t trib_link_connection_index(trib_link *link)
{
    for (uint8_t i = 1; link->main != NULL && i < TRIB_CONNECTIONS_MAX; i++) {
        if (trib_link_connection(link->main, i) == link) {
            return i;
        }
    }
    return 0;
}

/* Copies what is being received, which may lie in the peer's memory. TRIB_PEER_LOST: the peer has taken it back meanwhile, and the
 * copy is nothing. */
TRIB_CHECKED trib_status trib_link_copy(trib_link *link, trib_copy *copy, void *to, const void *payload, uint32_t size,
                                        trib_error *error);

/* Is a payload of that chunk on its way to `what`? */
bool trib_link_is_receiving(const trib_link *link, const void *what, uint32_t chunk);

/* A frame that is being sent. */
struct trib_send_record {
    trib_send send; /* first: upcalls get its address */
    trib_link *link;
    void (*done)(trib_send_record *out, trib_status status); /* may be NULL; the out is recycled when it returns */
    void *context;
    struct trib_self_lease **held; /* see trib_link_send_held */
    trib_send_record *next;
};

/* The upcalls that links give to a transport. */
extern const trib_transport_upcalls trib_link_transport_upcalls;

TRIB_CHECKED trib_status trib_link_connect(trib_link_host *host, const trib_address *to, trib_purpose purpose,
                                           uint32_t peer, uint32_t peer_reactor, const trib_link_upcalls *upcalls,
                                           void *user, trib_link **link_out);
/* The link of a worker to the server of its own process. Ready at once, without a `ready` upcall. */
TRIB_CHECKED trib_status trib_link_self(trib_link_host *host, uint32_t member, const trib_link_upcalls *upcalls,
                                        trib_link **link_out);

/* Sends a frame now, whatever the credit says: control, and chunks that the outbox lets out. Fills in its sender and its
 * epoch. The payload is borrowed until done. TRIB_NO_MEMORY or TRIB_CLOSED: nothing was taken. */
TRIB_CHECKED trib_status trib_link_send(trib_link *link, const trib_frame *frame, const void *payload,
                                        void (*done)(trib_send_record *, trib_status), void *context);
/* As send. Over a link to this process's own server the payload may stay with it beyond `done`, as long as it is in
 * the list *held (link_self.h). NULL: it may not. */
TRIB_CHECKED trib_status trib_link_send_held(trib_link *link, const trib_frame *frame, const void *payload,
                                             void (*done)(trib_send_record *, trib_status), void *context,
                                             struct trib_self_lease **held);
/* As send, with a copy of the payload; failures end the link. For control. */
void trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size);

/* bytes: what the request will emit. */
TRIB_CHECKED trib_status trib_link_enqueue(trib_link *link, trib_send_request *request, uint64_t bytes);
void trib_link_dequeue(trib_link *link, trib_send_request *request); /* no-op if it does not wait */

/* The link has ended: what waits for it is told. */
void trib_link_drop_requests(trib_link *link);

/* Lets out one chunk of the request that is first; there must be one. For egress.c. */
void trib_link_send_next(trib_link *link);
/* For the trace: from here on something in the outbox waits for credit, or nothing does. */
void trib_link_note_wait(trib_link *link, bool waits);
/* Lets out what the credit allows. */
void trib_link_pump(trib_link *link);

/* The upper layer answered TRIB_AGAIN to a header and has room now. */
void trib_link_resume(trib_link *link);

/* Ends it with that status and reason; flush: says BYE and writes out what is queued first. */
void trib_link_close(trib_link *link, bool flush, trib_status status, const char *reason);
/* As close, because the job ends for that cause: BYE tells it. */
void trib_link_close_for(trib_link *link, bool flush, const trib_cause *cause);

/* This process stood still for slept_ns: so long the peer cannot be said to have been silent. */
static inline void trib_link_extend_grace(trib_link *link, int64_t slept_ns, int64_t now_ns)
{
    const int64_t received_ns = link->last_received_ns + slept_ns;
    link->last_received_ns = received_ns < now_ns ? received_ns : now_ns;
}

#endif
