/*
 * config.c - checks of a configuration. Limits of single fields are in the table of settings (settings.c); here are
 * those that hold between fields.
 */
#include "api/config/config.h"
#include "api/config/settings.h"

#include <stdio.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/reactor/reactor.h"
#include "engine/cluster/roster.h"
#include "engine/tracer/tracer.h"
#include "engine/wire/address_list.h"
#include "engine/wire/auth.h"

/* A caller that was built against another header has a struct of another size: the fields that both know are written,
 * and the call that the struct is for refuses it. That call also refuses NULL. */
static void copy_common_part(void *out, size_t size, const void *defaults, size_t default_size)
{
    if (out != NULL) {
        memset(out, 0, size);
        memcpy(out, defaults, size < default_size ? size : default_size);
    }
}

void trib_config_init(trib_config *config, size_t struct_size)
{
    trib_config defaults;
    trib_settings_init(&defaults);
    defaults.struct_size = (uint32_t)struct_size;
    copy_common_part(config, struct_size, &defaults, sizeof defaults);
}

static void apply_defaults(trib_config *config)
{
    trib_settings_apply_defaults(config);
    config->local_size = config->local_size == 0 ? 1 : config->local_size;
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

/* source: the launcher's variables for it, or TRIB_COORDINATOR and why no launcher says it, or "". */
static trib_status refuse_no_coordinator(const char *source, trib_error *error)
{
    static const char own[] = "TRIB_COORDINATOR";
    const bool is_own = strncmp(source, own, sizeof own - 1) == 0;
    return trib_error_set(error, TRIB_INVALID,
                          "no coordinator address: set %s%s%s=host:port (or trib_config.coordinator) to where rank 0 "
                          "runs, the same on all members%s",
                          is_own ? "" : source, is_own || source[0] == '\0' ? "" : ", which are the launcher's, or ",
                          own, is_own ? source + sizeof own - 1 : "");
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
    if (config->token != NULL && strlen(config->token) < TRIB_TOKEN_MIN) {
        return trib_error_set(
            error, TRIB_INVALID,
            "token of %zu bytes: guessed soon; it needs at least %u, and 32 random ones are best (make "
            "one: openssl rand -hex 32; TRIB_TOKEN, TRIB_TOKEN_FILE, or trib_config.token)",
            strlen(config->token), TRIB_TOKEN_MIN);
    }
    bool worker = (config->roles & TRIB_ROLE_WORKER) != 0;
    const bool joins = worker && config->rank == -1;
    if (joins && (config->survive < TRIB_SURVIVE_WORKERS || config->external_coordinator)) {
        return trib_error_set(
            error, TRIB_INVALID,
            "rank -1 (TRIB_RANK): only a job with TRIB_SURVIVE=workers or continue, whose rank 0 keeps the "
            "membership, takes workers that come later");
    }
    if (config->quorum > 0 && config->survive != TRIB_SURVIVE_NOTHING) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "a quorum (TRIB_QUORUM, trib_config.quorum) needs TRIB_SURVIVE=nothing: a job that goes "
                              "on after losses has none");
    }
    if (config->quorum_timeout_ns <= 0 || (config->quorum > 0 && config->quorum > (uint32_t)config->worker_count)) {
        return trib_error_set(error, TRIB_INVALID,
                              "quorum %u of %d workers after %lld ns: at most all workers, and a time above 0 "
                              "(TRIB_QUORUM, TRIB_QUORUM_TIMEOUT)",
                              config->quorum, config->worker_count, (long long)config->quorum_timeout_ns);
    }
    if (worker && !joins && (config->rank < 0 || config->rank >= config->worker_count)) {
        return trib_error_set(error, TRIB_INVALID,
                              "rank %d: must be 0..%d (TRIB_RANK; worker_count is %d, from TRIB_WORKERS)", config->rank,
                              config->worker_count - 1, config->worker_count);
    }
    bool alone =
        worker && !joins && config->worker_count == 1 && config->server_count == 0 && !config->external_coordinator;
    if (config->coordinator == NULL && config->store == NULL && !alone) {
        return refuse_no_coordinator(config->coordinator_source != NULL ? config->coordinator_source : "", error);
    }
    if (!alone && config->store == NULL && trib_address_list_leaves_port(config->coordinator)) {
        return trib_error_set(error, TRIB_INVALID,
                              "coordinator %.160s: choose a port, or the other processes of the job do not find it "
                              "(TRIB_COORDINATOR=host:port, the same on all members), or give all of them "
                              "trib_config.unique_id or oob_cb",
                              config->coordinator);
    }
    if (config->colocate == TRIB_COLOCATE_OFF && config->server_count == 0) {
        return trib_error_set(
            error, TRIB_INVALID,
            "colocate is off (TRIB_COLOCATE) and there are no servers (TRIB_SERVERS): no member is left to sum");
    }
    return TRIB_OK;
}

