/* env_polling.c - see env_polling.h. */
#include "api/env/env_polling.h"

#define SOON_NS INT64_C(50000) /* a few times the cost of falling asleep and waking up */
#define SERVED_NS INT64_C(8000000)

/* A dedicated server has no other work, and each sum waits until it is awake. */
static bool only_serves(const trib_config *config)
{
    return config->roles == TRIB_ROLE_SERVER && config->mode != TRIB_MODE_ATTACHED;
}

/* Answers from processes of this machine come sooner than a thread wakes up; those of other machines do not. Where
 * reactors outnumber the cores, one that polls takes the core from the process that it waits for, unless it yields
 * after each look. */
trib_env_polling trib_env_polling_of(const trib_config *config, int64_t device_most_ns, uint32_t local_count,
                                     const trib_place_plan *plan)
{
    const bool has_core = !plan->crowded && config->mode != TRIB_MODE_ATTACHED;
    if (config->busy_poll_ns > 0 && (device_most_ns == 0 || has_core)) {
        return (trib_env_polling){.least_ns = config->busy_poll_ns, .most_ns = device_most_ns};
    }
    if (only_serves(config) && plan->roomy) {
        return (trib_env_polling){.least_ns = 0, .most_ns = SERVED_NS};
    }
    return (trib_env_polling){.least_ns = 0, .most_ns = local_count > 1 ? SOON_NS : 0};
}
