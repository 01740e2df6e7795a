/*
 * collective_api.c - the entry points that begin an operation: check the arguments and the state, then forward. Nothing
 * else.
 */
#include <stdio.h>

#include "api/check.h"
#include "engine/worker/op.h"

static trib_status check_params(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (op_out != NULL) {
        *op_out = NULL;
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (params == NULL) {
        return trib_error_set(error, TRIB_INVALID, "params is NULL");
    }
    if (params->struct_size != sizeof *params) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_op_params has struct_size %u, this library's has %zu: call "
                              "trib_op_params_init and build against the same release",
                              params->struct_size, sizeof *params);
    }
    if ((params->flags & ~TRIB_OP_ALLOCATE_OUTPUT) != 0) {
        return trib_error_set(error, TRIB_INVALID, "unknown flags 0x%x in params", params->flags);
    }
    for (size_t i = 0; i < sizeof params->reserved / sizeof params->reserved[0]; i++) {
        if (params->reserved[i] != 0) {
            return trib_error_set(error, TRIB_INVALID, "a reserved field of params is not 0");
        }
    }
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        return trib_error_set(error, TRIB_STATE, "only workers take part in operations");
    }
    return trib_engine_check_open(engine, error);
}

static trib_status check_tensor(const trib_engine *engine, const trib_op_params *params, trib_error *error)
{
    if (params->tensor == NULL || params->tensor->engine != engine) {
        return trib_error_set(error, TRIB_INVALID, "params->tensor is NULL or belongs to another engine");
    }
    return TRIB_OK;
}

static trib_status check_reduce(const trib_op_params *params, trib_error *error)
{
    return (unsigned)params->reduce < TRIB_REDUCE_COUNT
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown reduction %d", params->tensor->name,
                                (int)params->reduce);
}

static trib_status check_root(const trib_op_params *params, trib_error *error)
{
    const uint32_t members = params->tensor->members;
    return params->root >= 0 && (uint32_t)params->root < members
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\": root %d is not a rank below %u",
                                params->tensor->name, params->root, members);
}

static const char *layout_name(trib_layout layout)
{
    static const char *const names[] = {"TRIB_WHOLE", "TRIB_SLICES", "TRIB_PAIRS"};
    return names[layout];
}

static trib_status check_layout(const trib_op_params *params, trib_layout layout, trib_error *error)
{
    return params->tensor->layout == layout
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\" was declared %s, and the operation needs %s",
                                params->tensor->name, layout_name(params->tensor->layout), layout_name(layout));
}

/* The room that the caller says there is, for a whole tensor. */
static trib_status check_sizes(const trib_op_params *params, trib_error *error)
{
    const trib_tensor *tensor = params->tensor;
    if ((params->flags & TRIB_OP_ALLOCATE_OUTPUT) != 0) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "tensor \"%s\": the engine allocates the output of slices only",
                              tensor->name);
    }
    const bool input_fits = params->input_bytes == 0 || params->input_bytes == tensor->bytes;
    if (input_fits && (params->output_bytes == 0 || params->output_bytes >= tensor->bytes)) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_INVALID, "tensor \"%s\" has %llu bytes, and %s %llu", tensor->name,
                          (unsigned long long)tensor->bytes, input_fits ? "output" : "input",
                          (unsigned long long)(input_fits ? params->output_bytes : params->input_bytes));
}

static trib_status check_buffers(const trib_op_params *params, bool needs_input, bool needs_output, trib_error *error)
{
    const trib_tensor *tensor = params->tensor;
    const trib_status status = check_sizes(params, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (tensor->bytes == 0) {
        return TRIB_OK;
    }
    if ((needs_input && params->input == NULL) || (needs_output && params->output == NULL)) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %s is NULL", tensor->name,
                              needs_input && params->input == NULL ? "input" : "output");
    }
    uintptr_t in = (uintptr_t)params->input, out = (uintptr_t)params->output;
    if (in != 0 && out != 0 && in != out && (in < out ? out - in : in - out) < tensor->bytes) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": input and output overlap without being equal",
                              tensor->name);
    }
    return TRIB_OK;
}

static bool is_float(trib_dtype dtype)
{
    return dtype == TRIB_FLOAT32 || dtype == TRIB_FLOAT64 || dtype == TRIB_FLOAT16 || dtype == TRIB_BFLOAT16;
}

