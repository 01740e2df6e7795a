/*
 * shm_internal.h - declarations that the files of the shared-memory transport share.
 *
 * shm.c has the instance, the listeners and the poller, shm_greet.c the exchange of the segment, shm_conn.c the life
 * of a connection, shm_stream.c messages to records and back, shm_ring.c the records in memory, shm_memory.c the
 * memory that peers map, shm_lease.c the payloads that receivers read in place.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_INTERNAL_H
#define TRIB_TRANSPORTS_SHM_SHM_INTERNAL_H

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "transports/acceptor.h"
#include "transports/send_queue.h"
#include "transports/shm/shm.h"
#include "transports/shm/shm_memory.h"
#include "transports/shm/shm_ring.h"

#define SHM_REASON_MAX 192

typedef struct shm_conn shm_conn;
typedef struct shm_listener shm_listener;

typedef struct shm_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    trib_transport_counters stats;
    trib_poller poller;
    trib_timer watch;      /* finds peers that read nothing for too long */
    trib_timer poll_timer; /* wakes the loop for sends whose caller does not hurry */
    shm_conn *conns;       /* all, with those that the caller does not know yet */
    uint32_t open_count;
    uint64_t probe;         /* a random number that peers try to read out of this process */
    const shm_offer *offer; /* memory that peers may map; NULL: none */
    uint32_t offer_hint;
    bool resend_logged; /* whether the log has said that a peer can no longer be read */
} shm_transport;

typedef enum shm_state {
    SHM_GREETING, /* the two sides are exchanging the segment */
    SHM_OPEN,     /* both directions carry messages */
    SHM_FLUSHING, /* writes out the queue and waits until the peer has read it; drops what comes in */
    SHM_ENDING,   /* finish_post is deferred: it reports unsent messages, then `closed` */
} shm_state;

#define SHM_LEASES_MAX 8u /* payloads that are read or leased and not reported to the peer as read; a power of two */
#define SHM_READING_NS                                                                                                 \
    (1 * INT64_C(1000000000)) /* how long an ending connection waits for a peer that reads a payload in place */

/* Records that were in the ring when this side could no longer read the peer's memory (shm_resend.h). */
typedef struct shm_backlog {
    unsigned char *bytes; /* NULL: that has not happened */
    uint32_t used, at, next;
} shm_backlog;

/* The resending of payloads that the peer can no longer read. */
typedef enum shm_resend_state {
    SHM_RESEND_NONE,   /* nothing is to be sent again */
    SHM_RESEND_ASKED,  /* SHM_RESENT is to be written */
    SHM_RESEND_WRITES, /* fragments are being written, of the payloads from `resend` to `send_next` */
} shm_resend_state;

typedef struct shm_lease {
    trib_lease base; /* first */
    shm_conn *conn;
    uint64_t number;  /* number of the payload, as in shm_conn.taken */
    int64_t since_ns; /* a moment at which the sender had not taken the payload back yet */
} shm_lease;

struct shm_conn {
    trib_conn base; /* first */
    shm_transport *transport;
    shm_conn *prev, *next;  /* the transport's list */
    shm_listener *listener; /* listener of an accepted connection that is still greeting; otherwise NULL */
    trib_io io;             /* the socket: greetings, wake-ups, and the end of the peer */
    trib_timer deadline;    /* deadline of the greeting */
    trib_timer again; /* retries a greeting that could not be received, or an end that waits for the peer's reads */
    trib_post report_post, resume_post, finish_post;
    shm_state state;
    bool outgoing, known; /* known: the caller has the connection, or has called `connect` */
    bool connect_failed;  /* `connected` is still to be reported, with an error */
    bool hung_up;         /* the peer has closed its socket */
    bool reads_peer;      /* this side can read the peer's memory */
    bool peer_reads;      /* the peer can read this side's memory */
    shm_peer_memory peer;
    int memory_fd; /* descriptor of the segment; -1: received from the peer, or sent already */
    void *segment; /* SHM_SEGMENT_BYTES; NULL: not mapped yet */
    shm_out out;
    shm_in in;

    trib_send_queue sends;
    trib_send *send_next; /* the sends before it are in the ring */
    uint32_t streamed;    /* bytes of send_next's payload that are in the ring; its header is there if stream_begun */
    bool stream_begun;
    /* Payloads in this side's memory: sent so, reported, and read by the peer or sent again. */
    uint64_t remote_written, remote_reported, done_seen;
    shm_resend_state resend_state;
    trib_send *resend;

    /* Receiving. */
    bool paused, asking, resume_asked;
    bool streaming;     /* fragments of `record` are arriving */
    bool progress_owed; /* the peer may be waiting for a progress report */
    shm_record record;  /* record of the message that is being received */
    const unsigned char *behind;
    trib_recv_target target;
    uint32_t payload_got;
    bool gathers;      /* received messages join the backlog */
    bool from_backlog; /* `record` is the backlog's */
    shm_backlog backlog;

    uint64_t taken, done; /* payloads in the peer's memory: taken up, and reported to the peer as read */
    uint64_t leased;      /* bit number % SHM_LEASES_MAX; only numbers from done to taken - 1 */
    bool presenting;      /* the last payload taken is being presented in place */
    int64_t began_ns;     /* a moment before that payload was known to be valid */
    uint32_t lease_pause;
    trib_timer lease_timer;
    shm_lease leases[SHM_LEASES_MAX];

    uint64_t watched_tail, watched_done; /* as seen at the last check for peers that read nothing */
    int64_t stuck_since_ns;              /* since when the peer has read nothing; 0: it reads */
    int64_t end_by_ns;                   /* the connection ends then, even if the peer still reads */
    trib_status end_status;
    char reason[SHM_REASON_MAX];
    _Alignas(16) unsigned char header[TRIB_HEADER_SIZE];
};

