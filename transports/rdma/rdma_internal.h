/*
 * rdma_internal.h - declarations that the files of the RDMA transport share.
 *
 * rdma.c has the instance, listeners and events, rdma_conn.c the life of a connection, rdma_send.c and rdma_recv.c the
 * messages, rdma_poll.c the completions and when to sleep, rdma_nic.c the channel and the bounce memory of an instance
 * on a device, rdma_domain.c the devices and registered memory.
 *
 * On the wire of a connection, all in order:
 *   MESSAGE   header and payload, small
 *   REQUEST   header, and the size of a payload that waits for a place
 *   GRANT     the place for the oldest request without one; or: the payload is unwanted, count it as sent
 *   (write)   the payload, written to the place by the sender's device, with the message's number as immediate data
 *   CREDIT    only what every one of these carries: the number of buffers that were posted again
 *   FIN       the sender has nothing more to send
 *
 * MESSAGE and REQUEST use a buffer of the receiver until it has dealt with them; the sender counts these credits. The
 * others have buffers set aside (TRIB_RDMA_RECVS).
 */
#ifndef TRIB_TRANSPORTS_RDMA_RDMA_INTERNAL_H
#define TRIB_TRANSPORTS_RDMA_RDMA_INTERNAL_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "transports/rdma/rdma.h"
#include "transports/rdma/rdma_domain.h"
#include "transports/send_queue.h"

#define TRIB_RDMA_MAGIC 0x52494254u /* "TBIR" as bytes */
#define TRIB_RDMA_VERSION 1u
#define TRIB_RDMA_BUFFER 2048u /* bytes of a buffer: prefix, header, payload */
#define TRIB_RDMA_CREDITS 32u
#define TRIB_RDMA_REQUESTS 8u /* requests that wait for their grant, at most */
/* Receive buffers of a connection: for credits; for grants of our requests; for writes that we granted (no more than
 * the receiver is asked about); for two CREDITs (each returns half of all credits, and none is sent before that half
 * was used), one FIN and one spare; and for buffers that wait until enough of them can be posted in one call. */
#define TRIB_RDMA_RECVS (TRIB_RDMA_CREDITS + TRIB_RDMA_REQUESTS + TRIB_AHEAD_MAX + 4 + TRIB_RDMA_REPOST_AT - 1)
#define TRIB_RDMA_REPOST_AT 8u     /* receive buffers that are posted again in one call, at least */
#define TRIB_RDMA_SENDS 64u        /* send buffers of a connection */
#define TRIB_RDMA_SIGNAL_EVERY 16u /* sends of which the device reports one, and with it those before */
#define TRIB_RDMA_OUTS 128u        /* messages begun and not reported as sent; a power of two */
#define TRIB_RDMA_INS 64u          /* messages that arrived and wait; a power of two, more than credits and FIN */
#define TRIB_RDMA_CHAIN 16u        /* work requests that go to the device in one call */
/* The first attempt and six more. Seven more would be the maximum, but soft-RoCE takes a seven to mean for ever. */
#define TRIB_RDMA_TRIES 7
#define TRIB_RDMA_INLINE 128u /* bytes that the device should copy along with the request, if it can */
#define TRIB_RDMA_REASON_MAX 256
/* Receive targets that all connections of an instance may have beyond one for each. They bound the memory that waits
 * for payloads, whatever the number of peers. */
#define TRIB_RDMA_AHEAD 32u

typedef enum verbs_kind { KIND_MESSAGE = 1, KIND_REQUEST, KIND_GRANT, KIND_CREDIT, KIND_FIN } verbs_kind;

#define TRIB_RDMA_UNWANTED 1u /* flag of GRANT */

/* The beginning of every buffer; little-endian on the wire. */
typedef struct verbs_prefix {
    uint8_t kind, flags;
    uint16_t credits;  /* buffers posted again since the last one was sent */
    uint32_t sequence; /* the number of the message */
    uint32_t size;     /* MESSAGE, REQUEST: bytes of the payload */
    uint32_t key;      /* GRANT */
    uint64_t address;  /* GRANT */
    uint64_t reserved;
} verbs_prefix;

_Static_assert(sizeof(verbs_prefix) == 32, "laid out as it travels");

