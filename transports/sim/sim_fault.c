/* sim_fault.c - faults of the simulated network, on request; see sim.h. */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "transports/sim/sim_internal.h"

void trib_sim_node_relink(trib_sim_node *node, const trib_sim_link *link)
{
    node->machine->link = *link;
    trib_sim_node_rates(node->machine);
}

void trib_sim_net_weather(trib_sim_net *net, const trib_sim_weather *weather)
{
    trib_assert(weather->delay_ns >= 0);
    net->weather = *weather;
}

void trib_sim_net_forge(trib_sim_net *net, trib_sim_forge *forge, void *user)
{
    net->forge = forge;
    net->forge_user = user;
}

/* ---- Partitions ---- */

static bool is_open(const sim_end *end)
{
    return end->transport != NULL && (end->state == SIM_OPEN || end->state == SIM_FLUSHING);
}

/* The shorter of the silence limits of both ends; 0: neither has one. */
static int64_t silence_of(const sim_pair *pair)
{
    int64_t least_ns = 0;
    for (unsigned i = 0; i < 2; i++) {
        int64_t mine_ns = is_open(&pair->ends[i]) ? pair->ends[i].transport->silence_ns : 0;
        least_ns = mine_ns > 0 && (least_ns == 0 || mine_ns < least_ns) ? mine_ns : least_ns;
    }
    return least_ns;
}

/* Since when nothing has moved on the connection, as that end sees it; -1: it awaits nothing. What waits for its turn
 * on this side's link is not under way yet, and what the peer's kernel has is acknowledged. */
static int64_t silent_since(const sim_end *end)
{
    const sim_pair *pair = end->pair;
    const sim_flow *out = &pair->flows[end->index], *in = &pair->flows[1 - end->index];
    if (!sim_flow_is_waiting(out) || (out->window_used == out->arrived && trib_sim_reachable(pair))) {
        return -1;
    }
    return out->progress_ns > in->arrived_ns ? out->progress_ns : in->arrived_ns;
}

void trib_sim_pair_check_silence(trib_sim *sim, trib_sim_event *event)
{
    sim_pair *pair = trib_container_of(event, sim_pair, silence);
    const int64_t now_ns = trib_sim_now(sim);
    for (unsigned i = 0; i < 2; i++) {
        sim_end *end = &pair->ends[i];
        const int64_t since_ns = silent_since(end), silent_ns = now_ns - since_ns;
        if (is_open(end) && end->transport->silence_ns > 0 && since_ns >= 0 &&
            silent_ns >= end->transport->silence_ns) {
            trib_sim_flow_drop(&pair->flows[i]);
            trib_sim_end_begin(end, TRIB_PEER_LOST, "no answer for %.1f s", (double)silent_ns / 1e9);
        }
    }
    const int64_t again_ns = silence_of(pair) / 4;
    const bool is_waiting = sim_flow_is_waiting(&pair->flows[0]) || sim_flow_is_waiting(&pair->flows[1]);
    if (again_ns > 0 && (is_waiting || !trib_sim_reachable(pair))) {
        trib_sim_set(sim, event, now_ns + again_ns);
    }
}

void trib_sim_pair_watch_silence(sim_pair *pair)
{
    const int64_t silence_ns = silence_of(pair);
    if (silence_ns > 0 && !trib_sim_event_is_set(&pair->silence)) {
        trib_sim_set(pair->net->sim, &pair->silence, trib_sim_now(pair->net->sim) + silence_ns);
    }
}

/* Looks at all connections of a node whose links have changed. */
static void look_around(const trib_sim_node *node)
{
    for (sim_pair *pair = node->net->pairs; pair != NULL; pair = pair->next) {
        if (pair->ends[0].node != node && pair->ends[1].node != node) {
            continue;
        }
        trib_sim_pair_watch_silence(pair);
        trib_sim_pair_look(pair);
    }
}

void trib_sim_node_regroup(trib_sim_node *node, uint32_t group)
{
    node->group = group;
    look_around(node);
}

void trib_sim_node_block(trib_sim_node *node, bool out, bool in)
{
    node->blocks_out = out;
    node->blocks_in = in;
    look_around(node);
}

void trib_sim_node_shun(trib_sim_node *node, trib_sim_node *other, bool begins)
{
    trib_assert(node->index < 64 && other->index < 64 && node != other);
    const uint64_t it = UINT64_C(1) << node->index, others = UINT64_C(1) << other->index;
    node->shuns = begins ? node->shuns | others : node->shuns & ~others;
    other->shuns = begins ? other->shuns | it : other->shuns & ~it;
    look_around(node);
}

void trib_sim_node_reject(trib_sim_node *node, bool begins)
{
    node->is_rejected = begins;
}

/* ---- Ends of connections ---- */

/* Drops what both kernels have; both ends see the reset. */
static void cut_pair(sim_pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        trib_sim_flow_drop(&pair->flows[i]);
        if (pair->ends[1 - i].state != SIM_GONE && trib_sim_reachable(pair)) {
            trib_sim_flow_reset(&pair->flows[i]);
        }
    }
}

/* Ends that cannot reach each other would not see a reset. */
static bool may_be_reset(const sim_pair *pair)
{
    return is_open(&pair->ends[0]) && is_open(&pair->ends[1]) && trib_sim_reachable(pair);
}

/* Finds the open connection number index modulo their count; NULL if there is none. */
static sim_pair *find_open(const trib_sim_net *net, uint64_t index)
{
    uint64_t open = 0;
    for (const sim_pair *pair = net->pairs; pair != NULL; pair = pair->next) {
        open += may_be_reset(pair);
    }
    sim_pair *found = NULL;
    index = open > 0 ? index % open : 0;
    for (sim_pair *pair = net->pairs; pair != NULL && found == NULL; pair = pair->next) {
        found = may_be_reset(pair) && index-- == 0 ? pair : NULL;
    }
    return found;
}

bool trib_sim_net_reset(trib_sim_net *net, uint64_t index)
{
    sim_pair *pair = find_open(net, index);
    if (pair != NULL) {
        cut_pair(pair);
    }
    return pair != NULL;
}

bool trib_sim_net_forget(trib_sim_net *net, uint64_t index)
{
    sim_pair *pair = find_open(net, index);
    if (pair != NULL) {
        pair->forgotten = true;
        trib_sim_pair_watch_silence(pair);
    }
    return pair != NULL;
}

void trib_sim_node_kill(trib_sim_node *node)
{
    node->dead = true;
    for (sim_pair *pair = node->net->pairs; pair != NULL; pair = pair->next) {
        for (unsigned i = 0; i < 2; i++) {
            sim_end *end = &pair->ends[i];
            if (end->node != node || end->state == SIM_GONE) {
                continue;
            }
            trib_sim_flow_drop(&pair->flows[i]);
            pair->flows[1 - i].over = true;
            if (pair->ends[1 - i].state != SIM_GONE && trib_sim_reachable(pair)) {
                trib_sim_flow_reset(&pair->flows[i]);
            }
            if (end->transport != NULL) {
                trib_sim_end_begin(end, TRIB_PEER_LOST, "this process was killed");
            }
        }
    }
}
