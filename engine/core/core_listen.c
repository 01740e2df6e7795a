/* core_listen.c - opens a core's transport, and listens where other members look for it (core.h). */
#include "engine/core/core.h"

#include <stdio.h>
#include <string.h>

#include "engine/link/link_handshake.h"
#include "engine/wire/address_list.h"

static trib_status listen_at(trib_core *core, const trib_address *at, trib_error *error)
{
    return trib_listeners_open(&core->listeners, &core->host, at, &core->host.address, error);
}

/* Appends an address with port 0 to the list. Returns false if it does not fit. */
static bool add_host(trib_address *list, const char *host, size_t size, const char *before)
{
    const size_t length = strlen(list->text);
    const bool bare = memchr(host, ':', size) != NULL && host[0] != '[';
    const int more = snprintf(list->text + length, sizeof list->text - length, bare ? "%s[%.*s]:0" : "%s%.*s:0", before,
                              (int)size, host);
    if (more < 0 || (size_t)more >= sizeof list->text - length) {
        list->text[length] = '\0';
        return false;
    }
    return true;
}

/* Each reactor has its own listen address, shared with other reactors if there are fewer addresses. The addresses
 * after its own are alternatives if that one fails. A transport without address lists listens on the first address
 * that works. */
static trib_status listen_somewhere(trib_core *core, trib_error *error)
{
    const char *listen_hosts = core->engine->listen_host;
    const uint8_t *choice = core->engine->env.listen_choice;
    const char *own =
        trib_address_list_at(listen_hosts, choice != NULL ? choice[core->reactor->index] : core->reactor->index);
    const bool lists = (core->host.transport->ops->flags & TRIB_TRANSPORT_BREAKS) != 0;
    trib_address list = {.text = ""};
    trib_status status = TRIB_INVALID;
    for (const char *next = NULL, *host = own; host != NULL && status != TRIB_OK; host = next) {
        next = trib_address_list_next(listen_hosts, own, host);
        if (!lists) {
            list.text[0] = '\0';
        }
        const bool fits = add_host(&list, host, strcspn(host, ","), list.text[0] == '\0' ? "" : ",");
        if (lists && !fits) {
            next = NULL; /* the list is full; the remaining alternatives are dropped */
        }
        if (!lists || next == NULL) {
            status = listen_at(core, &list, error);
        }
        if (!lists && status != TRIB_OK && next != NULL) {
            trib_log(core->reactor->logger, TRIB_LOG_WARN, "reactor %u takes the next listen address: %s",
                     core->reactor->index, error->text);
        }
    }
    if (status == TRIB_SYSTEM && error != NULL) { /* the address may belong to another machine */
        const size_t used = strnlen(error->text, sizeof error->text - 1);
        snprintf(error->text + used, sizeof error->text - used,
                 " (listen \"%.80s\": TRIB_LISTEN, or trib_config.listen)", listen_hosts);
    }
    return status;
}

trib_status trib_core_listen(trib_core *core, trib_error *error)
{
    const trib_engine *engine = core->engine;
    const trib_transport_config transport = {
        .send_buffer_bytes = 0,
        .silence_timeout_ns = engine->config.peer_timeout_ns,
        .break_timeout_ns = engine->config.peer_timeout_ns / 4,
        .context = engine->env.transport_context,
        .payload_size = trib_frame_payload_size,
        .reactors = engine->core_count,
        .peers = trib_link_handshake_at_once(engine),
    };
    const trib_status status =
        engine->env.transport->open(core->reactor, &transport, &trib_link_transport_upcalls, &core->host.transport);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "transport %s: %s", engine->env.transport->name, trib_status_text(status));
    }
    return engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER) ? listen_somewhere(core, error) : TRIB_OK;
}
