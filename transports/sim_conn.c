/*
 * sim_conn.c - connections of the simulated transport, as the reactors of their two ends see them.
 *
 * The same states as TCP's (tcp_conn.c): what is sent goes to the kernel at the end of the turn, as far as it takes it;
 * what has arrived is read in turns; the end of a connection is told from the loop.
 *
 * Invariants
 * - An end that is GONE has been told to its reactor and is not touched by it any more; the pair still carries what
 *   the kernel has of its messages.
 * - Works and posts of an end are queued only while it is not GONE.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assert.h"
#include "transports/sim_internal.h"

#define READ_PER_TURN (512u * 1024u)
#define RETRY_FIRST_NS INT64_C(1000000000) /* as a kernel repeats its attempts to connect */

static void run_connected(trib_reactor *reactor, trib_sim_work *work);
static void run_read(trib_reactor *reactor, trib_sim_work *work);
static void run_write(trib_reactor *reactor, trib_sim_work *work);
static void run_end(trib_reactor *reactor, trib_sim_work *work);
static void post_write(trib_reactor *reactor, trib_post *post);
static void knock(trib_sim *sim, trib_sim_event *event);
static void write_later(sim_end *end);

static sim_flow *flow_from(sim_end *end)
{
    return &end->pair->flows[end->index];
}

static sim_flow *flow_to(sim_end *end)
{
    return &end->pair->flows[1 - end->index];
}

static void end_init(sim_pair *pair, uint8_t index, trib_sim_node *node)
{
    sim_end *end = &pair->ends[index];
    end->pair = pair;
    end->index = index;
    end->node = node;
    end->connect_work.run = run_connected;
    end->read_work.run = run_read;
    end->write_work.run = run_write;
    end->end_work.run = run_end;
    end->write_post.run = post_write;
    bool local = pair->ends[0].node == pair->ends[1].node;
    pair->flows[index] = (sim_flow){.pair = pair, .from = index, .port = local ? &node->local : &node->wire};
}

static void attach(sim_end *end, sim_transport *transport)
{
    end->transport = transport;
    end->base.transport = &transport->base;
    transport->open_count++;
}

/* ---- Connecting ---- */

static sim_pair *pair_create(trib_sim_net *net, trib_sim_node *from, trib_sim_node *to)
{
    sim_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL) {
        return NULL;
    }
    pair->net = net;
    pair->ends[0].node = from;
    pair->ends[1].node = to;
    end_init(pair, 0, from);
    end_init(pair, 1, to);
    pair->knock.fired = knock;
    pair->silence.fired = sim_pair_silent;
    pair->retry_ns = RETRY_FIRST_NS;
    pair->references = 2;
    pair->next = net->pairs;
    if (net->pairs != NULL) {
        net->pairs->previous = pair;
    }
    net->pairs = pair;
    net->pair_count++;
    return pair;
}

trib_status sim_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    sim_transport *self = (sim_transport *)transport;
    trib_sim_net *net = self->node->net;
    trib_sim_node *node = NULL;
    uint32_t port = 0;
    if (!sim_address_parse(net, to, &node, &port) || port == 0) {
        return TRIB_INVALID;
    }
    sim_pair *pair = pair_create(net, self->node, node);
    if (pair == NULL) {
        return TRIB_NO_MEMORY;
    }
    pair->port = port;
    sim_end *end = &pair->ends[0];
    end->state = SIM_CONNECTING;
    end->base.remote = *to;
    end->base.user = user;
    attach(end, self);
    trib_sim_set(net->sim, &pair->knock, trib_sim_now(net->sim) + sim_latency(pair));
    *conn_out = &end->base;
    return TRIB_OK;
}

/* Back at the end that connects, one latency later. */
static void answered(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    sim_pair *pair = (sim_pair *)((char *)event - offsetof(sim_pair, knock));
    sim_end *end = &pair->ends[0];
    if (end->state == SIM_CONNECTING) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->connect_work);
    }
}

static void knock(trib_sim *sim, trib_sim_event *event)
{
    sim_pair *pair = (sim_pair *)((char *)event - offsetof(sim_pair, knock));
    sim_end *end = &pair->ends[0];
    if (end->state != SIM_CONNECTING) {
        pair->ends[1].state = SIM_GONE; /* given up meanwhile */
        sim_pair_unref(pair);
        return;
    }
    if (!sim_reachable(pair)) {
        trib_sim_set(sim, event, trib_sim_now(sim) + pair->retry_ns);
        pair->retry_ns *= 2;
        return;
    }
    bool welcome = !pair->ends[0].node->dead && sim_listener_offer(pair->ends[1].node, pair);
    end->answer = welcome ? TRIB_OK : TRIB_PEER_LOST;
    event->fired = answered;
    trib_sim_set(sim, event, trib_sim_now(sim) + sim_latency(pair));
    if (!welcome) {
        pair->ends[1].state = SIM_GONE;
        sim_pair_unref(pair);
    }
}

