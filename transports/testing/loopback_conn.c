/*
 * loopback_conn.c - the two ends of a connection, each on its reactor, which lend each other their messages.
 *
 * Invariants
 * - An end has one post. A thread that has something for an end stores it under the pair's mutex and posts the end
 *   unless that is done already. An end makes all its upcalls from its post, and never with the mutex held.
 * - A trib_send is in exactly one queue: held, or the peer's mail, incoming, back_presented or back_dropped.
 * - An end returns sends in order: first those that it presented, then, once it has left, the rest as dropped. So a
 *   sender reads back_presented first.
 * - An end is finished when it has left and all its sends are back. Nothing posts it after that.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "transports/testing/loopback_internal.h"

#define MESSAGES_PER_TURN 256u

static void run_end(trib_reactor *reactor, trib_post *post);

static loop_end *peer_of(loop_end *end)
{
    return &end->pair->ends[end == &end->pair->ends[0] ? 1 : 0];
}

static void post_locked(loop_end *end)
{
    if (!end->posted) {
        end->posted = true;
        trib_reactor_post(end->transport->base.reactor, &end->post);
    }
}

static void post_self(loop_end *end)
{
    pthread_mutex_lock(&end->pair->mutex);
    post_locked(end);
    pthread_mutex_unlock(&end->pair->mutex);
}

static void end_init(loop_end *end, loop_pair *pair, loop_transport *transport, loop_state state)
{
    end->pair = pair;
    end->transport = transport;
    end->base.transport = &transport->base;
    end->post.run = run_end;
    end->state = state;
    transport->open_count++;
}

static void pair_unref(loop_pair *pair)
{
    pthread_mutex_lock(&pair->mutex);
    bool last = --pair->references == 0;
    pthread_mutex_unlock(&pair->mutex);
    if (last) {
        pthread_mutex_destroy(&pair->mutex);
        free(pair);
    }
}

static void begin_end(loop_end *end, trib_status status, const char *reason)
{
    if (end->state != LOOP_ENDING) {
        end->state = LOOP_ENDING;
        end->end_status = status;
        end->reason = reason;
        post_self(end);
    }
}

/* ---- Connecting ---- */

trib_status trib_loop_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    loop_transport *self = (loop_transport *)transport;
    if (memchr(to->text, '\0', sizeof to->text) == NULL || strncmp(to->text, "loop:", 5) != 0) {
        return TRIB_INVALID;
    }
    loop_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL || pthread_mutex_init(&pair->mutex, NULL) != 0) {
        free(pair);
        return TRIB_NO_MEMORY;
    }
    pair->references = 2;
    loop_end *end = &pair->ends[0];
    end_init(end, pair, self, LOOP_CONNECTING);
    end->base.user = user;
    end->base.remote = *to;
    *conn_out = &end->base;
    if (!trib_loop_listener_offer(self->hub, to, pair)) {
        trib_loop_pair_refuse(pair);
    }
    return TRIB_OK;
}

bool trib_loop_pair_accept(loop_pair *pair, loop_transport *transport)
{
    loop_end *asking = &pair->ends[0];
    loop_end *accepted = &pair->ends[1];
    pthread_mutex_lock(&pair->mutex);
    bool wanted = !asking->gone;
    if (wanted) {
        end_init(accepted, pair, transport, LOOP_OPEN);
        accepted->base.remote = (trib_address){.text = "loop:"};
        asking->answered = true;
        asking->answer = TRIB_OK;
        post_locked(asking);
    }
    pthread_mutex_unlock(&pair->mutex);
    if (!wanted) {
        pair_unref(pair);
    }
    return wanted;
}

void trib_loop_pair_refuse(loop_pair *pair)
{
    loop_end *asking = &pair->ends[0];
    pthread_mutex_lock(&pair->mutex);
    pair->ends[1].gone = true;
    if (!asking->gone) {
        asking->answered = true;
        asking->answer = TRIB_PEER_LOST;
        post_locked(asking);
    }
    pthread_mutex_unlock(&pair->mutex);
    pair_unref(pair);
}

