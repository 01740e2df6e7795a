/*
 * gpu_unchosen.c - a thread that has chosen no device submits and waits. It must have no device afterwards. Setting
 * "the device before" would choose the first GPU and create a context there, of hundreds of MiB, in each process of
 * the machine.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include <cuda.h>

#include "tests/gpu/gpu_worker.h"

enum { COUNT = 1 << 20, ROUNDS = 20, WAYS = 2 };

static struct {
    CUresult (*get_current)(CUcontext *);
    CUresult (*get_device)(CUdevice *, int);
    CUresult (*get_state)(CUdevice, unsigned *, int *);
    bool was_in_use;
} driver;

static void find(const char *name, void *where)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion(name, where, CUDART_VERSION, cudaEnableDefault, &found), name);
    if (found != cudaDriverEntryPointSuccess) {
        fail("the driver has no %s", name);
    }
}

/* True if this process has a context on the first GPU. */
static bool is_first_in_use(void)
{
    CUdevice first = 0;
    unsigned flags = 0;
    int is_active = 0;
    if (driver.get_device(&first, 0) != CUDA_SUCCESS || driver.get_state(first, &flags, &is_active) != CUDA_SUCCESS) {
        fail("the first GPU does not say whether it is in use");
    }
    return is_active != 0;
}

static void expect_none(const char *after)
{
    CUcontext current = NULL;
    int device = -1;
    if (driver.get_current(&current) != CUDA_SUCCESS || current != NULL) {
        fail("after %s the thread has a context", after);
    }
    if (is_first_in_use() != driver.was_in_use) {
        fail("after %s the first GPU has a context", after);
    }
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    if (device != 0) {
        fail("after %s the thread has device %d", after, device);
    }
}

typedef struct visitor {
    rank *self;
    void *memory[WAYS];
} visitor;

static void *unchosen_main(void *argument)
{
    const visitor *own = argument;
    expect_none("its beginning");
    for (int i = 0; i < WAYS; i++) {
        trib_tensor *tensor = declare(own->self, i == 0 ? "small" : "large", TRIB_FLOAT32, i == 0 ? 1000 : COUNT, 0);
        expect_none("trib_tensor_declare");
        for (int round = 0; round < ROUNDS; round++) {
            trib_error error = {.status = TRIB_OK};
            trib_op *op = push_pull(own->self, tensor, own->memory[i], own->memory[i], TRIB_MAX);
            expect_none("trib_push_pull");
            check_status(trib_op_stream_wait(op, own->self->stream, &error), &error, "stream_wait");
            expect_none("trib_op_stream_wait");
            if (round % 2 == 0) {
                wait_for(op);
                expect_none("trib_op_wait");
            } else {
                trib_op_release(op);
            }
        }
    }
    return NULL;
}

void scenario_unchosen(rank *self)
{
    visitor own = {.self = self};
    pthread_t thread;
    find("cuCtxGetCurrent", &driver.get_current);
    find("cuDeviceGet", &driver.get_device);
    find("cuDevicePrimaryCtxGetState", &driver.get_state);
    driver.was_in_use = is_first_in_use(); /* it is this process's own GPU, if there are few */
    for (int i = 0; i < WAYS; i++) {
        check_cuda(cudaMalloc(&own.memory[i], COUNT * sizeof(float)), "cudaMalloc");
        check_cuda(cudaMemset(own.memory[i], 0, COUNT * sizeof(float)), "cudaMemset");
    }
    if (pthread_create(&thread, NULL, unchosen_main, &own) != 0) {
        fail("pthread_create");
    }
    pthread_join(thread, NULL);
    check_cuda(cudaStreamSynchronize(self->stream), "cudaStreamSynchronize");
    printf("rank %d: the first GPU is %sin use\n", self->index, driver.was_in_use ? "" : "not ");
    for (int i = 0; i < WAYS; i++) {
        check_cuda(cudaFree(own.memory[i]), "cudaFree");
    }
}
