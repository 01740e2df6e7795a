/* egress.c - see egress.h. */
#include "engine/link/egress.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_host.h"

#define PART_MIN (512u << 10) /* least credit in bytes of each of several networks: two chunks */
#define SLOW_MIN (128u << 10) /* least credit in bytes of each of several reactors with slow links */

static void *allocate_waiting(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

trib_status trib_egress_join(trib_egress *egress, trib_link *link)
{
    if (!trib_min_heap_reserve(&egress->waiting, egress->link_count + 1, allocate_waiting, NULL)) {
        return TRIB_NO_MEMORY;
    }
    trib_assert(link->flow.egress == NULL && link->flow.node.place == 0);
    egress->link_count++;
    link->flow.egress = egress;
    return TRIB_OK;
}

void trib_egress_leave(trib_link *link)
{
    if (link->flow.egress != NULL) {
        trib_egress_stop_waiting(link);
        trib_assert(link->in_flight == 0);
        trib_assert(link->flow.egress->link_count > 0 && link->flow.node.place == 0);
        link->flow.egress->link_count--;
        if (link->conn != NULL) {
            link->conn->awaits_sent = NULL;
        }
        link->flow.egress = NULL;
    }
}

void trib_egress_join_in(trib_link *subflow)
{
    trib_assert(subflow->main != NULL && subflow->flow.egress != NULL && subflow->flow.weight == 0);
    subflow->flow.weight = subflow->main->flow.weight;
    subflow->flow.egress->weight += subflow->flow.weight;
}

static void set_limit(const trib_link_host *host, trib_egress *egress)
{
    trib_assert(host->scheduler.network_count > 0);
    const uint64_t part = host->push_credit / host->scheduler.network_count;
    const uint64_t wanted = egress->is_slow ? part / host->engine->core_count : part;
    const uint64_t enough = egress->is_slow ? SLOW_MIN : PART_MIN;
    const uint64_t least = host->push_credit < enough ? host->push_credit : enough;
    egress->limit = wanted > least ? wanted : least;
}

void trib_egress_divide(trib_link_host *host, uint32_t networks)
{
    trib_assert(networks >= 1 && networks <= TRIB_NETWORKS_MAX);
    if (networks <= host->scheduler.network_count) {
        return;
    }
    host->scheduler.network_count = networks;
    for (uint32_t i = 0; i < networks; i++) {
        set_limit(host, &host->scheduler.networks[i]);
    }
}

static void change_flow(trib_egress_flow *flow, uint64_t more, uint64_t less)
{
    trib_assert(flow->weight >= less);
    flow->weight += more - less;
    flow->egress->weight += more - less;
    trib_assert(flow->egress->weight >= flow->weight); /* it is the sum over the flows */
}

/* Adds bytes to the weight of all of the link's connections, or takes bytes from them. A subflow that is not ready yet
 * gets the whole weight later, from trib_egress_join_in. */
static void change_weight(trib_link *link, uint64_t more, uint64_t less)
{
    change_flow(&link->flow, more, less);
    for (uint32_t i = 0; link->has_subflows && i < TRIB_SUBFLOWS_MAX; i++) {
        trib_link *subflow = link->subflows[i];
        if (subflow != NULL && trib_link_is_up(subflow) && subflow->flow.egress != NULL) {
            change_flow(&subflow->flow, more, less);
        }
    }
}

static inline trib_min_heap_key flow_key(const trib_egress_flow *flow)
{
    return (trib_min_heap_key){.major = trib_min_heap_key_of_double(flow->at)};
}

void trib_egress_wait(trib_link *link)
{
    trib_egress_flow *flow = &link->flow;
    trib_egress *egress = flow->egress;
    if (flow->node.place == 0) {
        flow->at = flow->at > egress->clock ? flow->at : egress->clock; /* an idle link saves up no share */
        trib_assert(egress->waiting.count < egress->link_count);
        trib_min_heap_insert(&egress->waiting, &flow->node, flow_key(flow));
    }
}

void trib_egress_move(trib_link *from, trib_link *to, uint64_t bytes)
{
    if (from != NULL && from->flow.egress != NULL) {
        /* the link may be younger than the partition */
        change_weight(from, 0, bytes < from->flow.weight ? bytes : from->flow.weight);
    }
    if (to != NULL && to->flow.egress != NULL) {
        change_weight(to, bytes, 0);
    }
}

void trib_egress_stop_waiting(trib_link *link)
{
    if (link->flow.node.place != 0) {
        trib_min_heap_remove(&link->flow.egress->waiting, &link->flow.node);
        trib_link_note_waiting(link, false);
    }
}

trib_link *trib_egress_waiting_link(const trib_egress *egress, uint32_t i)
{
    trib_assert(i < egress->waiting.count);
    return trib_container_of(egress->waiting.slots[i].node, trib_link, flow.node);
}

/* A host may use several transports, and most of them never report slow links. So only the transport that reported slow
 * links may report them fast again. */
static inline void note_transport_speed(const trib_link_host *host, trib_egress *egress,
                                        const trib_transport *transport)
{
    if (transport->is_slow ? egress->is_slow : egress->slow_by != transport) {
        return;
    }
    egress->is_slow = transport->is_slow;
    egress->slow_by = transport->is_slow ? transport : NULL;
    trib_log(host->reactor->logger, TRIB_LOG_INFO, "reactor %u: %s", host->reactor->index,
             egress->is_slow ? "links are slow, so little is under way at a time, and packets are spaced out"
                             : "links are not slow any more, so the whole credit may be under way");
    set_limit(host, egress);
}

trib_link *trib_egress_begin_turn(trib_link_host *host, trib_egress *egress)
{
    trib_link *link = trib_egress_waiting_link(egress, 0);
    egress->clock = link->flow.at;
    if (link->conn != NULL) {
        note_transport_speed(host, egress, link->conn->transport);
    }
    return link;
}

void trib_egress_end_turn(trib_link *link, uint64_t bytes)
{
    trib_assert(link->flow.weight <= link->flow.egress->weight);
    trib_egress_flow *flow = &link->flow;
    /* A weight of 0 occurs only for tensors without bytes. Such tensors are few, so they need no fair share. */
    const double share = flow->weight > 0 ? (double)flow->weight / (double)flow->egress->weight : 1.0;
    flow->at += (double)bytes / share;
    if (flow->node.place != 0) {
        trib_min_heap_update(&flow->egress->waiting, &flow->node, flow_key(flow));
    }
}

bool trib_egress_is_slow(const trib_link_host *host)
{
    bool all = true;
    for (uint32_t i = 0; i < host->scheduler.network_count; i++) {
        all = all && host->scheduler.networks[i].is_slow;
    }
    return all;
}

void trib_egress_close(trib_link_host *host)
{
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX + 1; i++) {
        trib_assert(host->scheduler.networks[i].link_count == 0);
        trib_assert(host->scheduler.networks[i].in_flight == 0 && host->scheduler.networks[i].messages == 0);
        trib_assert(host->scheduler.networks[i].waiting.count == 0);
        trib_min_heap_close(&host->scheduler.networks[i].waiting);
    }
}
