/*
 * op_params.c - checks the parameters of operations, and makes requests of them.
 */
#include <math.h>

#include "api/check.h"
#include "engine/aggregate/sum_scale.h"
#include "engine/base/handle.h"
#include "engine/device/device.h"

/* The tensor that an operation works on, or that the engine will name for it. */
typedef struct target {
    const char *name;
    trib_dtype dtype;
    trib_layout layout;
    bool on_device, is_sharded, is_once;
    uint64_t bytes;
    uint32_t roots, own; /* roots are below the first number, and this worker is the second one */
} target;

typedef trib_status kind_check(const trib_engine *engine, const target *what, const trib_op_params *params,
                               trib_error *error);

static kind_check check_push_pull, check_broadcast, check_reduce, check_gather, check_scatter;

/* By trib_op_kind. */
static const struct {
    trib_layout layout;
    trib_collective collective;
    kind_check *check;
} kinds[TRIB_OP_KIND_COUNT] = {
    [TRIB_OP_PUSH_PULL] = {TRIB_WHOLE, TRIB_COLLECTIVE_ALL_REDUCE, check_push_pull},
    [TRIB_OP_BROADCAST] = {TRIB_WHOLE, TRIB_COLLECTIVE_BROADCAST, check_broadcast},
    [TRIB_OP_REDUCE] = {TRIB_WHOLE, TRIB_COLLECTIVE_REDUCE, check_reduce},
    [TRIB_OP_ALL_GATHER] = {TRIB_SLICES, TRIB_COLLECTIVE_BROADCAST, check_gather},
    [TRIB_OP_REDUCE_SCATTER] = {TRIB_SLICES, TRIB_COLLECTIVE_REDUCE, check_scatter},
    [TRIB_OP_ALL_TO_ALL] = {TRIB_PAIRS, TRIB_COLLECTIVE_PAIR, check_gather},
};

trib_status trib_api_check_worker(trib_engine *engine, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        return trib_error_set(error, TRIB_STATE, "only workers take part in operations");
    }
    return trib_engine_check_open(engine, error);
}

static trib_status check_struct(const trib_op_params *params, trib_error *error)
{
    if (params == NULL) {
        return trib_error_set(error, TRIB_INVALID, "params is NULL");
    }
    if (params->struct_size != sizeof *params) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_op_params has struct_size %u, this library's has %zu: call "
                              "trib_op_params_init and build against the same release",
                              params->struct_size, sizeof *params);
    }
    if ((params->flags & ~(TRIB_OP_ONCE | TRIB_OP_ALLOCATE_OUTPUT)) != 0) {
        return trib_error_set(error, TRIB_INVALID, "unknown flags 0x%x in params", params->flags);
    }
    bool is_reserved_zero = params->reserved_32 == 0;
    for (size_t i = 0; i < sizeof params->reserved / sizeof params->reserved[0]; i++) {
        is_reserved_zero = is_reserved_zero && params->reserved[i] == 0;
    }
    return is_reserved_zero ? TRIB_OK : trib_error_set(error, TRIB_INVALID, "a reserved field of params is not 0");
}

static trib_status find_once(const trib_engine *engine, const trib_op_params *params, target *out, trib_error *error)
{
    const size_t element = trib_dtype_size(params->dtype);
    if (params->tensor != NULL) {
        return trib_error_set(error, TRIB_INVALID,
                              "TRIB_OP_ONCE: params->tensor is not NULL: leave out the flag for an operation on it");
    }
    if (params->group != NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "TRIB_OP_ONCE is for all workers: declare a tensor in the group, and release it");
    }
    if (element == 0 || params->bytes % element != 0 || params->bytes > TRIB_TENSOR_BYTES_MAX) {
        return trib_error_set(error, TRIB_INVALID,
                              "TRIB_OP_ONCE: dtype (%d) must be a type, and bytes (%llu) those of whole elements, 2^44 "
                              "at most",
                              (int)params->dtype, (unsigned long long)params->bytes);
    }
    *out = (target){.name = "TRIB_OP_ONCE",
                    .dtype = params->dtype,
                    .bytes = params->bytes,
                    .is_once = true,
                    .roots = trib_rank_group_roots(engine, NULL),
                    .own = trib_rank_group_own(engine, NULL)};
    return TRIB_OK;
}

