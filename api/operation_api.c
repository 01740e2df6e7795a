/*
 * operation_api.c - the entry points about tensors and operations: check the arguments, the state and the thread, then
 * forward. Nothing else.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "api/blocking.h"
#include "api/check.h"
#include "engine/device/device_task.h"

#define POLL_NS (50 * INT64_C(1000)) /* a call that waits for a launch polls so long before it sleeps */

/* ---- Tensors ---- */

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
    if (desc->struct_size != sizeof *desc) {
        return trib_error_set(error, TRIB_INVALID,
                              "trib_tensor_desc has struct_size %u, this library's has %zu: call "
                              "trib_tensor_desc_init and build against the same release",
                              desc->struct_size, sizeof *desc);
    }
    if (desc->name == NULL) {
        return trib_error_set(error, TRIB_INVALID,
                              "desc->name is NULL: a tensor needs a name, the same on all workers");
    }
    size_t length = strnlen(desc->name, TRIB_TENSOR_NAME_MAX + 1);
    if (length == 0 || length > TRIB_TENSOR_NAME_MAX || strncmp(desc->name, "__", 2) == 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor name \"%.40s\": 1 to %d bytes, not starting with \"__\"",
                              desc->name, TRIB_TENSOR_NAME_MAX);
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)desc->name[i] < 0x20 || desc->name[i] == 0x7f) {
            return trib_error_set(error, TRIB_INVALID, "a tensor name holds the control byte 0x%02x",
                                  (unsigned char)desc->name[i]);
        }
    }
    size_t element = trib_dtype_size(desc->dtype);
    if (element == 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown dtype %d", desc->name, (int)desc->dtype);
    }
    if (desc->count > TRIB_TENSOR_BYTES_MAX / element) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": %llu elements of %zu bytes: at most 2^44 bytes",
                              desc->name, (unsigned long long)desc->count, element);
    }
    if ((desc->flags & ~TRIB_TENSOR_DEVICE) != 0) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown flags 0x%x", desc->name, desc->flags);
    }
    for (size_t i = 0; i < sizeof desc->reserved / sizeof desc->reserved[0]; i++) {
        if (desc->reserved[i] != 0) {
            return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": a reserved field is not 0", desc->name);
        }
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
    status = trib_engine_check_open(engine, error);
    return status != TRIB_OK ? status
                             : trib_tensor_find_or_add(engine, desc->name, desc->dtype, desc->count, desc->priority,
                                                       desc->flags, tensor_out, error);
}

/* ---- Operations ---- */

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
    if (params->flags != 0) {
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

static trib_status check_buffers(const trib_op_params *params, bool needs_input, bool needs_output, trib_error *error)
{
    const trib_tensor *tensor = params->tensor;
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

trib_status trib_push_pull(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_params(engine, params, op_out, error);
    if (status == TRIB_OK) {
        status = check_tensor(engine, params, error);
    }
    if (status == TRIB_OK && (unsigned)params->reduce >= TRIB_REDUCE_COUNT) {
        status = trib_error_set(error, TRIB_INVALID, "tensor \"%s\": unknown reduction %d", params->tensor->name,
                                (int)params->reduce);
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

trib_status trib_broadcast(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_status status = check_params(engine, params, op_out, error);
    if (status == TRIB_OK) {
        status = check_tensor(engine, params, error);
    }
    if (status == TRIB_OK && (params->root < 0 || params->root >= engine->config.worker_count)) {
        status = trib_error_set(error, TRIB_INVALID, "tensor \"%s\": root %d is not a rank below %d",
                                params->tensor->name, params->root, engine->config.worker_count);
    }
    if (status == TRIB_OK) {
        status = check_stream(params, error);
    }
    if (status == TRIB_OK) {
        const bool is_root = params->root == engine->config.rank;
        status = check_buffers(params, is_root, !is_root, error);
    }
    return status != TRIB_OK ? status
                             : trib_op_submit(engine, params, TRIB_COLLECTIVE_BROADCAST, params->tensor, op_out, error);
}

trib_status trib_barrier(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_op_params mine;
    trib_op_params_init(&mine, sizeof mine);
    trib_status status = check_params(engine, params == NULL ? &mine : params, op_out, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (params != NULL) {
        mine.timeout_ns = params->timeout_ns;
        mine.done_cb = params->done_cb;
        mine.user = params->user;
    }
    return trib_op_submit(engine, &mine, TRIB_COLLECTIVE_ALL_REDUCE, engine->barrier_tensor, op_out, error);
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
