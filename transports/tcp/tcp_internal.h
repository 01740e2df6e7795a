/*
 * tcp_internal.h - declarations that the files of the TCP transport share.
 *
 * tcp.c has the instance and its listeners, tcp_conn.c the life of a connection, tcp_stream.c the messages in the byte
 * stream, tcp_backlog.c the size of send buffers, tcp_silence.c the limit for peers that acknowledge nothing,
 * tcp_address.c the addresses.
 */
#ifndef TRIB_TRANSPORTS_TCP_TCP_INTERNAL_H
#define TRIB_TRANSPORTS_TCP_TCP_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "transports/send_queue.h"
#include "transports/tcp/tcp.h"

/* Small messages are read many at a time into this buffer and copied out once. Bytes. */
#define TRIB_TCP_BUFFER_SIZE 65536u
#define TRIB_TCP_REASON_MAX 192

typedef struct tcp_conn tcp_conn;

/* The state of the controller of send buffers (tcp_backlog.c); one an instance. */
typedef struct tcp_backlog {
    double delay_us;       /* from the system call to the acknowledgement: running mean over all connections */
    double bytes_per_us;   /* of one connection, while delay_us is long or `paces` is set: running mean; 0: not known */
    uint32_t carrying;     /* connections that have carried data, sampled or not */
    uint32_t small, large; /* sizes of send buffers as the kernel counts them, bytes; small <= large */
    uint32_t reactors;     /* number of this process's reactors that send over the same links; at least 1 */
    uint32_t other_times;  /* samples in a row that contradict `paces` */
    int64_t other_since_ns;
    int64_t fast_for_ns; /* time that samples must look fast before `paces` ends; 0: it never began */
    bool paces;          /* the network counts as slow, and packets are spaced out */
    bool replaced_bbr;   /* the system's default is BBR, and this transport chose another algorithm */
} tcp_backlog;

/* Since when a peer has acknowledged nothing of the data under way to it. */
typedef struct tcp_silence {
    int64_t since_ns;
    uint64_t acked, received; /* bytes acknowledged and received in all, at the last check */
    uint32_t delivered;       /* packets in all that the peer is known to have, at the last check */
    bool was_checked;
} tcp_silence;

/* A sample of the kernel's view of the data under way. */
typedef struct tcp_seen {
    uint32_t unacked, probes; /* packets in flight; unanswered probes of a closed window */
    uint32_t unsent;          /* bytes that wait for room at the peer */
    uint64_t acked, received; /* bytes acknowledged and received in all */
    uint32_t delivered;       /* packets in all that the peer has, also those behind a lost one */
    int64_t last_ack_ms;      /* since the last acknowledgement, of data or not */
} tcp_seen;

typedef struct tcp_transport {
    trib_transport base; /* first */
    trib_transport_config config;
    trib_transport_counters stats;
    tcp_backlog backlog;
    uint32_t open_count; /* listeners and connections that the caller knows of */
    tcp_conn *lingering; /* connections that the caller knows no longer */
} tcp_transport;

typedef enum tcp_state {
    TCP_CONNECTING, /* the kernel has not reported the result yet */
    TCP_OPEN,       /* both directions carry messages */
    TCP_FLUSHING,   /* writes out the queue, drops what comes in */
    TCP_ENDING,     /* finish_post is deferred: it reports unsent messages, then `closed` */
    TCP_LINGERING,  /* `closed` was reported; reads until the peer ends too, for LINGER_NS at most */
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

    /* Sending. The kernel has head_sent bytes of the first message. */
    trib_send_queue sends;
    size_t head_sent;
    bool want_write;        /* the kernel's buffer is full */
    bool is_urgent;         /* the kernel knows the connection as urgent */
    bool is_paced;          /* the kernel spaces packets out */
    uint32_t carried;       /* bytes of data sent, counted until the connection counts in tcp_backlog.carrying */
    uint32_t backlog_left;  /* bytes to be written before the next sample */
    uint32_t backlog_size;  /* bytes of the send buffer; 0: the kernel sizes it */
    uint32_t backlog_least; /* lower bound of that size, by the size of a packet */
    int write_errno; /* errno of the write that failed; 0: none. Bytes that the peer sent before are still read */

    /* Receiving. */
    tcp_phase phase;
    bool paused;         /* `header` answered TRIB_AGAIN */
    bool asking;         /* inside the `header` upcall */
    bool resume_asked;   /* recv_resume was called inside that upcall */
    bool peer_ended;     /* the end of the stream was read */
    bool flushed;        /* everything was written and this direction is shut */
    bool connect_failed; /* inside `connect`: `connected` is still to be reported */
    trib_recv_target target;
    uint32_t payload_got;
    uint32_t last_payload_size;
    size_t begin, end; /* unread bytes are buffer[begin..end) */

    trib_status end_status;
    char reason[TRIB_TCP_REASON_MAX];
    _Alignas(16) unsigned char header[TRIB_HEADER_SIZE];
    unsigned char buffer[TRIB_TCP_BUFFER_SIZE];
};

