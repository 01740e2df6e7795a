/* members_api.c - the entry points about a job that has come together: its members, settings as they came out,
 * features. */
#include <stdio.h>
#include <string.h>

#include "api/check.h"
#include "api/config/settings.h"
#include "api/env/device_load.h"
#include "engine/cluster/machines.h"
#include "engine/engine.h"
#include "transports/registry.h"

/* ---- Members ---- */

/* The name is "rank 3 (host:pid)". */
static void copy_host(const char *name, char *host, size_t size)
{
    const char *begin = strchr(name, '(');
    const char *end = strrchr(name, ':');
    const bool is_known = begin != NULL && end != NULL && end > begin;
    snprintf(host, size, "%.*s", is_known ? (int)(end - begin - 1) : 1, is_known ? begin + 1 : "?");
}

static void describe_member(const trib_engine *engine, const trib_roster *roster, uint32_t id, trib_job_member *out)
{
    const trib_member_info *info = &roster->members[id];
    const bool is_worker = id < roster->worker_count;
    const bool coordinates = id == 0 && is_worker && !engine->config.external_coordinator;
    *out = (trib_job_member){
        .rank = is_worker ? (int32_t)info->rank : -1,
        .server = is_worker ? -1 : (int32_t)(id - roster->worker_count),
        .roles = (is_worker ? TRIB_ROLE_WORKER : TRIB_ROLE_SERVER) |
                 (info->sums || info->stands_by ? TRIB_ROLE_SERVER : 0u) | (coordinates ? TRIB_ROLE_COORDINATOR : 0u),
        .reactors = info->reactors,
    };
    copy_host(info->name, out->host, sizeof out->host);
    snprintf(out->address, sizeof out->address, "%s", info->addresses[0].text);
}

trib_status trib_engine_get_members(const trib_engine *engine, trib_job_member *members, size_t capacity,
                                    size_t *count_out)
{
    const trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || count_out == NULL || (capacity > 0 && members == NULL)) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    pthread_mutex_t *mutex = (pthread_mutex_t *)(uintptr_t)&engine->mutex;
    pthread_mutex_lock(mutex); /* a change of the membership frees the roster */
    const trib_roster *roster = engine->roster;
    *count_out = roster != NULL ? roster->member_count : 0;
    for (uint32_t i = 0; i < *count_out && i < capacity; i++) {
        describe_member(engine, roster, i, &members[i]);
    }
    pthread_mutex_unlock(mutex);
    return roster != NULL ? TRIB_OK : TRIB_STATE;
}

/* ---- This member ---- */

static trib_status find_ranks(const trib_roster *roster, trib_engine_info *info)
{
    trib_machine_ranks ranks = {.local_rank = -1, .cross_rank = -1};
    const uint32_t worker = info->rank < 0 ? TRIB_NO_MEMBER : trib_roster_find_rank(roster, (uint32_t)info->rank);
    if (worker != TRIB_NO_MEMBER && !trib_machines_ranks(roster, worker, &ranks)) {
        return TRIB_NO_MEMORY;
    }
    info->local_rank = ranks.local_rank, info->local_size = ranks.local_size;
    info->cross_rank = ranks.cross_rank;
    info->cross_size = ranks.cross_size;
    return TRIB_OK;
}

trib_status trib_engine_get_info(const trib_engine *engine, trib_engine_info *info)
{
    trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || info == NULL || info->struct_size != sizeof *info) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    pthread_mutex_t *mutex = (pthread_mutex_t *)(uintptr_t)&engine->mutex;
    pthread_mutex_lock(mutex); /* a change of the membership writes all of this at once */
    const trib_roster *roster = trib_roster_hold(engine->roster);
    *info = (trib_engine_info){
        .struct_size = sizeof *info,
        .rank = engine->config.roles & TRIB_ROLE_WORKER ? engine->config.rank : -1,
        .worker_count = engine->config.worker_count,
        .server_count = engine->config.server_count,
        .reactors = engine->core_count,
        .partition_bytes = engine->config.partition_bytes,
        .chunk_bytes = engine->config.chunk_bytes,
        .local_rank = -1,
        .cross_rank = -1,
    };
    pthread_mutex_unlock(mutex);
    if (roster != NULL) {
        info->epoch = trib_epoch_number(roster->epoch);
        info->partition_bytes = roster->partition_bytes;
        info->chunk_bytes = roster->chunk_bytes;
        info->t_opt_factor = roster->t_opt_factor;
        info->local_sum = roster->local_size;
        info->summing_count = (int32_t)trib_roster_summing(roster);
        status = find_ranks(roster, info);
    }
    trib_roster_let_go(roster);
    return status;
}

