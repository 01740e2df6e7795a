/*
 * config_launcher.c - rank, size and coordinator from the launcher that started the process.
 *
 * A launcher gives rank, size and perhaps where rank 0 is. If it does not, and all processes are on one machine, the
 * coordinator is on loopback at a port made from the job's id, below the range that the kernel hands out by itself.
 *
 * Launchers start each other: mpirun starts a torchrun on each machine, Slurm starts an mpirun. The variables of both
 * are there then, and the innermost launcher's count. Variables of which neither can be the inner ones are rejected.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/config/settings.h"
#include "engine/base/limits.h"

#define PORT_FIRST 20000u
#define PORT_COUNT 10000u
#define HOST_MAX 250u

/* Text that a config points to until trib_engine_create has copied it. Per thread, so that threads do not share it. */
static _Thread_local char job_text[128];
/* The address stands behind its source, so that trib_config_is_launchers_address can tell it from one of the
 * program's. */
static _Thread_local struct {
    char source[TRIB_COORDINATOR_SOURCE_SIZE];
    char address[300];
} launched;

/* One launcher's word on this process. */
typedef struct place {
    const char *rank_name, *size_name;
    int64_t rank, size;
} place;

static trib_status read_int(const char *name, int64_t low, int64_t high, int64_t *value, bool *found, trib_error *error)
{
    const char *text = trib_setting_get(name);
    *found = text != NULL;
    return text == NULL ? TRIB_OK : trib_setting_read_number(name, low, high, value, error);
}

static unsigned hash_text(const char *text)
{
    unsigned hash = 2166136261u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    }
    return hash;
}

bool trib_config_is_launchers_address(const trib_config *config)
{
    return config->coordinator_source != NULL &&
           (const void *)config->coordinator == config->coordinator_source + offsetof(typeof(launched), address);
}

/* Notes the variables that a text about the coordinator's address shall name. */
static void set_source(trib_config *config, const char *source)
{
    snprintf(launched.source, sizeof launched.source, "%s", source);
    config->coordinator_source = launched.source;
}

/* All processes of the job are on this machine: they agree on a port through something only they have in common.
 * told_by: the variable that says so. */
static void set_local_coordinator(trib_config *config, const char *id, const char *told_by)
{
    char source[TRIB_COORDINATOR_SOURCE_SIZE];
    snprintf(source, sizeof source, "TRIB_COORDINATOR (now loopback, as %s is that of one machine)", told_by);
    set_source(config, source);
    snprintf(job_text, sizeof job_text, "%.120s", id);
    snprintf(launched.address, sizeof launched.address, "127.0.0.1:%u", PORT_FIRST + hash_text(id) % PORT_COUNT);
    config->job = job_text;
    config->coordinator = launched.address;
}

