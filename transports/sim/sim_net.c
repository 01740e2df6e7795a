/*
 * sim_net.c - nodes, and the bytes between them: streams take turns on a link, quanta arrive.
 *
 * Invariants
 * - A flow is in its port's queue exactly if it may send: it has unsent bytes or an end of stream, its window is open,
 *   and the other node can be reached.
 * - The bytes of a flow arrive in order, its end of stream last.
 * - A pair lives until both its ends are gone and nothing of it is under way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/sim/sim_internal.h"

#define NS_PER_S 1e9

static void port_turn(trib_sim *sim, trib_sim_event *event);
static void quantum_arrived(trib_sim *sim, trib_sim_event *event);

trib_sim_net_config trib_sim_net_config_default(void)
{
    return (trib_sim_net_config){
        .quantum_bytes = 64 * 1024,
        .window_bytes = 1024 * 1024,
        .unsent_bytes = 256 * 1024,
        .goodput = 0.956,
        .local_bits = UINT64_C(200000000000),
        .local_latency_ns = 5000,
        .local_memory = true,
    };
}

trib_sim_net *trib_sim_net_create(trib_sim *sim, const trib_sim_net_config *config)
{
    trib_assert(config->quantum_bytes > 0 && config->window_bytes > 0 && config->unsent_bytes > 0);
    trib_assert(config->goodput > 0 && config->local_bits > 0 && config->ahead < TRIB_AHEAD_MAX);
    trib_sim_net *net = calloc(1, sizeof *net);
    if (net != NULL) {
        net->sim = sim;
        net->config = *config;
        net->stream = trib_sim_stream_make(sim, UINT64_C(0x6e6574));
    }
    return net;
}

static void free_node(trib_sim_node *node)
{
    for (uint32_t i = 0; i < TRIB_SIM_NETWORKS_MAX - 1; i++) {
        if (node->further[i] != NULL) {
            trib_sim_clear(node->net->sim, &node->further[i]->wire.turn);
            free(node->further[i]);
        }
    }
    trib_sim_clear(node->net->sim, &node->wire.turn);
    trib_sim_clear(node->net->sim, &node->local.turn);
    free(node);
}

void trib_sim_net_free(trib_sim_net *net)
{
    if (net == NULL) {
        return;
    }
    trib_assert(net->transports == 0);
    while (net->pairs != NULL) {
        /* Pairs are left if quanta are still under way to a dead node, or to a listener that was never reached. */
        sim_pair *pair = net->pairs;
        trib_assert(pair->ends[0].state == SIM_GONE);
        trib_assert(pair->ends[1].state == SIM_GONE || pair->ends[1].state == SIM_UNACCEPTED);
        pair->references = 1;
        trib_sim_pair_unref(pair);
    }
    while (net->nodes != NULL) {
        trib_sim_node *node = net->nodes;
        net->nodes = node->next;
        free_node(node);
    }
    while (net->all_quanta != NULL) {
        sim_quantum *quantum = net->all_quanta;
        net->all_quanta = quantum->all_next;
        trib_sim_clear(net->sim, &quantum->event);
        free(quantum);
    }
    while (net->free_messages != NULL) {
        sim_message *message = net->free_messages;
        net->free_messages = message->next;
        free(message);
    }
    free(net);
}

/* ---- Operations on a core ---- */

void trib_sim_node_rates(trib_sim_node *node)
{
    const trib_sim_net_config *config = &node->net->config;
    trib_assert(node->link.egress_bits > 0 && node->link.ingress_bits > 0);
    node->wire.byte_ns = 8 * NS_PER_S / ((double)node->link.egress_bits * config->goodput);
    node->ingress_byte_ns = 8 * NS_PER_S / ((double)node->link.ingress_bits * config->goodput);
    node->local.byte_ns = 8 * NS_PER_S / (double)config->local_bits;
}

static trib_sim_node *make_node(trib_sim_net *net, const char *name, const trib_sim_link *link)
{
    trib_sim_node *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return NULL;
    }
    node->net = net;
    node->machine = node;
    snprintf(node->name, sizeof node->name, "%s", name);
    node->link = *link;
    node->wire.net = node->local.net = net;
    node->wire.turn.fired = node->local.turn.fired = port_turn;
    trib_sim_node_rates(node);
    return node;
}

trib_sim_node *trib_sim_node_create(trib_sim_net *net, const char *name, const trib_sim_link *link)
{
    trib_assert(strlen(name) < TRIB_SIM_NAME_MAX && strpbrk(name, ":,~") == NULL);
    trib_sim_node *node = make_node(net, name, link);
    if (node != NULL) {
        node->index = net->nodes != NULL ? net->nodes->index + 1 : 0;
        node->next = net->nodes;
        net->nodes = node;
    }
    return node;
}