#define TRIB_RDMA_HEADER_AT sizeof(verbs_prefix)
#define TRIB_RDMA_PAYLOAD_AT (sizeof(verbs_prefix) + TRIB_HEADER_SIZE)
#define TRIB_RDMA_SMALL                                                                                                \
    (TRIB_RDMA_BUFFER - TRIB_RDMA_PAYLOAD_AT) /* bytes of the largest payload that is sent without a request */

/* The private data of both sides in the connection handshake; little-endian. */
typedef struct verbs_greeting {
    uint32_t magic;
    uint16_t version;
    uint16_t buffer_bytes;
    uint16_t credits, requests;
    uint32_t reserved;
} verbs_greeting;

typedef struct verbs_conn verbs_conn;
typedef struct verbs_listener verbs_listener;

/* The object that an id of the connection manager belongs to; the other one is NULL. */
typedef struct verbs_target {
    verbs_conn *conn;
    verbs_listener *listener;
} verbs_target;

/* Memory that payloads are copied through. */
typedef struct verbs_bounce {
    struct verbs_bounce *next;
    verbs_block block;
    uint8_t way, size_class;
} verbs_bounce;

enum { BOUNCE_IN, BOUNCE_OUT, BOUNCE_WAYS };
enum { BOUNCE_SMALL, BOUNCE_LARGE, BOUNCE_CLASSES };

/* An instance on one device. */
typedef struct verbs_nic {
    struct verbs_transport *transport;
    verbs_device *device; /* NULL: not used yet */
    struct ibv_comp_channel *channel;
    trib_io io;
    uint32_t armed_count;      /* queues that will announce the next completion */
    struct ibv_context *watch; /* a context opened for its events: every context reports all events of the ports */
    trib_io watch_io;
    verbs_bounce *free[BOUNCE_WAYS][BOUNCE_CLASSES];
    uint32_t made[BOUNCE_WAYS][BOUNCE_CLASSES];
    verbs_conn *waiting;              /* connections that wait for a bounce */
    bool copy_logged, failure_logged; /* each warning is logged once */
} verbs_nic;

/* Work requests of one connection that go to the device in one call. Fields that are the same in every chain stay
 * set. */
typedef struct verbs_chain {
    struct ibv_send_wr requests[TRIB_RDMA_CHAIN];
    struct ibv_sge pieces[TRIB_RDMA_CHAIN];
    struct ibv_send_wr *last_write; /* NULL: there is none */
    unsigned count;
} verbs_chain;

typedef struct verbs_transport {
    trib_transport base; /* first */
    trib_transport_counters stats;
    verbs_domain *domain;
    bool owns_domain;
    bool breaks_at_once; /* a connection ends at once when its port goes down */
    uint32_t peers;      /* number of peers that may connect at once */
    uint8_t ack_timeout; /* as verbs count it: 4.096 us * 2^n */
    uint32_t ahead;      /* receive targets in use, see TRIB_RDMA_AHEAD */
    uint32_t open_count; /* listeners and connections that the caller knows of */
    struct rdma_event_channel *events;
    verbs_remains *remains; /* remains of the channel */
    trib_io io;
    verbs_conn *conns; /* all */
    trib_poller poller;
    verbs_conn *warm, *poll_next; /* rdma_poll.c; poll_next: where the walk through the warm ones goes on */
    verbs_chain chain;
    verbs_nic nics[TRIB_RDMA_DEVICES_MAX];
} verbs_transport;

typedef enum verbs_state {
    VERBS_RESOLVING,  /* the address, then the route */
    VERBS_CONNECTING, /* the peer has not answered yet */
    VERBS_ACCEPTING,  /* this side has answered, and the caller does not know the connection yet */
    VERBS_OPEN,       /* both directions carry messages */
    VERBS_FLUSHING,   /* sends what is queued, drops what comes in */
    VERBS_ENDING,     /* finish_post is deferred */
    VERBS_LINGERING,  /* `closed` was reported; drops what comes until the peer ends too, for LINGER_NS at most */
    VERBS_PARTING, /* the same without a queue pair: the kernel repeats the disconnect message until it is answered */
    VERBS_GONE,    /* everything was released; the turn that is due already frees the object */
} verbs_state;

typedef enum verbs_out_phase { OUT_REQUESTED, OUT_GRANTED, OUT_WRITING, OUT_DONE } verbs_out_phase;

typedef struct verbs_out {
    trib_send *send;
    verbs_out_phase phase;
    uint32_t key;
    uint64_t address;
    verbs_bounce *bounce;
} verbs_out;

