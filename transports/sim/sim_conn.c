/*
 * sim_conn.c - connections of the simulated transport as the reactors of their ends see them; the messages are in
 * sim_stream.c.
 *
 * The states are those of TCP (tcp_conn.c): sends go to the kernel at the end of the turn, as far as it accepts them;
 * bytes that arrived are read in turns; the end is reported from the loop.
 *
 * Invariants
 * - An end that is SIM_GONE was reported to its reactor, which does not touch it any more. The pair still carries the
 *   messages that the kernel has.
 * - Works and posts of an end are queued only while it is not SIM_GONE.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "transports/sim/sim_internal.h"

#define RETRY_FIRST_NS INT64_C(1000000000) /* the first interval at which a kernel repeats an attempt to connect */

static void run_connected(trib_reactor *reactor, trib_sim_work *work);
static void run_read(trib_reactor *reactor, trib_sim_work *work);
static void run_write(trib_reactor *reactor, trib_sim_work *work);
static void run_sent(trib_reactor *reactor, trib_sim_work *work);
static void report_due(trib_sim *sim, trib_sim_event *event);
static void run_end(trib_reactor *reactor, trib_sim_work *work);
static void post_write(trib_reactor *reactor, trib_post *post);
static void connect_arrived(trib_sim *sim, trib_sim_event *event);
static void write_later(sim_end *end);

static void end_init(sim_pair *pair, uint8_t index)
{
    sim_end *end = &pair->ends[index];
    end->pair = pair;
    end->index = index;
    end->connect_work.run = run_connected;
    end->read_work.run = run_read;
    end->write_work.run = run_write;
    end->sent_work.run = run_sent;
    end->report.fired = report_due;
    end->end_work.run = run_end;
    end->write_post.run = post_write;
    sim_port *port = sim_is_local(pair) ? &end->node->local : &end->machine->wire;
    pair->flows[index] = (sim_flow){.pair = pair, .from = index, .port = port};
}

static void attach_end(sim_end *end, sim_transport *transport)
{
    end->transport = transport;
    end->base.transport = &transport->base;
    end->base.path = sim_is_local(end->pair) ? TRIB_PATH_MACHINE : TRIB_PATH_NETWORK;
    transport->open_count++;
}

/* ---- Connecting ---- */

/* The machine's link in that network, or its first one if it has none there. */
static trib_sim_node *wire_of(trib_sim_node *node, uint32_t network)
{
    trib_sim_node *further = network > 0 ? node->machine->further[network - 1] : NULL;
    return further != NULL ? further : node->machine;
}

static sim_pair *pair_create(trib_sim_net *net, trib_sim_node *from, const sim_place *to)
{
    sim_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL) {
        return NULL;
    }
    pair->net = net;
    pair->ends[0].node = from;
    pair->ends[1].node = to->node;
    pair->ends[0].machine = wire_of(from, to->network);
    pair->ends[1].machine = wire_of(to->node, to->network);
    pair->port = to->port;
    end_init(pair, 0);
    end_init(pair, 1);
    pair->knock.fired = connect_arrived;
    pair->silence.fired = trib_sim_pair_check_silence;
    pair->retry_ns = RETRY_FIRST_NS;
    pair->references = 2;
    pair->next = net->pairs;
    if (net->pairs != NULL) {
        net->pairs->previous = pair;
    }
    net->pairs = pair;
    return pair;
}

trib_status trib_sim_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    sim_transport *self = (sim_transport *)transport;
    trib_sim_net *net = self->node->net;
    sim_place place;
    if (memchr(to->text, '\0', sizeof to->text) == NULL || !trib_sim_address_parse(net, to->text, &place) ||
        place.port == 0) {
        return TRIB_INVALID;
    }
    sim_pair *pair = pair_create(net, self->node, &place);
    if (pair == NULL) {
        return TRIB_NO_MEMORY;
    }
    sim_end *end = &pair->ends[0];
    end->state = SIM_CONNECTING;
    end->base.remote = *to;
    end->base.user = user;
    attach_end(end, self);
    trib_sim_set(net->sim, &pair->knock, trib_sim_now(net->sim) + trib_sim_latency(pair));
    *conn_out = &end->base;
    return TRIB_OK;
}

