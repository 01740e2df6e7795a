/*
 * operation_api.c - the entry points about tensors and operations: check the arguments, the state and the thread, then
 * forward. Nothing else.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "api/blocking.h"
#include "api/check.h"
#include "engine/device/device_task.h"

#define POLL_NS (50 * INT64_C(1000)) /* a call that waits for a launch polls so long before it sleeps */

/* ---- Names, groups, tensors ---- */

/* A name is 1 to TRIB_TENSOR_NAME_MAX bytes without control bytes, and does not begin with "__". */
static trib_status check_name(const char *what, const char *name, trib_error *error)
{
    if (name == NULL) {
        return trib_error_set(error, TRIB_INVALID, "desc->name is NULL: a %s needs a name, the same on all workers",
                              what);
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

static trib_status check_zeros(const uint64_t *reserved, size_t count, const char *of, trib_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (reserved[i] != 0) {
            return trib_error_set(error, TRIB_INVALID, "a reserved field of %s is not 0", of);
        }
    }
    return TRIB_OK;
}

static trib_status check_group(const trib_engine *engine, const trib_group *group, trib_error *error)
{
    return group == NULL || group->engine == engine
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "the group belongs to another engine");
}

/* The lengths of the slices that this worker has. */
static trib_status check_lengths(const trib_engine *engine, const trib_tensor_desc *desc, trib_error *error)
{
    const uint64_t most = TRIB_TENSOR_BYTES_MAX / trib_dtype_size(desc->dtype), row = desc->row == 0 ? 1 : desc->row;
    const uint32_t members = trib_rank_group_count(engine, desc->group);
    if (desc->count > most) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %llu elements of %zu bytes: at most 2^44 bytes",
                              desc->name, (unsigned long long)desc->count, trib_dtype_size(desc->dtype));
    }
    if (desc->split_count != (desc->layout == TRIB_PAIRS ? members : 0) ||
        (desc->split_count > 0) != (desc->splits != NULL)) {
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
            return trib_error_set(error, TRIB_INVALID,
                                  "tensor \"%s\": the split for rank %u has %llu elements: not in rows of %llu, or more "
                                  "than 2^44 bytes together",
                                  desc->name, trib_rank_group_rank(desc->group, i), (unsigned long long)desc->splits[i],
                                  (unsigned long long)row);
        }
        total += desc->splits[i];
    }
    return TRIB_OK;
}

static trib_status check_kind(const trib_engine *engine, const trib_tensor_desc *desc, trib_error *error)
{
    if (trib_dtype_size(desc->dtype) == 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown dtype %d", desc->name, (int)desc->dtype);
    }
    if ((unsigned)desc->layout > TRIB_PAIRS) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown layout %d", desc->name, (int)desc->layout);
    }
    if ((desc->flags & ~TRIB_TENSOR_DEVICE) != 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown flags 0x%x", desc->name, desc->flags);
    }
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        return trib_error_set(error, TRIB_STATE, "only workers declare tensors");
    }
    const bool on_device = (desc->flags & TRIB_TENSOR_DEVICE) != 0;
    if (on_device && engine->device == NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\" is on a device, but trib_config.device is \"none\": set it to \"cuda\"",
                              desc->name);
    }
    if (on_device && (desc->layout != TRIB_WHOLE || desc->group != NULL)) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\": on a device there are whole tensors of all workers only: copy it to the "
                              "host",
                              desc->name);
    }
    return TRIB_OK;
}

trib_status trib_tensor_declare(trib_engine *engine, const trib_tensor_desc *desc, trib_tensor **tensor_out,
                                trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (desc == NULL || tensor_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "%s is NULL", desc == NULL ? "desc" : "tensor_out");
    }
    if (desc->struct_size != sizeof *desc) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_tensor_desc has struct_size %u, this library's has %zu: call "
                              "trib_tensor_desc_init and build against the same release",
                              desc->struct_size, sizeof *desc);
    }
    status = check_name("tensor", desc->name, error);
    if (status == TRIB_OK) {
        status = check_kind(engine, desc, error);
    }
    if (status == TRIB_OK) {
        status = check_zeros(desc->reserved, sizeof desc->reserved / sizeof desc->reserved[0], "desc", error);
    }
    if (status == TRIB_OK) {
        status = check_group(engine, desc->group, error);
    }
    if (status == TRIB_OK) {
        status = check_lengths(engine, desc, error);
    }
    if (status == TRIB_OK) {
        status = trib_engine_check_open(engine, error);
    }
    return status != TRIB_OK ? status : trib_tensor_find_or_add(engine, desc, tensor_out, error);
}

