/*
 * env_place.h - where an engine's reactors run on this machine: planned first for this process alone, and again when
 * the job's roster has named the other members on this machine.
 *
 * The first plan is made on the thread that creates the engine. Core 0 makes the second and posts it to the other
 * reactors; it does not change afterwards.
 */
#ifndef TRIB_API_ENV_ENV_PLACE_H
#define TRIB_API_ENV_ENV_PLACE_H

#include "api/env/core_claims.h"
#include "api/env/interface.h"
#include "engine/device/device.h"
#include "engine/job/job.h"
#include "engine/cluster/machines.h"
#include "numa/place.h"

typedef struct trib_env_place {
    trib_place_plan plan; /* the first plan */
    trib_topo *topo;
    trib_place_request request;
    uint64_t gpu;                                      /* trib_gpu_number of the device; 0: none, or unknown */
    uint32_t job;                                      /* the job's number in claims of cores */
    int claim;                                         /* on cores, as a descriptor; -1: none */
    trib_place_cpus taken;                             /* cores that other jobs have claimed */
    char interfaces[TRIB_PLACE_NICS_MAX][IF_NAMESIZE]; /* of the listen addresses; `request` points to them */
    char nics[TRIB_REACTORS_MAX][TRIB_TOPO_NAME_SIZE]; /* by reactor: NIC of its own listen address; "": unknown */
    uint8_t listen_choice[TRIB_REACTORS_MAX];          /* as in trib_env */

    atomic_int device_thread; /* id of the device's thread, kept off the reactors' cores; 0: none */

    /* State while the second plan is made and applied. */
    trib_engine *engine;
    trib_machine_place where;
    trib_core_claims_reading reading;
    trib_timer read_timer; /* reads more claims in the next turn */
    trib_place_plan settled;
    struct trib_env_notified {
        trib_post post;
        struct trib_env_place *place;
    } notified[TRIB_REACTORS_MAX];
} trib_env_place;

void trib_env_place_init(trib_env_place *self);
/* After init, also where making failed. The reactors have stopped. */
void trib_env_place_fini(trib_env_place *self);

/* Makes the topology, the request and the plan. *placed_out: the launcher has said which process this is. */
TRIB_CHECKED trib_status trib_env_place_make(trib_env_place *self, const trib_config *config,
                                             const trib_device_ops *device, bool *placed_out, trib_error *error);

/* reactor_start, device_thread and reactor_settle of trib_env. */
TRIB_CHECKED trib_status trib_env_place_start(trib_env_place *self, trib_engine *engine, trib_reactor *reactor);
/* Called by a thread of the device's, to be kept off the reactors' cores. */
void trib_env_place_device_thread(trib_env_place *self);
void trib_env_place_settle(trib_env_place *self, trib_engine *engine, trib_reactor *reactor,
                           const trib_machine_place *where);

#endif
