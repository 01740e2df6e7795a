/* cuda_chunk.cuh - shared by the kernels: chunks in memory, and what decoded elements do to a target. */
#ifndef TRIB_STAGES_CUDA_CHUNK_CUH
#define TRIB_STAGES_CUDA_CHUNK_CUH

#include "engine/codec/codec_share.h"
#include "stages/cuda/cuda_kernels.h"

#define ENCODED_AT 16u /* TRIB_DEVICE_ENCODED_AT */
#define THREADS 256u
#define PARTS 8u /* blocks for each chunk that is cast or decoded */
#define EVERYBODY 0xffffffffu
#define SIGN 0x80000000u
#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u
#define LARGEST 0x7f7fffffu
#define A_NAN 0x7fc00000u

struct piece {
    uint32_t *size;
    unsigned char *codes; /* behind the number of bytes */
    uint64_t first;       /* element */
    uint32_t count;
};

static __device__ __forceinline__ piece chunk_of(const cuda_kernel_work &work, uint32_t chunk)
{
    piece mine;
    mine.first = (uint64_t)chunk * work.chunk_elements;
    const uint64_t left = work.count - mine.first;
    unsigned char *at = work.encoded + (uint64_t)chunk * work.room;
    mine.size = (uint32_t *)at;
    mine.codes = at + ENCODED_AT;
    mine.count = left < work.chunk_elements ? (uint32_t)left : work.chunk_elements;
    return mine;
}

static inline uint32_t chunks_of(const cuda_kernel_work *work)
{
    return (uint32_t)((work->count + work->chunk_elements - 1) / work->chunk_elements);
}

/* Returns how many elements, from the first on, can be taken by fours. */
static __device__ __forceinline__ uint32_t by_fours(const void *elements, uint32_t count)
{
    return (uintptr_t)elements % 16 == 0 ? count / 4 * 4 : 0;
}

/* A residual that is no finite number is forgotten. */
static __device__ __forceinline__ uint32_t rest_of(uint32_t residual, uint32_t sent, bool subtracts)
{
    const float value = __uint_as_float(subtracts ? sent ^ SIGN : sent);
    const uint32_t rest = __float_as_uint(__fadd_rn(__uint_as_float(residual), value));
    return (rest & MAGNITUDE) < INFINITE ? rest : 0;
}

/* The codecs of the other files. */
cudaError_t cuda_onebit_load(void);
cudaError_t cuda_onebit_encode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_onebit_decode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_sparse_load(void);
cudaError_t cuda_sparse_encode(const cuda_kernel_work *work, cudaStream_t stream);
cudaError_t cuda_sparse_decode(const cuda_kernel_work *work, cudaStream_t stream);

#endif
