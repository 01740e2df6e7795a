/* address.h - host names and local addresses, before an engine starts; the only place that may ask a resolver (and so
 * block). */
#ifndef TRIB_API_CONFIG_ADDRESS_H
#define TRIB_API_CONFIG_ADDRESS_H

#include "transports/transport.h"

/* "host:port" or "[v6]:port", or several with commas between -> numeric; all addresses of a name, as far as
 * there is room. TRIB_INVALID with a text, or TRIB_JOIN_FAILED: a name that no resolver knows, or not yet. */
TRIB_CHECKED trib_status trib_address_resolve(const char *text, trib_address *address_out, trib_error *error);
/* The local address from which `remote` (numeric) would be reached, without a port. If `remote` is a list, the result
 * is a list of the local addresses from which one of them would be reached. */
TRIB_CHECKED trib_status trib_address_local(const trib_address *remote, trib_address *local_out, trib_error *error);
/* True if one of the list (numeric, with or without ports) is 0.0.0.0 or ::, which are valid for listening only. */
bool trib_address_has_wildcard(const char *list);
/* True if all of the list are 127.0.0.0/8 or ::1 (numeric, with or without a port). */
bool trib_address_is_loopback(const char *list);

#endif