static void run_connected(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    sim_end *end = (sim_end *)((char *)work - offsetof(sim_end, connect_work));
    if (end->state != SIM_CONNECTING) {
        return;
    }
    end->transport->stats.system_calls += 2;
    if (end->answer != TRIB_OK) {
        sim_end_begin(end, end->answer, "cannot connect: connection refused");
        end->transport->base.upcalls->connected(&end->base, end->answer);
        return;
    }
    end->state = SIM_OPEN;
    end->transport->base.upcalls->connected(&end->base, TRIB_OK);
    if (end->state == SIM_OPEN && end->head != NULL) {
        write_later(end);
    }
    if (end->state == SIM_OPEN && (flow_to(end)->arrived > 0 || flow_to(end)->over)) {
        sim_end_readable(end);
    }
}

void sim_end_accept(sim_end *end, sim_transport *transport)
{
    trib_assert(end->state == SIM_UNACCEPTED);
    attach(end, transport);
    transport->stats.system_calls++;
    snprintf(end->base.remote.text, sizeof end->base.remote.text, "%s:%u", sim_other(end)->node->name, end->pair->port);
    end->state = SIM_OPEN;
    if (flow_to(end)->arrived > 0 || flow_to(end)->over) {
        sim_end_readable(end);
    }
}

/* ---- Sending ---- */

/* Sends of one turn travel together. The post keeps the pair alive: a post cannot be taken back. */
static void write_later(sim_end *end)
{
    if (!end->write_post.queued) {
        sim_pair_ref(end->pair);
        trib_reactor *reactor = sim_reactor_of(end);
        trib_reactor_defer(reactor, &end->write_post);
        reactor->ops->wake(reactor); /* for a caller outside of its turns */
    }
}

void sim_send(trib_conn *conn, trib_send *send)
{
    sim_end *end = (sim_end *)conn;
    trib_assert(send->payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(send->payload != NULL || send->payload_size == 0);
    send->next = NULL;
    *(end->tail != NULL ? &end->tail->next : &end->head) = send;
    end->tail = send;
    if ((end->state == SIM_OPEN || end->state == SIM_FLUSHING) && !end->want_write) {
        write_later(end);
    }
}

static sim_message *message_begin(sim_flow *flow, const trib_send *send)
{
    sim_message *message = calloc(1, sizeof *message);
    trib_assert(message != NULL); /* the simulated kernel has memory */
    memcpy(message->header, send->header, TRIB_HEADER_SIZE);
    message->payload_size = send->payload_size;
    if (flow->tail != NULL) {
        flow->tail->next = message;
    } else {
        flow->head = message;
    }
    flow->tail = message;
    return message;
}

/* Has that memory no contents? */
static bool is_void(const trib_sim_net *net, const void *memory)
{
    const unsigned char *base = net->config.void_base, *at = memory;
    return base != NULL && at >= base && at < base + net->config.void_bytes;
}

/* The buffer goes back to its owner: what the receiver will read has to be somewhere else by then. */
static void message_complete(sim_flow *flow, const trib_send *send)
{
    if (send->payload_size > 0 && !is_void(flow->pair->net, send->payload)) {
        flow->tail->payload = malloc(send->payload_size);
        trib_assert(flow->tail->payload != NULL);
        memcpy(flow->tail->payload, send->payload, send->payload_size);
    }
}

/* The kernel takes what it has room for; answers how much. */
static size_t hand_over(sim_end *end)
{
    sim_flow *flow = flow_from(end);
    const uint64_t limit = end->pair->net->config.unsent_bytes;
    size_t taken = 0;
    while (end->head != NULL && flow->unsent < limit) {
        trib_send *send = end->head;
        if (end->head_sent == 0) {
            message_begin(flow, send);
        }
        const size_t left = TRIB_HEADER_SIZE + (size_t)send->payload_size - end->head_sent;
        const size_t now = left < limit - flow->unsent ? left : (size_t)(limit - flow->unsent);
        flow->unsent += now;
        taken += now;
        end->head_sent += now;
        if (now < left) {
            break;
        }
        message_complete(flow, send);
        end->head_sent = 0;
        end->head = send->next;
        end->tail = end->head != NULL ? end->tail : NULL;
        end->transport->stats.messages_sent++;
        end->transport->base.upcalls->sent(&end->base, send, TRIB_OK);
        if (end->state != SIM_OPEN && end->state != SIM_FLUSHING) {
            break;
        }
    }
    return taken;
}

static void write_out(sim_end *end)
{
    if (end->state != SIM_OPEN && end->state != SIM_FLUSHING) {
        return;
    }
    sim_transport *transport = end->transport;
    if (!sim_flow_is_waiting(flow_from(end))) {
        flow_from(end)->progress_ns = trib_sim_now(end->pair->net->sim);
    }
    size_t taken = hand_over(end);
    if (taken > 0) {
        transport->stats.system_calls++;
        transport->stats.bytes_sent += taken;
        trib_charge(transport->base.reactor, TRIB_COST_MESSAGE, taken);
        sim_flow_ready(flow_from(end));
    }
    end->want_write = end->head != NULL;
    if (end->state == SIM_FLUSHING && end->head == NULL) {
        end->lingers = true;
        sim_end_begin(end, TRIB_OK, "closed by this side");
    }
}

static void post_write(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    sim_end *end = (sim_end *)((char *)post - offsetof(sim_end, write_post));
    write_out(end);
    sim_pair_unref(end->pair);
}

static void run_write(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    sim_end *end = (sim_end *)((char *)work - offsetof(sim_end, write_work));
    write_out(end);
}

void sim_end_writable(sim_end *end)
{
    /* Not at the first free byte: half of the limit must be free again, as with TCP_NOTSENT_LOWAT. */
    if (end->want_write && flow_from(end)->unsent * 2 < end->pair->net->config.unsent_bytes &&
        (end->state == SIM_OPEN || end->state == SIM_FLUSHING)) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->write_work);
    }
}

