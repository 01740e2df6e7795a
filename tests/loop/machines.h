/*
 * machines.h - jobs of several machines inside one test process. Machines are addresses of this one: 127.0.0.1, 127.0.0.2,
 * ... and so many workers with consecutive ranks are on each. A machine with several has 127.0.1.1 and so on too; each
 * of its members begins with another.
 */
#ifndef TRIB_TESTS_LOOP_MACHINES_H
#define TRIB_TESTS_LOOP_MACHINES_H

#include "tests/loop/job.h"

/* What the next job is like. */
typedef struct machines_shape {
    int local; /* workers a machine */
    trib_local_sum mode;
    uint32_t reactors;
    trib_colocate colocate;
    int hosts; /* addresses a machine, at most 8; 0: one */
} machines_shape;

void machines_open(job *jobs, int workers, int servers, machines_shape shape);
trib_engine_info machines_info(trib_engine *engine);

#endif
