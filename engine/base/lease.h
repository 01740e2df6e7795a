/* lease.h - the right to read a payload in memory of its sender, and the party that gives it. */
#ifndef TRIB_BASE_LEASE_H
#define TRIB_BASE_LEASE_H

#include <stdbool.h>
#include <stddef.h>

/* The right to read a payload that was presented in the sender's memory. It belongs to one reactor, as its lender
 * does. */
typedef struct trib_lease {
    /* The lender's, to be called once: the payload is read no more. False: it was not the same until now, and
     * nothing that was made of it may be used. */
    bool (*end)(struct trib_lease *lease);
    /* Set by the holder that keeps it beyond the call which presented the payload; the holder has to end it inside
     * this, after a copy if need be. A connection calls it from the loop, before another of its messages, or before
     * `closed`. */
    void (*recalled)(struct trib_lease *lease);
    void *user; /* the holder's */
} trib_lease;

/* The party that has presented a payload: a connection, or a task of this process. */
typedef struct trib_lender {
    trib_lease *(*lease)(void *source, bool keeps); /* keeps: beyond this call. NULL: this payload cannot be had */
    void *source;
} trib_lender;

/* NULL also of no lender. */
static inline trib_lease *trib_lender_lease(const trib_lender *lender, bool keeps)
{
    return lender != NULL ? lender->lease(lender->source, keeps) : NULL;
}

#endif