/* ---- Groups ---- */

static trib_status check_ranks(const trib_engine *engine, const trib_group_desc *desc, trib_error *error)
{
    bool has_me = false;
    if (desc->ranks == NULL || desc->rank_count == 0 || desc->rank_count > (uint32_t)engine->config.worker_count) {
        return trib_error_set(error, TRIB_INVALID, "group \"%s\": %u ranks, of 1 to %d", desc->name,
                              desc->ranks == NULL ? 0 : desc->rank_count, engine->config.worker_count);
    }
    for (uint32_t i = 0; i < desc->rank_count; i++) {
        if (desc->ranks[i] < 0 || desc->ranks[i] >= engine->config.worker_count) {
            return trib_error_set(error, TRIB_INVALID, "group \"%s\": %d is not a rank below %d", desc->name,
                                  desc->ranks[i], engine->config.worker_count);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (desc->ranks[j] == desc->ranks[i]) {
                return trib_error_set(error, TRIB_INVALID, "group \"%s\": rank %d comes twice", desc->name,
                                      desc->ranks[i]);
            }
        }
        has_me = has_me || desc->ranks[i] == engine->config.rank;
    }
    return has_me ? TRIB_OK
                  : trib_error_set(error, TRIB_INVALID, "group \"%s\": this worker, rank %d, is none of its members",
                                   desc->name, engine->config.rank);
}

trib_status trib_group_create(trib_engine *engine, const trib_group_desc *desc, trib_group **group_out,
                              trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
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
    status = check_name("group", desc->name, error);
    if (status == TRIB_OK && (desc->flags != 0 || desc->reserved_32 != 0)) {
        status = trib_error_set(error, TRIB_INVALID, "group \"%s\": unknown flags", desc->name);
    }
    if (status == TRIB_OK) {
        status = check_zeros(desc->reserved, sizeof desc->reserved / sizeof desc->reserved[0], "desc", error);
    }
    if (status == TRIB_OK && (engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        status = trib_error_set(error, TRIB_STATE, "only workers make groups");
    }
    if (status == TRIB_OK) {
        status = check_ranks(engine, desc, error);
    }
    if (status == TRIB_OK) {
        status = trib_engine_check_open(engine, error);
    }
    return status != TRIB_OK ? status : trib_rank_group_find_or_add(engine, desc, group_out, error);
}

int32_t trib_group_rank(const trib_group *group)
{
    return group == NULL ? -1 : (int32_t)group->place;
}

int32_t trib_group_size(const trib_group *group)
{
    return group == NULL ? 0 : (int32_t)group->count;
}

/* ---- The slices of a tensor ---- */

/* Writes the lengths of the slices of a placed tensor. */
static trib_status write_counts(const trib_tensor *tensor, uint64_t *counts, size_t capacity, size_t *count_out,
                                trib_error *error)
{
    const size_t slices = tensor->layout == TRIB_WHOLE ? 0 : (size_t)trib_cut_slices(tensor->layout, tensor->members);
    if (slices == 0 || counts == NULL || capacity < slices) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\" has %zu slices, room for %zu", tensor->name, slices,
                              counts == NULL ? 0 : capacity);
    }
    for (size_t i = 0; i < slices; i++) {
        counts[i] = tensor->cut->slices[i].bytes / trib_dtype_size(tensor->dtype);
    }
    if (count_out != NULL) {
        *count_out = slices;
    }
    return TRIB_OK;
}

