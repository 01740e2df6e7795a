/* stream_api.c - trib_op_stream_wait: a stream of a GPU waits for an operation. */
#include <sched.h>

#include "api/blocking.h"
#include "api/check.h"
#include "engine/device/device_task.h"

#define POLL_NS (50 * INT64_C(1000)) /* a call that waits for a launch polls so long before it sleeps */

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
    atomic_store(&op->is_awaited, true);
    atomic_fetch_add(&engine->waiters, 1); /* TRIB_MODE_QUEUE: it is over before somebody dispatches it */
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

trib_status trib_op_stream_wait(trib_op *handle, void *stream, trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_find_op(handle, &op, NULL, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (op == NULL) {
        return trib_error_set(error, TRIB_STATE, "op is prepared and was never started");
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