trib_sim_node *trib_sim_node_add_link(trib_sim_node *node, const trib_sim_link *link)
{
    uint32_t network = 0;
    while (node->machine->further[network] != NULL) {
        network++;
        trib_assert(network < TRIB_SIM_NETWORKS_MAX - 1);
    }
    node->machine->further[network] = make_node(node->net, node->name, link);
    return node->machine->further[network];
}

void trib_sim_node_join(trib_sim_node *node, trib_sim_node *other)
{
    node->machine = other->machine;
    node->link = other->machine->link;
}

void trib_sim_node_host(trib_sim_node *node, trib_sim_process *process)
{
    trib_sim_process_attach(process, node);
}

uint64_t trib_sim_node_bytes_out(const trib_sim_node *node)
{
    return node->machine->bytes_out;
}

uint64_t trib_sim_node_bytes_in(const trib_sim_node *node)
{
    return node->machine->bytes_in;
}

static bool shuns(const trib_sim_node *node, const trib_sim_node *other)
{
    return other->index < 64 && (node->shuns >> other->index & 1) != 0;
}

/* True if the flow's bytes reach the other end. */
static bool flow_passes(const sim_flow *flow)
{
    const sim_pair *pair = flow->pair;
    return !pair->forgotten && pair->ends[0].node->group == pair->ends[1].node->group &&
           !pair->ends[flow->from].node->blocks_out && !pair->ends[1 - flow->from].node->blocks_in &&
           !shuns(pair->ends[0].node, pair->ends[1].node);
}

bool trib_sim_reachable(const sim_pair *pair)
{
    return flow_passes(&pair->flows[0]) && flow_passes(&pair->flows[1]);
}

int64_t trib_sim_latency(const sim_pair *pair)
{
    return sim_is_local(pair) ? pair->net->config.local_latency_ns
                              : pair->ends[0].node->link.latency_ns + pair->ends[1].node->link.latency_ns;
}

/* ---- Pairs ---- */

void trib_sim_pair_ref(sim_pair *pair)
{
    pair->references++;
}

void trib_sim_pair_unref(sim_pair *pair)
{
    trib_assert(pair->references > 0);
    if (--pair->references > 0) {
        return;
    }
    trib_sim_net *net = pair->net;
    for (unsigned i = 0; i < 2; i++) {
        trib_sim_flow_drop(&pair->flows[i]);
    }
    trib_sim_clear(net->sim, &pair->knock);
    trib_sim_clear(net->sim, &pair->silence);
    *(pair->previous != NULL ? &pair->previous->next : &net->pairs) = pair->next;
    if (pair->next != NULL) {
        pair->next->previous = pair->previous;
    }
    free(pair);
}

/* ---- Sending ---- */

sim_message *trib_sim_message_take(trib_sim_net *net)
{
    sim_message *message = net->free_messages;
    if (message != NULL) {
        net->free_messages = message->next;
        *message = (sim_message){.next = NULL};
        return message;
    }
    message = calloc(1, sizeof *message);
    trib_assert(message != NULL); /* the simulated kernel has memory */
    return message;
}

void trib_sim_message_give(trib_sim_net *net, sim_message *message)
{
    free(message->payload);
    message->next = net->free_messages;
    net->free_messages = message;
}

static sim_quantum *quantum_take(sim_flow *flow, sim_kind kind, uint32_t bytes)
{
    trib_sim_net *net = flow->pair->net;
    sim_quantum *quantum = net->free_quanta;
    if (quantum != NULL) {
        net->free_quanta = quantum->next;
    } else {
        quantum = calloc(1, sizeof *quantum);
        trib_assert(quantum != NULL); /* out of memory ends the program, as in trib_sim_set */
        quantum->event.fired = quantum_arrived;
        quantum->all_next = net->all_quanta;
        net->all_quanta = quantum;
    }
    quantum->flow = flow;
    quantum->kind = kind;
    quantum->bytes = bytes;
    trib_sim_pair_ref(flow->pair);
    return quantum;
}

static bool may_send(const sim_flow *flow)
{
    bool open = flow->window_used < flow->pair->net->config.window_bytes;
    bool has_data = flow->unsent > 0 && open;
    bool has_end = flow->unsent == 0 && flow->finished && !flow->ended;
    return !flow->broken && (has_data || has_end) && flow_passes(flow);
}

