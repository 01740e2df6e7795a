/*
 * gpu_speed.c - measures the speed of sums over all ranks, in turns with NCCL's own all-reduce over the same ranks.
 * With GPU_NCCL=no, or without NCCL, it measures the engine alone. Sizes go from 4 KiB, or GPU_SPEED_FROM (MiB, or
 * KiB: 64K), to 256 MiB, or GPU_SPEED_MIB, with GPU_ROUNDS turns of each (15, or 5 for large ones).
 *
 * Both end when the caller's stream has passed them, because a training step waits for that. With GPU_WAIT=host the
 * engine's sums end when trib_op_wait has returned, which is one wake-up of a thread later. The stream is one of its
 * own, which waits for no other. With GPU_STREAM=default it is the default one, as in frameworks, and with
 * GPU_STREAM=blocking one that waits for the default one.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "tests/gpu/gpu_worker.h"

enum { TENSORS = 8, ROUNDS_MAX = 120, KINDS = 8 };
enum { SMALLEST = 4 << 10, LARGEST = 256 << 20, FEW_ROUNDS_FROM = 64 << 20 };

typedef struct rival {
    ncclComm_t comm;
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*comm_init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*comm_destroy)(ncclComm_t);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
} rival;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fail("%s has no %s", "libnccl.so.2", name);
    }
    return symbol;
}

/* The communicator's id is sent by a broadcast of the engine. */
static bool rival_open(rival *other, rank *self)
{
    const char *wanted = getenv("GPU_NCCL");
    void *library = wanted != NULL && strcmp(wanted, "no") == 0 ? NULL : dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL || self->count == 1) {
        return false;
    }
    *(void **)&other->get_unique_id = find(library, "ncclGetUniqueId");
    *(void **)&other->comm_init = find(library, "ncclCommInitRank");
    *(void **)&other->comm_destroy = find(library, "ncclCommDestroy");
    *(void **)&other->all_reduce = find(library, "ncclAllReduce");
    ncclUniqueId id;
    if (self->index == 0 && other->get_unique_id(&id) != ncclSuccess) {
        fail("ncclGetUniqueId");
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "NCCL's name";
    desc.dtype = TRIB_UINT8;
    desc.count = sizeof id;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_error error = {.status = TRIB_OK};
    check_status(trib_tensor_declare(self->engine, &desc, &params.tensor, &error), &error, "declare");
    params.input = params.output = &id;
    trib_op *op = NULL;
    check_status(trib_broadcast(self->engine, &params, &op, &error), &error, "broadcast");
    wait_for(op);
    if (other->comm_init(&other->comm, self->count, id, self->index) != ncclSuccess) {
        fail("ncclCommInitRank");
    }
    return true;
}

static bool waits_on_host(void)
{
    const char *where = getenv("GPU_WAIT");
    return where != NULL && strcmp(where, "host") == 0;
}

/* A link that tc shapes lets a burst through after a pause. So all turns begin after a pause, and none gains from an
 * idle end of the turn before. The pause is busy, so that no thread has to wake up. */
static void pause_links(void)
{
    for (const double until = now_s() + 1e-3; now_s() < until;) {}
}

/* call_s: the caller's mean time in a call. */
static double ours(rank *self, trib_tensor **tensors, void **memory, int count, double *call_s)
{
    trib_op *ops[TENSORS];
    pause_links();
    const double began = now_s();
    for (int i = 0; i < count; i++) {
        ops[i] = push_pull(self, tensors[i], memory[i], memory[i], TRIB_SUM);
    }
    *call_s = (now_s() - began) / count;
    if (!waits_on_host()) {
        trib_error error = {.status = TRIB_OK};
        for (int i = 0; i < count; i++) {
            check_status(trib_op_stream_wait(ops[i], self->stream, &error), &error, "stream_wait");
        }
        check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    }
    const double streamed = now_s();
    for (int i = 0; i < count; i++) {
        wait_for(ops[i]);
    }
    return (waits_on_host() ? now_s() : streamed) - began;
}

static double theirs(rank *self, const rival *other, void **memory, size_t bytes, int count, double *call_s)
{
    pause_links();
    const double began = now_s();
    for (int i = 0; i < count; i++) {
        if (other->all_reduce(memory[i], memory[i], bytes / 4, ncclFloat32, ncclSum, other->comm, self->stream) !=
            ncclSuccess) {
            fail("ncclAllReduce");
        }
    }
    *call_s = (now_s() - began) / count;
    check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    return now_s() - began;
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_size);
    return times[count / 2];
}

