/* device_hooks.c - operations and tensors on a device, as a table of functions for the worker
 * (engine/worker/device_hooks.h). */
#include "engine/device/device_task.h"
#include "engine/local_group/group.h"

static trib_status record_marker(trib_engine *engine, void *stream, void **marker_out, trib_error *error)
{
    return engine->env.device->marker_record(engine->device, stream, marker_out, error);
}

static void drop_marker(trib_engine *engine, void *marker)
{
    engine->env.device->marker_drop(engine->device, marker);
}

/*
 * Between machines the device thread wakes the cores if it can. It need not hurry if the input is awaited, because the
 * cores have nothing to send before the device thread has seen the input.
 */
static void wake_cores(trib_op *op, uint32_t reactors)
{
    trib_engine *engine = op->engine;
    const trib_device_ops *device = engine->env.device;
    const bool goes_ahead = op->device->ahead_bytes > 0;
    const bool hurries = atomic_load(&op->device->input) != TRIB_INPUT_AWAITED;
    if (trib_engine_is_one_machine(engine) || !device->wake(engine->device, reactors, hurries)) {
        trib_engine_wake(engine, reactors);
    }
    if (goes_ahead) {
        trib_device_op_go_ahead(op);
    }
}

static const char *name_awaited(const trib_op *op)
{
    const bool is_alone = trib_engine_local_size(op->engine) == 1 || !op->tensor->is_sharded;
    if (op->device->ahead_bytes > 0) {
        return "the device";
    }
    if (atomic_load(&op->device->input) == TRIB_INPUT_AWAITED) {
        return op->device->keeps ? "the caller's stream, or the device" : "the caller's stream";
    }
    return is_alone ? "the device" : "the machine's other local ranks";
}

const trib_device_hooks trib_group_device_hooks = {
    .marker_record = record_marker,
    .marker_drop = drop_marker,
    .prepare = trib_device_op_prepare,
    .fill = trib_device_op_fill,
    .fit = trib_device_op_fit,
    .round_began = trib_device_op_round_began,
    .given_up = trib_device_op_given_up,
    .begin = trib_device_op_begin,
    .wake = wake_cores,
    .failed = trib_group_op_failed,
    .awaited = name_awaited,
    .take_ahead = trib_device_tensor_ahead,
    .drop = trib_device_tensor_drop,
    .place = trib_device_tensor_place,
    .stage = trib_device_tensor_stage,
    .free = trib_device_tensor_free,
};
