/* job.h - a whole job inside one test process: engines with threads of their own, joined over loopback TCP. */
#ifndef TRIB_TESTS_LOOP_JOB_H
#define TRIB_TESTS_LOOP_JOB_H

#include "api/tributary.h"

#define JOB_MEMBERS_MAX 32

typedef struct job {
    int worker_count, server_count;
    trib_engine *engines[JOB_MEMBERS_MAX]; /* workers by rank, then servers */
} job;

typedef void (*job_tweak)(trib_config *config, int member);

/* Creates and joins all members; fails the test if that does not work. */
void job_open(job *self, int workers, int servers, job_tweak tweak);
/* Closes all members at once, then destroys them. */
void job_close(job *self);
/* Writes a free loopback address. */
void job_free_address(char *text, size_t size);

trib_tensor *job_declare(trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count);
trib_op *job_push_pull(trib_engine *engine, trib_tensor *tensor, const void *input, void *output, trib_reduce reduce);
/* Waits for the operation and releases it; returns its status and fills *error. */
trib_status job_wait(trib_op *op, trib_error *error);
/* Waits until all that the engine's operations contribute has been sent, so that they miss others' contributions alone.
 * At least one of them must miss one, and their tensors be placed. */
void job_await_contributed(trib_engine *engine);

#endif
