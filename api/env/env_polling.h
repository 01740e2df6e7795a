/*
 * env_polling.h - how long a reactor polls for more work before it sleeps (engine/reactor/poll_window.h), by its
 * process's roles and the number of processes that share the machine.
 */
#ifndef TRIB_API_ENV_ENV_POLLING_H
#define TRIB_API_ENV_ENV_POLLING_H

#include <stdint.h>

#include "numa/place.h"
#include "api/tributary.h"

typedef struct trib_env_polling {
    int64_t least_ns, most_ns; /* as trib_reactor_ev_set_poll_window takes them */
} trib_env_polling;

/* device_most_ns: the longest window that pays with a GPU; 0 without one, or if the user has set the time. local_count:
 * the job's processes on this machine. */
trib_env_polling trib_env_polling_of(const trib_config *config, int64_t device_most_ns, uint32_t local_count,
                                     const trib_place_plan *plan);

#endif
