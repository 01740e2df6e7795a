/*
 * rdma_internal.h - what the files of the RDMA transport share: rdma.c (instance, listeners, events), rdma_conn.c (life
 * of a connection), rdma_send.c and rdma_recv.c (messages out and in), rdma_poll.c (completions, and when to sleep),
 * rdma_nic.c (channel and bounce memory of an instance on a device), rdma_domain.c (devices and registered memory).
 *
 * On the wire of a connection, all in order:
 *   MESSAGE   header and payload, small
 *   REQUEST   header and the size of a payload that waits for a place
 *   GRANT     the place for the oldest request that has none; or: it is not wanted, count it as sent
 *   (write)   the payload, written to the place by the sender's device, with the message's number as immediate data
 *   CREDIT    nothing but what every one carries: how many buffers have been posted again
 *   FIN       the sender has nothing more to send
 * MESSAGE and REQUEST take a buffer of the receiver's until it has dealt with them; the sender counts these credits.
 * The others have buffers set aside: there are never more of them than TRIB_RDMA_RECVS provides for, see there.
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
#define TRIB_RDMA_REQUESTS 8u /* most that wait for their grant */
/* Credits; grants for our requests; writes that we granted, which are no more than the engine is asked about; two CREDITs
 * (each gives back half of all, and none is sent before such a half was used), one FIN, one to spare; and those that wait
 * until there are enough of them to be posted again. */
#define TRIB_RDMA_RECVS (TRIB_RDMA_CREDITS + TRIB_RDMA_REQUESTS + TRIB_AHEAD_MAX + 4 + TRIB_RDMA_REPOST_AT - 1)
#define TRIB_RDMA_REPOST_AT 8u     /* receive buffers that are posted again in one call, at least */
#define TRIB_RDMA_SENDS 64u        /* buffers that we send from */
#define TRIB_RDMA_SIGNAL_EVERY 16u /* sends of which the device reports one, and with it those before */
#define TRIB_RDMA_OUTS 128u        /* messages begun and not yet reported as sent; a power of two */
#define TRIB_RDMA_INS 64u          /* messages that arrived and wait; a power of two, more than credits and FIN */
#define TRIB_RDMA_CHAIN 16u        /* work requests that go to the device in one call */
#define TRIB_RDMA_INLINE 128u      /* bytes that we would like the device to take along with the request */
#define TRIB_RDMA_REASON_MAX 256
/* Landings that all connections of an instance have open beyond the one that each may have: what bounds the memory that
 * waits for payloads, whatever the number of peers. */
#define TRIB_RDMA_AHEAD 32u

typedef enum verbs_kind { KIND_MESSAGE = 1, KIND_REQUEST, KIND_GRANT, KIND_CREDIT, KIND_FIN } verbs_kind;

#define TRIB_RDMA_UNWANTED 1u /* flag of GRANT */

/* What every buffer begins with; little-endian on the wire. */
typedef struct verbs_prefix {
    uint8_t kind, flags;
    uint16_t credits;  /* buffers posted again since the last one */
    uint32_t sequence; /* of the message that this is or is about */
    uint32_t size;     /* MESSAGE, REQUEST: of the payload */
    uint32_t key;      /* GRANT */
    uint64_t address;  /* GRANT */
    uint64_t reserved;
} verbs_prefix;

_Static_assert(sizeof(verbs_prefix) == 32, "laid out as it travels");

#define TRIB_RDMA_HEADER_AT sizeof(verbs_prefix)
#define TRIB_RDMA_PAYLOAD_AT (sizeof(verbs_prefix) + TRIB_HEADER_SIZE)
#define TRIB_RDMA_SMALL (TRIB_RDMA_BUFFER - TRIB_RDMA_PAYLOAD_AT) /* largest payload that is sent at once */

/* What both sides say when they connect. */
typedef struct verbs_greeting {
    uint32_t magic;
    uint16_t version;
    uint16_t buffer_bytes;
    uint16_t credits, requests;
    uint32_t reserved;
} verbs_greeting;

typedef struct verbs_conn verbs_conn;
typedef struct verbs_listener verbs_listener;

/* What an id of the connection manager is about: one of them. */
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
    uint32_t armed_count;      /* queues that will announce what comes */
    struct ibv_context *watch; /* opened for its events alone: every context has all that happens to ports */
    trib_io watch_io;
    verbs_bounce *free[BOUNCE_WAYS][BOUNCE_CLASSES];
    uint32_t made[BOUNCE_WAYS][BOUNCE_CLASSES];
    verbs_conn *waiting;              /* for a bounce */
    bool copy_logged, failure_logged; /* logged once */
} verbs_nic;

