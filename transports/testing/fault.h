/*
 * fault.h - a transport that wraps another one and breaks it, from a seed, under the same contract.
 *
 * Delays, stalls and storms of TRIB_AGAIN lose nothing: a test that passes the contract suite without them passes it
 * with them. The other faults end a connection or change what arrives; the side that caused one sees `closed` with
 * TRIB_PEER_LOST and "injected ...". A side that a truncation has ended flushes first, so it lives on for as long as
 * the peer does not read.
 */
#ifndef TRIB_TRANSPORTS_TESTING_FAULT_H
#define TRIB_TRANSPORTS_TESTING_FAULT_H

#include "transports/transport.h"

/* Probabilities are 0 to 1, for each message. */
typedef struct trib_fault_config {
    uint64_t seed;
    double reset;        /* the connection ends instead of sending it */
    double truncate;     /* half of its payload is sent, then the connection ends; without a payload: a reset */
    double delay;        /* the message, and what comes after it, waits for up to delay_ns_max */
    double stall;        /* the same for stall_ns, for example longer than the receiver tolerates */
    double header_flip;  /* one bit of its header is flipped */
    double payload_flip; /* one bit of its payload is flipped */
    double again; /* its header is answered with TRIB_AGAIN, up to again_max times, before the receiver is asked */
    int64_t delay_ns_max, stall_ns;
    uint32_t again_max;
} trib_fault_config;

typedef struct trib_fault_counts {
    uint64_t resets, truncations, delays, stalls, header_flips, payload_flips, agains;
} trib_fault_counts;

/* Opens the transport to be wrapped, with the given upcalls. */
typedef trib_status (*trib_fault_opener)(void *context, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                         trib_transport **inner_out);

/* TRIB_INVALID for a probability outside 0 to 1 or a negative time, TRIB_NO_MEMORY, or the opener's status. */
TRIB_CHECKED trib_status trib_fault_open(const trib_fault_config *config, trib_fault_opener opener, void *context,
                                         trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                                         trib_transport **transport_out);

/* Reads the number of faults so far. On the reactor's thread. */
void trib_fault_get_counts(const trib_transport *transport, trib_fault_counts *counts_out);

#endif
