/*
 * failover_internal.h - what the files of the layer share: failover.c (instance, listeners, paths), failover_session.c (the life
 * of a session), failover_dial.c (how it looks for a way), failover_flow.c (messages and what is said about them).
 *
 * A path is a connection of the inner transport. A session has at most one that carries it, `path`, and one that shall
 * take over, `next`. Never do both carry: before the later one does, the earlier has had its `closed`, so that nobody
 * writes to memory that was filled already.
 *
 * On a path travel the caller's messages, unchanged, and frames of this layer: headers without payload that begin with
 * TRIB_FAILOVER_MAGIC, which no message of the caller's does.
 *   HELLO    connecting side, first: the session's id, the number of this try, how many messages it has received
 *   PROBE    connecting side, first for a session that was established: is it known there?
 *   READY    the answer to PROBE: it is. Brings a nonce
 *   RESUME   connecting side, after READY: as HELLO, with a proof of the key over that nonce
 *   GONE     the answer to HELLO, RESUME and PROBE where there is no such session
 *   WELCOME  the answer: how many the accepting side has received, and to RESUME the proof. Messages follow from there
 *   ACK      so many have been received; in between it shows that the way still leads there
 *   PAUSE    from message number n on they are thrown away: no room
 *   GO       there is room: n and what follows shall come again
 *   REPEAT   n is next
 *   BYE      the session is over
 */
#ifndef TRIB_TRANSPORTS_FAILOVER_INTERNAL_H
#define TRIB_TRANSPORTS_FAILOVER_INTERNAL_H

#include "engine/base/hash.h"
#include "transports/failover/failover.h"
#include "transports/send_queue.h"

#define TRIB_FAILOVER_MAGIC 0x4c494152u /* "RAIL" as bytes */
#define TRIB_FAILOVER_VERSION 2u
#define TRIB_FAILOVER_ID 16u
#define TRIB_FAILOVER_PROOF 24u
#define TRIB_FAILOVER_REASON_MAX 256

typedef enum failover_kind {
    FAILOVER_HELLO = 1,
    FAILOVER_RESUME,
    FAILOVER_WELCOME,
    FAILOVER_ACK,
    FAILOVER_PAUSE,
    FAILOVER_GO,
    FAILOVER_REPEAT,
    FAILOVER_BYE,
    FAILOVER_PROBE,
    FAILOVER_READY,
    FAILOVER_GONE
} failover_kind;

/* A header of this layer; little-endian on the wire. */
typedef struct failover_frame {
    uint32_t magic;
    uint8_t kind, version;
    uint16_t reserved;
    uint64_t count;
    unsigned char id[TRIB_FAILOVER_ID];
    uint64_t attempt;
    unsigned char proof[TRIB_FAILOVER_PROOF];
    unsigned char unused[32];
} failover_frame;

_Static_assert(sizeof(failover_frame) == TRIB_HEADER_SIZE, "it is a header");

typedef struct failover_transport failover_transport;
typedef struct failover_session failover_session;
typedef struct failover_path failover_path;

/* What the inner transport is given to send. */
typedef struct failover_entry {
    trib_send send; /* first */
    struct failover_entry *next;
    trib_send *outer; /* NULL: a frame of this layer */
    bool is_out;      /* the inner transport has it */
    bool is_ack;
} failover_entry;

typedef struct failover_listener {
    trib_listener base; /* first */
    uint32_t count;
    trib_listener *inner[TRIB_FAILOVER_MAX];
} failover_listener;

/* What becomes of a message that was asked about. */
typedef enum failover_fate {
    FATE_FRAME,
    FATE_DELIVER,
    FATE_COUNT, /* thrown away by a side that has closed */
    FATE_DROP   /* it will come again */
} failover_fate;

