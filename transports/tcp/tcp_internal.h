/*
 * tcp_internal.h - what the files of the TCP transport share: tcp.c (instance and listeners), tcp_conn.c (life of a
 * connection), tcp_stream.c (bytes to messages and back), tcp_backlog.c (what may lie in the kernel), tcp_silence.c (who has not
 * answered for too long), tcp_address.c (text to sockets' addresses).
 */
#ifndef TRIB_TRANSPORTS_TCP_INTERNAL_H
#define TRIB_TRANSPORTS_TCP_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "transports/send_queue.h"
#include "transports/tcp/tcp.h"

/* Small messages are read many at a time into this buffer and copied out once. */
#define TRIB_TCP_BUFFER_SIZE 65536u
#define TRIB_TCP_REASON_MAX 192

typedef struct tcp_conn tcp_conn;

/* What send buffers are large and small, and how long what is in them takes. */
typedef struct tcp_backlog {
    double delay_us;       /* from the system call to the acknowledgement; a running mean over all connections */
    double bytes_per_us;   /* what a connection carries while that is long, or paces; a running mean; 0: not known */
    uint32_t carrying;     /* connections that have carried data, asked or not */
    uint32_t small, large; /* as the kernel counts */
    uint32_t reactors;     /* of the process, that send over the same links */
    uint32_t other_times;  /* in a row, that these looked slow, or fast if they are taken for slow */
    int64_t other_since_ns;
    int64_t fast_for_ns; /* for so long they have to, to be taken for fast; 0: they were never slow */
    bool paces;          /* they are taken for slow: packets are to leave evenly */
    bool replaced_bbr;   /* which is the system's choice */
    bool has_urgent;     /* one of the connections is urgent */
} tcp_backlog;

/* For how long a peer has acknowledged nothing of what is under way to it. */
typedef struct tcp_silence {
    int64_t since_ns;
    uint64_t acked; /* bytes, when the kernel was asked last */
    bool was_checked;
} tcp_silence;

/* What the kernel says about that. */
typedef struct tcp_seen {
    uint32_t unacked, probes; /* packets; probes of a closed window that have had no answer */
    uint32_t unsent;          /* bytes that wait for room at the peer */
    uint64_t acked;           /* bytes, in all */
    int64_t last_ack_ms;      /* since anything was acknowledged, data or not */
} tcp_seen;

typedef struct tcp_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    trib_transport_counters stats;
    tcp_backlog backlog;
    uint32_t open_count; /* listeners and connections that the caller knows of */
    tcp_conn *lingering; /* connections that it no longer knows of */
} tcp_transport;

typedef enum tcp_state {
    TCP_CONNECTING, /* the kernel has not said yet */
    TCP_OPEN,       /* both directions */
    TCP_FLUSHING,   /* writes out what is queued, throws away what comes in */
    TCP_ENDING,     /* finish_post is on its way: reports what was not sent, then `closed` */
    TCP_LINGERING,  /* the caller has had its `closed`; reads until the peer ends too, or a short time has passed */
} tcp_state;

typedef enum tcp_phase { TCP_PHASE_HEADER, TCP_PHASE_ASK, TCP_PHASE_PAYLOAD } tcp_phase;

struct tcp_conn {
    trib_conn base; /* first */
    tcp_transport *transport;
    trib_io io;
    tcp_state state;
    trib_post flush_post, read_post, finish_post;
    trib_timer linger_timer, silence_timer;
    tcp_silence silence;
    tcp_conn *linger_prev, *linger_next; /* the transport's list of lingering connections */

    /* sending: head_sent bytes of the first one are with the kernel */
    trib_send_queue sends;
    size_t head_sent;
    bool want_write;        /* the kernel had no room */
    bool is_urgent;         /* the kernel has been told that it is urgent */
    bool is_same_host;      /* what is sent stays in this host's memory */
    bool is_paced;          /* the kernel has been asked to space packets out */
    uint32_t carried;       /* bytes of data, up to what makes it count in carrying */
    uint32_t backlog_left;  /* bytes that the kernel takes until its backlog is looked at */
    uint32_t backlog_size;  /* of the send buffer; 0: the kernel tunes it */
    uint32_t backlog_least; /* for its packets */
    int write_errno;        /* writing has failed; what the peer sent before that is still read */