/* Lends the sends that were held until the peer was there. */
static void hand_over_held(loop_end *end)
{
    loop_end *peer = peer_of(end);
    pthread_mutex_lock(&end->pair->mutex);
    if (!peer->gone && end->held.head != NULL) {
        for (const trib_send *send = end->held.head; send != NULL; send = send->next) {
            end->with_peer++;
        }
        trib_send_queue_move(&peer->mail, &end->held);
        post_locked(peer);
    }
    pthread_mutex_unlock(&end->pair->mutex);
}

static void take_answer(loop_end *end, trib_status answer)
{
    if (answer == TRIB_OK) {
        end->state = LOOP_OPEN;
        end->base.transport->upcalls->connected(&end->base, TRIB_OK);
        hand_over_held(end);
        return;
    }
    begin_end(end, answer, "nobody listens there");
    end->base.transport->upcalls->connected(&end->base, answer);
}

/* ---- Messages ---- */

void trib_loop_send(trib_conn *conn, trib_send *send)
{
    loop_end *end = (loop_end *)conn;
    trib_assert(send->payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(send->payload != NULL || send->payload_size == 0);
    loop_end *peer = peer_of(end);
    pthread_mutex_lock(&end->pair->mutex);
    bool hands_over = (end->state == LOOP_OPEN || end->state == LOOP_FLUSHING) && !peer->gone && end->held.head == NULL;
    if (hands_over) {
        end->with_peer++;
        trib_send_queue_add(&peer->mail, send);
        post_locked(peer);
    } else {
        /* Not connected yet; or the peer has left, which will end this side too. */
        trib_send_queue_add(&end->held, send);
    }
    pthread_mutex_unlock(&end->pair->mutex);
}

void trib_loop_recv_resume(trib_conn *conn)
{
    loop_end *end = (loop_end *)conn;
    if (end->asking) {
        end->resume_asked = true;
    } else if (end->paused && end->state == LOOP_OPEN) {
        end->paused = false;
        post_self(end);
    }
}

static void report_returned(loop_end *end, trib_send_queue *list, trib_status status)
{
    for (trib_send *send = trib_send_queue_take(list); send != NULL; send = trib_send_queue_take(list)) {
        trib_assert(end->with_peer > 0);
        end->with_peer--;
        if (status == TRIB_OK) {
            trib_counter_add(&end->transport->stats.messages_sent, 1);
            trib_counter_add(&end->transport->stats.bytes_sent, TRIB_HEADER_SIZE + (uint64_t)send->payload_size);
        }
        end->base.transport->upcalls->sent(&end->base, send, status);
    }
}

/* False if the message was not presented: the end is paused, or the connection is ending. */
static bool present_send(loop_end *end, const trib_send *send)
{
    const trib_transport_upcalls *upcalls = end->base.transport->upcalls;
    trib_recv_target target = {.buffer = NULL};
    end->asking = true;
    end->resume_asked = false;
    trib_status status = upcalls->header(&end->base, send->header, &target);
    end->asking = false;
    if (end->state != LOOP_OPEN) {
        return false;
    }
    if (status == TRIB_AGAIN) {
        end->paused = !end->resume_asked; /* after recv_resume inside the upcall: asked again in the next turn */
        return false;
    }
    if (status != TRIB_OK) {
        begin_end(end, status, "message refused");
        return false;
    }
    if (target.payload_size != send->payload_size) {
        begin_end(end, TRIB_PROTOCOL, "connection ended inside a message");
        return false;
    }
    trib_counter_add(&end->transport->stats.messages_received, 1);
    trib_counter_add(&end->transport->stats.bytes_received, TRIB_HEADER_SIZE + (uint64_t)send->payload_size);
    upcalls->received(&end->base, send->header, send->payload_size > 0 ? send->payload : target.buffer,
                      send->payload_size);
    return true;
}

static void return_to_peer(loop_end *end, trib_send_queue *presented)
{
    if (presented->head != NULL) {
        loop_end *peer = peer_of(end);
        pthread_mutex_lock(&end->pair->mutex);
        trib_send_queue_move(&peer->back_presented, presented);
        post_locked(peer);
        pthread_mutex_unlock(&end->pair->mutex);
    }
}

static void present_incoming(loop_end *end)
{
    trib_send_queue presented = {NULL, NULL};
    unsigned count = 0;
    while (end->incoming.head != NULL && end->state == LOOP_OPEN && !end->paused && count++ < MESSAGES_PER_TURN) {
        if (!present_send(end, end->incoming.head)) {
            break;
        }
        trib_send_queue_add(&presented, trib_send_queue_take(&end->incoming));
    }
    return_to_peer(end, &presented);
    if (end->incoming.head != NULL && end->state == LOOP_OPEN && !end->paused) {
        post_self(end);
    }
}

/* An end that flushes presents nothing more. Sends that it was lent go back at once, because the peer may be waiting
 * for them to flush too. */
static void drop_incoming(loop_end *end)
{
    if (end->incoming.head != NULL) {
        loop_end *peer = peer_of(end);
        pthread_mutex_lock(&end->pair->mutex);
        trib_send_queue_move(&peer->back_dropped, &end->incoming);
        post_locked(peer);
        pthread_mutex_unlock(&end->pair->mutex);
    }
}

/* ---- Ending ---- */

void trib_loop_conn_close(trib_conn *conn, bool flush)
{
    loop_end *end = (loop_end *)conn;
    if (end->state == LOOP_OPEN && flush) {
        end->state = LOOP_FLUSHING;
        post_self(end);
    } else if (end->state != LOOP_FLUSHING || !flush) {
        begin_end(end, TRIB_OK, "closed by this side");
    }
}

/* Returns the sends that this end was lent, and tells the peer. */
static void leave_pair(loop_end *end)
{
    loop_end *peer = peer_of(end);
    end->left = true;
    pthread_mutex_lock(&end->pair->mutex);
    end->gone = true;
    trib_send_queue_move(&end->incoming, &end->mail);
    trib_send_queue_move(&peer->back_dropped, &end->incoming);
    /* An end that was not accepted has no transport; its listener will find this end gone. */
    if (peer->transport != NULL) {
        peer->peer_left = true;
        if (!peer->finished) {
            post_locked(peer);
        }
    }
    pthread_mutex_unlock(&end->pair->mutex);
}

/* True if the end has been freed. */
static bool finish_end(loop_end *end)
{
    pthread_mutex_lock(&end->pair->mutex);
    bool busy = end->posted || end->with_peer > 0;
    end->finished = !busy;
    pthread_mutex_unlock(&end->pair->mutex);
    if (busy) {
        return false; /* another run of the post will come */
    }
    const trib_transport_upcalls *upcalls = end->base.transport->upcalls;
    trib_send_queue_return(&end->held, &end->base, end->end_status);
    upcalls->closed(&end->base, end->end_status, end->reason);
    trib_assert(end->held.head == NULL);
    end->transport->open_count--;
    pair_unref(end->pair);
    return true;
}

static void end_turn(loop_end *end, bool peer_left)
{
    if (end->state == LOOP_FLUSHING && (end->with_peer == 0 || peer_left)) {
        begin_end(end, TRIB_OK, "closed by this side");
    }
    /* Messages that the peer sent before it left have been presented by now; the rest must go back. */
    if (end->state == LOOP_OPEN && peer_left) {
        begin_end(end, TRIB_PEER_LOST, "connection closed by the peer");
    }
    if (end->state == LOOP_ENDING) {
        if (!end->left) {
            leave_pair(end);
        }
        finish_end(end);
    }
}

static void run_end(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    loop_end *end = trib_container_of(post, loop_end, post);
    trib_send_queue presented = {NULL, NULL};
    trib_send_queue dropped = {NULL, NULL};
    pthread_mutex_lock(&end->pair->mutex);
    end->posted = false;
    bool answered = end->answered;
    end->answered = false;
    bool peer_left = end->peer_left;
    trib_send_queue_move(&end->incoming, &end->mail);
    trib_send_queue_move(&presented, &end->back_presented);
    trib_send_queue_move(&dropped, &end->back_dropped);
    trib_status answer = end->answer;
    pthread_mutex_unlock(&end->pair->mutex);

    if (answered && end->state == LOOP_CONNECTING) {
        take_answer(end, answer);
    }
    trib_status unsent = end->state == LOOP_ENDING && end->end_status == TRIB_OK ? TRIB_CLOSED : TRIB_PEER_LOST;
    report_returned(end, &presented, TRIB_OK);
    report_returned(end, &dropped, unsent);
    if (!peer_left) {
        present_incoming(end);
    }
    if (end->state == LOOP_FLUSHING) {
        drop_incoming(end);
    }
    end_turn(end, peer_left);
}