/* One variable without the other, or a rank that is none of so many, would start a job that never forms. */
static trib_status read_place(place *self, trib_error *error)
{
    bool has_rank = false, has_size = false;
    trib_status status = read_int(self->rank_name, 0, TRIB_MEMBERS_MAX - 1, &self->rank, &has_rank, error);
    if (status == TRIB_OK) {
        status = read_int(self->size_name, 1, TRIB_MEMBERS_MAX, &self->size, &has_size, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (has_rank != has_size) {
        return trib_error_set(error, TRIB_INVALID, "%s is set but %s is not",
                              has_rank ? self->rank_name : self->size_name,
                              has_rank ? self->size_name : self->rank_name);
    }
    if (has_rank && self->rank >= self->size) {
        return trib_error_set(error, TRIB_INVALID, "%s=\"%lld\": must be less than %s, which is %lld", self->rank_name,
                              (long long)self->rank, self->size_name, (long long)self->size);
    }
    return TRIB_OK;
}

/* host_name: the variable that names the host. */
static trib_status set_coordinator(trib_config *config, const char *host_name, const char *host, unsigned port,
                                   trib_error *error)
{
    bool bare = strchr(host, ':') != NULL && host[0] != '[';
    if (strlen(host) > HOST_MAX) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a host name or address of at most %u bytes", HOST_MAX);
        return trib_setting_refuse(host_name, host, wanted, error);
    }
    snprintf(launched.address, sizeof launched.address, bare ? "[%s]:%u" : "%s:%u", host, port);
    config->coordinator = launched.address;
    return TRIB_OK;
}

/* ---- torchrun, Open MPI, Hydra ---- */

static trib_status read_torchrun(trib_config *config, trib_error *error)
{
    const char *host = trib_setting_get("MASTER_ADDR");
    int64_t port = 0;
    bool has_port = false;
    const trib_status status = read_int("MASTER_PORT", 1, 65534, &port, &has_port, error);
    set_source(config, "MASTER_ADDR and MASTER_PORT");
    if (status == TRIB_OK && host != NULL && has_port) {
        /* MASTER_PORT itself belongs to the launcher's store. */
        return set_coordinator(config, "MASTER_ADDR", host, (unsigned)port + 1, error);
    }
    return status;
}

/* Puts all processes on this machine if the launcher's count of processes here is that of the job. */
static trib_status read_one_machine(trib_config *config, const char *local_size_name, const char *id, trib_error *error)
{
    int64_t local = 0;
    bool found_size = false;
    const trib_status status = read_int(local_size_name, 1, TRIB_MEMBERS_MAX, &local, &found_size, error);
    if (status == TRIB_OK && found_size && local == config->worker_count) {
        set_local_coordinator(config, id, local_size_name);
    } else if (status == TRIB_OK) {
        char source[TRIB_COORDINATOR_SOURCE_SIZE];
        snprintf(source, sizeof source, "TRIB_COORDINATOR (%s %s)", local_size_name,
                 found_size ? "counts one machine of several" : "is not set");
        set_source(config, source);
    }
    return status;
}

static trib_status read_open_mpi(trib_config *config, trib_error *error)
{
    char id[120];
    const char *space = trib_setting_get("PMIX_NAMESPACE");
    snprintf(id, sizeof id, "ompi-%.60s-%d", space != NULL ? space : "", (int)getppid());
    return read_one_machine(config, "OMPI_COMM_WORLD_LOCAL_SIZE", id, error);
}

static trib_status read_hydra(trib_config *config, trib_error *error)
{
    char id[64];
    snprintf(id, sizeof id, "hydra-%d", (int)getppid());
    return read_one_machine(config, "MPI_LOCALNRANKS", id, error);
}

/* ---- Slurm ---- */

/* The first host of "a[03-07,9],b" is a03. */
static void copy_first_host(const char *list, char *host, size_t size)
{
    size_t length = strcspn(list, ",[");
    snprintf(host, size, "%.*s", (int)length, list);
    if (list[length] == '[') {
        const char *range = list + length + 1;
        size_t used = strlen(host);
        snprintf(host + used, size - used, "%.*s", (int)strcspn(range, ",-]"), range);
    }
}

/* srun sets these for its steps. A batch script has rank 0 of all tasks, too, but is one process, which srun has not
 * started. */
static bool is_in_slurm_step(void)
{
    const char *procid = trib_setting_get("SLURM_PROCID");
    return trib_setting_get("SLURM_STEP_ID") != NULL || trib_setting_get("SLURM_STEP_NODELIST") != NULL ||
           trib_setting_get("SLURM_STEP_NUM_TASKS") != NULL || (procid != NULL && strcmp(procid, "0") != 0);
}

static trib_status read_slurm(trib_config *config, trib_error *error)
{
    const char *list_name =
        trib_setting_get("SLURM_STEP_NODELIST") != NULL ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = trib_setting_get(list_name);
    const char *job = trib_setting_get("SLURM_JOB_ID"), *step = trib_setting_get("SLURM_STEP_ID"),
               *nodes = trib_setting_get("SLURM_NNODES");
    if (config->worker_count > 1 && !is_in_slurm_step()) {
        return trib_error_set(
            error, TRIB_INVALID,
            "SLURM_NTASKS=\"%d\" is set, but SLURM_STEP_ID is not: srun has not started this process. "
            "Start the program by srun in the batch script (srun PROGRAM); for a job of this process "
            "alone set TRIB_WORKERS=1",
            config->worker_count);
    }
    snprintf(job_text, sizeof job_text, "slurm-%.40s-%.40s", job != NULL ? job : "", step != NULL ? step : "0");
    if (nodes == NULL || strcmp(nodes, "1") == 0) {
        char id[128];
        snprintf(id, sizeof id, "%s", job_text);
        set_local_coordinator(config, id, "SLURM_NNODES");
    } else if (list != NULL) {
        char host[HOST_MAX + 2]; /* one more than fits, so that a longer one is seen */
        copy_first_host(list, host, sizeof host);
        config->job = job_text;
        set_source(config, list_name);
        return set_coordinator(config, list_name, host, PORT_FIRST + hash_text(job_text) % PORT_COUNT, error);
    } else {
        set_source(config, "SLURM_STEP_NODELIST");
    }
    return TRIB_OK;
}

/* ---- BytePS ---- */

/* BytePS's launcher starts several processes on each machine; DMLC_* count machines. */
static trib_status read_byteps_worker(trib_config *config, int64_t machines, trib_error *error)
{
    int64_t machine = 0, rank = 0, size = 1;
    bool has_machine = false, has_rank = false, has_size = false;
    trib_status status = read_int("DMLC_WORKER_ID", 0, TRIB_MEMBERS_MAX - 1, &machine, &has_machine, error);
    if (status == TRIB_OK) {
        status = read_int("BYTEPS_LOCAL_RANK", 0, TRIB_MEMBERS_MAX - 1, &rank, &has_rank, error);
    }
    if (status == TRIB_OK) {
        status = read_int("BYTEPS_LOCAL_SIZE", 1, TRIB_MEMBERS_MAX, &size, &has_size, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    if ((machines > 1 && !has_machine) || machine >= machines) {
        return trib_error_set(error, TRIB_INVALID,
                              "DMLC_WORKER_ID=\"%s\": must be less than DMLC_NUM_WORKER, which is %lld",
                              has_machine ? trib_setting_get("DMLC_WORKER_ID") : "", (long long)machines);
    }
    if ((size > 1 && !has_rank) || rank >= size) {
        return trib_error_set(error, TRIB_INVALID,
                              "BYTEPS_LOCAL_RANK=\"%s\": must be less than BYTEPS_LOCAL_SIZE, which is %lld",
                              has_rank ? trib_setting_get("BYTEPS_LOCAL_RANK") : "", (long long)size);
    }
    if (machines * size > (int64_t)TRIB_MEMBERS_MAX) {
        return trib_error_set(error, TRIB_INVALID,
                              "DMLC_NUM_WORKER x BYTEPS_LOCAL_SIZE are %lld workers: a job has at most %u members",
                              (long long)(machines * size), TRIB_MEMBERS_MAX);
    }
    config->rank = (int32_t)(rank + machine * size);
    config->worker_count = (int32_t)(machines * size);
    if (config->worker_count > 1 && machines == 1 && trib_setting_get("DMLC_PS_ROOT_URI") == NULL) {
        /* On one machine BytePS needs no scheduler. */
        char id[64];
        snprintf(id, sizeof id, "byteps-%d", (int)getppid());
        set_local_coordinator(config, id, "DMLC_NUM_WORKER");
        config->external_coordinator = false;
    }
    return TRIB_OK;
}

static trib_status read_byteps(trib_config *config, trib_error *error)
{
    static const char *const roles[] = {"worker", "server", "scheduler", NULL};
    static const uint32_t bits[] = {TRIB_ROLE_WORKER, TRIB_ROLE_SERVER, TRIB_ROLE_COORDINATOR};
    int role = 0;
    int64_t machines = 1, servers = 0, port = 0;
    bool has_count = false, has_port = false;
    if (!trib_setting_parse_word(trib_setting_get("DMLC_ROLE"), roles, &role)) {
        char wanted[80];
        return trib_setting_refuse("DMLC_ROLE", trib_setting_get("DMLC_ROLE"),
                                   trib_setting_words_text(roles, wanted, sizeof wanted), error);
    }
    trib_status status = read_int("DMLC_NUM_WORKER", 1, TRIB_MEMBERS_MAX, &machines, &has_count, error);
    if (status == TRIB_OK) {
        status = read_int("DMLC_NUM_SERVER", 0, TRIB_MEMBERS_MAX, &servers, &has_count, error);
    }
    if (status == TRIB_OK) {
        status = read_int("DMLC_PS_ROOT_PORT", 1, 65535, &port, &has_port, error);
    }
    config->roles = bits[role];
    config->rank = -1;
    config->worker_count = (int32_t)machines;
    config->server_count = (int32_t)servers;
    config->external_coordinator = true;
    set_source(config, "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT");
    if (status == TRIB_OK && bits[role] == TRIB_ROLE_WORKER) {
        status = read_byteps_worker(config, machines, error);
    }
    const char *host = trib_setting_get("DMLC_PS_ROOT_URI");
    if (status == TRIB_OK && host != NULL && has_port) {
        status = set_coordinator(config, "DMLC_PS_ROOT_URI", host, (unsigned)port, error);
    }
    return status;
}

/* ---- The innermost launcher ---- */

typedef struct launcher {
    const char *rank_name, *size_name;
    const char *marks[2];                                        /* variables that must be there, too; NULL: none */
    trib_status (*read)(trib_config *config, trib_error *error); /* where rank 0 is; NULL: this launcher does not say */
    bool is_mpi, is_slurm;
} launcher;

/* The first counts if several agree; a launcher that says where rank 0 is stands before one that does not. */
static const launcher launchers[] = {
    {"RANK", "WORLD_SIZE", {"MASTER_ADDR", "MASTER_PORT"}, read_torchrun, false, false},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {NULL}, read_open_mpi, true, false},
    {"PMI_RANK", "PMI_SIZE", {"MPI_LOCALNRANKS"}, read_hydra, true, false},
    {"SLURM_PROCID", "SLURM_NTASKS", {"SLURM_NTASKS"}, read_slurm, false, true},
    {"PMI_RANK", "PMI_SIZE", {NULL}, NULL, false, false}, /* Slurm's own PMI sets these as well */
    {"RANK", "WORLD_SIZE", {"WORLD_SIZE"}, read_torchrun, false, false},
};
static const launcher torchrun = {"RANK", "WORLD_SIZE", {"WORLD_SIZE"}, read_torchrun, false, false};
#define LAUNCHERS (sizeof launchers / sizeof launchers[0])

static bool is_there(const launcher *self)
{
    if (trib_setting_get(self->rank_name) == NULL) {
        return false;
    }
    for (size_t i = 0; i < sizeof self->marks / sizeof self->marks[0]; i++) {
        if (self->marks[i] != NULL && trib_setting_get(self->marks[i]) == NULL) {
            return false;
        }
    }
    return true;
}

/* The outer launcher has started an inner one for each of its ranks, which has started equally many. */
static bool is_inside(const place *inner, const place *outer)
{
    const int64_t each = inner->size / outer->size;
    return inner->size % outer->size == 0 && inner->rank / each == outer->rank;
}

static place place_of(const launcher *self)
{
    return (place){.rank_name = self->rank_name, .size_name = self->size_name, .size = 1};
}

/* Takes the other launcher's place if that is the inner one. */
static trib_status compare_places(const launcher **chosen, place *at, const launcher *other, trib_error *error)
{
    place its = place_of(other);
    const trib_status status = read_place(&its, error);
    if (status != TRIB_OK) {
        return status;
    }
    /* mpirun inherits the variables of the Slurm job in which it runs. */
    if ((*chosen)->is_mpi && other->is_slurm) {
        return TRIB_OK;
    }
    /* The other launcher's place does not count if its job has one process, or if it started the chosen launcher. */
    if (its.size == 1 || (at->size > 1 && is_inside(at, &its))) {
        return TRIB_OK;
    }
    if (at->size == 1 || is_inside(&its, at)) {
        *chosen = other;
        *at = its;
        return TRIB_OK;
    }
    return trib_error_set(
        error, TRIB_INVALID,
        "%s=%lld of %s=%lld and %s=%lld of %s=%lld contradict each other: two launchers, and either "
        "may have started this process. Unset the variables of the one that has not, or set TRIB_RANK "
        "and TRIB_WORKERS",
        at->rank_name, (long long)at->rank, at->size_name, (long long)at->size, its.rank_name, (long long)its.rank,
        its.size_name, (long long)its.size);
}

static trib_status choose_launcher(const launcher **chosen, place *at, trib_error *error)
{
    const launcher *batch = NULL;
    trib_status status = TRIB_OK;
    *chosen = NULL;
    for (size_t i = 0; status == TRIB_OK && i < LAUNCHERS; i++) {
        const launcher *self = &launchers[i];
        if (!is_there(self)) {
            continue;
        }
        if (self->is_slurm && !is_in_slurm_step()) {
            batch = self; /* counts if there is no other */
        } else if (*chosen == NULL) {
            *chosen = self;
            *at = place_of(self);
            status = read_place(at, error);
        } else if (strcmp((*chosen)->rank_name, self->rank_name) != 0 && trib_setting_get(self->size_name) != NULL) {
            status = compare_places(chosen, at, self, error);
        }
    }
    if (status == TRIB_OK && *chosen == NULL && batch != NULL) {
        *chosen = batch;
        *at = place_of(batch);
        status = read_place(at, error);
    }
    return status;
}

static trib_status read_innermost(trib_config *config, trib_error *error)
{
    const launcher *chosen = NULL;
    place at;
    trib_status status = TRIB_OK;
    if (trib_setting_get("TORCHELASTIC_RUN_ID") != NULL && is_there(&torchrun)) {
        /* torchrun itself starts the processes that have this. */
        chosen = &torchrun;
        at = place_of(chosen);
        status = read_place(&at, error);
    } else {
        status = choose_launcher(&chosen, &at, error);
    }
    if (status != TRIB_OK || chosen == NULL) {
        return status;
    }
    config->rank = (int32_t)at.rank;
    config->worker_count = (int32_t)at.size;
    return chosen->read != NULL ? chosen->read(config, error) : TRIB_OK;
}

/* A process that has not been told its rank would train alone, and nobody would notice before the results are looked
 * at. */
static trib_status check_alone(trib_error *error)
{
    static const char *const names[][2] = {
        {"WORLD_SIZE", "RANK"},           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"PMI_SIZE", "PMI_RANK"},         {"SLURM_NTASKS", "SLURM_PROCID"},
        {"DMLC_NUM_WORKER", "DMLC_ROLE"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t count = 0;
        const char *text = trib_setting_get(names[i][0]);
        if (trib_setting_get(names[i][1]) == NULL && text != NULL &&
            trib_setting_parse_number(text, 2, INT64_MAX, &count)) {
            return trib_error_set(
                error, TRIB_INVALID,
                "%s=\"%lld\" is set, but %s is not: start all processes by the launcher that sets both, or "
                "set TRIB_RANK and TRIB_WORKERS; TRIB_WORKERS=1 alone is for a job of one process",
                names[i][0], (long long)count, names[i][1]);
        }
    }
    return TRIB_OK;
}

static bool is_started_by_launcher(void)
{
    const bool is_told = trib_setting_get("TRIB_WORKERS") != NULL;
    for (size_t i = 0; i < LAUNCHERS; i++) {
        /* A count that was given by hand settles what a batch script's process is. */
        if (is_there(&launchers[i]) && !(launchers[i].is_slurm && is_told && !is_in_slurm_step())) {
            return true;
        }
    }
    return false;
}

trib_status trib_config_take_launcher(trib_config *config, trib_error *error)
{
    if (trib_setting_get("DMLC_ROLE") != NULL) {
        return read_byteps(config, error);
    }
    if (is_started_by_launcher()) {
        return read_innermost(config, error);
    }
    const char *role = trib_setting_get("TRIB_ROLE");
    const bool is_worker = config->rank >= 0 && (role == NULL || strstr(role, "worker") != NULL);
    /* A program that has said how many workers there are is not alone, whatever variables are there. */
    return is_worker && config->worker_count <= 1 && trib_setting_get("TRIB_WORKERS") == NULL ? check_alone(error)
                                                                                              : TRIB_OK;
}
