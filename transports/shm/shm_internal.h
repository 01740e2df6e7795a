/*
 * shm_internal.h - what the files of the shared-memory transport share: shm.c (instance, listeners, the poller),
 * shm_greet.c (how two processes come to share a segment), shm_conn.c (life of a connection), shm_stream.c (messages to
 * records and back), shm_ring.c (records in memory), shm_memory.c (memory that peers map), shm_lease.c
 * (payloads that stay there).
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
    trib_timer watch;      /* looks for peers that take nothing */
    trib_timer poll_timer; /* wakes for payloads that were taken, where nobody hurries */
    shm_conn *conns;       /* all, also those that the caller does not know of yet */
    uint32_t open_count;
    uint64_t probe;         /* a random number that peers try to read out of this process */
    const shm_offer *offer; /* NULL: none */
    uint32_t offer_hint;
} shm_transport;

typedef enum shm_state {
    SHM_GREETING, /* the two sides are making the segment theirs */
    SHM_OPEN,     /* both directions */
    SHM_FLUSHING, /* writes out what is queued and waits until it is taken; throws away what comes in */
    SHM_ENDING,   /* finish_post is on its way: reports what was not sent, then `closed` */
} shm_state;

#define SHM_LEASES_MAX 8u                        /* payloads that the peer has not been told of, at most */
#define SHM_READING_NS (1 * INT64_C(1000000000)) /* so long an end waits for a peer that reads a payload */

typedef struct shm_lease {
    trib_lease base; /* first */
    shm_conn *conn;
    uint64_t number;  /* of the payload */
    int64_t since_ns; /* when its sender had not taken it back yet, or a little earlier */
} shm_lease;

struct shm_conn {
    trib_conn base; /* first */
    shm_transport *transport;
    shm_conn *prev, *next;  /* the transport's list */
    shm_listener *listener; /* of an accepted one that is still greeting */
    trib_io io;             /* the socket: greetings, wake-ups, and the peer's end */
    trib_timer deadline;    /* of the greeting */
    trib_timer again;       /* a greeting waits until it can be taken; the end, until the peer has read what it reads */
    trib_post report_post, resume_post, finish_post;
    shm_state state;
    bool outgoing, known; /* known: the caller has it, or knows of the attempt */
    bool connect_failed;  /* `connected` is still to be told, with an error */
    bool hung_up;         /* the peer has closed its socket */
    bool reads_peer;      /* this side can read the peer's memory */
    bool peer_reads;      /* and the other way round */
    shm_peer_memory peer;
    int memory_fd; /* -1: not ours to send, or sent */
    void *segment; /* NULL: not mapped yet */
    shm_out out;
    shm_in in;

    trib_send_queue sends;
    trib_send *send_next; /* those before it are in the ring */
    uint32_t streamed;    /* bytes of send_next's payload that are in the ring; its header is if stream_begun */
    bool stream_begun;
    uint64_t remote_written, remote_reported, done_seen;

    /* receiving */
    bool paused, asking, resume_asked;
    bool streaming;     /* fragments of `record` are coming in */
    bool progress_owed; /* the peer may wait for what has been taken */
    shm_record record;  /* the message that is being received */
    const unsigned char *behind;
    trib_recv_target target;
    uint32_t payload_got;

    uint64_t taken, done; /* payloads in the peer's memory: taken up, and told it that they are over */
    uint64_t leased;      /* bit number % SHM_LEASES_MAX; none below done or from taken on */
    bool presenting;      /* the last one taken, in place */
    int64_t began_ns;     /* before it was known that it is there */
    uint32_t lease_pause;
    trib_timer lease_timer;
    shm_lease leases[SHM_LEASES_MAX];

    uint64_t watched_tail, watched_done; /* at the last look of the watch */
    int64_t stuck_since_ns;              /* 0: not */
    int64_t end_by_ns;                   /* then it ends, whatever the peer reads */
    trib_status end_status;
    char reason[SHM_REASON_MAX];
    _Alignas(16) unsigned char header[TRIB_HEADER_SIZE];
};

struct shm_listener {
    trib_socket_listener socket; /* first */
    trib_address address;
    int64_t quiet_until_ns; /* that somebody of another user came is not told again before */
};

/* ---- shm.c ---- */

/* What peers have taken is seen soon, without a wake-up by them. */
void trib_shm_poll_later(shm_transport *self);

/* ---- shm_greet.c ---- */

#define SHM_GREETING_MAGIC 0x6d687374u /* "tshm" */
#define SHM_GREETING_VERSION 3u

typedef enum shm_greeting_step { SHM_HELLO = 1, SHM_WELCOME = 2, SHM_READY = 3 } shm_greeting_step;

