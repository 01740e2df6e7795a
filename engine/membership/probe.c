/* probe.c - see probe.h. */
#include "engine/membership/probe.h"

#include "engine/membership/election.h"

#define LEAST_NS (1 * INT64_C(1000000000)) /* for an attempt; a packet that was lost is sent again after a second */

static void note_attempt(trib_core *core, trib_probe *probe, bool is_refused)
{
    probe->is_dead =
        trib_election_refuses(&probe->refused_since_ns, is_refused, trib_now(core->reactor), probe->refused_for_ns);
}

static void ready(trib_link *link)
{
    trib_probe *probe = link->user;
    if (probe != NULL) {
        probe->silent_since_ns = 0;
        probe->heard_ns = trib_now(link->core->reactor);
    }
    trib_link_close(link, true, TRIB_CLOSED, "the member lives");
}

static trib_status received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error)
{
    (void)link;
    (void)frame;
    (void)payload;
    (void)in_place;
    (void)error;
    return TRIB_OK;
}

static void closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    trib_probe *probe = link->user;
    if (probe != NULL) {
        probe->link = NULL;
        note_attempt(link->core, probe, link->redial.is_refused);
    }
}

static const trib_link_upcalls upcalls = {
    .ready = ready,
    .header = trib_election_header,
    .received = received,
    .closed = closed,
};

void trib_probe_ask(trib_core *core, trib_probe *probe, const trib_address *address)
{
    const int64_t now_ns = trib_now(core->reactor), share_ns = core->engine->config.peer_timeout_ns / 4;
    const int64_t patience_ns = probe->silent_since_ns == 0 ? 0 : share_ns > LEAST_NS ? share_ns : LEAST_NS;
    if (probe->link != NULL && now_ns - probe->began_ns >= patience_ns) {
        trib_probe_end(probe, "the member is asked again");
    }
    if (probe->link != NULL) {
        return;
    }
    probe->began_ns = now_ns;
    probe->silent_since_ns = probe->silent_since_ns == 0 ? now_ns : probe->silent_since_ns;
    if (trib_link_connect(&core->host, address, TRIB_PURPOSE_CONTROL, TRIB_NO_MEMBER, 0, &upcalls, probe,
                          &probe->link) != TRIB_OK) {
        probe->link = NULL;
        note_attempt(core, probe, false); /* this process lacks something */
    }
}

void trib_probe_end(trib_probe *probe, const char *why)
{
    trib_link *link = probe->link;
    probe->link = NULL;
    if (link != NULL) {
        link->user = NULL;
        trib_link_close(link, false, TRIB_CLOSED, why);
    }
}