struct shm_listener {
    trib_socket_listener socket; /* first */
    trib_address address;
    int64_t quiet_until_ns; /* no process of another user is logged before this time */
};

/* ---- shm.c ---- */

/* Polls within 2 ms for the peers' progress, without a wake-up by them. */
void trib_shm_poll_later(shm_transport *self);

/* ---- shm_greet.c ---- */

#define SHM_GREETING_MAGIC 0x6d687374u /* "tshm" */
#define SHM_GREETING_VERSION 4u

typedef enum shm_greeting_step { SHM_HELLO = 1, SHM_WELCOME = 2, SHM_READY = 3 } shm_greeting_step;

/* A message of the greeting, over the socket. All processes of a machine have one byte order. */
typedef struct shm_greeting {
    uint32_t magic, version, step;
    uint32_t reads; /* 1: the sender can read the receiver's memory; valid in WELCOME and READY */
    uint64_t segment_bytes;
    uint64_t probe_address,
        probe;              /* the address and the value of a number in the sender's memory, to be read for a test */
    uint64_t offer_address; /* address of the list of memory that may be mapped (shm_memory.h); 0: none */
} shm_greeting;

/* The socket's name for an address of TCP's form. */
TRIB_CHECKED trib_status trib_shm_name(const trib_address *address, struct sockaddr_un *out, socklen_t *size_out);
/* True if the process at the other end belongs to the same user; *pid_out is its id. Otherwise errno is EPERM. */
bool trib_shm_peer_allowed(int fd, pid_t *pid_out);
/* The connector makes the segment and sends the first greeting. False with errno if that fails. */
bool trib_shm_greet_begin(shm_conn *conn);
/* A greeting has arrived on the socket. May end the connection, open it, and make upcalls. */
void trib_shm_greet_take(shm_conn *conn);

/* ---- shm_conn.c ---- */

/* Owns fd from the call on, and closes it on failure. */
shm_conn *trib_shm_conn_create(shm_transport *transport, int fd, const trib_address *remote, bool outgoing);
/* As `connect`, but if nobody listens there it fails at once with TRIB_PEER_LOST and errno's number. */
TRIB_CHECKED trib_status trib_shm_connect_now(trib_transport *transport, const trib_address *to, void *user,
                                              trib_conn **conn_out, int *error_out);
TRIB_CHECKED trib_status trib_shm_connect(trib_transport *transport, const trib_address *to, void *user,
                                          trib_conn **conn_out);
/* A greeting cannot be received now, because of the shortage that errno's number names (0: of none): tries again
 * soon. */
void trib_shm_conn_take_later(shm_conn *conn, int error);
/* The greeting is complete. */
void trib_shm_conn_opened(shm_conn *conn);
void trib_shm_send(trib_conn *base, trib_send *send);
void trib_shm_recv_resume(trib_conn *base);
void trib_shm_conn_close(trib_conn *base, bool flush);
/* Ends the connection; the reason is formatted like printf. Does nothing if it is ending already. */
void trib_shm_conn_end(shm_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads records that have arrived and reports sends, within bounds; true if there was anything. */
bool trib_shm_conn_poll(shm_conn *conn);
/* Asks the peer to wake this side; true if there is something to do already. */
bool trib_shm_conn_prepare_sleep(shm_conn *conn);
void trib_shm_conn_note_wake_up(shm_conn *conn);
/* Closes and frees a connection that the caller does not know; makes no upcall. */
void trib_shm_conn_forget(shm_conn *conn);
/* Wakes the peer if it sleeps and has asked to be woken for that reason (SHM_WAKE_*). */
void trib_shm_conn_wake(shm_conn *conn, uint32_t why);

/* ---- shm_lease.c ---- */

/* Takes up the next payload in the peer's memory; trib_shm_payload_end must follow in any case. False: the peer has
 * taken the payload back. May recall a lease, whose holder may close the connection. */
bool trib_shm_payload_begin(shm_conn *conn, bool in_place);
void trib_shm_payload_end(shm_conn *conn);
trib_lease *trib_shm_lease(trib_conn *base, bool past_upcall);
/* Recalls every lease, at the end of the connection. */
void trib_shm_leases_recall(shm_conn *conn);
void trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer);

/* ---- shm_stream.c: they may end the connection; those that make upcalls say so ---- */

/* Writes sends into the ring as far as there is room. */
void trib_shm_stream_write(shm_conn *conn);
/* Reads the peer's progress, and reports the sends that it has read. Makes upcalls. True if there were any. */
bool trib_shm_stream_report(shm_conn *conn);
/* Reads records that have arrived, within bounds. Makes upcalls. True if there was anything. */
bool trib_shm_stream_read(shm_conn *conn);
/* Asks a receiver again that had no room. Makes upcalls. */
void trib_shm_stream_resume(shm_conn *conn);
/* True if a send waits for the peer. */
static inline bool trib_shm_stream_waits(const shm_conn *conn)
{
    return conn->send_next != NULL || conn->remote_reported < conn->remote_written ||
           conn->resend_state != SHM_RESEND_NONE;
}

/* True if the backlog has a record to take. */
static inline bool trib_shm_backlog_waits(const shm_conn *conn)
{
    return !conn->gathers && !conn->streaming && conn->backlog.at < conn->backlog.used;
}

/* True if a poll of the connection would find nothing. Cheap, for a loop that polls all the time. */
static inline bool trib_shm_conn_is_quiet(const shm_conn *conn)
{
    return conn->state == SHM_OPEN && !conn->progress_owed && !conn->hung_up && !trib_shm_stream_waits(conn) &&
           !trib_shm_in_has_more(&conn->in) && !trib_shm_backlog_waits(conn);
}

#endif
