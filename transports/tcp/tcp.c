/* tcp.c - an instance of the TCP transport and its listeners. */
#include "transports/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "transports/acceptor.h"
#include "transports/tcp/tcp_internal.h"
#include "transports/transport_defaults.h"

#define SEND_BUFFER_DEFAULT (256u * 1024u)
#define SEND_BUFFER_MIN (16u * 1024u)
#define SEND_BUFFER_MAX (64u * 1024u * 1024u)

static trib_status tcp_open(trib_reactor *reactor, const trib_transport_config *config,
                            const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    tcp_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base.ops = &trib_tcp_ops;
    self->base.reactor = reactor;
    self->base.upcalls = upcalls;
    self->config = *config;
    self->config.silence_timeout_ns = trib_transport_break_timeout(config);
    uint32_t *bytes = &self->config.send_buffer_bytes;
    if (*bytes == 0) {
        *bytes = SEND_BUFFER_DEFAULT;
    }
    *bytes = *bytes < SEND_BUFFER_MIN ? SEND_BUFFER_MIN : *bytes > SEND_BUFFER_MAX ? SEND_BUFFER_MAX : *bytes;
    trib_tcp_backlog_open(&self->backlog, config->reactors);
    *transport_out = &self->base;
    return TRIB_OK;
}

static void tcp_close(trib_transport *transport)
{
    tcp_transport *self = (tcp_transport *)transport;
    trib_assert(self->open_count == 0);
    while (self->lingering != NULL) {
        /* The kernel would answer unread data with a reset, which can overtake what was flushed. */
        trib_tcp_stream_discard(self->lingering);
        trib_tcp_linger_end(self->lingering);
    }
    free(self);
}

static void tcp_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    trib_transport_counters_read(&((const tcp_transport *)transport)->stats, stats_out);
}

/* ---- Listeners ---- */

static bool accept_socket(trib_acceptor *acceptor, int fd, const struct sockaddr_storage *from)
{
    trib_socket_listener *listener = trib_socket_listener_of(acceptor);
    tcp_transport *transport = (tcp_transport *)listener->base.transport;
    trib_address remote;
    trib_tcp_address_format(from, &remote);
    tcp_conn *conn = trib_tcp_conn_create(transport, fd, &remote, TCP_OPEN);
    if (conn == NULL) {
        return false;
    }
    transport->base.upcalls->accepted(&listener->base, &conn->base);
    trib_tcp_conn_watch(conn);
    return true;
}

static int listen_socket(tcp_transport *self, const trib_address *at, trib_address *bound_out, trib_error *error)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    if (trib_tcp_address_parse(at, &address, &size) != TRIB_OK) {
        trib_error_set(error, TRIB_INVALID, "\"%.*s\" is not a numeric address with a port (127.0.0.1:4242)",
                       TRIB_ADDRESS_MAX, at->text);
        return -1;
    }
    trib_counter_add(&self->stats.system_calls, 5);
    int fd = trib_descriptor_keep(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int on = 1;
    /* A restarted server must be able to bind while connections of its predecessor are in TIME_WAIT. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (const struct sockaddr *)&address, size) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        char why[TRIB_REASON_MAX];
        trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s: %s", at->text, trib_log_reason(errno, why));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    trib_tcp_address_format(&address, bound_out);
    trib_tcp_backlog_prepare(self, fd);
    return fd;
}

static trib_status tcp_listen(trib_transport *transport, const trib_address *at, void *user,
                              trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    tcp_transport *self = (tcp_transport *)transport;
    trib_error local = {.status = TRIB_OK};
    int fd = listen_socket(self, at, bound_out, &local);
    if (fd < 0) {
        return trib_error_set(error, local.status, "%s", local.text);
    }
    trib_socket_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        close(fd);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener at %s", at->text);
    }
    trib_socket_listener_open(listener, transport, user, fd, &self->stats.system_calls, &self->open_count,
                              accept_socket);
    *listener_out = &listener->base;
    return TRIB_OK;
}

const trib_transport_ops trib_tcp_ops = {
    .name = "tcp",
    .flags = TRIB_TRANSPORT_BREAKS | TRIB_TRANSPORT_SUBFLOWS | TRIB_TRANSPORT_QUEUES,
    .open = tcp_open,
    .close = tcp_close,
    .listen = tcp_listen,
    .listener_close = trib_socket_listener_close,
    .connect = trib_tcp_connect,
    .send = trib_tcp_send,
    .recv_resume = trib_tcp_recv_resume,
    .lease = trib_transport_never_leases,
    .conn_close = trib_tcp_conn_close,
    .offloads = trib_transport_never_offloads,
    .is_idle = trib_transport_is_always_idle,
    .stats = tcp_stats,
    .context_open = trib_transport_no_context_open,
    .context_close = trib_transport_no_context_close,
    .notifies_devices = trib_transport_notifies_no_devices,
};