static trib_status find_target(const trib_engine *engine, const trib_op_params *params, trib_tensor **tensor_out,
                               target *out, trib_error *error)
{
    *tensor_out = NULL;
    if ((params->flags & TRIB_OP_ONCE) != 0) {
        return find_once(engine, params, out, error);
    }
    trib_tensor *tensor = trib_handle_find((uintptr_t)params->tensor, TRIB_HANDLE_TENSOR);
    if (tensor == NULL || tensor->engine != engine) {
        return trib_error_set(error, TRIB_INVALID, "params->tensor is %s",
                              params->tensor == NULL ? "NULL"
                              : tensor != NULL       ? "a tensor of another engine"
                                                     : "not a handle of a tensor, or was released before");
    }
    if (params->bytes != 0 && params->bytes != tensor->bytes) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": params->bytes is %llu, but it has %llu bytes",
                              tensor->name, (unsigned long long)params->bytes, (unsigned long long)tensor->bytes);
    }
    if (params->group != NULL &&
        (tensor->group == NULL || trib_handle_find((uintptr_t)params->group, TRIB_HANDLE_GROUP) != tensor->group)) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": params->group is not the group that it was declared in: leave it NULL",
                              tensor->name);
    }
    *tensor_out = tensor;
    *out = (target){.name = tensor->name,
                    .dtype = tensor->dtype,
                    .layout = tensor->layout,
                    .on_device = tensor->on_device,
                    .is_sharded = tensor->is_sharded,
                    .bytes = tensor->bytes,
                    .roots = trib_rank_group_roots(engine, tensor->group),
                    .own = trib_rank_group_own(engine, tensor->group)};
    return TRIB_OK;
}

/* The room that the caller says there is, for a whole tensor. */
static trib_status check_sizes(const target *what, const trib_op_params *params, trib_error *error)
{
    if ((params->flags & TRIB_OP_ALLOCATE_OUTPUT) != 0) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "tensor \"%s\": the engine allocates the output of slices only",
                              what->name);
    }
    const bool input_fits = params->input_bytes == 0 || params->input_bytes == what->bytes;
    if (input_fits && (params->output_bytes == 0 || params->output_bytes >= what->bytes)) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_INVALID, "tensor \"%s\" has %llu bytes, and %s %llu", what->name,
                          (unsigned long long)what->bytes, input_fits ? "output" : "input",
                          (unsigned long long)(input_fits ? params->output_bytes : params->input_bytes));
}

static trib_status check_buffers(const target *what, const trib_op_params *params, bool needs_input, bool needs_output,
                                 trib_error *error)
{
    const trib_status status = check_sizes(what, params, error);
    if (status != TRIB_OK || what->bytes == 0) {
        return status;
    }
    if ((needs_input && params->input == NULL) || (needs_output && params->output == NULL)) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %s is NULL", what->name,
                              needs_input && params->input == NULL ? "input" : "output");
    }
    uintptr_t in = (uintptr_t)params->input, out = (uintptr_t)params->output;
    if (in != 0 && out != 0 && in != out && (in < out ? out - in : in - out) < what->bytes) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": input and output overlap without being equal",
                              what->name);
    }
    return TRIB_OK;
}

static trib_status check_reduction(const target *what, const trib_op_params *params, trib_error *error)
{
    if ((unsigned)params->reduce >= TRIB_REDUCE_COUNT) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown reduction %d", what->name,
                              (int)params->reduce);
    }
    return trib_reduce_suits(what->dtype, params->reduce)
               ? TRIB_OK
               : trib_error_set(error, TRIB_UNSUPPORTED,
                                "tensor \"%s\": there is no %s of %s: bitwise reductions need integers or bools, and "
                                "bools have no average",
                                what->name, trib_reduce_name(params->reduce), trib_dtype_name(what->dtype));
}

