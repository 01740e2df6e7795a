/*
 * cuda_onebit.cu - onebit on a GPU: the signs of elements, and their mean magnitude.
 *
 * The processors' mean is a sum in float64, element after element, and this one has the same bits. While the sum stays
 * between two powers of two it is n times the same unit, and adding an element adds a whole number of units: the
 * nearest, and right between two the one that makes n even. So a run of elements adds one of two numbers, by whether n
 * is even before it. Each thread finds both for a run of its own, and threads compose these in order, as a scan. Only a
 * run in which the sum may pass a power of two waits for the sum before it, and adds its elements to that.
 */
#include "stages/cuda/cuda_chunk.cuh"

#define WARPS 8u
#define RUN 32 /* elements of a thread, and of a word */
#define FOURS (RUN / 4)
#define TILE (32u * RUN) /* elements of a warp */
#define HIGH_BITS 0x7ff0000000000000ll
#define ROUGHLY 0x1p-30 /* more than sums in different orders differ by */

/* Units that a run adds to an even and to an odd number of them, times the unit. */
struct added {
    double to_even, to_odd;
};

/* Returns the largest power of two that is not larger. */
static __device__ __forceinline__ double power_below(double sum)
{
    return __longlong_as_double(__double_as_longlong(sum) & HIGH_BITS);
}

static __device__ __forceinline__ bool is_odd(double sum)
{
    return (__double_as_longlong(sum) & 1) != 0;
}

static __device__ __forceinline__ double add_run(double sum, const uint32_t (&own)[RUN])
{
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        sum = __dadd_rn(sum, (double)__uint_as_float(own[j] & MAGNITUDE));
    }
    return sum;
}

/* A run that stays between the power and twice that. */
static __device__ __forceinline__ added added_by_run(double power, const uint32_t (&own)[RUN])
{
    const double odd = __dadd_rn(power, __dmul_rn(power, 0x1p-52));
    double to_even = power, to_odd = odd;
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        const double value = (double)__uint_as_float(own[j] & MAGNITUDE);
        to_even = __dadd_rn(to_even, value);
        to_odd = __dadd_rn(to_odd, value);
    }
    return added{__dsub_rn(to_even, power), __dsub_rn(to_odd, odd)};
}

/* Adds exactly: both are multiples of the sum's unit. */
static __device__ __forceinline__ double sum_after(double sum, const added &run)
{
    return __dadd_rn(sum, is_odd(sum) ? run.to_odd : run.to_even);
}

static __device__ __forceinline__ added both_of(const added &first, const added &second, double power)
{
    const bool stays_even = !is_odd(__dadd_rn(power, first.to_even));
    const bool stays_odd = !is_odd(__dadd_rn(power, first.to_odd));
    return added{__dadd_rn(first.to_even, stays_even ? second.to_even : second.to_odd),
                 __dadd_rn(first.to_odd, stays_odd ? second.to_odd : second.to_even)};
}

/* The memory that the warps of a block share. */
struct shared_sum {
    double total, rough[WARPS];
    uint4 staged[WARPS][TILE / 4];
};

/* Returns about what the elements before this thread's have as a sum, and leaves about that of each warp's. */
static __device__ double rough_before(shared_sum *shared, double rough)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = rough;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const double other = __shfl_up_sync(EVERYBODY, sum, apart);
        sum += lane >= apart ? other : 0;
    }
    if (lane == 31) {
        shared->rough[warp] = sum;
    }
    __syncthreads();
    double before = shared->total;
    for (uint32_t i = 0; i < warp; i++) {
        before += shared->rough[i];
    }
    sum = __shfl_up_sync(EVERYBODY, sum, 1);
    return before + (lane > 0 ? sum : 0);
}

/* Returns what the runs add from the last that waits, or the warp's first, to this thread's. */
static __device__ __forceinline__ added since_last_wait(added run, double power, uint32_t waiting)
{
    const uint32_t lane = threadIdx.x % 32, here = waiting & ((2u << lane) - 1);
    const uint32_t first = here != 0 ? 31 - __clz((int)here) : 0;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const added before = {__shfl_up_sync(EVERYBODY, run.to_even, apart),
                              __shfl_up_sync(EVERYBODY, run.to_odd, apart)};
        if (lane >= first + apart) {
            run = both_of(before, run, power);
        }
    }
    return run;
}