static trib_status check_device(const trib_config *config, trib_error *error)
{
    if (config->local_size < 1 || config->local_size > TRIB_LOCAL_SIZE_MAX ||
        config->worker_count % config->local_size != 0) {
        return trib_error_set(error, TRIB_INVALID,
                              "local_size %d: must be 1..%d and divide worker_count, %d (TRIB_DEVICE_COUNT, "
                              "else TRIB_LOCAL_COUNT or the launcher's; TRIB_WORKERS)",
                              config->local_size, TRIB_LOCAL_SIZE_MAX, config->worker_count);
    }
    if ((config->roles & TRIB_ROLE_WORKER) && config->rank >= 0 &&
        config->local_rank != config->rank % config->local_size) {
        return trib_error_set(
            error, TRIB_INVALID,
            "local_rank %d: rank %d of machines with %d processes each has local rank %d (the ranks of "
            "a machine must be consecutive; TRIB_DEVICE_RANK and TRIB_DEVICE_COUNT, else TRIB_LOCAL_RANK and "
            "TRIB_LOCAL_COUNT, or the launcher)",
            config->local_rank, config->rank, config->local_size, config->rank % config->local_size);
    }
    if (config->device_index < -1) {
        return trib_error_set(error, TRIB_INVALID, "device_index %d: must be -1 or above", config->device_index);
    }
    return TRIB_OK;
}

static trib_status check_sizes(const trib_config *config, trib_error *error)
{
    const uint32_t chunk = config->chunk_bytes;
    if ((chunk & (chunk - 1)) != 0) {
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
    return config->trace != NULL ? trib_trace_check_name(config->trace, error) : TRIB_OK;
}

static trib_status check_loop(const trib_config *config, trib_error *error)
{
    const bool attached = config->mode == TRIB_MODE_ATTACHED;
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
    if (!(config.roles & TRIB_ROLE_WORKER) || config.rank < 0) {
        /* a process without gradients has no device, whatever the environment says for workers */
        config.local_size = 1;
        config.local_rank = 0;
    }
    trib_status (*const checks[])(const trib_config *, trib_error *) = {trib_settings_check, check_loop, check_job,
                                                                        check_sizes, check_device};
    for (size_t i = 0; status == TRIB_OK && i < sizeof checks / sizeof checks[0]; i++) {
        status = checks[i](&config, error);
    }
    if (status == TRIB_OK) {
        *checked_out = config;
        if (!(config.roles & TRIB_ROLE_WORKER) && (config.rank < 0 || config.rank >= config.server_count)) {
            checked_out->rank = -1; /* a launcher that counts servers too has set a rank that is no server's number */
        }
    }
    return status;
}

void trib_tensor_desc_init(trib_tensor_desc *desc, size_t struct_size)
{
    const trib_tensor_desc defaults = {.struct_size = (uint32_t)struct_size};
    copy_common_part(desc, struct_size, &defaults, sizeof defaults);
}

void trib_codec_desc_init(trib_codec_desc *desc, size_t struct_size)
{
    const trib_codec_desc defaults = {.struct_size = (uint32_t)struct_size};
    copy_common_part(desc, struct_size, &defaults, sizeof defaults);
}

void trib_group_desc_init(trib_group_desc *desc, size_t struct_size)
{
    const trib_group_desc defaults = {.struct_size = (uint32_t)struct_size};
    copy_common_part(desc, struct_size, &defaults, sizeof defaults);
}

void trib_op_params_init(trib_op_params *params, size_t struct_size)
{
    const trib_op_params defaults = {.struct_size = (uint32_t)struct_size};
    copy_common_part(params, struct_size, &defaults, sizeof defaults);
}

/* ---- Names ---- */

const char *trib_version(void)
{
    return TRIB_VERSION_STRING;
}

uint32_t trib_version_number(void)
{
    return TRIB_VERSION_NUMBER;
}