/* Work requests that will go to the device in one call, all of one connection. What is the same in every chain stays. */
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
    bool has_failover;   /* who is above goes another way when a port is down */
    uint32_t peers;      /* that may connect at once */
    uint8_t ack_timeout; /* as verbs count it: 4.096 us * 2^n */
    uint32_t ahead;      /* receive targets, see TRIB_RDMA_AHEAD */
    uint32_t open_count; /* listeners and connections that the caller knows of */
    struct rdma_event_channel *events;
    verbs_remains *remains; /* the channel's */
    trib_io io;
    verbs_conn *conns; /* all */
    trib_poller poller;
    verbs_conn *warm, *poll_next; /* rdma_poll.c */
    verbs_chain chain;
    verbs_nic nics[TRIB_RDMA_DEVICES_MAX];
} verbs_transport;

typedef enum verbs_state {
    VERBS_RESOLVING,  /* the address, then the route */
    VERBS_CONNECTING, /* the peer has not answered yet */
    VERBS_ACCEPTING,  /* we have, and the caller does not know of it yet */
    VERBS_OPEN,       /* both directions */
    VERBS_FLUSHING,   /* sends what is queued, throws away what comes in */
    VERBS_ENDING,     /* finish_post is on its way */
    VERBS_LINGERING,  /* the caller has had its `closed`; throws away until the peer ends too, or for a short time */
    VERBS_PARTING, /* the same, with nothing left but the word that it is over, which the kernel repeats until heard */
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
    IN_NEW,     /* the receiver has not been asked */
    IN_PLACE,   /* it has a receive target, and the sender has not been told yet */
    IN_GRANTED, /* the device may be writing to it */
    IN_ARRIVED,
    IN_REFUSED, /* by the receiver, asked ahead of its turn: the connection ends when that comes */
} verbs_in_phase;

