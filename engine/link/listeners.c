/* listeners.c - see listeners.h. */
#include "engine/link/listeners.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/wire/address_list.h"

static trib_status listen_at(trib_listeners *self, trib_link_host *host, const trib_address *at, trib_address *bound_io,
                             trib_error *error)
{
    const size_t length = strlen(bound_io->text);
    trib_address bound;
    trib_listener *listener = NULL;
    const trib_status status = host->transport->ops->listen(host->transport, at, host, &listener, &bound, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (length + strlen(bound.text) + 2 > sizeof bound_io->text) {
        host->transport->ops->listener_close(listener);
        return trib_error_set(error, TRIB_INVALID, "the list of listen addresses is too long");
    }
    snprintf(bound_io->text + length, sizeof bound_io->text - length, "%s%s", length > 0 ? "," : "", bound.text);
    trib_assert(self->count < TRIB_NETWORKS_MAX);
    self->each[self->count++] = listener;
    return TRIB_OK;
}

trib_status trib_listeners_open(trib_listeners *self, trib_link_host *host, const trib_address *list,
                                trib_address *bound_out, trib_error *error)
{
    const size_t count = trib_address_list_count(list->text);
    trib_error why = {.status = TRIB_OK};
    self->count = 0;
    bound_out->text[0] = '\0';
    for (size_t i = 0; i < count && self->count < TRIB_NETWORKS_MAX; i++) {
        trib_address one;
        trib_address_list_copy(list->text, i, one.text, sizeof one.text);
        if (listen_at(self, host, &one, bound_out, &why) != TRIB_OK && (self->count > 0 || i + 1 < count)) {
            trib_log(host->reactor->logger, TRIB_LOG_WARN, "reactor %u %s: %s", host->reactor->index,
                     self->count > 0 ? "does without one listen address" : "takes the next listen address", why.text);
        }
    }
    return self->count > 0 ? TRIB_OK : trib_error_set(error, why.status, "%s", why.text);
}

void trib_listeners_close(trib_listeners *self)
{
    for (uint32_t i = 0; i < self->count; i++) {
        self->each[i]->transport->ops->listener_close(self->each[i]);
    }
    self->count = 0;
}
