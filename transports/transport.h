/*
 * transport.h - the contract of every transport: messages between two reactors, in order, whole, or an error.
 *
 * A message is a header of TRIB_HEADER_SIZE bytes, opaque to the transport, and a payload of 0..TRIB_PAYLOAD_MAX
 * bytes. One trib_transport belongs to one reactor; every downcall and upcall is on that reactor's thread.
 *
 * Downcalls never block and never call back before they return. Upcalls may make downcalls, conn_close included.
 *
 * A connection: connect -> `connected` (once, with success or the reason why not; after a failure nothing follows but
 * `closed`), or `accepted`. Then any number of header/received upcalls and `sent` upcalls. It ends with exactly one
 * `closed`, whoever ended it; the connection is freed when that upcall returns. Before `closed`, every send that was
 * taken and not yet reported gets its `sent` with an error, so that buffers always come back. After conn_close no
 * `connected`, `header` or `received` follows, only `sent` and `closed`. The status of `closed` is TRIB_OK if
 * conn_close ended it (unsent messages: TRIB_CLOSED), TRIB_PEER_LOST if the peer or the network did, or what `header`
 * answered.
 *
 * send       takes it always: it is borrowed, header and payload, until `sent`, which follows exactly once, in order.
 *            Bounding what is queued is the caller's business (credit). Sends of one turn may travel in one system call.
 * header     a whole header has arrived. The receiver checks it and answers how long the payload is and where it shall
 *            land:
 *            TRIB_OK     target filled (payload_size 0: no buffer is needed); `received` follows when it is there
 *            TRIB_AGAIN  no room now: the transport reads no more from this connection until recv_resume, and
 *                        then asks again with the same header
 *            error       protocol violation: the transport closes the connection, `closed` carries the status
 *            While payloads are on their way to where they shall land, a transport may ask about messages that follow,
 *            until TRIB_AHEAD_MAX have been asked about and not received; `received` comes in the same order. After
 *            TRIB_AGAIN those asked about before are still received.
 *            A transport with TRIB_TRANSPORT_ZERO_COPY may ignore target->buffer and present the payload where it already
 *            is.
 * received   header and payload are there. payload is target->buffer, or memory of the transport or the sender that is
 *            valid until the upcall returns (ZERO_COPY), or where target->in_place allowed that the sender's, to be read
 *            under a lease.
 */
#ifndef TRIB_TRANSPORTS_TRANSPORT_H
#define TRIB_TRANSPORTS_TRANSPORT_H

#include "api/tributary.h"
#include "engine/base/counter.h"
#include "engine/base/lease.h"
#include "engine/reactor/reactor.h"

#define TRIB_HEADER_SIZE 96u
#define TRIB_PAYLOAD_MAX (1u << 20)
#define TRIB_ADDRESS_MAX 160
#define TRIB_AHEAD_MAX 8u

/* Text: "127.0.0.1:4242", "[::1]:4242", or whatever the transport understands ("n0:3"). Numeric only, nothing is
 * resolved. */
typedef struct trib_address {
    char text[TRIB_ADDRESS_MAX];
} trib_address;

struct trib_arena;
typedef struct trib_transport trib_transport;
typedef struct trib_listener trib_listener;
typedef struct trib_conn trib_conn;

typedef struct trib_send {
    struct trib_send *next; /* the transport's while it is taken */
    unsigned char header[TRIB_HEADER_SIZE];
    const void *payload;
    uint32_t payload_size;
    void *user; /* the caller's */
} trib_send;

typedef struct trib_recv_target {
    void *buffer;
    uint32_t payload_size;
    /* Set by the receiver: it takes a lease of what is presented elsewhere. Who stands between it and the transport unsets it. */
    bool in_place;
} trib_recv_target;

typedef struct trib_transport_upcalls {
    void (*accepted)(trib_listener *listener, trib_conn *conn);
    void (*connected)(trib_conn *conn, trib_status status);
    trib_status (*header)(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target);
    void (*received)(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                     uint32_t payload_size);
    void (*sent)(trib_conn *conn, trib_send *send, trib_status status);
    void (*closed)(trib_conn *conn, trib_status status, const char *reason);
} trib_transport_upcalls;

