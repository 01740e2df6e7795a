/*
 * loopback.c - an instance of the loopback transport, its hub and its listeners; connections are in loopback_conn.c.
 *
 * Invariants
 * - The hub's mutex guards the list of listeners and the pairs that wait at each. It is held for a few instructions,
 *   and never during an upcall.
 * - A listener whose post is under way is freed by that post.
 */
#include "transports/testing/loopback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "transports/testing/loopback_internal.h"
#include "transports/transport_defaults.h"

#define SCHEME "loop:"

trib_loopback_hub *trib_loopback_hub_create(void)
{
    trib_loopback_hub *hub = calloc(1, sizeof *hub);
    if (hub != NULL && pthread_mutex_init(&hub->mutex, NULL) != 0) {
        free(hub);
        return NULL;
    }
    return hub;
}

void trib_loopback_hub_destroy(trib_loopback_hub *hub)
{
    if (hub != NULL) {
        trib_assert(hub->listeners == NULL);
        pthread_mutex_destroy(&hub->mutex);
        free(hub);
    }
}

trib_status trib_loopback_open(trib_loopback_hub *hub, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                               trib_transport **transport_out)
{
    loop_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base.ops = &trib_loopback_ops;
    self->base.reactor = reactor;
    self->base.upcalls = upcalls;
    self->hub = hub;
    *transport_out = &self->base;
    return TRIB_OK;
}

static void loop_close(trib_transport *transport)
{
    loop_transport *self = (loop_transport *)transport;
    trib_assert(self->open_count == 0);
    free(self);
}

static void loop_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    trib_transport_counters_read(&((const loop_transport *)transport)->stats, stats_out);
}

/* ---- Listeners ---- */

static loop_listener *find_listener(trib_loopback_hub *hub, const char *name)
{
    loop_listener *listener = hub->listeners;
    while (listener != NULL && strcmp(listener->address.text, name) != 0) {
        listener = listener->next;
    }
    return listener;
}

bool trib_loop_listener_offer(trib_loopback_hub *hub, const trib_address *to, loop_pair *pair)
{
    pthread_mutex_lock(&hub->mutex);
    loop_listener *listener = find_listener(hub, to->text);
    if (listener != NULL) {
        pair->next = NULL;
        if (listener->waiting_tail != NULL) {
            listener->waiting_tail->next = pair;
        } else {
            listener->waiting_head = pair;
        }
        listener->waiting_tail = pair;
        if (!listener->posted) {
            listener->posted = true;
            trib_reactor_post(listener->base.transport->reactor, &listener->post);
        }
    }
    pthread_mutex_unlock(&hub->mutex);
    return listener != NULL;
}

static loop_pair *take_waiting(trib_loopback_hub *hub, loop_listener *listener)
{
    pthread_mutex_lock(&hub->mutex);
    loop_pair *pair = listener->waiting_head;
    if (pair != NULL) {
        listener->waiting_head = pair->next;
        if (listener->waiting_head == NULL) {
            listener->waiting_tail = NULL;
        }
    } else {
        listener->posted = false;
    }
    pthread_mutex_unlock(&hub->mutex);
    return pair;
}

static void run_accept(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    loop_listener *listener = trib_container_of(post, loop_listener, post);
    listener->accepting = true;
    while (!listener->closed) {
        loop_transport *transport = (loop_transport *)listener->base.transport;
        loop_pair *pair = take_waiting(transport->hub, listener);
        if (pair == NULL) {
            break;
        }
        if (trib_loop_pair_accept(pair, transport)) {
            transport->base.upcalls->accepted(&listener->base, &pair->ends[1].base);
        }
    }
    listener->accepting = false;
    if (listener->closed) {
        free(listener);
    }
}

static void loop_listener_close(trib_listener *base)
{
    loop_listener *listener = (loop_listener *)base;
    loop_transport *transport = (loop_transport *)base->transport;
    trib_assert(!listener->closed);
    listener->closed = true;
    pthread_mutex_lock(&transport->hub->mutex);
    LL_DELETE(transport->hub->listeners, listener);
    loop_pair *waiting = listener->waiting_head;
    listener->waiting_head = listener->waiting_tail = NULL;
    bool posted = listener->posted;
    pthread_mutex_unlock(&transport->hub->mutex);
    while (waiting != NULL) {
        loop_pair *next = waiting->next;
        trib_loop_pair_refuse(waiting);
        waiting = next;
    }
    transport->open_count--;
    /* The listener is in no list any more, but its post may be under way; the transport may be gone when that runs. */
    if (!posted) {
        free(listener);
    }
}

static trib_status loop_listen(trib_transport *transport, const trib_address *at, void *user,
                               trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    loop_transport *self = (loop_transport *)transport;
    if (memchr(at->text, '\0', sizeof at->text) == NULL || strncmp(at->text, SCHEME, strlen(SCHEME)) != 0) {
        return trib_error_set(error, TRIB_INVALID, "\"%.*s\" does not begin with " SCHEME, TRIB_ADDRESS_MAX, at->text);
    }
    loop_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener");
    }
    listener->base.transport = transport;
    listener->base.user = user;
    listener->post.run = run_accept;
    listener->address = *at;
    pthread_mutex_lock(&self->hub->mutex);
    if (strcmp(at->text, SCHEME) == 0) {
        snprintf(listener->address.text, sizeof listener->address.text, SCHEME "#%u", ++self->hub->names_given);
    }
    bool taken = find_listener(self->hub, listener->address.text) != NULL;
    if (!taken) {
        listener->next = self->hub->listeners;
        self->hub->listeners = listener;
    }
    pthread_mutex_unlock(&self->hub->mutex);
    if (taken) {
        free(listener);
        return trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s: the name is in use", at->text);
    }
    self->open_count++;
    *bound_out = listener->address;
    *listener_out = &listener->base;
    return TRIB_OK;
}

const trib_transport_ops trib_loopback_ops = {
    .name = "loopback",
    .flags = TRIB_TRANSPORT_ZERO_COPY,
    .open = trib_transport_open_unsupported,
    .close = loop_close,
    .listen = loop_listen,
    .listener_close = loop_listener_close,
    .connect = trib_loop_connect,
    .send = trib_loop_send,
    .recv_resume = trib_loop_recv_resume,
    .conn_close = trib_loop_conn_close,
    .stats = loop_stats,
    .lease = trib_transport_never_leases,
    .offloads = trib_transport_never_offloads,
    .is_idle = trib_transport_is_always_idle,
    .context_open = trib_transport_no_context_open,
    .context_close = trib_transport_no_context_close,
    .notifies_devices = trib_transport_notifies_no_devices,
};
