/* link_session.c - see link_session.h. */
#include "engine/link/link_session.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_reconnect.h"
#include "engine/link/link_session_frame.h"

#define ACK_NS (4 * INT64_C(1000000)) /* an ACK goes this long after a frame, if no other frame has acknowledged it */
#define LIFE_NS (15 * INT64_C(1000000000)) /* a connection shows life at least this often */
#define LIFE_CHECKS 4                      /* how often that time is checked within it */

/* ---- Sending ---- */

static trib_send_record *take_first(trib_link_session *session)
{
    trib_send_record *out = session->first;
    trib_assert(out->is_counted && !out->is_out);
    session->first = out->next;
    session->last = session->first == NULL ? NULL : session->last;
    return out;
}

/* Gives back frames that the peer has. The transport reports sends in their order, so one that it still has is followed
 * by others. */
void trib_session_release(trib_link *link)
{
    trib_assert(link->session.acknowledged <= link->session.sent);
    trib_link_session *session = &link->session;
    while (session->first != NULL && session->first->number < session->acknowledged && !session->first->is_out) {
        trib_link_send_finish(take_first(session), TRIB_OK);
    }
    if (link->state == TRIB_LINK_LEAVING && session->first == NULL) {
        trib_link_left(link);
    }
}

void trib_session_close(trib_link *link)
{
    trib_timer_stop(link->host->reactor, &link->session.ack);
    while (link->session.first != NULL) {
        trib_assert(!link->session.first->is_out);
        trib_send_record *out = take_first(&link->session);
        trib_link_send_finish(out, out->number < link->session.acknowledged ? TRIB_OK : TRIB_CLOSED);
    }
}

/* ---- Receiving ---- */

static bool can_tell(const trib_link *link)
{
    return link->session.is_kept && (link->state == TRIB_LINK_READY || link->state == TRIB_LINK_LEAVING);
}

/* Sends an ACK about a connection of the link, over any of them. */
static void send_ack(trib_link *over, trib_link *about)
{
    trib_frame frame = {.type = TRIB_FRAME_ACK};
    if (over != about) {
        frame.aux = (uint32_t)about->session.id;
        frame.acknowledged = trib_session_put_count(about);
    }
    trib_link_send_copy(over, frame, NULL, 0);
}

void trib_session_acknowledge(trib_link *link)
{
    if (can_tell(link)) {
        send_ack(link, link);
    }
}

void trib_session_acknowledge_others(trib_link *link)
{
    trib_link *main = link->main != NULL ? link->main : link;
    for (uint32_t i = 0; i < trib_link_connections(main); i++) {
        trib_link *other = trib_link_connection(main, i);
        if (other != NULL && other != link && other->session.is_kept && other->session.unacknowledged_bytes > 0 &&
            link->state == TRIB_LINK_READY) {
            send_ack(link, other);
        }
    }
}

static void ack_due(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_link *link = timer->user;
    if (link->session.told == link->session.received) {
        return;
    }
    if (link->session.told == link->session.told_before) {
        trib_session_acknowledge(link);
    } else {
        trib_session_await_ack(link); /* frames go the other way, and the next one may tell of the rest */
    }
}

void trib_session_await_ack(trib_link *link)
{
    trib_assert(link->session.is_kept && link->session.told <= link->session.received);
    link->session.told_before = link->session.told;
    trib_timer_arm(link->host->reactor, &link->session.ack, trib_now_fast(link->host->reactor) + ACK_NS);
}

/* The connection that an ACK is about: this one, or another one of the link. NULL: that one has gone. */
static trib_link *subject_of(trib_link *link, const trib_frame *frame)
{
    if (frame->type != TRIB_FRAME_ACK || frame->aux == 0) {
        return link;
    }
    trib_link *main = link->main != NULL ? link->main : link;
    for (uint32_t i = 0; i < trib_link_connections(main); i++) {
        trib_link *other = trib_link_connection(main, i);
        if (other != NULL && (uint32_t)other->session.id == frame->aux) {
            return other;
        }
    }
    return NULL;
}

trib_status trib_session_take_count(trib_link *link, const trib_frame *frame, trib_error *error)
{
    trib_link *about = subject_of(link, frame);
    if (about == NULL || !about->session.is_kept || frame->acknowledged <= about->session.acknowledged) {
        return TRIB_OK; /* a frame that is sent again has its old count */
    }
    if (frame->acknowledged > about->session.sent) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s frame that acknowledges frames which were not sent",
                              trib_frame_name(frame->type));
    }
    trib_assert(about->session.is_kept && trib_link_main(about) == trib_link_main(link));
    about->session.acknowledged = frame->acknowledged;
    trib_session_release(about);
    return TRIB_OK;
}

/* ---- Another connection ---- */

bool trib_session_may_resume(const trib_link *link, uint64_t received)
{
    return received >= link->session.acknowledged && received <= link->session.sent;
}

void trib_session_resend(trib_link *link, uint64_t received)
{
    trib_link_session *session = &link->session;
    trib_assert(trib_session_may_resume(link, received));
    trib_assert(link->session.is_kept && link->conn != NULL);
    session->acknowledged = received;
    for (trib_send_record *out = session->first; out != NULL; out = out->next) {
        trib_assert(!out->is_out);
        if (out->number >= received) {
            trib_link_hand_over(link, out);
        }
    }
    trib_session_release(link);
}

