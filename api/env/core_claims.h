/*
 * core_claims.h - which cores the engines of this machine have pinned reactors to, so that jobs, which do not know of each
 * other, keep out of each other's way.
 *
 * An engine that pins has a socket in the kernel's abstract namespace whose name lists its cores and a number of its job's, and
 * /proc/net/unix lists such names. They end with their process, take no folder and no right, and are seen by all who share a
 * network namespace. Who can make none, or read none, does as if it was alone.
 */
#ifndef TRIB_API_CORE_CLAIMS_H
#define TRIB_API_CORE_CLAIMS_H

#include "api/tributary.h"
#include "numa/place.h"

/* The same for all members of a job, as they are told the same name and coordinator; a job of one process has its own. */
uint32_t trib_core_claims_job(const trib_config *config);

/* The cores that other jobs' engines say they have pinned reactors to. Of those that are this engine's too (mine: what it says;
 * NULL: nothing yet) only the ones of jobs with a lower number: of two that have taken the same core one stays. */
void trib_core_claims_read(uint32_t job, const trib_place_plan *mine, trib_place_cpus *taken_out);

/* The same in pieces, for a thread that must not be kept: a machine may have ten thousand such sockets. */
typedef struct trib_core_claims_reading {
    uint32_t job;
    const trib_place_plan *mine;
    trib_place_cpus *taken;
    int fd; /* -1: over */
    size_t used;
    char text[4096]; /* lines, of which the last has just begun */
} trib_core_claims_reading;

void trib_core_claims_begin(trib_core_claims_reading *reading, uint32_t job, const trib_place_plan *mine,
                            trib_place_cpus *taken_out);
/* Reads some 50 names; false: that was all. */
bool trib_core_claims_more(trib_core_claims_reading *reading);
/* Where it is over already, fine. */
void trib_core_claims_end(trib_core_claims_reading *reading);

/* Is one of a plan's cores among those? */
bool trib_core_claims_meet(const trib_place_plan *plan, const trib_place_cpus *taken);

/* Says so of a plan's; -1: it has none, or could not. */
int trib_core_claims_make(uint32_t job, const trib_place_plan *plan);
void trib_core_claims_drop(int fd); /* -1 is fine */

#endif
