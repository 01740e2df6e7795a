/*
 * env_sim.h - the environment of simulation: an engine whose reactors run in virtual time (engine/sim/reactor_sim.h),
 * whose connections are those of a simulated network (transports/sim/sim.h), and whose memory may run out on request.
 *
 * The engine is that of production in every line; only its trib_env is another. Blocking calls of the public API
 * (trib_engine_wait_ready, trib_op_wait, ...) must not be used: nothing would happen while they wait. Run the world
 * with trib_sim_step instead, and destroy an engine when its closed callback has been called.
 */
#ifndef TRIB_API_ENV_SIM_ENV_SIM_H
#define TRIB_API_ENV_SIM_ENV_SIM_H

#include "api/create.h"
#include "api/env/sim/store_sim.h"
#include "transports/sim/sim.h"

/* Memory without contents: addresses that nothing is ever written to, for jobs larger than this machine. */
typedef struct trib_sim_void {
    unsigned char *base;
    size_t size, used;
} trib_sim_void;

/* TRIB_NO_MEMORY if there is no room for so many addresses. */
TRIB_CHECKED trib_status trib_sim_void_open(trib_sim_void *self, size_t size);
void trib_sim_void_close(trib_sim_void *self);
/* NULL when used up. Given back only by closing all of it. */
void *trib_sim_void_take(trib_sim_void *self, size_t size);

typedef struct trib_sim_host {
    trib_sim_process *process; /* attached to a node; must outlive the engine */
    const char *place;         /* "node:process", for messages */
    trib_sim_void *nothing; /* not NULL: buffers are taken from it and sums are not computed, only their time passes */
    /* Asked before every allocation of the data path; false: it fails. NULL: none does. */
    bool (*may_alloc)(void *user, size_t size);
    void *user;
    const char *modelled_codec; /* see trib_env; outlives the engine */
    trib_sim_store *store;      /* the store in which its job is kept; NULL: none */
    /* world of devices in plain memory ("host"); NULL: collectives need local_size 1 */
    struct trib_host_world *device_world;
} trib_sim_host;

/* As trib_engine_create. config->reactors must be set; listen and coordinator are the network's addresses ("NAME",
 * "NAME:PORT"). *host is copied. */
TRIB_CHECKED trib_status trib_engine_create_sim(const trib_sim_host *host, const trib_config *config,
                                                trib_engine **engine_out, trib_error *error);

#endif
