/*
 * fault.h - a transport that wraps another one and breaks it, from a seed, under the same contract.
 *
 * Delays, stalls and AGAIN storms lose nothing: what passes the contract suite without them passes it with them. The
 * others end a connection or change what arrives; the side that caused it sees `closed` with TRIB_PEER_LOST and
 * "injected ...". A side that a truncation has ended flushes first, so it may outlive its last message for as long as
 * the peer does not read.
 */
#ifndef TRIB_TRANSPORTS_TESTING_FAULT_H
#define TRIB_TRANSPORTS_TESTING_FAULT_H

#include "transports/transport.h"

/* Probabilities are per message, 0..1. */
typedef struct trib_fault_config {
    uint64_t seed;
    double reset;        /* the connection ends instead of sending it */
    double truncate;     /* half of its payload is sent, then the connection ends; without payload: reset */
    double delay;        /* it, and what comes after it, waits up to delay_ns_max */
    double stall;        /* the same for stall_ns: longer than what the receiver tolerates, say */
    double header_flip;  /* one bit of its header */
    double payload_flip; /* one bit of its payload */
    double again;        /* its header is answered AGAIN, up to again_max times, before the receiver is asked */
    int64_t delay_ns_max, stall_ns;
    uint32_t again_max;
} trib_fault_config;

typedef struct trib_fault_counts {
    uint64_t resets, truncations, delays, stalls, header_flips, payload_flips, agains;
} trib_fault_counts;

/* Opens the transport that is wrapped, with the upcalls given. */
typedef trib_status (*trib_fault_opener)(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                         trib_transport **inner_out);

/* TRIB_INVALID for a probability outside 0..1 or a negative time, TRIB_NO_MEMORY, or what the opener answers. */
TRIB_CHECKED trib_status trib_fault_open(const trib_fault_config *config, trib_fault_opener opener, void *context,
                                         trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                         trib_transport **transport_out);

/* What it has done so far. On the reactor's thread. */
void trib_fault_get_counts(const trib_transport *transport, trib_fault_counts *counts_out);

/* Other faults from now on; the sequence from the seed goes on. All zero: none. Ignores what trib_fault_open would
 * refuse. */
void trib_fault_set(trib_transport *transport, const trib_fault_config *config);

#endif
