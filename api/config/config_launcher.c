/*
 * config_launcher.c - rank, size and coordinator from the launcher that started the process, and which of the machine's
 * processes this one is.
 *
 * A launcher gives rank, size and perhaps where rank 0 is. If it does not, and all processes are on one machine, the
 * coordinator is on loopback at a port made from the job's id, below the range that the kernel hands out by itself.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/config/settings.h"

#define PORT_FIRST 20000u
#define PORT_COUNT 10000u
#define HOST_MAX 250u
#define LOCAL_COUNT_MAX 4096

/* Text that a config points to until trib_engine_create has copied it. Per thread, so that threads do not share it. */
static _Thread_local char coordinator_text[300];
static _Thread_local char job_text[128];

static trib_status read_int(const char *name, int64_t low, int64_t high, int64_t *value, bool *found, trib_error *error)
{
    const char *text = trib_setting_get(name);
    *found = text != NULL;
    if (text != NULL && !trib_setting_parse_number(text, low, high, value)) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a number, %lld to %lld", (long long)low, (long long)high);
        return trib_setting_refuse(name, text, wanted, error);
    }
    return TRIB_OK;
}

static unsigned hash_text(const char *text)
{
    unsigned hash = 2166136261u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    }
    return hash;
}

/* All processes of the job are on this machine: they agree on a port through something only they have in common. */
static void set_local_coordinator(trib_config *config, const char *id)
{
    snprintf(job_text, sizeof job_text, "%.120s", id);
    snprintf(coordinator_text, sizeof coordinator_text, "127.0.0.1:%u", PORT_FIRST + hash_text(id) % PORT_COUNT);
    config->job = job_text;
    config->coordinator = coordinator_text;
}

static trib_status read_rank_and_size(trib_config *config, const char *rank_name, const char *size_name,
                                      trib_error *error)
{
    int64_t rank = config->rank, size = config->worker_count;
    bool has_rank = false, has_size = false;
    trib_status status = read_int(rank_name, 0, 1 << 20, &rank, &has_rank, error);
    if (status == TRIB_OK) {
        status = read_int(size_name, 1, 1 << 20, &size, &has_size, error);
    }
    if (status == TRIB_OK && has_rank != has_size) {
        status = trib_error_set(error, TRIB_INVALID, "%s is set but %s is not", has_rank ? rank_name : size_name,
                                has_rank ? size_name : rank_name);
    }
    config->rank = (int32_t)rank;
    config->worker_count = (int32_t)size;
    return status;
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
    snprintf(coordinator_text, sizeof coordinator_text, bare ? "[%s]:%u" : "%s:%u", host, port);
    config->coordinator = coordinator_text;
    return TRIB_OK;
}

static trib_status read_torchrun(trib_config *config, trib_error *error)
{
    trib_status status = read_rank_and_size(config, "RANK", "WORLD_SIZE", error);
    const char *host = trib_setting_get("MASTER_ADDR");
    int64_t port = 0;
    bool has_port = false;
    if (status == TRIB_OK) {
        status = read_int("MASTER_PORT", 1, 65534, &port, &has_port, error);
    }
    if (status == TRIB_OK && host != NULL && has_port) {
        /* MASTER_PORT itself belongs to the launcher's store. */
        status = set_coordinator(config, "MASTER_ADDR", host, (unsigned)port + 1, error);
    }
    return status;
}

static trib_status read_open_mpi(trib_config *config, trib_error *error)
{
    trib_status status = read_rank_and_size(config, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", error);
    int64_t local = 0;
    bool found = false;
    if (status == TRIB_OK) {
        status = read_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1, 1 << 20, &local, &found, error);
    }
    if (status == TRIB_OK && found && local == config->worker_count) {
        char id[120];
        const char *space = trib_setting_get("PMIX_NAMESPACE");
        snprintf(id, sizeof id, "ompi-%.60s-%d", space != NULL ? space : "", (int)getppid());
        set_local_coordinator(config, id);
    }
    return status;
}

