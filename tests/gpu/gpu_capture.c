/* gpu_capture.c - an engine is opened while another thread captures in global mode. CUDA allows no other thread to
 * disturb such a capture. */
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>

#include "tests/gpu/gpu_worker.h"

static struct {
    pthread_t thread;
    int device;
    sem_t began, over;
} capture;

static void *capture_main(void *argument)
{
    (void)argument;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    void *memory = NULL;
    check_cuda(cudaSetDevice(capture.device), "cudaSetDevice");
    check_cuda(cudaMalloc(&memory, 4096), "cudaMalloc");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    check_cuda(cudaMemsetAsync(memory, 0, 4096, stream), "memset");
    sem_post(&capture.began);
    while (sem_wait(&capture.over) != 0) {}
    check_cuda(cudaStreamEndCapture(stream, &graph), "end capture, begun before the engine was opened");
    check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    check_cuda(cudaFree(memory), "cudaFree");
    return NULL;
}

void capture_hold(int device)
{
    capture.device = device;
    sem_init(&capture.began, 0, 0);
    sem_init(&capture.over, 0, 0);
    if (pthread_create(&capture.thread, NULL, capture_main, NULL) != 0) {
        fail("pthread_create");
    }
    while (sem_wait(&capture.began) != 0) {}
}

void scenario_captured(rank *self)
{
    (void)self;
    sem_post(&capture.over);
    pthread_join(capture.thread, NULL);
}