typedef enum verbs_in_phase {
    IN_NEW,     /* the receiver has not been asked for a place */
    IN_PLACE,   /* the message has a receive target, which the sender does not know yet */
    IN_GRANTED, /* the device may be writing to it */
    IN_ARRIVED,
    IN_REFUSED, /* refused before its turn: the connection ends when its turn comes */
} verbs_in_phase;

typedef struct verbs_in {
    verbs_in_phase phase;
    verbs_kind kind;
    bool is_ahead;       /* the message counts in the transport's `ahead` */
    trib_status refusal; /* the status, if IN_REFUSED */
    uint32_t size;
    uint32_t buffer; /* index of the receive buffer that has the header */
    trib_recv_target target;
    verbs_bounce *bounce;
} verbs_in;

struct verbs_conn {
    trib_conn base; /* first */
    verbs_transport *transport;
    verbs_conn *prev, *next; /* the transport's list */
    verbs_listener *listener;
    verbs_target target;
    struct rdma_cm_id *id;
    verbs_remains *remains; /* remains of the id */
    verbs_nic *nic;         /* NULL: not known yet */
    struct ibv_cq *cq;
    /* neighbours in the transport's list of warm connections; warm_prev NULL: it is cold */
    verbs_conn *warm_prev, *warm_next;
    bool armed;        /* the completion queue will announce the next completion */
    uint32_t events;   /* announcements, to be acknowledged at the end */
    verbs_block block; /* receive buffers, then send buffers */
    verbs_state state;
    trib_post turn_post, finish_post;
    trib_timer timer; /* for connecting, lingering and parting */
    verbs_conn *wait_next;
    bool waits_for_bounce;
    bool known;          /* the caller knows of it */
    bool opened;         /* it was VERBS_OPEN */
    bool connect_failed; /* inside `connect`: `connected` is still to be reported */
    bool disconnected;   /* the peer or the network ended it */
    bool broken;         /* the queue pair failed, and loss_reason says why */
    bool peer_ended;     /* FIN has come, and everything before it was dealt with */
    bool fin_came, fin_sent, flushed;

    /* Sending. Numbers count messages; index is number % TRIB_RDMA_OUTS. */
    uint32_t inline_max;
    uint32_t peer_credits, peer_requests, credits_max;
    trib_send_queue sends;             /* not begun */
    uint32_t out_head, out_tail;       /* begun and not reported: out_head to out_tail - 1 */
    uint32_t grant_next, write_next;   /* the next message to be granted, and to be written */
    uint32_t settle_next;              /* the next message that the device may report as written */
    uint32_t sends_posted, sends_done; /* buffers posted and completed, in all */
    verbs_out outs[TRIB_RDMA_OUTS];

    /* Receiving. */
    bool paused, asking, resume_asked;
    uint32_t in_head, in_tail;
    uint32_t place_next;   /* the first message from in_head on without a granted place */
    uint32_t requested;    /* number of messages of KIND_REQUEST in `ins` without a GRANT */
    uint32_t granted;      /* number of messages in `ins` that are IN_GRANTED */
    uint32_t credits_due;  /* buffers posted again that the peer has not heard of */
    uint32_t free_count;   /* receive buffers to be posted again ... */
    uint32_t free_credits; /* ... so many of which are credits */
    uint32_t free_buffers[TRIB_RDMA_RECVS];
    verbs_in ins[TRIB_RDMA_INS];

    trib_status end_status;
    char reason[TRIB_RDMA_REASON_MAX];
    char loss_reason[TRIB_RDMA_REASON_MAX];
};

/* rdma_nic.c */
TRIB_CHECKED trib_status trib_rdma_nic_of(verbs_transport *transport, struct ibv_context *verbs, verbs_nic **nic_out,
                                          trib_error *error);
void trib_rdma_nic_close(verbs_nic *nic);
/* *bounce_out is NULL with TRIB_OK if none is free; the connection gets a turn when one is. */
TRIB_CHECKED trib_status trib_rdma_bounce_take(verbs_conn *conn, unsigned way, const void *memory, size_t size,
                                               verbs_bounce **bounce_out, trib_error *error);
void trib_rdma_bounce_give(verbs_nic *nic, verbs_bounce *bounce); /* NULL is fine */
void trib_rdma_bounce_forget(verbs_conn *conn);                   /* the connection waits no longer */