trib_status trib_tensor_counts(const trib_tensor *tensor, uint64_t *counts, size_t capacity, size_t *count_out,
                               trib_error *error)
{
    if (tensor == NULL) {
        return trib_error_set(error, TRIB_INVALID, "tensor is NULL");
    }
    const trib_status status = trib_api_check_engine(tensor->engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (atomic_load(&tensor->bad)) {
        return trib_error_set(error, tensor->bad_status, "tensor \"%s\": %s", tensor->name, tensor->bad_text);
    }
    return atomic_load_explicit(&tensor->placed, memory_order_acquire)
               ? write_counts(tensor, counts, capacity, count_out, error)
               : trib_error_set(error, TRIB_AGAIN, "tensor \"%s\": not all members have declared it", tensor->name);
}

/* ---- Operations ---- */

static trib_status check_params(trib_engine *engine, const trib_op_params *params, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
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
static trib_status check_call(trib_engine *engine, const trib_op_params *params, trib_layout layout, trib_error *error)
{
    trib_status status = check_params(engine, params, error);
    if (status == TRIB_OK) {
        status = check_tensor(engine, params, error);
    }
    return status == TRIB_OK ? check_layout(params, layout, error) : status;
}

trib_status trib_all_reduce(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_call(engine, params, TRIB_WHOLE, error);
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
    trib_status status = check_call(engine, params, TRIB_WHOLE, error);
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
    trib_status status = check_call(engine, params, TRIB_WHOLE, error);
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
    trib_status status = check_call(engine, params, layout, error);
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

static trib_status check_succeeded(const trib_op *op, trib_error *error)
{
    const trib_status status = trib_api_check_op(op, error);
    return status != TRIB_OK || atomic_load(&op->status) == TRIB_OK
               ? status
               : trib_error_set(error, TRIB_STATE, "tensor \"%s\": the operation has not succeeded", op->tensor->name);
}

trib_status trib_op_output(const trib_op *op, void **data_out, uint64_t *bytes_out, trib_error *error)
{
    const trib_status status = check_succeeded(op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (data_out != NULL) {
        *data_out = op->output;
    }
    if (bytes_out != NULL) {
        *bytes_out = op->tensor->layout == TRIB_WHOLE ? op->tensor->bytes : op->output_bytes;
    }
    return TRIB_OK;
}

trib_status trib_op_counts(const trib_op *op, uint64_t *counts, size_t capacity, size_t *count_out, trib_error *error)
{
    const trib_status status = check_succeeded(op, error);
    return status != TRIB_OK ? status : write_counts(op->tensor, counts, capacity, count_out, error);
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
    trib_status status = check_params(engine, params, error);
    if (status == TRIB_OK) {
        status = check_group(engine, params->group, error);
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
                              op_out == NULL            ? "op_out is NULL: only the handle tells where the bytes are"
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
    trib_status status = check_params(engine, params == NULL ? &mine : params, error);
    if (status == TRIB_OK && params != NULL) {
        status = check_group(engine, params->group, error);
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

void trib_op_cancel(trib_op *op)
{
    if (op != NULL && trib_api_is_usable(op->engine)) {
        trib_op_give_up(op);
    }
}

/* Waits until the job has come together: a stream that waited before might hold up the work of forming the group of
 * GPUs. If the job fails, the operation itself says why. */
static trib_status wait_for_job(trib_engine *engine, trib_error *error)
{
    if (atomic_load(&engine->phase) != TRIB_PHASE_JOINING) {
        return TRIB_OK;
    }
    trib_error here = {.status = TRIB_OK};
    const trib_status status = trib_api_check_may_block(engine, &here);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "a stream may wait only when the job has come together; %s", here.text);
    }
    const trib_status unused = trib_engine_wait_ready(engine, -1, NULL);
    (void)unused;
    return TRIB_OK;
}

static bool is_launched(const trib_op *op, uint32_t launches)
{
    return atomic_load(&op->engine->launches) != launches || atomic_load(&op->cores_left) == 0;
}

/* Polls: on one machine a launch takes less time than a thread takes to wake up. */
static bool is_launched_soon(const trib_op *op, uint32_t launches)
{
    const struct timespec until = trib_api_deadline_in(POLL_NS);
    while (!is_launched(op, launches)) {
        if (trib_api_left_ns(&until) <= 0) {
            return false;
        }
        sched_yield(); /* the thread that launches it may need this core */
    }
    return true;
}

static void wait_for_change(trib_op *op, uint32_t launches)
{
    trib_engine *engine = op->engine;
    atomic_fetch_add(&engine->waiters, 1);
    pthread_mutex_lock(&engine->mutex);
    while (!is_launched(op, launches)) {
        pthread_cond_wait(&engine->changed, &engine->mutex); /* bounded by the operation's deadline and the job's end */
    }
    pthread_mutex_unlock(&engine->mutex);
    atomic_fetch_sub(&engine->waiters, 1);
}

/* A stream that waited now might block the launch of the very work that it waits for. So this thread waits, until
 * something has been launched or the operation is over, even if its completion has not been announced. */
static trib_status wait_for_launch(trib_op *op, uint32_t launches, trib_error *refusal)
{
    trib_engine *engine = op->engine;
    const trib_error reason = *refusal;
    trib_status status = trib_api_check_may_block(engine, refusal);
    if (status != TRIB_OK) {
        const trib_error here = *refusal;
        return trib_error_set(refusal, status, "%.250s; %.100s", reason.text, here.text);
    }
    if (!atomic_exchange(&engine->refused_logged, true)) {
        trib_log(&engine->logger, TRIB_LOG_INFO, "tensor \"%s\": trib_op_stream_wait waits in the call: %s",
                 op->tensor->name, reason.text);
    }
    if (!is_launched_soon(op, launches)) {
        wait_for_change(op, launches);
    }
    return TRIB_BUSY;
}

trib_status trib_op_stream_wait(trib_op *op, void *stream, trib_error *error)
{
    trib_status status = trib_api_check_op(op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!op->tensor->on_device) {
        return trib_error_set(error, TRIB_INVALID, "op must be an operation on a TRIB_TENSOR_DEVICE tensor");
    }
    trib_engine *engine = op->engine;
    status = wait_for_job(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    do {
        const uint32_t launches = atomic_load(&engine->launches);
        trib_error refusal = {.status = TRIB_OK};
        status = engine->env.device->stream_wait(engine->device, stream, &op->device->semaphore, &refusal);
        if (status == TRIB_BUSY) {
            status = atomic_load(&op->cores_left) > 0 ? wait_for_launch(op, launches, &refusal) : TRIB_OK;
        }
        if (status != TRIB_OK && status != TRIB_BUSY) {
            return trib_error_set(error, status, "%s", refusal.text);
        }
    } while (status == TRIB_BUSY);
    return TRIB_OK;
}

trib_status trib_op_status(const trib_op *op)
{
    trib_status status = trib_api_check_op(op, NULL);
    return status != TRIB_OK ? status : (trib_status)atomic_load(&op->status);
}

trib_status trib_op_wait(trib_op *op, int64_t timeout_ns, trib_error *error)
{
    trib_status status = trib_api_check_op(op, error);
    if (status == TRIB_OK) {
        status = trib_api_check_may_block(op->engine, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    trib_engine *engine = op->engine;
    struct timespec deadline = trib_api_deadline_in(timeout_ns < 0 ? 0 : timeout_ns);
    int code = 0;
    atomic_fetch_add(&engine->waiters, 1);
    while (atomic_load(&op->status) == TRIB_PENDING && code != ETIMEDOUT) {
        if (trib_engine_dispatch(engine, 0) > 0) { /* a steady flow of completions must not outlast the deadline */
            code = timeout_ns >= 0 && trib_api_left_ns(&deadline) <= 0 ? ETIMEDOUT : 0;
            continue;
        }
        pthread_mutex_lock(&engine->mutex);
        if (atomic_load(&op->status) == TRIB_PENDING &&
            (engine->done_head == NULL || atomic_load(&engine->dispatcher) != TRIB_NO_THREAD)) {
            code = timeout_ns < 0 ? pthread_cond_wait(&engine->changed, &engine->mutex)
                                  : pthread_cond_timedwait(&engine->changed, &engine->mutex, &deadline);
        }
        pthread_mutex_unlock(&engine->mutex);
    }
    atomic_fetch_sub(&engine->waiters, 1);
    status = (trib_status)atomic_load(&op->status);
    if (status == TRIB_PENDING) {
        return trib_error_set(error, TRIB_TIMEOUT, "tensor \"%s\": not complete yet", op->tensor->name);
    }
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "%s", op->text);
}

void trib_op_release(trib_op *op)
{
    if (op != NULL && trib_api_is_usable(op->engine)) {
        trib_op_give_back(op);
    }
}
