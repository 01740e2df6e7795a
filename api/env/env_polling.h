/*
 * env_polling.h - how long a reactor looks for more work before it sleeps (engine/reactor/poll_window.h), by what its process is and who shares
 * the machine with it.
 */
#ifndef TRIB_API_ENV_POLLING_H
#define TRIB_API_ENV_POLLING_H

#include <stdint.h>

#include "numa/place.h"
#include "api/tributary.h"

typedef struct trib_env_polling {
    int64_t least_ns, most_ns; /* as trib_reactor_ev_set_poll_window takes them */
} trib_env_polling;

/* device_most_ns: what its GPU gains from, 0 where there is none, or the user has said how long. local_count: the job's processes
 * on this machine. */
trib_env_polling trib_env_polling_of(const trib_config *config, int64_t device_most_ns, uint32_t local_count,
                                     const trib_place_plan *plan);

#endif
