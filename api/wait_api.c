/*
 * wait_api.c - the entry points that ask or wait for the ends of operations, cancel them, and give handles back.
 *
 * A thread that waits marks an operation as awaited, and its end wakes the thread. One that waits for all of a list
 * marks the last one that is not complete: when that is, most of the others are, too. In TRIB_MODE_QUEUE a thread that
 * waits also dispatches.
 */
#include <errno.h>

#include "api/blocking.h"
#include "api/check.h"
#include "engine/base/handle.h"

trib_status trib_op_status(const trib_op *handle)
{
    trib_op *op = NULL;
    const trib_status status = trib_api_find_op(handle, &op, NULL, NULL);
    if (status != TRIB_OK) {
        return status;
    }
    return op == NULL ? TRIB_OK : (trib_status)atomic_load(&op->status);
}

trib_status trib_op_get_result(const trib_op *handle, trib_result *result, trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (result == NULL) {
        status = trib_error_set(error, TRIB_INVALID, "result is NULL");
    } else if (atomic_load(&op->status) == TRIB_PENDING) {
        status = TRIB_PENDING;
    } else {
        trib_op_read_result(op, result);
    }
    trib_op_unref(op);
    return status;
}

/* Another thread may give the operation back meanwhile, or start it again: its text is gone then. */
static trib_status fail_as(const trib_op *handle, trib_status how, trib_error *error)
{
    trib_op *op = NULL;
    if (trib_api_hold_op(handle, &op, NULL) != TRIB_OK) {
        return trib_error_set(error, how, "%s", trib_status_text(how));
    }
    const bool is_same = how != TRIB_PENDING && (trib_status)atomic_load(&op->status) == how;
    trib_error_set(error, how, "%s", is_same ? op->text : trib_status_text(how));
    trib_op_unref(op);
    return how;
}

/* ---- Waiting ---- */

typedef struct waited_list {
    trib_op *const *ops;
    size_t count, least;
    size_t last_open; /* if all are awaited: one more than the index of the last one that may be open */
} waited_list;

/* True if the operation is not complete. A handle that was given back while this thread waits counts as complete. */
static bool is_open(const trib_op *handle, trib_op **op_out)
{
    trib_op *op = NULL;
    *op_out = NULL;
    if (trib_api_find_op(handle, &op, NULL, NULL) != TRIB_OK || op == NULL) {
        return false;
    }
    *op_out = op;
    return atomic_load(&op->status) == TRIB_PENDING;
}

static bool is_enough(waited_list *list)
{
    trib_op *op;
    if (list->least == list->count) {
        while (list->last_open > 0 && !is_open(list->ops[list->last_open - 1], &op)) {
            list->last_open--;
        }
        return list->last_open == 0;
    }
    size_t complete = 0;
    for (size_t i = 0; i < list->count && complete < list->least; i++) {
        complete += !is_open(list->ops[i], &op);
    }
    return complete >= list->least;
}

/* Marks the operations whose end is to wake this thread. A mark stays until the operation's end, which then wakes all
 * waiting threads. */
static void mark_awaited(const waited_list *list)
{
    trib_op *op;
    const bool waits_for_all = list->least == list->count;
    for (size_t i = waits_for_all ? list->last_open - 1 : 0; i < (waits_for_all ? list->last_open : list->count); i++) {
        (void)is_open(list->ops[i], &op);
        if (op != NULL) {
            atomic_store(&op->is_awaited, true);
        }
    }
}

/* Sleeps until an awaited operation is complete, or there is something to dispatch. ETIMEDOUT: at the deadline. */
static int sleep_once(trib_engine *engine, waited_list *list, const struct timespec *deadline)
{
    int code = 0;
    pthread_mutex_lock(&engine->mutex);
    mark_awaited(list);
    waited_list now = *list;
    if (!is_enough(&now) && now.last_open == list->last_open &&
        (engine->done_head == NULL || atomic_load(&engine->dispatcher) != TRIB_NO_THREAD)) {
        code = deadline == NULL ? pthread_cond_wait(&engine->changed, &engine->mutex)
                                : pthread_cond_timedwait(&engine->changed, &engine->mutex, deadline);
    }
    pthread_mutex_unlock(&engine->mutex);
    return code;
}

/* Returns true if enough of them are complete, false at the deadline. */
static bool wait_until_enough(trib_engine *engine, waited_list *list, int64_t timeout_ns)
{
    const struct timespec deadline = trib_api_deadline_in(timeout_ns < 0 ? 0 : timeout_ns);
    int code = 0;
    atomic_fetch_add(&engine->waiters, 1);
    while (!is_enough(list) && code != ETIMEDOUT) {
        if (trib_engine_dispatch(engine, 0) > 0) { /* a steady flow of completions must not outlast the deadline */
            code = timeout_ns >= 0 && trib_api_left_ns(&deadline) <= 0 ? ETIMEDOUT : 0;
        } else {
            code = sleep_once(engine, list, timeout_ns < 0 ? NULL : &deadline);
        }
    }
    atomic_fetch_sub(&engine->waiters, 1);
    return is_enough(list);
}

