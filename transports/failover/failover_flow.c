/*
 * failover_flow.c - the messages of a session, and what its two sides tell each other about them.
 *
 * Invariants
 * - Messages are numbered from 0. The numbers do not travel: a path keeps the order, and both sides know the number it
 *   began with.
 * - A send stays in the list until the peer has acknowledged it and the inner transport has given it back. So what a
 *   broken path loses can be sent again.
 * - The caller is asked about a message once. A repetition goes to the target that it named then.
 */
#include "transports/failover/failover_internal.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

static bool is_ours(const unsigned char header[TRIB_HEADER_SIZE])
{
    uint32_t magic = 0;
    memcpy(&magic, header, sizeof magic);
    return le32toh(magic) == TRIB_FAILOVER_MAGIC;
}

/* ---- Frames of this layer ---- */

static failover_entry *entry_take(failover_transport *self)
{
    failover_entry *entry = self->spare;
    if (entry == NULL) {
        return calloc(1, sizeof *entry);
    }
    self->spare = entry->next;
    *entry = (failover_entry){.next = NULL};
    return entry;
}

static void entry_give(failover_transport *self, failover_entry *entry)
{
    entry->next = self->spare;
    self->spare = entry;
}

/* A digest over the path's nonce and the frame up to the proof: kind, count, id, number of the attempt. */
static void make_proof(const failover_path *path, const failover_frame *frame,
                       unsigned char proof_out[TRIB_FAILOVER_PROOF])
{
    const trib_transport_config *config = &path->transport->config;
    unsigned char data[TRIB_FAILOVER_ID + offsetof(failover_frame, proof)];
    memcpy(data, path->nonce, TRIB_FAILOVER_ID);
    memcpy(data + TRIB_FAILOVER_ID, frame, sizeof data - TRIB_FAILOVER_ID);
    memset(proof_out, 0, TRIB_FAILOVER_PROOF);
    if (config->seal != NULL) {
        config->seal(config->seal_key, data, sizeof data, proof_out, TRIB_FAILOVER_PROOF);
    }
}

bool trib_failover_proof_is_valid(const failover_path *path, const failover_frame *frame)
{
    unsigned char expected[TRIB_FAILOVER_PROOF], difference = 0;
    make_proof(path, frame, expected);
    for (size_t i = 0; i < sizeof expected; i++) { /* in constant time, so that a guess learns nothing from it */
        difference |= expected[i] ^ frame->proof[i];
    }
    return difference == 0;
}

static void fill_greeting(const failover_path *path, failover_frame *frame)
{
    if (frame->kind == FAILOVER_READY) {
        memcpy(frame->id, path->nonce, sizeof frame->id);
    } else if (frame->kind == FAILOVER_HELLO || frame->kind == FAILOVER_RESUME || frame->kind == FAILOVER_PROBE ||
               frame->kind == FAILOVER_WELCOME) {
        memcpy(frame->id, path->session->id, sizeof frame->id);
        frame->attempt = htole64(path->session->attempt);
    }
    /* No proof is given to an unauthenticated peer: an answer to HELLO must not serve as another member's RESUME. */
    if (frame->kind == FAILOVER_RESUME || (frame->kind == FAILOVER_WELCOME && path->probed)) {
        make_proof(path, frame, frame->proof);
    }
}

bool trib_failover_send_frame(failover_path *path, failover_kind kind, uint64_t count)
{
    failover_entry *entry = entry_take(path->transport);
    if (entry == NULL) {
        trib_failover_path_close(path, false, "out of memory");
        return false;
    }
    failover_frame frame = {.magic = htole32(TRIB_FAILOVER_MAGIC),
                            .kind = (uint8_t)kind,
                            .version = TRIB_FAILOVER_VERSION,
                            .count = htole64(count)};
    fill_greeting(path, &frame);
    memcpy(entry->send.header, &frame, sizeof frame);
    entry->is_ack = kind == FAILOVER_ACK;
    path->ack_busy = path->ack_busy || entry->is_ack;
    path->inner->transport->ops->send(path->inner, &entry->send);
    return true;
}

/* ---- Out ---- */

