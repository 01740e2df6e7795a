/*
 * load_report.h - reports to the coordinator what the links of a member carry (rate_estimator.h explains the use).
 * Nothing is counted where shares are fixed.
 *
 * For each peer a core counts the bytes that its links' transport has sent, and for how long the transport held any.
 * The transport of a slow network counts itself for how long bytes were in flight, and its count is used instead. The
 * reason is that a link with little credit seldom has bytes with the transport, even if its network is full. Core 0
 * adds up the counts of all cores and reports the difference since the last report.
 */
#ifndef TRIB_ENGINE_LOAD_REPORT_H
#define TRIB_ENGINE_LOAD_REPORT_H

#include "engine/core/core.h"

/* Call when the roster says that shares follow the links. May return TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_load_report_open(trib_core *core);
void trib_load_report_close(trib_core *core);
/* Reports what is new if it is enough. Core 0 calls this periodically. */
void trib_load_report_send(trib_core *core);

#endif
