/*
 * cuda_driver.c - functions of the driver on the hot path.
 *
 * The functions of CUDA's runtime call these. After a pause the runtime's part takes as long again: 1 to 4 us of the
 * 20 us of a call and its launches. The runtime also keeps an error for the thread's next cudaGetLastError, where the
 * program would find it; the driver does not. Rare calls are made through the runtime.
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
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const cudaError_t code = cuda_find_driver(needed[i].name, (char *)driver + needed[i].offset);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}
