/* departed.c - see departed.h. */
#include "engine/job/departed.h"

#include <stdlib.h>

#include "engine/base/assert.h"

trib_status trib_departed_open(trib_departed *departed, uint32_t members)
{
    trib_assert(departed->count == 0);
    departed->since_ns = calloc(members, sizeof *departed->since_ns);
    departed->carried_out = calloc(members, sizeof *departed->carried_out);
    if (departed->since_ns == NULL || departed->carried_out == NULL) {
        return TRIB_NO_MEMORY;
    }
    departed->count = members;
    return TRIB_OK;
}

void trib_departed_close(trib_departed *departed)
{
    free(departed->since_ns);
    free(departed->carried_out);
    *departed = (trib_departed){.count = 0};
}

void trib_departed_add(trib_departed *departed, uint32_t member, uint32_t carried_out, int64_t now_ns)
{
    if (member < departed->count) {
        trib_assert(now_ns != 0); /* 0 says that the member is there */
        departed->carried_out[member] = carried_out;
        atomic_store(&departed->since_ns[member], now_ns);
        atomic_store(&departed->any, true);
    }
}

bool trib_departed_has(const trib_departed *departed, uint32_t member, int64_t *since_ns_out)
{
    /* Another core may call this before the roster arrives; `any` is false until the arrays exist. */
    *since_ns_out =
        trib_departed_any(departed) && member < departed->count ? atomic_load(&departed->since_ns[member]) : 0;
    return *since_ns_out != 0;
}

bool trib_departed_carried_out(const trib_departed *departed, uint32_t member, uint32_t *carried_out_out)
{
    int64_t since_ns;
    if (!trib_departed_has(departed, member, &since_ns)) {
        return false;
    }
    *carried_out_out = departed->carried_out[member];
    return true;
}
