/* op_prepared.c - operations that are prepared once and started again and again (op_submit.h). */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/handle.h"
#include "engine/worker/op_submit.h"

trib_op *trib_prepared_current(const trib_prepared *prepared)
{
    const uintptr_t handle = atomic_load(&prepared->current);
    return handle == 0 ? NULL : trib_handle_find(handle, TRIB_HANDLE_OP);
}

trib_status trib_op_prepare_request(trib_engine *engine, const trib_request *request, trib_op **handle_out,
                                    trib_error *error)
{
    trib_status status = TRIB_OK;
    pthread_mutex_lock(&engine->mutex);
    trib_prepared *prepared = engine->free_prepared;
    if (prepared != NULL) {
        engine->free_prepared = prepared->next;
    } else {
        prepared = calloc(1, sizeof *prepared);
        const uint32_t place = prepared == NULL ? TRIB_NO_PLACE : trib_handle_take_place(prepared);
        if (place == TRIB_NO_PLACE) {
            free(prepared);
            pthread_mutex_unlock(&engine->mutex);
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an operation");
        }
        prepared->place = place;
        prepared->engine = engine;
        prepared->made_next = engine->all_prepared;
        engine->all_prepared = prepared;
    }
    status = trib_op_check_tensor(request, error);
    if (status == TRIB_OK) {
        prepared->tensor = request->tensor;
        prepared->tensor_handle = request->tensor_handle;
        prepared->collective = request->collective;
        prepared->params = *request->params;
        prepared->is_claimed = false;
        atomic_store(&prepared->current, 0);
        prepared->tensor->prepared++;
        /* NOLINTNEXTLINE(performance-no-int-to-ptr): a handle (handle.h) */
        *handle_out = (trib_op *)trib_handle_open(prepared->place, TRIB_HANDLE_PREPARED);
    } else {
        prepared->next = engine->free_prepared;
        engine->free_prepared = prepared;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

trib_request trib_prepared_request(trib_prepared *prepared, uintptr_t handle, uint32_t step)
{
    return (trib_request){.params = &prepared->params,
                          .collective = prepared->collective,
                          .step = step,
                          .tensor = prepared->tensor,
                          .tensor_handle = prepared->tensor_handle,
                          .prepared = prepared,
                          .prepared_handle = handle};
}

void trib_prepared_give_back(trib_prepared *prepared)
{
    trib_engine *engine = prepared->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_op *last = trib_prepared_current(prepared);
    trib_assert(prepared->tensor->prepared > 0);
    prepared->tensor->prepared--;
    prepared->next = engine->free_prepared;
    engine->free_prepared = prepared;
    pthread_mutex_unlock(&engine->mutex);
    if (last != NULL && trib_handle_close(last->handle)) {
        trib_op_give_back(last);
    }
}

void trib_prepared_free_all(trib_engine *engine)
{
    while (engine->all_prepared != NULL) {
        trib_prepared *prepared = engine->all_prepared;
        engine->all_prepared = prepared->made_next;
        trib_handle_give_place(prepared->place);
        free(prepared);
    }
}