void trib_sim_flow_ready(sim_flow *flow)
{
    sim_port *port = flow->port;
    if (flow->queued || !may_send(flow)) {
        return;
    }
    flow->queued = true;
    flow->next = NULL;
    *(port->tail != NULL ? &port->tail->next : &port->head) = flow;
    port->tail = flow;
    int64_t now_ns = trib_sim_now(port->net->sim);
    int64_t at_ns = port->free_ns > now_ns ? port->free_ns : now_ns;
    if (!trib_sim_event_is_set(&port->turn) || port->turn.at_ns > at_ns) {
        trib_sim_set(port->net->sim, &port->turn, at_ns);
    }
}

static void unqueue_flow(sim_flow *flow)
{
    sim_port *port = flow->port;
    sim_flow *before = NULL;
    for (sim_flow *at = port->head; flow->queued && at != NULL; before = at, at = at->next) {
        if (at == flow) {
            *(before != NULL ? &before->next : &port->head) = flow->next;
            port->tail = port->tail == flow ? before : port->tail;
            flow->queued = false;
        }
    }
}

static uint32_t draw_size(sim_flow *flow)
{
    trib_sim_net *net = flow->pair->net;
    uint64_t size = net->config.quantum_bytes;
    if (net->weather.shred_one_in > 0 && trib_sim_draw_one_in(&net->stream, net->weather.shred_one_in)) {
        size = 1 + trib_sim_draw_below(&net->stream, 100);
    }
    uint64_t room = net->config.window_bytes - flow->window_used;
    size = size < room ? size : room;
    return (uint32_t)(size < flow->unsent ? size : flow->unsent);
}

/* When the last byte of the quantum that leaves now has arrived. */
static int64_t arrival_of(sim_flow *flow, double bytes, int64_t sent_ns)
{
    trib_sim_net *net = flow->pair->net;
    int64_t latency_ns = trib_sim_latency(flow->pair);
    int64_t at_ns = sent_ns + latency_ns;
    trib_sim_node *to = flow->pair->ends[1 - flow->from].machine;
    if (!sim_is_local(flow->pair)) {
        int64_t begins_ns = trib_sim_now(net->sim) + latency_ns;
        begins_ns = begins_ns > to->ingress_free_ns ? begins_ns : to->ingress_free_ns;
        int64_t through_ns = begins_ns + (int64_t)(bytes * to->ingress_byte_ns);
        at_ns = at_ns > through_ns ? at_ns : through_ns;
        to->ingress_free_ns = at_ns;
    }
    if (net->weather.delay_one_in > 0 && trib_sim_draw_one_in(&net->stream, net->weather.delay_one_in)) {
        at_ns += (int64_t)trib_sim_draw_below(&net->stream, (uint64_t)net->weather.delay_ns + 1);
    }
    at_ns = at_ns > flow->last_arrival_ns ? at_ns : flow->last_arrival_ns;
    flow->last_arrival_ns = at_ns;
    return at_ns;
}

static void send_data(sim_port *port, sim_flow *flow)
{
    trib_sim *sim = port->net->sim;
    uint32_t bytes = draw_size(flow);
    int64_t sent_ns = trib_sim_now(sim) + (int64_t)((double)bytes * port->byte_ns);
    flow->progress_ns = flow->window_used == 0 ? trib_sim_now(sim) : flow->progress_ns;
    flow->unsent -= bytes;
    flow->window_used += bytes;
    port->free_ns = sent_ns;
    if (!sim_is_local(flow->pair)) {
        flow->pair->ends[flow->from].machine->bytes_out += bytes;
    }
    trib_sim_set(sim, &quantum_take(flow, SIM_DATA, bytes)->event, arrival_of(flow, bytes, sent_ns));
    trib_sim_end_writable(&flow->pair->ends[flow->from]);
}

static void port_turn(trib_sim *sim, trib_sim_event *event)
{
    sim_port *port = (sim_port *)event;
    sim_flow *flow = port->head;
    while (flow != NULL && !may_send(flow)) {
        unqueue_flow(flow);
        flow = port->head;
    }
    if (flow == NULL) {
        return;
    }
    unqueue_flow(flow);
    if (flow->unsent > 0) {
        send_data(port, flow);
    } else {
        flow->ended = true;
        trib_sim_set(sim, &quantum_take(flow, SIM_END_OF_STREAM, 0)->event, arrival_of(flow, 0, trib_sim_now(sim)));
    }
    trib_sim_flow_ready(flow);
    if (port->head != NULL && !trib_sim_event_is_set(&port->turn)) {
        trib_sim_set(sim, &port->turn, port->free_ns);
    }
}