static trib_status check_stream(const trib_op_params *params, trib_error *error)
{
    const trib_tensor *tensor = params->tensor;
    if (!tensor->on_device && params->stream != NULL) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": a stream, but it was not declared TRIB_TENSOR_DEVICE", tensor->name);
    }
    return TRIB_OK;
}

static trib_status check_device(const trib_engine *engine, const trib_op_params *params, trib_error *error)
{
    const trib_tensor *tensor = params->tensor;
    if (tensor->on_device && params->reduce == TRIB_AVG && !is_float(tensor->dtype) && engine->config.local_size > 1) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\": AVG of %s between the GPUs of a machine would overflow: sum, then divide",
                              tensor->name, trib_dtype_name(tensor->dtype));
    }
    return check_stream(params, error);
}

/* What each operation checks in the same order: the parameters, the tensor, and that it has the layout. */
static trib_status check_call(trib_engine *engine, const trib_op_params *params, trib_layout layout, trib_op **op_out,
                              trib_error *error)
{
    trib_status status = check_params(engine, params, op_out, error);
    if (status == TRIB_OK) {
        status = check_tensor(engine, params, error);
    }
    return status == TRIB_OK ? check_layout(params, layout, error) : status;
}

trib_status trib_all_reduce(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_call(engine, params, TRIB_WHOLE, op_out, error);
    if (status == TRIB_OK) {
        status = check_reduce(params, error);
    }
    if (status == TRIB_OK) {
        status = check_buffers(params, true, true, error);
    }
    if (status == TRIB_OK) {
        status = check_device(engine, params, error);
    }
    return status != TRIB_OK
               ? status
               : trib_op_submit(engine, params, TRIB_COLLECTIVE_ALL_REDUCE, params->tensor, op_out, error);
}

trib_status trib_push_pull(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return trib_all_reduce(engine, params, op_out, error);
}

trib_status trib_broadcast(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_call(engine, params, TRIB_WHOLE, op_out, error);
    if (status == TRIB_OK) {
        status = check_root(params, error);
    }
    if (status == TRIB_OK) {
        status = check_stream(params, error);
    }
    if (status == TRIB_OK) {
        const bool is_root = (uint32_t)params->root == params->tensor->place;
        status = check_buffers(params, is_root, !is_root, error);
    }
    return status != TRIB_OK ? status
                             : trib_op_submit(engine, params, TRIB_COLLECTIVE_BROADCAST, params->tensor, op_out, error);
}

trib_status trib_reduce_to(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_call(engine, params, TRIB_WHOLE, op_out, error);
    if (status == TRIB_OK && params->tensor->on_device) {
        status = trib_error_set(error, TRIB_UNSUPPORTED,
                                "tensor \"%s\": on a device there is no reduce to one rank yet: use trib_all_reduce",
                                params->tensor->name);
    }
    if (status == TRIB_OK) {
        status = check_root(params, error);
    }
    if (status == TRIB_OK) {
        status = check_reduce(params, error);
    }
    if (status == TRIB_OK) {
        status = check_stream(params, error);
    }
    if (status == TRIB_OK) {
        status = check_buffers(params, true, (uint32_t)params->root == params->tensor->place, error);
    }
    return status != TRIB_OK ? status
                             : trib_op_submit(engine, params, TRIB_COLLECTIVE_REDUCE, params->tensor, op_out, error);
}

/* ---- Operations on slices ---- */

static trib_status check_output(const trib_op_params *params, trib_op *const *op_out, trib_error *error)
{
    const bool allocates = (params->flags & TRIB_OP_ALLOCATE_OUTPUT) != 0;
    if (allocates && (params->output != NULL || op_out == NULL)) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": with TRIB_OP_ALLOCATE_OUTPUT output must be NULL and op_out must not",
                              params->tensor->name);
    }
    return TRIB_OK;
}

