/*
 * acceptor.h - a listening socket: each connection that it accepts goes to its owner, a few in a turn.
 *
 * Invariants
 * - An acceptor that is closed inside `accepted` calls `closed` after that has returned; otherwise it does so inside
 *   trib_socket_listener_close.
 * - When the process lacks descriptors or memory the acceptor waits on a timer: the pending connection would otherwise
 *   make the loop spin. The log says so once a minute, and the reactor knows since when.
 */
#ifndef TRIB_TRANSPORTS_ACCEPTOR_H
#define TRIB_TRANSPORTS_ACCEPTOR_H

#include <errno.h>
#include <sys/socket.h>

#include "transports/transport.h"

/* The time from a failure to accept to the next attempt. */
#define TRIB_ACCEPTOR_BACKOFF_NS (100 * INT64_C(1000000))

typedef struct trib_acceptor trib_acceptor;

/* Called with each new descriptor, which the owner has from here on. False: there was no memory, and the descriptor has
 * been closed. */
typedef bool (*trib_accepted_cb)(trib_acceptor *acceptor, int fd, const struct sockaddr_storage *from);

/* The owner zeroes it and fills in the first four fields. */
struct trib_acceptor {
    trib_reactor *reactor;
    trib_counter *system_calls; /* counter of the transport */
    trib_accepted_cb accepted;
    void (*closed)(trib_acceptor *acceptor); /* the last call, in which the acceptor may be freed */
    trib_io io;
    trib_timer backoff;
    int64_t quiet_until_ns;       /* no shortage is logged before this time */
    bool is_accepting, is_closed; /* is_accepting: inside the loop that calls `accepted` */
};

/* For an owner that cannot make use of an accepted connection: logs the shortage that errno's number names. */
void trib_acceptor_note_shortage(trib_acceptor *acceptor, int error);

/* True if errno's number says that this process or its machine has run out of something. */
static inline bool trib_acceptor_is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* A transport's listener that is one such socket. The transport allocates it, alone or as the first member of its own
 * listener, with calloc; it is freed when the acceptor has closed. */
typedef struct trib_socket_listener {
    trib_listener base; /* first */
    trib_acceptor acceptor;
    uint32_t *open_count; /* the transport's listeners and connections that the user knows of; this one counts */
} trib_socket_listener;

/* Fills it in and starts to accept on fd, which it owns from here on. */
void trib_socket_listener_open(trib_socket_listener *listener, trib_transport *transport, void *user, int fd,
                               trib_counter *system_calls, uint32_t *open_count, trib_accepted_cb accepted);
/* The transport's `listener_close`. */
void trib_socket_listener_close(trib_listener *base);
/* The listener that the acceptor belongs to. */
trib_socket_listener *trib_socket_listener_of(trib_acceptor *acceptor);

#endif
