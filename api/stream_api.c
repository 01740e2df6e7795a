/*
 * stream_api.c - trib_op_stream_wait: a stream of a GPU waits for an operation.
 *
 * A stream that waited for an end that has not been launched could keep it from being launched
 * (docs/decisions/0006-queues.md). So the calling thread waits until then.
 */
#include <sched.h>

#include "api/blocking.h"
#include "api/check.h"
#include "engine/device/device_task.h"

#define POLL_NS (50 * INT64_C(1000)) /* time for which a call that waits for a launch polls before it sleeps */

/* Even if the operation's completion has not been announced. Where all workers have to be through with it
 * (op_commit.h), this worker's cores are done before. */
static bool is_over(const trib_op *op)
{
    return atomic_load(&op->is_complete);
}

static bool is_launched(const trib_op *op, uint32_t launches)
{
    return atomic_load(&op->engine->launches) != launches || is_over(op);
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

static void sleep_until_launched(trib_op *op, uint32_t launches)
{
    trib_engine *engine = op->engine;
    atomic_store(&op->is_awaited, true);
    pthread_mutex_lock(&engine->mutex);
    while (!is_launched(op, launches)) {
        pthread_cond_wait(&engine->changed, &engine->mutex); /* bounded by the operation's deadline and the job's end */
    }
    pthread_mutex_unlock(&engine->mutex);
}

/* Waits until something has been launched or the operation is over. */
static trib_status wait_for_launch(trib_op *op, uint32_t launches, trib_error *error)
{
    trib_error here = {.status = TRIB_OK};
    const trib_status status = trib_api_check_may_block(op->engine, &here);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "%s, and the call waits until then; %s",
                              atomic_load(&op->engine->shrinks) ? "not all workers are through with the operation"
                                                                : "the operation's end has not been launched",
                              here.text);
    }
    if (!is_launched_soon(op, launches)) {
        sleep_until_launched(op, launches);
    }
    return TRIB_OK;
}

static trib_status stream_wait(trib_op *op, void *stream, trib_error *error)
{
    if (!op->tensor->on_device) {
        return trib_error_set(error, TRIB_INVALID, "op must be an operation on a TRIB_TENSOR_DEVICE tensor");
    }
    trib_engine *engine = op->engine;
    for (;;) {
        const uint32_t launches = atomic_load(&engine->launches);
        trib_status status = engine->env.device->stream_wait(engine->device, stream, &op->device->end, error);
        if (status != TRIB_BUSY || is_over(op)) {
            return status == TRIB_BUSY ? TRIB_OK : status;
        }
        status = wait_for_launch(op, launches, error);
        if (status != TRIB_OK) {
            return status;
        }
    }
}

trib_status trib_op_stream_wait(trib_op *handle, void *stream, trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error); /* another thread may give it back meanwhile */
    if (status == TRIB_OK) {
        status = stream_wait(op, stream, error);
        trib_op_unref(op);
    }
    return status;
}