struct failover_path {
    failover_transport *transport;
    failover_path *next, **at; /* the transport's list */
    failover_session *session; /* NULL: somebody who has not said HELLO */
    failover_listener *listener;
    trib_conn *inner;
    uint32_t rail;     /* connecting side: number in the session's list */
    bool is_makeshift; /* connecting side: it does without what the address offers */
    uint64_t count;    /* accepting side: what the peer has received, as it said */
    trib_timer timer;  /* somebody without HELLO; the farewell */
    trib_status refusal;
    bool ready;                            /* connecting side: connected; accepting side: HELLO has come */
    bool greeted;                          /* connecting side: has said HELLO */
    bool probed;                           /* PROBE was said, or has come */
    bool answered;                         /* READY has come */
    bool gone;                             /* GONE has come */
    unsigned char nonce[TRIB_FAILOVER_ID]; /* READY's */
    bool retired;                          /* another takes over */
    bool ack_busy;                         /* one ACK at a time */
    uint8_t fates[TRIB_AHEAD_MAX];
    uint32_t fate_first, fate_count;
    char why[64]; /* we closed it; empty: the inner transport says why */
};

/* A message that the caller was asked about and that has not come. */
typedef struct failover_asked {
    unsigned char header[TRIB_HEADER_SIZE];
    trib_recv_target target;
} failover_asked;

struct failover_session {
    trib_conn base; /* first */
    failover_transport *transport;
    failover_session *next, **at; /* the transport's list */
    UT_hash_handle hh;            /* accepting side: by id */
    unsigned char id[TRIB_FAILOVER_ID];
    uint64_t attempt; /* of the last try; accepting side: the newest that came. What is older comes late */
    bool outgoing;
    bool established; /* a path has carried it */
    bool closing;     /* the caller has called conn_close */
    bool flushing;    /* what is queued goes out first */
    bool bye_sent;
    bool over; /* the post tells it when no path is left */
    failover_path *path, *successor;
    uint32_t paths; /* that are not closed, these two and retired ones */
    trib_post post;
    trib_timer timer; /* connecting side: an attempt takes too long; accepting side: nobody came */
    trib_timer beat;

    trib_address rails[TRIB_FAILOVER_MAX];
    uint32_t rail_count;
    bool has_offers;              /* some of the addresses say that there is something better than TCP */
    uint32_t first_try, try_next; /* of this round: the rail that it began with, and how many were tried */
    uint32_t absent;              /* bits of rails that have said in this round that there is nothing */
    bool again;                   /* it is not the first round */
    int64_t deadline_ns;          /* no round begins after it */
    uint32_t return_next;         /* the rail that is tried next when there might be a better one again */
    int64_t return_at_ns, return_wait_ns;
    bool grace_extended;  /* the timer was late, and has been put off */
    trib_address came_by; /* where the path that failed led */

    /* out */
    failover_entry *head, *tail;
    failover_entry *unsent;         /* the first that this path has not been given */
    uint64_t head_number, acked;    /* messages; those before `acked` are the peer's */
    uint64_t next_number;           /* of the next one that the caller sends */
    uint64_t unsent_number;         /* of `unsent` */
    uint32_t outs;                  /* messages that the inner transport has */
    trib_send_queue refused;        /* there was no memory to take them */
    bool peer_paused, repeat_asked; /* PAUSE has come; GO has, and waits for outs to be 0 */
    uint64_t repeat_from;

    /* in */
    uint64_t received;
    failover_asked asked[TRIB_AHEAD_MAX];
    uint32_t asked_first, asked_count;
    uint32_t asked_here; /* of these, so many were asked about by this path too */
    bool asking, resumed_inside;
    bool paused;   /* the caller has answered AGAIN and not called recv_resume */
    bool refusing; /* what comes is thrown away until REPEAT */
    bool ack_due;

    trib_status end_status;
    char reason[TRIB_FAILOVER_REASON_MAX];
    char loss[TRIB_FAILOVER_REASON_MAX]; /* of the path that failed last */
    char last[TRIB_FAILOVER_REASON_MAX]; /* of the try that failed last */
};

