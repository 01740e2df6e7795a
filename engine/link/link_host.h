/*
 * link_host.h - the state that all links of one reactor share: its transport, its scheduler, its credits, and records
 * for reuse.
 *
 * The core of the reactor (engine/core/core.h) embeds it and fills in the first group when it opens. Everything here
 * belongs to the reactor's thread.
 */
#ifndef TRIB_ENGINE_LINK_LINK_HOST_H
#define TRIB_ENGINE_LINK_LINK_HOST_H

#include "engine/job/core_stats.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_refused.h"
#include "engine/link/link_self.h"
#include "engine/link/link_stats.h"
#include "engine/link/scheduler.h"
#include "engine/trace/trace_ring.h"

struct trib_core;

struct trib_link_host {
    struct trib_core *core; /* owner of the host, for the upper layers; links never look into it */
    trib_engine *engine;
    trib_reactor *reactor;
    const trib_link_upcalls *incoming; /* for accepted links, until the handshake tells their purpose */
    trib_core_stats *stats;
    trib_trace_ring *trace;

    trib_transport *transport;
    trib_address address; /* where other members reach this reactor */
    uint32_t epoch;       /* epoch of the roster that this reactor knows, 0: none yet; put into every frame */
    bool is_closed;       /* the job is over, and only links that leave get another connection */

    trib_timer life;          /* lets silent links show life (link_session.h) */
    trib_link *links;         /* all links, newest first (utlist.h) */
    trib_link *half_open;     /* accepted links that hold a descriptor and have proved nothing, newest first */
    uint32_t half_open_count; /* their number */
    /* Links that a peer may name: [0] accepted and established ones, [1] those that this side has made. One process may
     * have both ends. */
    trib_link *sessions[2];
    trib_scheduler scheduler;
    uint32_t push_credit, pull_credit; /* bytes */
    trib_send_record *free_outs;       /* records for reuse */
    uint32_t out_count;                /* records in all */
    trib_self_leases leases;
    trib_link_stats *loads; /* by member id; NULL: nothing is counted */

    trib_refused refused; /* log lines about rejected connections */
    bool is_probed;       /* a health probe has come, and was logged */
};

/* Call before the first link, on the reactor's thread or before it runs. The credits are the engine's settings. */
void trib_link_host_open(trib_link_host *host);
/* Call after the last link has gone. The transport may stay, for links of a host that is opened again. */
void trib_link_host_close(trib_link_host *host);
/* Allocates zeroed memory, counted in stats.allocations. NULL: out of memory. The caller frees it with free(). */
void *trib_link_zalloc(trib_link_host *host, size_t size);

/* True if some link waits until its peer has all frames, over another connection if this one breaks. */
bool trib_link_host_is_leaving(const trib_link_host *host);

/* Logs a rejected connection, within the bounds of link_refused.h. */
void trib_link_note_refused(trib_link_host *host, trib_refusal kind, const char *address, const char *reason);
void trib_link_report_refused(trib_link_host *host, bool now);

#endif
