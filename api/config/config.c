/*
 * config.c - defaults, checks and names. Where a setting comes from the environment is in config_env.c.
 */
#include "api/config/config.h"

#include <stdio.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/reactor/reactor.h"
#include "engine/cluster/roster.h"
#include "engine/tracer/tracer.h"

#define SECOND_NS INT64_C(1000000000)
#define BUSY_POLL_MAX_NS SECOND_NS

/* A caller that was built against another header has a struct of another size: what is in both is written. NULL, for one
 * whose memory was not to be had, is left to the call that the struct is for. */
static void init(void *out, size_t size, const void *defaults, size_t default_size)
{
    if (out != NULL) {
        memset(out, 0, size);
        memcpy(out, defaults, size < default_size ? size : default_size);
    }
}

void trib_config_init(trib_config *config, size_t struct_size)
{
    const trib_config defaults = {
        .struct_size = (uint32_t)struct_size,
        .mode = TRIB_MODE_THREADS,
        .roles = TRIB_ROLE_WORKER,
        .worker_count = 1,
        .transport = "auto",
        .device = "none",
        .shares = TRIB_SHARES_FOLLOW,
        .device_index = -1,
        .local_size = 1,
        .job = "default",
        .partition_bytes = 1u << 20,
        .chunk_bytes = 256u << 10,
        .push_credit_bytes = 1u << 20,
        .pull_credit_bytes = 1u << 20,
        .ops_max = 65536,
        .pin = true,
        .join_timeout_ns = 60 * SECOND_NS,
        .op_timeout_ns = 300 * SECOND_NS,
        .peer_timeout_ns = 10 * SECOND_NS,
        .close_timeout_ns = 5 * SECOND_NS,
        .log_level = TRIB_LOG_WARN,
    };
    init(config, struct_size, &defaults, sizeof defaults);
}

static void set_default_u32(uint32_t *value, uint32_t fallback)
{
    *value = *value == 0 ? fallback : *value;
}

static void set_timeout(int64_t *value, int64_t fallback)
{
    *value = *value == 0 ? fallback : trib_timeout_clamp(*value);
}

static void apply_defaults(trib_config *config)
{
    trib_config defaults;
    trib_config_init(&defaults, sizeof defaults);
    set_default_u32(&config->roles, defaults.roles);
    set_default_u32(&config->partition_bytes, defaults.partition_bytes);
    set_default_u32(&config->chunk_bytes, defaults.chunk_bytes);
    set_default_u32(&config->push_credit_bytes, defaults.push_credit_bytes);
    set_default_u32(&config->pull_credit_bytes, defaults.pull_credit_bytes);
    set_default_u32(&config->ops_max, defaults.ops_max);
    set_timeout(&config->join_timeout_ns, defaults.join_timeout_ns);
    set_timeout(&config->op_timeout_ns, defaults.op_timeout_ns);
    set_timeout(&config->peer_timeout_ns, defaults.peer_timeout_ns);
    set_timeout(&config->close_timeout_ns, defaults.close_timeout_ns);
    config->job = config->job == NULL ? defaults.job : config->job;
    config->transport = config->transport == NULL ? defaults.transport : config->transport;
    config->device = config->device == NULL ? defaults.device : config->device;
    config->local_size = config->local_size == 0 ? defaults.local_size : config->local_size;
    config->token = config->token != NULL && config->token[0] == '\0' ? NULL : config->token;
}

trib_status trib_config_check_size(const trib_config *given, trib_error *error)
{
    if (given->struct_size != sizeof *given) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_config.struct_size is %u, this library knows %zu: call "
                              "trib_config_init and build against the same release",
                              given->struct_size, sizeof *given);
    }
    return TRIB_OK;
}

