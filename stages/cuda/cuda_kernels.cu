/*
 * cuda_kernels.cu - codecs on a GPU. They give the bits of the processors' (engine/codec), so no product and sum may
 * become one operation: the intrinsics round each.
 *
 * Several blocks work on a chunk. Where it has a scale they look for the largest element first, and keep what they have
 * read in shared memory for the second look. From compute capability 9 on they are a cluster, whose blocks see each
 * other's largest; before that it is one block. A thread takes four elements at a time where they lie so that it can.
 */
#include <cooperative_groups.h>

#include "stages/cuda/cuda_chunk.cuh"

#define SCALE_BYTES 4u
#define CLUSTER 8u             /* blocks that encode a chunk with a scale together */
#define ALONE_THREADS 1024u    /* threads of a block that works alone */
#define KEPT_BYTES (46u << 10) /* the most of a block */

/* ---- Elements: as in engine/codec/kernels/kernel_loops.h ---- */

struct narrow {
    uint32_t shift, bias, unit, infinity, nan, sign_shift;
};

template <int codec> static __device__ __forceinline__ narrow format_of()
{
    return codec == CUDA_KERNEL_FP16   ? narrow{13, 112, 0x3f000000, 0x7c00, 0x7e00, 16}
           : codec == CUDA_KERNEL_E4M3 ? narrow{20, 120, 0x46800000, 0x7f, 0x7f, 24}
                                       : narrow{21, 112, 0x43000000, 0x7c, 0x7e, 24};
}

static __device__ __forceinline__ uint32_t narrowed(uint32_t bits, narrow format)
{
    const uint32_t magnitude = bits & MAGNITUDE;
    const uint32_t half = (1u << (format.shift - 1)) - 1;
    const uint32_t rounded = magnitude + half + (magnitude >> format.shift & 1) - (format.bias << 23);
    const uint32_t normal = min(rounded >> format.shift, format.infinity);
    const uint32_t small =
        __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(format.unit))) - format.unit;
    const uint32_t number = magnitude < (format.bias + 1) << 23 ? small : normal;
    return magnitude > INFINITE ? format.nan : number | (bits & SIGN) >> format.sign_shift;
}

static __device__ __forceinline__ uint32_t widened(uint32_t magnitude, narrow format)
{
    const uint32_t normal = (magnitude << format.shift) + (format.bias << 23);
    const uint32_t small =
        __float_as_uint(__fsub_rn(__uint_as_float(format.unit + magnitude), __uint_as_float(format.unit)));
    return magnitude < 1u << (23 - format.shift) ? small : normal;
}

/* Values that a chunk's elements share: the scale, or its inverse, and the key of the numbers that they draw. */
struct shared_part {
    float factor;
    uint32_t key[2], first;
};

