/* lease.h - the right to read a payload in its sender's memory, and the lender that grants it. */
#ifndef TRIB_BASE_LEASE_H
#define TRIB_BASE_LEASE_H

#include <stdbool.h>
#include <stddef.h>

/* The right to read a payload in its sender's memory. A lease belongs to the reactor of its lender. */
typedef struct trib_lease {
    /* Set by the lender. The holder calls it once, after its last read. False means that the sender may have changed
     * the payload meanwhile: the holder must drop every result computed from it. */
    bool (*end)(struct trib_lease *lease);
    /* Set by a holder that keeps the lease beyond the call which presented the payload. A connection calls it from the
     * loop, before another of its messages or before `closed`. The holder must call `end` inside it, after a copy if
     * need be. */
    void (*recalled)(struct trib_lease *lease);
    void *user; /* the holder's own */
} trib_lease;

/* The lender of a payload that was presented: a connection, or a task of this process. */
typedef struct trib_lender {
    trib_lease *(*lease)(void *source, bool keeps); /* keeps: beyond this call; NULL: this payload cannot be leased */
    void *source;
} trib_lender;

/* Also returns NULL if there is no lender. */
static inline trib_lease *trib_lender_lease(const trib_lender *lender, bool keeps)
{
    return lender != NULL ? lender->lease(lender->source, keeps) : NULL;
}

#endif