#define TRIB_TRANSPORT_ZERO_COPY 1u /* received may present payloads in place */
#define TRIB_TRANSPORT_QUEUES                                                                                          \
    2u /* much of what a connection has sent may wait out of reach: what is urgent wants another */
#define TRIB_TRANSPORT_FAILOVER 4u /* an address may be several, with commas between (failover.h) */
#define TRIB_TRANSPORT_SUBFLOWS 8u /* ... and connections by different ones of them are worth having side by side */
#define TRIB_TRANSPORT_MAPS 16u /* presents payloads of processes of this machine in place if their arena is shared */

typedef struct trib_transport_stats {
    uint64_t system_calls;
    uint64_t messages_sent, messages_received;
    uint64_t bytes_sent, bytes_received;
    uint64_t bytes_copied; /* of payloads, in this process, on their way in or out */
} trib_transport_stats;

/* The same as an instance keeps them: written by its reactor, read by any thread through `stats`. */
typedef struct trib_transport_counters {
    trib_counter system_calls;
    trib_counter messages_sent, messages_received;
    trib_counter bytes_sent, bytes_received;
    trib_counter bytes_copied;
} trib_transport_counters;

static inline void trib_transport_counters_read(const trib_transport_counters *counters,
                                                trib_transport_stats *stats_out)
{
    *stats_out = (trib_transport_stats){
        .system_calls = trib_counter_get(&counters->system_calls),
        .messages_sent = trib_counter_get(&counters->messages_sent),
        .messages_received = trib_counter_get(&counters->messages_received),
        .bytes_sent = trib_counter_get(&counters->bytes_sent),
        .bytes_received = trib_counter_get(&counters->bytes_received),
        .bytes_copied = trib_counter_get(&counters->bytes_copied),
    };
}

/* Settings a transport may use; those it has no use for it ignores. */
typedef struct trib_transport_config {
    /* Most bytes of a connection that are handed to the kernel and not yet on the wire; 0 = default. */
    uint32_t send_buffer_bytes;
    int64_t
        silence_timeout_ns; /* none of the data under way acknowledged for so long ends the connection; 0 = the system's */
    void *context;          /* what the transport's `context_open` made, NULL if nobody called it */
    /* How long the payload of a message with that header is, more than TRIB_PAYLOAD_MAX if the header is none. For who must
     * take a message without its receiver's having been asked; NULL: nobody must. */
    uint32_t (*payload_size)(const unsigned char header[TRIB_HEADER_SIZE]);
    /* What shows that who takes a connection over has the job's secret (failover.h): a digest of the data under the key, of
     * 16 to 64 bytes. NULL: who knows the connection's id may. */
    void (*seal)(const void *key, const void *data, size_t size, unsigned char *digest_out, size_t digest_size);
    const void *seal_key;
    uint32_t reactors; /* of the process, whose transports share its links; 0: this is the only one */
    uint32_t
        peers; /* connections of peers that may come at once; of half-open ones a process keeps few (half_open.h) */
    bool has_failover; /* there are other ways: a connection whose port goes down ends at once */
    bool copies_only;  /* shared memory: does not read the peers' own memory, as if the kernel forbade it */
} trib_transport_config;