template <int codec> static __device__ __forceinline__ uint32_t encoded_of(uint32_t bits, uint32_t i, shared_part part)
{
    if (codec == CUDA_KERNEL_FP16) {
        return narrowed(bits, format_of<codec>());
    }
    if (codec == CUDA_KERNEL_BF16) {
        return (bits & MAGNITUDE) > INFINITE ? 0x7fc0u : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    if (codec != CUDA_KERNEL_INT8) {
        return narrowed(__float_as_uint(__fmul_rn(__uint_as_float(bits), part.factor)), format_of<codec>());
    }
    const bool is_finite = (bits & MAGNITUDE) < INFINITE;
    const float value = __fmul_rn(is_finite ? __uint_as_float(bits) : 0.0f, part.factor);
    const int32_t fixed = (int32_t)__fmul_rn(value, 0x1p24f);
    uint32_t drawn = (part.first + i) ^ part.key[0];
    drawn = (drawn ^ drawn >> 16) * 0x7feb352du + part.key[1];
    drawn = (drawn ^ drawn >> 15) * 0x846ca68bu >> 8;
    return is_finite ? (uint32_t)((fixed + (int32_t)drawn) >> 24) & 0xffu : 0x80u;
}

template <int codec> static __device__ __forceinline__ uint32_t decoded_of(uint32_t code, shared_part part)
{
    if (codec == CUDA_KERNEL_BF16) {
        return (code & 0x7fffu) > 0x7f80u ? A_NAN : code << 16;
    }
    if (codec == CUDA_KERNEL_INT8) {
        const uint32_t product = __float_as_uint(__fmul_rn((float)(int8_t)code, part.factor));
        return code == 0x80u ? A_NAN : min(product & MAGNITUDE, LARGEST) | (product & SIGN);
    }
    const narrow format = format_of<codec>();
    const uint32_t top = codec == CUDA_KERNEL_FP16 ? 0x8000u : 0x80u;
    const uint32_t magnitude = code & (top - 1), sign = (code & top) << format.sign_shift;
    uint32_t number = widened(magnitude, format);
    if (codec != CUDA_KERNEL_FP16) {
        number = min(__float_as_uint(__fmul_rn(__uint_as_float(number), part.factor)), LARGEST);
    }
    const bool is_nan = codec == CUDA_KERNEL_E4M3 ? magnitude == format.nan : magnitude > format.infinity;
    const uint32_t special = is_nan ? A_NAN : INFINITE | sign;
    return is_nan || (codec != CUDA_KERNEL_E4M3 && magnitude == format.infinity) ? special : number | sign;
}

/* ---- Chunks ---- */

template <int codec> static __device__ piece piece_of(const cuda_kernel_work &work, uint32_t chunk)
{
    const bool is_cast = codec == CUDA_KERNEL_FP16 || codec == CUDA_KERNEL_BF16;
    piece mine = chunk_of(work, chunk);
    mine.codes += is_cast ? 0 : SCALE_BYTES;
    return mine;
}

/* Codes of four elements lie on 4 bytes, or on 8. */
template <int codec> static __device__ __forceinline__ void put_codes(unsigned char *codes, uint32_t i, uint4 four)
{
    if (codec == CUDA_KERNEL_FP16 || codec == CUDA_KERNEL_BF16) {
        ((uint2 *)codes)[i / 4] = make_uint2(four.x | four.y << 16, four.z | four.w << 16);
    } else {
        ((uint32_t *)codes)[i / 4] = four.x | four.y << 8 | four.z << 16 | four.w << 24;
    }
}

template <int codec> static __device__ __forceinline__ uint4 get_codes(const unsigned char *codes, uint32_t i)
{
    if (codec == CUDA_KERNEL_FP16 || codec == CUDA_KERNEL_BF16) {
        const uint2 two = ((const uint2 *)codes)[i / 4];
        return make_uint4(two.x & 0xffffu, two.x >> 16, two.y & 0xffffu, two.y >> 16);
    }
    const uint32_t one = ((const uint32_t *)codes)[i / 4];
    return make_uint4(one & 0xffu, one >> 8 & 0xffu, one >> 16 & 0xffu, one >> 24);
}

template <int codec> static __device__ __forceinline__ uint32_t get_code(const unsigned char *codes, uint32_t i)
{
    return codec == CUDA_KERNEL_FP16 || codec == CUDA_KERNEL_BF16 ? ((const uint16_t *)codes)[i] : codes[i];
}

template <int codec> static __device__ __forceinline__ void put_code(unsigned char *codes, uint32_t i, uint32_t code)
{
    if (codec == CUDA_KERNEL_FP16 || codec == CUDA_KERNEL_BF16) {
        ((uint16_t *)codes)[i] = (uint16_t)code;
    } else {
        codes[i] = (unsigned char)code;
    }
}

/* Elements that a thread has read before, in the order in which it takes them. */
extern __shared__ uint4 kept[];

static __device__ __forceinline__ uint32_t kept_fours()
{
    uint32_t bytes;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
    return bytes / 16;
}

/* Every thread of a block has kept up to `fours` / block size groups of four. */
template <int codec>
static __device__ __forceinline__ void encode_part(const uint32_t *bits, const piece &mine, const shared_part &part,
                                                   uint32_t thread, uint32_t threads, uint32_t fours)
{
    const uint32_t wide = by_fours(bits, mine.count);
    uint32_t at = threadIdx.x;
#pragma unroll 4
    for (uint32_t i = thread * 4; i < wide; i += threads * 4, at += blockDim.x) {
        const uint4 b = at < fours ? kept[at] : ((const uint4 *)bits)[i / 4];
        put_codes<codec>(mine.codes, i,
                         make_uint4(encoded_of<codec>(b.x, i, part), encoded_of<codec>(b.y, i + 1, part),
                                    encoded_of<codec>(b.z, i + 2, part), encoded_of<codec>(b.w, i + 3, part)));
    }
    for (uint32_t i = wide + thread; i < mine.count; i += threads) {
        put_code<codec>(mine.codes, i, encoded_of<codec>(bits[i], i, part));
    }
}

template <int codec> static __global__ void cast_kernel(cuda_kernel_work work)
{
    const piece mine = piece_of<codec>(work, blockIdx.x);
    encode_part<codec>((const uint32_t *)work.source + mine.first, mine, shared_part(),
                       blockIdx.y * THREADS + threadIdx.x, PARTS * THREADS, 0);
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        *mine.size = mine.count * 2;
    }
}