/* What is said at the socket. */
typedef struct shm_greeting {
    uint32_t magic, version, step;
    uint32_t reads; /* the sender can read the receiver's memory; WELCOME and READY */
    uint64_t segment_bytes;
    uint64_t probe_address, probe; /* a number in the sender's memory that is there for reading */
    uint64_t offer_address;        /* its list of memory to be mapped; 0: it has none */
} shm_greeting;

/* The socket's name for an address of TCP's form. */
TRIB_CHECKED trib_status trib_shm_name(const trib_address *address, struct sockaddr_un *out, socklen_t *size_out);
/* Checks that the process at the other end belongs to the same user; its id. False: it does not. */
bool trib_shm_peer_allowed(int fd, pid_t *pid_out);
/* Connector: makes the segment and sends the first greeting. False with errno set. */
bool trib_shm_greet_begin(shm_conn *conn);
/* A greeting has arrived on the socket. May end the connection, open it, and make upcalls. */
void trib_shm_greet_take(shm_conn *conn);

/* ---- shm_conn.c ---- */

/* Takes fd over, on failure too. */
shm_conn *trib_shm_conn_create(shm_transport *transport, int fd, const trib_address *remote, bool outgoing);
/* As connect, but fails at once, with TRIB_PEER_LOST and errno's number, if nobody listens there. */
TRIB_CHECKED trib_status trib_shm_connect_now(trib_transport *transport, const trib_address *to, void *user,
                                              trib_conn **conn_out, int *error_out);
TRIB_CHECKED trib_status trib_shm_connect(trib_transport *transport, const trib_address *to, void *user,
                                          trib_conn **conn_out);
/* A greeting cannot be taken now, for want of what errno's number says, or 0: it is looked at again soon. */
void trib_shm_conn_take_later(shm_conn *conn, int error);
/* The greeting is over. */
void trib_shm_conn_opened(shm_conn *conn);
void trib_shm_send(trib_conn *base, trib_send *send);
void trib_shm_recv_resume(trib_conn *base);
void trib_shm_conn_close(trib_conn *base, bool flush);
/* Ends it; the reason is formatted like printf. No-op if it is ending already. */
void trib_shm_conn_end(shm_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes and gives what there is, within bounds; true if there was something. */
bool trib_shm_conn_poll(shm_conn *conn);
/* Asks the peer to wake this side; true if there is something to do at once. */
bool trib_shm_conn_rest(shm_conn *conn);
void trib_shm_conn_woken(shm_conn *conn);
/* Ends it if the peer has taken nothing of what waits for it for too long, not counting that this process stood still for
 * slept_ns since the last look. */
void trib_shm_conn_watch(shm_conn *conn, int64_t now_ns, int64_t slept_ns);
/* Closes and frees it without an upcall: one that the caller does not know, or knows no longer. */
void trib_shm_conn_forget(shm_conn *conn);
/* Wakes the peer if it sleeps and wants to be woken for that. */
void trib_shm_conn_wake(shm_conn *conn, uint32_t why);

/* ---- shm_lease.c ---- */

/* The next payload in the peer's memory is taken up; the end follows, whatever becomes of it. False: the peer has taken it back
 * already. May recall a lease, and who had that may close the connection then. */
bool trib_shm_payload_begin(shm_conn *conn, bool in_place);
void trib_shm_payload_end(shm_conn *conn);
trib_lease *trib_shm_lease(trib_conn *base, bool past_upcall);
/* All, at the end. */
void trib_shm_leases_recall(shm_conn *conn);
void trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer);

/* ---- shm_stream.c: they may end the connection; those that make upcalls say so ---- */

/* Writes what there is room for. */
void trib_shm_stream_write(shm_conn *conn);
/* Sees what the peer has taken and reports it. Upcalls. True if there was something. */
bool trib_shm_stream_report(shm_conn *conn);
/* Takes what has come in, within bounds. Upcalls. True if there was something. */
bool trib_shm_stream_read(shm_conn *conn);
/* The receiver that had no room is asked again. Upcalls. */
void trib_shm_stream_resume(shm_conn *conn);
/* Something that is sent waits for the peer. */
static inline bool trib_shm_stream_waits(const shm_conn *conn)
{
    return conn->send_next != NULL || conn->remote_reported < conn->remote_written;
}

/* A poll of it would find nothing: for who looks again and again. */
static inline bool trib_shm_conn_is_quiet(const shm_conn *conn)
{
    return conn->state == SHM_OPEN && !conn->progress_owed && !conn->hung_up && !trib_shm_stream_waits(conn) &&
           !trib_shm_in_has_more(&conn->in);
}

#endif
