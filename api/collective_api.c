/*
 * collective_api.c - the entry points of the collectives: check what is special about each, then forward. Nothing else.
 */
#include <stdio.h>

#include "api/check.h"
#include "engine/worker/op_join.h"

trib_status trib_all_reduce(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_PUSH_PULL, op_out, error);
}

trib_status trib_push_pull(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_PUSH_PULL, op_out, error);
}

trib_status trib_broadcast(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_BROADCAST, op_out, error);
}

trib_status trib_reduce_to(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_REDUCE, op_out, error);
}

trib_status trib_all_gather(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_ALL_GATHER, op_out, error);
}

trib_status trib_reduce_scatter(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_REDUCE_SCATTER, op_out, error);
}

trib_status trib_all_to_all(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_api_submit(engine, params, TRIB_OP_ALL_TO_ALL, op_out, error);
}

/* ---- Results ---- */

static trib_status fail_unsuccessful(trib_error *error)
{
    return trib_error_set(error, TRIB_STATE, "the operation has not succeeded");
}

trib_status trib_op_output(const trib_op *handle, void **data_out, uint64_t *bytes_out, trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (atomic_load(&op->status) != TRIB_OK) {
        status = fail_unsuccessful(error);
    } else {
        if (data_out != NULL) {
            *data_out = op->output;
        }
        if (bytes_out != NULL) {
            *bytes_out = op->tensor->layout == TRIB_WHOLE ? op->tensor->bytes : op->output_bytes;
        }
    }
    trib_op_unref(op);
    return status;
}

trib_status trib_op_counts(const trib_op *handle, uint64_t *counts, size_t capacity, size_t *count_out,
                           trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error);
    if (status != TRIB_OK) {
        return status;
    }
    status = atomic_load(&op->status) == TRIB_OK
                 ? trib_api_write_counts(op->tensor, op->cut, counts, capacity, count_out, error)
                 : fail_unsuccessful(error);
    trib_op_unref(op);
    return status;
}

/* The rank of the op's contributor at that place among those that share the tensor. */
static int32_t rank_at(const trib_op *op, uint32_t place)
{
    const trib_group *group = op->tensor->group;
    return (int32_t)(group != NULL ? group->ranks[place] : op->roster->members[place].rank);
}

static void list_contributors(const trib_op *op, int32_t *ranks, size_t capacity, size_t *count_out)
{
    const bool is_from_one = trib_op_is_from_one(op);
    size_t count = 0;
    for (uint32_t i = 0; op->late_count > 0 && i < op->tensor->members && count < capacity; i++) {
        if (trib_op_has(op, i)) {
            ranks[count++] = rank_at(op, i);
        }
    }
    for (uint32_t i = 0; op->late_count == 0 && i < op->contributors && i < capacity; i++) {
        ranks[i] = is_from_one && op->tensor->group == NULL ? (int32_t)op->root_rank
                                                            : rank_at(op, is_from_one ? op->root_rank : i);
    }
    *count_out = op->contributors;
}

trib_status trib_op_contributors(const trib_op *handle, int32_t *ranks, size_t capacity, size_t *count_out,
                                 trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!atomic_load(&op->is_over) || atomic_load(&op->claim) != 0) { /* its callback may ask, too */
        status = fail_unsuccessful(error);
    } else if (count_out == NULL || (capacity > 0 && ranks == NULL)) {
        status = trib_error_set(error, TRIB_INVALID, "%s is NULL", count_out == NULL ? "count_out" : "ranks");
    } else {
        list_contributors(op, ranks, capacity, count_out);
    }
    trib_op_unref(op);
    return status;
}

/* ---- Operations whose tensors the engine declares itself ---- */

/* A tensor for this operation alone, as the lengths differ each time. Its number is taken when the operation is. */
static trib_status submit_bytes(trib_engine *engine, const trib_op_params *params, uint64_t bytes, bool has_root,
                                trib_op **op_out, trib_error *error)
{
    char name[40];
    trib_group *group = params->group;
    pthread_mutex_lock(&engine->once_mutex);
    pthread_mutex_lock(&engine->mutex);
    trib_status status = trib_op_join_check(engine, error); /* an answer to a join raises the numbers */
    pthread_mutex_unlock(&engine->mutex);
    if (status != TRIB_OK) {
        pthread_mutex_unlock(&engine->once_mutex);
        return status;
    }
    uint32_t *calls = group == NULL ? &engine->bytes_calls : &group->bytes_calls;
    snprintf(name, sizeof name, TRIB_BYTES_NAME "%u", *calls + 1);
    const uint64_t shape[] = {bytes,
                              has_root ? (uint64_t)params->root + 1 : 0}; /* the members' second one must agree */
    const trib_tensor_desc desc = {.name = name,
                                   .dtype = TRIB_UINT8,
                                   .count = bytes,
                                   .shape = shape,
                                   .dims = 2,
                                   .layout = TRIB_SLICES,
                                   .group = group};
    trib_request request = {
        .params = params, .collective = TRIB_COLLECTIVE_BROADCAST, .names_root = has_root, .handle_out = op_out};
    status = trib_ops_reserve(engine, &request, 1, error);
    if (status == TRIB_OK) {
        status = trib_tensor_find_or_add(engine, &desc, &request.tensor, NULL, error);
        if (status == TRIB_OK) {
            status = trib_ops_submit(engine, &request, 1, error);
        } else {
            trib_ops_put_back(engine, &request, 1);
        }
    }
    if (status == TRIB_OK) {
        ++*calls;
        pthread_mutex_lock(&engine->mutex);
        trib_tensor_release_once(request.tensor);
        pthread_mutex_unlock(&engine->mutex);
    }
    pthread_mutex_unlock(&engine->once_mutex);
    return status;
}

