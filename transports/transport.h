/*
 * transport.h - the contract of every transport: whole messages between two reactors, in order, or an error.
 *
 * A message is a header of TRIB_HEADER_SIZE bytes, which the transport does not interpret, and a payload of 0 to
 * TRIB_PAYLOAD_MAX bytes. A trib_transport belongs to one reactor. Every downcall and every upcall is made on that
 * reactor's thread, except where a function says "any thread".
 *
 * Rules for all calls
 * - A downcall never blocks, and makes no upcall before it returns.
 * - An upcall may make any downcall, conn_close included.
 * - Every entry of the table is set. An entry that a transport has no use for is a function of transport_defaults.h.
 *
 * Life of a connection
 * - It begins with `connect`, which `connected` answers once, or with `accepted`. After a `connected` that reports a
 *   failure only `closed` follows.
 * - It then has any number of `header`, `received` and `sent` upcalls.
 * - It ends with exactly one `closed`, whichever side ended it. The transport frees it when that upcall has returned.
 * - Before `closed`, each send that was accepted and not reported yet gets its `sent` with an error, so the caller has
 *   all its buffers back.
 * - After conn_close there is no `connected`, `header` or `received` any more, only `sent` and `closed`.
 * - The status of `closed` is TRIB_OK if conn_close ended the connection (its unsent messages get TRIB_CLOSED),
 *   TRIB_PEER_LOST if the peer or the network did, or the error that `header` answered.
 */
#ifndef TRIB_TRANSPORTS_TRANSPORT_H
#define TRIB_TRANSPORTS_TRANSPORT_H

#include "engine/base/limits.h"
#include "api/tributary.h"
#include "engine/base/counter.h"
#include "engine/base/lease.h"
#include "engine/reactor/reactor.h"

/* An address as text: "127.0.0.1:4242", "[::1]:4242", or another form that the transport defines ("n0:3"). Hosts and
 * ports are numbers; no transport looks up a name. */
typedef struct trib_address {
    char text[TRIB_ADDRESS_MAX];
} trib_address;

struct trib_arena;
typedef struct trib_transport trib_transport;
typedef struct trib_listener trib_listener;
typedef struct trib_conn trib_conn;

/* A message to be sent. The caller owns the object; the transport borrows it from `send` until `sent`. */
typedef struct trib_send {
    struct trib_send *next; /* written by the transport, between `send` and `sent` */
    unsigned char header[TRIB_HEADER_SIZE];
    const void *payload;   /* NULL if payload_size is 0 */
    uint32_t payload_size; /* bytes, 0 to TRIB_PAYLOAD_MAX */
    void *user;            /* the caller's */
} trib_send;

/* The place where a receiver wants a payload. */
typedef struct trib_recv_target {
    void *buffer;          /* payload_size bytes; NULL only if that is 0 */
    uint32_t payload_size; /* bytes, 0 to TRIB_PAYLOAD_MAX */
    /* Set by a receiver that will take a lease of a payload in the sender's memory. A transport that wraps another one
     * clears it if it does not pass leases on. */
    bool in_place;
} trib_recv_target;

/* The upcalls, by which a transport reports to its user. */
typedef struct trib_transport_upcalls {
    /* A peer has connected to the listener. The user may set conn->user here. */
    void (*accepted)(trib_listener *listener, trib_conn *conn);
    /* The answer to `connect`: TRIB_OK, or the reason why there is no connection. */
    void (*connected)(trib_conn *conn, trib_status status);
    /*
     * A whole header has arrived. The receiver checks it and answers
     *   TRIB_OK     target is filled in; `received` follows when the payload is there
     *   TRIB_AGAIN  no room now: the transport reads no more of this connection until recv_resume, and then calls again
     *               with the same header
     *   an error    the message is invalid: the transport closes the connection, and `closed` has this status
     *
     * A transport may call it for messages that follow while earlier payloads are on their way, for at most
     * TRIB_AHEAD_MAX messages that were not received yet; `received` comes in the same order. Messages that the
     * receiver had accepted before it answered TRIB_AGAIN are still received.
     */
    trib_status (*header)(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target);
    /* Header and payload have arrived. The payload is in target->buffer; or, with TRIB_TRANSPORT_ZERO_COPY, in
     * memory that is valid until this upcall returns; or, where target->in_place allowed it, in the sender's memory,
     * to be read under a lease. */
    void (*received)(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                     uint32_t payload_size);
    /* The send is the caller's again. This upcall follows each `send` exactly once, in the order of the sends. */
    void (*sent)(trib_conn *conn, trib_send *send, trib_status status);
    /* The connection has ended. The reason is one sentence for the log, valid during the upcall. */
    void (*closed)(trib_conn *conn, trib_status status, const char *reason);
} trib_transport_upcalls;

