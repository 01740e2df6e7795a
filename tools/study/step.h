/*
 * step.h - training steps of a model in virtual time: every worker computes for as long as the model says, submits
 * its gradients when they are ready, and goes on when it has the sums that it needs.
 *
 * A plain loop waits for all sums before the optimizer and the next forward pass. With cross_barrier the forward pass
 * of a layer waits for that layer's sum alone (ByteScheduler, SOSP'19). With priorities the gradients that forward
 * needs first go first.
 *
 * A device in front of the engine (the GPUs of a machine that sum among themselves, and the copies from and to them)
 * is a rate: the gradients pass it one after the other before they are submitted, and their sums on the way back.
 */
#ifndef TRIB_TOOLS_STUDY_STEP_H
#define TRIB_TOOLS_STUDY_STEP_H

#include "tools/study/codec.h"
#include "tools/study/job.h"
#include "tools/study/memory.h"
#include "tools/study/model.h"

typedef struct study_step_config {
    sim_job_config job; /* study_step_run sets its void_bytes */
    const study_model *model;
    const study_model *const
        *models;                    /* by rank: the same tensors at times of each worker's own; NULL: all have model */
    uint32_t iterations;            /* measured iterations, after one that is not measured */
    bool priorities, cross_barrier; /* priorities: those of the model, or the order of forward */
    bool by_order;                  /* the order of forward even if the model has priorities */
    double codec_ratio;             /* bytes on the wire per byte of gradient, at no cost; 1: none */
    study_codec codec;              /* a codec with its costs; no text: none */
    bool has_contents;      /* gradients are zeros in memory, and their sums are computed; else they have no contents */
    double device_bytes_ns; /* bytes per nanosecond, each way; 0: there is no device */
    void (*progress)(void *user, uint32_t iteration, uint32_t iterations); /* may be NULL */
    study_memory (*look)(void); /* reads the memory of the machine; NULL: study_memory_sample. Tests have their own */
    void *user;
} study_step_config;

typedef struct study_step_result {
    int64_t step_ns;    /* median over the iterations */
    int64_t compute_ns; /* part of step_ns for forward, backward and optimizer without any waiting */
    int64_t join_ns;    /* from the start until the job has come together */
    /* least time for a step's bytes over these links (OSDI'20), without computing; 0: no links, or other operations
     * than all-reduces */
    double t_opt_ns;
    double wire_bytes;   /* sent by the busiest node in a step */
    uint32_t local_size; /* workers of each machine that summed first; 0: none did */
    uint64_t events;
    double wall_seconds; /* real time of the run */
} study_step_result;

/* Runs the steps. Fails with the error that ended the job, or, if traces are wanted, with the reason why one is
 * missing. */
TRIB_CHECKED trib_status study_step_run(const study_step_config *config, study_step_result *result, trib_error *error);

/* Runs the same steps with a ring all-reduce in place of the engine: gradients are packed into buckets of that
 * many bytes in the order in which they become ready, and one bucket is summed after the other over all links at
 * once, without priorities (PyTorch DDP, Horovod; bucket 25 MB). Each of the 2(n-1) moves costs hop_ns in addition
 * to its bytes. */
int64_t study_ring_step(const study_step_config *config, uint64_t bucket_bytes, int64_t hop_ns);

#endif
