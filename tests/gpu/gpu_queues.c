/*
 * gpu_queues.c - what streams that wait for a word hold up (docs/gpu.md, "CUDA's queues"): copies, fills and words of other streams, which
 * have the greatest priority. With half the queues less one nothing may be held up, or the engine's streams would hang; from how many
 * on something is, it prints.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

#include "tests/gpu/gpu_worker.h"

enum { QUEUES_MAX = 32, OURS = 3, BYTES = 4096, LARGE = 1 << 20 };
enum { TO_HOST, TO_DEVICE, TO_DEVICE_LARGE, FILL, WORD, KINDS };
static const char *const kinds[KINDS] = {"copies to the host", "small copies to the device", "large ones", "fills",
                                         "words"};

typedef struct bench {
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    uint32_t *words; /* the first is waited for, the second written */
    uint32_t value;
    unsigned char *device, *host;
    cudaStream_t waiting[QUEUES_MAX], ours[OURS];
    cudaEvent_t end;
} bench;

static void find(const char *name, void *where)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion(name, where, CUDART_VERSION, cudaEnableDefault, &found), name);
}

static void bench_open(bench *self)
{
    int least = 0, greatest = 0;
    find("cuStreamWaitValue32", &self->wait_value);
    find("cuStreamWriteValue32", &self->write_value);
    check_cuda(cudaHostAlloc((void **)&self->words, BYTES, cudaHostAllocMapped), "cudaHostAlloc");
    check_cuda(cudaMallocHost((void **)&self->host, LARGE), "cudaMallocHost");
    check_cuda(cudaMalloc((void **)&self->device, LARGE), "cudaMalloc");
    check_cuda(cudaEventCreateWithFlags(&self->end, cudaEventDisableTiming), "cudaEventCreate");
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    for (int i = 0; i < OURS; i++) {
        check_cuda(cudaStreamCreateWithPriority(&self->ours[i], cudaStreamNonBlocking, greatest), "cudaStreamCreate");
    }
    for (int i = 0; i < QUEUES_MAX; i++) {
        check_cuda(cudaStreamCreateWithFlags(&self->waiting[i], cudaStreamNonBlocking), "cudaStreamCreate");
    }
    self->words[0] = 0;
}

static void put(const bench *self, int kind, cudaStream_t stream)
{
    CUresult code = CUDA_SUCCESS;
    switch (kind) {
    case TO_HOST:
        check_cuda(cudaMemcpyAsync(self->host, self->device, BYTES, cudaMemcpyDeviceToHost, stream), "copy");
        break;
    case TO_DEVICE:
    case TO_DEVICE_LARGE:
        check_cuda(cudaMemcpyAsync(self->device, self->host, kind == TO_DEVICE ? BYTES : LARGE, cudaMemcpyHostToDevice,
                                   stream),
                   "copy");
        break;
    case FILL:
        check_cuda(cudaMemsetAsync(self->device, 0, BYTES, stream), "memset");
        break;
    default:
        code = self->write_value(stream, (CUdeviceptr)(uintptr_t)&self->words[1], self->value, 0);
    }
    if (code != CUDA_SUCCESS) {
        fail("a word cannot be written: %d", (int)code);
    }
}

/* True: so many streams that wait, and go on with something then, hold it up for so long. */
static bool is_held_up(bench *self, int count, int kind, double patience_s)
{
    bool held = false;
    self->value++;
    for (int i = 0; i < count; i++) {
        if (self->wait_value(self->waiting[i], (CUdeviceptr)(uintptr_t)&self->words[0], self->value,
                             CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
            fail("a stream cannot wait for a word");
        }
        check_cuda(cudaMemsetAsync(self->device, 0, BYTES, self->waiting[i]), "memset");
    }
    for (int i = 0; i < OURS && !held; i++) {
        put(self, kind, self->ours[i]);
        check_cuda(cudaEventRecord(self->end, self->ours[i]), "cudaEventRecord");
        const double until = now_s() + patience_s;
        cudaError_t code = cudaEventQuery(self->end);
        while (code == cudaErrorNotReady && now_s() < until) {
            code = cudaEventQuery(self->end);
        }
        held = code == cudaErrorNotReady;
    }
    __atomic_store_n(&self->words[0], self->value, __ATOMIC_RELEASE);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return held;
}

void scenario_queues(rank *self)
{
    static bench all;
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int queues = text == NULL ? 8 : atoi(text), allowed = queues / 2 - 1;
    bench_open(&all);
    for (int kind = 0; kind < KINDS; kind++) {
        int first = 0;
        for (int count = 1; count <= queues && count <= QUEUES_MAX && first == 0; count++) {
            first = is_held_up(&all, count, kind, count <= allowed ? 5 : 0.05) ? count : 0;
        }
        printf("rank %d: %d queues: %s are held up %s%.0d\n", self->index, queues, kinds[kind],
               first > 0 ? "by so many waiting streams: " : "by no number of waiting streams", first);
        if (first > 0 && first <= allowed) {
            fail("%d streams that wait hold up %s", first, kinds[kind]);
        }
    }
}
