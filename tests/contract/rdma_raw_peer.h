/* rdma_raw_peer.h - a peer that uses verbs without a transport of ours: it sends wrong greetings and nonsense, and
 * writes to memory that it was not granted. */
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

/* The text of a test that hangs for an answer of the device, which has tried seven times and must report success or
 * failure. Linux's software RDMA sometimes does neither on a busy machine; tests/rdma then runs the tests once more. */
#define TRIB_RDMA_OWES "the device owes an answer"

void trib_rdma_say_owed(const trib_transport *transport); /* for trib_contract_maker */

/* The number of tests that failed; the maker's sides have threads of their own, and share a world_of_rdma. */
int trib_rdma_raw_peer_run(const trib_contract_maker *maker);
/* The same with a device that is removed: nothing can be run there after it. */
int trib_rdma_raw_peer_sees_the_device_go(const trib_contract_maker *maker);

#endif