static trib_status fail_late(const trib_op *handle, trib_error *error)
{
    trib_op *op = NULL;
    if (trib_api_hold_op(handle, &op, NULL) != TRIB_OK) {
        return trib_error_set(error, TRIB_TIMEOUT, "not complete yet");
    }
    trib_error_set(error, TRIB_TIMEOUT, "tensor \"%s\": not complete yet", op->tensor->name);
    trib_op_unref(op);
    return TRIB_TIMEOUT;
}

trib_status trib_op_wait(trib_op *handle, int64_t timeout_ns, trib_error *error)
{
    trib_op *op = NULL;
    trib_prepared *prepared = NULL;
    trib_status status = trib_api_find_op(handle, &op, &prepared, error);
    if (status == TRIB_OK) {
        status = trib_api_check_may_block(op != NULL ? op->engine : prepared->engine, error);
    }
    if (status != TRIB_OK || op == NULL) {
        return status;
    }
    waited_list list = {.ops = &handle, .count = 1, .least = 1, .last_open = 1};
    if (!wait_until_enough(op->engine, &list, timeout_ns)) {
        return fail_late(handle, error);
    }
    /* Another thread may have given it back meanwhile, or its callback may have started it again. */
    status = trib_api_find_op(handle, &op, NULL, error);
    if (status != TRIB_OK) {
        return status;
    }
    status = (trib_status)atomic_load(&op->status);
    return status == TRIB_OK ? TRIB_OK : fail_as(handle, status, error);
}

/* Checks all handles. *engine_out is NULL if the list is empty. */
static trib_status check_list(trib_op *const *ops, size_t count, trib_engine **engine_out, trib_error *error)
{
    *engine_out = NULL;
    for (size_t i = 0; i < count; i++) {
        trib_op *op = NULL;
        trib_prepared *prepared = NULL;
        trib_error why = {.status = TRIB_OK};
        const trib_status status = trib_api_find_op(ops[i], &op, &prepared, &why);
        if (status != TRIB_OK) {
            return trib_error_set(error, status, "operation %zu of the list: %.340s", i, why.text);
        }
        trib_engine *engine = op != NULL ? op->engine : prepared->engine;
        if (*engine_out != NULL && engine != *engine_out) {
            return trib_error_set(error, TRIB_INVALID, "operation %zu of the list is one of another engine", i);
        }
        *engine_out = engine;
    }
    return TRIB_OK;
}

/* Lists the complete operations. Returns the status of the first one that has failed, and its text. */
static trib_status report(trib_op *const *ops, size_t count, size_t *done_out, size_t *done_count_out,
                          trib_error *error)
{
    size_t done = 0;
    trib_status status = TRIB_OK;
    for (size_t i = 0; i < count; i++) {
        trib_op *op = NULL;
        if (is_open(ops[i], &op)) {
            continue;
        }
        if (done_out != NULL) {
            done_out[done] = i;
        }
        done++;
        const trib_status how = op == NULL ? TRIB_OK : (trib_status)atomic_load(&op->status);
        if (status == TRIB_OK && how != TRIB_OK) {
            status = fail_as(ops[i], how, error);
        }
    }
    if (done_count_out != NULL) {
        *done_count_out = done;
    }
    return status;
}

trib_status trib_op_wait_some(trib_op *const *ops, size_t count, size_t least, int64_t timeout_ns, size_t *done_out,
                              size_t *done_count_out, trib_error *error)
{
    trib_engine *engine = NULL;
    if (done_count_out != NULL) {
        *done_count_out = 0;
    }
    trib_error_clear(error);
    if (least > count || (ops == NULL && count > 0)) {
        return trib_error_set(error, TRIB_INVALID,
                              ops == NULL ? "ops is NULL"
                                          : "least is %zu, of %zu operations: at most all can be waited for",
                              least, count);
    }
    trib_status status = check_list(ops, count, &engine, error);
    if (status == TRIB_OK && least > 0) {
        status = trib_api_check_may_block(engine, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    waited_list list = {.ops = ops, .count = count, .least = least, .last_open = count};
    const bool is_there = least == 0 || wait_until_enough(engine, &list, timeout_ns);
    status = report(ops, count, done_out, done_count_out, error);
    return is_there
               ? status
               : trib_error_set(error, TRIB_TIMEOUT, "fewer than %zu of %zu operations are complete", least, count);
}

/* ---- Giving up and giving back ---- */

void trib_op_cancel(trib_op *handle)
{
    trib_op *op = NULL;
    if (trib_api_hold_op(handle, &op, NULL) == TRIB_OK) {
        atomic_store(&op->is_cancelled, true);
        trib_op_give_up(op);
        trib_op_unref(op);
    }
}

void trib_op_release(trib_op *handle)
{
    trib_op *op = NULL;
    trib_prepared *prepared = NULL;
    /* Of several calls with one handle, one closes it. */
    if (trib_api_find_op(handle, &op, &prepared, NULL) == TRIB_OK && trib_handle_close((uintptr_t)handle)) {
        if (prepared != NULL) {
            trib_prepared_give_back(prepared);
        } else {
            trib_op_give_back(op);
        }
    }
}