void trib_failover_send(trib_conn *base, trib_send *send)
{
    failover_session *session = (failover_session *)base;
    if (base->transport->ops->send != trib_failover_send) {
        base->transport->ops->send(base, send); /* an inner connection, through this table */
        return;
    }
    failover_entry *entry = session->over ? NULL : entry_take(session->transport);
    if (entry == NULL) {
        trib_failover_session_end(session, TRIB_NO_MEMORY, "out of memory");
        trib_send_queue_add(&session->refused, send);
        return;
    }
    memcpy(entry->send.header, send->header, TRIB_HEADER_SIZE);
    entry->send.payload = send->payload;
    entry->send.payload_size = send->payload_size;
    entry->outer = send;
    if (session->tail != NULL) {
        session->tail->next = entry;
    } else {
        session->head = entry;
    }
    session->tail = entry;
    if (session->unsent == NULL) {
        session->unsent = entry;
    }
    session->next_number++;
    trib_failover_flow_send_more(session);
}

/* The next message that the path is given has that number; it is in the list, or the caller's next one. */
static void skip_to(failover_session *session, uint64_t number)
{
    session->unsent = session->head;
    session->unsent_number = session->head_number;
    while (session->unsent_number < number) {
        trib_assert(session->unsent != NULL);
        session->unsent = session->unsent->next;
        session->unsent_number++;
    }
}

void trib_failover_flow_send_more(failover_session *session)
{
    failover_path *path = session->path;
    if (path == NULL || path->retired || session->over || session->bye_sent) {
        return;
    }
    if (session->repeat_asked && session->outs == 0) {
        session->repeat_asked = session->peer_paused = false;
        skip_to(session, session->repeat_from);
        if (!trib_failover_send_frame(path, FAILOVER_REPEAT, session->repeat_from)) {
            return;
        }
    }
    while (session->unsent != NULL && !session->peer_paused) {
        failover_entry *entry = session->unsent;
        session->unsent = entry->next;
        session->unsent_number++;
        session->outs++;
        entry->is_out = true;
        path->inner->transport->ops->send(path->inner, &entry->send);
    }
}

void trib_failover_flow_report_sent(failover_session *session)
{
    while (session->head != NULL && !session->head->is_out && session->head_number < session->acked) {
        failover_entry *entry = session->head;
        trib_send *outer = entry->outer;
        trib_transport_counters *stats = &session->transport->stats;
        session->head = entry->next;
        session->tail = session->head == NULL ? NULL : session->tail;
        session->head_number++;
        trib_counter_add(&stats->messages_sent, 1);
        trib_counter_add(&stats->bytes_sent, TRIB_HEADER_SIZE + outer->payload_size);
        entry_give(session->transport, entry);
        session->base.transport->upcalls->sent(&session->base, outer, TRIB_OK);
    }
}

void trib_failover_flow_return_sends(failover_session *session)
{
    const trib_transport_upcalls *upcalls = session->base.transport->upcalls;
    while (session->head != NULL) {
        failover_entry *entry = session->head;
        trib_send *outer = entry->outer;
        trib_assert(!entry->is_out);
        session->head = entry->next;
        entry_give(session->transport, entry);
        upcalls->sent(&session->base, outer, trib_send_unsent_status(session->end_status));
    }
    session->tail = session->unsent = NULL;
    trib_send_queue_return(&session->refused, &session->base, session->end_status);
}

void trib_failover_flow_sent(failover_path *path, trib_send *send)
{
    failover_entry *entry = (failover_entry *)send;
    if (entry->outer == NULL) {
        path->ack_busy = path->ack_busy && !entry->is_ack;
        entry_give(path->transport, entry);
    } else {
        entry->is_out = false;
        path->session->outs--;
    }
    if (path->session != NULL) {
        trib_reactor_defer(path->transport->base.reactor, &path->session->post);
    }
}

/* ---- A path comes and goes ---- */

bool trib_failover_flow_accepts_count(const failover_session *session, uint64_t count)
{
    return count >= session->acked && count <= session->next_number;
}

bool trib_failover_flow_begin(failover_session *session, uint64_t count)
{
    trib_assert(session->outs == 0);
    if (!trib_failover_flow_accepts_count(session, count)) {
        return false;
    }
    session->acked = count;
    skip_to(session, count);
    return true;
}

void trib_failover_flow_path_lost(failover_session *session)
{
    session->peer_paused = session->repeat_asked = false;
    session->refusing = false;
    session->asked_here = 0;
}

/* ---- In ---- */

static void refuse_message(failover_session *session, uint64_t number)
{
    session->refusing = true;
    trib_failover_send_frame(session->path, session->paused ? FAILOVER_PAUSE : FAILOVER_GO, number);
}

