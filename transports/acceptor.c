/* acceptor.c - see acceptor.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "transports/acceptor.h"

#include <errno.h>

#include "engine/base/assert.h"
#include "engine/base/fork.h"
#include "engine/base/log.h"

#define ACCEPTS_PER_TURN 16u
#define SAY_NS (60 * INT64_C(1000000000))

static void backoff_over(trib_reactor *reactor, trib_timer *timer)
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
        acceptor->quiet_until_ns = now_ns + SAY_NS;
        trib_log(acceptor->reactor->logger, TRIB_LOG_ERROR, "cannot accept connections for now: %s",
                 trib_log_reason(error, why));
    }
}

static void back_off(trib_acceptor *self, int error)
{
    trib_acceptor_note_shortage(self, error);
    trib_io_watch(self->reactor, &self->io, 0);
    trib_timer_arm(self->reactor, &self->backoff, trib_now(self->reactor) + TRIB_ACCEPTOR_BACKOFF_NS);
}

/* True if there may be more to accept. */
static bool accept_one(trib_acceptor *self)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    trib_counter_add(self->system_calls, 1);
    const int fd = accept4(self->io.fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        /* Errors of one connection that ended before it was accepted are passed over; what is left is shortage of
         * something. */
        if (trib_acceptor_is_shortage(errno)) {
            back_off(self, errno);
            return false;
        }
        return errno != EAGAIN;
    }
    if (!self->take(self, fd, &from)) {
        back_off(self, ENOMEM);
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
    self->accepting = true;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN && !self->closed && accept_one(self); i++) {}
    self->accepting = false;
    if (self->closed) {
        self->over(self);
    }
}

void trib_acceptor_open(trib_acceptor *acceptor, int fd)
{
    trib_fork_own(fd);
    acceptor->io = (trib_io){.ready = accept_ready, .user = acceptor, .fd = fd};
    acceptor->backoff.fired = backoff_over;
    acceptor->backoff.user = acceptor;
    trib_io_watch(acceptor->reactor, &acceptor->io, TRIB_IO_READ);
}

void trib_acceptor_close(trib_acceptor *acceptor)
{
    trib_assert(!acceptor->closed);
    acceptor->closed = true;
    trib_io_watch(acceptor->reactor, &acceptor->io, 0);
    trib_timer_stop(acceptor->reactor, &acceptor->backoff);
    trib_fork_close_socket(acceptor->io.fd);
    if (!acceptor->accepting) {
        acceptor->over(acceptor);
    }
}
