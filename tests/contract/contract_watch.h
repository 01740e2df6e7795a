/* contract_watch.h - ends a contract test that hangs, and prints its state: its peers, and the transport's own
 * explanation. */
#ifndef TRIB_TESTS_CONTRACT_WATCH_H
#define TRIB_TESTS_CONTRACT_WATCH_H

#include "tests/contract/contract_bed.h"

#define WATCHDOG_S 100

void trib_bed_watch(const bed *self);
void trib_bed_watch_end(void);

#endif
