/*
 * link.h - one connection to one reactor of another member: its handshake, its frames, and the requests that wait to be
 * sent.
 *
 * A link is made by trib_link_connect or from an accepted connection. Both sides prove that they know the token before
 * the link is READY and carries frames. Every link ends with exactly one `closed` upcall and is freed after it. The
 * link to this process's own server has no connection: frames are handed over on the reactor's thread, with payloads in
 * place.
 *
 * A request that is sent by priority waits in the link's outbox. The scheduler (scheduler.h) lets it send chunk by
 * chunk, while fewer bytes than the credit are with the transport. So an urgent request never waits behind more bytes
 * than the credit.
 */
#ifndef TRIB_ENGINE_LINK_LINK_H
#define TRIB_ENGINE_LINK_LINK_H

#include "engine/base/hash.h"
#include "engine/base/limits.h"
#include "engine/wire/auth.h"
#include "engine/link/egress.h"
#include "engine/link/link_session.h"
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
    TRIB_LINK_RECONNECTING,    /* the connection broke: the link waits for another one (link_reconnect.h) */
    TRIB_LINK_LEAVING,         /* BYE was sent, and the peer has yet to acknowledge all frames */
    TRIB_LINK_CLOSING,         /* waits for the transport's `closed` */
} trib_link_state;

/* The use of an accepted link, set when the upper layer adopts it. */
typedef enum trib_link_role { TRIB_LINK_ROLE_NONE, TRIB_LINK_ROLE_SERVER } trib_link_role;

typedef enum trib_purpose {
    TRIB_PURPOSE_CONTROL = 1,
    TRIB_PURPOSE_DATA = 2,
    TRIB_PURPOSE_GROUP = 3,
    TRIB_PURPOSE_PRIORITY = 4,
    TRIB_PURPOSE_SUBFLOW = 5,
    TRIB_PURPOSE_CALL = 6, /* asks the connector of a link for a new connection (link_reconnect.h) */
} trib_purpose;

/* The connections of a link that a request may take (link_priority.h). If the link has subflows (link_subflow.h), a new
 * request may take any of them unless it is pinned. */
typedef enum trib_route {
    TRIB_ROUTE_MAIN,   /* the main connection, behind all frames sent over it before */
    TRIB_ROUTE_ANY,    /* any connection; the request is one small message that needs no order */
    TRIB_ROUTE_PINNED, /* the request's `connection`, or the main one if that is gone */
} trib_route;

/* A request that waits for a link's credit (scheduler.h). It is embedded in the object that it sends, and must be
 * zeroed before its first use. */
typedef struct trib_send_request {
    trib_min_heap_node node; /* in the link's outbox */
    int32_t priority;        /* a higher one is sent first; does not change while the request waits */
    trib_route route;
    uint64_t age;        /* a lower one is sent first among equal priorities */
    uint8_t connection;  /* for TRIB_ROUTE_PINNED, an index as in trib_link_connection */
    trib_link *begun_on; /* connection whose `begun` list holds the request; NULL: none */
    struct trib_send_request *begun_previous, *begun_next;
    bool is_single; /* one chunk is all: the request does not wait any more while it is sent, and may be reused then */
    /* Sends one chunk over that connection, or over another one of the link if the route allows it. Returns false after
     * the last chunk. */
    bool (*send_chunk)(trib_link *link, struct trib_send_request *request);
    void (*on_drop)(struct trib_send_request *request); /* called if the link ended first; may be NULL */
} trib_send_request;

/* True if the request waits for a link. */
static inline bool trib_send_request_waits(const trib_send_request *request)
{
    return request->node.place != 0 || request->begun_on != NULL;
}

/*
 * The upcalls of a link.
 *
 * The transport may call `header` for several frames before the first of them is received (transport.h). `header`
 * answers where the payload shall land. If it names no buffer, the link provides memory until `received` returns.
 *
 * An error or TRIB_AGAIN may be due to earlier frames that are not yet received. `header` is then called again after
 * each of them, and only the answer for the frame whose turn has come counts.
 */
