/*
 * config_env.c - settings from the environment: TRIB_*, else those of the launcher that started the process.
 *
 * A launcher gives rank, size and perhaps where rank 0 is. If it does not, and all processes are on one machine, the
 * coordinator is on loopback at a port made from the job's id, below the range that the kernel hands out by itself.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/config/config.h"

#define PORT_FIRST 20000u
#define PORT_COUNT 10000u
#define HOST_MAX 250u

/* Text that a config points to until trib_engine_create has copied it. Per thread, so that threads do not share it. */
static _Thread_local char coordinator_text[300];
static _Thread_local char job_text[128];

static const char *get(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static trib_status bad(const char *name, const char *value, const char *wanted, trib_error *error)
{
    return trib_error_set(error, TRIB_INVALID, "%s=\"%.80s\": must be %s", name, value, wanted);
}

static trib_status read_int(const char *name, int64_t low, int64_t high, int64_t *value, bool *found, trib_error *error)
{
    const char *text = get(name);
    if (text == NULL) {
        return TRIB_OK;
    }
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < low || number > high) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a number, %lld to %lld", (long long)low, (long long)high);
        return bad(name, text, wanted, error);
    }
    *value = number;
    *found = true;
    return TRIB_OK;
}

/* "262144", "256K", "1M", "10gbit": a number with an optional power of 1024 (of 1000 before "bit"). */
static bool scaled(const char *text, double *value)
{
    char *end = NULL;
    errno = 0;
    *value = strtod(text, &end);
    if (errno != 0 || end == text || !(*value >= 0)) {
        return false;
    }
    const char *units = "kmgt";
    const char *at = *end != '\0' ? strchr(units, tolower((unsigned char)*end)) : NULL;
    double step = at != NULL && strcasecmp(end + 1, "bit") == 0 ? 1000.0 : 1024.0;
    for (const char *unit = units; at != NULL && unit <= at; unit++) {
        *value *= step;
    }
    end += at != NULL;
    return *end == '\0' || strcasecmp(end, "b") == 0 || strcasecmp(end, "ib") == 0 || strcasecmp(end, "bit") == 0;
}

static trib_status read_bytes(const char *name, uint32_t *value, trib_error *error)
{
    const char *text = get(name);
    double number = 0;
    if (text != NULL && (!scaled(text, &number) || number < 1 || number > 1u << 30)) {
        return bad(name, text, "bytes, 1 to 1G, such as 262144, 256K or 1M", error);
    }
    *value = text != NULL ? (uint32_t)number : *value;
    return TRIB_OK;
}

static trib_status read_seconds(const char *name, int64_t *value_ns, trib_error *error)
{
    const char *text = get(name);
    if (text == NULL) {
        return TRIB_OK;
    }
    char *end = NULL;
    double number = strtod(text, &end);
    double unit = strcmp(end, "ms") == 0 ? 1e6 : strcmp(end, "us") == 0 ? 1e3 : strcmp(end, "m") == 0 ? 60e9 : 0;
    unit = *end == '\0' || strcmp(end, "s") == 0 ? 1e9 : unit;
    if (end == text || unit == 0 || !(number * unit >= 1) || number * unit > 1e18) {
        return bad(name, text, "a time above 0, such as 30, 0.5, 200ms or 5m", error);
    }
    *value_ns = (int64_t)(number * unit);
    return TRIB_OK;
}

static trib_status read_word(const char *name, const char *const *words, int count, int *value, trib_error *error)
{
    const char *text = get(name);
    if (text == NULL) {
        return TRIB_OK;
    }
    char wanted[120] = "one of";
    for (int i = 0; i < count; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *value = i;
            return TRIB_OK;
        }
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, " %s", words[i]);
    }
    return bad(name, text, wanted, error);
}

static trib_status read_bool(const char *name, bool *value, trib_error *error)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};
    int index = *value ? 1 : 0;
    trib_status status = read_word(name, words, 8, &index, error);
    *value = index % 2 == 1;
    return status;
}

/* ---- Launchers ---- */

static unsigned hash_text(const char *text)
{
    unsigned hash = 2166136261u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    }
    return hash;
}

/* All processes of the job are on this machine: they agree on a port through something only they have in common. */
static void local_coordinator(trib_config *config, const char *id)
{
    snprintf(job_text, sizeof job_text, "%.120s", id);
    snprintf(coordinator_text, sizeof coordinator_text, "127.0.0.1:%u", PORT_FIRST + hash_text(id) % PORT_COUNT);
    config->job = job_text;
    config->coordinator = coordinator_text;
}

