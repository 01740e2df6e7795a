/*
 * failover_internal.h - what the files of the failover layer share.
 *
 * failover.c has the instance, listeners and paths, failover_session.c the life of a session, failover_dial.c the
 * search for a path, failover_flow.c the messages and their acknowledgements.
 *
 * A path is a connection of the inner transport. A session has at most one that carries it, `path`, and one that shall
 * take over, `successor`. They never carry both: the earlier one has had its `closed` before the later one carries, so
 * nothing writes to memory that was filled already.
 *
 * A path carries the caller's messages, unchanged, and frames of this layer: headers without payload that begin with
 * TRIB_FAILOVER_MAGIC, which no message of the caller does.
 *   HELLO    connecting side, first: the session's id, the number of the attempt, how many messages it has received
 *   PROBE    connecting side, first for an established session: is it known there?
 *   READY    the answer to PROBE: it is known. Has a nonce
 *   RESUME   connecting side, after READY: as HELLO, with a proof of the key over that nonce
 *   GONE     the answer to HELLO, RESUME and PROBE if there is no such session
 *   WELCOME  the answer: how many messages the accepting side has received; to RESUME also the proof. Messages follow
 *   ACK      that many messages have been received; in between a sign that the path works
 *   PAUSE    messages from number n on are dropped: no room
 *   GO       there is room: message n and those behind it shall be sent again
 *   REPEAT   message n is next
 *   BYE      the session is over
 */
#ifndef TRIB_TRANSPORTS_FAILOVER_FAILOVER_INTERNAL_H
#define TRIB_TRANSPORTS_FAILOVER_FAILOVER_INTERNAL_H

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

/* A frame of this layer, in place of a header; little-endian on the wire. */
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

/* A send for the inner transport. */
typedef struct failover_entry {
    trib_send send; /* first */
    struct failover_entry *next;
    trib_send *outer; /* the caller's; NULL: this is a frame of the layer */
    bool is_out;      /* the inner transport has it */
    bool is_ack;
} failover_entry;

typedef struct failover_listener {
    trib_listener base; /* first */
    uint32_t count;
    trib_listener *inner[TRIB_FAILOVER_MAX];
} failover_listener;

/* The fate of a message that was asked about. */
typedef enum failover_fate {
    FATE_FRAME,
    FATE_DELIVER,
    FATE_COUNT, /* dropped by a side that has closed; still counted */
    FATE_DROP   /* dropped; it will be sent again */
} failover_fate;

struct failover_path {
    failover_transport *transport;
    failover_path *prev, *next; /* the transport's list */
    failover_session *session;  /* NULL: the peer has not said HELLO */
    failover_listener *listener;
    trib_conn *inner;
    uint32_t rail;     /* connecting side: index in the session's list */
    bool is_makeshift; /* connecting side: connects without what the address offers */
    uint64_t count;    /* accepting side: messages that the peer has received, as it says */
    trib_timer timer;  /* for the first HELLO, and for the end after BYE */
    trib_status refusal;
    bool ready;                            /* connecting side: connected; accepting side: HELLO has come */
    bool greeted;                          /* connecting side: has said HELLO */
    bool probed;                           /* PROBE was sent, or has come */
    bool answered;                         /* READY has come */
    bool gone;                             /* GONE has come */
    unsigned char nonce[TRIB_FAILOVER_ID]; /* of READY */
    bool retired;                          /* another path takes over */
    bool ack_busy;                         /* an ACK is on its way; there is one at a time */
    uint8_t fates[TRIB_AHEAD_MAX];
    uint32_t fate_first, fate_count;
    char why[64]; /* why this side closed the path; empty: the inner transport has the reason */
};

/* A message that the caller was asked about and that has not arrived. */
typedef struct failover_asked {
    unsigned char header[TRIB_HEADER_SIZE];
    trib_recv_target target;
} failover_asked;

struct failover_session {
    trib_conn base; /* first */
    failover_transport *transport;
    failover_session *prev, *next; /* the transport's list */
    UT_hash_handle hh;             /* accepting side: by id */
    unsigned char id[TRIB_FAILOVER_ID];
    uint64_t attempt; /* number of the last attempt; accepting side: the newest that came. An older one is outdated */
    bool outgoing;
    bool established; /* a path has carried it */
    bool closing;     /* the caller has called conn_close */
    bool flushing;    /* the queue is sent before the end */
    bool bye_sent;
    bool over; /* ended; the post reports it when no path is left */
    failover_path *path, *successor;
    uint32_t paths; /* paths that are not closed: path, successor and retired ones */
    trib_post post;
    trib_timer timer; /* connecting side: limit of an attempt; accepting side: limit of the wait for the peer */
    trib_timer beat;

    trib_address rails[TRIB_FAILOVER_MAX];
    uint32_t rail_count;
    bool has_offers;              /* an address offers something better than TCP */
    uint32_t first_try, try_next; /* of this round: the rail that it began with, and the number of attempts so far */
    uint32_t absent;              /* bit mask of rails that said in this round that nobody listens */
    bool again;                   /* this is not the first round */
    int64_t deadline_ns;          /* no round begins after this time */
    uint32_t return_next;         /* the rail to try next for a return */
    int64_t return_at_ns, return_wait_ns;
    bool grace_extended;  /* the timer was late, and was extended once */
    trib_address came_by; /* the address of the path that failed */

