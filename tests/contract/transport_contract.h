/*
 * transport_contract.h - the contract of every transport as tests, written once and run against each of them.
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
    const char *reach_at; /* the host by which the other side reaches it; NULL: the host of the bound address */
    bool threaded;        /* the listening side runs on a thread of its own; else both are attached to one loop */
    /* Connections that a test may be making at once, at most; some transports give up after some seconds. 0: any
     * number. */
    uint32_t connecting_max;
    /* Makes the part that the two instances share; NULL if they share nothing. */
    void *(*setup)(void);
    void (*teardown)(void *shared);
    trib_status (*open)(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                        trib_transport **transport_out);
    /* Memory that payloads lie and land in. NULL: malloc and free. */
    void *(*alloc)(void *shared, size_t size);
    void (*release)(void *shared, void *memory);
    /* True if that side presents a received payload outside its target. NULL: not checked. */
    bool (*is_in_place)(unsigned side, uint32_t size);
    /* Prints what a transport waits for to the standard error, when a test hangs. NULL: nothing is printed. */
    void (*explain)(const trib_transport *transport);
    /* For sides without libev, which are never threaded: makes a reactor, tells whether its turn runs, frees it, and
     * runs the next event of any of them. NULL: libev's. */
    trib_reactor *(*reactor_create)(void *shared, unsigned side, trib_logger *logger);
    bool (*on_thread)(const trib_reactor *reactor);
    void (*reactor_free)(trib_reactor *reactor);
    void (*turn)(void *shared);
} trib_contract_maker;

/* The number of tests that failed. */
int trib_contract_run(const trib_contract_maker *maker);

#endif
