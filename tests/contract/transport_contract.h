/*
 * transport_contract.h - what every transport has to do, written once and run against each of them.
 *
 * A test program describes how to make two instances that can reach each other and calls trib_contract_run.
 */
#ifndef TRIB_TESTS_TRANSPORT_CONTRACT_H
#define TRIB_TESTS_TRANSPORT_CONTRACT_H

#include "transports/transport.h"

#define CONTRACT_PEERS 400u /* connections that come at once; for trib_transport_config */

typedef struct trib_contract_maker {
    const char *name;
    const char *listen_at;
    const char *reach_at; /* the host by which the other side reaches it; NULL: as it is told */
    bool threaded;        /* the listening side runs on a thread of its own; else both are attached to one loop */
    /* Connections that a test may be making at once, at most; some transports give up after some seconds. 0: any
     * number. */
    uint32_t connecting_max;
    /* Makes what the two instances share; NULL if there is nothing. */
    void *(*setup)(void);
    void (*teardown)(void *shared);
    trib_status (*open)(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                        trib_transport **transport_out);
    /* Memory that payloads lie and land in. NULL: malloc and free. */
    void *(*alloc)(void *shared, size_t size);
    void (*release)(void *shared, void *memory);
    /* True if what that side receives is presented elsewhere than in its target. NULL: not checked. */
    bool (*is_in_place)(unsigned side, uint32_t size);
    /* Says on the standard error what a transport waits for, when a test hangs. NULL: there is nothing to say. */
    void (*explain)(const trib_transport *transport);
    /* Where the sides' reactors are not libev's (never threaded then): makes one, says whether its turn runs, frees it,
     * and runs whatever is next on any of them. NULL: libev's. */
    trib_reactor *(*reactor_create)(void *shared, unsigned side, trib_logger *logger);
    bool (*on_thread)(const trib_reactor *reactor);
    void (*reactor_free)(trib_reactor *reactor);
    void (*turn)(void *shared);
} trib_contract_maker;

/* The number of tests that failed. */
int trib_contract_run(const trib_contract_maker *maker);

#endif
