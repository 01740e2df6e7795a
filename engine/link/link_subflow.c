/* link_subflow.c - see link_subflow.h. */
#include "engine/link/link_subflow.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/wire/address_list.h"
#include "engine/link/link_priority.h"

/* ---- Which there are ---- */

/* NULL after the last. */
static const char *next_address(const char *at)
{
    at += strcspn(at, ",");
    at += *at == ',';
    return *at != '\0' ? at : NULL;
}

/* The list with that entry first; the others are where the connection can go on if that fails. */
static trib_address rotate_address_list(const trib_address *list, uint32_t index)
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
    const bool is_near = trib_address_list_compare_machines(link->host->address.text, info->addresses[0].text) == 0;
    const uint32_t count = is_near ? 1 : trib_roster_networks(roster, link->peer, link->peer_reactor);
    return count < TRIB_SUBFLOWS_MAX + 1 ? count : TRIB_SUBFLOWS_MAX + 1;
}

void trib_link_subflow_choose_rail(trib_link *link, const trib_address *to)
{
    const uint32_t networks = networks_of(link);
    if (networks == 1) {
        return;
    }
    for (const char *at = next_address(to->text); at != NULL; at = next_address(at)) {
        link->rail += trib_address_list_compare(at, to->text) < 0;
    }
    link->rail %= TRIB_SUBFLOWS_MAX + 1;
    link->forks = link->purpose == TRIB_PURPOSE_DATA;
    trib_egress_divide(link->host, networks);
}

/* ---- Making them ---- */

void trib_link_subflow_ready(trib_link *subflow)
{
    trib_assert(subflow->outgoing && subflow->main != NULL);
    trib_egress_join_in(subflow);
    trib_link_subflows_update(subflow->main);
    trib_link_pump_later(subflow->main);
}

void trib_link_subflows_connect(trib_link *link)
{
    trib_link_host *host = link->host;
    if (!link->forks) {
        return;
    }
    const trib_address *list = &host->engine->roster->members[link->peer].addresses[link->peer_reactor];
    const uint32_t networks = networks_of(link);
    for (uint32_t i = 1; i < networks; i++) {
        const trib_address to = rotate_address_list(list, i);
        trib_link *subflow = NULL;
        if (trib_link_connect(host, &to, TRIB_PURPOSE_SUBFLOW, link->peer, link->peer_reactor,
                              &trib_link_second_upcalls, NULL, &subflow) == TRIB_OK) {
            subflow->main = link;
            link->subflows[i - 1] = subflow;
            link->has_subflows = true;
        }
    }
}

/* ---- What goes over them ---- */

/* Has it the handshake behind it? The side that accepted it begins when the other has (link_priority.c). */
static bool may_carry(const trib_link *link)
{
    return link->state == TRIB_LINK_READY && (link->main == NULL || link->outgoing || link->has_received);
}

trib_link *trib_link_subflow_least_loaded(trib_link *link)
{
    if (!link->has_subflows) {
        return link->state == TRIB_LINK_READY && link->in_flight < link->credit ? link : NULL;
    }
    trib_link *best = NULL;
    uint32_t ready = 0;
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        trib_link *connection = trib_link_connection(link, i);
        if (connection != NULL && connection != link->priority_link && may_carry(connection)) {
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

static void update_egress_wait(trib_link *connection)
{
    if (connection->flow.egress == NULL) {
        return;
    }
    if (trib_link_has_work(connection) && connection->state != TRIB_LINK_CLOSING) {
        trib_egress_wait(connection);
    } else {
        trib_egress_rest(connection);
    }
}

void trib_link_subflows_update(trib_link *link)
{
    if (!link->has_subflows) {
        if (link->heap_size == 0 && link->begun == NULL) {
            trib_egress_rest(link);
        } else if (link->flow.egress != NULL && link->state != TRIB_LINK_CLOSING) {
            trib_egress_wait(link);
        }
        return;
    }
    update_egress_wait(link);
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX; i++) {
        if (link->subflows[i] != NULL) {
            update_egress_wait(link->subflows[i]);
        }
    }
}

/* ---- What has been begun ---- */

/* Of those of its priority it is the first, or the last. */
static void bind_request(trib_link *link, trib_send_request *request, bool first)
{
    trib_send_request **at = &link->begun;
    while (*at != NULL && ((*at)->priority > request->priority || (!first && (*at)->priority == request->priority))) {
        at = &(*at)->begun_next;
    }
    request->begun_next = *at;
    request->heap_index = TRIB_SEND_BEGUN;
    *at = request;
}

static bool unbind_request(trib_link *link, const trib_send_request *request)
{
    trib_send_request **at = &link->begun;
    while (*at != NULL && *at != request) {
        at = &(*at)->begun_next;
    }
    const bool found = *at != NULL;
    if (found) {
        *at = request->begun_next;
    }
    return found;
}

void trib_link_subflow_unbind(trib_link *link, trib_send_request *request)
{
    bool found = false;
    for (uint32_t i = 0; i < trib_link_connections(link) && !found; i++) {
        trib_link *connection = trib_link_connection(link, i);
        found = connection != NULL && unbind_request(connection, request);
    }
    trib_assert(found);
    trib_link_subflows_update(link);
}

/* Where it must go; as long as that is not there it is the first connection. */
static trib_link *target_connection(trib_link *main, const trib_send_request *request, trib_link *asks)
{
    return request->route == TRIB_ROUTE_PINNED ? trib_link_connection_or_main(main, request->connection) : asks;
}

/* What is next for this connection, begun on it. NULL: that must go over another, where it waits now. */
static trib_send_request *take_next_request(trib_link *main, trib_link *link)
{
    trib_send_request *top = main->heap_size > 0 ? main->heap[0] : NULL;
    if (top == NULL || (link->begun != NULL && link->begun->priority >= top->priority)) {
        return link->begun;
    }
    trib_link *goes = target_connection(main, top, link);
    trib_link_dequeue(main, top);
    bind_request(goes, top, goes == link && top->route != TRIB_ROUTE_PINNED);
    trib_link_subflows_update(main);
    return goes == link ? link->begun : NULL;
}

void trib_link_subflow_send_next(trib_link *link)
{
    trib_link *main = link->main != NULL ? link->main : link;
    trib_send_request *next = take_next_request(main, link);
    if (next != NULL && !next->send_chunk(link, next)) {
        trib_link_dequeue(main, next);
    }
}