/* ---- Settings ---- */

static bool some_worker_sums(const trib_roster *roster)
{
    bool sums = false;
    for (uint32_t i = 0; i < roster->worker_count; i++) {
        sums = sums || roster->members[i].sums || roster->members[i].stands_by;
    }
    return sums;
}

/* Whatever the coordinator's process or the members together have decided. */
static void take_roster(trib_config *config, const trib_roster *roster)
{
    config->partition_bytes = roster->partition_bytes;
    config->chunk_bytes = roster->chunk_bytes;
    config->sum_order = roster->sum_order;
    config->peer_timeout_ns = roster->peer_timeout_ns;
    config->colocate = some_worker_sums(roster) ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config->local_sum = roster->local_size > 0 ? TRIB_LOCAL_SUM_ON : TRIB_LOCAL_SUM_OFF;
    config->shares = roster->follows ? TRIB_SHARES_FOLLOW : TRIB_SHARES_FIXED;
    config->survive = roster->continues  ? TRIB_SURVIVE_CONTINUE
                      : roster->shrinks  ? TRIB_SURVIVE_WORKERS
                      : roster->survives ? TRIB_SURVIVE_SERVERS
                                         : TRIB_SURVIVE_NOTHING;
}

static trib_config effective_config(const trib_engine *engine)
{
    trib_config config = engine->config;
    const trib_roster *roster = engine->roster;
    config.reactors = engine->core_count;
    config.transport = engine->env.transport->name;
    config.device = engine->env.device != NULL ? "cuda" : "none";
    if (roster != NULL) {
        take_roster(&config, roster);
    }
    return config;
}

trib_status trib_engine_get_settings(const trib_engine *engine, trib_setting_value *settings, size_t capacity,
                                     size_t *count_out)
{
    const trib_status status = trib_api_check_engine(engine, NULL);
    if (status != TRIB_OK || count_out == NULL || (capacity > 0 && settings == NULL)) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    pthread_mutex_t *mutex = (pthread_mutex_t *)(uintptr_t)&engine->mutex;
    pthread_mutex_lock(mutex); /* a change of the membership frees the coordinator's address */
    const trib_config config = effective_config(engine);
    size_t count = 0;
    for (size_t i = 0; i < trib_settings_count; i++) {
        const trib_setting *setting = &trib_settings[i];
        if (setting->field == NULL) {
            continue;
        }
        if (count < capacity) {
            settings[count] = (trib_setting_value){.variable = setting->variable, .field = setting->field};
            trib_setting_format(setting, &config, settings[count].value, sizeof settings[count].value);
        }
        count++;
    }
    pthread_mutex_unlock(mutex);
    *count_out = count;
    return TRIB_OK;
}

/* ---- Features ---- */

static bool is_listed(const char *name, const char *const *names)
{
    size_t i = 0;
    while (names[i] != NULL && strcmp(names[i], name) != 0) {
        i++;
    }
    return names[i] != NULL;
}

bool trib_has_feature(const char *name)
{
    static const char *const parts[] = {"unique_id",       "oob",     "interfaces",       "groups",
                                        "batches",         "members", "settings",         "survive_servers",
                                        "survive_workers", "codecs",  "survive_continue", NULL};
    if (name == NULL) {
        return false;
    }
    const trib_device_ops *device = NULL;
    return is_listed(name, parts) || is_listed(name, trib_transport_names()) ||
           (strcmp(name, "cuda") == 0 && trib_device_load("cuda", &device, NULL) == TRIB_OK);
}
