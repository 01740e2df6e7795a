/*
 * cuda_visit.c - context guards: calls to CUDA by threads of the program and of the engine.
 *
 * The thread's device and context are left as they were: the device's context is pushed on top, and popped again. To
 * set the device and set it back instead would create a context on the first GPU, for a thread that had not chosen
 * any, in every process of the machine. A thread's context may also be one that the program has made itself.
 *
 * The module's own threads set their device once.
 */
#include "stages/cuda/cuda_internal.h"

cudaError_t cuda_context_open(trib_device *device)
{
    cudaError_t code = cuda_driver_open(&device->driver);
    code = code == cudaSuccess ? (cudaError_t)device->driver.get_device(&device->ordinal, device->index) : code;
    return code == cudaSuccess ? (cudaError_t)device->driver.retain_context(&device->primary, device->ordinal) : code;
}

void cuda_context_close(trib_device *device)
{
    if (device->primary != NULL) {
        (void)device->driver.release_context(device->ordinal);
        device->primary = NULL;
    }
}

cuda_context_guard cuda_context_enter(const trib_device *device)
{
    const cuda_driver *driver = &device->driver;
    cuda_context_guard guard = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    CUcontext current = NULL;
    (void)driver->get_context(&current);
    guard.is_pushed = current != device->primary && driver->push_context(device->primary) == CUDA_SUCCESS;
    (void)driver->exchange_mode(&guard.mode);
    return guard;
}

void cuda_context_leave(const trib_device *device, cuda_context_guard guard)
{
    CUcontext ours = NULL;
    (void)device->driver.exchange_mode(&guard.mode);
    if (guard.is_pushed) {
        (void)device->driver.pop_context(&ours);
    }
}

bool cuda_thread_use(int index)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cudaSetDevice(index) == cudaSuccess && cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
}