static trib_status check_shape(const trib_config *given, trib_error *error)
{
    trib_status status = trib_config_check_size(given, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (given->flags != 0) {
        return trib_error_set(error, TRIB_INVALID, "trib_config.flags: unknown bits 0x%x", given->flags);
    }
    for (size_t i = 0; i < sizeof given->reserved / sizeof given->reserved[0]; i++) {
        if (given->reserved[i] != 0) {
            return trib_error_set(error, TRIB_INVALID, "trib_config.reserved[%zu] is not 0", i);
        }
    }
    return TRIB_OK;
}

/* "host:0", or several with commas between of which one is: the system chooses the port, and only its own process knows it. */
static bool leaves_port_open(const char *coordinator)
{
    for (const char *at = coordinator; at != NULL && (at = strchr(at, ':')) != NULL; at++) {
        const size_t zeros = strspn(at + 1, "0");
        if (zeros > 0 && (at[1 + zeros] == '\0' || at[1 + zeros] == ',')) {
            return true;
        }
    }
    return false;
}

static trib_status check_job(const trib_config *config, trib_error *error)
{
    const uint32_t known = TRIB_ROLE_WORKER | TRIB_ROLE_SERVER | TRIB_ROLE_COORDINATOR;
    if (config->roles & ~known) {
        return trib_error_set(error, TRIB_INVALID, "roles: unknown bits 0x%x", config->roles & ~known);
    }
    if (config->worker_count < 1 || config->server_count < 0 ||
        (int64_t)config->worker_count + config->server_count > TRIB_MEMBERS_MAX) {
        return trib_error_set(error, TRIB_INVALID,
                              "worker_count %d, server_count %d: at least 1 worker, at most %u members together "
                              "(TRIB_WORKERS, TRIB_SERVERS)",
                              config->worker_count, config->server_count, TRIB_MEMBERS_MAX);
    }
    bool worker = (config->roles & TRIB_ROLE_WORKER) != 0;
    if (worker && (config->rank < 0 || config->rank >= config->worker_count)) {
        return trib_error_set(error, TRIB_INVALID,
                              "rank %d: must be 0..%d (TRIB_RANK; worker_count is %d, from TRIB_WORKERS)", config->rank,
                              config->worker_count - 1, config->worker_count);
    }
    bool alone = worker && config->worker_count == 1 && config->server_count == 0 && !config->external_coordinator;
    if (config->coordinator == NULL && !alone) {
        return trib_error_set(error, TRIB_INVALID,
                              "no coordinator address: set TRIB_COORDINATOR=host:port (or "
                              "trib_config.coordinator) to where rank 0 runs, the same on all members");
    }
    if (!alone && leaves_port_open(config->coordinator)) {
        return trib_error_set(error, TRIB_INVALID,
                              "coordinator %.200s: choose a port, or the other processes of the job do not find it "
                              "(TRIB_COORDINATOR=host:port, the same on all members)",
                              config->coordinator);
    }
    if (config->colocate == TRIB_COLOCATE_OFF && config->server_count == 0) {
        return trib_error_set(
            error, TRIB_INVALID,
            "colocate is off (TRIB_COLOCATE) and there are no servers (TRIB_SERVERS): nobody would sum");
    }
    return TRIB_OK;
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

static trib_status check_device(const trib_config *config, trib_error *error)
{
    if (config->local_size < 1 || config->local_size > TRIB_LOCAL_SIZE_MAX ||
        config->worker_count % config->local_size != 0) {
        return trib_error_set(error, TRIB_INVALID,
                              "local_size %d: must be 1..%d and divide worker_count, %d (TRIB_LOCAL_COUNT, "
                              "TRIB_WORKERS, or the launcher)",
                              config->local_size, TRIB_LOCAL_SIZE_MAX, config->worker_count);
    }
    if ((config->roles & TRIB_ROLE_WORKER) && config->local_rank != config->rank % config->local_size) {
        return trib_error_set(
            error, TRIB_INVALID,
            "local_rank %d: rank %d of machines with %d processes each has local rank %d (the ranks of "
            "a machine must be consecutive; TRIB_LOCAL_RANK and TRIB_LOCAL_COUNT, or the launcher)",
            config->local_rank, config->rank, config->local_size, config->rank % config->local_size);
    }
    if (config->device_index < -1) {
        return trib_error_set(error, TRIB_INVALID, "device_index %d: must be -1 or above", config->device_index);
    }
    return TRIB_OK;
}

static trib_status check_sizes(const trib_config *config, trib_error *error)
{
    uint32_t chunk = config->chunk_bytes;
    if (chunk < TRIB_CHUNK_BYTES_MIN || chunk > TRIB_PAYLOAD_MAX || (chunk & (chunk - 1)) != 0) {
        return trib_error_set(error, TRIB_INVALID,
                              "chunk_bytes %u: must be a power of two, 4096..%u (TRIB_CHUNK_BYTES)", chunk,
                              TRIB_PAYLOAD_MAX);
    }
    if (config->partition_bytes < chunk || config->partition_bytes % chunk != 0) {
        return trib_error_set(
            error, TRIB_INVALID,
            "partition_bytes %u: must be a multiple of chunk_bytes, %u (TRIB_PARTITION_BYTES, TRIB_CHUNK_BYTES)",
            config->partition_bytes, chunk);
    }
    if (config->partition_bytes / chunk > TRIB_SUM_CHUNKS_MAX) {
        return trib_error_set(
            error, TRIB_INVALID,
            "partition_bytes %u: a partition has at most %u chunks (chunk_bytes %u): make chunks larger "
            "or partitions smaller (TRIB_CHUNK_BYTES, TRIB_PARTITION_BYTES)",
            config->partition_bytes, TRIB_SUM_CHUNKS_MAX, chunk);
    }
    if (config->reactors > TRIB_REACTORS_MAX) {
        return trib_error_set(error, TRIB_INVALID, "reactors %u: at most %u (TRIB_REACTORS)", config->reactors,
                              TRIB_REACTORS_MAX);
    }
    if (config->trace_bytes > TRIB_TRACE_BYTES_MAX) {
        return trib_error_set(error, TRIB_INVALID, "trace_bytes %llu: at most %llu (TRIB_TRACE_BYTES)",
                              (unsigned long long)config->trace_bytes, (unsigned long long)TRIB_TRACE_BYTES_MAX);
    }
    if (config->trace != NULL && trib_trace_check_name(config->trace, error) != TRIB_OK) {
        return TRIB_INVALID;
    }
    if (config->busy_poll_ns < 0 || config->busy_poll_ns > BUSY_POLL_MAX_NS) {
        return trib_error_set(error, TRIB_INVALID, "busy_poll_ns %lld: at most %lld (TRIB_BUSY_POLL_TIME)",
                              (long long)config->busy_poll_ns, (long long)BUSY_POLL_MAX_NS);
    }
    if (config->join_timeout_ns < 0 || config->peer_timeout_ns < 0 || config->close_timeout_ns < 0) {
        return trib_error_set(error, TRIB_INVALID, "join, peer and close timeouts must be above 0");
    }
    return TRIB_OK;
}

static trib_status check_mode(const trib_config *config, trib_error *error)
{
    const struct {
        const char *name;
        int value, last;
    } choices[] = {{"mode", (int)config->mode, TRIB_MODE_ATTACHED},
                   {"colocate", (int)config->colocate, TRIB_COLOCATE_ON},
                   {"sum_order", (int)config->sum_order, TRIB_ORDER_ARRIVAL},
                   {"local_sum", (int)config->local_sum, TRIB_LOCAL_SUM_ON},
                   {"shares", (int)config->shares, TRIB_SHARES_FOLLOW},
                   {"gpu_direct", (int)config->gpu_direct, TRIB_GPU_DIRECT_OFF},
                   {"log_level", (int)config->log_level, TRIB_LOG_TRACE}};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (choices[i].value < 0 || choices[i].value > choices[i].last) {
            return trib_error_set(error, TRIB_INVALID, "%s %d: unknown, must be 0..%d", choices[i].name,
                                  choices[i].value, choices[i].last);
        }
    }
    bool attached = config->mode == TRIB_MODE_ATTACHED;
    if (attached != (config->loop != NULL)) {
        return trib_error_set(error, TRIB_INVALID, "loop must be given in TRIB_MODE_ATTACHED, and only there");
    }
    if (attached && config->reactors > 1) {
        return trib_error_set(error, TRIB_INVALID,
                              "reactors %u (TRIB_REACTORS): TRIB_MODE_ATTACHED has one, on your loop",
                              config->reactors);
    }
    return TRIB_OK;
}

trib_status trib_config_check(const trib_config *given, trib_config *checked_out, trib_error *error)
{
    trib_status status = check_shape(given, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_config config = *given;
    apply_defaults(&config);
    status = check_mode(&config, error);
    if (status == TRIB_OK) {
        status = check_job(&config, error);
    }
    if (status == TRIB_OK) {
        status = check_sizes(&config, error);
    }
    if (status == TRIB_OK) {
        status = check_device(&config, error);
    }
    if (status == TRIB_OK) {
        *checked_out = config;
        if (!(config.roles & TRIB_ROLE_WORKER) && (config.rank < 0 || config.rank >= config.server_count)) {
            checked_out->rank = -1; /* no number to ask for: whatever a launcher that counts servers too has set */
        }
    }
    return status;
}

void trib_tensor_desc_init(trib_tensor_desc *desc, size_t struct_size)
{
    const trib_tensor_desc defaults = {.struct_size = (uint32_t)struct_size};
    init(desc, struct_size, &defaults, sizeof defaults);
}

void trib_op_params_init(trib_op_params *params, size_t struct_size)
{
    const trib_op_params defaults = {.struct_size = (uint32_t)struct_size};
    init(params, struct_size, &defaults, sizeof defaults);
}

/* ---- Names ---- */

const char *trib_version(void)
{
    return TRIB_VERSION_STRING;
}