/* times: [ours alone, ours together, theirs alone, theirs together, then a call in each][round] */
static void measure(rank *self, const rival *other, bool has_rival, size_t bytes, int rounds,
                    double times[KINDS][ROUNDS_MAX])
{
    void *memory[TENSORS];
    trib_tensor *tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        char name[48];
        snprintf(name, sizeof name, "speed %zu %d", bytes, i);
        check_cuda(cudaMalloc(&memory[i], bytes), "cudaMalloc");
        check_cuda(cudaMemset(memory[i], 0, bytes), "cudaMemset");
        tensors[i] = declare(self, name, TRIB_FLOAT32, bytes / 4, -i);
    }
    for (int round = -2; round < rounds; round++) {
        const int at = round < 0 ? 0 : round;
        /* The first of the two alternates, because the second finds its bytes in the GPU's cache. */
        for (int turn = 0; turn < 2; turn++) {
            if ((round + turn) % 2 == 0) {
                times[0][at] = ours(self, tensors, memory, 1, &times[4][at]);
            } else if (has_rival) {
                times[2][at] = theirs(self, other, memory, bytes, 1, &times[6][at]);
            }
        }
        times[1][at] = ours(self, tensors, memory, TENSORS, &times[5][at]);
        times[3][at] = has_rival ? theirs(self, other, memory, bytes, TENSORS, &times[7][at]) : 0;
    }
    for (int i = 0; i < TENSORS; i++) {
        check_cuda(cudaFree(memory[i]), "cudaFree");
    }
}

/* GPU_SPEED_FROM, GPU_SPEED_MIB: "4" is 4 MiB, "64K" 64 KiB. */
static size_t size_from(const char *name, size_t without)
{
    const char *text = getenv(name);
    if (text == NULL) {
        return without;
    }
    char *unit = NULL;
    const size_t number = strtoul(text, &unit, 10);
    if (number == 0) {
        fail("%s=%s is no size: 4 is 4 MiB, 64K is 64 KiB", name, text);
    }
    return number << (*unit == 'K' ? 10 : 20);
}

static int rounds_of(size_t bytes)
{
    const char *asked = getenv("GPU_ROUNDS");
    const int rounds = asked != NULL ? atoi(asked) : 0;
    return rounds > 0 && rounds <= ROUNDS_MAX ? rounds : bytes >= FEW_ROUNDS_FROM ? 5 : 15;
}

/* middle: medians of the KINDS that measure() fills. */
static void print_speed(size_t bytes, const double *middle, bool has_rival)
{
    const double gigabytes = (double)bytes / 1e9;
    const bool is_small = bytes < (size_t)1 << 20;
    printf("speed: %4zu %s: alone %8.3f ms (the call %.1f us) %7.2f GB/s, %d in flight %7.2f GB/s (%.1f us a call)",
           bytes >> (is_small ? 10 : 20), is_small ? "KiB" : "MiB", middle[0] * 1e3, middle[4] * 1e6,
           gigabytes / middle[0], TENSORS, gigabytes * TENSORS / middle[1], middle[5] * 1e6);
    if (has_rival) {
        printf("; NCCL %8.3f ms (%.1f us) %7.2f GB/s, %7.2f GB/s (%.1f us); %.2f and %.2f of NCCL", middle[2] * 1e3,
               middle[6] * 1e6, gigabytes / middle[2], gigabytes * TENSORS / middle[3], middle[7] * 1e6,
               middle[2] / middle[0], middle[3] / middle[1]);
    }
    printf("\n");
    fflush(stdout);
}

void scenario_speed(rank *self)
{
    rival other = {.comm = NULL};
    const bool has_rival = rival_open(&other, self);
    const size_t last = size_from("GPU_SPEED_MIB", LARGEST);
    for (size_t bytes = size_from("GPU_SPEED_FROM", SMALLEST); bytes <= last; bytes *= 4) {
        static __thread double times[KINDS][ROUNDS_MAX];
        const int rounds = rounds_of(bytes);
        measure(self, &other, has_rival, bytes, rounds, times);
        double middle[KINDS];
        for (int k = 0; k < KINDS; k++) {
            middle[k] = median(times[k], rounds);
        }
        if (self->index == 0) {
            print_speed(bytes, middle, has_rival);
        }
    }
    if (has_rival) {
        (void)other.comm_destroy(other.comm);
    }
}
