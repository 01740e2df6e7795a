/* memory_api.c - the entry points about memory: check the arguments and the thread, then forward. */
#include <errno.h>

#include "api/check.h"
#include "engine/engine.h"
#include "engine/worker/op.h"

#define PAGE ((size_t)4096)

trib_status trib_alloc(trib_engine *engine, size_t size, void **memory_out)
{
    trib_status status = trib_api_check_engine(engine, NULL);
    if (memory_out != NULL) {
        *memory_out = NULL;
    }
    if (status != TRIB_OK || size == 0 || memory_out == NULL) {
        return status != TRIB_OK ? status : TRIB_INVALID;
    }
    /* The arena aligns blocks of at least a page to pages. */
    void *block = engine->env.memory_alloc_blocking(engine->env.memory, size < PAGE ? PAGE : size);
    if (block == NULL) {
        char why[TRIB_REASON_MAX];
        trib_log(&engine->logger, TRIB_LOG_ERROR, "trib_alloc: no memory for %zu bytes: %s", size,
                 trib_log_reason(ENOMEM, why));
        return TRIB_NO_MEMORY;
    }
    *memory_out = block;
    return TRIB_OK;
}

void trib_free(trib_engine *engine, void *memory)
{
    if (memory == NULL || !trib_api_is_usable(engine)) {
        return;
    }
    const trib_env *env = &engine->env;
    if (env->memory_has != NULL && !env->memory_has(env->memory, memory)) {
        trib_log(&engine->logger, TRIB_LOG_ERROR,
                 "trib_free: %p is no memory of this engine's trib_alloc, or was freed before; nothing is done",
                 memory);
        return;
    }
    env->memory_free(env->memory, memory);
}

/* On the caller's own loop the caller may wait where it likes. */
static trib_status check_memory(const trib_engine *engine, const void *memory, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (memory == NULL) {
        return trib_error_set(error, TRIB_INVALID, "memory is NULL");
    }
    if (engine->config.mode != TRIB_MODE_ATTACHED && trib_engine_on_thread(engine)) {
        return trib_error_set(error, TRIB_WRONG_THREAD, "memory is not registered from a callback: it takes too long");
    }
    return TRIB_OK;
}

trib_status trib_memory_register(trib_engine *engine, void *memory, size_t size, trib_error *error)
{
    trib_error why = {.text = ""};
    trib_status status = check_memory(engine, memory, error);
    if (status == TRIB_OK && size == 0) {
        status = trib_error_set(error, TRIB_INVALID, "memory at %p: its size is 0", memory);
    }
    if (status != TRIB_OK || engine->env.memory_adopt == NULL) {
        return status;
    }
    status = engine->env.memory_adopt(engine->env.memory, memory, size, &why);
    const trib_transport_ops *transport = engine->env.transport;
    if (transport->notifies_devices(engine->env.transport_context)) { /* else a user could see no effect */
        trib_log(&engine->logger, status == TRIB_OK ? TRIB_LOG_INFO : TRIB_LOG_WARN, "%zu bytes at %p are %s%s", size,
                 memory,
                 status == TRIB_OK ? "registered" : "not registered, so payloads in them are copied: ", why.text);
    }
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "%s", why.text);
}

trib_status trib_memory_unregister(trib_engine *engine, void *memory, trib_error *error)
{
    trib_status status = check_memory(engine, memory, error);
    if (status != TRIB_OK || engine->env.memory_disown == NULL) {
        return status;
    }
    size_t size = engine->env.memory_adopted(engine->env.memory, memory);
    const trib_tensor *user = size > 0 ? trib_op_find_user(engine, memory, size) : NULL;
    if (user != NULL) {
        return trib_error_set(error, TRIB_STATE, "tensor \"%s\": an operation in flight uses the memory at %p",
                              user->name, memory);
    }
    return engine->env.memory_disown(engine->env.memory, memory) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_INVALID, "no memory is registered that begins at %p", memory);
}
