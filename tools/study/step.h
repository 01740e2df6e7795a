/*
 * step.h - training steps of a model in virtual time: every worker computes for as long as the model says, hands in its
 * gradients when they are ready and goes on when it has what it needs.
 *
 * A plain loop waits for all sums before the optimizer and the next forward pass. With cross_barrier the forward pass
 * of a layer waits for that layer's sum alone (ByteScheduler, SOSP'19). Priorities put first what forward needs first.
 *
 * A device in front of the engine (GPUs of a machine that sum among themselves, copies from and to them) is a rate: the
 * gradients pass it one after the other before they are handed in, and their sums on the way back.
 */
#ifndef TRIB_TOOLS_STUDY_STEP_H
#define TRIB_TOOLS_STUDY_STEP_H

#include "tools/study/job.h"
#include "tools/study/memory.h"
#include "tools/study/model.h"

typedef struct study_step_config {
    sim_job_config job; /* its void_bytes are chosen by study_step_run */
    const study_model *model;
    const study_model *const *models; /* by rank: the same tensors, each at its own times; NULL: all have model */
    uint32_t iterations;              /* measured, after one that is not */
    bool priorities, cross_barrier;   /* priorities: the model's own, else what forward needs first */
    bool by_order;                    /* ... even if the model has its own */
    double codec_ratio;               /* bytes on the wire per byte of gradient; 1: none */
    double device_bytes_ns;           /* bytes per nanosecond, each way; 0: there is no device in front */
    void (*progress)(void *user, uint32_t iteration, uint32_t iterations); /* may be NULL */
    study_memory (*look)(void); /* at the machine's memory; NULL: study_memory_sample. A test has its own */
    void *user;
} study_step_config;

typedef struct study_step_result {
    int64_t step_ns;    /* median over the iterations */
    int64_t compute_ns; /* of it: forward, backward and optimizer, if nothing had to be waited for */
    int64_t join_ns;    /* from nothing to a job that has come together */
    double t_opt_ns; /* least time for a step's bytes over these links (OSDI'20), without compute; 0: there are none */
    double wire_bytes;   /* sent by the busiest node in a step */
    uint32_t local_size; /* workers of each machine that summed first; 0: none did */
    uint64_t events;
    double wall_seconds; /* real time it took */
} study_step_result;

/* TRIB_OK, or what ended the job, with *error; or, where traces are asked for, why there is not one of each member. */
TRIB_CHECKED trib_status study_step_run(const study_step_config *config, study_step_result *result, trib_error *error);

/* The same steps with a ring all-reduce in place of the engine: gradients are packed into buckets of that many bytes in
 * the order in which they become ready, one bucket is summed after the other over all links at once, without
 * priorities (PyTorch DDP, Horovod; bucket 25 MB). Each of the 2(n-1) moves costs hop_ns beside its bytes. */
int64_t study_ring_step(const study_step_config *config, uint64_t bucket_bytes, int64_t hop_ns);

#endif