typedef struct trib_link_upcalls {
    void (*ready)(trib_link *link);
    trib_status (*header)(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error);
    trib_status (*received)(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error);
    void (*closed)(trib_link *link, trib_status status, const char *reason);
} trib_link_upcalls;

/*
 * The owner of a buffer in which a payload lands.
 *
 * A `header` that names its own buffer fills this in (link->recv_claim) if the owner must hear of the payload's end.
 * Exactly one of two things follows: `received` finds the claim there again, or `abandon` is called before `closed`.
 * Each frame has a claim of its own.
 */
typedef struct trib_recv_claim {
    void (*abandon)(trib_link *link, const struct trib_recv_claim *recv_claim);
    void *what;  /* the upper layer's object that gets the payload; NULL: there is no claim */
    void *owner; /* for the upper layer; may be NULL */
} trib_recv_claim;

/* A frame whose header was accepted and whose payload is on its way. */
typedef struct trib_arrival {
    trib_frame frame;
    trib_recv_claim recv_claim;
    void *memory; /* the link's memory for the payload; NULL: `header` named a buffer, or there is no payload */
} trib_arrival;

struct trib_link {
    /* Identity. */
    trib_link_host *host;
    struct trib_core *core; /* the host's owner, for the upper layers */
    const trib_link_upcalls *upcalls;
    void *user;                 /* for the upper layer */
    trib_conn *conn;            /* NULL: a link to this process's own server, or there is no connection now */
    trib_link *next, *previous; /* of host->links (utlist.h) */
    trib_link *next_half_open, *previous_half_open; /* of host->half_open (utlist.h) */
    UT_hash_handle hh;                              /* of host->sessions, by session.id */
    trib_link_state state;                          /* only trib_link_set_state changes it */
    trib_purpose purpose;
    trib_link_role role;
    uint32_t peer;         /* member id, TRIB_NO_MEMBER if not known */
    uint32_t peer_reactor; /* 0..TRIB_REACTORS_MAX - 1 */
    bool is_self;          /* a link to this process's own server */
    bool outgoing;         /* this side makes the connections */
    uint32_t peer_epoch;   /* acceptor: the epoch in the peer's PROOF */
    bool proved;           /* the peer has proved the token, or the link was rejected after that */
    bool is_half_open;     /* the link is in host->half_open */

    trib_link_session session;
    trib_link_redial redial;

    /* The handshake. */
    trib_handshake handshake;
    unsigned char scratch[64]; /* payload of the one handshake frame that is expected */
    trib_timer deadline;       /* armed while the link is not READY */
    int64_t part_ns;           /* an eighth of its limit */
    uint32_t parts_passed;     /* how many have passed */
    bool stalled_locally;      /* the last part came late, as this process stood still */
    /* called when the limit has passed */
    void (*overdue)(trib_link *link);

    /* Arriving frames. */
    trib_arrival arrivals[TRIB_AHEAD_MAX]; /* a ring */
    /* index of the oldest arrival, 0..TRIB_AHEAD_MAX - 1, and the number of arrivals */
    uint32_t arrival_first, arrival_count;
    trib_recv_claim recv_claim; /* claim of the frame that `header` or `received` handles now */
    int64_t last_received_ns;   /* of any frame */
    int64_t last_frame_ns;      /* of one that is more than an acknowledgement or a sign of life */
    bool is_http;               /* an HTTP request came in place of a frame */
    bool asks_again;            /* a header was rejected while earlier frames were still arriving */
    bool has_received;          /* for a second connection: a frame has arrived over it */

    /* Sending; owned by scheduler.c. */
    trib_min_heap outbox; /* requests that no connection has begun, by (priority, age) */
    /* requests that this connection has begun, or that are pinned to it, by priority and then by age (utlist.h) */
    trib_send_request *begun;
    trib_egress_flow flow; /* for a connection over which this reactor pushes */
    uint64_t in_flight;    /* bytes with the transport */
    uint32_t credit;       /* bytes that may be in flight; used if flow.egress is NULL */
    bool waits;            /* a request in the outbox waits for credit */
    bool pump_queued;      /* the link is in the scheduler's list of woken links */
    trib_link *pump_next;  /* next link of the woken ones */

