/* job.c - see job.h. */
#include "tools/study/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A byte's share of the cost of a message. This value replays 4 + 4 hosts on 2 cores best. */
#define NAMESPACE_BYTE_NS 0.25

#define COORDINATOR_PORT 4000
#define LATENCY_NS 15000

sim_job_config sim_job_config_default(uint32_t workers, uint32_t servers)
{
    sim_job_config config = {
        .seed = 1,
        .workers = workers,
        .servers = servers,
        .cores = 4,
        .costs = trib_sim_costs_default(),
        .net = trib_sim_net_config_default(),
        .link = {.egress_bits = UINT64_C(10000000000), .ingress_bits = UINT64_C(10000000000), .latency_ns = LATENCY_NS},
    };
    trib_config_init(&config.engine, sizeof config.engine);
    config.engine.reactors = 1;
    config.engine.shares = TRIB_SHARES_FIXED; /* the study defines the links, and its placement is to be compared */
    config.engine.log_level = TRIB_LOG_NONE;
    return config;
}

/* ---- Members ---- */

static void on_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    sim_member *member = user;
    member->ready_told = true;
    member->ready = *error;
}

static void on_ended(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    sim_member *member = user;
    member->ended_told = true;
    member->ended = *error;
}

static void on_closed(trib_engine *engine, void *user)
{
    (void)engine;
    sim_member *member = user;
    member->closed = true;
}

/* Returns the first member on the member's machine. */
static uint32_t machine_of(const sim_job_config *given, uint32_t index)
{
    if (given->machine_of != NULL) {
        uint32_t first = 0;
        while (given->machine_of[first] != given->machine_of[index]) {
            first++;
        }
        return first;
    }
    return given->per_machine > 0 && index < given->workers ? index - index % given->per_machine : index;
}

bool sim_job_is_one_host(const sim_job_config *config)
{
    const uint32_t members = config->workers + config->servers;
    return members > 1 && machine_of(config, members - 1) == 0 && machine_of(config, config->workers - 1) == 0 &&
           !config->links_apart;
}

void sim_job_charge_links(sim_job_config *job)
{
    if (job->one_machine && !sim_job_is_one_host(job) && job->costs.work[TRIB_COST_MESSAGE].byte_ns > 0) {
        job->costs.work[TRIB_COST_MESSAGE].byte_ns += NAMESPACE_BYTE_NS;
    }
}

/* Node names that begin with the same text, up to a slash, are of one machine (engine/cluster/machines.h). */
static void node_name(const sim_job_config *given, uint32_t index, char *name, size_t size)
{
    if (given->machine_of != NULL || (given->per_machine > 0 && index < given->workers)) {
        snprintf(name, size, "m%u/n%u", machine_of(given, index), index);
    } else {
        snprintf(name, size, "n%u", index);
    }
}

static uint32_t further_count(const sim_job_config *given)
{
    uint32_t count = 0;
    while (count < TRIB_SIM_NETWORKS_MAX - 1 && given->further[count].egress_bits > 0) {
        count++;
    }
    return count;
}

/* Writes the node's name in each of its networks. */
static void list_networks(const sim_job_config *given, const char *name, char *list, size_t size)
{
    int length = snprintf(list, size, "%s", name);
    for (uint32_t i = 1; i <= further_count(given); i++) {
        length += snprintf(list + length, size - (size_t)length, ",%s~%u", name, i);
    }
}

/* Gives the member its place; the machine's first member brings the cores and the link. */
static trib_status place_member(sim_job *job, sim_member *member, const char *name, const trib_sim_link *link)
{
    const sim_job_config *given = &job->config;
    const uint32_t first = machine_of(given, member->index);
    const sim_member *host = first < member->index && !given->links_apart ? &job->members[first] : NULL;
    if (!given->one_machine && host == NULL) {
        member->machine = trib_sim_machine_create(job->sim, given->cores);
    }
    trib_sim_machine *machine = given->one_machine ? job->machine : host != NULL ? host->machine : member->machine;
    member->process = machine != NULL ? trib_sim_process_create(machine, &given->costs, member->index) : NULL;
    member->node = trib_sim_node_create(job->net, name, link);
    if (member->process == NULL || member->node == NULL) {
        return TRIB_NO_MEMORY;
    }
    if (host != NULL) {
        trib_sim_node_join(member->node, host->node);
    }
    for (uint32_t i = 0; host == NULL && i < further_count(given); i++) {
        if (trib_sim_node_add_link(member->node, &given->further[i]) == NULL) {
            return TRIB_NO_MEMORY;
        }
    }
    trib_sim_node_host(member->node, member->process);
    trib_sim_process_stagger(member->process, given->stagger_one_in, given->stagger_ns);
    return TRIB_OK;
}

