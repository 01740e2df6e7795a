/*
 * agent.h - one rank of a job that is measured: takes commands, runs exchanges through a peer's calls, answers with
 * times.
 *
 * The same code times every peer, Tributary among them, so that the same thing is measured everywhere: in-place fp32
 * sums of buffers that are used again and again and were touched before, from handing in to completion, a barrier in
 * between. With AGENT_OP=all_gather or reduce_scatter in the environment it is that: of a tensor each rank has a slice
 * of count / size floats, which lies at its place in data or, as a result of reduce_scatter, in `result`. The times are
 * CLOCK_MONOTONIC's, which all processes of a machine share (in network namespaces too): whoever reads the answers of
 * all ranks knows when the last one began and when the last one ended.
 *
 * Commands and answers are lines, through two named pipes a rank, PREFIX.RANK.in and PREFIX.RANK.out:
 *   load FILE                      the tensors: lines `name,elements,ready_us`, in the order of handing in -> `ok`
 *   check                          one exchange of known numbers, compared -> `ok`, or `wrong ...`
 *   run WARMUP ITERATIONS SCALE    -> `times CPU_US SWITCHES PREEMPTIONS BEGIN:END:LAST_IN:LAST_DONE ...` in ns, LAST
 *                                  being the last tensor handed in; tensors are handed in SCALE x ready_us after BEGIN
 *   quit                           -> nothing; end of file does the same
 * While it waits for a command a rank is blocked and uses no CPU, so that several jobs can take turns.
 */
#ifndef TRIB_TOOLS_PEERS_AGENT_H
#define TRIB_TOOLS_PEERS_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum agent_op { AGENT_ALL_REDUCE, AGENT_ALL_GATHER, AGENT_REDUCE_SCATTER } agent_op;

typedef struct agent_tensor {
    char name[160];
    uint64_t count; /* number of floats */
    double ready_us;
    float *data, *result; /* result: of reduce_scatter, room for a slice */
    uint64_t slice;
    int64_t in_ns, done_ns; /* done_ns is written by the peer, when the sum is back */
} agent_tensor;

/* The functions of a peer. A failure ends the process with a message: nothing can be measured after it. */
typedef struct agent_peer {
    void *self;
    int rank, size;
    void *(*allocate)(void *self, size_t bytes); /* page-aligned, or NULL */
    void (*release)(void *self, void *memory);
    void (*load)(void *self, agent_tensor *tensors, size_t count); /* work that is done once for a tensor */
    void (*unload)(void *self, agent_tensor *tensors, size_t count);
    void (*barrier)(void *self);
    void (*hand_in)(void *self, agent_tensor *tensor, size_t index); /* may return before the sum is back */
    void (*finish)(void *self);                                      /* blocks until all sums are back */
    void (*await_input)(void *self, int fd);                         /* blocks until fd is readable */
} agent_peer;

/* Runs commands until there are no more. Returns the exit status. */
int agent_serve(const agent_peer *peer, const char *prefix);

int64_t agent_now_ns(void);
agent_op agent_which(void);

/* The allocator of peers without one of their own. */
void *agent_allocate(void *self, size_t bytes);
void agent_release(void *self, void *memory);
void agent_await_input(void *self, int fd);

#ifdef __cplusplus
}
#endif
#endif