/* The answer is back at the connecting end, one latency later. */
static void connect_answered(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    sim_pair *pair = trib_container_of(event, sim_pair, knock);
    sim_end *end = &pair->ends[0];
    if (end->state == SIM_CONNECTING) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->connect_work);
    }
}

static void connect_arrived(trib_sim *sim, trib_sim_event *event)
{
    sim_pair *pair = trib_container_of(event, sim_pair, knock);
    sim_end *end = &pair->ends[0];
    if (end->state != SIM_CONNECTING) {
        pair->ends[1].state = SIM_GONE; /* the connecting end has given up meanwhile */
        trib_sim_pair_unref(pair);
        return;
    }
    if (!trib_sim_reachable(pair)) {
        trib_sim_set(sim, event, trib_sim_now(sim) + pair->retry_ns);
        pair->retry_ns *= 2;
        return;
    }
    const trib_sim_node *from = pair->ends[0].node;
    bool welcome = !from->dead && !from->is_rejected && trib_sim_listener_offer(pair->ends[1].node, pair);
    end->answer = welcome ? TRIB_OK : TRIB_PEER_LOST;
    event->fired = connect_answered;
    trib_sim_set(sim, event, trib_sim_now(sim) + trib_sim_latency(pair));
    if (!welcome) {
        pair->ends[1].state = SIM_GONE;
        trib_sim_pair_unref(pair);
    }
}

static void run_connected(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    sim_end *end = trib_container_of(work, sim_end, connect_work);
    if (end->state != SIM_CONNECTING) {
        return;
    }
    trib_counter_add(&end->transport->stats.system_calls, 2);
    if (end->answer != TRIB_OK) {
        end->base.refused = true;
        trib_sim_end_begin(end, end->answer, "connection refused");
        end->transport->base.upcalls->connected(&end->base, end->answer);
        return;
    }
    end->state = SIM_OPEN;
    end->transport->base.upcalls->connected(&end->base, TRIB_OK);
    if (end->state == SIM_OPEN && end->sends.head != NULL) {
        write_later(end);
    }
    if (end->state == SIM_OPEN && (sim_flow_to(end)->arrived > 0 || sim_flow_to(end)->over)) {
        trib_sim_end_readable(end);
    }
}

void trib_sim_end_accept(sim_end *end, sim_transport *transport)
{
    trib_assert(end->state == SIM_UNACCEPTED);
    attach_end(end, transport);
    trib_counter_add(&transport->stats.system_calls, 1);
    snprintf(end->base.remote.text, sizeof end->base.remote.text, "%s:%u", sim_other(end)->node->name, end->pair->port);
    end->state = SIM_OPEN;
    if (sim_flow_to(end)->arrived > 0 || sim_flow_to(end)->over) {
        trib_sim_end_readable(end);
    }
}

/* ---- Sending ---- */

/* The sends of one turn travel together. The post cannot be taken back, so it keeps the pair alive. */
static void write_later(sim_end *end)
{
    if (!end->write_post.queued) {
        trib_sim_pair_ref(end->pair);
        trib_reactor *reactor = sim_reactor_of(end);
        trib_reactor_defer(reactor, &end->write_post);
        trib_reactor_wake(reactor); /* the caller may be outside of the reactor's turns */
    }
}

void trib_sim_send(trib_conn *conn, trib_send *send)
{
    sim_end *end = (sim_end *)conn;
    trib_assert(send->payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(send->payload != NULL || send->payload_size == 0);
    trib_send_queue_add(&end->sends, send);
    if ((end->state == SIM_OPEN || end->state == SIM_FLUSHING) && !end->want_write) {
        write_later(end);
    }
}

static void post_write(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    sim_end *end = trib_container_of(post, sim_end, write_post);
    trib_sim_stream_write(end);
    trib_sim_pair_unref(end->pair);
}

static void run_write(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    sim_end *end = trib_container_of(work, sim_end, write_work);
    trib_sim_stream_write(end);
}

static void run_sent(trib_reactor *reactor, trib_sim_work *work)
{
    (void)reactor;
    trib_sim_stream_report(trib_container_of(work, sim_end, sent_work));
}

static void report_due(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    sim_end *end = trib_container_of(event, sim_end, report);
    trib_sim_reactor_give(sim_reactor_of(end), &end->sent_work);
}

void trib_sim_end_writable(sim_end *end)
{
    /* As with TCP_NOTSENT_LOWAT, half of the limit must be free again, not only the first byte. */
    if (end->want_write && sim_flow_held(sim_flow_from(end)) * 2 < end->pair->net->config.unsent_bytes &&
        (end->state == SIM_OPEN || end->state == SIM_FLUSHING)) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->write_work);
    }
}