    /* Sending. Entries from head to tail are not acknowledged. */
    failover_entry *head, *tail;
    failover_entry *unsent;         /* the first entry that this path has not been given */
    uint64_t head_number, acked;    /* numbers: of head; messages before `acked` are acknowledged */
    uint64_t next_number;           /* of the caller's next message */
    uint64_t unsent_number;         /* of `unsent` */
    uint32_t outs;                  /* messages that the inner transport has */
    trib_send_queue refused;        /* sends that found no memory */
    bool peer_paused, repeat_asked; /* PAUSE has come; GO has come, and waits until outs is 0 */
    uint64_t repeat_from;

    /* Receiving. */
    uint64_t received;
    failover_asked asked[TRIB_AHEAD_MAX];
    uint32_t asked_first, asked_count;
    uint32_t asked_here; /* the number of these that this path has asked about too */
    bool asking, resumed_inside;
    bool paused;   /* the caller has answered TRIB_AGAIN and not called recv_resume yet */
    bool refusing; /* messages are dropped until REPEAT */
    bool ack_due;

    trib_status end_status;
    char reason[TRIB_FAILOVER_REASON_MAX];
    char loss[TRIB_FAILOVER_REASON_MAX]; /* reason of the last path that failed */
    char last[TRIB_FAILOVER_REASON_MAX]; /* reason of the last attempt that failed */
};

struct failover_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    const trib_transport_ops *ops;   /* of the inner transport */
    trib_transport *plain;           /* for addresses without commas: makes upcalls to the caller */
    _Atomic(trib_transport *) inner; /* for paths: makes upcalls to this layer; NULL: not needed yet */
    trib_transport_counters stats;   /* of the sessions */
    int64_t silence_ns;
    failover_session *sessions;
    failover_session *accepted; /* accepted sessions, by id */
    failover_path *paths;
    failover_entry *spare;
    unsigned char *scratch; /* where dropped payloads are received; NULL: not needed yet */
};

/* failover.c */
/* Begins to connect the session's next path; NULL with the reason in *status_out. is_makeshift: without what the
 * address offers. */
failover_path *trib_failover_path_connect(failover_session *session, uint32_t rail, bool is_makeshift,
                                          trib_status *status_out);
void trib_failover_path_close(failover_path *path, bool flush, const char *why);
void trib_failover_path_finish(failover_path *path); /* ends the path after BYE: flushed, with a short deadline */
void trib_failover_path_reject(failover_path *path, const char *why);

/* failover_session.c */
failover_session *trib_failover_session_create(failover_transport *transport, bool outgoing);
void trib_failover_session_take_hello(failover_path *path, const failover_frame *hello); /* HELLO or RESUME has come */
void trib_failover_session_take_probe(failover_path *path, const failover_frame *probe);
void trib_failover_session_take_ready(failover_path *path, const failover_frame *ready);
void trib_failover_session_take_welcome(failover_path *path, const failover_frame *welcome);
/* Messages from the path are dropped, so no acknowledgement can come behind them. If the caller wants its messages
 * flushed, the path ends with that. */
void trib_failover_session_note_dropping(failover_session *session);
void trib_failover_session_connected(failover_path *path);
void trib_failover_session_path_closed(failover_path *path, trib_status status, const char *reason);
/* Ends the session; does nothing if it is over. */
void trib_failover_session_end(failover_session *session, trib_status status, const char *reason);

/* failover_dial.c */
void trib_failover_dial_init(failover_session *session);
/* Starts the search: a path must be found within three quarters of the silence timeout, which both sides know.
 * first: the rail that is tried first. */
void trib_failover_dial_begin(failover_session *session, uint32_t first);
TRIB_CHECKED trib_status trib_failover_dial_try(failover_session *session, uint32_t rail, bool is_makeshift);
/* Starts the next attempt of this round. last: why the one before failed. */
void trib_failover_dial_start(failover_session *session, const char *last);
void trib_failover_dial_note_failure(failover_session *session, const failover_path *path,
                                     const char *reason); /* an attempt has failed */
/* The path that carried the session is lost, and no successor is there. */
void trib_failover_dial_note_loss(failover_session *session, const failover_path *path, const char *reason);
void trib_failover_dial_note_success(failover_session *session); /* a path carries it */
/* Bounds the time in which a successor must take over from a path that works, or that was closed for it. */
void trib_failover_dial_set_bound(failover_session *session);

/* failover_flow.c */
/* False if there is no memory; the path has been closed then. */
bool trib_failover_send_frame(failover_path *path, failover_kind kind, uint64_t count);
/* True if that RESUME, or the WELCOME to one, proves the key. */
bool trib_failover_proof_is_valid(const failover_path *path, const failover_frame *frame);
bool trib_failover_flow_accepts_count(const failover_session *session,
                                      uint64_t count); /* true if the peer can have received so many */
/* The path begins to carry the session; the peer has received `count` messages. False if it cannot have. */
bool trib_failover_flow_begin(failover_session *session, uint64_t count);
void trib_failover_flow_path_lost(failover_session *session);
void trib_failover_flow_send_more(failover_session *session);
void trib_failover_flow_report_sent(failover_session *session);
void trib_failover_flow_return_sends(failover_session *session); /* returns all sends that are left at the end */
trib_status trib_failover_flow_header(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                      trib_recv_target *target);
void trib_failover_flow_received(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                                 uint32_t payload_size);
void trib_failover_flow_sent(failover_path *path, trib_send *send);

#endif