/* tcp_address.c */
TRIB_CHECKED trib_status trib_tcp_address_parse(const trib_address *address, struct sockaddr_storage *out,
                                                socklen_t *size_out);
void trib_tcp_address_format(const struct sockaddr_storage *from, trib_address *out);

/* tcp_conn.c. The first two own fd from the call on, and close it if they fail. */
tcp_conn *trib_tcp_conn_create(tcp_transport *transport, int fd, const trib_address *remote, tcp_state state);
TRIB_CHECKED trib_status trib_tcp_connect(trib_transport *transport, const trib_address *to, void *user,
                                          trib_conn **conn_out);
void trib_tcp_send(trib_conn *base, trib_send *send);
void trib_tcp_recv_resume(trib_conn *base);
void trib_tcp_conn_close(trib_conn *base, bool flush);
void trib_tcp_linger_end(tcp_conn *conn);
/* Watches the socket for the events that the state needs. */
void trib_tcp_conn_watch(tcp_conn *conn);
/* Ends the connection; the reason is formatted like printf. Does nothing if it is ending already. */
void trib_tcp_conn_end(tcp_conn *conn, trib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends it with an error of the system; `what` begins the reason. */
void trib_tcp_conn_end_errno(tcp_conn *conn, const char *what, int error);

/* tcp_backlog.c */
/* reactors: number of this process's reactors that send over the same links. */
void trib_tcp_backlog_open(tcp_backlog *backlog, uint32_t reactors);
/* Prepares a socket that will connect or listen. */
void trib_tcp_backlog_prepare(tcp_transport *transport, int fd);
/* The connection has opened. */
void trib_tcp_backlog_begin(tcp_conn *conn);
/* Sets the size of the send buffer; called before a write. */
void trib_tcp_backlog_fit(tcp_conn *conn);
/* Counts bytes that the kernel has accepted, and takes a sample when one is due. */
void trib_tcp_backlog_add(tcp_conn *conn, size_t written);
/* Adds one sample of one connection to the means, and draws the conclusions. */
void trib_tcp_backlog_learn(tcp_backlog *backlog, int64_t now_ns, double delay_us, double bytes_per_us);
/* False if the smoothed round trip is unreliable: its deviation exceeds it, so one outlier dominates. */
bool trib_tcp_rtt_is_reliable(uint32_t rtt_us, uint32_t deviation_us);
/* Notes that every byte that came was read, and that it ended with a whole message. */
void trib_tcp_backlog_read_all(const tcp_conn *conn);
/* The connection is over. */
void trib_tcp_backlog_end(tcp_conn *conn);

/* tcp_silence.c */
/* Called once, for a new connection. */
void trib_tcp_silence_init(tcp_conn *conn);
/* Sets the kernel's limits; called when the connection begins to connect, and when it is open. */
void trib_tcp_silence_open(tcp_conn *conn);
/* The kernel has accepted data: starts the timer if it is not running. */
void trib_tcp_silence_written(tcp_conn *conn);
/* Adds a sample; returns how long the peer has been silent, in ns, or -1 if no acknowledgement is due. */
int64_t trib_tcp_silence_learn(tcp_silence *silence, int64_t now_ns, const tcp_seen *seen);
/* Returns the silence that ends a connection with that round trip. */
int64_t trib_tcp_silence_limit(int64_t silence_ns, bool patient, uint32_t rtt_us);

/* tcp_stream.c. These functions may end the connection and make upcalls: they are called from the loop only. */
void trib_tcp_stream_write(tcp_conn *conn);
void trib_tcp_stream_read(tcp_conn *conn);
void trib_tcp_stream_consume(tcp_conn *conn);
/* A write has failed. The peer's last messages may still be in the socket, and they explain more than EPIPE: the
 * socket is read until it is empty or has ended, and then the connection ends. */
void trib_tcp_stream_drain_and_end(tcp_conn *conn);
/* Reads and drops arriving bytes; true if the peer has ended its direction or the socket failed. */
bool trib_tcp_stream_discard(tcp_conn *conn);

#endif
