/*
 * half_open.h - how many half-open connections a listener keeps: accepted ones whose peer has proved nothing yet.
 *
 * Each of them holds a descriptor of the process that embeds the engine. So every listener has a bound for them, and
 * when another comes the oldest is ended: a member of the job proves itself soon after it has connected.
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
