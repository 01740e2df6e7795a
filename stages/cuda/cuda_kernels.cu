/*
 * cuda_kernels.cu - codecs on a GPU. They give the bits of the processors' (engine/codec), so no product and sum may
 * become one operation: the intrinsics round each.
 *
 * A block encodes a chunk, or a part of it. What an encoded chunk has is copied to the host at once, so the kernels
 * keep up with PCIe; device memory could carry more.
 */
#include "stages/cuda/cuda_kernels.h"

#define ENCODED_AT 16u /* TRIB_DEVICE_ENCODED_AT */
#define THREADS 256u
#define PARTS 8u /* blocks for each chunk of a cast */
#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

static __device__ uint16_t half_of(uint32_t bits)
{
    const uint32_t magnitude = bits & MAGNITUDE;
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23);
    const uint32_t normal = min(rounded >> 13, 0x7c00u);
    const uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3f000000u;
    const uint32_t number = magnitude < 113u << 23 ? small : normal;
    return (uint16_t)(magnitude > INFINITE ? 0x7e00u : number | (bits & ~MAGNITUDE) >> 16);
}

static __device__ uint16_t bfloat_of(uint32_t bits)
{
    return (uint16_t)((bits & MAGNITUDE) > INFINITE ? 0x7fc0u : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

typedef struct piece {
    const float *source;
    unsigned char *target; /* of the encoded bytes */
    uint32_t *size;
    uint32_t count;
    uint64_t first_element;
} piece;

static __device__ piece piece_of(const cuda_kernel_work &work, uint32_t chunk)
{
    const uint64_t first = (uint64_t)chunk * work.chunk_elements, left = work.count - first;
    unsigned char *target = work.target + (uint64_t)chunk * work.room;
    piece mine;
    mine.source = work.source + first;
    mine.target = target + ENCODED_AT;
    mine.size = (uint32_t *)target;
    mine.count = left < work.chunk_elements ? (uint32_t)left : work.chunk_elements;
    mine.first_element = work.first_element + first;
    return mine;
}

static __global__ void cast_kernel(cuda_kernel_work work)
{
    const piece mine = piece_of(work, blockIdx.x);
    uint16_t *halves = (uint16_t *)mine.target;
    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < mine.count; i += PARTS * THREADS) {
        const uint32_t bits = __float_as_uint(mine.source[i]);
        halves[i] = work.codec == CUDA_KERNEL_FP16 ? half_of(bits) : bfloat_of(bits);
    }
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        *mine.size = mine.count * 2;
    }
}

static __device__ uint64_t mixed(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) + 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return hash ^ hash >> 31;
}

/* Returns the bits of the largest finite magnitude of the chunk, to all threads. */
static __device__ uint32_t largest_finite(const piece &mine)
{
    __shared__ uint32_t most;
    if (threadIdx.x == 0) {
        most = 0;
    }
    __syncthreads();
    uint32_t own = 0;
    for (uint32_t i = threadIdx.x; i < mine.count; i += THREADS) {
        const uint32_t magnitude = __float_as_uint(mine.source[i]) & MAGNITUDE;
        own = magnitude < INFINITE ? max(own, magnitude) : own;
    }
    atomicMax(&most, own);
    __syncthreads();
    return most;
}

static __global__ void int8_kernel(cuda_kernel_work work)
{
    const piece mine = piece_of(work, blockIdx.x);
    const float range = fmaxf(__uint_as_float(largest_finite(mine)), 0x1p-118f);
    float inverse = __fdiv_rn(127.0f, range);
    if ((double)inverse * (double)range > 127.0) {
        inverse = __uint_as_float(__float_as_uint(inverse) - 1);
    }
    const uint64_t key = mixed(work.key, mine.first_element >> 32);
    const uint32_t first = (uint32_t)mine.first_element;
    for (uint32_t i = threadIdx.x; i < mine.count; i += THREADS) {
        const uint32_t bits = __float_as_uint(mine.source[i]);
        const bool is_finite = (bits & MAGNITUDE) < INFINITE;
        const float value = __fmul_rn(is_finite ? __uint_as_float(bits) : 0.0f, inverse);
        const int32_t fixed = (int32_t)__fmul_rn(value, 0x1p24f);
        uint32_t drawn = (first + i) ^ (uint32_t)key;
        drawn = (drawn ^ drawn >> 16) * 0x7feb352du + (uint32_t)(key >> 32);
        drawn = (drawn ^ drawn >> 15) * 0x846ca68bu >> 8;
        mine.target[4 + i] = is_finite ? (unsigned char)((fixed + (int32_t)drawn) >> 24) : 0x80;
    }
    if (threadIdx.x == 0) {
        *(float *)mine.target = __fdiv_rn(range, 127.0f);
        *mine.size = 4 + mine.count;
    }
}

cudaError_t cuda_kernels_load(void)
{
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, cast_kernel);
    return code != cudaSuccess ? code : cudaFuncGetAttributes(&attributes, int8_kernel);
}

cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    const uint32_t chunks = (uint32_t)((work->count + work->chunk_elements - 1) / work->chunk_elements);
    if (work->codec == CUDA_KERNEL_INT8) {
        int8_kernel<<<chunks, THREADS, 0, stream>>>(*work);
    } else {
        cast_kernel<<<dim3(chunks, PARTS), THREADS, 0, stream>>>(*work);
    }
    return cudaGetLastError();
}
