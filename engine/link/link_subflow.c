/* link_subflow.c - see link_subflow.h. */
#include "engine/link/link_subflow.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/wire/address_list.h"
#include "engine/link/link_priority.h"

/* ---- Networks of the peer ---- */

/* Returns the next entry of a list of addresses; NULL after the last. */
static const char *next_address(const char *at)
{
    at += strcspn(at, ",");
    at += *at == ',';
    return *at != '\0' ? at : NULL;
}

/* Returns the list with that entry first. The other entries follow, because the connection may fall back on them. */
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

/* Returns over how many of the peer's networks the link has a connection, 1..TRIB_NETWORKS_MAX. */
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
    trib_assert(link->rail == 0 && !link->forks);
    for (const char *at = next_address(to->text); at != NULL; at = next_address(at)) {
        link->rail += trib_address_list_compare(at, to->text) < 0;
    }
    link->rail %= TRIB_SUBFLOWS_MAX + 1;
    link->forks = link->purpose == TRIB_PURPOSE_DATA;
    trib_egress_divide(link->host, networks);
}

/* ---- Making subflows ---- */

void trib_link_subflow_ready(trib_link *subflow)
{
    trib_assert(subflow->outgoing && subflow->main != NULL);
    trib_assert(trib_link_connection_index(subflow) > 1); /* 1 is the priority link */
    trib_scheduler_connection_ready(subflow);
}

void trib_link_subflows_connect(trib_link *link)
{
    trib_link_host *host = link->host;
    if (!link->forks) {
        return;
    }
    trib_assert(link->main == NULL && !link->has_subflows);
    const trib_address *list = &host->engine->roster->members[link->peer].addresses[link->peer_reactor];
    const uint32_t networks = networks_of(link);
    for (uint32_t i = 1; i < networks; i++) {
        const trib_address to = rotate_address_list(list, i);
        trib_link *subflow = NULL;
        trib_assert(i <= TRIB_SUBFLOWS_MAX && link->subflows[i - 1] == NULL);
        if (trib_link_connect(host, &to, TRIB_PURPOSE_SUBFLOW, link->peer, link->peer_reactor,
                              &trib_link_second_upcalls, NULL, &subflow) == TRIB_OK) {
            subflow->main = link;
            link->subflows[i - 1] = subflow;
            link->has_subflows = true;
        }
    }
}
