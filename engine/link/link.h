/*
 * link.h - one connection to one reactor of another member: handshake, frames, and what waits for its turn to be sent.
 *
 * A link is made by trib_link_connect or from an accepted connection; it proves the token, becomes READY, carries
 * frames and ends with exactly one `closed` upcall, after which it is gone. A link to this process's own server on
 * the same reactor has no connection: its frames are handed over on the same thread, payloads handed over in place.
 *
 * A request that may be sent by priority waits in the link's outbox until the scheduler (scheduler.h) lets it send,
 * chunk by chunk, while fewer bytes than the credit are with the transport: an urgent request never waits behind more
 * than that.
 */
#ifndef TRIB_ENGINE_LINK_LINK_H
#define TRIB_ENGINE_LINK_LINK_H

#include "engine/base/limits.h"
#include "engine/wire/auth.h"
#include "engine/link/egress.h"
#include "engine/base/heap.h"
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

/* The use of an accepted link, once the upper layer has adopted it. */
typedef enum trib_link_role { TRIB_LINK_ROLE_NONE, TRIB_LINK_ROLE_SERVER } trib_link_role;

typedef enum trib_purpose {
    TRIB_PURPOSE_CONTROL = 1,
    TRIB_PURPOSE_DATA = 2,
    TRIB_PURPOSE_GROUP = 3,
    TRIB_PURPOSE_PRIORITY = 4,
    TRIB_PURPOSE_SUBFLOW = 5,
} trib_purpose;

/* The connections of a link that a request may take; see link_priority.h. Where the link has subflows (link_subflow.h)
 * a request that begins may take any of those, unless it is pinned. */
typedef enum trib_route {
    TRIB_ROUTE_MAIN,   /* the first, behind all that was sent over it before */
    TRIB_ROUTE_ANY,    /* any: it is one small message, which need not come behind any other */
    TRIB_ROUTE_PINNED, /* the request's `connection`, if it is there */
} trib_route;

/* Something that waits for a link's credit (scheduler.h); embedded in what it is about. Zeroed before first use. */
typedef struct trib_send_request {
    trib_min_heap_node node; /* in the link's outbox */
    int32_t priority;        /* higher goes first; does not change while it waits */
    trib_route route;
    uint64_t age;        /* lower goes first among equals */
    uint8_t connection;  /* of TRIB_ROUTE_PINNED: as trib_link_connection counts */
    trib_link *begun_on; /* connection of the link that has it in `begun`; NULL: none */
    struct trib_send_request *begun_previous, *begun_next;
    /* Sends one chunk over that link, or another of its connections if the route allows that; false: that was the last.
     * */
    bool (*send_chunk)(trib_link *link, struct trib_send_request *request);
    void (*on_drop)(struct trib_send_request *request); /* the link ended first; may be NULL */
} trib_send_request;

/* Does the request wait for a link? */
static inline bool trib_send_request_waits(const trib_send_request *request)
{
    return request->node.place != 0 || request->begun_on != NULL;
}

/*
 * `header` may be called for several frames before the first of them is received (transport.h). It answers where the
 * payload shall land; if it names no buffer the link has memory for it, until `received` returns. An error, or
 * TRIB_AGAIN, that it answers while earlier frames are still to be received may be due to those: it is called again
 * when one of them has been received, and only the answer to the frame whose turn it is counts.
 */
typedef struct trib_link_upcalls {
    void (*ready)(trib_link *link);
    trib_status (*header)(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error);
    trib_status (*received)(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error);
    void (*closed)(trib_link *link, trib_status status, const char *reason);
} trib_link_upcalls;

/*
 * The owner of a buffer in which a payload lands. A `header` that names a buffer of its own fills this in
 * (link->recv_claim) if the owner must hear of the payload's fate, and exactly one of two things follows: `received`
 * finds the claim there again, or `abandon` is called, before `closed`. Each frame has its own claim.
 */
typedef struct trib_recv_claim {
    void (*abandon)(trib_link *link, const struct trib_recv_claim *recv_claim);
    void *what;  /* the upper layer's object that the payload is for; NULL: there is no claim */
    void *owner; /* the upper layer's, may be NULL */
} trib_recv_claim;