/* Flags of a transport. */
#define TRIB_TRANSPORT_ZERO_COPY 1u /* `received` may present a payload elsewhere than in target->buffer */
#define TRIB_TRANSPORT_QUEUES 2u /* sent data may queue where priorities do not reach: urgent data wants its own conn */
#define TRIB_TRANSPORT_BREAKS 4u /* a connection may end while both processes live: it can be made again */
#define TRIB_TRANSPORT_SUBFLOWS 8u /* connections by different addresses of such a list add up their rates */
#define TRIB_TRANSPORT_MAPS 16u    /* presents payloads of this machine's processes in place if their arena is shared */

typedef struct trib_transport_stats {
    uint64_t system_calls;
    uint64_t messages_sent, messages_received;
    uint64_t bytes_sent, bytes_received; /* headers included */
    uint64_t bytes_copied;               /* bytes of payloads that this process copied on their way out or in */
} trib_transport_stats;

/* The same numbers inside an instance: its reactor writes them, any thread reads them through `stats`. */
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

/* Settings of an instance. A transport ignores those that it has no use for. */
typedef struct trib_transport_config {
    /* Bytes of a connection that the kernel may hold unsent, at most. 0: the transport's default. */
    uint32_t send_buffer_bytes;
    /* A connection ends if none of its data under way is acknowledged for this long. 0: the system's default. */
    int64_t silence_timeout_ns;
    /* Takes the place of silence_timeout_ns where a connection can be made again (TRIB_TRANSPORT_BREAKS). 0:
     * silence_timeout_ns counts. */
    int64_t break_timeout_ns;
    void *context; /* the result of `context_open`; NULL if nobody called it */
    /* Returns the payload's size in bytes for that header, more than TRIB_PAYLOAD_MAX if the header is invalid. It
     * serves a transport that must receive a message without calling `header`. NULL: none does. */
    uint32_t (*payload_size)(const unsigned char header[TRIB_HEADER_SIZE]);
    uint32_t reactors; /* number of this process's reactors, whose transports share its network links; 0 means 1 */
    uint32_t peers;    /* peers that may connect at the same moment; bounds half-open connections (half_open.h) */
    bool copies_only;  /* shared memory: never reads the peers' own memory, as if the kernel forbade it */
} trib_transport_config;

/* Returns the limit of silence for a connection that can be made again: the time for which none of its data may be
 * acknowledged; 0: the system's default. */
static inline int64_t trib_transport_break_timeout(const trib_transport_config *config)
{
    return config->break_timeout_ns > 0 ? config->break_timeout_ns : config->silence_timeout_ns;
}

/* The downcalls. Every entry is set (transport_defaults.h has functions for those that a transport does not need);
 * the registry checks it. A transport that puts its own connections in front of another's may give these connections
 * a second table, in which only the entries that take a trib_conn are set. */
typedef struct trib_transport_ops {
    const char *name;
    uint32_t flags; /* TRIB_TRANSPORT_* */

    /* ---- The part that the instances of an engine share. Any thread. ---- */

    /* Makes the shared part, such as memory that devices know, from the engine's arena, before the first instance is
     * opened. *context_out is NULL if there is nothing to share. */
    trib_status (*context_open)(struct trib_arena *arena, void **context_out, trib_error *error);
    /* Frees the shared part after the last instance was closed. */
    void (*context_close)(void *context);
    /* True if there are devices that learn of memory that the arena adopts. */
    bool (*notifies_devices)(const void *context);

    /* ---- Instances ---- */

    /* Makes this reactor's instance; *transport_out is written on success. */
    trib_status (*open)(trib_reactor *reactor, const trib_transport_config *config,
                        const trib_transport_upcalls *upcalls, trib_transport **transport_out);
    /* True if nothing is under way that the user has not heard of. The user waits for it before `close`. */
    bool (*is_idle)(const trib_transport *transport);
    /* Frees the instance. Every connection and listener must have been closed before (asserted). */
    void (*close)(trib_transport *transport);
    /* Reads the counters. Any thread. */
    void (*stats)(const trib_transport *transport, trib_transport_stats *stats_out);

    /* ---- Listeners ---- */

    /* Listens at the address; port 0 picks a free one. *bound_out is the address that peers connect to. */
    trib_status (*listen)(trib_transport *transport, const trib_address *at, void *user, trib_listener **listener_out,
                          trib_address *bound_out, trib_error *error);
    /* Ends it at once; no upcall follows. */
    void (*listener_close)(trib_listener *listener);

    /* ---- Connections ---- */

    /* Begins to connect. TRIB_SYSTEM, with errno, if this process lacks something (a file descriptor, for example). A
     * failure of the peer or of the network is reported by `connected` and `closed`. */
    trib_status (*connect)(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out);
    /* Accepts the send in every state of the connection and borrows it, header and payload, until `sent`. The caller
     * bounds how much is queued (by credit). The sends of one turn may go out in one system call. */
    void (*send)(trib_conn *conn, trib_send *send);
    /* The receiver that answered TRIB_AGAIN has room again. */
    void (*recv_resume)(trib_conn *conn);
    /* Gives a lease of the payload that `received` presents in the sender's memory; NULL if it lies elsewhere. It
     * may be called only inside `received`, and a payload has at most one lease at a time. past_upcall: the holder
     * will keep the lease after the upcall; the transport may answer NULL to that at any time. A kept lease holds up
     * the sender's `sent` of this message and of those that follow. */
    trib_lease *(*lease)(trib_conn *conn, bool past_upcall);
    /* Begins to end the connection; `closed` follows later. flush: what is queued is written out first (the caller
     * sets a deadline of its own and calls again without flush when that has passed); otherwise it is dropped.
     * Before `connected` there is nothing to write out, so flush makes no difference. May be called again. */
    void (*conn_close)(trib_conn *conn, bool flush);
    /* True if devices alone would move every payload of `least` bytes or more from or to that memory, whatever
     * happens to the connection, so that no processor needs access to it. The answer holds while the memory stays
     * registered. */
    bool (*offloads)(const trib_conn *conn, const void *memory, size_t size, uint32_t least);
} trib_transport_ops;

