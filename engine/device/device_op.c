/*
 * device_op.c - operations on tensors on a device: what they are made of, and their input.
 *
 * Threads that have slept wake up 20 to 200 us late, and a system call that wakes one takes the caller microseconds. So where the
 * cores have nothing to do before the device has, the caller wakes the device's thread alone, which wakes them (op.c). In an engine
 * that has nothing else to do the first bytes of a sum then go to the host at once, while the cores that push them wake up: `ahead`.
 */
#include <stdlib.h>

#include "engine/device/device_task.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"

#define AHEAD_COPY_BYTES (1u << 20) /* 20 to 40 us over PCIe: about as long as a core takes to wake up */

trib_status trib_device_op_prepare(trib_op *op, const trib_op_params *buffers, trib_error *error)
{
    trib_engine *engine = op->engine;
    const trib_device_ops *ops = engine->env.device;
    if (op->device == NULL) {
        op->device = calloc(1, sizeof *op->device);
        if (op->device == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
        }
        op->device->op = op;
    }
    if (op->device->gate.word == NULL) {
        trib_status status = ops->gate_make(engine->device, &op->device->gate, error);
        if (status != TRIB_OK) {
            return status;
        }
    }
    op->device->gate.value++;
    op->device->gate.by_end = false;
    atomic_store(&op->device->gate_count, 0);
    atomic_store(&op->device->notified, false);
    op->device->was_asked = buffers != NULL;
    op->device->may_keep = buffers != NULL && ops->may_keep(engine->device, buffers->input) &&
                           ops->may_keep(engine->device, buffers->output);
    return TRIB_OK;
}

void trib_device_op_fill(trib_op *op)
{
    const uint32_t local_size = trib_engine_local_size(op->engine);
    const bool is_broadcast = op->collective == TRIB_COLLECTIVE_BROADCAST;
    op->device->root = is_broadcast ? op->root : TRIB_NO_MEMBER;
    op->root = trib_device_root(local_size, is_broadcast ? op->root / local_size : 0);
    op->collective = trib_device_alone(op->engine) ? TRIB_COLLECTIVE_DEVICE_ALONE
                     : is_broadcast                ? TRIB_COLLECTIVE_DEVICE_BROADCAST
                                                   : TRIB_COLLECTIVE_DEVICE_ALL_REDUCE;
    op->device->is_issued = trib_device_in_order(op->engine);
    op->device->is_in_call = false;
    op->device->ahead_bytes = 0;
}

void trib_device_op_compare(trib_op *op, bool same)
{
    trib_tensor *tensor = op->tensor;
    trib_device_op *device = op->device;
    if (!same) {
        tensor->keepable = TRIB_KEEP_UNKNOWN;
    } else if (device->was_asked) {
        tensor->keepable = device->may_keep ? TRIB_KEEP_MAY : TRIB_KEEP_NOT;
    }
    /* In program order nobody asks the others before. */
    const bool may = op->engine->config.kept_launches == TRIB_KEPT_LAUNCHES_AUTO &&
                     (tensor->is_fixed || (tensor->keepable == TRIB_KEEP_MAY && !device->is_issued));
    device->steady =
        same && may && op->collective == TRIB_COLLECTIVE_DEVICE_ALONE && trib_engine_local_size(op->engine) > 1;
}

/* ---- Its input ---- */

/* Core 0: the stream has come to the mark, or never will; or what goes ahead is on the host. */
static void input_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = (trib_device_job *)((char *)post - offsetof(trib_device_job, post));
    trib_op *op = job->owner;
    trib_engine *engine = op->engine;
    const bool was_ahead = op->device->ahead_bytes > 0;
    if (job->status != TRIB_OK) {
        trib_device_fail_if_job_lost(op, job->status);
        trib_op_fail(op, job->status, "tensor \"%s\": its input did not %s: %s", op->tensor->name,
                     was_ahead ? "come to the host" : "become ready", job->text);
    }
    atomic_store(&op->device->input, job->status == TRIB_OK ? TRIB_INPUT_READY : TRIB_INPUT_FAILED);
    if (was_ahead) {
        atomic_store(&op->tensor->ahead_round, 0); /* the cores hear of it with the input */
    }
    /* Where the tensor has not been placed nothing waits yet. */
    const uint32_t cores = atomic_load(&op->tensor->placed) ? engine->core_count : 1;
    atomic_store(&op->device->posts_left, cores > 1 ? op->tensor->cores_used : 1);
    for (uint32_t i = 0; i < cores; i++) {
        if (i == 0 || trib_tensor_is_used(op->tensor, i)) {
            op->cores[i].input_post.run = trib_device_input_arrived;
            trib_reactor_post(engine->cores[i].reactor, &op->cores[i].input_post);
        }
    }
    if (was_ahead) {
        op->device->is_over = true;
        trib_timer_stop(reactor, &op->device->grace);
        trib_op_core_done(op, reactor->owner);
    }
}

