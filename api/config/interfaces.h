/* interfaces.h - network interfaces by name or pattern, where addresses are taken. */
#ifndef TRIB_API_CONFIG_INTERFACES_H
#define TRIB_API_CONFIG_INTERFACES_H

#include "transports/transport.h"

/* "10.0.0.7,eth*", "!docker*": numeric addresses stay as they are; names and patterns (* and ?) become the addresses of
 * the interfaces that are up and match, in the system's order: of each the first of IPv4, else the first of IPv6 that
 * is not link-local. A name with ! before it excludes; with nothing else, all others are meant. Loopback is found only
 * by a pattern that begins as its name does. TRIB_INVALID: nothing matches, and *error lists what there is;
 * TRIB_SYSTEM. */
TRIB_CHECKED trib_status trib_interfaces_expand(const char *list, trib_address *list_out, trib_error *error);
/* The address of the first interface that is up and none of containers' or virtual machines'; without any, loopback. */
TRIB_CHECKED trib_status trib_interfaces_guess(trib_address *address_out, trib_error *error);

#endif