/* ---- Buffers that are wanted back ---- */

static void free_copy(trib_send_record *out, trib_status status)
{
    (void)status;
    free(out->context);
}

/* Returns false if there is no memory. */
static bool copy_payload(trib_link *link, trib_send_record *out)
{
    const size_t size = out->send.payload_size;
    trib_assert(out->is_counted && !out->is_out);
    void *copy = trib_link_zalloc(link->host, size + 1);
    if (copy == NULL) {
        return false;
    }
    if (size > 0) {
        memcpy(copy, out->send.payload, size);
    }
    trib_send_record given = *out;
    out->send.payload = copy;
    out->done = free_copy;
    out->context = copy;
    given.done(&given, TRIB_CANCELLED);
    return true;
}

/* The next kept frame of the context below that number that the transport does not have. */
static trib_send_record *find_kept(const trib_link *link, const void *context, uint64_t end)
{
    trib_send_record *out = link->session.first;
    while (out != NULL && (out->context != context || out->is_out || out->number >= end)) {
        out = out->next;
    }
    return out;
}

static bool transport_has(const trib_link *link, const void *context)
{
    bool has = false;
    for (const trib_send_record *out = link->session.first; out != NULL; out = out->next) {
        has = has || (out->context == context && out->is_out);
    }
    for (uint32_t i = 0; i < link->arrival_count; i++) {
        has = has || trib_link_arrival(link, i)->recv_claim.what == context;
    }
    return has;
}

static void give_back_of(trib_link *link, const void *context)
{
    const uint64_t end = link->session.sent;
    trib_send_record *out = NULL;
    while (link->state != TRIB_LINK_CLOSING && (out = find_kept(link, context, end)) != NULL) {
        if (!copy_payload(link, out)) {
            trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a copy of what is to be sent");
        }
    }
    if (link->conn != NULL && link->state == TRIB_LINK_READY && transport_has(link, context)) {
        link->conn->transport->ops->conn_close(link->conn, false);
    }
}

void trib_session_give_back(trib_link *link, const void *context)
{
    if (!link->redial.survives || link->redial.needs_offer) { /* a device's memory cannot be copied here */
        trib_link_close(link, false, TRIB_PEER_LOST, "took no data for too long after a deadline had passed");
        return;
    }
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        if (trib_link_connection(link, i) != NULL) {
            give_back_of(trib_link_connection(link, i), context);
        }
    }
}

/* ---- Life ---- */

int64_t trib_session_peer_timeout(const trib_link_host *host)
{
    const trib_roster *roster = host->engine->roster;
    return roster != NULL ? roster->peer_timeout_ns : host->engine->config.peer_timeout_ns;
}

static int64_t life_interval(const trib_link_host *host)
{
    const int64_t third_ns = trib_session_peer_timeout(host) / 3;
    return third_ns < LIFE_NS ? third_ns : LIFE_NS;
}

static void show_life(trib_reactor *reactor, trib_timer *timer)
{
    trib_link_host *host = timer->user;
    const int64_t now_ns = trib_now(reactor), interval_ns = life_interval(host), check_ns = interval_ns / LIFE_CHECKS;
    trib_link *next;
    for (trib_link *link = host->links; link != NULL; link = next) {
        next = link->next;
        /* Checks come late sometimes, so what would be due before the check after the next is sent now. */
        if (can_tell(link) && now_ns - link->session.last_sent_ns >= interval_ns - 2 * check_ns) {
            trib_session_acknowledge(link);
        }
    }
    trib_timer_arm(reactor, timer, now_ns + check_ns);
}

void trib_session_open_host(trib_link_host *host)
{
    host->life.fired = show_life;
    host->life.user = host;
    trib_timer_arm(host->reactor, &host->life, trib_now(host->reactor) + life_interval(host) / LIFE_CHECKS);
}

void trib_session_close_host(trib_link_host *host)
{
    trib_timer_stop(host->reactor, &host->life);
}

void trib_session_open(trib_link *link)
{
    link->session.ack.fired = ack_due;
    link->session.ack.user = link;
}

void trib_session_establish(trib_link *link)
{
    trib_assert(!link->session.is_established && link->conn != NULL);
    trib_assert(link->session.sent == 0 && link->session.received == 0 && link->session.first == NULL);
    link->session.is_established = true;
    link->session.is_kept =
        link->purpose != TRIB_PURPOSE_CALL && (link->conn->transport->ops->flags & TRIB_TRANSPORT_BREAKS) != 0;
    link->session.last_sent_ns = trib_now(link->host->reactor);
    /* A link that nobody can name for lack of memory does not outlive its connection. */
    const bool can_resume = link->outgoing || trib_redial_note_session(link);
    /* Until the job runs, a rank becomes free as soon as its control link has gone. */
    link->redial.survives =
        link->session.is_kept && can_resume && (link->outgoing || link->purpose != TRIB_PURPOSE_CONTROL);
}
