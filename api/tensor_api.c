/* tensor_api.c - the entry points about tensors: check the arguments and the state, then forward. Nothing else. */
#include <errno.h>

#include "api/blocking.h"
#include "api/check.h"

static trib_status check_shape(const trib_tensor_desc *desc, trib_error *error)
{
    if (desc->dims > TRIB_TENSOR_DIMS_MAX || (desc->dims > 0) != (desc->shape != NULL)) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": dims is %u and shape is %s: give both, at most %d dimensions, or neither",
                              desc->name, desc->dims, desc->shape == NULL ? "NULL" : "there", TRIB_TENSOR_DIMS_MAX);
    }
    uint64_t product = 1;
    bool overflows = false;
    for (uint32_t i = 0; i < desc->dims; i++) {
        overflows = __builtin_mul_overflow(product, desc->shape[i], &product) || overflows;
    }
    if (desc->dims > 0 && (overflows || product != desc->count)) {
        char shape[TRIB_TENSOR_TEXT_SIZE];
        trib_tensor_describe(shape, sizeof shape, desc->dtype, desc->count, desc->dims, desc->shape);
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": count is %llu, which is not the product of %s",
                              desc->name, (unsigned long long)desc->count, shape);
    }
    return TRIB_OK;
}

/* Checks the part that does not depend on the engine. */
static trib_status check_desc(const trib_tensor_desc *desc, trib_error *error)
{
    if (desc->struct_size != sizeof *desc) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_tensor_desc has struct_size %u, this library's has %zu: call "
                              "trib_tensor_desc_init and build against the same release",
                              desc->struct_size, sizeof *desc);
    }
    const trib_status status = trib_api_check_name("tensor", desc->name, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (trib_dtype_size(desc->dtype) == 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown dtype %d", desc->name, (int)desc->dtype);
    }
    if ((unsigned)desc->layout > TRIB_PAIRS) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown layout %d", desc->name, (int)desc->layout);
    }
    if ((desc->flags & ~(TRIB_TENSOR_DEVICE | TRIB_TENSOR_NEW | TRIB_TENSOR_NUMBERED)) != 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown flags 0x%x", desc->name, desc->flags);
    }
    const size_t length = strlen(desc->name);
    if (desc->name_begin > length || desc->name_length > length - desc->name_begin) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": name_begin %u and name_length %u are more than the name has", desc->name,
                              desc->name_begin, desc->name_length);
    }
    if (desc->name_length > 0 && (desc->flags & TRIB_TENSOR_NUMBERED) != 0) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": TRIB_TENSOR_NUMBERED compares operations whatever their names are: give "
                              "no name_length",
                              desc->name);
    }
    return check_shape(desc, error);
}

/* A program that declares and releases faster than the coordinator answers is held up until that has caught up, so that
 * memory does not grow. */
static trib_status wait_for_ending_tensors(trib_engine *engine, const trib_tensor_desc *desc, trib_error *error)
{
    const bool may_wait = trib_api_check_may_block(engine, NULL) == TRIB_OK;
    const struct timespec deadline = trib_api_deadline_in(engine->config.peer_timeout_ns);
    int code = may_wait ? 0 : ETIMEDOUT;
    pthread_mutex_lock(&engine->mutex);
    while (atomic_load(&engine->tensors_ending) >= TRIB_TENSORS_ENDING_MAX && code != ETIMEDOUT &&
           trib_engine_check_open_locked(engine, NULL) == TRIB_OK) {
        code = pthread_cond_timedwait(&engine->changed, &engine->mutex, &deadline);
    }
    const uint32_t ending = atomic_load(&engine->tensors_ending);
    pthread_mutex_unlock(&engine->mutex);
    return ending < TRIB_TENSORS_ENDING_MAX || code != ETIMEDOUT
               ? TRIB_OK
               : trib_error_set(error, TRIB_BUSY,
                                "tensor \"%s\": the coordinator has not answered for %u tensors that this worker has "
                                "released: try again%s",
                                desc->name, ending, may_wait ? "" : " when the engine has run, or on another thread");
}

/* The group is held meanwhile, so that no other thread releases it. */
static trib_status declare_in_group(trib_engine *engine, const trib_tensor_desc *desc, uintptr_t *handle_out,
                                    trib_error *error)
{
    trib_tensor_desc mine = *desc;
    trib_tensor *tensor = NULL;
    trib_status status = trib_rank_group_hold(engine, (uintptr_t)desc->group, &mine.group, error);
    if (status != TRIB_OK) {
        return status;
    }
    status = trib_api_check_lengths(engine, &mine, error);
    if (status == TRIB_OK && !atomic_load(&engine->changing)) { /* between two epochs: it is known in the next one */
        status = trib_engine_check_open(engine, error);
        status = status == TRIB_EPOCH_CHANGED ? TRIB_OK : status;
    }
    status = status == TRIB_OK ? trib_tensor_find_or_add(engine, &mine, &tensor, handle_out, error) : status;
    trib_rank_group_let_go(mine.group);
    return status;
}

trib_status trib_tensor_declare(trib_engine *engine, const trib_tensor_desc *desc, trib_tensor **tensor_out,
                                trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (tensor_out != NULL) {
        *tensor_out = NULL;
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (desc == NULL || tensor_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "%s is NULL", desc == NULL ? "desc" : "tensor_out");
    }
    status = check_desc(desc, error);
    if (status != TRIB_OK) {
        return status;
    }
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        return trib_error_set(error, TRIB_STATE, "only workers declare tensors");
    }
    if ((desc->flags & TRIB_TENSOR_DEVICE) != 0 && engine->device == NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\" is on a device, but trib_config.device is \"none\": set it to \"cuda\"",
                              desc->name);
    }
    uintptr_t handle = 0;
    status = wait_for_ending_tensors(engine, desc, error);
    status = status == TRIB_OK ? declare_in_group(engine, desc, &handle, error) : status;
    if (status == TRIB_OK) {
        *tensor_out = trib_api_tensor_handle(handle);
    }
    return status;
}

trib_status trib_tensor_find(trib_engine *engine, const char *name, trib_tensor **tensor_out, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (tensor_out != NULL) {
        *tensor_out = NULL;
    } else if (status == TRIB_OK) {
        status = trib_error_set(error, TRIB_INVALID, "tensor_out is NULL");
    }
    status = status == TRIB_OK ? trib_api_check_name("tensor", name, error) : status;
    const uintptr_t handle = status == TRIB_OK ? trib_tensor_lookup(engine, name) : 0;
    if (status == TRIB_OK && handle == 0) {
        status = trib_error_set(error, TRIB_INVALID, "tensor \"%s\" is not declared", name);
    }
    if (status == TRIB_OK) {
        *tensor_out = trib_api_tensor_handle(handle);
    }
    return status;
}

trib_status trib_tensor_release(trib_tensor *tensor, trib_error *error)
{
    if (tensor == NULL) {
        trib_error_clear(error);
        return TRIB_OK;
    }
    trib_tensor *found = NULL;
    const trib_status status = trib_api_find_tensor(tensor, &found, error);
    return status == TRIB_OK ? trib_tensor_release_handle(found->engine, (uintptr_t)tensor, error) : status;
}