static trib_status submit_slices(trib_engine *engine, const trib_op_params *params, trib_layout layout,
                                 trib_collective collective, trib_op **op_out, trib_error *error)
{
    trib_status status = check_call(engine, params, layout, op_out, error);
    if (status == TRIB_OK && trib_collective_is_sum(collective)) {
        status = check_reduce(params, error);
    }
    if (status == TRIB_OK) {
        status = check_stream(params, error);
    }
    if (status == TRIB_OK) {
        status = check_output(params, op_out, error);
    }
    return status != TRIB_OK ? status : trib_op_submit(engine, params, collective, params->tensor, op_out, error);
}

trib_status trib_all_gather(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return submit_slices(engine, params, TRIB_SLICES, TRIB_COLLECTIVE_BROADCAST, op_out, error);
}

trib_status trib_reduce_scatter(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return submit_slices(engine, params, TRIB_SLICES, TRIB_COLLECTIVE_REDUCE, op_out, error);
}

trib_status trib_all_to_all(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    return submit_slices(engine, params, TRIB_PAIRS, TRIB_COLLECTIVE_PAIR, op_out, error);
}

/* ---- Operations whose tensors the engine declares itself ---- */

/* The engine's own tensor for the next operation on bytes of the group: the lengths differ each time. */
static trib_status declare_bytes(trib_engine *engine, trib_group *group, uint64_t bytes, trib_tensor **tensor_out,
                                 trib_error *error)
{
    char name[40];
    pthread_mutex_lock(&engine->mutex);
    uint32_t *calls = group == NULL ? &engine->bytes_calls : &group->bytes_calls;
    snprintf(name, sizeof name, "__bytes.%u", ++*calls);
    pthread_mutex_unlock(&engine->mutex);
    const trib_tensor_desc desc = {
        .name = name, .dtype = TRIB_UINT8, .count = bytes, .layout = TRIB_SLICES, .group = group};
    return trib_tensor_find_or_add(engine, &desc, tensor_out, error);
}

/* A broadcast gathers, too: all but the root bring nothing. */
static trib_status gather_bytes(trib_engine *engine, const trib_op_params *params, bool has_root, trib_op **op_out,
                                trib_error *error)
{
    trib_status status = check_params(engine, params, op_out, error);
    if (status == TRIB_OK) {
        status = trib_api_check_group(engine, params->group, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    const uint32_t place = trib_rank_group_place(engine, params->group);
    const bool gives = !has_root || (uint32_t)params->root == place;
    const uint64_t bytes = gives ? params->input_bytes : 0;
    if (op_out == NULL || params->output != NULL || (bytes > 0 && params->input == NULL) ||
        bytes > TRIB_TENSOR_BYTES_MAX) {
        return trib_error_set(error, TRIB_INVALID, "%s",
                              op_out == NULL           ? "op_out is NULL: only the handle tells where the bytes are"
                              : params->output != NULL ? "output is not NULL: the engine allocates it"
                              : params->input == NULL  ? "input is NULL"
                                                       : "more than 2^44 bytes");
    }
    if (has_root && (params->root < 0 || (uint32_t)params->root >= trib_rank_group_count(engine, params->group))) {
        return trib_error_set(error, TRIB_INVALID, "root %d is not a rank below %u", params->root,
                              trib_rank_group_count(engine, params->group));
    }
    trib_op_params mine = *params;
    status = declare_bytes(engine, params->group, bytes, &mine.tensor, error);
    mine.input = gives ? params->input : NULL;
    mine.input_bytes = 0;
    mine.flags = TRIB_OP_ALLOCATE_OUTPUT;
    return status == TRIB_OK ? trib_all_gather(engine, &mine, op_out, error) : status;
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
    return trib_tensor_find_or_add(engine, &desc, tensor_out, error);
}

trib_status trib_barrier(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_op_params mine;
    trib_op_params_init(&mine, sizeof mine);
    trib_status status = check_params(engine, params == NULL ? &mine : params, op_out, error);
    if (status == TRIB_OK && params != NULL) {
        status = trib_api_check_group(engine, params->group, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (params != NULL) {
        mine.timeout_ns = params->timeout_ns;
        mine.done_cb = params->done_cb;
        mine.user = params->user;
        mine.group = params->group;
    }
    status = find_barrier(engine, mine.group, &mine.tensor, error);
    return status == TRIB_OK ? trib_op_submit(engine, &mine, TRIB_COLLECTIVE_ALL_REDUCE, mine.tensor, op_out, error)
                             : status;
}
