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
    cudaError_t code = cuda_driver_open(&device->driver);
    code = code == cudaSuccess ? (cudaError_t)device->driver.get_device(&device->ordinal, device->index) : code;
    return code == cudaSuccess ? (cudaError_t)device->driver.retain_context(&device->primary, device->ordinal) : code;
}

void cuda_visit_close(trib_device *device)
{
    if (device->primary != NULL) {
        (void)device->driver.release_context(device->ordinal);
        device->primary = NULL;
    }
}

cuda_visit cuda_visit_begin(const trib_device *device)
{
    const cuda_driver *driver = &device->driver;
    cuda_visit visit = {.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    CUcontext current = NULL;
    (void)driver->get_context(&current);
    visit.is_pushed = current != device->primary && driver->push_context(device->primary) == CUDA_SUCCESS;
    (void)driver->exchange_mode(&visit.mode);
    return visit;
}

void cuda_visit_end(const trib_device *device, cuda_visit visit)
{
    CUcontext ours = NULL;
    (void)device->driver.exchange_mode(&visit.mode);
    if (visit.is_pushed) {
        (void)device->driver.pop_context(&ours);
    }
}

bool cuda_thread_use(int index)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cudaSetDevice(index) == cudaSuccess && cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
}