/* Nothing of an earlier operation is left in the staging memory of one that is alone, and no copy of higher priority waits. */
static uint64_t what_goes_ahead(const trib_op *op)
{
    const trib_engine *engine = op->engine;
    const trib_tensor *tensor = op->tensor;
    const bool goes_by_host =
        op->collective == TRIB_COLLECTIVE_DEVICE_ALL_REDUCE && !atomic_load(&engine->direct_logged);
    if (!goes_by_host || trib_engine_local_size(engine) > 1 || !op->spread || trib_engine_ops_in_flight(engine) > 1) {
        return 0;
    }
    const uint64_t most = AHEAD_COPY_BYTES / tensor->partition_bytes * tensor->partition_bytes;
    return tensor->bytes < most ? tensor->bytes : most;
}

void trib_device_op_begin(trib_op *op, void *mark)
{
    trib_engine *engine = op->engine;
    trib_device_op *device = op->device;
    device->ahead_bytes = mark == NULL ? what_goes_ahead(op) : 0;
    if (mark == NULL && device->ahead_bytes == 0) {
        atomic_store(&device->input, TRIB_INPUT_READY);
        return;
    }
    atomic_store(&device->input, TRIB_INPUT_AWAITED);
    atomic_fetch_add(&op->references, 1);
    atomic_fetch_add(&engine->device_jobs, 1);
    device->wait = (trib_device_job){.post.run = input_back,
                                     .reactor = engine->cores[0].reactor,
                                     .owner = op,
                                     .kind = TRIB_DEVICE_WAIT,
                                     .mark = mark};
    if (mark != NULL) {
        engine->env.device->submit(engine->device, &device->wait);
        return;
    }
    atomic_fetch_add(&op->cores_left, 1); /* the copy reads the caller's buffer */
    device->is_over = device->grace_extended = false;
    atomic_store(&op->tensor->ahead_round, op->round);
    device->wait.kind = TRIB_DEVICE_TO_HOST;
    device->wait.source = op->input;
    device->wait.target = op->tensor->device->staging;
    device->wait.bytes = device->ahead_bytes;
}

void trib_device_op_go_ahead(trib_op *op)
{
    op->engine->env.device->submit(op->engine->device, &op->device->wait);
}

void trib_device_input_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_op_core *op_core = (trib_op_core *)((char *)post - offsetof(trib_op_core, input_post));
    trib_op *op = op_core->op;
    trib_engine *engine = op->engine;
    trib_tensor *tensor = op->tensor;
    trib_tensor_core *mine = atomic_load(&tensor->placed) ? trib_tensor_core_of(core, tensor) : NULL;
    if (op_core->core == core && mine != NULL && mine->active == op_core) {
        if (atomic_load(&op->device->input) == TRIB_INPUT_FAILED) {
            trib_worker_abort_active(core, op_core);
        }
        for (uint32_t i = 0; i < mine->task_count && mine->active == op_core; i++) {
            trib_task *task = &mine->tasks[i];
            if (!task->settled && !task->failed && task->stage == 0) {
                trib_pipeline_resume(core, task); /* others began after the input had come, and did not wait */
            }
        }
    }
    if (mine != NULL) {
        trib_worker_start_next(core, tensor);
    }
    if (atomic_fetch_sub(&op->device->posts_left, 1) == 1) {
        trib_op_unref(op);
        atomic_fetch_sub(&engine->device_jobs, 1);
    }
}

void trib_device_op_end(trib_op *op)
{
    op->engine->env.device->gate_open(op->engine->device, &op->device->gate);
}
