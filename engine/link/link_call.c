/* link_call.c - see link_call.h. */
#include "engine/link/link_call.h"

#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_reconnect.h"
#include "engine/wire/address_list.h"

#define CALL_SHARE 16 /* a call may take this part of the peer timeout */

static void call_ready(trib_link *call)
{
    trib_link_close(call, false, TRIB_OK, "the peer is there");
}

static trib_status call_header(trib_link *call, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    (void)call, (void)frame, (void)target;
    return trib_error_set(error, TRIB_PROTOCOL, "a frame on a connection that only calls");
}

static trib_status call_received(trib_link *call, const trib_frame *frame, const void *payload, bool in_place,
                                 trib_error *error)
{
    (void)payload, (void)in_place;
    return call_header(call, frame, NULL, error);
}

static void call_closed(trib_link *call, trib_status status, const char *reason)
{
    (void)status, (void)reason;
    trib_link *link = call->redial.caller;
    if (link == NULL) {
        return;
    }
    trib_assert(link->redial.call == call && call->purpose == TRIB_PURPOSE_CALL);
    link->redial.call = call->redial.caller = NULL;
    if (link->state != TRIB_LINK_RECONNECTING || link->redial.successor != NULL) {
        return;
    }
    link->redial.refused = call->redial.is_refused ? link->redial.refused + 1 : 0;
    /* A coordinator that is no member has never reached the member's address: a firewall may refuse it. */
    const bool has_gone = link->redial.refused >= trib_redial_addresses(link) && link->host->engine->roster != NULL;
    if (call->has_farewell || has_gone) {
        char text[TRIB_REASON_MAX];
        snprintf(text, sizeof text, "%s; %s", link->redial.reason,
                 call->has_farewell ? "its process is another one now" : "its process has gone");
        trib_link_close(link, false, TRIB_PEER_LOST, text);
        return;
    }
    trib_redial_arm(link, trib_redial_wait(link));
}

static const trib_link_upcalls call_upcalls = {
    .ready = call_ready,
    .header = call_header,
    .received = call_received,
    .closed = call_closed,
};

void trib_call_connector(trib_link *link)
{
    trib_link_redial *redial = &link->redial;
    const trib_engine *engine = link->host->engine;
    const trib_roster *roster = engine->roster != NULL ? engine->roster : engine->formation.kept;
    if (redial->call != NULL) { /* it takes too long */
        trib_link_close(redial->call, false, TRIB_TIMEOUT, "no answer");
        return;
    }
    if (roster == NULL || link->peer >= roster->member_count) {
        return; /* the peer's own address is not known */
    }
    redial->to = roster->members[link->peer].addresses[link->peer_reactor];
    trib_address to;
    trib_address_list_copy(redial->to.text, redial->tries++ % trib_redial_addresses(link), to.text, sizeof to.text);
    trib_link *call = NULL;
    if (trib_link_connect(link->host, &to, TRIB_PURPOSE_CALL, link->peer, link->peer_reactor, &call_upcalls, NULL,
                          &call) != TRIB_OK) {
        trib_redial_arm(link, trib_redial_wait(link));
        return;
    }
    call->session.id = link->session.id;
    call->redial.caller = link;
    redial->call = call;
    trib_redial_arm(link, trib_session_peer_timeout(link->host) / CALL_SHARE);
}

void trib_call_stop(trib_link *link)
{
    trib_link *call = link->redial.call;
    if (call != NULL) {
        trib_assert(call->redial.caller == link);
        link->redial.call = call->redial.caller = NULL;
        trib_link_close(call, false, TRIB_OK, "no longer needed");
    }
}