static trib_status member_create(sim_job *job, uint32_t index, trib_error *error)
{
    const sim_job_config *given = &job->config;
    sim_member *member = &job->members[index];
    member->job = job;
    member->index = index;
    trib_config config = given->engine;
    trib_sim_link link = given->link;
    char name[TRIB_SIM_NAME_MAX], listen[TRIB_SIM_NETWORKS_MAX * (TRIB_SIM_NAME_MAX + 4)],
        coordinator[TRIB_SIM_NAME_MAX + 8], place[TRIB_SIM_NAME_MAX + 8];
    const bool is_worker = index < given->workers;
    node_name(given, index, name, sizeof name);
    node_name(given, 0, coordinator, sizeof coordinator);
    snprintf(coordinator + strlen(coordinator), 8, ":%d", COORDINATOR_PORT);
    snprintf(place, sizeof place, "n%u:%u", given->one_machine ? 0 : machine_of(given, index), 1000 + index);
    config.roles = is_worker ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER;
    config.rank = is_worker ? (int32_t)index : -1;
    config.worker_count = (int32_t)given->workers;
    config.server_count = (int32_t)given->servers;
    config.coordinator = coordinator;
    list_networks(given, name, listen, sizeof listen);
    config.listen = listen;
    config.token = SIM_JOB_TOKEN;
    config.store = given->has_store ? "sim" : NULL;
    config.ready_cb = on_ready;
    config.ended_cb = on_ended;
    config.ready_user = config.ended_user = member;
    if (given->tweak != NULL) {
        given->tweak(job, index, &config, &link);
    }
    if (place_member(job, member, name, &link) != TRIB_OK) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for member %u", index);
    }
    trib_sim_host host = {
        .process = member->process,
        .place = place,
        .nothing = given->void_bytes > 0 ? &job->nothing : NULL,
        .may_alloc = given->may_alloc,
        .user = member,
        .modelled_codec = given->modelled_codec,
        .device_world = given->device_world,
        .store = given->has_store ? &job->store : NULL,
    };
    return trib_engine_create_sim(&host, &config, &member->engine, error);
}

static void free_world(sim_job *job)
{
    for (uint32_t i = 0; job->members != NULL && i < job->member_count; i++) {
        sim_member *member = &job->members[i];
        trib_sim_process_free(member->process);
    }
    for (uint32_t i = 0; job->members != NULL && i < job->member_count; i++) {
        trib_sim_machine_free(job->members[i].machine);
    }
    trib_sim_net_free(job->net);
    trib_sim_machine_free(job->machine);
    trib_sim_free(job->sim);
    trib_sim_void_close(&job->nothing);
    free(job->members);
    free(job);
}

static trib_status make_world(sim_job *job, trib_error *error)
{
    const sim_job_config *given = &job->config;
    job->sim = trib_sim_create(given->seed);
    job->member_count = given->workers + given->servers;
    job->members = calloc(job->member_count, sizeof *job->members);
    if (job->sim == NULL || job->members == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a simulated world");
    }
    trib_sim_store_init(&job->store, job->sim);
    if (given->void_bytes > 0) {
        if (trib_sim_void_open(&job->nothing, given->void_bytes) != TRIB_OK) {
            return trib_error_set(error, TRIB_NO_MEMORY, "no address space for %.1f GiB of simulated memory",
                                  (double)given->void_bytes / (1 << 30));
        }
        job->config.net.void_base = job->nothing.base;
        job->config.net.void_bytes = job->nothing.size;
    }
    job->net = trib_sim_net_create(job->sim, &job->config.net);
    job->machine = given->one_machine ? trib_sim_machine_create(job->sim, given->cores) : NULL;
    if (job->net == NULL || (given->one_machine && job->machine == NULL)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a simulated world");
    }
    return TRIB_OK;
}

sim_job *sim_job_open(const sim_job_config *config, trib_error *error)
{
    sim_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        (void)trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a simulated world");
        return NULL;
    }
    job->config = *config;
    trib_status status = make_world(job, error);
    for (uint32_t i = 0; status == TRIB_OK && i < job->member_count; i++) {
        status = member_create(job, i, error);
    }
    if (status == TRIB_OK) {
        return job;
    }
    if (sim_job_close(job, INT64_C(60000000000))) {
        sim_job_free(job);
    }
    return NULL;
}

/* ---- Running ---- */

bool sim_job_run(sim_job *job, int64_t until_ns, bool (*done)(sim_job *job, void *argument), void *argument)
{
    while (done == NULL || !done(job, argument)) {
        if (trib_sim_next(job->sim) > until_ns || !trib_sim_step(job->sim)) {
            return false;
        }
    }
    return true;
}

bool sim_job_all_ready(sim_job *job, void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (!job->members[i].ready_told) {
            return false;
        }
    }
    return true;
}

void sim_job_kill(sim_job *job, uint32_t index)
{
    sim_member *member = &job->members[index];
    if (!member->killed) {
        member->killed = true;
        trib_sim_process_freeze(member->process, true);
        trib_sim_node_kill(member->node);
    }
}

void sim_job_leave(sim_job *job, uint32_t index)
{
    sim_member *member = &job->members[index];
    if (!member->closing) {
        member->closing = true;
        trib_engine_close(member->engine, on_closed, member);
    }
}

bool sim_job_drain(sim_job *job, uint32_t index)
{
    return trib_engine_drain(job->members[index].engine, NULL) == TRIB_OK;
}

static bool all_closed(sim_job *job, void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (job->members[i].engine != NULL && !job->members[i].closed) {
            return false;
        }
    }
    return true;
}

bool sim_job_close(sim_job *job, int64_t limit_ns)
{
    for (uint32_t i = 0; i < job->member_count && job->members != NULL; i++) {
        sim_member *member = &job->members[i];
        if (member->process != NULL) {
            trib_sim_process_freeze(member->process, false);
        }
        if (member->engine != NULL) {
            sim_job_leave(job, i);
        }
    }
    return job->members == NULL || sim_job_run(job, trib_sim_now(job->sim) + limit_ns, all_closed, NULL);
}

void sim_job_free(sim_job *job)
{
    for (uint32_t i = 0; job->members != NULL && i < job->member_count; i++) {
        /* A closed engine is only freed, which cannot fail. */
        trib_status status = trib_engine_destroy(job->members[i].engine);
        (void)status;
    }
    free_world(job);
}
