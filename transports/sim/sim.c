/* sim.c - an instance of the simulated transport and its listeners; see sim.h. */
#include "transports/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "transports/sim/sim_internal.h"
#include "transports/transport_defaults.h"

#define PORT_MAX 65535u

static const trib_transport_ops queueing_ops;

static trib_status sim_open(trib_reactor *reactor, const trib_transport_config *config,
                            const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    trib_sim_node *node = trib_sim_process_attached(trib_sim_reactor_process(reactor));
    trib_assert(node != NULL);
    sim_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base.ops = node->net->config.second_connections ? &queueing_ops : &trib_sim_transport_ops;
    self->base.reactor = reactor;
    self->base.upcalls = upcalls;
    self->node = node;
    self->silence_ns = trib_transport_break_timeout(config);
    node->net->transports++;
    *transport_out = &self->base;
    return TRIB_OK;
}

static void sim_close(trib_transport *transport)
{
    sim_transport *self = (sim_transport *)transport;
    trib_assert(self->open_count == 0);
    self->node->net->transports--;
    free(self);
}

static void sim_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    trib_transport_counters_read(&((const sim_transport *)transport)->stats, stats_out);
}

/* ---- Addresses ---- */

bool trib_sim_address_parse(trib_sim_net *net, const char *text, sim_place *place_out)
{
    const size_t length = strcspn(text, "~:,");
    const char *at = text + length;
    char *rest = NULL;
    const unsigned long network = *at == '~' ? strtoul(at + 1, &rest, 10) : 0;
    at = rest != NULL ? rest : at;
    if (*at != ':' || network >= TRIB_SIM_NETWORKS_MAX) {
        return false;
    }
    const unsigned long port = strtoul(at + 1, &rest, 10);
    if (rest == at + 1 || (*rest != '\0' && *rest != ',') || port > PORT_MAX) {
        return false;
    }
    for (trib_sim_node *node = net->nodes; node != NULL; node = node->next) {
        if (strlen(node->name) == length && memcmp(node->name, text, length) == 0) {
            *place_out = (sim_place){.node = node, .network = (uint32_t)network, .port = (uint32_t)port};
            return true;
        }
    }
    return false;
}

/* ---- Listeners ---- */

static sim_listener *find_listener(trib_sim_node *node, uint32_t port)
{
    sim_listener *listener = node->listeners;
    while (listener != NULL && listener->port != port) {
        listener = listener->next;
    }
    return listener;
}

bool trib_sim_listener_offer(trib_sim_node *node, sim_pair *pair)
{
    sim_listener *listener = node->dead ? NULL : find_listener(node, pair->port);
    if (listener == NULL) {
        return false;
    }
    pair->next_waiting = NULL;
    *(listener->tail != NULL ? &listener->tail->next_waiting : &listener->head) = pair;
    listener->tail = pair;
    trib_sim_reactor_give(listener->base.transport->reactor, &listener->work);
    return true;
}

static sim_pair *take_waiting(sim_listener *listener)
{
    sim_pair *pair = listener->head;
    if (pair != NULL) {
        listener->head = pair->next_waiting;
        listener->tail = listener->head != NULL ? listener->tail : NULL;
    }
    return pair;
}

static void run_accept(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    sim_listener *listener = trib_container_of(work, sim_listener, work);
    sim_transport *transport = (sim_transport *)listener->base.transport;
    listener->accepting = true;
    for (sim_pair *pair = take_waiting(listener); pair != NULL;
         pair = listener->closed ? NULL : take_waiting(listener)) {
        trib_sim_end_accept(&pair->ends[1], transport);
        transport->base.upcalls->accepted(&listener->base, &pair->ends[1].base);
    }
    listener->accepting = false;
    if (listener->closed) {
        free(listener);
    }
}

static void sim_listener_close(trib_listener *base)
{
    sim_listener *listener = (sim_listener *)base;
    sim_transport *transport = (sim_transport *)base->transport;
    trib_assert(!listener->closed);
    listener->closed = true;
    LL_DELETE(listener->node->listeners, listener);
    trib_sim_reactor_take_back(transport->base.reactor, &listener->work);
    for (sim_pair *pair = take_waiting(listener); pair != NULL; pair = take_waiting(listener)) {
        /* A kernel resets the connections that nobody has accepted. */
        pair->ends[1].state = SIM_GONE;
        trib_sim_flow_reset(&pair->flows[1]);
        trib_sim_pair_unref(pair);
    }
    transport->open_count--;
    if (!listener->accepting) {
        free(listener);
    }
}

