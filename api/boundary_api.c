/* boundary_api.c - the entry points of boundaries between operations: check the arguments, then forward. */
#include "api/check.h"
#include "engine/worker/boundary.h"

static trib_status check_params(const trib_op_params *params, trib_error *error)
{
    return params->group == NULL ? TRIB_OK
                                 : trib_error_set(error, TRIB_UNSUPPORTED,
                                                  "a boundary is one of all workers: params.group has to be NULL");
}

trib_status trib_checkpoint(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error)
{
    trib_op_params mine;
    trib_op_params_init(&mine, sizeof mine);
    if (op_out != NULL) {
        *op_out = NULL;
    }
    trib_status status = trib_api_check_plain(engine, params == NULL ? &mine : params, "a checkpoint", error);
    status = status == TRIB_OK && params != NULL ? check_params(params, error) : status;
    if (status != TRIB_OK) {
        return status;
    }
    if (params != NULL) {
        mine.timeout_ns = params->timeout_ns;
        mine.step = params->step;
        mine.done_cb = params->done_cb;
        mine.user = params->user;
    }
    mine.reduce = TRIB_MAX;
    mine.input = engine->boundaries.own;
    mine.output = engine->boundaries.all;
    const trib_tensor_desc desc = {.name = TRIB_BOUNDARY_NAME,
                                   .dtype = TRIB_UINT64,
                                   .count = TRIB_BOUNDARY_ELEMENTS,
                                   .priority = INT32_MAX,
                                   .layout = TRIB_WHOLE,
                                   .quorum = TRIB_QUORUM_ALL};
    trib_request request = {.params = &mine,
                            .collective = TRIB_COLLECTIVE_ALL_REDUCE,
                            .step = mine.step,
                            .is_boundary = true,
                            .handle_out = op_out};
    pthread_mutex_lock(&engine->once_mutex); /* the tensor is of this epoch */
    status = trib_tensor_find_or_add(engine, &desc, &request.tensor, NULL, error);
    status = status == TRIB_OK ? trib_ops_submit(engine, &request, 1, error) : status;
    pthread_mutex_unlock(&engine->once_mutex);
    return status;
}

trib_status trib_op_boundary(const trib_op *handle, trib_boundary *boundary, trib_error *error)
{
    trib_op *op = NULL;
    trib_status status = trib_api_hold_op(handle, &op, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (boundary == NULL || boundary->struct_size != sizeof *boundary) {
        status = trib_error_set(error, TRIB_INVALID, "boundary is NULL, or its struct_size is not its size");
    } else if (!op->is_boundary) {
        status = trib_error_set(error, TRIB_INVALID, "the operation is not one of trib_checkpoint");
    } else if (!atomic_load(&op->is_over) || atomic_load(&op->claim) != 0) { /* its callback may ask, too */
        status = trib_error_set(error, TRIB_STATE, "the operation has not succeeded");
    } else {
        *boundary = (trib_boundary){.struct_size = sizeof *boundary,
                                    .epoch = trib_epoch_number(op->roster->epoch),
                                    .number = op->boundary_number,
                                    .operations = op->boundary_operations,
                                    .step = op->step,
                                    .worker_count = (int32_t)op->contributors};
    }
    trib_op_unref(op);
    return status;
}

trib_status trib_tensor_rounds(const trib_tensor *handle, uint32_t *rounds_out, trib_error *error)
{
    trib_tensor *tensor = NULL;
    const trib_status status = trib_api_find_tensor(handle, &tensor, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (rounds_out == NULL) {
        return trib_error_set(error, TRIB_INVALID, "rounds_out is NULL");
    }
    pthread_mutex_lock(&tensor->engine->mutex);
    *rounds_out = tensor->rounds_before;
    pthread_mutex_unlock(&tensor->engine->mutex);
    return TRIB_OK;
}
