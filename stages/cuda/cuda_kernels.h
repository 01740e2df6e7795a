/* cuda_kernels.h - codecs as kernels (cuda_kernels.cu), for the C of the module. */
#ifndef TRIB_STAGES_CUDA_KERNELS_H
#define TRIB_STAGES_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum cuda_kernel_codec {
    CUDA_KERNEL_FP16,
    CUDA_KERNEL_BF16,
    CUDA_KERNEL_E4M3,
    CUDA_KERNEL_E5M2,
    CUDA_KERNEL_INT8,
    CUDA_KERNEL_ONEBIT,
    CUDA_KERNEL_TOPK,
    CUDA_KERNEL_RANDOMK
} cuda_kernel_codec;

/* How decoded elements reach the target. */
typedef enum cuda_kernel_merge {
    CUDA_KERNEL_STORE,    /* they replace what is there */
    CUDA_KERNEL_SUBTRACT, /* the target is a residual: it becomes what encoding has lost of it */
    CUDA_KERNEL_GIVE_BACK /* the target is a residual: what was sent in vain is added; chunks of 0 bytes are left out */
} cuda_kernel_merge;

/* float32 elements in chunks, as trib_device_encoding says. */
typedef struct cuda_kernel_work {
    cuda_kernel_codec codec;
    cuda_kernel_merge merge;
    const float *source; /* to encode */
    float *target;       /* to decode to */
    unsigned char *encoded;
    uint64_t count;
    uint32_t chunk_elements, room;
    uint64_t first_element;
    uint64_t key; /* int8: made from seed, tensor, rank and round; randomk: from tensor and round */
    double ratio; /* topk, randomk: as in trib_codec_params */
    uint32_t k;   /* topk, randomk: the same */
    bool scaling; /* onebit: the same */
} cuda_kernel_work;

/* Arithmetic around a codec: all are arrays of `count` elements, and float32 rounds each operation. */
typedef struct cuda_kernel_gathering {
    const float *source;
    float *momentum; /* NULL: none */
    float *result;   /* what is to be encoded; with feedback it is the residual, which is added before */
    uint64_t count;
    float mu;
    bool is_nesterov, has_feedback;
} cuda_kernel_gathering;

#ifdef __cplusplus
extern "C" {
#endif
/* For the current device, before its first launch. */
cudaError_t cuda_kernels_load(void);
cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_kernels_decode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_kernels_gather(const cuda_kernel_gathering *gathering, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