static trib_status read_hydra(trib_config *config, trib_error *error)
{
    trib_status status = read_rank_and_size(config, "PMI_RANK", "PMI_SIZE", error);
    int64_t local = 0;
    bool found = false;
    if (status == TRIB_OK) {
        status = read_int("MPI_LOCALNRANKS", 1, 1 << 20, &local, &found, error);
    }
    if (status == TRIB_OK && found && local == config->worker_count) {
        char id[64];
        snprintf(id, sizeof id, "hydra-%d", (int)getppid());
        set_local_coordinator(config, id);
    }
    return status;
}

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

static trib_status read_slurm(trib_config *config, trib_error *error)
{
    trib_status status = read_rank_and_size(config, "SLURM_PROCID", "SLURM_NTASKS", error);
    const char *list_name =
        trib_setting_get("SLURM_STEP_NODELIST") != NULL ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = trib_setting_get(list_name);
    const char *job = trib_setting_get("SLURM_JOB_ID"), *step = trib_setting_get("SLURM_STEP_ID"),
               *nodes = trib_setting_get("SLURM_NNODES");
    snprintf(job_text, sizeof job_text, "slurm-%.40s-%.40s", job != NULL ? job : "", step != NULL ? step : "0");
    if (status != TRIB_OK) {
        return status;
    }
    if (nodes == NULL || strcmp(nodes, "1") == 0) {
        char id[128];
        snprintf(id, sizeof id, "%s", job_text);
        set_local_coordinator(config, id);
    } else if (list != NULL) {
        char host[HOST_MAX + 2]; /* one more than fits, so that a longer one is seen */
        copy_first_host(list, host, sizeof host);
        config->job = job_text;
        status = set_coordinator(config, list_name, host, PORT_FIRST + hash_text(job_text) % PORT_COUNT, error);
    }
    return status;
}

static trib_status read_byteps(trib_config *config, trib_error *error)
{
    static const char *const roles[] = {"worker", "server", "scheduler", NULL};
    static const uint32_t bits[] = {TRIB_ROLE_WORKER, TRIB_ROLE_SERVER, TRIB_ROLE_COORDINATOR};
    int role = 0;
    int64_t workers = 1, servers = 0, rank = 0, port = 0;
    bool found = false, has_port = false;
    trib_status status = TRIB_OK;
    if (!trib_setting_parse_word(trib_setting_get("DMLC_ROLE"), roles, &role)) {
        char wanted[80];
        status = trib_setting_refuse("DMLC_ROLE", trib_setting_get("DMLC_ROLE"),
                                     trib_setting_words_text(roles, wanted, sizeof wanted), error);
    }
    if (status == TRIB_OK) {
        status = read_int("DMLC_NUM_WORKER", 1, 1 << 20, &workers, &found, error);
    }
    if (status == TRIB_OK) {
        status = read_int("DMLC_NUM_SERVER", 0, 1 << 20, &servers, &found, error);
    }
    if (status == TRIB_OK) {
        status = read_int("DMLC_WORKER_ID", 0, 1 << 20, &rank, &found, error);
    }
    if (status == TRIB_OK) {
        status = read_int("DMLC_PS_ROOT_PORT", 1, 65535, &port, &has_port, error);
    }
    config->roles = bits[role];
    config->rank = role == 0 ? (int32_t)rank : -1;
    config->worker_count = (int32_t)workers;
    config->server_count = (int32_t)servers;
    config->external_coordinator = true;
    const char *host = trib_setting_get("DMLC_PS_ROOT_URI");
    if (status == TRIB_OK && host != NULL && has_port) {
        status = set_coordinator(config, "DMLC_PS_ROOT_URI", host, (unsigned)port, error);
    }
    return status;
}

/* The value of a launcher's variable; false if there is none, or it makes no sense: a launcher's word on local ranks is
 * advice. */
