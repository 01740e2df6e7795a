/* departed.h - the members that have left the job in good order, as the coordinator says. Written on core 0, read anywhere. */
#ifndef TRIB_ENGINE_DEPARTED_H
#define TRIB_ENGINE_DEPARTED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/tributary.h"

typedef struct trib_departed {
    uint32_t count;            /* of members that may leave; 0 until the roster is here */
    _Atomic int64_t *since_ns; /* by member: when it was announced that it leaves; 0: not yet */
    uint32_t *carried_out; /* ... and how many of its machine's device collectives it had carried out, modulo 2^32 */
    atomic_bool any;
} trib_departed;

/* With the roster. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_departed_open(trib_departed *departed, uint32_t members);
void trib_departed_close(trib_departed *departed);
/* Core 0. No-op for a member that does not exist. */
void trib_departed_add(trib_departed *departed, uint32_t member, uint32_t carried_out, int64_t now_ns);
/* True if the member has announced that it leaves; *since_ns_out is when that became known. */
bool trib_departed_has(const trib_departed *departed, uint32_t member, int64_t *since_ns_out);
/* Core 0: as above, with what it had carried out by then. */
bool trib_departed_carried_out(const trib_departed *departed, uint32_t member, uint32_t *carried_out_out);

static inline bool trib_departed_any(const trib_departed *departed)
{
    return atomic_load(&departed->any);
}

#endif
