/*
 * rails_internal.h - what the files of the layer share: rails.c (instance, listeners, paths), rails_session.c (the life
 * of a session), rails_ways.c (how it looks for a way), rails_flow.c (messages and what is said about them).
 *
 * A path is a connection of the inner transport. A session has at most one that carries it, `path`, and one that shall
 * take over, `next`. Never do both carry: before the later one does, the earlier has had its `closed`, so that nobody
 * writes to memory that was filled already.
 *
 * On a path travel the caller's messages, unchanged, and frames of this layer: headers without payload that begin with
 * TRIB_RAILS_MAGIC, which no message of the caller's does.
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
#ifndef TRIB_TRANSPORTS_RAILS_INTERNAL_H
#define TRIB_TRANSPORTS_RAILS_INTERNAL_H

#include "engine/base/hash.h"
#include "transports/failover/rails.h"
#include "transports/send_queue.h"

#define TRIB_RAILS_MAGIC 0x4c494152u /* "RAIL" as bytes */
#define TRIB_RAILS_VERSION 1u
#define TRIB_RAILS_ID 16u
#define TRIB_RAILS_PROOF 24u
#define TRIB_RAILS_REASON_MAX 256

typedef enum rails_kind {
    RAILS_HELLO = 1,
    RAILS_RESUME,
    RAILS_WELCOME,
    RAILS_ACK,
    RAILS_PAUSE,
    RAILS_GO,
    RAILS_REPEAT,
    RAILS_BYE,
    RAILS_PROBE,
    RAILS_READY,
    RAILS_GONE
} rails_kind;

/* A header of this layer; little-endian on the wire. */
typedef struct rails_frame {
    uint32_t magic;
    uint8_t kind, version;
    uint16_t reserved;
    uint64_t count;
    unsigned char id[TRIB_RAILS_ID];
    uint64_t attempt;
    unsigned char proof[TRIB_RAILS_PROOF];
} rails_frame;

_Static_assert(sizeof(rails_frame) == TRIB_HEADER_SIZE, "it is a header");

typedef struct rails_transport rails_transport;
typedef struct rails_session rails_session;
typedef struct rails_path rails_path;

/* What the inner transport is given to send. */
typedef struct rails_entry {
    trib_send send; /* first */
    struct rails_entry *next;
    trib_send *outer; /* NULL: a frame of this layer */
    bool is_out;      /* the inner transport has it */
    bool is_ack;
} rails_entry;

typedef struct rails_listener {
    trib_listener base; /* first */
    uint32_t count;
    trib_listener *inner[TRIB_RAILS_MAX];
} rails_listener;

/* What becomes of a message that was asked about. */
typedef enum rails_fate {
    FATE_FRAME,
    FATE_DELIVER,
    FATE_COUNT, /* thrown away by a side that has closed */
    FATE_DROP   /* it will come again */
} rails_fate;

struct rails_path {
    rails_transport *transport;
    rails_path *next, **at; /* the transport's list */
    rails_session *session; /* NULL: somebody who has not said HELLO */
    rails_listener *listener;
    trib_conn *inner;
    uint32_t rail;     /* connecting side: number in the session's list */
    bool is_makeshift; /* connecting side: it does without what the address offers */
    uint64_t count;    /* accepting side: what the peer has received, as it said */
    trib_timer timer;  /* somebody without HELLO; the farewell */
    trib_status refusal;
    bool ready;                         /* connecting side: connected; accepting side: HELLO has come */
    bool greeted;                       /* connecting side: has said HELLO */
    bool probed;                        /* PROBE was said, or has come */
    bool answered;                      /* READY has come */
    bool gone;                          /* GONE has come */
    unsigned char nonce[TRIB_RAILS_ID]; /* READY's */
    bool retired;                       /* another takes over */
    bool ack_busy;                      /* one ACK at a time */
    uint8_t fates[TRIB_AHEAD_MAX];
    uint32_t fate_first, fate_count;
    char why[64]; /* we closed it; empty: the inner transport says why */
};

/* A message that the caller was asked about and that has not come. */
typedef struct rails_asked {
    unsigned char header[TRIB_HEADER_SIZE];
    trib_landing landing;
} rails_asked;

struct rails_session {
    trib_conn base; /* first */
    rails_transport *transport;
    rails_session *next, **at; /* the transport's list */
    UT_hash_handle hh;         /* accepting side: by id */
    unsigned char id[TRIB_RAILS_ID];
    uint64_t attempt; /* of the last try; accepting side: the newest that came. What is older comes late */
    bool outgoing;
    bool established; /* a path has carried it */
    bool closing;     /* the caller has called conn_close */
    bool flushing;    /* what is queued goes out first */
    bool bye_sent;
    bool over; /* the post tells it when no path is left */
    rails_path *path, *successor;
    uint32_t paths; /* that are not closed, these two and retired ones */
    trib_post post;
    trib_timer timer; /* connecting side: an attempt takes too long; accepting side: nobody came */
    trib_timer beat;

    trib_address rails[TRIB_RAILS_MAX];
    uint32_t rail_count;
    bool has_offers;              /* some of the addresses say that there is something better than TCP */
    uint32_t first_try, try_next; /* of this round: the rail that it began with, and how many were tried */
    uint32_t absent;              /* bits of rails that have said in this round that there is nothing */
    bool again;                   /* it is not the first round */
    int64_t deadline_ns;          /* no round begins after it */
    uint32_t return_next;         /* the rail that is tried next when there might be a better one again */
    int64_t return_at_ns, return_wait_ns;
    bool is_excused;      /* the timer was late, and has been put off */
    trib_address came_by; /* where the path that failed led */

