/* check.c - see check.h. */
#include "api/check.h"

#include "engine/base/fork.h"

bool trib_api_is_usable(const trib_engine *engine)
{
    return engine != NULL && engine->process == trib_fork_process();
}

trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error)
{
    if (engine == NULL) {
        return trib_error_set(error, TRIB_INVALID, "engine is NULL");
    }
    if (!trib_api_is_usable(engine)) {
        return trib_error_set(error, TRIB_STATE,
                              "this process was forked from the one that created the engine, which works only there");
    }
    return TRIB_OK;
}

trib_status trib_api_check_op(const trib_op *op, trib_error *error)
{
    return op == NULL ? trib_error_set(error, TRIB_INVALID, "op is NULL") : trib_api_check_engine(op->engine, error);
}
