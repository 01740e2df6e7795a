/*
 * cuda_driver.c - the driver's functions that are called for every operation.
 *
 * CUDA's runtime has the same ones, and they come to these. After a pause its part takes as long again as the driver's: for what a call
 * asks and launches 1 to 4 us of some 20. The runtime also keeps what failed for the thread that asks next, a program that has nothing to
 * do with it; the driver does not. What is rare is left to the runtime.
 */
#include "stages/cuda/cuda_internal.h"

#include <stddef.h>

cudaError_t cuda_find_driver(const char *name, void *where)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t code = cudaGetDriverEntryPointByVersion(name, where, CUDART_VERSION, cudaEnableDefault, &found);
    return code == cudaSuccess && found != cudaDriverEntryPointSuccess ? cudaErrorNotSupported : code;
}

cudaError_t cuda_driver_open(cuda_driver *driver)
{
    static const struct {
        const char *name;
        size_t offset;
    } needed[] = {
        {"cuDeviceGet", offsetof(cuda_driver, get_device)},
        {"cuDevicePrimaryCtxRetain", offsetof(cuda_driver, retain_context)},
        {"cuDevicePrimaryCtxRelease", offsetof(cuda_driver, release_context)},
        {"cuCtxGetCurrent", offsetof(cuda_driver, get_context)},
        {"cuCtxPushCurrent", offsetof(cuda_driver, push_context)},
        {"cuCtxPopCurrent", offsetof(cuda_driver, pop_context)},
        {"cuThreadExchangeStreamCaptureMode", offsetof(cuda_driver, exchange_mode)},
        {"cuStreamIsCapturing", offsetof(cuda_driver, is_capturing)},
        {"cuStreamGetFlags", offsetof(cuda_driver, get_flags)},
        {"cuStreamQuery", offsetof(cuda_driver, query_stream)},
        {"cuEventRecord", offsetof(cuda_driver, record_event)},
        {"cuEventQuery", offsetof(cuda_driver, query_event)},
        {"cuStreamWaitEvent", offsetof(cuda_driver, wait_event)},
        {"cuStreamWaitValue32", offsetof(cuda_driver, wait_value)},
        {"cuStreamWriteValue32", offsetof(cuda_driver, write_value)},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const cudaError_t code = cuda_find_driver(needed[i].name, (char *)driver + needed[i].offset);
        if (code != cudaSuccess) {
            return code;
        }
    }
    if (cuda_find_driver("cuStreamGetId", &driver->get_id) != cudaSuccess) {
        (void)cudaGetLastError();
        driver->get_id = NULL;
    }
    return cudaSuccess;
}
