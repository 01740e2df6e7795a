/* link_strands.c - see link_strands.h. */
#include "engine/link/link_strands.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/wire/hosts.h"
#include "engine/link/link_express.h"

/* ---- Which there are ---- */

/* NULL after the last. */
static const char *next_address(const char *at)
{
    at += strcspn(at, ",");
    at += *at == ',';
    return *at != '\0' ? at : NULL;
}

/* The list with that entry first; the others are where the connection can go on if that fails. */
static trib_address begin_with(const trib_address *list, uint32_t index)
{
    trib_address turned = {.text = ""};
    const char *at = list->text;
    for (uint32_t skip = index; skip > 0; skip--) {
        at = next_address(at);
    }
    const size_t length = strcspn(at, ",");
    const size_t before = (size_t)(at - list->text), behind = strlen(at + length);
    snprintf(turned.text, sizeof turned.text, "%.*s,%.*s%.*s", (int)length, at, (int)before, list->text,
             behind > 0 ? (int)behind - 1 : 0, behind > 0 ? at + length + 1 : "");
    return turned;
}

/* To how many networks of the peer's the link has a connection. */
static uint32_t networks_of(const trib_link *link)
{
    const trib_roster *roster = link->host->engine->roster;
    if (!trib_link_carries_data(link) || roster == NULL || link->peer >= roster->member_count) {
        return 1;
    }
    const trib_member_info *info = &roster->members[link->peer];
    const bool is_near = trib_hosts_compare_machines(link->host->address.text, info->addresses[0].text) == 0;
    const uint32_t count = is_near ? 1 : trib_roster_networks(roster, link->peer, link->peer_reactor);
    return count < TRIB_STRANDS_MAX + 1 ? count : TRIB_STRANDS_MAX + 1;
}

void trib_link_strands_choose(trib_link *link, const trib_address *to)
{
    const uint32_t networks = networks_of(link);
    if (networks == 1) {
        return;
    }
    for (const char *at = next_address(to->text); at != NULL; at = next_address(at)) {
        link->rail += trib_hosts_compare(at, to->text) < 0;
    }
    link->rail %= TRIB_STRANDS_MAX + 1;
    link->forks = link->purpose == TRIB_PURPOSE_DATA;
    trib_egress_divide(link->host, networks);
}

/* ---- Making them ---- */

void trib_link_strands_ready(trib_link *strand)
{
    trib_assert(strand->outgoing && strand->main != NULL);
    trib_egress_join_in(strand);
    trib_link_strands_settle(strand->main);
    trib_link_pump_later(strand->main);
}

void trib_link_strands_make(trib_link *link)
{
    trib_link_host *host = link->host;
    if (!link->forks) {
        return;
    }
    const trib_address *list = &host->engine->roster->members[link->peer].addresses[link->peer_reactor];
    const uint32_t networks = networks_of(link);
    for (uint32_t i = 1; i < networks; i++) {
        const trib_address to = begin_with(list, i);
        trib_link *strand = NULL;
        if (trib_link_connect(host, &to, TRIB_PURPOSE_STRAND, link->peer, link->peer_reactor, &trib_link_second_upcalls,
                              NULL, &strand) == TRIB_OK) {
            strand->main = link;
            link->strands[i - 1] = strand;
            link->has_strands = true;
        }
    }
}

/* ---- What goes over them ---- */

/* Has it the handshake behind it? The side that accepted it begins when the other has (link_express.c). */
static bool may_carry(const trib_link *link)
{
    return link->state == TRIB_LINK_READY && (link->main == NULL || link->outgoing || link->heard);
}

trib_link *trib_link_strands_roomiest(trib_link *link)
{
    if (!link->has_strands) {
        return link->state == TRIB_LINK_READY && link->in_flight < link->credit ? link : NULL;
    }
    trib_link *best = NULL;
    uint32_t ready = 0;
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        trib_link *connection = trib_link_connection(link, i);
        if (connection != NULL && connection != link->express && may_carry(connection)) {
            ready++;
            best = best == NULL || connection->in_flight < best->in_flight ? connection : best;
        }
    }
    return best != NULL && best->in_flight < link->credit / ready ? best : NULL;
}

bool trib_link_has_work(const trib_link *link)
{
    const trib_link *main = trib_link_main(link);
    return link->begun != NULL || (main->heap_size > 0 && (link == main || may_carry(link)));
}

static void settle_one(trib_link *connection)
{
    if (connection->share.egress == NULL) {
        return;
    }
    if (trib_link_has_work(connection) && connection->state != TRIB_LINK_CLOSING) {
        trib_egress_wait(connection);
    } else {
        trib_egress_rest(connection);
    }
}

void trib_link_strands_settle(trib_link *link)
{
    if (!link->has_strands) {
        if (link->heap_size == 0 && link->begun == NULL) {
            trib_egress_rest(link);
        } else if (link->share.egress != NULL && link->state != TRIB_LINK_CLOSING) {
            trib_egress_wait(link);
        }
        return;
    }
    settle_one(link);
    for (uint32_t i = 0; i < TRIB_STRANDS_MAX; i++) {
        if (link->strands[i] != NULL) {
            settle_one(link->strands[i]);
        }
    }
}

/* ---- What has been begun ---- */

/* Of those of its priority it is the first, or the last. */
static void bind(trib_link *link, trib_waiter *waiter, bool first)
{
    trib_waiter **at = &link->begun;
    while (*at != NULL && ((*at)->priority > waiter->priority || (!first && (*at)->priority == waiter->priority))) {
        at = &(*at)->begun_next;
    }
    waiter->begun_next = *at;
    waiter->heap_index = TRIB_WAITER_BEGUN;
    *at = waiter;
}

static bool unbind(trib_link *link, const trib_waiter *waiter)
{
    trib_waiter **at = &link->begun;
    while (*at != NULL && *at != waiter) {
        at = &(*at)->begun_next;
    }
    const bool found = *at != NULL;
    if (found) {
        *at = waiter->begun_next;
    }
    return found;
}

void trib_link_strands_unbind(trib_link *link, trib_waiter *waiter)
{
    bool found = false;
    for (uint32_t i = 0; i < trib_link_connections(link) && !found; i++) {
        trib_link *connection = trib_link_connection(link, i);
        found = connection != NULL && unbind(connection, waiter);
    }
    trib_assert(found);
    trib_link_strands_settle(link);
}

/* Where it must go; as long as that is not there it is the first connection. */
static trib_link *place_of(trib_link *main, const trib_waiter *waiter, trib_link *asks)
{
    return waiter->route == TRIB_ROUTE_PINNED ? trib_link_express_follow(main, waiter->connection) : asks;
}

/* What is next for this connection, begun on it. NULL: that must go over another, where it waits now. */
static trib_waiter *take_next(trib_link *main, trib_link *link)
{
    trib_waiter *top = main->heap_size > 0 ? main->heap[0] : NULL;
    if (top == NULL || (link->begun != NULL && link->begun->priority >= top->priority)) {
        return link->begun;
    }
    trib_link *goes = place_of(main, top, link);
    trib_link_dequeue(main, top);
    bind(goes, top, goes == link && top->route != TRIB_ROUTE_PINNED);
    trib_link_strands_settle(main);
    return goes == link ? link->begun : NULL;
}

void trib_link_strands_emit(trib_link *link)
{
    trib_link *main = link->main != NULL ? link->main : link;
    trib_waiter *next = take_next(main, link);
    if (next != NULL && !next->emit(link, next)) {
        trib_link_dequeue(main, next);
    }
}
