/*
 * gpu_queues.c - checks what the module assumes of CUDA's queues (docs/gpu.md, "Streams that wait"). With as many
 * streams as queues, no stream is held up by others that wait for a word, however many wait and whatever the streams
 * did before. With one stream more some are held up, and the scenario prints how many: where that never happens the
 * module is more careful than it needs to be.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

#include "tests/gpu/gpu_worker.h"

enum { QUEUES_MAX = 32, SMALL = 4096, LARGE = 1 << 20, ROUNDS = 200 };
#define PATIENCE_S 5    /* for cases where no stream may be held up */
#define IMPATIENCE_S .1 /* for cases where a stream may be held up */

typedef struct bench {
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    uint32_t *word, value;
    unsigned char *device, *host;
    cudaStream_t streams[QUEUES_MAX + 1];
    cudaEvent_t end;
    unsigned *seed;
} bench;

static void bench_open(bench *self)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&self->wait_value, CUDART_VERSION,
                                                cudaEnableDefault, &found),
               "cuStreamWaitValue32");
    check_cuda(cudaHostAlloc((void **)&self->word, SMALL, cudaHostAllocMapped), "cudaHostAlloc");
    check_cuda(cudaMallocHost((void **)&self->host, LARGE), "cudaMallocHost");
    check_cuda(cudaMalloc((void **)&self->device, LARGE), "cudaMalloc");
    check_cuda(cudaEventCreateWithFlags(&self->end, cudaEventDisableTiming), "cudaEventCreate");
    for (int i = 0; i <= QUEUES_MAX; i++) {
        check_cuda(cudaStreamCreateWithFlags(&self->streams[i], cudaStreamNonBlocking), "cudaStreamCreate");
    }
    *self->word = 0;
}

static int draw(const bench *self, int most)
{
    return (int)((unsigned)rand_r(self->seed) % (unsigned)most);
}

static void put_one(const bench *self, cudaStream_t stream, bool copies)
{
    const size_t bytes = draw(self, 2) == 0 ? SMALL : LARGE;
    switch (copies ? draw(self, 3) : 2) {
    case 0:
        check_cuda(cudaMemcpyAsync(self->host, self->device, bytes, cudaMemcpyDeviceToHost, stream), "copy");
        break;
    case 1:
        check_cuda(cudaMemcpyAsync(self->device, self->host, bytes, cudaMemcpyHostToDevice, stream), "copy");
        break;
    default:
        check_cuda(cudaMemsetAsync(self->device, 0, SMALL, stream), "memset");
    }
}

static void put_some(const bench *self, cudaStream_t stream, bool copies)
{
    for (int i = draw(self, 3); i > 0; i--) {
        put_one(self, stream, copies);
    }
}

static void shuffle(bench *self, int count)
{
    for (int i = count - 1; i > 0; i--) {
        const int other = draw(self, i + 1);
        cudaStream_t kept = self->streams[i];
        self->streams[i] = self->streams[other];
        self->streams[other] = kept;
    }
}

static bool comes_to_its_end(const bench *self, cudaStream_t stream, double patience_s)
{
    check_cuda(cudaEventRecord(self->end, stream), "cudaEventRecord");
    const double until = now_s() + patience_s;
    cudaError_t code = cudaEventQuery(self->end);
    while (code == cudaErrorNotReady && now_s() < until) {
        code = cudaEventQuery(self->end);
    }
    return code != cudaErrorNotReady;
}

/* Lets some of that many streams wait; returns true if another one is held up by that. */
static bool is_held_up(bench *self, int count, bool copies, double patience_s)
{
    const int waiting = 1 + draw(self, count - 1);
    bool held = false;
    shuffle(self, count);
    self->value++;
    for (int i = 0; i < count; i++) {
        put_some(self, self->streams[i], copies);
    }
    for (int i = 0; i < waiting; i++) {
        if (self->wait_value(self->streams[i], (CUdeviceptr)(uintptr_t)self->word, self->value,
                             CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
            fail("a stream cannot wait for a word");
        }
        put_one(self, self->streams[i], copies);
    }
    for (int time = 0; time < 3; time++) {
        for (int i = waiting; i < count; i++) {
            put_some(self, self->streams[i], copies);
        }
    }
    for (int i = waiting; i < count && !held; i++) {
        held = !comes_to_its_end(self, self->streams[i], patience_s);
    }
    __atomic_store_n(self->word, self->value, __ATOMIC_RELEASE);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return held;
}

static void try(bench *self, const rank *who, int queues, bool copies)
{
    const char *what = copies ? "copies and kernels" : "kernels";
    for (int round = 0; round < ROUNDS && queues > 1; round++) {
        if (is_held_up(self, queues, copies, PATIENCE_S)) {
            fail("%d streams with %s, on as many queues: one that waits holds another up", queues, what);
        }
    }
    int round = 0;
    while (round < ROUNDS && !is_held_up(self, queues + 1, copies, IMPATIENCE_S)) {
        round++;
    }
    printf("rank %d: %s on %d queues: of %d streams none is held up in %d rounds, of %d one %s\n", who->index, what,
           queues, queues, queues > 1 ? ROUNDS : 0, queues + 1, round < ROUNDS ? "is" : "is not, either");
}

void scenario_queues(rank *self)
{
    static bench all;
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    all.seed = &self->seed;
    bench_open(&all);
    try(&all, self, text == NULL ? 8 : atoi(text), false);
    try(&all, self, text == NULL ? 4 : atoi(text), true);
}