typedef struct verbs_in {
    verbs_in_phase phase;
    verbs_kind kind;
    bool is_ahead;       /* counts in the transport's `ahead` */
    trib_status refusal; /* IN_REFUSED */
    uint32_t size;
    uint32_t buffer; /* index of the receive buffer with its header */
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
    verbs_remains *remains; /* the id's */
    verbs_nic *nic;         /* NULL: not known yet */
    struct ibv_cq *cq;
    verbs_conn *warm_prev, *warm_next; /* the transport's list; warm_prev NULL: it is cold */
    bool armed;                        /* the queue will announce what comes */
    uint32_t events;                   /* announcements, which are acknowledged in the end */
    verbs_block block;                 /* receive buffers, then send buffers */
    verbs_state state;
    trib_post turn_post, finish_post;
    trib_timer timer; /* connecting, lingering, parting */
    verbs_conn *wait_next;
    bool waits_for_bounce;
    bool known;          /* the caller knows of it */
    bool opened;         /* it was OPEN */
    bool connect_failed; /* at once: `connected` is still to be told */
    bool disconnected;   /* the peer or the network ended it */
    bool broken;         /* the queue pair failed: loss_reason says why */
    bool peer_ended;     /* FIN has come, and everything before it was dealt with */
    bool fin_came, fin_sent, flushed;

    /* out */
    uint32_t inline_max;
    uint32_t peer_credits, peer_requests, credits_max, requests_max;
    trib_send_queue sends;             /* not begun */
    uint32_t out_head, out_tail;       /* begun; the number is the message's sequence */
    uint32_t grant_next, write_next;   /* the next one to be granted, to be written */
    uint32_t settle_next;              /* the next one that the device may report as written */
    uint32_t sends_posted, sends_done; /* buffers: free are those between done + TRIB_RDMA_SENDS and posted */
    verbs_out outs[TRIB_RDMA_OUTS];

    /* in */
    bool paused, asking, resume_asked;
    uint32_t in_head, in_tail;
    uint32_t place_next;   /* the first from the head on that was not granted a place */
    uint32_t requested;    /* ins of KIND_REQUEST that were not answered with a GRANT */
    uint32_t granted;      /* ins that are IN_GRANTED */
    uint32_t credits_due;  /* posted again and not told */
    uint32_t free_count;   /* receive buffers to be posted again ... */
    uint32_t free_credits; /* ... of which so many are credits */
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
/* NULL with TRIB_OK: none is free, and the connection's turn comes when one is. */
TRIB_CHECKED trib_status trib_rdma_bounce_take(verbs_conn *conn, unsigned way, const void *memory, size_t size,
                                               verbs_bounce **bounce_out, trib_error *error);
void trib_rdma_bounce_give(verbs_nic *nic, verbs_bounce *bounce); /* NULL is fine */
void trib_rdma_bounce_forget(verbs_conn *conn);                   /* it waits no more */

/* rdma_poll.c */
TRIB_CHECKED bool trib_rdma_queue_create(verbs_conn *conn, int entries);
void trib_rdma_queue_destroy(verbs_conn *conn); /* no-op if there is none */
void trib_rdma_channel_ready(trib_reactor *reactor, trib_io *io, unsigned events);
void trib_rdma_poller_start(verbs_transport *transport);
void trib_rdma_poller_stop(verbs_transport *transport);

/* rdma.c */
void trib_rdma_discard(verbs_transport *transport, struct rdma_cm_id *id); /* one that nobody has an object for */

/* rdma_conn.c */
/* Takes the id, also where it answers NULL. */
verbs_conn *trib_rdma_conn_create(verbs_transport *transport, struct rdma_cm_id *id, verbs_state state);
/* The only writer of conn->state after creation; asserts that the step is legal. */
void trib_rdma_conn_set_state(verbs_conn *conn, verbs_state state);
TRIB_CHECKED trib_status trib_rdma_connect(trib_transport *transport, const trib_address *to, void *user,
                                           trib_conn **conn_out);
void trib_rdma_conn_close(trib_conn *base, bool flush);
/* Ends it; the reason is formatted like printf. No-op if it is ending already. */
void trib_rdma_conn_end(verbs_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As trib_rdma_conn_end, from an upcall of the loop: tells `connected` where that is still to be told. */
void trib_rdma_conn_lose(verbs_conn *conn, const char *reason);
/* The queue pair, its buffers and its completion queue. */
TRIB_CHECKED trib_status trib_rdma_conn_equip(verbs_conn *conn, trib_error *error);
/* For those of which the caller does not know, or no more. */
void trib_rdma_conn_free(verbs_conn *conn);
/* False: the peer is another transport, or another version of this one. */
bool trib_rdma_conn_greet(verbs_conn *conn, const void *data, size_t size, trib_error *error);
void trib_rdma_greeting_fill(verbs_greeting *greeting);
/* Another comes: where too many have been answered and not come back the oldest ends, for each pins memory. */
void trib_rdma_conn_make_room(verbs_transport *transport);
void trib_rdma_conn_opened(verbs_conn *conn); /* makes the upcall */
/* Takes completions, delivers, sends. Makes upcalls: from the loop only. */
void trib_rdma_conn_turn(verbs_conn *conn);
/* The same, if there are completions; false: there are none. */
bool trib_rdma_conn_poll(verbs_conn *conn);

/* rdma_send.c */
void trib_rdma_send(trib_conn *base, trib_send *send);
/* A free send buffer, NULL if there is none now; its prefix is filled but for what the kind needs. */
verbs_prefix *trib_rdma_buffer_take(verbs_conn *conn, verbs_kind kind);
/* Puts the buffer just taken into the chain, that many bytes of it. */
void trib_rdma_buffer_post(verbs_conn *conn, size_t size);
void trib_rdma_chain_init(verbs_chain *chain);
void trib_rdma_commit(verbs_conn *conn);
void trib_rdma_send_more(verbs_conn *conn);
void trib_rdma_send_fin(verbs_conn *conn); /* if it flushes and nothing is left to wait for */
void trib_rdma_take_grant(verbs_conn *conn, const verbs_prefix *prefix);
void trib_rdma_take_sent(verbs_conn *conn, uint64_t request_id);
bool trib_rdma_is_writing(const verbs_conn *conn); /* is the device still to say what became of a payload? */
void trib_rdma_report_sent(verbs_conn *conn);

/* rdma_recv.c */
void trib_rdma_recv_resume(trib_conn *base);
bool trib_rdma_recv_start(verbs_conn *conn); /* posts all buffers */
void trib_rdma_take_buffer(verbs_conn *conn, uint32_t index, uint32_t size);
void trib_rdma_take_write(verbs_conn *conn, uint32_t index, uint32_t size, uint32_t sequence);
void trib_rdma_deliver(verbs_conn *conn);
void trib_rdma_drop_in(verbs_conn *conn, verbs_in *in); /* gives back what it holds */
void trib_rdma_repost(verbs_conn *conn);

#endif