static __device__ __forceinline__ uint32_t larger(uint32_t most, uint32_t bits)
{
    const uint32_t magnitude = bits & MAGNITUDE;
    return magnitude < INFINITE ? max(most, magnitude) : most;
}

/* Returns the bits of the largest finite magnitude of the chunk, to all threads of its `blocks` blocks. */
template <uint32_t blocks>
static __device__ uint32_t largest_finite(const uint32_t *bits, uint32_t count, uint32_t thread, uint32_t threads,
                                          uint32_t fours)
{
    __shared__ uint32_t most;
    const uint32_t wide = by_fours(bits, count);
    if (threadIdx.x == 0) {
        most = 0;
    }
    __syncthreads();
    uint32_t own = 0, at = threadIdx.x;
#pragma unroll 4
    for (uint32_t i = thread * 4; i < wide; i += threads * 4, at += blockDim.x) {
        const uint4 b = ((const uint4 *)bits)[i / 4];
        if (at < fours) {
            kept[at] = b;
        }
        own = larger(larger(larger(larger(own, b.x), b.y), b.z), b.w);
    }
    for (uint32_t i = wide + thread; i < count; i += threads) {
        own = larger(own, bits[i]);
    }
    for (int apart = 16; apart > 0; apart /= 2) {
        own = max(own, __shfl_xor_sync(0xffffffffu, own, apart));
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(&most, own);
    }
    __syncthreads();
    own = most;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
        cluster.sync();
        for (uint32_t i = 0; i < blocks; i++) {
            own = max(own, *cluster.map_shared_rank(&most, i));
        }
        cluster.sync(); /* a block may end only when the others have read its memory */
    }
#endif
    return own;
}

/* Returns the smallest 2^e, e >= -126, with largest <= limit * 2^e. */
static __device__ float power_of_two_scale(uint32_t largest, float limit)
{
    const uint32_t most = __float_as_uint(limit);
    const int power = (int)(largest >> 23) - (int)(most >> 23) + ((largest & 0x7fffff) > (most & 0x7fffff) ? 1 : 0);
    return __uint_as_float((uint32_t)((power < -126 ? -126 : power) + 127) << 23);
}