/* A factor of 0 stands for 1. */
static bool scales(double factor)
{
    return factor != 0 && factor != 1;
}

static trib_status check_scale(const target *what, const trib_op_params *params, bool has_room, trib_error *error)
{
    const char *why = NULL;
    if (!scales(params->prescale) && !scales(params->postscale)) {
        return TRIB_OK;
    }
    if (!isfinite(params->prescale) || !isfinite(params->postscale) ||
        !isfinite(params->prescale * params->postscale)) {
        return trib_error_set(error, TRIB_INVALID,
                              "tensor \"%s\": prescale %g and postscale %g must be finite numbers, and so must their "
                              "product",
                              what->name, params->prescale, params->postscale);
    }
    if (what->on_device) {
        why = "on a device: multiply it there, before and after";
    } else if (!trib_scale_suits(what->dtype, params->reduce)) {
        why = "for SUM and AVG of numbers only: multiply by yourself, before and after";
    } else if (scales(params->prescale) && !trib_dtype_is_float(what->dtype) && !has_room) {
        why = "of integers for all_reduce only, as it needs room: multiply the input by yourself, or give a postscale";
    }
    return why == NULL ? TRIB_OK
                       : trib_error_set(error, TRIB_UNSUPPORTED, "tensor \"%s\": %s of %s cannot be scaled: %s%s",
                                        what->name, trib_reduce_name(params->reduce), trib_dtype_name(what->dtype),
                                        what->on_device ? "it is " : "a prescale or postscale is ", why);
}

/* For an operation that does not reduce. */
static trib_status check_unscaled(const char *name, const trib_op_params *params, trib_error *error)
{
    return !scales(params->prescale) && !scales(params->postscale)
               ? TRIB_OK
               : trib_error_set(error, TRIB_UNSUPPORTED,
                                "%s cannot be scaled by prescale %g and postscale %g, as it does not reduce: leave "
                                "them 0",
                                name, params->prescale, params->postscale);
}

trib_status trib_api_check_plain(trib_engine *engine, const trib_op_params *params, const char *name, trib_error *error)
{
    trib_status status = trib_api_check_worker(engine, error);
    status = status == TRIB_OK ? check_struct(params, error) : status;
    if (status == TRIB_OK && params->flags != 0) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "%s has no flags, and params->flags is 0x%x", name,
                              params->flags);
    }
    return status == TRIB_OK ? check_unscaled(name, params, error) : status;
}

static trib_status check_root(const target *what, const trib_op_params *params, trib_error *error)
{
    return params->root >= 0 && (uint32_t)params->root < what->roots
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\": root %d is not a rank below %u", what->name,
                                params->root, what->roots);
}

/* The GPUs of a machine reduce first, if there are several. */
static bool device_reduces(const trib_engine *engine, const target *what, trib_reduce reduce)
{
    return !what->is_sharded || engine->config.local_size <= 1 || engine->env.device->reduces(what->dtype, reduce);
}

static trib_status check_push_pull(const trib_engine *engine, const target *what, const trib_op_params *params,
                                   trib_error *error)
{
    trib_status status = check_reduction(what, params, error);
    status = status == TRIB_OK ? check_scale(what, params, true, error) : status;
    if (status == TRIB_OK && what->is_sharded && params->reduce == TRIB_AVG && !trib_dtype_is_float(what->dtype) &&
        engine->config.local_size > 1) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\": AVG of %s between the GPUs of a machine would overflow: sum, then divide",
                              what->name, trib_dtype_name(what->dtype));
    }
    if (status == TRIB_OK && !device_reduces(engine, what, params->reduce)) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\": the GPUs of a machine have no %s of %s: copy the tensor to the host",
                              what->name, trib_reduce_name(params->reduce), trib_dtype_name(what->dtype));
    }
    return status == TRIB_OK ? check_buffers(what, params, true, true, error) : status;
}

