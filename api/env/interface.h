/* interface.h - which network interface an address of this machine's belongs to: by its name placement finds the
 * NIC. */
#ifndef TRIB_API_INTERFACE_H
#define TRIB_API_INTERFACE_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>

/* The interface with that numeric address ("10.0.0.7", "fd00::7", "[fd00::7]"; length bytes of text). False: none has
 * it. */
bool trib_interface_find(const char *text, size_t length, char name_out[IF_NAMESIZE]);

/* What a bond, a bridge or a VLAN is made over, the first of several; an interface of a device's stays as it is. folder
 * is where the system tells of interfaces: "/sys/class/net". */
void trib_interface_descend(const char *folder, char name[IF_NAMESIZE]);

#endif