/* Receives a message that is dropped into the scratch buffer. */
static trib_status discard_message(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                   trib_recv_target *target)
{
    failover_transport *self = path->transport;
    const uint32_t size = self->config.payload_size(header);
    if (size > TRIB_PAYLOAD_MAX) {
        return TRIB_PROTOCOL;
    }
    self->scratch = self->scratch != NULL ? self->scratch : malloc(TRIB_PAYLOAD_MAX);
    if (self->scratch == NULL) {
        return TRIB_NO_MEMORY;
    }
    *target = (trib_recv_target){.buffer = size > 0 ? self->scratch : NULL, .payload_size = size};
    return TRIB_OK;
}

/* Asks the caller about a message that comes for the first time. */
static trib_status ask_receiver(failover_session *session, const unsigned char header[TRIB_HEADER_SIZE],
                                trib_recv_target *target)
{
    const uint32_t at = (session->asked_first + session->asked_count) % TRIB_AHEAD_MAX;
    session->asking = true;
    session->resumed_inside = false;
    trib_status status = session->base.transport->upcalls->header(&session->base, header, target);
    session->asking = false;
    target->in_place = false;
    if (status == TRIB_OK) {
        session->asked_count++;
        memcpy(session->asked[at].header, header, TRIB_HEADER_SIZE);
        session->asked[at].target = *target;
    }
    return status;
}

static trib_status take_message(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                trib_recv_target *target, failover_fate *fate_out)
{
    failover_session *session = path->session;
    *fate_out = FATE_DELIVER;
    if (session->asked_here < session->asked_count && !session->refusing) {
        const failover_asked *known = &session->asked[(session->asked_first + session->asked_here) % TRIB_AHEAD_MAX];
        if (memcmp(known->header, header, TRIB_HEADER_SIZE) != 0) {
            return TRIB_PROTOCOL;
        }
        session->asked_here++;
        *target = known->target;
        return TRIB_OK;
    }
    if (!session->refusing && !session->closing && !session->paused) {
        trib_status status = ask_receiver(session, header, target);
        if (status != TRIB_AGAIN) {
            session->asked_here += status == TRIB_OK;
            return status;
        }
        session->paused = !session->resumed_inside;
    }
    *fate_out = session->closing && !session->refusing ? FATE_COUNT : FATE_DROP;
    if (*fate_out == FATE_DROP && !session->refusing) {
        refuse_message(session, session->received + session->asked_count);
    }
    return discard_message(path, header, target);
}

/* False if the frame is not valid now. */
static bool take_frame_header(const failover_path *path, const failover_frame *frame)
{
    const bool is_greeting = frame->kind == FAILOVER_HELLO || frame->kind == FAILOVER_RESUME;
    failover_session *session = path->session;
    if (frame->version != TRIB_FAILOVER_VERSION || frame->kind < FAILOVER_HELLO || frame->kind > FAILOVER_GONE) {
        return false;
    }
    if (session == NULL) {
        return is_greeting || (frame->kind == FAILOVER_PROBE && !path->probed);
    }
    if (session->outgoing && path == session->successor) {
        return frame->kind == FAILOVER_WELCOME ? path->greeted
               : frame->kind == FAILOVER_READY ? path->probed && !path->answered
                                               : frame->kind == FAILOVER_GONE && (path->probed || path->greeted);
    }
    if (is_greeting || frame->kind == FAILOVER_WELCOME || frame->kind > FAILOVER_BYE || path != session->path) {
        return false;
    }
    if (frame->kind == FAILOVER_REPEAT) { /* counts from the next message on */
        const bool expected = session->refusing && le64toh(frame->count) == session->received + session->asked_count;
        session->refusing = session->refusing && !expected;
        return expected;
    }
    return true;
}

trib_status trib_failover_flow_header(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE],
                                      trib_recv_target *target)
{
    failover_fate fate = FATE_FRAME;
    trib_status status = TRIB_OK;
    *target = (trib_recv_target){.buffer = NULL};
    if (is_ours(header)) {
        failover_frame frame;
        memcpy(&frame, header, sizeof frame);
        status = take_frame_header(path, &frame) ? TRIB_OK : TRIB_PROTOCOL;
    } else if (path->session == NULL || path != path->session->path) {
        status = TRIB_PROTOCOL;
    } else {
        status = take_message(path, header, target, &fate);
        if (status != TRIB_OK) {
            trib_failover_session_note_dropping(path->session);
        }
    }
    if (status != TRIB_OK) {
        path->refusal = status;
        return status;
    }
    trib_assert(path->fate_count < TRIB_AHEAD_MAX);
    path->fates[(path->fate_first + path->fate_count++) % TRIB_AHEAD_MAX] = (uint8_t)fate;
    return TRIB_OK;
}

