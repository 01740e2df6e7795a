/*
 * cuda_visit.c - calls to CUDA by threads that are not ours.
 *
 * Which device and context such a thread has is its own affair, and is left as it was: what we need is put on top of it, and taken away
 * again. To choose another device and then the one before would make a context on that, for a thread that had chosen none: on the first
 * GPU, in every process of the machine. And a thread's context may be one that the program has made itself.
 *
 * Our own threads just choose their device.
 */
#include "stages/cuda/cuda_internal.h"

cudaError_t cuda_visit_open(trib_device *device)
{
    cuda_context *own = &device->context;
    CUresult (*get_device)(CUdevice *, int) = NULL;
    CUresult (*retain)(CUcontext *, CUdevice) = NULL;
    cudaError_t code = cuda_find_driver("cuDeviceGet", &get_device);
    code = code == cudaSuccess ? cuda_find_driver("cuDevicePrimaryCtxRetain", &retain) : code;
    code = code == cudaSuccess ? cuda_find_driver("cuDevicePrimaryCtxRelease", &own->release) : code;
    code = code == cudaSuccess ? cuda_find_driver("cuCtxGetCurrent", &own->get_current) : code;
    code = code == cudaSuccess ? cuda_find_driver("cuCtxPushCurrent", &own->push) : code;
    code = code == cudaSuccess ? cuda_find_driver("cuCtxPopCurrent", &own->pop) : code;
    /* The driver's errors have the numbers of the runtime's. */
    code = code == cudaSuccess ? (cudaError_t)get_device(&own->device, device->index) : code;
    return code == cudaSuccess ? (cudaError_t)retain(&own->primary, own->device) : code;
}

void cuda_visit_close(trib_device *device)
{
    cuda_context *own = &device->context;
    if (own->primary != NULL) {
        (void)own->release(own->device);
        own->primary = NULL;
    }
}

cuda_visit cuda_visit_begin(const trib_device *device)
{
    const cuda_context *own = &device->context;
    cuda_visit visit = {.mode = cudaStreamCaptureModeRelaxed};
    CUcontext current = NULL;
    (void)own->get_current(&current);
    visit.is_pushed = current != own->primary && own->push(own->primary) == CUDA_SUCCESS;
    (void)cudaThreadExchangeStreamCaptureMode(&visit.mode);
    return visit;
}

void cuda_visit_end(const trib_device *device, cuda_visit visit)
{
    CUcontext ours = NULL;
    (void)cudaThreadExchangeStreamCaptureMode(&visit.mode);
    if (visit.is_pushed) {
        (void)device->context.pop(&ours);
    }
}

bool cuda_thread_use(int index)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cudaSetDevice(index) == cudaSuccess && cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
}