static trib_status check_broadcast(const trib_engine *engine, const target *what, const trib_op_params *params,
                                   trib_error *error)
{
    (void)engine;
    trib_status status = check_root(what, params, error);
    status = status == TRIB_OK ? check_unscaled("a broadcast", params, error) : status;
    const bool is_root = (uint32_t)params->root == what->own;
    return status == TRIB_OK ? check_buffers(what, params, is_root, !is_root, error) : status;
}

static trib_status check_reduce(const trib_engine *engine, const target *what, const trib_op_params *params,
                                trib_error *error)
{
    (void)engine;
    if (what->is_sharded) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "tensor \"%s\": on devices only groups can reduce to one rank yet: use trib_all_reduce",
                              what->name);
    }
    trib_status status = check_root(what, params, error);
    status = status == TRIB_OK ? check_reduction(what, params, error) : status;
    status = status == TRIB_OK ? check_scale(what, params, false, error) : status;
    return status == TRIB_OK ? check_buffers(what, params, true, (uint32_t)params->root == what->own, error) : status;
}

/* The lengths are known when all have declared the tensor (trib_op_fit). */
static trib_status check_slices(const target *what, const trib_op_params *params, trib_error *error)
{
    return (params->flags & TRIB_OP_ALLOCATE_OUTPUT) == 0 || params->output == NULL
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\": with TRIB_OP_ALLOCATE_OUTPUT output must be NULL",
                                what->name);
}

static trib_status check_gather(const trib_engine *engine, const target *what, const trib_op_params *params,
                                trib_error *error)
{
    (void)engine;
    const trib_status status = check_unscaled("an exchange of slices", params, error);
    return status == TRIB_OK ? check_slices(what, params, error) : status;
}

static trib_status check_scatter(const trib_engine *engine, const target *what, const trib_op_params *params,
                                 trib_error *error)
{
    (void)engine;
    trib_status status = check_reduction(what, params, error);
    status = status == TRIB_OK ? check_scale(what, params, false, error) : status;
    return status == TRIB_OK ? check_slices(what, params, error) : status;
}

static trib_status check_layout(const target *what, trib_layout layout, trib_error *error)
{
    static const char *const names[] = {"TRIB_WHOLE", "TRIB_SLICES", "TRIB_PAIRS"};
    if (what->layout == layout) {
        return TRIB_OK;
    }
    return what->is_once
               ? trib_error_set(error, TRIB_UNSUPPORTED, "TRIB_OP_ONCE is for whole tensors: declare one that is %s",
                                names[layout])
               : trib_error_set(error, TRIB_INVALID, "tensor \"%s\" was declared %s, and the operation needs %s",
                                what->name, names[what->layout], names[layout]);
}

trib_status trib_api_read_params(const trib_engine *engine, const trib_op_params *params, trib_op_kind kind,
                                 trib_request *request, trib_error *error)
{
    target what = {.name = ""};
    trib_tensor *tensor = NULL;
    trib_status status = check_struct(params, error);
    if (status == TRIB_OK) {
        status = find_target(engine, params, &tensor, &what, error);
    }
    if (status == TRIB_OK && (unsigned)kind >= TRIB_OP_KIND_COUNT) {
        status = trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown kind %d", what.name, (int)kind);
    }
    if (status == TRIB_OK && !what.on_device && params->stream != NULL) {
        status = trib_error_set(error, TRIB_INVALID,
                                "tensor \"%s\": a stream, but it was not declared TRIB_TENSOR_DEVICE", what.name);
    }
    if (status == TRIB_OK) {
        status = check_layout(&what, kinds[kind].layout, error);
    }
    if (status == TRIB_OK) {
        status = kinds[kind].check(engine, &what, params, error);
    }
    *request = (trib_request){
        .params = params,
        .collective = status == TRIB_OK ? kinds[kind].collective : TRIB_COLLECTIVE_ALL_REDUCE,
        .step = status == TRIB_OK ? params->step : 0,
        .tensor = tensor,
        .tensor_handle = tensor != NULL ? (uintptr_t)params->tensor : 0,
    };
    return status;
}
