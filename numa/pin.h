/* pin.h - pins threads as the plan says. Never fatal: a reactor that could not be pinned runs anywhere. */
#ifndef TRIB_NUMA_PIN_H
#define TRIB_NUMA_PIN_H

#include <sys/types.h>

#include "numa/place.h"

/* Lets a thread of this process, by the operating system's number, run on these CPUs only. TRIB_INVALID: there are
 * none; TRIB_SYSTEM: no such thread, or not allowed here. Then the thread runs where it did. */
trib_status trib_pin_among(pid_t thread, const trib_place_cpus *cpus);

#endif