static trib_status rank_and_size(trib_config *config, const char *rank_name, const char *size_name, trib_error *error)
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

/* host_name is the variable that the host is from. */
static trib_status set_coordinator(trib_config *config, const char *host_name, const char *host, unsigned port,
                                   trib_error *error)
{
    bool bare = strchr(host, ':') != NULL && host[0] != '[';
    if (strlen(host) > HOST_MAX) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a host name or address of at most %u bytes", HOST_MAX);
        return bad(host_name, host, wanted, error);
    }
    snprintf(coordinator_text, sizeof coordinator_text, bare ? "[%s]:%u" : "%s:%u", host, port);
    config->coordinator = coordinator_text;
    return TRIB_OK;
}

static trib_status from_torchrun(trib_config *config, trib_error *error)
{
    trib_status status = rank_and_size(config, "RANK", "WORLD_SIZE", error);
    const char *host = get("MASTER_ADDR");
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

static trib_status from_open_mpi(trib_config *config, trib_error *error)
{
    trib_status status = rank_and_size(config, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", error);
    int64_t local = 0;
    bool found = false;
    if (status == TRIB_OK) {
        status = read_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1, 1 << 20, &local, &found, error);
    }
    if (status == TRIB_OK && found && local == config->worker_count) {
        char id[120];
        const char *space = get("PMIX_NAMESPACE");
        snprintf(id, sizeof id, "ompi-%.60s-%d", space != NULL ? space : "", (int)getppid());
        local_coordinator(config, id);
    }
    return status;
}

static trib_status from_hydra(trib_config *config, trib_error *error)
{
    trib_status status = rank_and_size(config, "PMI_RANK", "PMI_SIZE", error);
    int64_t local = 0;
    bool found = false;
    if (status == TRIB_OK) {
        status = read_int("MPI_LOCALNRANKS", 1, 1 << 20, &local, &found, error);
    }
    if (status == TRIB_OK && found && local == config->worker_count) {
        char id[64];
        snprintf(id, sizeof id, "hydra-%d", (int)getppid());
        local_coordinator(config, id);
    }
    return status;
}

/* The first host of "a[03-07,9],b" is a03. */
static void first_host(const char *list, char *host, size_t size)
{
    size_t length = strcspn(list, ",[");
    snprintf(host, size, "%.*s", (int)length, list);
    if (list[length] == '[') {
        const char *range = list + length + 1;
        size_t used = strlen(host);
        snprintf(host + used, size - used, "%.*s", (int)strcspn(range, ",-]"), range);
    }
}

static trib_status from_slurm(trib_config *config, trib_error *error)
{
    trib_status status = rank_and_size(config, "SLURM_PROCID", "SLURM_NTASKS", error);
    const char *list_name = get("SLURM_STEP_NODELIST") != NULL ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = get(list_name);
    const char *job = get("SLURM_JOB_ID"), *step = get("SLURM_STEP_ID"), *nodes = get("SLURM_NNODES");
    snprintf(job_text, sizeof job_text, "slurm-%.40s-%.40s", job != NULL ? job : "", step != NULL ? step : "0");
    if (status != TRIB_OK) {
        return status;
    }
    if (nodes == NULL || strcmp(nodes, "1") == 0) {
        char id[128];
        snprintf(id, sizeof id, "%s", job_text);
        local_coordinator(config, id);
    } else if (list != NULL) {
        char host[HOST_MAX + 2]; /* one more than fits, so that a longer one is seen */
        first_host(list, host, sizeof host);
        config->job = job_text;
        status = set_coordinator(config, list_name, host, PORT_FIRST + hash_text(job_text) % PORT_COUNT, error);
    }
    return status;
}

static trib_status from_byteps(trib_config *config, trib_error *error)
{
    static const char *const roles[] = {"worker", "server", "scheduler"};
    static const uint32_t bits[] = {TRIB_ROLE_WORKER, TRIB_ROLE_SERVER, TRIB_ROLE_COORDINATOR};
    int role = 0;
    int64_t workers = 1, servers = 0, rank = 0, port = 0;
    bool found = false, has_port = false;
    trib_status status = read_word("DMLC_ROLE", roles, 3, &role, error);
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
    const char *host = get("DMLC_PS_ROOT_URI");
    if (status == TRIB_OK && host != NULL && has_port) {
        status = set_coordinator(config, "DMLC_PS_ROOT_URI", host, (unsigned)port, error);
    }
    return status;
}

static trib_status from_launcher(trib_config *config, trib_error *error)
{
    if (get("DMLC_ROLE") != NULL) {
        return from_byteps(config, error);
    }
    if (get("OMPI_COMM_WORLD_RANK") != NULL) {
        return from_open_mpi(config, error);
    }
    if (get("RANK") != NULL && get("WORLD_SIZE") != NULL) {
        return from_torchrun(config, error);
    }
    if (get("PMI_RANK") != NULL) {
        return from_hydra(config, error);
    }
    if (get("SLURM_PROCID") != NULL && get("SLURM_NTASKS") != NULL) {
        return from_slurm(config, error);
    }
    const char *role = get("TRIB_ROLE");
    const bool is_worker = config->rank >= 0 && (role == NULL || strstr(role, "worker") != NULL);
    return is_worker && get("TRIB_WORKERS") == NULL ? trib_config_check_alone(error) : TRIB_OK;
}

/* ---- TRIB_* ---- */

static trib_status read_role(trib_config *config, trib_error *error)
{
    const char *text = get("TRIB_ROLE");
    uint32_t roles = 0;
    for (const char *at = text; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, "+");
        if (length == 6 && strncmp(at, "worker", 6) == 0) {
            roles |= TRIB_ROLE_WORKER;
        } else if (length == 6 && strncmp(at, "server", 6) == 0) {
            roles |= TRIB_ROLE_SERVER;
        } else if (length == 11 && strncmp(at, "coordinator", 11) == 0) {
            roles |= TRIB_ROLE_COORDINATOR;
        } else {
            return bad("TRIB_ROLE", text, "worker, server, coordinator, or several joined by +", error);
        }
        at += length + (at[length] == '+' && at[length + 1] != '\0');
    }
    config->roles = roles != 0 ? roles : config->roles;
    return TRIB_OK;
}

