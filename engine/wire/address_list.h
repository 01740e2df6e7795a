/*
 * address_list.h - comma-separated lists of hosts or addresses. Pure functions.
 *
 * A list holds the hosts that a member listens on, or the addresses that it is reached at. In addresses a port follows
 * the host, and a comma may follow the last one.
 *
 * The processes of a machine get the same hosts, but each begins with a different one. A list of addresses holds only
 * the first few. So the remaining hosts come in an order that is the same for all. Every list then holds the least
 * host, which identifies the machine.
 */
#ifndef TRIB_ENGINE_ADDRESS_LIST_H
#define TRIB_ENGINE_ADDRESS_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Negative, 0 or positive, as the first host of `one` compares with the first host of `other`. */
int trib_address_list_compare(const char *one, const char *other);

/* Points to the least host in the list. */
const char *trib_address_list_least(const char *list);

/* Negative, 0 or positive, as the machines of the two lists compare. The least host of a list identifies its
 * machine. */
int trib_address_list_compare_machines(const char *one, const char *other);

/* The host at the index modulo the number of hosts. */
const char *trib_address_list_at(const char *list, size_t index);

/* The number of entries of the list, at least 1. */
size_t trib_address_list_count(const char *list);
/* Copies the entry at the index modulo their number. */
void trib_address_list_copy(const char *list, size_t index, char *entry_out, size_t size);

/* True if one entry has port 0: the system chooses the port then, and only its own process knows it. */
bool trib_address_list_leaves_port(const char *list);

/* Removes addresses of other transports, which follow a plain one behind a plus sign. */
void trib_address_list_strip_offers(char *list);

/* Walks all different hosts of the list. With `previous` NULL it returns `own`; after that, the other hosts in
 * ascending order. NULL after the last. */
const char *trib_address_list_next(const char *list, const char *own, const char *previous);

#endif
