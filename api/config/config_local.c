/* config_local.c - the numbers of this process among the machine's processes, and among the machine's ranks with a
 * GPU. */
#include "api/config/config.h"
#include "api/config/settings.h"
#include "engine/base/limits.h"

static trib_status check_pair(const char *rank_name, const char *count_name, int64_t count_max, trib_error *error)
{
    int64_t rank = 0, count = count_max;
    trib_status status = TRIB_OK;
    if (trib_setting_get(rank_name) != NULL) {
        status = trib_setting_read_number(rank_name, 0, count_max - 1, &rank, error);
    }
    if (status == TRIB_OK && trib_setting_get(count_name) != NULL) {
        status = trib_setting_read_number(count_name, 1, count_max, &count, error);
    }
    if (status == TRIB_OK && rank >= count) {
        status = trib_error_set(error, TRIB_INVALID, "%s=\"%lld\": must be less than %s, which is %lld", rank_name,
                                (long long)rank, count_name, (long long)count);
    }
    return status;
}

trib_status trib_config_check_local(trib_error *error)
{
    const trib_status status = check_pair("TRIB_LOCAL_RANK", "TRIB_LOCAL_COUNT", TRIB_MEMBERS_MAX, error);
    return status == TRIB_OK ? check_pair("TRIB_DEVICE_RANK", "TRIB_DEVICE_COUNT", TRIB_LOCAL_SIZE_MAX, error) : status;
}

/*
 * The value of a launcher's variable. False if it is unset or nonsensical, because a launcher's local ranks are advice.
 */
static bool read_advice(const char *name, int64_t low, int64_t high, int64_t *value)
{
    const char *text = trib_setting_get(name);
    return text != NULL && trib_setting_parse_number(text, low, high, value);
}

static bool read_pair(const char *const names[2], uint32_t *index_out, uint32_t *count_out)
{
    int64_t index = 0, count = 1;
    const bool has_count = trib_setting_get(names[1]) != NULL;
    if (!read_advice(names[0], 0, TRIB_MEMBERS_MAX - 1, &index) ||
        (has_count && !read_advice(names[1], 1, TRIB_MEMBERS_MAX, &count)) || index >= count) {
        return false;
    }
    *index_out = (uint32_t)index;
    *count_out = (uint32_t)count;
    return true;
}

bool trib_config_local(uint32_t *index_out, uint32_t *count_out)
{
    static const char *const names[][2] = {
        {"TRIB_LOCAL_RANK", "TRIB_LOCAL_COUNT"}, {"BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"},
        {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},      {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    *index_out = 0;
    *count_out = 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (read_pair(names[i], index_out, count_out)) {
            return trib_setting_get(names[i][1]) != NULL;
        }
    }
    return false;
}

void trib_config_take_device(trib_config *config, const char *device)
{
    static const char *const names[2] = {"TRIB_DEVICE_RANK", "TRIB_DEVICE_COUNT"};
    uint32_t index = 0, count = 1;
    if (device != NULL) {
        if (!read_pair(names, &index, &count)) {
            (void)trib_config_local(&index, &count);
        }
        config->device = device;
        config->local_rank = (int32_t)index;
        config->local_size = (int32_t)count;
    }
}
