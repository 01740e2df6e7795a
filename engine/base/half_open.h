/*
 * half_open.h - how many connections a process keeps of those who have not shown yet who they are.
 *
 * Each holds a descriptor of the process that embeds the engine, for as long as it is waited for. So every listener has a
 * bound for them, and where another comes the oldest ends: who belongs to the job has said what it must soon after it came.
 */
#ifndef TRIB_ENGINE_BASE_HALF_OPEN_H
#define TRIB_ENGINE_BASE_HALF_OPEN_H

#include <stdint.h>
#include <sys/resource.h>

#include "engine/base/limits.h"

/* An eighth of the descriptors that there can be, within those bounds. */
static inline uint32_t trib_half_open_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 8 > TRIB_HALF_OPEN_MAX) {
        return TRIB_HALF_OPEN_MAX;
    }
    const uint32_t part = (uint32_t)(limit.rlim_cur / 8);
    return part < TRIB_HALF_OPEN_MIN ? TRIB_HALF_OPEN_MIN : part;
}

#endif