static trib_status read_token(trib_config *config, trib_error *error)
{
    return trib_config_take_token(config, get("TRIB_TOKEN"), get("TRIB_TOKEN_FILE"), error);
}

static trib_status read_numbers(trib_config *config, trib_error *error)
{
    int64_t rank = config->rank, workers = config->worker_count, servers = config->server_count;
    int64_t reactors = config->reactors;
    const struct {
        const char *name;
        int64_t low, high, *value;
    } numbers[] = {{"TRIB_RANK", 0, 1 << 20, &rank},
                   {"TRIB_WORKERS", 1, 1 << 20, &workers},
                   {"TRIB_SERVERS", 0, 1 << 20, &servers},
                   {"TRIB_REACTORS", 0, 16, &reactors}};
    bool found = false;
    trib_status status = TRIB_OK;
    for (size_t i = 0; status == TRIB_OK && i < sizeof numbers / sizeof numbers[0]; i++) {
        status = read_int(numbers[i].name, numbers[i].low, numbers[i].high, numbers[i].value, &found, error);
    }
    config->rank = (int32_t)rank;
    config->worker_count = (int32_t)workers;
    config->server_count = (int32_t)servers;
    config->reactors = (uint32_t)reactors;
    return status;
}

static trib_status read_sizes(trib_config *config, trib_error *error)
{
    const struct {
        const char *name;
        uint32_t *value;
    } sizes[] = {{"TRIB_PARTITION_BYTES", &config->partition_bytes},
                 {"TRIB_CHUNK_BYTES", &config->chunk_bytes},
                 {"TRIB_PUSH_CREDIT", &config->push_credit_bytes},
                 {"TRIB_PULL_CREDIT", &config->pull_credit_bytes}};
    const struct {
        const char *name;
        int64_t *value;
    } times[] = {{"TRIB_JOIN_TIMEOUT", &config->join_timeout_ns},
                 {"TRIB_OP_TIMEOUT", &config->op_timeout_ns},
                 {"TRIB_PEER_TIMEOUT", &config->peer_timeout_ns},
                 {"TRIB_BUSY_POLL_TIME", &config->busy_poll_ns},
                 {"TRIB_CLOSE_TIMEOUT", &config->close_timeout_ns}};
    trib_status status = TRIB_OK;
    for (size_t i = 0; status == TRIB_OK && i < sizeof sizes / sizeof sizes[0]; i++) {
        status = read_bytes(sizes[i].name, sizes[i].value, error);
    }
    for (size_t i = 0; status == TRIB_OK && i < sizeof times / sizeof times[0]; i++) {
        status = read_seconds(times[i].name, times[i].value, error);
    }
    uint32_t trace_bytes = 0; /* 0: as it was */
    status = status == TRIB_OK ? read_bytes("TRIB_TRACE_BYTES", &trace_bytes, error) : status;
    config->trace_bytes = trace_bytes > 0 ? trace_bytes : config->trace_bytes;
    const char *rate = get("TRIB_BANDWIDTH");
    double bits = 0;
    if (status != TRIB_OK || rate == NULL) {
        return status;
    }
    if (!scaled(rate, &bits) || bits > 1e15) {
        return bad("TRIB_BANDWIDTH", rate, "bits per second, such as 10gbit", error);
    }
    config->bandwidth_bits = (uint64_t)bits;
    return TRIB_OK;
}