static void take_ack(failover_session *session, uint64_t count)
{
    if (count < session->acked || count > session->unsent_number) {
        trib_failover_session_end(session, TRIB_PROTOCOL, "the peer counts messages that were not sent");
        return;
    }
    session->acked = count;
    trib_reactor_defer(session->transport->base.reactor, &session->post);
}

static void take_go(failover_session *session, uint64_t number)
{
    if (number < session->acked || number > session->unsent_number || session->repeat_asked) {
        trib_failover_session_end(session, TRIB_PROTOCOL, "the peer asks again for messages that it has acknowledged");
        return;
    }
    session->peer_paused = true;
    session->repeat_asked = true;
    session->repeat_from = number;
    trib_reactor_defer(session->transport->base.reactor, &session->post);
}

static void take_frame(failover_path *path, const failover_frame *frame)
{
    failover_session *session = path->session;
    const uint64_t count = le64toh(frame->count);
    trib_assert(session != NULL || frame->kind == FAILOVER_HELLO || frame->kind == FAILOVER_RESUME ||
                frame->kind == FAILOVER_PROBE);
    switch ((failover_kind)frame->kind) {
    case FAILOVER_HELLO:
    case FAILOVER_RESUME:
        trib_failover_session_take_hello(path, frame);
        return;
    case FAILOVER_WELCOME:
        trib_failover_session_take_welcome(path, frame);
        return;
    case FAILOVER_ACK:
        take_ack(session, count);
        return;
    case FAILOVER_PAUSE:
        session->peer_paused = true;
        return;
    case FAILOVER_GO:
        take_go(session, count);
        return;
    case FAILOVER_REPEAT:
        return; /* it was done when its header came */
    case FAILOVER_PROBE:
        trib_failover_session_take_probe(path, frame);
        return;
    case FAILOVER_READY:
        trib_failover_session_take_ready(path, frame);
        return;
    case FAILOVER_GONE:
        path->gone = true;
        trib_failover_path_close(path, false, "the peer does not know this connection");
        return;
    case FAILOVER_BYE:
        session->acked = count > session->acked && count <= session->unsent_number ? count : session->acked;
        trib_failover_session_end(session, session->closing ? TRIB_OK : TRIB_PEER_LOST,
                                  "connection closed by the peer");
        return;
    }
}

void trib_failover_flow_received(failover_path *path, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                                 uint32_t payload_size)
{
    failover_session *session = path->session;
    trib_assert(path->fate_count > 0);
    const failover_fate fate = path->fates[path->fate_first];
    path->fate_first = (path->fate_first + 1) % TRIB_AHEAD_MAX;
    path->fate_count--;
    if (fate == FATE_FRAME) {
        failover_frame frame;
        memcpy(&frame, header, sizeof frame);
        if (session == NULL || !session->over) {
            take_frame(path, &frame);
        }
        return;
    }
    if (fate == FATE_DROP || session->over) {
        return;
    }
    session->received++;
    session->ack_due = true;
    trib_reactor_defer(path->transport->base.reactor, &session->post);
    if (fate == FATE_DELIVER) {
        session->asked_first = (session->asked_first + 1) % TRIB_AHEAD_MAX;
        session->asked_count--;
        session->asked_here--;
    }
    if (!session->closing) {
        trib_counter_add(&path->transport->stats.messages_received, 1);
        trib_counter_add(&path->transport->stats.bytes_received, TRIB_HEADER_SIZE + payload_size);
        session->base.transport->upcalls->received(&session->base, header, payload, payload_size);
    }
}

void trib_failover_recv_resume(trib_conn *base)
{
    failover_session *session = (failover_session *)base;
    if (base->transport->ops->recv_resume != trib_failover_recv_resume) {
        base->transport->ops->recv_resume(base);
        return;
    }
    session->resumed_inside = session->asking;
    if (!session->paused) {
        return;
    }
    session->paused = false;
    if (session->refusing && session->path != NULL && !session->path->retired) {
        trib_failover_send_frame(session->path, FAILOVER_GO, session->received + session->asked_count);
    }
}
