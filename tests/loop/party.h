/* party.h - the workers of a job that share collectives: all of them, or a group. */
#ifndef TRIB_TESTS_LOOP_PARTY_H
#define TRIB_TESTS_LOOP_PARTY_H

#include "tests/loop/job.h"

#define PARTY_MAX 5
#define CHUNK 4096u

typedef trib_status (*party_operation)(trib_engine *, const trib_op_params *, trib_op **, trib_error *);

/* A job, and the workers of it that take part, in the order of their group. */
typedef struct party {
    job jobs;
    uint32_t count;
    int32_t ranks[PARTY_MAX];
    trib_group *groups[JOB_MEMBERS_MAX]; /* by rank; NULL: all workers take part */
} party;

/* Settings of members: tensors are cut small, and each has two reactors; colocated servers sum, or dedicated ones. */
void party_small_pieces(trib_config *config, int member);
void party_dedicated(trib_config *config, int member);

void party_all_workers(party *self);
void party_make_group(party *self, const char *name, const int32_t *ranks, uint32_t count);
/* The engine of the worker at that place. */
trib_engine *party_engine_of(const party *self, uint32_t i);
/* These fail the test if the call is refused. */
trib_tensor *party_declare(const party *self, uint32_t i, trib_tensor_desc desc);
trib_op *party_submit(const party *self, uint32_t i, party_operation run, trib_op_params params);
/* Waits for the operation and releases it. */
void party_succeeds(trib_op *op);
void party_fails_with(trib_op *op, trib_status status, const char *one, const char *other);

#endif