struct failover_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    const trib_transport_ops *ops;   /* the inner one's */
    trib_transport *plain;           /* for addresses without commas: calls the caller */
    _Atomic(trib_transport *) inner; /* for paths: calls this layer; NULL: not needed yet */
    trib_transport_counters stats;   /* of sessions */
    int64_t silence_ns;
    failover_session *sessions;
    failover_session *accepted; /* those that came, by id */
    failover_path *paths;
    failover_entry *spare;
    unsigned char *scratch; /* where what is thrown away lands; NULL: not needed yet */
};

/* failover.c */
/* The session's next path, being connected; NULL with the reason. Makeshift: without what the address offers. */
failover_path *trib_failover_path_connect(failover_session *session, uint32_t rail, bool is_makeshift,
                                          trib_status *status_out);
void trib_failover_path_close(failover_path *path, bool flush, const char *why);
void trib_failover_path_bye(failover_path *path); /* after BYE: flushed, but not for long */
void trib_failover_path_turn_away(failover_path *path, const char *why);

/* failover_session.c */
failover_session *trib_failover_session_create(failover_transport *transport, bool outgoing);
void trib_failover_session_greet(failover_path *path, const failover_frame *hello); /* HELLO or RESUME has come */
void trib_failover_session_probe(failover_path *path, const failover_frame *probe);
void trib_failover_session_ready(failover_path *path, const failover_frame *ready);
void trib_failover_session_welcome(failover_path *path, const failover_frame *welcome);
/* What its path brings is refused, so that no acknowledgement can come behind it. If the caller wants what it has said to
 * go out, the path ends with that. */
void trib_failover_session_note_deaf(failover_session *session);
void trib_failover_session_connected(failover_path *path);
void trib_failover_session_path_closed(failover_path *path, trib_status status, const char *reason);
/* Ends it; no-op if it is over. */
void trib_failover_session_end(failover_session *session, trib_status status, const char *reason);

/* failover_dial.c */
void trib_failover_dial_init(failover_session *session);
/* Until then from now a way must be found: three quarters of the silence timeout, the same on both sides. First: the
 * rail that is tried first. */
void trib_failover_dial_begin(failover_session *session, uint32_t first);
TRIB_CHECKED trib_status trib_failover_dial_try(failover_session *session, uint32_t rail, bool is_makeshift);
/* The next try of this round. Last: why the one before did not do. */
void trib_failover_dial_start(failover_session *session, const char *last);
void trib_failover_dial_failed(failover_session *session, const failover_path *path, const char *reason); /* a try */
/* The path that carried it is gone, and none has come to replace it. */
void trib_failover_dial_path_lost(failover_session *session, const failover_path *path, const char *reason);
void trib_failover_dial_found(failover_session *session); /* a path carries it */
/* A path shall take over from one that works, or that one is closed for it now: in so long. */
void trib_failover_dial_set_bound(failover_session *session);

/* failover_flow.c */
/* False if there is no memory: the path has been closed. */
bool trib_failover_send_frame(failover_path *path, failover_kind kind, uint64_t count);
/* Does that RESUME, or the WELCOME to one, prove the key? */
bool trib_failover_is_proved(const failover_path *path, const failover_frame *frame);
bool trib_failover_flow_can_be(const failover_session *session,
                               uint64_t count); /* can the peer have received so many? */
/* A path begins to carry the session, and the peer has received so many. False: it cannot have. */
bool trib_failover_flow_begin(failover_session *session, uint64_t count);
void trib_failover_flow_path_lost(failover_session *session);
void trib_failover_flow_give(failover_session *session);
void trib_failover_flow_report(failover_session *session);
void trib_failover_flow_return(failover_session *session); /* all that is left, when the session has ended */
trib_status trib_failover_flow_header(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                      trib_recv_target *target);
void trib_failover_flow_received(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                                 uint32_t payload_size);
void trib_failover_flow_sent(failover_path *path, trib_send *send);

#endif
