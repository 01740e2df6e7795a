/*
 * rdma_raw_peer.h - a peer that speaks verbs but is no transport of ours: it greets wrongly, sends nonsense, and writes
 * where nobody let it.
 */
#ifndef TRIB_TESTS_RDMA_RAW_PEER_H
#define TRIB_TESTS_RDMA_RAW_PEER_H

#include "tests/contract/transport_contract.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include "transports/rdma/rdma_domain.h"

/* The objects that both sides share, as the reactors of an engine do. */
typedef struct world_of_rdma {
    trib_arena *arena;
    verbs_domain *domain;
    atomic_uint allocs;
} world_of_rdma;

#endif

/* What a test says that hangs although the device was to speak: it has tried seven times, and must tell of success
 * or failure. Linux's software RDMA fails to now and then, on a machine that is busy; tests/rdma then gives the
 * tests a second chance. */
#define TRIB_RDMA_OWES "the device owes an answer"

void trib_rdma_say_owed(const trib_transport *transport); /* for trib_contract_maker */

/* The number of tests that failed; the maker's sides have threads of their own, and share a world_of_rdma. */
int trib_rdma_raw_peer_run(const trib_contract_maker *maker);
/* The same with a device that is removed: nothing can be run there after it. */
int trib_rdma_raw_peer_sees_the_device_go(const trib_contract_maker *maker);

#endif