typedef struct trib_transport_ops {
    const char *name;
    uint32_t flags; /* TRIB_TRANSPORT_* */
    /* Creates this reactor's instance; *transport_out is written on success. */
    trib_status (*open)(trib_reactor *reactor, const trib_transport_config *config,
                        const trib_transport_upcalls *upcalls, trib_transport **transport_out);
    /* Frees it. Every connection and listener must have been closed (asserted). */
    void (*close)(trib_transport *transport);
    /* Listens; port 0 picks one; *bound_out is the address to connect to. */
    trib_status (*listen)(trib_transport *transport, const trib_address *at, void *user, trib_listener **listener_out,
                          trib_address *bound_out, trib_error *error);
    void (*listener_close)(trib_listener *listener); /* at once, no upcall follows */
    /* TRIB_SYSTEM, errno says why: there is no socket to be had, say. What the peer or the way to it lacks is told by upcalls. */
    trib_status (*connect)(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out);
    void (*send)(trib_conn *conn, trib_send *send);
    void (*recv_resume)(trib_conn *conn);
    /* NULL: never. Inside `received`, of the payload that was presented in the sender's memory; NULL if it was not. keeps: beyond
     * the upcall, for which NULL may be the answer too; it is sent when the lease ends, and those behind it after it. One at
     * a time for a payload. */
    trib_lease *(*lease)(trib_conn *conn, bool keeps);
    /* Begins to end it: flush false drops what is queued, true writes it out first (the caller sets the deadline and
     * calls again with false when it has passed). Before `connected` there is nothing to write out: flush is as
     * false. Idempotent. `closed` follows, never from inside this call. */
    void (*conn_close)(trib_conn *conn, bool flush);
    /* NULL: always. Whether nothing is under way of which the caller has not heard; to be waited for before `close`. */
    bool (*is_idle)(const trib_transport *transport);
    /* NULL: never. Whether devices alone would move payloads of `least` bytes or more that lie, or shall land, in that
     * memory, whatever becomes of the connection: no processor need be able to reach it. Holds while it is registered. */
    bool (*moves_alone)(const trib_conn *conn, const void *memory, size_t size, uint32_t least);
    void (*stats)(const trib_transport *transport, trib_transport_stats *stats_out); /* from any thread */
    /* NULL where there is nothing of the kind. What all instances of an engine have in common, such as memory that
     * devices know: made before the first of them from the engine's arena, given back after the last. Any thread. */
    trib_status (*context_open)(struct trib_arena *arena, void **context_out, trib_error *error);
    void (*context_close)(void *context);
    /* NULL: never. Whether there are devices that learn of memory that the arena adopts. */
    bool (*notifies_devices)(const void *context);
} trib_transport_ops;

/* The part of the objects that both sides see; each transport embeds it as the first member of its own. */
struct trib_transport {
    const trib_transport_ops *ops;
    trib_reactor *reactor;
    const trib_transport_upcalls *upcalls;
    void *user;   /* the engine's */
    bool is_slow; /* the network behind it has been found to be: what it is given waits there for long, out of order */
};

struct trib_listener {
    trib_transport *transport;
    void *user;
};

struct trib_conn {
    trib_transport *transport;
    void *user;          /* given to connect, or set by `accepted` */
    trib_address remote; /* for logs */
    /* Set by the caller: points to whether it has more to do when `sent` comes. If not, a transport may spare itself a
     * wake-up and tell it some milliseconds late. NULL: it has. */
    const bool *awaits_sent;
    /* Set by the transport, now and then while its network is slow: for how long, in all, it had taken what the peer's
     * machine had not acknowledged. 0: it does not count that. */
    uint64_t busy_ns;
    bool urgent; /* set by the caller, before it sends: little goes over it, and that shall not wait */
    bool keeps;  /* set by the caller: who came has shown who it is; if the connection can outlive its way, it shall */
    bool
        refused; /* set by the transport before `connected` says that there is none: the address answers, nobody listens */
};

/* As the transport's `lease`; NULL also without a connection, or from a transport that has none. */
static inline trib_lease *trib_conn_lease(trib_conn *conn, bool keeps)
{
    return conn != NULL && conn->transport->ops->lease != NULL ? conn->transport->ops->lease(conn, keeps) : NULL;
}

/* A trib_lender's lease, whose source is a connection. */
static inline trib_lease *trib_conn_lend(void *conn, bool keeps)
{
    return trib_conn_lease(conn, keeps);
}

/* For what takes leases and knows nothing of connections. */
static inline trib_lender trib_conn_lender(trib_conn *conn)
{
    return (trib_lender){.lease = trib_conn_lend, .source = conn};
}

#endif
