/* trace_flush.c - see trace_flush.h. */
#include "api/trace_flush.h"

#include <time.h>

#include "api/ticker.h"
#include "engine/tracer/tracer.h"

#define FIRST_NS (250 * INT64_C(1000000)) /* the first pause; pauses double */
#define LAST_NS (2 * INT64_C(1000000000)) /* the longest pause: a killed process loses at most this much */
#define SHARE 30                          /* a pause is at least this many times as long as the writing before it */

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t flush(trib_engine *engine, int64_t pause_ns)
{
    const int64_t began_ns = monotonic_ns();
    trib_tracer_flush(engine);
    const int64_t took_ns = SHARE * (monotonic_ns() - began_ns),
                  least_ns = 2 * pause_ns < LAST_NS ? 2 * pause_ns : LAST_NS;
    return took_ns > least_ns ? took_ns : least_ns;
}

void trib_trace_flush_start(trib_engine *engine)
{
    const int error = trib_ticker_start(&engine->trace_flusher, engine, flush, FIRST_NS);
    if (error != 0) {
        char why[TRIB_REASON_MAX];
        trib_log(&engine->logger, TRIB_LOG_WARN, "the trace is written at the end only: no thread for it: %s",
                 trib_log_thread_reason(error, why));
    }
}