    /* receiving */
    tcp_phase phase;
    bool paused;         /* header answered AGAIN */
    bool asking;         /* inside the header upcall ... */
    bool resume_asked;   /* ... which called recv_resume */
    bool peer_ended;     /* end of the stream was read */
    bool flushed;        /* all was written and our direction is shut */
    bool connect_failed; /* at once: `connected` is still to be told */
    trib_recv_target target;
    uint32_t payload_got;
    uint32_t last_payload_size;
    size_t begin, end; /* of what is in the buffer */

    trib_status end_status;
    char reason[TRIB_TCP_REASON_MAX];
    _Alignas(16) unsigned char header[TRIB_HEADER_SIZE];
    unsigned char buffer[TRIB_TCP_BUFFER_SIZE];
};

/* tcp_address.c */
TRIB_CHECKED trib_status trib_tcp_address_parse(const trib_address *address, struct sockaddr_storage *out,
                                                socklen_t *size_out);
void trib_tcp_address_format(const struct sockaddr_storage *from, trib_address *out);

/* tcp_conn.c. Both take fd over, on failure too (then it has been closed). */
tcp_conn *trib_tcp_conn_create(tcp_transport *transport, int fd, const trib_address *remote, tcp_state state);
TRIB_CHECKED trib_status trib_tcp_connect(trib_transport *transport, const trib_address *to, void *user,
                                          trib_conn **conn_out);
void trib_tcp_send(trib_conn *base, trib_send *send);
void trib_tcp_recv_resume(trib_conn *base);
void trib_tcp_conn_close(trib_conn *base, bool flush);
void trib_tcp_linger_end(tcp_conn *conn);
/* Watches what the connection's state calls for. */
void trib_tcp_conn_watch(tcp_conn *conn);
/* Ends it; the reason is formatted like printf. No-op if it is ending already. */
void trib_tcp_conn_end(tcp_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends it because the system said so. */
void trib_tcp_conn_end_errno(tcp_conn *conn, const char *what, int error);

/* tcp_backlog.c */
/* reactors: that send over the same links. */
void trib_tcp_backlog_open(tcp_backlog *backlog, uint32_t reactors);
/* A socket that will connect or listen. */
void trib_tcp_backlog_prepare(tcp_transport *transport, int fd);
/* The connection is open. */
void trib_tcp_backlog_begin(tcp_conn *conn);
/* About to write. */
void trib_tcp_backlog_fit(tcp_conn *conn);
/* The kernel has taken so much more. */
void trib_tcp_backlog_add(tcp_conn *conn, size_t written);
/* The kernel has been asked: what was learned of one connection. */
void trib_tcp_backlog_learn(tcp_backlog *backlog, int64_t now_ns, double delay_us, double bytes_per_us);
/* Whether a mean round trip is what the path takes; it may have one in it that was not. */
bool trib_tcp_backlog_believes(uint32_t rtt_us, uint32_t deviation_us);
/* All that has come was read, up to the end of a message. */
void trib_tcp_backlog_read_all(const tcp_conn *conn);
/* The connection is over. */
void trib_tcp_backlog_end(tcp_conn *conn);

/* tcp_silence.c */
/* With a new connection, once. */
void trib_tcp_silence_init(tcp_conn *conn);
/* It begins to connect, or is open. */
void trib_tcp_silence_open(tcp_conn *conn);
/* The kernel has taken something. */
void trib_tcp_silence_written(tcp_conn *conn);
/* The kernel has been asked: for how long there was no answer; below 0: none is due. */
int64_t trib_tcp_silence_learn(tcp_silence *silence, int64_t now_ns, const tcp_seen *seen);

/* tcp_stream.c. They may end the connection, and make upcalls: from the loop only. */
void trib_tcp_stream_write(tcp_conn *conn);
void trib_tcp_stream_read(tcp_conn *conn);
void trib_tcp_stream_consume(tcp_conn *conn);
/* Writing has failed. The peer's last words may lie in the socket, and they say more than a broken pipe does: it is read
 * until it is empty or has ended, and the connection ends. */
void trib_tcp_stream_last_words(tcp_conn *conn);
/* Reads and throws away; true when the peer has ended its direction or an error came. */
bool trib_tcp_stream_discard(tcp_conn *conn);

#endif