template <int codec, uint32_t blocks> static __global__ void scaled_kernel(cuda_kernel_work work)
{
    const piece mine = piece_of<codec>(work, blockIdx.x / blocks);
    const uint32_t thread = blockIdx.x % blocks * blockDim.x + threadIdx.x, threads = blocks * blockDim.x;
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    const uint32_t fours = kept_fours(), largest = largest_finite<blocks>(bits, mine.count, thread, threads, fours);
    shared_part part = shared_part();
    float scale;
    if (codec == CUDA_KERNEL_INT8) {
        const float range = fmaxf(__uint_as_float(largest), 0x1p-118f);
        const uint64_t first = work.first_element + mine.first, key = codec_mix(work.key, first >> 32);
        part.factor = __fdiv_rn(127.0f, range);
        if ((double)part.factor * (double)range > 127.0) {
            part.factor = __uint_as_float(__float_as_uint(part.factor) - 1);
        }
        part.key[0] = (uint32_t)key;
        part.key[1] = (uint32_t)(key >> 32);
        part.first = (uint32_t)first;
        scale = __fdiv_rn(range, 127.0f);
    } else {
        scale = power_of_two_scale(largest, codec == CUDA_KERNEL_E4M3 ? 448.0f : 57344.0f);
        part.factor = __fdiv_rn(1.0f, scale);
    }
    encode_part<codec>(bits, mine, part, thread, threads, fours);
    if (thread == 0) {
        *(float *)(mine.codes - SCALE_BYTES) = scale;
        *mine.size = SCALE_BYTES + mine.count;
    }
}

template <int codec, int merge>
static __device__ __forceinline__ uint32_t merged(uint32_t old, uint32_t code, shared_part part)
{
    const uint32_t value = decoded_of<codec>(code, part);
    return merge == CUDA_KERNEL_STORE ? value : rest_of(old, value, merge == CUDA_KERNEL_SUBTRACT);
}

template <int codec, int merge> static __global__ void decode_kernel(cuda_kernel_work work)
{
    const piece mine = piece_of<codec>(work, blockIdx.x);
    uint32_t *bits = (uint32_t *)work.target + mine.first;
    const uint32_t wide = by_fours(bits, mine.count), thread = blockIdx.y * THREADS + threadIdx.x;
    const bool reads = merge != CUDA_KERNEL_STORE;
    shared_part part = shared_part();
    if (merge == CUDA_KERNEL_GIVE_BACK && *mine.size == 0) {
        return;
    }
    if (codec != CUDA_KERNEL_FP16 && codec != CUDA_KERNEL_BF16) {
        part.factor = *(const float *)(mine.codes - SCALE_BYTES);
    }
    for (uint32_t i = thread * 4; i < wide; i += PARTS * THREADS * 4) {
        const uint4 c = get_codes<codec>(mine.codes, i), old = reads ? ((const uint4 *)bits)[i / 4] : uint4();
        ((uint4 *)bits)[i / 4] =
            make_uint4(merged<codec, merge>(old.x, c.x, part), merged<codec, merge>(old.y, c.y, part),
                       merged<codec, merge>(old.z, c.z, part), merged<codec, merge>(old.w, c.w, part));
    }
    for (uint32_t i = wide + thread; i < mine.count; i += PARTS * THREADS) {
        bits[i] = merged<codec, merge>(reads ? bits[i] : 0, get_code<codec>(mine.codes, i), part);
    }
}

/* ---- Momentum and feedback: as in engine/codec/stateful.c ---- */

/* Where the result is no number, the one that x86's processors give. */
static __device__ __forceinline__ float times(float left, float right)
{
    const float product = __fmul_rn(left, right);
    return isnan(right) ? right : isnan(product) ? __uint_as_float(A_NAN | SIGN) : product;
}

static __device__ __forceinline__ float added(float left, float right)
{
    const float sum = __fadd_rn(left, right);
    const uint32_t quiet = 0x400000u;
    return !isnan(sum)    ? sum
           : isnan(left)  ? __uint_as_float(__float_as_uint(left) | quiet)
           : isnan(right) ? __uint_as_float(__float_as_uint(right) | quiet)
                          : __uint_as_float(A_NAN | SIGN);
}

static __global__ void gather_kernel(cuda_kernel_gathering of)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= of.count) {
        return;
    }
    float value = of.source[i];
    if (of.momentum != NULL) {
        const float momentum = added(value, times(of.mu, of.momentum[i]));
        of.momentum[i] = momentum;
        value = of.is_nesterov ? added(value, times(of.mu, momentum)) : momentum;
    }
    of.result[i] = of.has_feedback ? added(value, of.result[i]) : value;
}

