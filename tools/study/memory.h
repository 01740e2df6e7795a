/*
 * memory.h - does a simulated job still fit into this machine's memory?
 *
 * A system that hands out more than it has says nothing when it is used up: it kills the process. So whoever runs a job looks now
 * and then, and gives up with words before that.
 */
#ifndef TRIB_TOOLS_STUDY_MEMORY_H
#define TRIB_TOOLS_STUDY_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct study_memory {
    uint64_t taken; /* bytes that this process has */
    uint64_t left;  /* that it can have beside them: of the machine, and of its control group; UINT64_MAX: not known */
} study_memory;

study_memory study_memory_sample(void);
/* So little is left, measured by what this process has taken, that it is this process that will use it up. */
bool study_memory_is_short(const study_memory *memory);

#endif