/* ---- Receiving ---- */

void trib_sim_recv_resume(trib_conn *conn)
{
    sim_end *end = (sim_end *)conn;
    if (end->asking) {
        end->resume_asked = true;
    } else if (end->paused && end->state == SIM_OPEN) {
        end->paused = false;
        trib_sim_reactor_give(sim_reactor_of(end), &end->read_work);
    }
}

void trib_sim_end_readable(sim_end *end)
{
    if (sim_end_reads(end) || end->state == SIM_FLUSHING) {
        trib_sim_reactor_give(sim_reactor_of(end), &end->read_work);
    }
}

static void run_read(trib_reactor *reactor, trib_sim_work *work)
{
    sim_end *end = trib_container_of(work, sim_end, read_work);
    sim_flow *flow = sim_flow_to(end);
    if (end->state == SIM_FLUSHING) {
        trib_sim_flow_read(flow, (uint32_t)flow->arrived); /* the bytes are dropped */
        return;
    }
    if (!sim_end_reads(end)) {
        return;
    }
    if (flow->arrived > 0 || end->header_got == TRIB_HEADER_SIZE) {
        trib_sim_stream_read(end);
    }
    if (!sim_end_reads(end)) {
        return;
    }
    if (flow->arrived > 0) {
        trib_sim_reactor_give(reactor, &end->read_work);
    } else if (flow->over) {
        bool inside = end->header_got > 0;
        trib_sim_end_begin(end, TRIB_PEER_LOST,
                           inside ? "connection ended inside a message" : "connection closed by the peer");
    }
}

/* ---- Ending ---- */

void trib_sim_end_begin(sim_end *end, trib_status status, const char *format, ...)
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

void trib_sim_conn_close(trib_conn *conn, bool flush)
{
    sim_end *end = (sim_end *)conn;
    if (end->state == SIM_OPEN && flush) {
        end->state = SIM_FLUSHING;
        write_later(end);
    } else if (end->state != SIM_FLUSHING || !flush) {
        trib_sim_end_begin(end, TRIB_OK, "closed by this side");
    }
}

void trib_sim_end_reset(sim_end *end, const char *reason)
{
    if (end->state == SIM_UNACCEPTED) {
        sim_flow_to(end)->over = true; /* the acceptor finds it when it accepts */
    } else if (end->state != SIM_GONE) {
        trib_sim_flow_drop(sim_flow_from(end));
        trib_sim_end_begin(end, TRIB_PEER_LOST, "%s", reason);
    }
}

static void run_end(trib_reactor *reactor, trib_sim_work *work)
{
    sim_end *end = trib_container_of(work, sim_end, end_work);
    const trib_transport_upcalls *upcalls = end->transport->base.upcalls;
    trib_assert(end->state == SIM_ENDING);
    trib_sim_clear(end->pair->net->sim, &end->report);
    trib_sim_reactor_take_back(reactor, &end->sent_work);
    trib_sim_stream_end_report(end);
    trib_send_queue_return(&end->sends, &end->base, end->end_status);
    upcalls->closed(&end->base, end->end_status, end->reason);
    trib_assert(end->sends.head == NULL);
    end->transport->open_count--;
    trib_sim_reactor_take_back(reactor, &end->read_work);
    trib_sim_reactor_take_back(reactor, &end->write_work);
    trib_sim_reactor_take_back(reactor, &end->connect_work);
    end->state = SIM_GONE;
    /* The kernel sends what it has, then the end of the stream. */
    sim_flow_from(end)->finished = true;
    trib_sim_flow_ready(sim_flow_from(end));
    trib_sim_pair_unref(end->pair);
}
