/*
 * shm.h - messages between processes of one machine over memory that they share.
 *
 * Addresses are those of TCP ("127.0.0.1:4242", "[::1]:4242"), as names: they stand for a Unix socket in the abstract
 * namespace, which can be reached by processes of the same user in the same network namespace and by nobody else. Nothing
 * is left behind in a file system, however a process ends.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_H
#define TRIB_TRANSPORTS_SHM_SHM_H

#include "transports/transport.h"

extern const trib_transport_ops trib_shm_ops;

#endif
