/* interface.h - the network interface that an address of this machine belongs to; placement finds the NIC by its
 * name. */
#ifndef TRIB_API_ENV_INTERFACE_H
#define TRIB_API_ENV_INTERFACE_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>

/* The interface with that numeric address ("10.0.0.7", "fd00::7", "[fd00::7]"; length bytes of text). False: none has
 * it. */
bool trib_interface_find(const char *text, size_t length, char name_out[IF_NAMESIZE]);

/* Replaces a bond, a bridge or a VLAN by the interface below it, the first of several; a device's own interface stays.
 * folder: the system's list of interfaces, "/sys/class/net". */
void trib_interface_descend(const char *folder, char name[IF_NAMESIZE]);

#endif
