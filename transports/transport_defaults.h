/*
 * transport_defaults.h - entries of trib_transport_ops for a transport that has no use of its own for them.
 *
 * A table names them, so a reader sees what the transport does without, and a caller never tests an entry for NULL.
 */
#ifndef TRIB_TRANSPORTS_TRANSPORT_DEFAULTS_H
#define TRIB_TRANSPORTS_TRANSPORT_DEFAULTS_H

#include "transports/transport.h"

/* The instances share nothing: *context_out is NULL. */
TRIB_CHECKED trib_status trib_transport_no_context_open(struct trib_arena *arena, void **context_out,
                                                        trib_error *error);
void trib_transport_no_context_close(void *context);
bool trib_transport_notifies_no_devices(const void *context);

/* For a transport that needs more than these arguments and has an `open` of its own: TRIB_UNSUPPORTED. */
TRIB_CHECKED trib_status trib_transport_open_unsupported(trib_reactor *reactor, const trib_transport_config *config,
                                                         const trib_transport_upcalls *upcalls,
                                                         trib_transport **transport_out);

/* Everything under way belongs to a connection or a listener, and these are closed before the instance. */
bool trib_transport_is_always_idle(const trib_transport *transport);

/* Payloads are never presented in the sender's memory: NULL. */
trib_lease *trib_transport_never_leases(trib_conn *conn, bool past_upcall);

/* A processor copies payloads: false. */
bool trib_transport_never_offloads(const trib_conn *conn, const void *memory, size_t size, uint32_t least);

/* Asserts that every entry of the table is set. */
void trib_transport_check_ops(const trib_transport_ops *ops);

#endif