static bool pick_port(trib_sim_node *node, uint32_t *port)
{
    for (uint32_t tries = 0; *port == 0 && tries < PORT_MAX; tries++) {
        node->last_port = node->last_port % PORT_MAX + 1;
        *port = find_listener(node, node->last_port) == NULL ? node->last_port : 0;
    }
    return *port != 0 && find_listener(node, *port) == NULL;
}

/* True if each address of the list belongs to that node. */
static bool is_of_node(const trib_sim_node *node, const trib_address *at, uint32_t *port_out)
{
    sim_place place;
    const char *one = memchr(at->text, '\0', sizeof at->text) != NULL ? at->text : NULL;
    bool is_own = one != NULL;
    while (is_own && one != NULL) {
        is_own = trib_sim_address_parse(node->net, one, &place) && place.node == node;
        *port_out = is_own && one == at->text ? place.port : *port_out;
        one = strchr(one, ',');
        one = one != NULL && one[1] != '\0' ? one + 1 : NULL;
    }
    return is_own;
}

/* Writes the same list with the port that was picked. */
static void put_bound(const trib_address *at, uint32_t port, trib_address *bound_out)
{
    size_t size = 0;
    for (const char *one = at->text; one != NULL && size < sizeof bound_out->text; one = strchr(one, ',')) {
        one += *one == ',';
        const int more = snprintf(bound_out->text + size, sizeof bound_out->text - size, "%s%.*s:%u",
                                  size > 0 ? "," : "", (int)strcspn(one, ":"), one, port);
        size += more > 0 ? (size_t)more : 0;
    }
}

static trib_status sim_listen(trib_transport *transport, const trib_address *at, void *user,
                              trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    sim_transport *self = (sim_transport *)transport;
    trib_sim_node *node = self->node;
    uint32_t port = 0;
    if (!is_of_node(node, at, &port)) {
        return trib_error_set(error, TRIB_INVALID, "\"%.*s\" is not an address of node %s", TRIB_ADDRESS_MAX, at->text,
                              node->name);
    }
    if (!pick_port(node, &port)) {
        return trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s: the port is in use", at->text);
    }
    sim_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener");
    }
    listener->base.transport = transport;
    listener->base.user = user;
    listener->node = node;
    listener->port = port;
    listener->work.run = run_accept;
    listener->next = node->listeners;
    node->listeners = listener;
    self->open_count++;
    put_bound(at, port, bound_out);
    *listener_out = &listener->base;
    return TRIB_OK;
}

static bool sim_offloads(const trib_conn *conn, const void *memory, size_t size, uint32_t least)
{
    (void)memory;
    (void)size;
    (void)least;
    trib_sim_net *net = ((const sim_transport *)conn->transport)->node->net;
    return net->config.offloads && ++net->asked % 3 != 0;
}

/* NOLINTNEXTLINE(bugprone-macro-parentheses): an initializer */
#define SIM_OPS(flags_)                                                                                                \
    {                                                                                                                  \
        .name = "sim", .flags = (flags_), .open = sim_open, .close = sim_close, .listen = sim_listen,                  \
        .listener_close = sim_listener_close, .connect = trib_sim_connect, .send = trib_sim_send,                      \
        .recv_resume = trib_sim_recv_resume, .conn_close = trib_sim_conn_close, .stats = sim_stats,                    \
        .offloads = sim_offloads, .lease = trib_transport_never_leases, .is_idle = trib_transport_is_always_idle,      \
        .context_open = trib_transport_no_context_open, .context_close = trib_transport_no_context_close,              \
        .notifies_devices = trib_transport_notifies_no_devices,                                                        \
    }

const trib_transport_ops trib_sim_transport_ops = SIM_OPS(TRIB_TRANSPORT_BREAKS | TRIB_TRANSPORT_SUBFLOWS);
static const trib_transport_ops queueing_ops =
    SIM_OPS(TRIB_TRANSPORT_BREAKS | TRIB_TRANSPORT_SUBFLOWS | TRIB_TRANSPORT_QUEUES);