/* A frame whose header has been taken, until it is received. */
typedef struct trib_arrival {
    trib_frame frame;
    trib_recv_claim recv_claim;
    void *memory; /* the link's, where the payload lands; NULL: `header` named a place, or there is none */
} trib_arrival;

struct trib_link {
    /* Identity. */
    trib_link_host *host;
    struct trib_core *core; /* the host's owner, for the upper layers */
    const trib_link_upcalls *upcalls;
    void *user;      /* the upper layer's */
    trib_conn *conn; /* NULL: to this process's own server, or gone while other connections of the link are left */
    trib_link *next, *previous; /* of host->links (utlist.h) */
    trib_link_state state;      /* changed by trib_link_set_state only */
    trib_purpose purpose;
    trib_link_role role;
    uint32_t peer;         /* member id, TRIB_NO_MEMBER if not known */
    uint32_t peer_reactor; /* 0..TRIB_REACTORS_MAX - 1 */
    bool outgoing;         /* this side has made the connection */
    bool proved;           /* has been READY, or could have been */

    /* The handshake. */
    trib_handshake handshake;
    unsigned char scratch[64]; /* payload of the one handshake frame that is expected */
    trib_timer deadline;       /* armed until the link is READY */

    /* Arriving frames. */
    trib_arrival arrivals[TRIB_AHEAD_MAX]; /* a ring */
    uint32_t arrival_first, arrival_count; /* index of the oldest, 0..TRIB_AHEAD_MAX - 1; number of them */
    trib_recv_claim recv_claim;            /* of the frame that `header` or `received` is about */
    int64_t last_received_ns;
    bool asks_again;   /* a header was turned down while arrivals were awaited */
    bool has_received; /* of a second connection: something has come over it */

    /* Sending; scheduler.c's. */
    trib_min_heap outbox; /* requests that no connection has begun, by (priority, age) */
    trib_send_request
        *begun; /* requests begun over this connection, or bound to it: by priority, then by age (utlist.h) */
    trib_egress_flow flow; /* of a connection that this reactor pushes over */
    uint64_t in_flight;    /* bytes with the transport */
    uint32_t credit;       /* bytes that may be in flight; counts where flow.egress is NULL */
    bool waits;            /* something in the outbox waits for credit */
    bool pump_queued;      /* it is in the scheduler's list of woken links */
    trib_link *pump_next;  /* of that list */

    /* Its other connections. */
    trib_link *main;          /* link that this is a second connection of, once known; NULL: it is a link itself */
    trib_link *priority_link; /* link_priority.h; NULL: none */
    trib_link *subflows[TRIB_SUBFLOWS_MAX]; /* link_subflow.h; NULL: none */
    uint8_t rail;         /* network of the peer's that it goes by, of those that it may have subflows for */
    bool forks;           /* it may have subflows: a request goes on over the connection on which it was begun */
    bool has_subflows;    /* has some, or has had */
    bool priority_failed; /* no priority link could be made, so none is tried again */

    /* How busy it is, for the report of loads; link_stats.c's. */
    int64_t busy_since_ns; /* until when it has been counted how long some was in flight */
    uint64_t busy_seen_ns; /* what the transport itself had counted then; 0: nothing */
    bool is_counted;       /* among those that a load is about */
    bool is_busy;          /* some is in flight, and will be counted when it is back */

    /* Of a link to this process's own server: frames that are handed over on the next turn. */
    trib_send_record *self_head, *self_tail;
    trib_post self_post;

    /* Its end. */
    bool bye;          /* the peer said it closes in good order */
    bool has_farewell; /* ... or not: `end` is the cause that the peer told, unless is_ended */
    unsigned char farewell[TRIB_CAUSE_PAYLOAD_MAX];
    trib_cause end;     /* why it ends; link_cause.h makes of it what the job is told */
    bool is_ended;      /* `end` is final */
    bool end_from_peer; /* `end` is the cause that the peer told */
};