/* ---- Launches ---- */

typedef void kernel(cuda_kernel_work work);

struct coder {
    kernel *encode, *encode_together; /* the last one, a cluster's, for codecs with a scale; NULL: has none */
    kernel *decode[3];                /* by cuda_kernel_merge */
};

#define DECODE(codec)                                                                                                  \
    {                                                                                                                  \
        decode_kernel<codec, CUDA_KERNEL_STORE>, decode_kernel<codec, CUDA_KERNEL_SUBTRACT>,                           \
            decode_kernel<codec, CUDA_KERNEL_GIVE_BACK>                                                                \
    }
#define SCALED(codec)                                                                                                  \
    {                                                                                                                  \
        scaled_kernel<codec, 1>, scaled_kernel<codec, CLUSTER>, DECODE(codec)                                          \
    }
static const coder coders[] = {
    {cast_kernel<CUDA_KERNEL_FP16>, NULL, DECODE(CUDA_KERNEL_FP16)},
    {cast_kernel<CUDA_KERNEL_BF16>, NULL, DECODE(CUDA_KERNEL_BF16)},
    SCALED(CUDA_KERNEL_E4M3),
    SCALED(CUDA_KERNEL_E5M2),
    SCALED(CUDA_KERNEL_INT8),
};

cudaError_t cuda_kernels_load(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, gather_kernel);
    for (const coder &one : coders) {
        for (kernel *each : {one.encode, one.encode_together, one.decode[0], one.decode[1], one.decode[2]}) {
            code = code != cudaSuccess || each == NULL ? code : cudaFuncGetAttributes(&attributes, each);
        }
    }
    code = code != cudaSuccess ? code : cuda_onebit_load();
    return code != cudaSuccess ? code : cuda_sparse_load();
}

/* True if the kernel that the current device has was compiled for clusters. */
static bool has_clusters(kernel *together)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, together) == cudaSuccess && attributes.ptxVersion >= 90 &&
           attributes.binaryVersion >= 90;
}

static cudaError_t encode_scaled(const coder *one, const cuda_kernel_work *work, cudaStream_t stream)
{
    const bool together = has_clusters(one->encode_together);
    const uint32_t blocks = together ? CLUSTER : 1, threads = together ? THREADS : ALONE_THREADS;
    const uint64_t kept_bytes = ((uint64_t)work->chunk_elements / 4 / blocks + threads) * 16;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(chunks_of(work) * blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = kept_bytes < KEPT_BYTES ? kept_bytes : KEPT_BYTES;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = together ? 1 : 0;
    return cudaLaunchKernelEx(&config, together ? one->encode_together : one->encode, *work);
}

cudaError_t cuda_kernels_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    if (work->codec >= CUDA_KERNEL_ONEBIT) {
        return (work->codec == CUDA_KERNEL_ONEBIT ? cuda_onebit_encode : cuda_sparse_encode)(work, stream);
    }
    const coder *one = &coders[work->codec];
    if (one->encode_together != NULL) {
        return encode_scaled(one, work, stream);
    }
    one->encode<<<dim3(chunks_of(work), PARTS), THREADS, 0, stream>>>(*work);
    return cudaGetLastError();
}

cudaError_t cuda_kernels_decode(const cuda_kernel_work *work, cudaStream_t stream)
{
    if (work->codec >= CUDA_KERNEL_ONEBIT) {
        return (work->codec == CUDA_KERNEL_ONEBIT ? cuda_onebit_decode : cuda_sparse_decode)(work, stream);
    }
    coders[work->codec].decode[work->merge]<<<dim3(chunks_of(work), PARTS), THREADS, 0, stream>>>(*work);
    return cudaGetLastError();
}

cudaError_t cuda_kernels_gather(const cuda_kernel_gathering *gathering, cudaStream_t stream)
{
    gather_kernel<<<dim3((uint32_t)((gathering->count + THREADS - 1) / THREADS)), THREADS, 0, stream>>>(*gathering);
    return cudaGetLastError();
}