static __device__ __forceinline__ added from_lane(const added &run, uint32_t lane)
{
    return added{__shfl_sync(EVERYBODY, run.to_even, (int)lane), __shfl_sync(EVERYBODY, run.to_odd, (int)lane)};
}

/* Adds the tiles of a block to the total, one warp after the other. */
static __device__ void add_tiles(shared_sum *shared, const uint32_t (&own)[RUN])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const double rough = add_run(0, own), before = rough_before(shared, rough);
    const double least = power_below(before * (1 - ROUGHLY)), most = power_below((before + rough) * (1 + ROUGHLY));
    const double power = rough == 0 ? least : most, last_power = __shfl_up_sync(EVERYBODY, power, 1);
    const bool waits = (rough != 0 && least != most) || (lane > 0 && power != last_power);
    const uint32_t waiting = __ballot_sync(EVERYBODY, waits);
    const added none = {0, 0}, run = waits ? none : added_by_run(power, own);
    const added since = since_last_wait(run, power, waiting);
    for (uint32_t turn = 0; turn < WARPS; turn++) {
        __syncthreads(); /* all have read the total, and the warp before has written it */
        if (turn == warp) {
            const double before_warp = shared->total, of_warp = shared->rough[warp];
            double total = before_warp;
            for (uint32_t left = waiting; left != 0; left &= left - 1) {
                const uint32_t from = __ffs((int)left) - 1;
                total = from > 0 ? sum_after(total, from_lane(since, from - 1)) : total;
                total = __shfl_sync(EVERYBODY, add_run(total, own), (int)from);
            }
            total = sum_after(total, from_lane(since, 31));
            __syncwarp(); /* all have read it */
            /* A sum that is infinite or a NaN is that in any order. */
            shared->total = isfinite(before_warp) && isfinite(of_warp) ? total : before_warp + of_warp;
        }
    }
    __syncthreads();
}

/* Reads a warp's tile as it lies, and gives each thread a run of it. Elements behind the last are 0. */
static __device__ __forceinline__ void load_runs(uint4 *staged, const uint32_t *bits, uint64_t tile, uint32_t count,
                                                 uint32_t (&own)[RUN])
{
    const uint32_t lane = threadIdx.x % 32;
    const bool is_wide = (uintptr_t)bits % 16 == 0;
#pragma unroll
    for (uint32_t i = 0; i < FOURS; i++) {
        const uint32_t four = i * 32 + lane;
        const uint64_t at = tile + four * 4;
        staged[four ^ (four / FOURS % FOURS)] = /* so that threads of both loops meet different banks */
            is_wide && at + 4 <= count
                ? *(const uint4 *)(bits + at)
                : make_uint4(at < count ? bits[at] : 0, at + 1 < count ? bits[at + 1] : 0,
                             at + 2 < count ? bits[at + 2] : 0, at + 3 < count ? bits[at + 3] : 0);
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < FOURS; i++) {
        const uint4 four = staged[(lane * FOURS + i) ^ lane % FOURS];
        own[4 * i] = four.x;
        own[4 * i + 1] = four.y;
        own[4 * i + 2] = four.z;
        own[4 * i + 3] = four.w;
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(WARPS * 32, 3) onebit_kernel(cuda_kernel_work work)
{
    __shared__ shared_sum shared;
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, words = (mine.count + 31) / 32;
    uint32_t *packed = (uint32_t *)mine.codes;
    if (threadIdx.x == 0) {
        shared.total = 0;
    }
    __syncthreads();
    for (uint64_t tiles = 0; tiles < mine.count; tiles += WARPS * TILE) {
        const uint64_t tile = tiles + warp * TILE;
        uint32_t own[RUN], word = 0;
        load_runs(shared.staged[warp], bits, tile, mine.count, own);
#pragma unroll
        for (int j = 0; j < RUN; j++) {
            word = word << 1 | (own[j] - SIGN - 1 < INFINITE ? 1 : 0); /* below 0, and no NaN */
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