/* ---- Receiving ---- */

void sim_recv_resume(trib_conn *conn)
{
    sim_end *end = (sim_end *)conn;
    if (end->asking) {
        end->resume_asked = true;
    } else if (end->paused && end->state == SIM_OPEN) {
        end->paused = false;
        trib_sim_reactor_give(sim_reactor_of(end), &end->read_work);
    }
}

void sim_end_readable(sim_end *end)
{
    if ((end->state == SIM_OPEN && !end->paused) || end->state == SIM_FLUSHING) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->read_work);
    }
}

/* False if reading cannot go on: paused, or the connection is ending. */
static bool ask(sim_end *end, const sim_message *message)
{
    end->asking = true;
    end->resume_asked = false;
    end->landing = (trib_landing){.buffer = NULL};
    trib_status status = end->transport->base.upcalls->header(&end->base, message->header, &end->landing);
    end->asking = false;
    if (end->state != SIM_OPEN) {
        return false;
    }
    if (status == TRIB_AGAIN) {
        end->paused = !end->resume_asked;
        if (!end->paused) {
            trib_sim_reactor_give(sim_reactor_of(end), &end->read_work);
        }
        return false;
    }
    if (status != TRIB_OK || end->landing.payload_size != message->payload_size) {
        sim_end_begin(end, status != TRIB_OK ? status : TRIB_PROTOCOL, "message refused");
        return false;
    }
    end->asked = true;
    return true;
}

static void deliver(sim_end *end, sim_message *message)
{
    sim_flow *flow = flow_to(end);
    flow->head = message->next;
    flow->tail = flow->head != NULL ? flow->tail : NULL;
    if (message->payload != NULL && !is_void(end->pair->net, end->landing.buffer)) {
        memcpy(end->landing.buffer, message->payload, message->payload_size);
    }
    end->header_got = end->landed = 0;
    end->asked = false;
    end->transport->stats.messages_received++;
    end->transport->base.upcalls->received(&end->base, message->header, end->landing.buffer, message->payload_size);
    free(message->payload);
    free(message);
}