    /* The other connections of the link. */
    trib_link *main;          /* main link of this second connection, once known; NULL: this is a main link */
    trib_link *priority_link; /* NULL: none (link_priority.h) */
    trib_link *subflows[TRIB_SUBFLOWS_MAX]; /* NULL: none (link_subflow.h) */
    uint8_t rail;                           /* index of the peer's network that the link uses, 0..TRIB_SUBFLOWS_MAX */
    bool forks;           /* the link may have subflows, so each request stays on the connection that began it */
    bool has_subflows;    /* the link has or had subflows */
    bool priority_failed; /* the priority link could not be made, and is not tried again */

    /* How busy the link is, for the load report; owned by link_stats.c. */
    int64_t busy_since_ns; /* time up to which busy time was counted */
    uint64_t busy_seen_ns; /* conn->busy_ns at that time; 0: the transport had counted nothing */
    bool is_counted;       /* the link is counted in the peer's trib_link_stats */
    bool is_busy;          /* bytes are in flight, and will be counted when they return */

    /* Frames of a link to this process's own server, which are handed over on the next turn. The post also ends a link
     * without a connection. */
    trib_send_record *self_head, *self_tail;
    trib_post self_post;

    /* The end of the link. */
    bool leaving;      /* BYE was sent or waits to be sent, and `end` is final */
    bool main_gone;    /* the main connection has ended for good, while others of the link remain */
    bool bye;          /* the peer said BYE and ends in good order */
    bool has_farewell; /* the peer said BYE and named an error; `end` holds it unless is_ended */
    unsigned char farewell[TRIB_CAUSE_PAYLOAD_MAX];
    trib_cause end;     /* why the link ends; link_cause.h derives the job's cause from it */
    bool is_ended;      /* `end` is final */
    bool is_dropped;    /* the transport was told to end the connection without a flush */
    bool end_from_peer; /* `end` is the cause that the peer sent */
};

/* Sets link->state, asserts that the new state may follow, and writes a trace record. No other function changes the
 * state of a link that was made. */
void trib_link_set_state(trib_link *link, trib_link_state state);

/* The i-th arriving frame, oldest first. */
static inline const trib_arrival *trib_link_arrival(const trib_link *link, uint32_t i)
{
    return &link->arrivals[(link->arrival_first + i) % TRIB_AHEAD_MAX];
}

/* The number of places to look at when visiting the link's connections. Place 0 is the main connection, 1 the priority
 * link; the subflows follow. */
static inline uint32_t trib_link_connections(const trib_link *link)
{
    return link->has_subflows ? TRIB_CONNECTIONS_MAX : link->priority_link != NULL ? 2 : 1;
}

/* The i-th connection; NULL if that place is empty. */
static inline trib_link *trib_link_connection(trib_link *link, uint32_t i)
{
    return i == 0 ? link : i == 1 ? link->priority_link : link->subflows[i - 2];
}

/* The main link of a second connection, or the link itself. */
static inline const trib_link *trib_link_main(const trib_link *link)
{
    return link->main != NULL ? link->main : link;
}

/* True if upper layers may use the link. Frames wait while its connection is made again. */
static inline bool trib_link_is_up(const trib_link *link)
{
    return link->state == TRIB_LINK_READY ||
           (link->session.is_established && link->state != TRIB_LINK_CLOSING && !link->leaving);
}

/* The address of the link's peer, for messages. */
static inline const char *trib_link_remote(const trib_link *link)
{
    return link->conn != NULL ? link->conn->remote.text : "a connection that is being made again";
}

