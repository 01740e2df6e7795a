/*
 * group_api.c - the entry points about groups and the slices of tensors: check the arguments and the state, then
 * forward. Nothing else.
 */
#include <string.h>

#include "api/check.h"
#include "engine/base/handle.h"

/* ---- Names and lengths ---- */

trib_status trib_api_check_name(const char *what, const char *name, trib_error *error)
{
    if (name == NULL) {
        return trib_error_set(error, TRIB_INVALID, "the name is NULL: a %s needs one, the same on all workers", what);
    }
    size_t length = strnlen(name, TRIB_TENSOR_NAME_MAX + 1);
    if (length == 0 || length > TRIB_TENSOR_NAME_MAX || strncmp(name, "__", 2) == 0) {
        return trib_error_set(error, TRIB_INVALID, "%s name \"%.40s\": 1 to %d bytes, not starting with \"__\"", what,
                              name, TRIB_TENSOR_NAME_MAX);
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            return trib_error_set(error, TRIB_INVALID, "a %s name holds the control byte 0x%02x", what,
                                  (unsigned char)name[i]);
        }
    }
    return TRIB_OK;
}

/* The lengths of the slices that this worker has. */
trib_status trib_api_check_lengths(const trib_engine *engine, const trib_tensor_desc *desc, trib_error *error)
{
    const uint64_t most = TRIB_TENSOR_BYTES_MAX / trib_dtype_size(desc->dtype), row = desc->row == 0 ? 1 : desc->row;
    const uint32_t members = trib_rank_group_count(engine, desc->group);
    if (desc->count > most) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %llu elements of %zu bytes: at most 2^44 bytes",
                              desc->name, (unsigned long long)desc->count, trib_dtype_size(desc->dtype));
    }
    if (desc->split_count > 0 && desc->splits == NULL) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": splits is NULL, though there are %u", desc->name,
                              desc->split_count);
    }
    if (desc->layout != TRIB_PAIRS && desc->splits != NULL) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": splits are for TRIB_PAIRS: leave them NULL",
                              desc->name);
    }
    if (desc->split_count != (desc->layout == TRIB_PAIRS ? members : 0)) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %u splits, needs %u", desc->name, desc->split_count,
                              desc->layout == TRIB_PAIRS ? members : 0);
    }
    if (desc->layout != TRIB_PAIRS && desc->count % row != 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %llu elements are no rows of %llu", desc->name,
                              (unsigned long long)desc->count, (unsigned long long)row);
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < desc->split_count; i++) {
        if (desc->splits[i] > most - total || desc->splits[i] % row != 0) {
            return trib_error_set(
                error, TRIB_INVALID,
                "tensor \"%s\": the split for rank %u has %llu elements: not in rows of %llu, or more "
                "than 2^44 bytes together",
                desc->name, trib_rank_group_rank(desc->group, i), (unsigned long long)desc->splits[i],
                (unsigned long long)row);
        }
        total += desc->splits[i];
    }
    return TRIB_OK;
}

/* ---- Groups ---- */

static trib_status check_reserved(const trib_group_desc *desc, trib_error *error)
{
    for (size_t i = 0; i < sizeof desc->reserved / sizeof desc->reserved[0]; i++) {
        if (desc->reserved[i] != 0) {
            return trib_error_set(error, TRIB_INVALID, "group \"%s\": a reserved field is not 0", desc->name);
        }
    }
    return TRIB_OK;
}

/* now: of the epoch in which the ranks are checked. */
static trib_status check_ranks(const trib_config *now, const trib_group_desc *desc, trib_error *error)
{
    bool has_me = false;
    if (desc->ranks == NULL && desc->rank_count > 0) {
        return trib_error_set(error, TRIB_INVALID, "group \"%s\": ranks is NULL, and rank_count %u", desc->name,
                              desc->rank_count);
    }
    if (desc->rank_count == 0 || desc->rank_count > (uint32_t)now->worker_count) {
        return trib_error_set(error, TRIB_INVALID, "group \"%s\": %u ranks, of 1 to %d", desc->name, desc->rank_count,
                              now->worker_count);
    }
    for (uint32_t i = 0; i < desc->rank_count; i++) {
        if (desc->ranks[i] < 0 || desc->ranks[i] >= now->worker_count) {
            return trib_error_set(error, TRIB_INVALID, "group \"%s\": %d is not a rank below %d", desc->name,
                                  desc->ranks[i], now->worker_count);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (desc->ranks[j] == desc->ranks[i]) {
                return trib_error_set(error, TRIB_INVALID, "group \"%s\": rank %d comes twice", desc->name,
                                      desc->ranks[i]);
            }
        }
        has_me = has_me || desc->ranks[i] == now->rank;
    }
    return has_me ? TRIB_OK
                  : trib_error_set(error, TRIB_INVALID, "group \"%s\": this worker, rank %d, is none of its members",
                                   desc->name, now->rank);
}

