/* acceptor.c - see acceptor.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "transports/acceptor.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "engine/base/log.h"

#define ACCEPTS_PER_TURN 16u
#define LOG_EVERY_NS (60 * INT64_C(1000000000))

static void end_backoff(trib_reactor *reactor, trib_timer *timer)
{
    trib_acceptor *self = timer->user;
    trib_io_watch(reactor, &self->io, TRIB_IO_READ);
}

void trib_acceptor_note_shortage(trib_acceptor *acceptor, int error)
{
    const int64_t now_ns = trib_now(acceptor->reactor);
    trib_reactor_note_shortage(acceptor->reactor, error);
    if (now_ns >= acceptor->quiet_until_ns) {
        char why[TRIB_REASON_MAX];
        acceptor->quiet_until_ns = now_ns + LOG_EVERY_NS;
        trib_log(acceptor->reactor->logger, TRIB_LOG_ERROR, "cannot accept connections for now: %s",
                 trib_log_reason(error, why));
    }
}

static void begin_backoff(trib_acceptor *self, int error)
{
    trib_acceptor_note_shortage(self, error);
    trib_io_watch(self->reactor, &self->io, 0);
    trib_timer_arm(self->reactor, &self->backoff, trib_now(self->reactor) + TRIB_ACCEPTOR_BACKOFF_NS);
}

/* Returns true if there may be more to accept. */
static bool accept_one(trib_acceptor *self)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    trib_counter_add(self->system_calls, 1);
    const int fd =
        trib_descriptor_keep(accept4(self->io.fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd < 0) {
        /* A connection may have ended before it was accepted; only a shortage makes it useless to go on. */
        if (trib_acceptor_is_shortage(errno)) {
            begin_backoff(self, errno);
            return false;
        }
        return errno != EAGAIN;
    }
    if (!self->accepted(self, fd, &from)) {
        begin_backoff(self, ENOMEM);
        return false;
    }
    trib_reactor_end_shortage(self->reactor);
    return true;
}

static void accept_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)events;
    trib_acceptor *self = io->user;
    self->is_accepting = true;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN && !self->is_closed && accept_one(self); i++) {}
    self->is_accepting = false;
    if (self->is_closed) {
        self->closed(self);
    }
}

/* Starts to accept on a socket that listens; the acceptor owns the descriptor. */
static void open_acceptor(trib_acceptor *acceptor, int fd)
{
    trib_fork_own(fd);
    acceptor->io = (trib_io){.ready = accept_ready, .user = acceptor, .fd = fd};
    acceptor->backoff.fired = end_backoff;
    acceptor->backoff.user = acceptor;
    trib_io_watch(acceptor->reactor, &acceptor->io, TRIB_IO_READ);
}

/* Closes the acceptor, once. */
static void close_acceptor(trib_acceptor *acceptor)
{
    trib_assert(!acceptor->is_closed);
    acceptor->is_closed = true;
    trib_io_watch(acceptor->reactor, &acceptor->io, 0);
    trib_timer_stop(acceptor->reactor, &acceptor->backoff);
    trib_fork_close_socket(acceptor->io.fd);
    if (!acceptor->is_accepting) {
        acceptor->closed(acceptor);
    }
}

/* ---- Listeners ---- */

trib_socket_listener *trib_socket_listener_of(trib_acceptor *acceptor)
{
    return trib_container_of(acceptor, trib_socket_listener, acceptor);
}

static void free_listener(trib_acceptor *acceptor)
{
    trib_socket_listener *listener = trib_socket_listener_of(acceptor);
    trib_assert(*listener->open_count > 0);
    --*listener->open_count;
    free(listener);
}

void trib_socket_listener_open(trib_socket_listener *listener, trib_transport *transport, void *user, int fd,
                               trib_counter *system_calls, uint32_t *open_count, trib_accepted_cb accepted)
{
    listener->base = (trib_listener){.transport = transport, .user = user};
    listener->acceptor.reactor = transport->reactor;
    listener->acceptor.system_calls = system_calls;
    listener->acceptor.accepted = accepted;
    listener->acceptor.closed = free_listener;
    listener->open_count = open_count;
    ++*open_count;
    open_acceptor(&listener->acceptor, fd);
}

void trib_socket_listener_close(trib_listener *base)
{
    close_acceptor(&((trib_socket_listener *)base)->acceptor);
}
