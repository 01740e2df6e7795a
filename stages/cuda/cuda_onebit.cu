/*
 * cuda_onebit.cu - onebit on a GPU: the signs of elements, and their mean magnitude.
 *
 * The processors' mean is a sum in float64, element after element, and this one has the same bits. While the sum stays
 * between two powers of two its unit u is the same, and adding an element adds the element's nearest multiple of u,
 * which does not depend on the sum, unless the element lies right between two. Multiples of u add up exactly, in any
 * order. So threads round a group of elements to that unit and add them up; only where the sum would pass the next
 * power of two, or an element lies in the middle, smaller groups are tried, and single elements last.
 */
#include "stages/cuda/cuda_chunk.cuh"

#define WARPS 16u
#define OWN 32           /* elements of a thread, and words of a warp */
#define TILE (32u * OWN) /* elements of a warp */
#define GROUP 8
#define HIGH_BITS 0x7ff0000000000000ll
#define LEAST 0x1p-900 /* smaller sums, which no float32 makes but 0, are not looked at */

static __device__ __forceinline__ double over_warp(double sum)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        sum = __dadd_rn(sum, __shfl_xor_sync(EVERYBODY, sum, apart));
    }
    return sum;
}

/* Returns the largest power of two that is not larger. */
static __device__ __forceinline__ double power_below(double sum)
{
    return __longlong_as_double(__double_as_longlong(sum) & HIGH_BITS);
}

/* The magnitudes of a group, rounded to the unit of sums from `power` on. */
struct rounded_group {
    double sum;
    bool has_middle;
};

template <int first, int count>
static __device__ __forceinline__ rounded_group round_group(const float (&own)[OWN], double power)
{
    const double middle = power * 0x1p-53;
    rounded_group group = {0, false};
#pragma unroll
    for (int j = first; j < first + count; j++) {
        const double value = (double)fabsf(own[j]);
        const double rounded = __dsub_rn(__dadd_rn(power, value), power);
        group.has_middle |= fabs(__dsub_rn(value, rounded)) == middle;
        group.sum = __dadd_rn(group.sum, rounded);
    }
    group.sum = over_warp(group.sum);
    group.has_middle = __any_sync(EVERYBODY, group.has_middle);
    return group;
}

/* Returns whether the group's sum may be added at once, and adds it. A group of zeros always may. */
static __device__ __forceinline__ bool add_group(double *total, const rounded_group &group, double power)
{
    const double sum = __dadd_rn(*total, group.sum);
    const bool may = power_below(*total) == power && power >= LEAST && !group.has_middle && sum < 2 * power;
    *total = may ? sum : *total;
    return may;
}

/* Adds elements whose order is that of j, then of the threads. */
template <int j> static __device__ __forceinline__ void add_one_by_one(double *total, const float (&own)[OWN])
{
    const double power = power_below(*total);
    if (!__any_sync(EVERYBODY, own[j] != 0) || add_group(total, round_group<j, 1>(own, power), power)) {
        return;
    }
    for (int from = 0; from < 32; from++) {
        *total = __dadd_rn(*total, (double)fabsf(__shfl_sync(EVERYBODY, own[j], from)));
    }
}

template <int first> static __device__ void add_eight(double *total, const float (&own)[OWN])
{
    const double power = power_below(*total);
    if (add_group(total, round_group<first, GROUP>(own, power), power)) {
        return;
    }
    add_one_by_one<first>(total, own);
    add_one_by_one<first + 1>(total, own);
    add_one_by_one<first + 2>(total, own);
    add_one_by_one<first + 3>(total, own);
    add_one_by_one<first + 4>(total, own);
    add_one_by_one<first + 5>(total, own);
    add_one_by_one<first + 6>(total, own);
    add_one_by_one<first + 7>(total, own);
}

/* The memory that the warps of a block share. */
struct shared_sum {
    double total, rough[WARPS];
};

/* Adds the tiles of a block to the total, one warp after the other. The power of two below the sum before each is
 * guessed from rough sums; where the guess is wrong smaller groups are tried. */
