/*
 * link_host.h - the state that the links of one reactor share: its transport, its scheduler, its credits, and records
 * to use again.
 *
 * It is embedded in what one reactor of an engine owns (engine/core/core.h), which fills in the first group when it
 * opens. Everything here belongs to the reactor's thread.
 */
#ifndef TRIB_ENGINE_LINK_LINK_HOST_H
#define TRIB_ENGINE_LINK_LINK_HOST_H

#include "engine/job/core_stats.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_self.h"
#include "engine/link/link_stats.h"
#include "engine/link/scheduler.h"
#include "engine/trace/trace_ring.h"

struct trib_core;

struct trib_link_host {
    struct trib_core *core; /* the owner, for the upper layers; not looked into here */
    trib_engine *engine;
    trib_reactor *reactor;
    const trib_link_upcalls *incoming; /* of accepted links, until the handshake tells what they are for */
    trib_core_stats *stats;
    trib_trace_ring *trace;

    trib_transport *transport;
    trib_address address; /* where others reach this reactor */
    uint32_t epoch;       /* of the roster that this reactor knows of, 0: none yet; in every frame that it sends */
    bool is_closed;       /* the job is over: no connection is accepted */

    trib_link *links; /* all that there are, newest first (utlist.h) */
    trib_scheduler scheduler;
    uint32_t push_credit, pull_credit; /* bytes */
    trib_send_record *free_outs;       /* records that are used again */
    trib_self_leases leases;
    trib_link_stats *loads; /* by member; NULL: nothing is counted */

    /* Log lines about connections that were turned away (link_handshake.c). */
    int64_t refused_since_ns; /* when the minute began in which lines are counted; 0: none was turned away yet */
    uint32_t refused_logged, refused_unlogged;
    char refused_last[TRIB_REASON_MAX]; /* "": none */
};

/* Before the transport is opened. The credits are the engine's settings. */
void trib_link_host_open(trib_link_host *host);
/* After the last link has gone and the transport is closed. */
void trib_link_host_close(trib_link_host *host);
/* Counted in stats.allocations; NULL when out of memory. Freed with free(). */
void *trib_link_zalloc(trib_link_host *host, size_t size);

/* link_handshake.c: logs that a connection was turned away; a minute has a bounded number of lines, and then one with a
 * count. */
void trib_link_note_refused(trib_link_host *host, const char *what, const char *text);
void trib_link_report_refused(trib_link_host *host, bool now);

#endif
