/*
 * contract_watch.h - ends a contract test that hangs, and says where it stood: its peers, and what the transport explains.
 */
#ifndef TRIB_TESTS_CONTRACT_WATCH_H
#define TRIB_TESTS_CONTRACT_WATCH_H

#include "tests/contract/contract_bed.h"

#define WATCHDOG_S 100

void trib_bed_watch(const bed *self);
void trib_bed_watch_end(void);

#endif