/* The only writer of link->state after the link was made: asserts that the new one may follow, and traces. */
void trib_link_set_state(trib_link *link, trib_link_state state);

/* The i-th of the frames whose headers have been taken, oldest first. */
static inline const trib_arrival *trib_link_arrival(const trib_link *link, uint32_t i)
{
    return &link->arrivals[(link->arrival_first + i) % TRIB_AHEAD_MAX];
}

/* Connections are counted: 0 the link itself, 1 its priority link, then its subflows. So many places need be looked at:
 * */
static inline uint32_t trib_link_connections(const trib_link *link)
{
    return link->has_subflows ? TRIB_CONNECTIONS_MAX : link->priority_link != NULL ? 2 : 1;
}

/* The i-th connection; NULL where there is none. */
static inline trib_link *trib_link_connection(trib_link *link, uint32_t i)
{
    return i == 0 ? link : i == 1 ? link->priority_link : link->subflows[i - 2];
}

/* The link that it is a connection of; itself, if it is no second one. */
static inline const trib_link *trib_link_main(const trib_link *link)
{
    return link->main != NULL ? link->main : link;
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

/* The number of a second connection among those of its main link, as trib_link_connection counts; 0 for a main link. */
static inline uint8_t trib_link_connection_index(trib_link *link)
{
    for (uint8_t i = 1; link->main != NULL && i < TRIB_CONNECTIONS_MAX; i++) {
        if (trib_link_connection(link->main, i) == link) {
            return i;
        }
    }
    return 0;
}

/* Copies the payload that is being received, which may lie in the peer's memory. TRIB_PEER_LOST: the peer has taken it
 * back meanwhile, and the copy is worthless. */
TRIB_CHECKED trib_status trib_link_copy(trib_link *link, trib_copy *copy, void *to, const void *payload, uint32_t size,
                                        trib_error *error);

/* Is a payload of that chunk on its way to `what`? */
bool trib_link_is_receiving(const trib_link *link, const void *what, uint32_t chunk);

/* A frame that is being sent. */
struct trib_send_record {
    trib_send send; /* first: upcalls get its address */
    trib_link *link;
    void (*done)(trib_send_record *out, trib_status status); /* may be NULL; the record is recycled when it returns */
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

/* Sends a frame now, whatever the credit says: for control, and for chunks that the scheduler lets out. Fills in its
 * sender and its epoch. The payload is borrowed until done. TRIB_NO_MEMORY or TRIB_CLOSED: nothing was taken. */
TRIB_CHECKED trib_status trib_link_send(trib_link *link, const trib_frame *frame, const void *payload,
                                        void (*done)(trib_send_record *, trib_status), void *context);
/* As trib_link_send. Over a link to this process's own server the payload may stay with that beyond `done`, as long as
 * its lease is in the list *held (link_self.h). held NULL: it may not. */
TRIB_CHECKED trib_status trib_link_send_held(trib_link *link, const trib_frame *frame, const void *payload,
                                             void (*done)(trib_send_record *, trib_status), void *context,
                                             struct trib_self_lease **held);
/* As trib_link_send, with a copy of the payload; failures end the link. For control. */
void trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size);

/* For the trace: from here on something in the outbox waits for credit, or nothing does. */
void trib_link_note_waiting(trib_link *link, bool waits);

/* The upper layer, which answered TRIB_AGAIN to a header, has room now. */
void trib_link_resume(trib_link *link);

/* Ends the link with that status and reason; flush: says BYE and writes out queued frames first. */
void trib_link_close(trib_link *link, bool flush, trib_status status, const char *reason);
/* As close, because the job ends for that cause: BYE tells it. */
void trib_link_close_for(trib_link *link, bool flush, const trib_cause *cause);

/* This process stood still for slept_ns: the peer's silence in that time does not count. */
static inline void trib_link_extend_grace(trib_link *link, int64_t slept_ns, int64_t now_ns)
{
    const int64_t received_ns = link->last_received_ns + slept_ns;
    link->last_received_ns = received_ns < now_ns ? received_ns : now_ns;
}

#endif
