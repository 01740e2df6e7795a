/* departed.h - the members that left the job in good order, as announced by the coordinator. Core 0 writes it, any
 * thread reads it. */
#ifndef TRIB_ENGINE_DEPARTED_H
#define TRIB_ENGINE_DEPARTED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/tributary.h"

typedef struct trib_departed {
    uint32_t count;            /* members of the roster; 0 until it arrives */
    _Atomic int64_t *since_ns; /* by member: when its leaving was announced; 0: not yet */
    uint32_t *carried_out;     /* by member: device collectives carried out by then, modulo 2^32 */
    atomic_bool any;
} trib_departed;

/* Called once, when the roster arrives. Fails with TRIB_NO_MEMORY only. */
TRIB_CHECKED trib_status trib_departed_open(trib_departed *departed, uint32_t members);
void trib_departed_close(trib_departed *departed);
/* Core 0. A member outside the roster is ignored. */
void trib_departed_add(trib_departed *departed, uint32_t member, uint32_t carried_out, int64_t now_ns);
/* Returns true if the member has announced that it leaves; *since_ns_out is when this process learned of it. */
bool trib_departed_has(const trib_departed *departed, uint32_t member, int64_t *since_ns_out);
/* Core 0: the same, with the number of device collectives that the member had carried out. */
bool trib_departed_carried_out(const trib_departed *departed, uint32_t member, uint32_t *carried_out_out);

static inline bool trib_departed_any(const trib_departed *departed)
{
    return atomic_load(&departed->any);
}

#endif
