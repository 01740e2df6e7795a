/*
 * shm.h - the transport between processes of one machine, over memory that they share.
 *
 * Addresses have TCP's form ("127.0.0.1:4242", "[::1]:4242") and serve as names: each stands for a Unix socket in the
 * abstract namespace. Only processes of the same user in the same network namespace can reach it, and nothing is left
 * in a file system, however a process ends.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_H
#define TRIB_TRANSPORTS_SHM_SHM_H

#include "transports/transport.h"

extern const trib_transport_ops trib_shm_ops;

#endif
