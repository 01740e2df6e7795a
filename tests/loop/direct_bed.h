/*
 * direct_bed.h - jobs whose device tensors may bypass host memory (GPUDirect). Plain memory that RDMA devices know
 * stands in for a GPU's; its jobs are counted and can be held, and sums are compared bit by bit.
 *
 * A test that uses it calls direct_watch at the end of trib_env_host_init. It needs an RDMA device, whose address is in
 * RDMA_IP (RDMA_SECOND names a second device's).
 */
#ifndef TRIB_TESTS_LOOP_DIRECT_BED_H
#define TRIB_TESTS_LOOP_DIRECT_BED_H

#include "engine/device/device.h"
#include "engine/job/job.h"
#include "tests/loop/job.h"

/* The last partition is so small that a processor would touch it. */
enum { DIRECT_WORKERS_MAX = 4, DIRECT_COUNT = 43 * 16384 + 250 };
#define DIRECT_BYTES (DIRECT_COUNT * sizeof(float))

typedef struct direct_shape {
    const char *transport, *listen;
    int local_size;
    bool off; /* rank 0 has GPUDirect off */
} direct_shape;

typedef struct direct_bed {
    job jobs;
    int workers;
    trib_tensor *tensors[DIRECT_WORKERS_MAX];
    float *input[DIRECT_WORKERS_MAX], *output[DIRECT_WORKERS_MAX];
    uint64_t direct, copied;                       /* bytes of the last exchange, over all workers */
    uint32_t to_host, to_device, seen, collective; /* device jobs of the last exchange */
} direct_bed;

enum { SUMS = -1, IN_PLACE = -2 }; /* other values are a broadcast's root */

/* ---- The device ---- */
void direct_watch(trib_env *env);
/* Holds the next job of that kind, and later jobs of the same device, until direct_let_go. */
void direct_hold(trib_device_kind kind);
void direct_let_go(void);
/* The device's memory is known by a descriptor alone, as a GPU's is. */
void direct_has_descriptors(bool has);
trib_host_world *direct_world(void);

/* ---- A job ---- */
direct_shape direct_default_shape(void); /* over RDMA, one device a machine */
void direct_open(direct_bed *self, const direct_shape *like, int workers, int servers);
void direct_close(direct_bed *self);
/* As direct_open, for one member of a job of several processes: worker 0, or one that joins later. at: the
 * coordinator's address. */
const char *direct_new_address(void);
trib_engine *direct_member(const direct_shape *like, const char *at, int rank, int workers, int servers);
void direct_open_one(direct_bed *self, const direct_shape *like, const char *at, int rank, int workers);
bool direct_was_logged(const char *words); /* logged by worker 0 */

/* ---- Operations ---- */
void direct_tell(trib_engine *engine, void *memory); /* registers a buffer */
void direct_tell_all(const direct_bed *self);
void direct_fill(float *data, int rank, uint32_t seed);
trib_stats direct_stats(trib_engine *engine);
/* Returns NULL if the call fails. */
trib_op *direct_try(const direct_bed *self, int rank, int what, void *stream, trib_error *error);
trib_op *direct_submit(const direct_bed *self, int rank, int what, void *stream);
/* All workers sum values drawn from the seed, or get the root's. Checks that all have the same bits, and returns their
 * hash. */
uint64_t direct_exchange(direct_bed *self, uint32_t seed, int what);

#endif
