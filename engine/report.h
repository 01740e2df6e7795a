/* report.h - answers "why am I waiting?": lists the pending work of each core's operations. */
#ifndef TRIB_ENGINE_REPORT_H
#define TRIB_ENGINE_REPORT_H

#include "engine/worker/op.h"

/* On the core's own thread: stores entries up to capacity and counts all of them in *count. */
void trib_report_core(trib_core *core, trib_waiting *entries, size_t capacity, size_t *count);

/* Any other thread: asks every core and waits at most timeout_ns. */
TRIB_CHECKED trib_status trib_report_engine(trib_engine *engine, int64_t timeout_ns, trib_waiting *entries,
                                            size_t capacity, size_t *count_out);

#endif