trib_status trib_group_create(trib_engine *engine, const trib_group_desc *desc, trib_group **group_out,
                              trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (group_out != NULL) {
        *group_out = NULL;
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (desc == NULL || group_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "%s is NULL", desc == NULL ? "desc" : "group_out");
    }
    if (desc->struct_size != sizeof *desc) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_group_desc has struct_size %u, this library's has %zu: call "
                              "trib_group_desc_init and build against the same release",
                              desc->struct_size, sizeof *desc);
    }
    pthread_mutex_lock(&engine->mutex);
    const trib_roster *roster = engine->roster;
    const uint32_t epoch = roster != NULL ? roster->epoch : 0;
    const trib_config now = engine->config; /* a change of the membership writes rank and count */
    const bool continues = roster != NULL ? roster->continues : engine->config.survive == TRIB_SURVIVE_CONTINUE;
    pthread_mutex_unlock(&engine->mutex);
    if (continues) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "groups cannot be made where operations go on after a loss (TRIB_SURVIVE=continue), with "
                              "other workers: TRIB_SURVIVE=workers has groups, which are made anew after a loss");
    }
    status = trib_api_check_name("group", desc->name, error);
    if (status == TRIB_OK && (desc->flags != 0 || desc->reserved_32 != 0)) {
        status = trib_error_set(error, TRIB_INVALID, "group \"%s\": unknown flags", desc->name);
    }
    if (status == TRIB_OK) {
        status = check_reserved(desc, error);
    }
    if (status == TRIB_OK && (engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        status = trib_error_set(error, TRIB_STATE, "only workers make groups");
    }
    if (status == TRIB_OK) {
        status = check_ranks(&now, desc, error);
    }
    uintptr_t handle = 0;
    status = status == TRIB_OK ? trib_rank_group_find_or_add(engine, desc, epoch, &handle, error) : status;
    if (status == TRIB_OK) {
        *group_out = (trib_group *)handle; /* NOLINT(performance-no-int-to-ptr): a number that looks like a pointer */
    }
    return status;
}

/* Another thread may release the group meanwhile, and its memory may be the next group's. */
static void read_group(const trib_group *handle, int32_t *rank, int32_t *size)
{
    const trib_group *group = trib_handle_find((uintptr_t)handle, TRIB_HANDLE_GROUP);
    if (group == NULL || trib_api_check_engine(group->engine, NULL) != TRIB_OK) {
        return;
    }
    pthread_mutex_lock(&group->engine->mutex);
    if (group->handle == (uintptr_t)handle) {
        *rank = (int32_t)group->place;
        *size = (int32_t)group->count;
    }
    pthread_mutex_unlock(&group->engine->mutex);
}

int32_t trib_group_rank(const trib_group *group)
{
    int32_t rank = -1, size = 0;
    read_group(group, &rank, &size);
    return rank;
}

int32_t trib_group_size(const trib_group *group)
{
    int32_t rank = -1, size = 0;
    read_group(group, &rank, &size);
    return size;
}

trib_status trib_group_release(trib_group *group, trib_error *error)
{
    trib_error_clear(error);
    if (group == NULL) {
        return TRIB_OK;
    }
    const trib_group *found = trib_handle_find((uintptr_t)group, TRIB_HANDLE_GROUP);
    if (found == NULL) {
        return trib_error_set(error, TRIB_INVALID, "group is not a handle of a group, or was released before");
    }
    const trib_status status = trib_api_check_engine(found->engine, error);
    return status == TRIB_OK ? trib_rank_group_release(found->engine, (uintptr_t)group, error) : status;
}

/* ---- The slices of a tensor ---- */

/* Writes the lengths of the slices of a placed tensor. */
trib_status trib_api_write_counts(const trib_tensor *tensor, const trib_partitioning *cut, uint64_t *counts,
                                  size_t capacity, size_t *count_out, trib_error *error)
{
    const size_t slices = tensor->layout == TRIB_WHOLE || cut == NULL ? 0 : cut->slice_count;
    if (slices == 0 || counts == NULL || capacity < slices) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\" has %zu slices, room for %zu", tensor->name, slices,
                              counts == NULL ? 0 : capacity);
    }
    for (size_t i = 0; i < slices; i++) {
        counts[i] = cut->slices[i].bytes / trib_dtype_size(tensor->dtype);
    }
    if (count_out != NULL) {
        *count_out = slices;
    }
    return TRIB_OK;
}

trib_status trib_tensor_counts(const trib_tensor *handle, uint64_t *counts, size_t capacity, size_t *count_out,
                               trib_error *error)
{
    trib_tensor *tensor = NULL;
    const trib_status status = trib_api_find_tensor(handle, &tensor, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (atomic_load(&tensor->bad)) {
        return trib_error_set(error, tensor->bad_status, "tensor \"%s\": %s", tensor->name, tensor->bad_text);
    }
    if (tensor->layout == TRIB_WHOLE) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\" was declared TRIB_WHOLE, so it has no slices",
                              tensor->name);
    }
    pthread_mutex_lock(&tensor->engine->mutex); /* it may be placed anew, in another epoch */
    const trib_status written =
        atomic_load_explicit(&tensor->placed, memory_order_acquire)
            ? trib_api_write_counts(tensor, tensor->cut, counts, capacity, count_out, error)
            : trib_error_set(error, TRIB_AGAIN, "tensor \"%s\": not all members have declared it", tensor->name);
    if (written == TRIB_AGAIN && tensor->state == TRIB_TENSOR_DECLARED) {
        trib_tensor_want(tensor);
    }
    pthread_mutex_unlock(&tensor->engine->mutex);
    return written;
}
