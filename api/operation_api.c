/*
 * operation_api.c - the entry points that submit operations: check the arguments and the state, then forward. Nothing
 * else.
 */
#include <stdlib.h>

#include "api/check.h"
#include "engine/base/handle.h"

/* ---- One operation ---- */

/* The caller wants no handle. */
static trib_status check_handle(const trib_op_params *params, trib_error *error)
{
    return (params->flags & TRIB_OP_ALLOCATE_OUTPUT) == 0
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "op_out is NULL: only the handle tells where the output is");
}

trib_status trib_api_submit(trib_engine *engine, const trib_op_params *params, trib_op_kind kind, trib_op **op_out,
                            trib_error *error)
{
    trib_request request;
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_worker(engine, error);
    if (status == TRIB_OK) {
        status = trib_api_read_params(engine, params, kind, &request, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    request.handle_out = op_out;
    status = op_out == NULL ? check_handle(params, error) : TRIB_OK;
    return status == TRIB_OK ? trib_ops_submit(engine, &request, 1, error) : status;
}

/* ---- Many operations ---- */

static trib_status take_requests(size_t count, trib_request **requests_out, trib_error *error)
{
    trib_request *requests = calloc(count > 0 ? count : 1, sizeof *requests);
    if (requests == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %zu operations", count);
    }
    *requests_out = requests;
    return TRIB_OK;
}

/* Says which operation of a list is at fault. */
static trib_status fail_at(size_t index, trib_status status, const trib_error *why, trib_error *error)
{
    return trib_error_set(error, status, "operation %zu of the list: %.340s", index, why->text);
}

trib_status trib_submit_batch(trib_engine *engine, const trib_op_params *params, size_t count, trib_op **ops_out,
                              trib_error *error)
{
    trib_request *requests = NULL;
    for (size_t i = 0; i < count && ops_out != NULL; i++) {
        ops_out[i] = NULL;
    }
    trib_status status = trib_api_check_worker(engine, error);
    if (status == TRIB_OK && params == NULL && count > 0) {
        status = trib_error_set(error, TRIB_INVALID, "params is NULL");
    }
    if (status == TRIB_OK) {
        status = take_requests(count, &requests, error);
    }
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        trib_error why = {.status = TRIB_OK};
        status = trib_api_read_params(engine, &params[i], params[i].kind, &requests[i], &why);
        if (status == TRIB_OK && ops_out == NULL) {
            status = check_handle(&params[i], &why);
        }
        requests[i].handle_out = ops_out != NULL ? &ops_out[i] : NULL;
        if (status != TRIB_OK) {
            status = fail_at(i, status, &why, error);
        }
    }
    if (status == TRIB_OK) {
        status = trib_ops_submit(engine, requests, count, error);
    }
    free(requests);
    return status;
}

/* ---- Prepared operations ---- */

trib_status trib_op_prepare(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_request request;
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_worker(engine, error);
    if (status == TRIB_OK && op_out == NULL) {
        status = trib_error_set(error, TRIB_INVALID, "op_out is NULL");
    }
    if (status == TRIB_OK) {
        status =
            trib_api_read_params(engine, params, params == NULL ? TRIB_OP_PUSH_PULL : params->kind, &request, error);
    }
    if (status == TRIB_OK && request.tensor == NULL) {
        status = trib_error_set(error, TRIB_INVALID, "TRIB_OP_ONCE: such an operation is not prepared");
    }
    return status == TRIB_OK ? trib_op_prepare_request(engine, &request, op_out, error) : status;
}

/* The handle of another thread's may be given back meanwhile: whoever starts it looks it up again. */
static trib_status find_prepared(const trib_op *handle, const trib_engine *engine, uint32_t step, trib_request *request,
                                 trib_error *error)
{
    trib_op *op = NULL;
    trib_prepared *prepared = NULL;
    const trib_status status = trib_api_find_op(handle, &op, &prepared, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (prepared == NULL || engine != prepared->engine) {
        return trib_error_set(error, TRIB_INVALID, "op is %s",
                              prepared == NULL ? "not one that trib_op_prepare has made" : "one of another engine");
    }
    *request = trib_prepared_request(prepared, (uintptr_t)handle, step);
    return TRIB_OK;
}

trib_status trib_op_start(trib_op *const *ops, size_t count, uint32_t step, trib_error *error)
{
    trib_request one, *requests = &one;
    trib_error_clear(error);
    if (ops == NULL && count > 0) {
        return trib_error_set(error, TRIB_INVALID, "ops is NULL");
    }
    trib_prepared *first = count > 0 ? trib_handle_find((uintptr_t)ops[0], TRIB_HANDLE_PREPARED) : NULL;
    trib_engine *engine = first == NULL ? NULL : first->engine;
    trib_status status = engine == NULL ? TRIB_OK : trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    status = count == 1 ? TRIB_OK : take_requests(count, &requests, error);
    if (engine != NULL) {
        pthread_mutex_lock(&engine->mutex);
    }
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        trib_error why = {.status = TRIB_OK};
        status = find_prepared(ops[i], engine, step, &requests[i], &why);
        if (status != TRIB_OK) {
            status = fail_at(i, status, &why, error);
        }
    }
    if (engine != NULL) {
        pthread_mutex_unlock(&engine->mutex);
    }
    if (status == TRIB_OK && count > 0) {
        status = trib_ops_submit(engine, requests, count, error);
    }
    if (requests != &one) {
        free(requests);
    }
    return status;
}
