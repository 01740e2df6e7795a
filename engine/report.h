/* report.h - answers "why am I waiting?": what each core's operations wait for at this moment. */
#ifndef TRIB_ENGINE_REPORT_H
#define TRIB_ENGINE_REPORT_H

#include "engine/worker/op.h"

/* On core's own thread: appends its entries to entries[*count..capacity), counting all in *count. */
void trib_report_core(trib_core *core, trib_waiting *entries, size_t capacity, size_t *count);

/* Any other thread: asks every core, waits at most timeout_ns. */
TRIB_CHECKED trib_status trib_report_engine(trib_engine *engine, int64_t timeout_ns, trib_waiting *entries,
                                            size_t capacity, size_t *count_out);

#endif
