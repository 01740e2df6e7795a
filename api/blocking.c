/* blocking.c - see blocking.h. */
#include "engine/engine.h"
#include "api/blocking.h"

#include "api/check.h"

struct timespec trib_api_deadline_in(int64_t timeout_ns)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    timeout_ns = trib_timeout_clamp(timeout_ns); /* so that the time left fits nanoseconds */
    int64_t total_ns = at.tv_nsec + timeout_ns % INT64_C(1000000000);
    at.tv_sec += timeout_ns / INT64_C(1000000000) + total_ns / INT64_C(1000000000);
    at.tv_nsec = total_ns % INT64_C(1000000000);
    return at;
}

int64_t trib_api_left_ns(const struct timespec *deadline)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (deadline->tv_sec - now.tv_sec) * INT64_C(1000000000) + deadline->tv_nsec - now.tv_nsec;
}

trib_status trib_api_check_may_block(const trib_engine *engine, trib_error *error)
{
    trib_status status = trib_api_check_engine(engine, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return trib_error_set(error, TRIB_STATE, "blocking calls cannot work when the engine runs on your own loop");
    }
    if (trib_engine_on_thread(engine)) {
        return trib_error_set(error, TRIB_WRONG_THREAD, "blocking calls are not allowed from a callback");
    }
    return TRIB_OK;
}
