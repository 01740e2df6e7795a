/*
 * half_open.h - the number of half-open connections that a listener keeps: accepted ones whose peer has proved nothing
 * yet.
 *
 * Each half-open connection holds a descriptor of the process that embeds the engine, so every listener bounds their
 * number. When another one comes, the oldest ends. A member of the job is not affected, because it proves itself soon
 * after it has connected.
 */
#ifndef TRIB_ENGINE_BASE_HALF_OPEN_H
#define TRIB_ENGINE_BASE_HALF_OPEN_H

#include <stdint.h>
#include <sys/resource.h>

#include "engine/base/limits.h"

/* Returns an eighth of the process's maximum of descriptors, within the bounds of limits.h. */
static inline uint32_t trib_half_open_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 8 > TRIB_HALF_OPEN_MAX) {
        return TRIB_HALF_OPEN_MAX;
    }
    const uint32_t part = (uint32_t)(limit.rlim_cur / 8);
    return part < TRIB_HALF_OPEN_MIN ? TRIB_HALF_OPEN_MIN : part;
}

/* Returns the number that the environment gives, or that of the process's limits, which may change, if it is 0. */
static inline uint32_t trib_half_open_most(uint32_t given)
{
    return given != 0 ? given : trib_half_open_max();
}

#endif
