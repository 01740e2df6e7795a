/*
 * job.h - a whole job in virtual time: a world, a network, and an engine for every member.
 *
 * Members are the workers by rank, then the servers. Each has a process and a node of its own, and a machine of its
 * own unless the configuration says otherwise. Looks inside the library (api/env/sim/env_sim.h).
 */
#ifndef TRIB_TOOLS_STUDY_JOB_H
#define TRIB_TOOLS_STUDY_JOB_H

#include "api/env/sim/env_sim.h"
#include "engine/device/device.h"

#define SIM_JOB_TOKEN "a virtual secret of the simulator" /* long enough to need no slow hash */

typedef struct sim_job sim_job;

typedef struct sim_job_config {
    uint64_t seed;
    uint32_t workers, servers;
    uint32_t cores;             /* cores of each machine */
    bool one_machine;           /* all members share one machine's cores: network namespaces of one host */
    uint32_t per_machine;       /* this many consecutive workers share a machine; 0: each has its own */
    const uint32_t *machine_of; /* by member, servers too: any member of its machine; NULL: as per_machine says */
    bool links_apart; /* members of a shared machine have own links nevertheless, so that a fault can hit one alone */
    trib_sim_costs costs;
    uint32_t stagger_one_in; /* posts between reactors of a process: see trib_sim_process_stagger */
    int64_t stagger_ns;
    trib_sim_net_config net;
    trib_sim_link link; /* link of every node; tweak may change that of one */
    /* Further links of every node, each in a network of its own, up to the first one without a rate. */
    trib_sim_link further[TRIB_SIM_NETWORKS_MAX - 1];
    uint64_t void_bytes;        /* not 0: buffers are taken from this much memory without contents */
    trib_config engine;         /* settings of all engines; trib_config_init first */
    const char *modelled_codec; /* see trib_env; NULL: none */
    /* Changes the settings of one member; may be NULL. */
    void (*tweak)(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link);
    bool (*may_alloc)(void *member, size_t size); /* NULL: memory never runs out */
    void *user;
    bool has_store;                /* the job is kept in sim_job.store (TRIB_STORE) */
    trib_host_world *device_world; /* for engine.device "host"; NULL: none */
} sim_job_config;

/* Returns the settings of a run on 10 Gbit/s links between machines of 4 cores. */
sim_job_config sim_job_config_default(uint32_t workers, uint32_t servers);

typedef struct sim_member {
    sim_job *job;
    uint32_t index;
    trib_sim_machine *machine; /* NULL: another member's machine, or the job's shared one */
    trib_sim_process *process;
    trib_sim_node *node;
    trib_engine *engine;
    bool ready_told, ended_told, closing, closed, killed;
    trib_error ready, ended; /* the errors of ready_cb and ended_cb */
} sim_member;

struct sim_job {
    sim_job_config config;
    trib_sim *sim;
    trib_sim_net *net;
    trib_sim_machine *machine; /* shared, or NULL */
    trib_sim_void nothing;
    trib_sim_store store;
    uint32_t member_count;
    sim_member *members;
};

/* Tells whether all members are on one machine, without a link between them. */
bool sim_job_is_one_host(const sim_job_config *config);
/* Charges the cost of links between network namespaces of one machine: shaping, bridging and splitting, which
 * cards and a switch do elsewhere, is work of the shared processors, for each byte that leaves one namespace and
 * again where it arrives. */
void sim_job_charge_links(sim_job_config *job);
/* Builds the world and creates all engines, none of which has joined yet. Returns NULL with *error. */
sim_job *sim_job_open(const sim_job_config *config, trib_error *error);
/* Runs the world until done returns true (it is called after each event; NULL: never), until that time, or until
 * no event is left. Returns whether done returned true. */
bool sim_job_run(sim_job *job, int64_t until_ns, bool (*done)(sim_job *job, void *argument), void *argument);
/* A condition for sim_job_run: every member's ready_cb has been called. */
bool sim_job_all_ready(sim_job *job, void *unused);
/* Kills the member's process: none of its code runs any more, and its peers see resets. */
void sim_job_kill(sim_job *job, uint32_t index);
/* Closes the member's engine without waiting. */
void sim_job_leave(sim_job *job, uint32_t index);
/* Asks for that server's leave from a job that goes on without it. Returns false if the server cannot ask. */
bool sim_job_drain(sim_job *job, uint32_t index);
/* Closes every engine that is not closing yet. Killed members run again to be closed, cut off from all others.
 * Runs the world until all engines are closed. Returns false if they are not closed within limit_ns: then
 * sim_job_free must not be called. */
bool sim_job_close(sim_job *job, int64_t limit_ns);
/* Frees the job after sim_job_close. */
void sim_job_free(sim_job *job);

#endif
