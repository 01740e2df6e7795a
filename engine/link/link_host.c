/* link_host.c - see link_host.h. */
#include "engine/link/link_host.h"

#include <stdlib.h>

#include "engine/base/container_of.h"

void *trib_link_zalloc(trib_link_host *host, size_t size)
{
    return trib_job_zalloc(host->engine, &host->stats->allocations, size);
}

static void pump_links(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_link_host *host = trib_container_of(post, trib_link_host, pump_post);
    while (host->pump_head != NULL) {
        trib_link *link = host->pump_head;
        host->pump_head = link->pump_next;
        link->pump_queued = false;
        trib_link_pump(link);
    }
}

void trib_link_pump_later(trib_link *link)
{
    trib_link_host *host = link->host;
    if (!link->pump_queued) {
        link->pump_queued = true;
        trib_link **at = &host->pump_head;
        while (link->conn == NULL && *at != NULL) {
            at = &(*at)->pump_next; /* others first: what is for this process is here already */
        }
        link->pump_next = *at;
        *at = link;
    }
    trib_reactor_defer(host->reactor, &host->pump_post);
}

void trib_link_host_open(trib_link_host *host)
{
    host->push_credit = host->engine->config.push_credit_bytes;
    host->pull_credit = host->engine->config.pull_credit_bytes;
    host->pump_post.run = pump_links;
    trib_egress_divide(host, 1);
    trib_self_leases_open(&host->leases, host);
}

void trib_link_host_close(trib_link_host *host)
{
    while (host->free_outs != NULL) {
        trib_send_record *out = host->free_outs;
        host->free_outs = out->next;
        free(out);
    }
    trib_self_leases_close(&host->leases);
    trib_egress_close(host);
}