/* A broadcast gathers, too: all but the root bring nothing. The group has been held. */
static trib_status check_bytes(trib_engine *engine, const trib_op_params *params, bool has_root, trib_op **op_out,
                               trib_error *error)
{
    const uint32_t roots = trib_rank_group_roots(engine, params->group);
    const bool gives = !has_root || (uint32_t)params->root == trib_rank_group_own(engine, params->group);
    const uint64_t bytes = gives ? params->input_bytes : 0;
    if (op_out == NULL || params->output != NULL || (bytes > 0 && params->input == NULL) ||
        bytes > TRIB_TENSOR_BYTES_MAX) {
        return trib_error_set(error, TRIB_INVALID, "%s",
                              op_out == NULL           ? "op_out is NULL: only the handle tells where the bytes are"
                              : params->output != NULL ? "output is not NULL: the engine allocates it"
                              : params->input == NULL  ? "input is NULL"
                                                       : "more than 2^44 bytes");
    }
    if (has_root && (params->root < 0 || (uint32_t)params->root >= roots)) {
        return trib_error_set(error, TRIB_INVALID, "root %d is not a rank below %u", params->root, roots);
    }
    trib_op_params mine = *params;
    mine.input = gives ? params->input : NULL;
    mine.input_bytes = 0;
    mine.flags = TRIB_OP_ALLOCATE_OUTPUT;
    return submit_bytes(engine, &mine, bytes, has_root, op_out, error);
}

static trib_status gather_bytes(trib_engine *engine, const trib_op_params *params, bool has_root, trib_op **op_out,
                                trib_error *error)
{
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_plain(engine, params, has_root ? "broadcast_bytes" : "all_gather_bytes", error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_op_params mine = *params;
    status = trib_rank_group_hold(engine, (uintptr_t)params->group, &mine.group, error);
    if (status == TRIB_OK) {
        status = check_bytes(engine, &mine, has_root, op_out, error);
        trib_rank_group_let_go(mine.group);
    }
    return status;
}

trib_status trib_broadcast_bytes(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return gather_bytes(engine, params, true, op_out, error);
}

trib_status trib_all_gather_bytes(trib_engine *engine, const trib_op_params *params, trib_op **op_out,
                                  trib_error *error)
{
    return gather_bytes(engine, params, false, op_out, error);
}

static trib_status find_barrier(trib_engine *engine, trib_group *group, trib_tensor **tensor_out, trib_error *error)
{
    if (group == NULL) {
        *tensor_out = engine->barrier_tensor;
        return TRIB_OK;
    }
    const trib_tensor_desc desc = {
        .name = TRIB_BARRIER_NAME, .dtype = TRIB_UINT8, .priority = INT32_MAX, .layout = TRIB_WHOLE, .group = group};
    return trib_tensor_find_or_add(engine, &desc, tensor_out, NULL, error);
}

trib_status trib_barrier(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_op_params mine;
    trib_op_params_init(&mine, sizeof mine);
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_plain(engine, params == NULL ? &mine : params, "a barrier", error);
    if (status == TRIB_OK && params != NULL) {
        status = trib_rank_group_hold(engine, (uintptr_t)params->group, &mine.group, error);
        mine.timeout_ns = params->timeout_ns;
        mine.done_cb = params->done_cb;
        mine.user = params->user;
    }
    trib_request request = {.params = &mine, .collective = TRIB_COLLECTIVE_ALL_REDUCE, .handle_out = op_out};
    status = status == TRIB_OK ? find_barrier(engine, mine.group, &request.tensor, error) : status;
    status = status == TRIB_OK ? trib_ops_submit(engine, &request, 1, error) : status;
    trib_rank_group_let_go(mine.group);
    return status;
}

/* The operation tells the rank that joined last, and so it has an output without a tensor. */
trib_status trib_join(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_op_params mine;
    trib_op_params_init(&mine, sizeof mine);
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_plain(engine, params == NULL ? &mine : params, "a join", error);
    if (status != TRIB_OK) {
        return status;
    }
    if (params != NULL) {
        mine.output = params->output;
        mine.done_cb = params->done_cb;
        mine.user = params->user;
    }
    trib_request request = {.params = &mine,
                            .collective = TRIB_COLLECTIVE_ALL_REDUCE,
                            .tensor = engine->barrier_tensor,
                            .handle_out = op_out};
    return trib_op_join(engine, &request, error);
}
