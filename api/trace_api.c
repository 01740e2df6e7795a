/* trace_api.c - the entry points for traces: check the arguments, then forward to the tracer (engine/tracer). */
#include "api/check.h"
#include "engine/tracer/tracer.h"

static trib_status check_arguments(const trib_engine *engine, uint64_t bytes, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (bytes > TRIB_TRACE_BYTES_MAX) {
        return trib_error_set(error, TRIB_INVALID, "bytes %llu: at most %llu for a trace", (unsigned long long)bytes,
                              (unsigned long long)TRIB_TRACE_BYTES_MAX);
    }
    return TRIB_OK;
}

trib_status trib_trace_start(trib_engine *engine, uint64_t bytes, trib_error *error)
{
    trib_status status = check_arguments(engine, bytes, error);
    return status == TRIB_OK ? trib_tracer_start(engine, bytes, error) : status;
}

void trib_trace_stop(trib_engine *engine)
{
    if (trib_api_is_usable(engine)) {
        trib_tracer_stop(engine);
    }
}

trib_status trib_trace_write(trib_engine *engine, const char *path, trib_error *error)
{
    trib_status status = check_arguments(engine, 0, error);
    if (status == TRIB_OK && (path == NULL || path[0] == '\0')) {
        status = trib_error_set(error, TRIB_INVALID, "path is %s", path == NULL ? "NULL" : "empty");
    }
    status = status == TRIB_OK ? trib_trace_check_name(path, error) : status;
    if (status != TRIB_OK) {
        return status;
    }
    char whole[TRIB_TRACE_PATH_MAX];
    trib_tracer_path(engine, path, whole, sizeof whole);
    return trib_tracer_write(engine, whole, error);
}
