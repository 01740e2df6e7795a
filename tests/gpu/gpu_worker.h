/* gpu_worker.h - declarations that the scenarios of the GPU tests share: one rank of a job, on one GPU. */
#ifndef TRIB_TESTS_GPU_GPU_WORKER_H
#define TRIB_TESTS_GPU_GPU_WORKER_H

#include <cuda_runtime_api.h>

#include "api/tributary.h"

typedef struct rank {
    trib_engine *engine;
    int index, count;           /* this rank, of that many */
    int local_rank, local_size; /* on its machine */
    cudaStream_t stream;
    const char *argument; /* of the scenario */
    unsigned seed;
} rank;

/* Ends the process with the text if the call failed. */
void check_cuda(cudaError_t code, const char *what);
void check_status(trib_status status, const trib_error *error, const char *what);
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
double now_s(void);

trib_tensor *declare(rank *self, const char *name, trib_dtype dtype, uint64_t count, int priority);
trib_op *push_pull(rank *self, trib_tensor *tensor, const void *input, void *output, trib_reduce reduce);
void wait_for(trib_op *op);
/* Like wait_for, but returns when the rank's stream has passed the operation, whether the host has noticed or not. */
void wait_on_stream(const rank *self, trib_op *op);

/* gpu_data.c: element i of a rank's contribution, and of the result, in the bits of the type. */
int data_value(trib_dtype dtype, uint64_t i, unsigned seed, int rank_index);
void data_fill(trib_dtype dtype, void *buffer, uint64_t count, unsigned seed, int rank_index);
/* Returns the first wrong element, or -1. Results are compared bit for bit, except averages that NCCL computes
 * itself on a job's only machine. */
int64_t data_check(trib_dtype dtype, trib_reduce reduce, const void *buffer, uint64_t count, unsigned seed, int ranks,
                   bool alone);

/* Scenarios; they report errors by fail(). */
void scenario_sums(rank *self);
void scenario_broadcast(rank *self);
void scenario_stream(rank *self);
void scenario_streams(rank *self);
void scenario_graph(rank *self);
void scenario_declare(rank *self);
void scenario_late(rank *self);
void scenario_killed(rank *self);
void scenario_stopped(rank *self);
void scenario_leave(rank *self);
void scenario_exit(rank *self) __attribute__((noreturn));
void scenario_idle(rank *self);
void scenario_unchosen(rank *self);
void scenario_ahead(rank *self);
/* gpu_capture.c: before the engine is opened, another thread begins a capture; the scenario lets it end. */
void capture_hold(int device);
void scenario_captured(rank *self);
void scenario_speed(rank *self);
void scenario_exchanges(rank *self);
void scenario_codecs(rank *self);
void scenario_kernels(rank *self);
void scenario_bits(rank *self);
void scenario_survive(rank *self);

#endif