/* rdma_poll.c */
TRIB_CHECKED bool trib_rdma_queue_create(verbs_conn *conn, int entries);
void trib_rdma_queue_destroy(verbs_conn *conn); /* does nothing if there is none */
void trib_rdma_channel_ready(trib_reactor *reactor, trib_io *io, unsigned events);
void trib_rdma_poller_start(verbs_transport *transport);
void trib_rdma_poller_stop(verbs_transport *transport);

/* rdma.c */
void trib_rdma_discard(verbs_transport *transport, struct rdma_cm_id *id); /* an id without an object */

/* rdma_conn.c */
/* Owns the id from the call on, also if it returns NULL. */
verbs_conn *trib_rdma_conn_create(verbs_transport *transport, struct rdma_cm_id *id, verbs_state state);
/* The only writer of conn->state after creation; asserts that the step is legal. */
void trib_rdma_conn_set_state(verbs_conn *conn, verbs_state state);
TRIB_CHECKED trib_status trib_rdma_connect(trib_transport *transport, const trib_address *to, void *user,
                                           trib_conn **conn_out);
void trib_rdma_conn_close(trib_conn *base, bool flush);
/* Ends the connection; the reason is formatted like printf. Does nothing if it is ending already. */
void trib_rdma_conn_end(verbs_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As trib_rdma_conn_end, called from the loop: reports `connected` too if that is due. */
void trib_rdma_conn_lose(verbs_conn *conn, const char *reason);
/* Makes the queue pair, its buffers and its completion queue. */
TRIB_CHECKED trib_status trib_rdma_conn_equip(verbs_conn *conn, trib_error *error);
/* Frees a connection that the caller does not know, or knows no longer. */
void trib_rdma_conn_free(verbs_conn *conn);
/* rdma_greet.c. Checks the greeting of the peer and takes over its limits; false if it is not one of this version. */
bool trib_rdma_conn_greet(verbs_conn *conn, const void *data, size_t size, trib_error *error);
/* Both fill in the greeting of this side; the second one also the parameters that carry it. */
void trib_rdma_greeting_fill(verbs_greeting *greeting);
void trib_rdma_connect_params_fill(struct rdma_conn_param *params, verbs_greeting *greeting);
/* Called before another peer is accepted: ends the oldest of too many that have not come back, because each pins
 * memory. */
void trib_rdma_conn_make_room(verbs_transport *transport);
void trib_rdma_conn_opened(verbs_conn *conn); /* makes the upcall */
/* Reads completions, delivers, sends. Makes upcalls: called from the loop only. */
void trib_rdma_conn_turn(verbs_conn *conn);
/* The same, if there are completions. False: there are none. */
bool trib_rdma_conn_poll(verbs_conn *conn);

/* rdma_send.c */
void trib_rdma_send(trib_conn *base, trib_send *send);
/* Takes a free send buffer, NULL if there is none now, and fills its prefix except what the kind needs. */
verbs_prefix *trib_rdma_buffer_take(verbs_conn *conn, verbs_kind kind);
/* Puts `size` bytes of the buffer just taken into the chain. */
void trib_rdma_buffer_post(verbs_conn *conn, size_t size);
void trib_rdma_chain_init(verbs_chain *chain);
void trib_rdma_commit(verbs_conn *conn);
void trib_rdma_send_more(verbs_conn *conn);
void trib_rdma_send_fin(verbs_conn *conn); /* if it flushes and waits for nothing else */
void trib_rdma_take_grant(verbs_conn *conn, const verbs_prefix *prefix);
void trib_rdma_take_sent(verbs_conn *conn, uint64_t request_id);
bool trib_rdma_is_writing(const verbs_conn *conn); /* the device will still report on a payload */
void trib_rdma_report_sent(verbs_conn *conn);

/* rdma_recv.c */
void trib_rdma_recv_resume(trib_conn *base);
bool trib_rdma_recv_start(verbs_conn *conn); /* posts all receive buffers */
void trib_rdma_take_buffer(verbs_conn *conn, uint32_t index, uint32_t size);
void trib_rdma_take_write(verbs_conn *conn, uint32_t index, uint32_t size, uint32_t sequence);
void trib_rdma_deliver(verbs_conn *conn);
void trib_rdma_drop_in(verbs_conn *conn, verbs_in *in); /* gives back its bounce and its count in `ahead` */
void trib_rdma_repost(verbs_conn *conn);

#endif