/* True if this side ends the link, so that it takes no more frames. */
static inline bool trib_link_is_ending(const trib_link *link)
{
    return link->state == TRIB_LINK_CLOSING || link->leaving;
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

/* The place of a second connection in its main link, as in trib_link_connection; 0 for a main link. */
static inline uint8_t trib_link_connection_index(trib_link *link)
{
    for (uint8_t i = 1; link->main != NULL && i < TRIB_CONNECTIONS_MAX; i++) {
        if (trib_link_connection(link->main, i) == link) {
            return i;
        }
    }
    return 0;
}

/* Copies a payload that is being received, which may lie in memory that the peer lends. TRIB_PEER_LOST: the peer
 * withdrew the memory meanwhile, and the copy is worthless. */
TRIB_CHECKED trib_status trib_link_copy(trib_link *link, trib_copy *copy, void *to, const void *payload, uint32_t size,
                                        trib_error *error);

/* True if a payload of that chunk is on its way to the object `what`. */
bool trib_link_is_receiving(const trib_link *link, const void *what, uint32_t chunk);

/* A frame that is being sent. */
struct trib_send_record {
    trib_send send; /* first member: upcalls get its address */
    trib_link *link;
    void (*done)(trib_send_record *out, trib_status status); /* may be NULL; the record is reused after it returns */
    void *context;
    struct trib_self_lease **held; /* see trib_link_send_held */
    trib_send_record *next;
    uint64_t number;   /* of a counted frame: the number of frames counted before it */
    int64_t sent_ns;   /* when the transport gave it back, before `done` is called */
    bool is_counted;   /* the session keeps the frame until the peer has acknowledged it (link_session.h) */
    bool takes_credit; /* false for ACK, which is no sign of a busy link */
    bool is_out;       /* the transport has the frame */
};

/* The upcalls that links give to a transport. */
extern const trib_transport_upcalls trib_link_transport_upcalls;

TRIB_CHECKED trib_status trib_link_connect(trib_link_host *host, const trib_address *to, trib_purpose purpose,
                                           uint32_t peer, uint32_t peer_reactor, const trib_link_upcalls *upcalls,
                                           void *user, trib_link **link_out);
/* Makes the link of a worker to the server of its own process. It is READY at once, without a `ready` upcall. */
TRIB_CHECKED trib_status trib_link_self(trib_link_host *host, uint32_t member, const trib_link_upcalls *upcalls,
                                        trib_link **link_out);

/* Sends a frame now, regardless of credit: for control frames, and for chunks that the scheduler has chosen. The link
 * fills in the frame's sender and epoch. The payload is borrowed until `done`. TRIB_NO_MEMORY or TRIB_CLOSED: nothing
 * was taken. */
TRIB_CHECKED trib_status trib_link_send(trib_link *link, const trib_frame *frame, const void *payload,
                                        void (*done)(trib_send_record *, trib_status), void *context);
/* Sends as trib_link_send does. This process's own server may keep using the payload beyond `done`, as long as its
 * lease is in the list *held (link_self.h). held NULL: the server may not. */
TRIB_CHECKED trib_status trib_link_send_held(trib_link *link, const trib_frame *frame, const void *payload,
                                             void (*done)(trib_send_record *, trib_status), void *context,
                                             struct trib_self_lease **held);
/* Sends a control frame as trib_link_send does, with a copy of the payload. A link that ends drops it; a failure ends
 * the link. */
void trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size);

/* Notes for the trace whether a request in the outbox waits for credit. */
void trib_link_note_waiting(trib_link *link, bool waits);

/* Resumes receiving after the upper layer answered TRIB_AGAIN to a header and has room again. */
void trib_link_resume(trib_link *link);

/* Ends the link with that status and reason. With flush the link says BYE and writes out queued frames first. */
void trib_link_close(trib_link *link, bool flush, trib_status status, const char *reason);
/* Ends the link as trib_link_close does, for the cause that ends the job. The BYE carries the cause. */
void trib_link_close_for(trib_link *link, bool flush, const trib_cause *cause);

/* Excuses the peer's silence during slept_ns, in which this process was stopped. */
static inline void trib_link_extend_grace(trib_link *link, int64_t slept_ns, int64_t now_ns)
{
    const int64_t received_ns = link->last_received_ns + slept_ns;
    link->last_received_ns = received_ns < now_ns ? received_ns : now_ns;
}

#endif
