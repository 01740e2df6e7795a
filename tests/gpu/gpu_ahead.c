/*
 * gpu_ahead.c - a program that is ahead of its GPU, as a training program is: it submits hundreds of tensors behind
 * a stream that has not come to any of them, on the default stream and on one of its own. The scenario prints how
 * long the calls took, and how soon the sums were there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/gpu/gpu_worker.h"

enum { TENSORS = 256, COUNT = 16 << 10, ROUNDS = 5, BEHIND_US = 30000 };

static void CUDART_CB stay_behind(void *argument)
{
    (void)argument;
    usleep(BEHIND_US);
}

/* All tensors lie behind one another in the buffer. */
static void hand_in_all(rank *self, trib_tensor **tensors, int *buffer, cudaStream_t stream)
{
    trib_op *ops[TENSORS];
    cudaStream_t before = self->stream;
    self->stream = stream;
    check_cuda(cudaLaunchHostFunc(stream, stay_behind, NULL), "cudaLaunchHostFunc");
    const double began = now_s();
    for (int i = 0; i < TENSORS; i++) {
        ops[i] = push_pull(self, tensors[i], buffer + i * COUNT, buffer + i * COUNT, TRIB_SUM);
    }
    const double handed_in = now_s();
    for (int i = 0; i < TENSORS; i++) {
        trib_error error = {.status = TRIB_OK};
        check_status(trib_op_stream_wait(ops[i], stream, &error), &error, "stream_wait");
    }
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    printf("rank %d: %s stream: %d calls of %.1f us, all sums %.1f ms after the stream came\n", self->index,
           stream == NULL ? "default" : "own", TENSORS, (handed_in - began) / TENSORS * 1e6,
           (now_s() - began) * 1e3 - BEHIND_US / 1e3);
    for (int i = 0; i < TENSORS; i++) {
        trib_op_release(ops[i]);
    }
    self->stream = before;
}

void scenario_ahead(rank *self)
{
    trib_tensor *tensors[TENSORS];
    int *buffer = NULL, *seen = malloc(sizeof(int) * TENSORS * COUNT);
    check_cuda(cudaMalloc((void **)&buffer, sizeof(int) * TENSORS * COUNT), "cudaMalloc");
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "ahead %d", i);
        tensors[i] = declare(self, name, TRIB_INT32, COUNT, 0);
    }
    for (int i = 0; i < TENSORS * COUNT; i++) {
        seen[i] = i % 1000;
    }
    check_cuda(cudaMemcpy(buffer, seen, sizeof(int) * TENSORS * COUNT, cudaMemcpyHostToDevice), "cudaMemcpy");
    int factor = 1;
    for (int round = 0; round < ROUNDS; round++) {
        hand_in_all(self, tensors, buffer, round % 2 == 0 ? self->stream : NULL);
        factor *= self->count;
    }
    check_cuda(cudaMemcpy(seen, buffer, sizeof(int) * TENSORS * COUNT, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int i = 0; i < TENSORS * COUNT; i++) {
        if (seen[i] != i % 1000 * factor) {
            fail("element %d is %d, not %d", i, seen[i], i % 1000 * factor);
        }
    }
    free(seen);
    check_cuda(cudaFree(buffer), "cudaFree");
}
