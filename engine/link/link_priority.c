/* link_priority.c - see link_priority.h. */
#include "engine/link/link_priority.h"

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_subflow.h"

/* ---- Upcalls of a second connection, which gives its frames to the main link ---- */

static void second_ready(trib_link *link)
{
    if (link->purpose == TRIB_PURPOSE_SUBFLOW && link->outgoing) {
        trib_link_subflow_ready(link);
    }
}

static trib_status second_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->header(link, frame, target, error);
}

static trib_status second_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                   trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->received(link, frame, payload, in_place, error);
}

static void second_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)link;
    (void)status;
    (void)reason; /* the main link reports the end */
}

const trib_link_upcalls trib_link_second_upcalls = {
    .ready = second_ready,
    .header = second_header,
    .received = second_received,
    .closed = second_closed,
};

/* ---- Making and ending it ---- */

void trib_link_priority_connect(trib_link *link)
{
    trib_link_host *host = link->host;
    const trib_roster *roster = host->engine->roster;
    trib_assert(link->priority_link == NULL && link->peer < roster->member_count);
    trib_assert(link->main == NULL && link->outgoing);
    trib_link *priority_link = NULL;
    const trib_address *to = &roster->members[link->peer].addresses[link->peer_reactor];
    if (trib_link_connect(host, to, TRIB_PURPOSE_PRIORITY, link->peer, link->peer_reactor, &trib_link_second_upcalls,
                          NULL, &priority_link) != TRIB_OK) {
        link->priority_failed = true;
        return;
    }
    priority_link->main = link;
    link->priority_link = priority_link;
}

/* Returns the main link's place for a second connection of that purpose; NULL: none is free. */
static trib_link **free_place_in(trib_link *main, trib_purpose purpose)
{
    if (purpose == TRIB_PURPOSE_PRIORITY) {
        return main->priority_link == NULL ? &main->priority_link : NULL;
    }
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX; i++) {
        if (main->subflows[i] == NULL) {
            return &main->subflows[i];
        }
    }
    return NULL;
}

trib_link *trib_link_find_main(const trib_link *link)
{
    trib_link *main = link->host->links;
    while (main != NULL && (main->role != TRIB_LINK_ROLE_SERVER || main->peer != link->peer ||
                            main->peer_reactor != link->peer_reactor || !trib_link_is_up(main))) {
        main = main->next;
    }
    return main != NULL && free_place_in(main, link->purpose) != NULL ? main : NULL;
}

void trib_link_attach_to_main(trib_link *link)
{
    trib_link *main = trib_link_find_main(link);
    trib_assert(main != NULL);
    trib_assert(link->main == NULL && !link->outgoing);
    link->upcalls = &trib_link_second_upcalls;
    link->main = main;
    link->conn->urgent = link->purpose == TRIB_PURPOSE_PRIORITY;
    main->has_subflows = main->has_subflows || link->purpose == TRIB_PURPOSE_SUBFLOW;
    *free_place_in(main, link->purpose) = link;
}

bool trib_link_detach_from_main(trib_link *link)
{
    trib_link *main = link->main;
    if (main == NULL) {
        return false;
    }
    trib_assert(trib_link_connection(main, trib_link_connection_index(link)) == link);
    if (main->priority_link == link) {
        main->priority_link = NULL;
    }
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX; i++) {
        main->subflows[i] = main->subflows[i] == link ? NULL : main->subflows[i];
    }
    link->main = NULL;
    return main->main_gone && !trib_link_has_others(main);
}
