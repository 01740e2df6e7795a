/*
 * env_place.h - where an engine's reactors run on this machine: as it looks alone when they start, and again when the
 * job's roster has said who else of the job is here.
 *
 * Made on the thread that creates the engine. Core 0 settles, and tells the other reactors; what they are told by does
 * not change afterwards.
 */
#ifndef TRIB_API_ENV_PLACE_H
#define TRIB_API_ENV_PLACE_H

#include "api/env/core_claims.h"
#include "api/env/interface.h"
#include "engine/device/device.h"
#include "engine/job/job.h"
#include "engine/cluster/machines.h"
#include "numa/place.h"

typedef struct trib_env_place {
    trib_place_plan plan; /* by which they start */
    trib_topo *topo;
    trib_place_request request;
    uint32_t job;                                      /* its number among the claims of cores */
    int claim;                                         /* -1: none */
    trib_place_cpus taken;                             /* by other jobs */
    char interfaces[TRIB_PLACE_NICS_MAX][IF_NAMESIZE]; /* of the listen addresses: the request points to them */
    char nics[TRIB_REACTORS_MAX][TRIB_TOPO_NAME_SIZE]; /* by reactor, of its own listen address; "": not known */
    uint8_t listen_choice[TRIB_REACTORS_MAX];          /* as in trib_env */

    atomic_int device_thread; /* that is to keep off the reactors' cores; 0: none */

    /* Settling. */
    trib_engine *engine;
    trib_machine_place where;
    trib_core_claims_reading reading;
    trib_timer goes_on; /* of reading */
    trib_place_plan settled;
    struct trib_env_notified {
        trib_post post;
        struct trib_env_place *place;
    } notified[TRIB_REACTORS_MAX];
} trib_env_place;

void trib_env_place_init(trib_env_place *self);
/* After init, also where making failed. The reactors have stopped. */
void trib_env_place_fini(trib_env_place *self);

/* The topology, the request and the plan. *placed_out: has the launcher said which process this is? */
TRIB_CHECKED trib_status trib_env_place_make(trib_env_place *self, const trib_config *config,
                                             const trib_device_ops *device, bool *placed_out, trib_error *error);

/* As those of trib_env. */
TRIB_CHECKED trib_status trib_env_place_start(trib_env_place *self, trib_engine *engine, trib_reactor *reactor);
/* On a thread of the device's, which works with the reactors. */
void trib_env_place_device_thread(trib_env_place *self);
void trib_env_place_settle(trib_env_place *self, trib_engine *engine, trib_reactor *reactor,
                           const trib_machine_place *where);

#endif
