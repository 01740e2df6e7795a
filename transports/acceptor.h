/*
 * acceptor.h - a socket that listens: each connection that it accepts goes to its owner, a few in a turn.
 *
 * Invariants
 * - One that is closed inside `take` is over when that has returned, and not before.
 * - When the process lacks descriptors or memory it sleeps on a timer: the pending connection would otherwise make the
 *   loop spin. The log says so once a minute, and the reactor knows for how long it has been so.
 */
#ifndef TRIB_TRANSPORTS_ACCEPTOR_H
#define TRIB_TRANSPORTS_ACCEPTOR_H

#include <errno.h>
#include <sys/socket.h>

#include "engine/base/counter.h"
#include "engine/reactor/reactor.h"

typedef struct trib_acceptor trib_acceptor;

/* The owner zeroes it and fills in the first four. */
struct trib_acceptor {
    trib_reactor *reactor;
    trib_counter *system_calls;
    /* Takes the descriptor over. False: there was no memory, and it has been closed. */
    bool (*take)(trib_acceptor *acceptor, int fd, const struct sockaddr_storage *from);
    void (*over)(trib_acceptor *acceptor); /* it was closed, and may be freed */
    trib_io io;
    trib_timer backoff;
    int64_t quiet_until_ns; /* a shortage was told of, and is not again before */
    bool accepting, closed;
};

/* Takes over a descriptor that listens. */
void trib_acceptor_open(trib_acceptor *acceptor, int fd);
/* After so long it is tried again to let one in. */
#define TRIB_ACCEPTOR_BACKOFF_NS (100 * INT64_C(1000000))
/* For who cannot make use of one that was accepted, for want of what errno's number says. */
void trib_acceptor_note_shortage(trib_acceptor *acceptor, int error);

/* Whether the number says that this process, or its machine, has too little of something. */
static inline bool trib_acceptor_is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Once; `over` follows, from inside this call unless that is inside `take`. */
void trib_acceptor_close(trib_acceptor *acceptor);

#endif