/* Takes up to *budget bytes for the message that is first; true if there may be more to do. */
static bool read_message(sim_end *end, uint32_t *budget)
{
    sim_message *message = flow_to(end)->head;
    if (message == NULL) {
        return false;
    }
    uint32_t left = TRIB_HEADER_SIZE - end->header_got;
    uint32_t now = left < *budget ? left : *budget;
    end->header_got += now;
    *budget -= now;
    if (end->header_got < TRIB_HEADER_SIZE || (!end->asked && !ask(end, message))) {
        return false;
    }
    left = message->payload_size - end->landed;
    now = left < *budget ? left : *budget;
    end->landed += now;
    *budget -= now;
    if (end->landed < message->payload_size) {
        return false;
    }
    deliver(end, message);
    return end->state == SIM_OPEN;
}

/* What came before the sender's kernel had taken all of a message is read as it comes, so a flow's bytes are counted
 * and not looked for. */
static void read_in(sim_end *end)
{
    sim_flow *flow = flow_to(end);
    uint32_t bytes = flow->arrived < READ_PER_TURN ? (uint32_t)flow->arrived : READ_PER_TURN;
    uint32_t budget = bytes;
    trib_charge(sim_reactor_of(end), TRIB_COST_MESSAGE, bytes);
    end->transport->stats.system_calls++;
    while (read_message(end, &budget)) {}
    uint32_t used = bytes - budget;
    end->transport->stats.bytes_received += used;
    if (used > 0) {
        sim_flow_read(flow, used);
    }
}

static void run_read(trib_reactor *reactor, trib_sim_work *work)
{
    sim_end *end = (sim_end *)((char *)work - offsetof(sim_end, read_work));
    sim_flow *flow = flow_to(end);
    if (end->state == SIM_FLUSHING) {
        sim_flow_read(flow, (uint32_t)flow->arrived); /* thrown away */
        return;
    }
    if (end->state != SIM_OPEN || end->paused) {
        return;
    }
    if (flow->arrived > 0 || end->header_got == TRIB_HEADER_SIZE) {
        read_in(end);
    }
    if (end->state != SIM_OPEN || end->paused) {
        return;
    }
    if (flow->arrived > 0) {
        trib_sim_reactor_give(reactor, &end->read_work);
    } else if (flow->over) {
        bool inside = end->header_got > 0;
        sim_end_begin(end, TRIB_PEER_LOST,
                      inside ? "connection ended inside a message" : "connection closed by the peer");
    }
}

/* ---- Ending ---- */

void sim_end_begin(sim_end *end, trib_status status, const char *format, ...)
{
    if (end->state == SIM_ENDING || end->state == SIM_GONE) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(end->reason, sizeof end->reason, format, arguments);
    va_end(arguments);
    end->state = SIM_ENDING;
    end->end_status = status;
    trib_sim_reactor_give(sim_reactor_of(end), &end->end_work);
}

void sim_conn_close(trib_conn *conn, bool flush)
{
    sim_end *end = (sim_end *)conn;
    if (end->state == SIM_OPEN && flush) {
        end->state = SIM_FLUSHING;
        write_later(end);
    } else if (end->state != SIM_FLUSHING || !flush) {
        sim_end_begin(end, TRIB_OK, "closed by this side");
    }
}

void sim_end_reset(sim_end *end, const char *reason)
{
    if (end->state == SIM_UNACCEPTED) {
        flow_to(end)->over = true; /* found when it is accepted */
    } else if (end->state != SIM_GONE) {
        sim_flow_drop(flow_from(end));
        sim_end_begin(end, TRIB_PEER_LOST, "%s", reason);
    }
}

static void run_end(trib_reactor *reactor, trib_sim_work *work)
{
    sim_end *end = (sim_end *)((char *)work - offsetof(sim_end, end_work));
    const trib_transport_upcalls *upcalls = end->transport->base.upcalls;
    trib_assert(end->state == SIM_ENDING);
    const trib_status unsent = end->end_status == TRIB_OK ? TRIB_CLOSED : end->end_status;
    while (end->head != NULL) {
        trib_send *send = end->head;
        end->head = send->next;
        end->tail = end->head != NULL ? end->tail : NULL;
        upcalls->sent(&end->base, send, unsent);
    }
    upcalls->closed(&end->base, end->end_status, end->reason);
    trib_assert(end->head == NULL);
    end->transport->open_count--;
    trib_sim_reactor_take_back(reactor, &end->read_work);
    trib_sim_reactor_take_back(reactor, &end->write_work);
    trib_sim_reactor_take_back(reactor, &end->connect_work);
    end->state = SIM_GONE;
    /* The kernel sends what it has, then the end of the stream. */
    flow_from(end)->finished = true;
    sim_flow_ready(flow_from(end));
    sim_pair_unref(end->pair);
}
