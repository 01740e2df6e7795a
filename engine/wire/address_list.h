/*
 * address_list.h - lists with commas between: of the hosts that a member is told to listen on, and of the addresses
 * that it is reached at, where ports follow the hosts and a comma may follow the last. Pure.
 *
 * The processes of a machine are told the same hosts, yet each begins with another, and a list of addresses holds only
 * the first few. So the others come in an order that is the same for all: the least host is in every list, which tells
 * whose machine is the same.
 */
#ifndef TRIB_ENGINE_ADDRESS_LIST_H
#define TRIB_ENGINE_ADDRESS_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Negative, 0, positive: how the hosts compare that the two texts begin with. */
int trib_address_list_compare(const char *one, const char *other);

/* Where in the list the least host is. */
const char *trib_address_list_least(const char *list);

/* Negative, 0, positive: how the machines compare that the two lists are reached at. A machine is told by its least
 * host. */
int trib_address_list_compare_machines(const char *one, const char *other);

/* The host at that place, counted round. */
const char *trib_address_list_at(const char *list, size_t index);

/* In turns all different hosts of the list: previous is NULL and `own` comes, then it is what came last, and of the
 * others the least comes that is more. NULL: that was all. */
const char *trib_address_list_next(const char *list, const char *own, const char *previous);

#endif