    /* out */
    rails_entry *head, *tail;
    rails_entry *unsent;            /* the first that this path has not been given */
    uint64_t head_number, acked;    /* messages; those before `acked` are the peer's */
    uint64_t next_number;           /* of the next one that the caller sends */
    uint64_t unsent_number;         /* of `unsent` */
    uint32_t outs;                  /* messages that the inner transport has */
    trib_send_queue refused;        /* there was no memory to take them */
    bool peer_paused, repeat_asked; /* PAUSE has come; GO has, and waits for outs to be 0 */
    uint64_t repeat_from;

    /* in */
    uint64_t received;
    rails_asked asked[TRIB_AHEAD_MAX];
    uint32_t asked_first, asked_count;
    uint32_t asked_here; /* of these, so many were asked about by this path too */
    bool asking, resumed_inside;
    bool paused;   /* the caller has answered AGAIN and not called recv_resume */
    bool refusing; /* what comes is thrown away until REPEAT */
    bool ack_due;

    trib_status end_status;
    char reason[TRIB_RAILS_REASON_MAX];
    char loss[TRIB_RAILS_REASON_MAX]; /* of the path that failed last */
    char last[TRIB_RAILS_REASON_MAX]; /* of the try that failed last */
};

struct rails_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    const trib_transport_ops *ops;   /* the inner one's */
    trib_transport *plain;           /* for addresses without commas: calls the caller */
    _Atomic(trib_transport *) inner; /* for paths: calls this layer; NULL: not needed yet */
    trib_transport_counters stats;   /* of sessions */
    int64_t silence_ns;
    rails_session *sessions;
    rails_session *accepted; /* those that came, by id */
    rails_path *paths;
    rails_entry *spare;
    unsigned char *scratch; /* where what is thrown away lands; NULL: not needed yet */
};

/* rails.c */
/* The session's next path, being connected; NULL with the reason. Makeshift: without what the address offers. */
rails_path *trib_rails_path_connect(rails_session *session, uint32_t rail, bool is_makeshift, trib_status *status_out);
void trib_rails_path_close(rails_path *path, bool flush, const char *why);
void trib_rails_path_bye(rails_path *path); /* after BYE: flushed, but not for long */
void trib_rails_path_turn_away(rails_path *path, const char *why);

/* rails_session.c */
rails_session *trib_rails_session_create(rails_transport *transport, bool outgoing);
void trib_rails_session_greet(rails_path *path, const rails_frame *hello); /* HELLO or RESUME has come */
void trib_rails_session_probe(rails_path *path, const rails_frame *probe);
void trib_rails_session_ready(rails_path *path, const rails_frame *ready);
void trib_rails_session_welcome(rails_path *path, const rails_frame *welcome);
/* What its path brings is refused, so that no acknowledgement can come behind it. If the caller wants what it has said to
 * go out, the path ends with that. */
void trib_rails_session_deaf(rails_session *session);
void trib_rails_session_connected(rails_path *path);
void trib_rails_session_path_closed(rails_path *path, trib_status status, const char *reason);
/* Ends it; no-op if it is over. */
void trib_rails_session_end(rails_session *session, trib_status status, const char *reason);

/* rails_ways.c */
void trib_rails_ways_init(rails_session *session);
/* Until then from now a way must be found: three quarters of the silence timeout, the same on both sides. First: the
 * rail that is tried first. */
void trib_rails_ways_begin(rails_session *session, uint32_t first);
TRIB_CHECKED trib_status trib_rails_ways_try(rails_session *session, uint32_t rail, bool is_makeshift);
/* The next try of this round. Last: why the one before did not do. */
void trib_rails_ways_dial(rails_session *session, const char *last);
void trib_rails_ways_failed(rails_session *session, const rails_path *path, const char *reason); /* a try */
/* The path that carried it is gone, and none has come to replace it. */
void trib_rails_ways_lost(rails_session *session, const rails_path *path, const char *reason);
void trib_rails_ways_found(rails_session *session); /* a path carries it */
/* A path shall take over from one that works, or that one is closed for it now: in so long. */
void trib_rails_ways_bound(rails_session *session);

/* rails_flow.c */
/* False if there is no memory: the path has been closed. */
bool trib_rails_say(rails_path *path, rails_kind kind, uint64_t count);
/* Does that RESUME, or the WELCOME to one, prove the key? */
bool trib_rails_is_proved(const rails_path *path, const rails_frame *frame);
bool trib_rails_flow_can_be(const rails_session *session, uint64_t count); /* can the peer have received so many? */
/* A path begins to carry the session, and the peer has received so many. False: it cannot have. */
bool trib_rails_flow_begin(rails_session *session, uint64_t count);
void trib_rails_flow_path_lost(rails_session *session);
void trib_rails_flow_give(rails_session *session);
void trib_rails_flow_report(rails_session *session);
void trib_rails_flow_return(rails_session *session); /* all that is left, when the session has ended */
trib_status trib_rails_flow_header(rails_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                   trib_landing *landing);
void trib_rails_flow_received(rails_path *path, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                              uint32_t payload_size);
void trib_rails_flow_sent(rails_path *path, trib_send *send);

#endif