void trib_sim_flow_reset(sim_flow *flow)
{
    int64_t at_ns = trib_sim_now(flow->pair->net->sim) + trib_sim_latency(flow->pair);
    trib_sim_set(flow->pair->net->sim, &quantum_take(flow, SIM_RESET, 0)->event, at_ns);
}

/* ---- Receiving ---- */

/* The sender learns that its bytes have been read. */
static void acknowledge_bytes(sim_flow *flow, uint32_t bytes)
{
    trib_assert(flow->window_used >= bytes);
    if (!flow_passes(&flow->pair->flows[1 - flow->from])) {
        flow->unheard += bytes;
        return;
    }
    flow->window_used -= bytes;
    flow->progress_ns = trib_sim_now(flow->pair->net->sim);
    if (!sim_flow_is_waiting(flow)) {
        flow->busy_ns += flow->progress_ns - flow->busy_since_ns;
        flow->busy_since_ns = flow->progress_ns;
    }
    trib_sim_flow_ready(flow);
    if (sim_is_in_memory(flow->pair)) {
        trib_sim_end_writable(&flow->pair->ends[flow->from]);
    }
}

void trib_sim_pair_look(sim_pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        sim_flow *flow = &pair->flows[i];
        const uint64_t unheard = flow->unheard;
        flow->unheard = 0;
        unheard > 0 ? acknowledge_bytes(flow, (uint32_t)unheard) : (void)0;
        trib_sim_flow_ready(flow);
    }
}

static void take_data(sim_flow *flow, uint32_t bytes)
{
    sim_end *end = &flow->pair->ends[1 - flow->from];
    if (!sim_is_local(flow->pair)) {
        end->machine->bytes_in += bytes;
    }
    if (flow->broken) {
        return;
    }
    if ((end->state == SIM_GONE || end->state == SIM_ENDING) && !end->lingers) {
        trib_sim_flow_reset(&flow->pair->flows[end->index]);
        return;
    }
    flow->arrived += bytes;
    flow->arrived_ns = trib_sim_now(flow->pair->net->sim);
    if (flow_passes(&flow->pair->flows[1 - flow->from])) {
        flow->progress_ns =
            flow->arrived_ns; /* the receiver's kernel acknowledges, also for a process that stands still */
    }
    if (end->lingers) {
        trib_sim_flow_read(flow, bytes);
    } else {
        trib_sim_end_readable(end);
    }
}

static void quantum_arrived(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    sim_quantum *quantum = (sim_quantum *)event;
    sim_flow *flow = quantum->flow;
    sim_pair *pair = flow->pair;
    sim_end *end = &pair->ends[1 - flow->from];
    switch (quantum->kind) {
    case SIM_DATA:
        take_data(flow, quantum->bytes);
        break;
    case SIM_END_OF_STREAM:
        flow->over = true;
        if (end->state != SIM_GONE) {
            trib_sim_end_readable(end);
        }
        break;
    case SIM_ACKNOWLEDGED:
        acknowledge_bytes(&pair->flows[end->index], quantum->bytes);
        break;
    case SIM_RESET:
        trib_sim_end_reset(end, "connection reset by the peer");
        break;
    }
    quantum->next = pair->net->free_quanta;
    pair->net->free_quanta = quantum;
    trib_sim_pair_unref(pair);
}

void trib_sim_flow_read(sim_flow *flow, uint32_t bytes)
{
    const sim_pair *pair = flow->pair;
    trib_assert(flow->arrived >= bytes);
    flow->arrived -= bytes;
    /* The acknowledgement takes a latency; that matters only if the window is nearly full. */
    if (flow->window_used < pair->net->config.window_bytes / 2 || sim_is_local(pair)) {
        acknowledge_bytes(flow, bytes);
    } else {
        sim_quantum *quantum = quantum_take(&flow->pair->flows[1 - flow->from], SIM_ACKNOWLEDGED, bytes);
        trib_sim_set(pair->net->sim, &quantum->event, trib_sim_now(pair->net->sim) + trib_sim_latency(pair));
    }
}

void trib_sim_flow_drop(sim_flow *flow)
{
    unqueue_flow(flow);
    flow->broken = true;
    while (flow->head != NULL) {
        sim_message *message = flow->head;
        flow->head = message->next;
        trib_sim_message_give(flow->pair->net, message);
    }
    flow->tail = NULL;
    flow->unsent = flow->arrived = 0;
}
