/*
 * gpu_streams.c - many streams wait at once, and none holds up what another one waits for. The cases named one_queue
 * have one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), which programs with several kinds of parallelism ask for.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/gpu_worker.h"

enum { FLOWS = 12, ROUNDS = 24, COUNT_MOST = 300000 };

typedef struct flow {
    cudaStream_t stream;
    trib_tensor *tensor;
    uint64_t count;
    void *device, *host, *back;
    trib_op *op;
} flow;

static void flow_open(rank *self, flow *one, int index)
{
    char name[32];
    snprintf(name, sizeof name, "flow %d", index);
    one->count = index % 2 == 0 ? (uint64_t)(index + 1) * 100 : (uint64_t)(index + 1) * COUNT_MOST / FLOWS;
    const size_t bytes = one->count * sizeof(int32_t);
    one->tensor = declare(self, name, TRIB_INT32, one->count, index % 3);
    check_cuda(cudaStreamCreateWithFlags(&one->stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaMalloc(&one->device, bytes), "cudaMalloc");
    check_cuda(cudaMallocHost(&one->host, bytes), "cudaMallocHost");
    check_cuda(cudaMallocHost(&one->back, bytes), "cudaMallocHost");
}

static void flow_close(flow *one)
{
    check_cuda(cudaFree(one->device), "cudaFree");
    check_cuda(cudaFreeHost(one->host), "cudaFreeHost");
    check_cuda(cudaFreeHost(one->back), "cudaFreeHost");
    check_cuda(cudaStreamDestroy(one->stream), "cudaStreamDestroy");
}

static void hand_in(rank *self, flow *one, unsigned seed)
{
    data_fill(TRIB_INT32, one->host, one->count, seed, self->index);
    check_cuda(
        cudaMemcpyAsync(one->device, one->host, one->count * sizeof(int32_t), cudaMemcpyHostToDevice, one->stream),
        "copy");
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = one->tensor;
    params.input = params.output = one->device;
    params.stream = one->stream;
    trib_error error = {.status = TRIB_OK};
    check_status(trib_push_pull(self->engine, &params, &one->op, &error), &error, "push_pull");
}

/* Later work of the stream runs after the sum. */
static void go_on(flow *one)
{
    const size_t bytes = one->count * sizeof(int32_t);
    trib_error error = {.status = TRIB_OK};
    check_status(trib_op_stream_wait(one->op, one->stream, &error), &error, "stream_wait");
    check_cuda(cudaMemcpyAsync(one->back, one->device, bytes, cudaMemcpyDeviceToHost, one->stream), "copy");
    check_cuda(cudaMemsetAsync(one->device, 0xff, bytes, one->stream), "memset");
}

static void check(const rank *self, flow *one, int index, unsigned seed)
{
    check_cuda(cudaStreamSynchronize(one->stream), "cudaStreamSynchronize");
    const int64_t wrong = data_check(TRIB_INT32, TRIB_SUM, one->back, one->count, seed, self->count, false);
    if (wrong >= 0) {
        fail("flow %d, round %u: element %lld is wrong after the wait on its stream", index, seed, (long long)wrong);
    }
    wait_for(one->op);
}

/* Each rank has an order of its own. */
static void shuffle(rank *self, int *order)
{
    for (int i = 0; i < FLOWS; i++) {
        order[i] = i;
    }
    for (int i = FLOWS - 1; i > 0; i--) {
        const int other = (int)((unsigned)rand_r(&self->seed) % (unsigned)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

void scenario_streams(rank *self)
{
    flow flows[FLOWS] = {{.stream = NULL}};
    int first[FLOWS], then[FLOWS];
    for (int i = 0; i < FLOWS; i++) {
        flow_open(self, &flows[i], i);
    }
    self->seed += (unsigned)self->index * 1000;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const bool one_by_one =
            round % 3 == 2; /* one order on all ranks, because a call that makes a stream wait may wait itself */
        shuffle(self, first);
        shuffle(self, then);
        for (int i = 0; i < FLOWS; i++) {
            hand_in(self, &flows[one_by_one ? i : first[i]], round);
            if (one_by_one) {
                go_on(&flows[i]);
            }
        }
        for (int i = 0; i < FLOWS && !one_by_one; i++) {
            go_on(&flows[then[i]]);
        }
        for (int i = 0; i < FLOWS; i++) {
            check(self, &flows[i], i, round);
        }
    }
    for (int i = 0; i < FLOWS; i++) {
        flow_close(&flows[i]);
    }
    printf("rank %d: %d streams, %d rounds\n", self->index, FLOWS, ROUNDS);
}
