/* server.c - the server's side of one core: its links from workers, its opening and closing, and its checks at every
 * tick. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/core/wireup.h"
#include "engine/link/link_cause.h"
#include "engine/server/keeper.h"
#include "engine/server/quorum.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"
#include "engine/server/takeover.h"

void trib_server_tick(trib_core *core)
{
    if (core->sums != NULL && !core->ended) {
        trib_server_sums_scan(core);
        trib_server_sums_fill(core); /* neutral elements for which there was no memory */
        trib_server_free_ended_groups(core);
        trib_keepers_check(core);
        trib_quorums_check(core);
        if (!atomic_load(&core->engine->losses.drains)) { /* else reports go to the next owner */
            trib_takeovers_check(core);
        }
        trib_server_resume(core); /* links that found no memory for a contribution ask again */
        trib_server_check_memory(core);
    }
}

void trib_server_resume(trib_core *core)
{
    for (uint32_t i = 0; core->sums != NULL && i < core->engine->roster->worker_count; i++) {
        if (core->worker_links[i] != NULL) {
            trib_link_resume(core->worker_links[i]);
        }
    }
}

/* ---- Links from workers ---- */

static void server_ready(trib_link *link)
{
    (void)link; /* the accepting side has called trib_server_adopt already */
}

/* True if the link may be that worker's: nobody else has its place, and it has the roster. */
static bool is_from_worker(const trib_link *link, const trib_roster *roster)
{
    return link->peer < roster->worker_count && link->core->worker_links[link->peer] == NULL &&
           link->peer_epoch == roster->epoch;
}

/* Ends a connection that claims a worker's rank wrongly. The worker itself is not to blame. */
static void reject(trib_link *link)
{
    char text[TRIB_REASON_MAX];
    snprintf(text, sizeof text,
             "it claims to be rank %u, which has a connection, or does not exist, or has another roster", link->peer);
    trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), text);
    trib_counter_add(&link->host->stats->peers_refused, 1);
    link->role = TRIB_LINK_ROLE_NONE;
    trib_link_close(link, false, TRIB_PROTOCOL, "a second connection for the same worker, or an unknown rank");
}

void trib_server_adopt(trib_link *link)
{
    trib_core *core = link->core;
    trib_assert(link->role == TRIB_LINK_ROLE_NONE && !link->outgoing);
    link->upcalls = &trib_server_upcalls;
    link->role = TRIB_LINK_ROLE_SERVER;
    trib_counter_add(&core->stats.connections, 1);
    const trib_roster *roster = core->engine->roster;
    if (core->worker_links == NULL) {
        return; /* trib_server_open finds the link in the core's list */
    }
    if (!is_from_worker(link, roster)) {
        reject(link);
        return;
    }
    core->worker_links[link->peer] = link;
    trib_wireup_note_peer(core, link->peer);
}

static void server_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_core *core = link->core;
    trib_counter_take_one(&core->stats.connections);
    if (core->worker_links != NULL && link->peer < core->engine->roster->worker_count &&
        core->worker_links[link->peer] == link) {
        core->worker_links[link->peer] = NULL;
    }
    if (core->ended || link->role == TRIB_LINK_ROLE_NONE || (link->bye && status == TRIB_PEER_LEFT)) {
        return; /* trib_server_sums_scan refuses the rounds that miss this worker's contribution */
    }
    if (atomic_load(&core->engine->losses.drains)) {
        return; /* the worker goes on elsewhere; if it is lost, the coordinator notices */
    }
    trib_cause cause;
    trib_link_end_cause(link, &cause);
    trib_job_member_lost(core->engine, &cause);
}

/* ---- Opening and closing ---- */

trib_status trib_server_open(trib_core *core, trib_error *error)
{
    const trib_roster *roster = core->engine->roster;
    trib_assert(core->worker_links == NULL && core->served == NULL);
    core->worker_links = trib_core_zalloc(core, roster->worker_count * sizeof(trib_link *));
    if (core->worker_links == NULL || trib_server_sums_open(core) != TRIB_OK) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
    }
    trib_link *next;
    for (trib_link *link = core->host.links; link != NULL; link = next) {
        next = link->next;
        if (link->role != TRIB_LINK_ROLE_SERVER || !trib_link_is_up(link)) {
            continue;
        }
        if (!is_from_worker(link, roster)) {
            reject(link);
        } else {
            core->worker_links[link->peer] = link;
            trib_link_resume(link);
        }
    }
    return trib_wireup_expect_peers(core) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
}

bool trib_server_is_idle(const trib_core *core)
{
    if (atomic_load(&core->engine->losses.drains)) {
        return true; /* workers get elsewhere what it still has */
    }
    return core->entries_waiting == 0 && core->takeovers == NULL && trib_relay_is_idle(core) &&
           !trib_server_sums_owe(core);
}

void trib_server_close(trib_core *core)
{
    trib_takeovers_close(core);
    trib_keepers_close(core);
    trib_quorums_close(core);
    trib_server_sums_close(core);
    trib_server_free_entries(core);
    trib_server_codec_close(core);
    free(core->worker_links);
    core->worker_links = NULL;
    trib_server_forget_tensors(core);
    free(core->sums_over);
    core->sums_over = NULL;
    core->sums_over_capacity = 0;
}

const trib_link_upcalls trib_server_upcalls = {
    .ready = server_ready,
    .header = trib_server_header,
    .received = trib_server_received,
    .closed = server_closed,
};
