/* transport_defaults.c - see transport_defaults.h. */
#include "transports/transport_defaults.h"

#include "engine/base/assert.h"

trib_status trib_transport_no_context_open(struct trib_arena *arena, void **context_out, trib_error *error)
{
    (void)arena;
    (void)error;
    *context_out = NULL;
    return TRIB_OK;
}

void trib_transport_no_context_close(void *context)
{
    trib_assert(context == NULL);
}

bool trib_transport_notifies_no_devices(const void *context)
{
    (void)context;
    return false;
}

trib_status trib_transport_open_unsupported(trib_reactor *reactor, const trib_transport_config *config,
                                            const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    (void)reactor;
    (void)config;
    (void)upcalls;
    (void)transport_out;
    return TRIB_UNSUPPORTED;
}

bool trib_transport_is_always_idle(const trib_transport *transport)
{
    (void)transport;
    return true;
}

trib_lease *trib_transport_never_leases(trib_conn *conn, bool past_upcall)
{
    (void)conn;
    (void)past_upcall;
    return NULL;
}

bool trib_transport_never_offloads(const trib_conn *conn, const void *memory, size_t size, uint32_t least)
{
    (void)conn;
    (void)memory;
    (void)size;
    (void)least;
    return false;
}

void trib_transport_check_ops(const trib_transport_ops *ops)
{
    trib_assert(ops->name != NULL);
    trib_assert(ops->context_open != NULL && ops->context_close != NULL && ops->notifies_devices != NULL);
    trib_assert(ops->open != NULL && ops->close != NULL);
    trib_assert(ops->is_idle != NULL && ops->stats != NULL);
    trib_assert(ops->listen != NULL && ops->listener_close != NULL);
    trib_assert(ops->connect != NULL && ops->conn_close != NULL);
    trib_assert(ops->send != NULL && ops->recv_resume != NULL);
    trib_assert(ops->lease != NULL && ops->offloads != NULL);
}
