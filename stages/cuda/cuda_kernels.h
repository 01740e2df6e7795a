/* cuda_kernels.h - codecs as kernels (cuda_kernels.cu), for the C of the module. */
#ifndef TRIB_STAGES_CUDA_KERNELS_H
#define TRIB_STAGES_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef enum cuda_kernel_codec {
    CUDA_KERNEL_FP16,
    CUDA_KERNEL_BF16,
    CUDA_KERNEL_E4M3,
    CUDA_KERNEL_E5M2,
    CUDA_KERNEL_INT8
} cuda_kernel_codec;

/* float32 elements in chunks, as trib_device_encoding says. */
typedef struct cuda_kernel_work {
    cuda_kernel_codec codec;
    const float *source; /* to encode */
    float *target;       /* to decode to */
    unsigned char *encoded;
    uint64_t count;
    uint32_t chunk_elements, room;
    uint64_t first_element;
    uint64_t key; /* int8: made from seed, tensor, rank and round */
} cuda_kernel_work;

#ifdef __cplusplus
extern "C" {
#endif
/* For the current device, before its first launch. */
cudaError_t cuda_kernels_load(void);
cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_kernels_decode(const cuda_kernel_work *work, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
