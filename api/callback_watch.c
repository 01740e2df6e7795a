/* callback_watch.c - see callback_watch.h. */
#include "api/callback_watch.h"

#include "api/ticker.h"
#include "engine/job/callback.h"

#define PAUSE_MAX_NS INT64_C(1000000000)

static int64_t watch(trib_engine *engine, int64_t pause_ns)
{
    (void)pause_ns;
    /* A quarter of the limit: it is seen to be exceeded before others see the silence. */
    const int64_t quarter_ns = trib_callbacks_watch(engine) / 4 + 1;
    return quarter_ns < PAUSE_MAX_NS ? quarter_ns : PAUSE_MAX_NS;
}

void trib_callback_watch_start(trib_engine *engine)
{
    if (engine->config.mode != TRIB_MODE_THREADS) {
        return; /* the thread that runs callbacks is the program's own */
    }
    const int error = trib_ticker_start(&engine->callback_watcher, engine, watch, watch(engine, 0));
    if (error != 0) {
        char why[TRIB_REASON_MAX];
        trib_log(&engine->logger, TRIB_LOG_WARN,
                 "callbacks that hold a reactor up are named only when they return: no thread to watch them: %s",
                 trib_log_thread_reason(error, why));
    }
}