static __device__ void add_tiles(shared_sum *shared, const float (&own)[OWN])
{
    const uint32_t warp = threadIdx.x / 32;
    double rough = 0;
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        rough += (double)fabsf(own[j]);
    }
    rough = over_warp(rough);
    if (threadIdx.x % 32 == 0) {
        shared->rough[warp] = rough;
    }
    __syncthreads();
    double before = shared->total;
    for (uint32_t i = 0; i < warp; i++) {
        before += shared->rough[i];
    }
    const double power = power_below(before);
    const rounded_group group = round_group<0, OWN>(own, power);
    for (uint32_t turn = 0; turn < WARPS; turn++) {
        __syncthreads(); /* all have read the total, and the warp before has written it */
        if (turn == warp && rough != 0) {
            double total = shared->total;
            __syncwarp(); /* all have read it */
            if (!isfinite(total) || !isfinite(rough)) {
                total += rough; /* infinite or a NaN in any order */
            } else if (!add_group(&total, group, power)) {
                add_eight<0>(&total, own);
                add_eight<GROUP>(&total, own);
                add_eight<2 * GROUP>(&total, own);
                add_eight<3 * GROUP>(&total, own);
            }
            shared->total = total; /* the same for all threads of the warp */
        }
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(WARPS * 32) onebit_kernel(cuda_kernel_work work)
{
    __shared__ shared_sum shared;
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    const uint32_t lane = threadIdx.x % 32, words = (mine.count + 31) / 32;
    uint32_t *packed = (uint32_t *)mine.codes;
    if (threadIdx.x == 0) {
        shared.total = 0;
    }
    __syncthreads();
    for (uint32_t tile = threadIdx.x / 32 * TILE; tile / TILE / WARPS * TILE * WARPS < mine.count;
         tile += WARPS * TILE) {
        float own[OWN];
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const uint64_t i = (uint64_t)tile + j * 32 + lane;
            own[j] = __uint_as_float(i < mine.count ? bits[i] : 0);
        }
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const uint32_t element = __float_as_uint(own[j]);
            const uint32_t below = __ballot_sync(EVERYBODY, element > SIGN && element <= (SIGN | INFINITE));
            word = lane == j ? __brev(below) : word;
        }
        if (tile / 32 + lane < words) {
            packed[tile / 32 + lane] = word;
        }
        if (work.scaling) {
            add_tiles(&shared, own);
        }
    }
    if (threadIdx.x == 0) {
        const double mean = __ddiv_rn(shared.total, (double)mine.count);
        packed[words] = !work.scaling ? 0x3f800000u : isnan(mean) ? A_NAN : __float_as_uint(__double2float_rn(mean));
        *mine.size = words * 4 + 4;
    }
}

template <int merge> static __device__ __forceinline__ uint32_t merged(const uint32_t *at, uint32_t value)
{
    return merge == CUDA_KERNEL_STORE ? value : rest_of(*at, value, merge == CUDA_KERNEL_SUBTRACT);
}

template <int merge> static __global__ void spread_kernel(cuda_kernel_work work)
{
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *packed = (const uint32_t *)mine.codes;
    const uint32_t wide = by_fours((uint32_t *)work.target + mine.first, mine.count);
    const uint32_t magnitude = packed[(mine.count + 31) / 32], thread = blockIdx.y * THREADS + threadIdx.x;
    uint32_t *bits = (uint32_t *)work.target + mine.first;
    if (merge == CUDA_KERNEL_GIVE_BACK && *mine.size == 0) {
        return;
    }
    for (uint32_t i = thread * 4; i < wide; i += PARTS * THREADS * 4) {
        const uint32_t four = packed[i / 32] << i % 32;
        uint4 made = make_uint4(magnitude ^ (four & SIGN), magnitude ^ (four << 1 & SIGN),
                                magnitude ^ (four << 2 & SIGN), magnitude ^ (four << 3 & SIGN));
        if (merge != CUDA_KERNEL_STORE) {
            const uint4 old = ((const uint4 *)bits)[i / 4];
            made = make_uint4(merged<merge>(&old.x, made.x), merged<merge>(&old.y, made.y),
                              merged<merge>(&old.z, made.z), merged<merge>(&old.w, made.w));
        }
        ((uint4 *)bits)[i / 4] = made;
    }
    for (uint32_t i = wide + thread; i < mine.count; i += PARTS * THREADS) {
        bits[i] = merged<merge>(&bits[i], magnitude ^ (packed[i / 32] << i % 32 & SIGN));
    }
}

typedef void kernel(cuda_kernel_work work);
static kernel *const spreads[] = {spread_kernel<CUDA_KERNEL_STORE>, spread_kernel<CUDA_KERNEL_SUBTRACT>,
                                  spread_kernel<CUDA_KERNEL_GIVE_BACK>};

cudaError_t cuda_onebit_load(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, onebit_kernel);
    for (kernel *each : spreads) {
        code = code != cudaSuccess ? code : cudaFuncGetAttributes(&attributes, each);
    }
    return code;
}

cudaError_t cuda_onebit_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    onebit_kernel<<<dim3(chunks_of(work)), WARPS * 32, 0, stream>>>(*work);
    return cudaGetLastError();
}

cudaError_t cuda_onebit_decode(const cuda_kernel_work *work, cudaStream_t stream)
{
    spreads[work->merge]<<<dim3(chunks_of(work), PARTS), THREADS, 0, stream>>>(*work);
    return cudaGetLastError();
}
