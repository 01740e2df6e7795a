/*
 * machines.h - jobs of several machines inside one test process. A machine is an address of this one: 127.0.0.1,
 * 127.0.0.2, and so on, with a number of workers of consecutive ranks. A machine with several addresses also has
 * 127.0.1.1 and so on, and each of its members starts with a different one.
 */
#ifndef TRIB_TESTS_LOOP_MACHINES_H
#define TRIB_TESTS_LOOP_MACHINES_H

#include "tests/loop/job.h"

/* The shape of the next job. */
typedef struct machines_shape {
    int local; /* workers per machine */
    trib_local_sum mode;
    uint32_t reactors;
    trib_colocate colocate;
    int hosts; /* addresses per machine, at most 8; 0 means one */
} machines_shape;

void machines_open(job *jobs, int workers, int servers, machines_shape shape);
trib_engine_info machines_info(trib_engine *engine);

#endif