static trib_status read_choices(trib_config *config, trib_error *error)
{
    static const char *const orders[] = {"rank", "arrival"};
    static const char *const shares_words[] = {"fixed", "follow"};
    static const char *const whens[] = {"auto", "off", "on"};
    static const char *const levels[] = {"none", "error", "warn", "info", "debug", "trace"};
    int order = (int)config->sum_order, level = (int)config->log_level;
    int colocate = (int)config->colocate, local_sum = (int)config->local_sum, shares = (int)config->shares;
    int gpu_direct = (int)config->gpu_direct;
    const struct {
        const char *name, *const *words;
        int count, *value;
    } choices[] = {{"TRIB_SUM_ORDER", orders, 2, &order},      {"TRIB_COLOCATE", whens, 3, &colocate},
                   {"TRIB_LOCAL_SUM", whens, 3, &local_sum},   {"TRIB_SHARES", shares_words, 2, &shares},
                   {"TRIB_GPU_DIRECT", whens, 2, &gpu_direct}, {"TRIB_LOG", levels, 6, &level}};
    trib_status status = TRIB_OK;
    for (size_t i = 0; status == TRIB_OK && i < sizeof choices / sizeof choices[0]; i++) {
        status = read_word(choices[i].name, choices[i].words, choices[i].count, choices[i].value, error);
    }
    const struct {
        const char *name;
        bool *value;
    } flags[] = {{"TRIB_BUSY_POLL", &config->busy_poll},
                 {"TRIB_PIN", &config->pin},
                 {"TRIB_EXTERNAL_COORDINATOR", &config->external_coordinator}};
    for (size_t i = 0; status == TRIB_OK && i < sizeof flags / sizeof flags[0]; i++) {
        status = read_bool(flags[i].name, flags[i].value, error);
    }
    config->sum_order = (trib_sum_order)order;
    config->colocate = (trib_colocate)colocate;
    config->local_sum = (trib_local_sum)local_sum;
    config->shares = (trib_shares)shares;
    config->gpu_direct = (trib_gpu_direct)gpu_direct;
    config->log_level = (trib_log_level)level;
    return status;
}

trib_status trib_config_from_env(trib_config *config, trib_error *error)
{
    trib_status status =
        config == NULL ? trib_error_set(error, TRIB_INVALID, "config is NULL") : trib_config_check_size(config, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_config mine = *config;
    status = get("TRIB_RANK") != NULL ? TRIB_OK : from_launcher(&mine, error);
    trib_status (*const readers[])(trib_config *, trib_error *) = {read_role, read_numbers, read_token, read_sizes,
                                                                   read_choices};
    for (size_t i = 0; status == TRIB_OK && i < sizeof readers / sizeof readers[0]; i++) {
        status = readers[i](&mine, error);
    }
    status = status == TRIB_OK ? trib_config_check_local(error) : status;
    if (status != TRIB_OK) {
        return status;
    }
    mine.coordinator = get("TRIB_COORDINATOR") != NULL ? get("TRIB_COORDINATOR") : mine.coordinator;
    mine.listen = get("TRIB_LISTEN") != NULL ? get("TRIB_LISTEN") : mine.listen;
    mine.job = get("TRIB_JOB") != NULL ? get("TRIB_JOB") : mine.job;
    mine.transport = get("TRIB_TRANSPORT") != NULL ? get("TRIB_TRANSPORT") : mine.transport;
    mine.trace = get("TRIB_TRACE") != NULL ? get("TRIB_TRACE") : mine.trace;
    trib_config_take_device(&mine, get("TRIB_DEVICE"));
    *config = mine;
    trib_config_check_names(config);
    return TRIB_OK;
}
