/*
 * store.h - a store outside of the job (TRIB_STORE), in which one record says which epoch of the job is the last one,
 * and a sign, which fades when nobody renews it, where its coordinator is. engine/membership/tenure.h has what is done
 * with it.
 *
 * A store must be linearizable: of two requests that swap the same revision one succeeds at most. It may be slow or
 * away; then requests fail, and nobody waits for them.
 */
#ifndef TRIB_ENGINE_JOB_STORE_H
#define TRIB_ENGINE_JOB_STORE_H

#include "engine/reactor/reactor.h"
#include "transports/transport.h"

#define TRIB_STORE_TEXT_MAX 192 /* of a record, a sign, or a reason, with its 0 */

typedef enum trib_store_kind {
    TRIB_STORE_GET,  /* reads record and sign */
    TRIB_STORE_SWAP, /* writes record and sign if the record still has that revision; reads the record if not */
    TRIB_STORE_KEEP, /* renews the sign, or writes it if it is gone or another one; reads the record */
} trib_store_kind;

typedef struct trib_store_request {
    trib_post done; /* runs on the reactor when the answer is there, or its time has passed */
    trib_reactor *reactor;
    trib_store_kind kind;
    int64_t fades_ns; /* SWAP, KEEP: how long the sign lasts if nobody renews it */
    /* SWAP: the revision that is awaited. Answer: the record's; 0: there is no record. */
    uint64_t revision;
    char record[TRIB_STORE_TEXT_MAX];
    char sign[sizeof(trib_address)]; /* GET's answer "": there is none */
    /* The answer. */
    bool is_answered; /* else `why` says what is wrong, and a SWAP may have been carried out */
    bool is_swapped;
    char why[TRIB_STORE_TEXT_MAX];
} trib_store_request;

typedef struct trib_store_ops {
    /* Core 0: begins the request, which the caller keeps until it is done; one at a time. */
    void (*begin)(void *store, trib_store_request *request);
    /* When the reactors have ended: takes this process's sign away if that is wanted, and waits some two seconds
     * for that at most. A request that is under way may post until then. The environment frees the store. */
    void (*stop)(void *store, bool takes_sign);
} trib_store_ops;

#endif
