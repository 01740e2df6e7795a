/*
 * sim_stream.c - messages over a simulated stream: cut into bytes for the kernel, and put together from bytes that
 * arrive.
 *
 * Bytes are counted and not carried: a message travels as one object, which the receiver reads as far as its bytes
 * have arrived, header first.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/sim/sim_internal.h"

#define READ_PER_TURN 524288u

/* ---- Sending ---- */

static void flip(void *bytes, uint64_t bit)
{
    ((unsigned char *)bytes)[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

/* Draws whether a bit of the message flips on its way, and which: in the header, or, three times as often, in the
 * payload if there is one. A damaged header ends a connection at once, so payloads would hardly ever be damaged
 * else. */
static void draw_flip(const sim_flow *flow, sim_message *message)
{
    trib_sim_net *net = flow->pair->net;
    const uint64_t one_in = net->weather.flip_one_in, header_bits = TRIB_HEADER_SIZE * 8;
    if (one_in == 0 || sim_is_local(flow->pair) || !trib_sim_draw_one_in(&net->stream, one_in)) {
        return;
    }
    if (message->payload_size == 0 || trib_sim_draw_one_in(&net->stream, 4)) {
        flip(message->header, trib_sim_draw_below(&net->stream, header_bits));
    } else {
        message->flips = true;
        message->flip_bit = (uint32_t)trib_sim_draw_below(&net->stream, (uint64_t)message->payload_size * 8);
    }
}

static sim_message *message_append(sim_flow *flow, const unsigned char *header, uint32_t payload_size)
{
    sim_message *message = trib_sim_message_take(flow->pair->net);
    memcpy(message->header, header, TRIB_HEADER_SIZE);
    message->payload_size = payload_size;
    if (flow->tail != NULL) {
        flow->tail->next = message;
    } else {
        flow->head = message;
    }
    flow->tail = message;
    return message;
}

/* A forger on the way may put a message of its own before this one. */
static void slip_in(sim_flow *flow, const trib_send *send)
{
    const trib_sim_net *net = flow->pair->net;
    trib_sim_forged forged = {.payload = NULL};
    if (net->forge != NULL && !sim_is_local(flow->pair) && net->forge(net->forge_user, flow, send, &forged)) {
        message_append(flow, forged.header, forged.payload_size)->payload = forged.payload;
        flow->unsent += TRIB_HEADER_SIZE + forged.payload_size;
    }
}

static void message_begin(sim_flow *flow, const trib_send *send)
{
    slip_in(flow, send);
    draw_flip(flow, message_append(flow, send->header, send->payload_size));
}

/* True if that memory has no contents (void_base). */
static bool is_void(const trib_sim_net *net, const void *memory)
{
    const unsigned char *base = net->config.void_base, *at = memory;
    return base != NULL && at >= base && at < base + net->config.void_bytes;
}

/* The buffer goes back to its owner, so the payload is copied for the receiver. */
static void message_complete(sim_flow *flow, const trib_send *send)
{
    if (send->payload_size > 0 && !is_void(flow->pair->net, send->payload)) {
        flow->tail->payload = malloc(send->payload_size);
        trib_assert(flow->tail->payload != NULL);
        memcpy(flow->tail->payload, send->payload, send->payload_size);
        if (flow->tail->flips) {
            flip(flow->tail->payload, flow->tail->flip_bit);
        }
    }
}

/* The kernel has the message. */
static void report_sent(sim_end *end, trib_send *send)
{
    const trib_sim_net *net = end->pair->net;
    if (net->config.sent_late_ns == 0) {
        end->transport->base.upcalls->sent(&end->base, send, TRIB_OK);
        return;
    }
    trib_send_queue_add(&end->handed, send);
    if (!trib_sim_event_is_set(&end->report) && !end->sent_work.queued) {
        const int64_t late_ns =
            (int64_t)trib_sim_draw_below(&end->pair->net->stream, (uint64_t)net->config.sent_late_ns + 1);
        trib_sim_set(net->sim, &end->report, trib_sim_now(net->sim) + late_ns);
    }
}

/* Ends a connection that was closed, and has nothing to report any more. */
static void end_flushed(sim_end *end)
{
    if (end->state == SIM_FLUSHING && end->sends.head == NULL && end->handed.head == NULL) {
        end->lingers = true;
        trib_sim_end_begin(end, TRIB_OK, "closed by this side");
    }
}

void trib_sim_stream_report(sim_end *end)
{
    trib_send_queue handed = end->handed;
    end->handed = (trib_send_queue){.head = NULL};
    while (handed.head != NULL && (end->state == SIM_OPEN || end->state == SIM_FLUSHING)) {
        end->transport->base.upcalls->sent(&end->base, trib_send_queue_take(&handed), TRIB_OK);
    }
    trib_send_queue_move(&handed, &end->handed);
    end->handed = handed;
    end_flushed(end);
}

void trib_sim_stream_end_report(sim_end *end)
{
    const sim_flow *flow = sim_flow_from(end);
    const bool has_all = !flow->broken && !sim_flow_is_waiting(flow);
    for (trib_send *send; has_all && (send = trib_send_queue_take(&end->handed)) != NULL;) {
        end->transport->base.upcalls->sent(&end->base, send, TRIB_OK);
    }
    trib_send_queue_move(&end->handed, &end->sends);
    end->sends = end->handed;
    end->handed = (trib_send_queue){.head = NULL};
}

/* Hands the kernel as many bytes as it has room for; returns their number. */
static size_t hand_to_kernel(sim_end *end)
{
    sim_flow *flow = sim_flow_from(end);
    const uint64_t limit = end->pair->net->config.unsent_bytes;
    size_t taken = 0;
    while (end->sends.head != NULL && sim_flow_held(flow) < limit && !flow->broken) {
        trib_send *send = end->sends.head;
        if (end->head_sent == 0) {
            message_begin(flow, send);
        }
        const size_t left = TRIB_HEADER_SIZE + (size_t)send->payload_size - end->head_sent;
        const size_t room = (size_t)(limit - sim_flow_held(flow)), now = left < room ? left : room;
        flow->unsent += now;
        taken += now;
        end->head_sent += now;
        if (now < left) {
            break;
        }
        message_complete(flow, send);
        end->head_sent = 0;
        (void)trib_send_queue_take(&end->sends);
        trib_counter_add(&end->transport->stats.messages_sent, 1);
        report_sent(end, send);
        if (end->state != SIM_OPEN && end->state != SIM_FLUSHING) {
            break;
        }
    }
    return taken;
}

/* Charges the processor's time for handing bytes to the kernel, or reading them. In shared memory the reader copies. */
static void charge_copy(sim_end *end, size_t bytes, bool is_reader)
{
    if (sim_is_in_memory(end->pair)) {
        trib_charge(sim_reactor_of(end), TRIB_COST_COPY, is_reader ? bytes : 0);
    } else {
        trib_charge(sim_reactor_of(end), TRIB_COST_MESSAGE, bytes);
    }
}

void trib_sim_stream_write(sim_end *end)
{
    if (end->state != SIM_OPEN && end->state != SIM_FLUSHING) {
        return;
    }
    sim_transport *transport = end->transport;
    sim_flow *flow = sim_flow_from(end);
    const int64_t now_ns = trib_sim_now(end->pair->net->sim);
    if (!sim_flow_is_waiting(flow)) {
        flow->progress_ns = flow->busy_since_ns = now_ns;
        trib_sim_pair_watch_silence(end->pair);
    }
    end->base.busy_ns = transport->base.is_slow ? (uint64_t)(flow->busy_ns + now_ns - flow->busy_since_ns) : 0;
    size_t taken = hand_to_kernel(end);
    if (taken > 0) {
        trib_counter_add(&transport->stats.system_calls, 1);
        trib_counter_add(&transport->stats.bytes_sent, taken);
        charge_copy(end, taken, false);
        trib_sim_flow_ready(sim_flow_from(end));
    }
    end->want_write = end->sends.head != NULL;
    end_flushed(end);
}

/* ---- Receiving ---- */

/* False if reading cannot go on: the end is paused, or the connection is ending. */
static bool ask_receiver(sim_end *end, sim_message *message)
{
    end->asking = true;
    end->resume_asked = false;
    message->target = (trib_recv_target){.buffer = NULL};
    trib_status status = end->transport->base.upcalls->header(&end->base, message->header, &message->target);
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
    if (status == TRIB_OK && message->target.payload_size != message->payload_size) {
        status = TRIB_PROTOCOL;
    }
    message->refusal = status;
    message->asked = true;
    return true;
}

/* Asks about the messages behind the first one, whose payload is on its way. */
static void ask_ahead(sim_end *end, const sim_message *first)
{
    sim_message *message = first->next;
    for (uint32_t i = 0; i < end->pair->net->config.ahead && message != NULL && !end->paused; i++) {
        if ((!message->asked && !ask_receiver(end, message)) || message->refusal != TRIB_OK) {
            return;
        }
        message = message->next;
    }
}

static void deliver_message(sim_end *end, sim_message *message)
{
    trib_sim_net *net = end->pair->net;
    sim_flow *flow = sim_flow_to(end);
    flow->head = message->next;
    flow->tail = flow->head != NULL ? flow->tail : NULL;
    void *buffer = message->target.buffer;
    if (message->payload_size > 0 && message->payload != NULL && !is_void(net, buffer)) {
        memcpy(buffer, message->payload, message->payload_size);
    }
    end->header_got = end->payload_got = 0;
    trib_counter_add(&end->transport->stats.messages_received, 1);
    end->transport->base.upcalls->received(&end->base, message->header, buffer, message->payload_size);
    trib_sim_message_give(net, message);
}

/* Reads up to *budget bytes of the first message; true if there may be more to do. */
static bool read_message(sim_end *end, uint32_t *budget)
{
    sim_message *message = sim_flow_to(end)->head;
    if (message == NULL) {
        return false;
    }
    uint32_t left = TRIB_HEADER_SIZE - end->header_got;
    uint32_t now = left < *budget ? left : *budget;
    end->header_got += now;
    *budget -= now;
    if (end->header_got < TRIB_HEADER_SIZE || (!message->asked && (end->paused || !ask_receiver(end, message)))) {
        return false;
    }
    if (message->refusal != TRIB_OK) {
        trib_sim_end_begin(end, message->refusal, "message refused");
        return false;
    }
    left = message->payload_size - end->payload_got;
    if (left > 0) {
        ask_ahead(end, message);
    }
    if (end->state != SIM_OPEN) {
        return false;
    }
    now = left < *budget ? left : *budget;
    end->payload_got += now;
    *budget -= now;
    if (end->payload_got < message->payload_size) {
        return false;
    }
    deliver_message(end, message);
    return end->state == SIM_OPEN;
}

/* Bytes can arrive before the sender's kernel has all of a message. They are read as they come, so a flow's bytes
 * are counted without a look at its messages. */
void trib_sim_stream_read(sim_end *end)
{
    sim_flow *flow = sim_flow_to(end);
    uint32_t bytes = flow->arrived < READ_PER_TURN ? (uint32_t)flow->arrived : READ_PER_TURN;
    uint32_t budget = bytes;
    charge_copy(end, bytes, true);
    trib_counter_add(&end->transport->stats.system_calls, 1);
    while (read_message(end, &budget)) {}
    uint32_t used = bytes - budget;
    trib_counter_add(&end->transport->stats.bytes_received, used);
    if (used > 0) {
        trib_sim_flow_read(flow, used);
    }
}
