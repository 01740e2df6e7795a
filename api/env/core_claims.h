/*
 * core_claims.h - which cores the engines of this machine have pinned reactors to, so that jobs that do not know of
 * each other use different ones.
 *
 * An engine that pins has a socket in the kernel's abstract namespace whose name lists its cores and a number of its
 * job's, and /proc/net/unix lists such names. They end with their process, take no folder and no right, and are seen by
 * all processes of a network namespace. An engine that can make none, or read none, behaves as if it was alone.
 */
#ifndef TRIB_API_ENV_CORE_CLAIMS_H
#define TRIB_API_ENV_CORE_CLAIMS_H

#include "api/tributary.h"
#include "numa/place.h"

/* The job's number in claims. All members compute the same one, as they are told the same name and coordinator; a job
 * of one process has its own. */
uint32_t trib_core_claims_job(const trib_config *config);

/* The cores that other jobs' engines have claimed. A core that this engine has claimed too (mine: its plan; NULL: none
 * yet) counts only if the other job has a lower number, so that of two jobs on one core one stays. */
void trib_core_claims_read(uint32_t job, const trib_place_plan *mine, trib_place_cpus *taken_out);

/* The same in pieces, for a thread that must not be held up: a machine may have ten thousand such sockets. */
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
bool trib_core_claims_read_more(trib_core_claims_reading *reading);
/* Does nothing if it is over already. */
void trib_core_claims_end(trib_core_claims_reading *reading);

/* True if one of the plan's cores is taken. */
bool trib_core_claims_overlap(const trib_place_plan *plan, const trib_place_cpus *taken);

/* Claims the plan's cores: a descriptor that holds the claim; -1: the plan pins none, or no socket could be made. */
int trib_core_claims_make(uint32_t job, const trib_place_plan *plan);
void trib_core_claims_drop(int fd); /* -1 is fine */

#endif
