/*
 * memory.h - the memory that is left for a simulated job.
 *
 * A system that overcommits memory gives no error when memory is used up: it kills the process. So a long job looks
 * at the memory now and then, and ends with an error before that.
 */
#ifndef TRIB_TOOLS_STUDY_MEMORY_H
#define TRIB_TOOLS_STUDY_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/log.h"

struct sim_job_config;

typedef struct study_memory {
    uint64_t taken; /* bytes that this process uses */
    uint64_t left;  /* further bytes that the machine and its control group allow; UINT64_MAX: unknown */
} study_memory;

study_memory study_memory_sample(void);
/* Tells whether so little memory is left, compared with the memory of this process, that this process will use it
 * up. */
bool study_memory_is_short(const study_memory *memory);
/* Refuses a job that is sure to need more memory than is left, before it takes minutes to find out. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status study_memory_check(const study_memory *memory, const struct sim_job_config *job,
                                            uint32_t gradients, trib_error *error);

#endif