static bool read_advice(const char *name, int64_t low, int64_t high, int64_t *value)
{
    const char *text = trib_setting_get(name);
    return text != NULL && trib_setting_parse_number(text, low, high, value);
}

/* Such a process would train alone, and nobody would notice before the results are looked at. */
static trib_status check_alone(trib_error *error)
{
    static const char *const names[][2] = {
        {"WORLD_SIZE", "RANK"},
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"PMI_SIZE", "PMI_RANK"},
        {"SLURM_NTASKS", "SLURM_PROCID"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t count = 0;
        if (trib_setting_get(names[i][1]) == NULL && read_advice(names[i][0], 2, 1 << 20, &count)) {
            return trib_error_set(
                error, TRIB_INVALID,
                "%s=\"%lld\" is set, but %s is not: start all processes by the launcher that sets both, or "
                "set TRIB_RANK and TRIB_WORKERS; TRIB_WORKERS=1 alone is for a job of one process",
                names[i][0], (long long)count, names[i][1]);
        }
    }
    return TRIB_OK;
}

trib_status trib_config_take_launcher(trib_config *config, trib_error *error)
{
    if (trib_setting_get("DMLC_ROLE") != NULL) {
        return read_byteps(config, error);
    }
    if (trib_setting_get("OMPI_COMM_WORLD_RANK") != NULL) {
        return read_open_mpi(config, error);
    }
    if (trib_setting_get("RANK") != NULL && trib_setting_get("WORLD_SIZE") != NULL) {
        return read_torchrun(config, error);
    }
    if (trib_setting_get("PMI_RANK") != NULL) {
        return read_hydra(config, error);
    }
    if (trib_setting_get("SLURM_PROCID") != NULL && trib_setting_get("SLURM_NTASKS") != NULL) {
        return read_slurm(config, error);
    }
    const char *role = trib_setting_get("TRIB_ROLE");
    const bool is_worker = config->rank >= 0 && (role == NULL || strstr(role, "worker") != NULL);
    return is_worker && trib_setting_get("TRIB_WORKERS") == NULL ? check_alone(error) : TRIB_OK;
}

/* ---- Processes of one machine ---- */

trib_status trib_config_check_local(trib_error *error)
{
    int64_t rank = 0, count = LOCAL_COUNT_MAX;
    bool found = false;
    trib_status status = read_int("TRIB_LOCAL_RANK", 0, LOCAL_COUNT_MAX - 1, &rank, &found, error);
    if (status == TRIB_OK) {
        status = read_int("TRIB_LOCAL_COUNT", 1, LOCAL_COUNT_MAX, &count, &found, error);
    }
    if (status == TRIB_OK && rank >= count) {
        status = trib_error_set(error, TRIB_INVALID,
                                "TRIB_LOCAL_RANK=\"%lld\": must be less than TRIB_LOCAL_COUNT, which is %lld",
                                (long long)rank, (long long)count);
    }
    return status;
}

bool trib_config_local(uint32_t *index_out, uint32_t *count_out)
{
    static const char *const names[][2] = {
        {"TRIB_LOCAL_RANK", "TRIB_LOCAL_COUNT"},
        {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    *index_out = 0;
    *count_out = 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t index = 0, count = 1;
        if (!read_advice(names[i][0], 0, LOCAL_COUNT_MAX - 1, &index)) {
            continue;
        }
        const bool has_count = trib_setting_get(names[i][1]) != NULL;
        if ((!has_count || read_advice(names[i][1], 1, LOCAL_COUNT_MAX, &count)) && index < count) {
            *index_out = (uint32_t)index;
            *count_out = (uint32_t)count;
            return has_count;
        }
    }
    return false;
}

void trib_config_take_device(trib_config *config, const char *device)
{
    if (device != NULL) {
        uint32_t index = 0, count = 1;
        (void)trib_config_local(&index, &count);
        config->device = device;
        config->local_rank = (int32_t)index;
        config->local_size = (int32_t)count;
    }
}