/* The way that a connection's bytes take. It decides whether the user checks payloads itself (trib_config.checksum). */
typedef enum trib_conn_path {
    TRIB_PATH_MACHINE = 0, /* they stay in this machine's memory */
    TRIB_PATH_NETWORK = 1, /* through a network whose sums are weak: TCP's has 16 bits */
    TRIB_PATH_DEVICE = 2,  /* a device moves them and checks them on the way; processors may have no access to them */
} trib_conn_path;

/* The part of an object that both sides see. Each transport embeds it as the first member of its own. */
struct trib_transport {
    const trib_transport_ops *ops;
    trib_reactor *reactor;
    const trib_transport_upcalls *upcalls;
    void *user;   /* set and read by the user */
    bool is_slow; /* set by the transport when it measures that sent data waits long; read by the user */
};

struct trib_listener {
    trib_transport *transport;
    void *user; /* as given to `listen` */
};

/*
 * Fields beside the calls. A transport that wraps another one passes them on in both directions, or says why not.
 *
 *   field                unit, range        written by                       read by
 *   user                 -                  user: connect, or `accepted`     user
 *   remote               text               transport, before the upcall     user, for logs
 *   path                 enum               transport, before the upcall     user
 *   awaits_sent          NULL or a flag     user, before it sends            shm, tcp
 *   busy_ns              ns, grows          transport, while is_slow         user
 *   urgent               flag, stays set    user, before it sends            tcp
 *   proved               flag, stays set    user, after authentication       tcp, rdma
 *   patient              flag, stays set    user, after authentication       tcp
 *   refused              flag               transport, before `connected`    user
 */
struct trib_conn {
    trib_transport *transport;
    void *user;
    trib_address remote;
    trib_conn_path path;
    /* True there while the user has more to send as soon as `sent` comes. Where it is false the transport may save a
     * wake-up and report `sent` some milliseconds late. NULL counts as true. */
    const bool *awaits_sent;
    /* The time, in all, during which the peer's machine had not acknowledged all data of this connection. 0: not
     * measured. */
    uint64_t busy_ns;
    bool urgent; /* it carries little data, which must not wait behind that of others */
    bool proved; /* the peer has proved the token: the end of the connection may take its time */
    /* It may be silent for break_timeout_ns longer than others: in a narrow way a new one could come too late. */
    bool patient;
    bool refused; /* the address answered, and nobody listens there */
};

/* A transport that wraps another one tells it, before a send and before a close, what the user says of a connection.
 * It passes awaits_sent on by itself, as one that delays sends does not. */
static inline void trib_conn_pass_on(const trib_conn *conn, trib_conn *inner)
{
    inner->urgent = conn->urgent;
    inner->proved = conn->proved;
    inner->patient = conn->patient;
}

/* The transport's `lease`; NULL without a connection, for a caller that has none (a process's messages to itself). */
static inline trib_lease *trib_conn_lease(trib_conn *conn, bool past_upcall)
{
    return conn != NULL ? conn->transport->ops->lease(conn, past_upcall) : NULL;
}

/* A trib_lender's lease, whose source is a connection. */
static inline trib_lease *trib_conn_lend(void *conn, bool keeps)
{
    return trib_conn_lease(conn, keeps);
}

/* Makes a lender for code that takes leases and knows nothing of connections. */
static inline trib_lender trib_conn_lender(trib_conn *conn)
{
    return (trib_lender){.lease = trib_conn_lend, .source = conn};
}

#endif
