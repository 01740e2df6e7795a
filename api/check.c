/* check.c - see check.h. */
#include "api/check.h"

#include "engine/base/fork.h"
#include "engine/base/handle.h"

bool trib_api_is_usable(const trib_engine *engine)
{
    return trib_api_check_engine(engine, NULL) == TRIB_OK;
}

trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error)
{
    trib_error_clear(error);
    if (engine == NULL) {
        return trib_error_set(error, TRIB_INVALID, "engine is NULL");
    }
    const uint64_t magic = atomic_load_explicit(&engine->magic, memory_order_relaxed);
    if (magic != TRIB_ENGINE_ALIVE) {
        return trib_error_set(error, TRIB_INVALID,
                              magic == TRIB_ENGINE_DESTROYED
                                  ? "the engine has been destroyed (trib_engine_destroy)"
                                  : "engine is not what trib_engine_create returned: the pointer is wrong, or memory "
                                    "was overwritten");
    }
    if (engine->process != trib_fork_process()) {
        return trib_error_set(error, TRIB_STATE,
                              "this process was forked from the one that created the engine, which works only there");
    }
    const trib_reactor *reactor = engine->reactors[0].reactor; /* NULL: a callback during creation */
    if (reactor != NULL && atomic_load_explicit(&reactor->lost, memory_order_relaxed)) {
        return trib_error_set(
            error, TRIB_STATE,
            "the engine's loop (trib_config.loop) was destroyed before the engine: it must outlive it");
    }
    return TRIB_OK;
}

trib_status trib_api_find_op(const trib_op *handle, trib_op **op_out, trib_prepared **prepared_out, trib_error *error)
{
    trib_error_clear(error);
    trib_prepared *prepared = trib_handle_find((uintptr_t)handle, TRIB_HANDLE_PREPARED);
    const uintptr_t current = prepared == NULL ? (uintptr_t)handle : atomic_load(&prepared->current);
    trib_op *op = trib_handle_find(current, TRIB_HANDLE_OP);
    if (op == NULL && prepared == NULL) {
        return trib_error_set(error, TRIB_INVALID, "op is %s",
                              handle == NULL ? "NULL" : "not a handle of an operation, or was given back before");
    }
    trib_status status = trib_api_check_engine(op != NULL ? op->engine : prepared->engine, error);
    if (status == TRIB_OK) {
        *op_out = op;
        if (prepared_out != NULL) {
            *prepared_out = prepared;
        }
    }
    return status;
}

trib_status trib_api_hold_op(const trib_op *handle, trib_op **op_out, trib_error *error)
{
    trib_op *op = NULL, *again = NULL;
    trib_status status = trib_api_find_op(handle, &op, NULL, error);
    if (status != TRIB_OK) {
        return status;
    }
    const bool is_held = op != NULL && trib_op_try_ref(op);
    /* The slot may have got another operation before it was held. */
    status = is_held ? trib_api_find_op(handle, &again, NULL, error) : TRIB_OK;
    if (is_held && status == TRIB_OK && again == op) {
        *op_out = op;
        return TRIB_OK;
    }
    if (is_held) {
        trib_op_unref(op);
    }
    return status != TRIB_OK ? status
                             : trib_error_set(error, TRIB_STATE,
                                              "the operation has not succeeded: it was not started, "
                                              "or another thread is starting it or giving it back");
}

trib_status trib_api_find_tensor(const trib_tensor *handle, trib_tensor **tensor_out, trib_error *error)
{
    trib_error_clear(error);
    trib_tensor *tensor = trib_handle_find((uintptr_t)handle, TRIB_HANDLE_TENSOR);
    if (tensor == NULL) {
        return trib_error_set(error, TRIB_INVALID, "tensor is %s",
                              handle == NULL ? "NULL" : "not a handle of a tensor, or was released before");
    }
    const trib_status status = trib_api_check_engine(tensor->engine, error);
    if (status == TRIB_OK) {
        *tensor_out = tensor;
    }
    return status;
}
