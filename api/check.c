/* check.c - see check.h. */
#include "api/check.h"

#include "engine/base/fork.h"

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

trib_status trib_api_check_op(const trib_op *op, trib_error *error)
{
    trib_error_clear(error);
    return op == NULL ? trib_error_set(error, TRIB_INVALID, "op is NULL") : trib_api_check_engine(op->engine, error);
}
