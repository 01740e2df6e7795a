/* link_host.c - see link_host.h. */
#include "engine/link/link_host.h"

#include <stdlib.h>

#include "engine/base/assert.h"

void *trib_link_zalloc(trib_link_host *host, size_t size)
{
    return trib_job_zalloc(host->engine, &host->stats->allocations, size);
}

void trib_link_host_open(trib_link_host *host)
{
    host->push_credit = host->engine->config.push_credit_bytes;
    host->pull_credit = host->engine->config.pull_credit_bytes;
    trib_scheduler_open(host);
    trib_self_leases_open(&host->leases, host);
}

void trib_link_host_close(trib_link_host *host)
{
    trib_assert(host->half_open == NULL && host->half_open_count == 0);
    trib_assert(host->sessions[false] == NULL && host->sessions[true] == NULL);
    trib_session_close_host(host);
    while (host->free_outs != NULL) {
        trib_send_record *out = host->free_outs;
        host->free_outs = out->next;
        free(out);
    }
    trib_self_leases_close(&host->leases);
    trib_scheduler_close(host);
}

bool trib_link_host_is_leaving(const trib_link_host *host)
{
    bool is_leaving = false;
    for (const trib_link *link = host->links; link != NULL; link = link->next) {
        is_leaving = is_leaving || link->leaving;
    }
    return is_leaving;
}

void trib_link_note_refused(trib_link_host *host, trib_refusal kind, const char *address, const char *reason)
{
    trib_refused_note(&host->refused, host->reactor, trib_now(host->reactor), kind, address, reason);
}

void trib_link_report_refused(trib_link_host *host, bool now)
{
    trib_refused_report(&host->refused, host->reactor, trib_now(host->reactor), now);
}
