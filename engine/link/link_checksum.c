/* link_checksum.c - see link_checksum.h. */
#include "engine/link/link_checksum.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/link/link_host.h"
#include "engine/link/link_reconnect.h"

static bool is_wanted(const trib_link *link)
{
    const trib_engine *engine = link->host->engine;
    if (link->conn == NULL) { /* the frame waits for another connection, which may be of any kind */
        return engine->config.checksum != TRIB_CHECKSUM_OFF && !link->redial.needs_offer &&
               (engine->config.checksum == TRIB_CHECKSUM_ON || engine->env.crc32c->is_fast);
    }
    switch (link->conn->path) {
    case TRIB_PATH_NETWORK:
        return engine->config.checksum == TRIB_CHECKSUM_ON ||
               (engine->config.checksum == TRIB_CHECKSUM_AUTO && engine->env.crc32c->is_fast);
    case TRIB_PATH_MACHINE:
        return engine->config.checksum == TRIB_CHECKSUM_ON;
    case TRIB_PATH_DEVICE:
        return false;
    }
    return false;
}

static uint32_t compute(const trib_link_host *host, const void *payload, uint32_t size)
{
    const uint32_t crc = host->engine->env.crc32c->compute(payload, size);
    trib_charge(host->reactor, TRIB_COST_CHECK, size);
    return crc != 0 ? crc : UINT32_MAX;
}

uint32_t trib_link_checksum_of(const trib_link *link, const void *payload, uint32_t payload_size)
{
    return payload_size > 0 && is_wanted(link) ? compute(link->host, payload, payload_size) : 0;
}

/* Counts it, and says where to look. */
static trib_status note_damage(const trib_link *link, const char *what, const char *how, trib_error *error)
{
    const trib_link_host *host = link->host;
    const char *here = host->address.text;
    trib_assert(link->conn != NULL);
    trib_counter_add(&host->stats->payloads_damaged, 1);
    const trib_status status =
        trib_error_set(error, TRIB_PEER_LOST,
                       "%s was damaged on its way from %s to %.*s (%s): check the memory and network cards of both "
                       "machines and what is between them, and that nobody writes to a buffer while it is summed",
                       what, link->conn->remote.text, (int)strcspn(here, "+,"), here, how);
    if (link->proved) { /* otherwise it is logged among those that are turned away, which is bounded */
        trib_log(host->reactor->logger, TRIB_LOG_WARN, "%s", error->text);
    }
    return status;
}

trib_status trib_link_checksum_header(const trib_link *link, trib_error *error)
{
    return note_damage(link, "the header of a message", "its checksum does not match", error);
}

trib_status trib_link_checksum_compare(trib_link *link, const trib_frame *frame, const void *payload, trib_error *error)
{
    if (frame->crc == 0 || frame->payload_size == 0) {
        return TRIB_OK;
    }
    const trib_link_host *host = link->host;
    trib_lease *lease = trib_conn_lease(link->conn, false);
    const uint32_t crc = compute(host, payload, frame->payload_size);
    if (lease != NULL && !lease->end(lease)) {
        return trib_error_set(error, TRIB_PEER_LOST, "the connection ended while its payload was read");
    }
    if (crc == frame->crc) {
        return TRIB_OK;
    }
    char what[64], how[64];
    snprintf(what, sizeof what, "a %s of %u bytes", trib_frame_name(frame->type), frame->payload_size);
    snprintf(how, sizeof how, "CRC32C %08x, sent with %08x", crc, frame->crc);
    return note_damage(link, what, how, error);
}

bool trib_link_damaged(trib_link *link)
{
    trib_link_redial *redial = &link->redial;
    trib_assert(!redial->is_damaged); /* no frame is taken after it */
    if (link->bye) {                  /* the peer has left in good order, and that was no frame that anybody needs */
        redial->is_damaged = true;
        return true;
    }
    if (!trib_redial_may_go_on(link, TRIB_PEER_LOST)) {
        return false;
    }
    if (link->state != TRIB_LINK_READY && link->state != TRIB_LINK_LEAVING) {
        redial->is_damaged = true; /* this attempt has failed */
        return true;
    }
    redial->is_damaged = ++redial->damaged < TRIB_DAMAGES_MAX;
    return redial->is_damaged;
}
