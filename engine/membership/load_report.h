/*
 * load_report.h - what a member's links carry, told to the coordinator (rate_estimator.h says what for). Where shares stay as they are
 * nothing is counted.
 *
 * A core counts, of each peer, the bytes that its links have handed to the transport and got back, and for how long
 * some were there. Where the transport counts for how long some were under way (its network is slow), that counts
 * instead: of little credit a peer that gets little has seldom any, also where all links are full. Core 0 adds up what
 * the cores have counted and reports what is new.
 */
#ifndef TRIB_ENGINE_LOAD_REPORT_H
#define TRIB_ENGINE_LOAD_REPORT_H

#include "engine/core/core.h"

/* The roster says that shares follow. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_load_report_open(trib_core *core);
void trib_load_report_close(trib_core *core);
/* Core 0, now and then: reports what is new, if it is enough. */
void trib_load_report_send(trib_core *core);

#endif
