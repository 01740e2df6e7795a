/*
 * cuda_sparse.cu - topk and randomk on a GPU.
 *
 * topk finds the k-th largest magnitude by its bits, from the highest on: a histogram of 11 bits, then of 10, then of
 * 10 among the elements that share those before (radix selection, as in Alabi et al., "Fast k-selection algorithms for
 * graphics processing units", ACM JEA 17, 2012). It looks among candidates alone where it can: a sample gives a
 * magnitude that a few more than k elements have, and those are collected first. Pairs are written in the order of
 * their indices, where processors leave them in a heap's order; the elements are the same. If more elements have the k-th
 * magnitude than places are left, the heap decides which are kept. Then one thread does as processors do, and the order
 * is theirs, too.
 */
#include "stages/cuda/cuda_chunk.cuh"

#define SELECTORS 1024u /* threads that select from a chunk */
#define WARPS (SELECTORS / 32)
#define BINS 2048u
#define PAIRS 4800u /* in shared memory, candidates or a heap: 37.5 KiB of the 48 that a block has */
#define SAMPLES 2048u
#define AHEAD 8u     /* elements that a thread reads at once for the heap */
#define ALREADY SIGN /* in an index: the pair has fetched its element */

static __device__ uint32_t kept_of(const cuda_kernel_work &work, const piece &mine)
{
    if (work.k == 0) {
        return codec_kept_by_ratio(work.ratio, sizeof(float), mine.count);
    }
    if (work.count <= mine.count) {
        return min(work.k, mine.count);
    }
    return codec_kept_share(work.k, work.count, mine.first, mine.count);
}

/* ---- topk: the k-th largest ---- */

extern __shared__ uint2 shared_pairs[];

/* Elements to select from: all of a chunk, or candidates. */
struct all_elements {
    const uint32_t *bits;
    __device__ __forceinline__ uint2 operator[](uint32_t i) const
    {
        return make_uint2(i, bits[i]);
    }
};

struct candidates {
    __device__ __forceinline__ uint2 operator[](uint32_t i) const
    {
        return shared_pairs[i];
    }
};

struct samples {
    const uint32_t *bits;
    uint32_t stride;
    __device__ __forceinline__ uint2 operator[](uint32_t i) const
    {
        return make_uint2(i, bits[(uint64_t)i * stride]);
    }
};

struct selecting {
    uint32_t bins[BINS];
    uint32_t above[WARPS]; /* elements that warps have found */
    uint32_t digit, left, equal;
};

/* Counts the digits of elements that share the bits above with `prefix`. Nobody asks how many have the digit 0. */
template <class source>
static __device__ void count_digits(selecting *shared, source elements, uint32_t count, uint32_t prefix, uint32_t shift,
                                    uint32_t width)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += SELECTORS) {
        shared->bins[i] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += SELECTORS) {
        const uint32_t magnitude = elements[i].y & MAGNITUDE, digit = magnitude >> shift & ((1u << width) - 1);
        if (magnitude >> (shift + width) == prefix && digit > 0) {
            atomicAdd(&shared->bins[digit], 1);
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ uint32_t before_in_warp(uint32_t value)
{
    uint32_t sum = value;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const uint32_t other = __shfl_up_sync(EVERYBODY, sum, apart);
        sum += threadIdx.x % 32 >= apart ? other : 0;
    }
    return sum - value;
}

/* Returns the sum of the values of all threads before this one, and leaves each warp's sum in `above`. */
static __device__ uint32_t before_in_block(selecting *shared, uint32_t value)
{
    uint32_t before = before_in_warp(value);
    if (threadIdx.x % 32 == 31) {
        shared->above[threadIdx.x / 32] = before + value;
    }
    __syncthreads();
    for (uint32_t warp = 0; warp < threadIdx.x / 32; warp++) {
        before += shared->above[warp];
    }
    return before;
}

/* Finds the digit of the `left`-th largest, how many of those with that digit are wanted, and how many there are. */
static __device__ void find_digit(selecting *shared, uint32_t matching, uint32_t left)
{
    const uint32_t high = BINS - 1 - 2 * threadIdx.x, low = high - 1; /* this thread's digits */
    const uint32_t of_high = shared->bins[high], of_low = low > 0 ? shared->bins[low] : 0;
    const uint32_t before = before_in_block(shared, of_high + of_low);
    if (threadIdx.x == SELECTORS - 1) { /* it holds if no thread finds more */
        shared->digit = 0;
        shared->left = left - before - of_high;
        shared->equal = matching - before - of_high;
    }
    __syncthreads();
    if (before < left && left <= before + of_high + of_low) {
        const bool is_high = left <= before + of_high;
        shared->digit = is_high ? high : low;
        shared->left = left - before - (is_high ? 0 : of_high);
        shared->equal = is_high ? of_high : of_low;
    }
    __syncthreads();
}

/* Returns the bits of the `kept`-th largest magnitude. */
template <class source>
static __device__ uint32_t find_least(selecting *shared, source elements, uint32_t count, uint32_t kept)
{
    uint32_t prefix = 0, left = kept, matching = count;
    for (uint32_t pass = 0; pass < 3; pass++) {
        const uint32_t shift = 20 - 10 * pass, width = pass == 0 ? 11 : 10;
        count_digits(shared, elements, count, prefix, shift, width);
        find_digit(shared, matching, left);
        prefix = prefix << width | shared->digit;
        left = shared->left;
        matching = shared->equal;
        __syncthreads();
    }
    return prefix;
}

/* ---- topk: the pairs ---- */

/* Writes those that are as large as the least, if there is room, and returns how many these are. Each warp has a
 * stretch of the elements, and writes behind the warps before. */
template <class source>
static __device__ uint32_t collect(selecting *shared, source elements, uint32_t count, uint32_t least, uint2 *pairs,
                                   uint32_t room)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t stretch = (count + SELECTORS - 1) / SELECTORS * 32;
    const uint64_t end = min((uint64_t)count, (uint64_t)(warp + 1) * stretch);
    uint32_t found = 0;
#pragma unroll 8
    for (uint64_t i = (uint64_t)warp * stretch + lane; i < end; i += 32) {
        found += (elements[i].y & MAGNITUDE) >= least;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        found += __shfl_xor_sync(EVERYBODY, found, apart);
    }
    if (lane == 0) {
        shared->above[warp] = found;
    }
    __syncthreads();
    uint32_t at = 0, all = 0;
    for (uint32_t i = 0; i < WARPS; i++) {
        at += i < warp ? shared->above[i] : 0;
        all += shared->above[i];
    }
#pragma unroll 4
    for (uint64_t first = (uint64_t)warp * stretch; all <= room && first < end; first += 32) {
        const uint64_t i = first + lane;
        const uint2 element = i < end ? elements[i] : make_uint2(0, 0);
        const bool is_taken = i < end && (element.y & MAGNITUDE) >= least;
        const uint32_t taken = __ballot_sync(EVERYBODY, is_taken);
        if (is_taken) {
            pairs[at + __popc(taken & ((1u << lane) - 1))] = element;
        }
        at += __popc(taken);
    }
    __syncthreads();
    return all;
}

/* Collects candidates, and returns how many there are; 0: not all that are kept are among them. */
static __device__ uint32_t find_candidates(selecting *shared, const uint32_t *bits, uint32_t count, uint32_t kept)
{
    const float wanted = (float)kept * SAMPLES / (float)count; /* of the samples */
    const uint32_t rank = (uint32_t)(wanted + 5 * sqrtf(wanted)) + 4;
    if (count < 2 * SAMPLES || (float)rank * (float)count > (float)PAIRS * SAMPLES) {
        return 0;
    }
    const samples some = {bits, count / SAMPLES};
    const uint32_t least = max(find_least(shared, some, SAMPLES, rank), 1);
    const uint32_t found = collect(shared, all_elements{bits}, count, least, shared_pairs, PAIRS);
    return found >= kept && found <= PAIRS ? found : 0;
}

/* The first warp looks for elements that may enter the heap, and its first thread enters them. */
static __device__ void select_by_heap(unsigned char *heap, uint32_t kept, const uint32_t *bits, uint32_t count)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; lane == 0 && i < kept; i++) {
        codec_sift_up(heap, i, codec_pair_of(i, bits[i]), sizeof(float), sizeof(float));
    }
    __syncwarp();
    for (uint64_t first = kept; first < count; first += 32 * AHEAD) {
        uint32_t ahead[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint64_t i = first + j * 32 + lane;
            ahead[j] = i < count ? bits[i] : 0;
        }
        for (uint32_t j = 0; j < AHEAD; j++) {
            const uint32_t least = (uint32_t)codec_magnitude(codec_load_pair(heap, 0, sizeof(float)), sizeof(float));
            uint32_t larger = __ballot_sync(EVERYBODY, (ahead[j] & MAGNITUDE) > least);
            for (; larger != 0; larger &= larger - 1) {
                const uint32_t from = __ffs((int)larger) - 1, element = __shfl_sync(EVERYBODY, ahead[j], (int)from);
                const codec_pair added = codec_pair_of(first + j * 32 + from, element);
                if (lane == 0 && codec_magnitude(added, sizeof(float)) >
                                     codec_magnitude(codec_load_pair(heap, 0, sizeof(float)), sizeof(float))) {
                    codec_replace_smallest(heap, kept, added, sizeof(float), sizeof(float));
                }
            }
            __syncwarp();
        }
    }
}

/* Selects, and returns true if nothing is left to choose: all that have the least magnitude are kept. */
template <class source>
static __device__ bool select_from(selecting *shared, source elements, uint32_t count, uint32_t kept, uint2 *pairs)
{
    const uint32_t least = find_least(shared, elements, count, kept);
    const bool is_clear = shared->left == shared->equal;
    if (is_clear) {
        (void)collect(shared, elements, count, least, pairs, kept);
    }
    return is_clear;
}

static __device__ void select_as_processors(uint2 *pairs, uint32_t kept, const uint32_t *bits, uint32_t count)
{
    if (kept > PAIRS) {
        if (threadIdx.x < 32) {
            select_by_heap((unsigned char *)pairs, kept, bits, count);
        }
        return;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        select_by_heap((unsigned char *)shared_pairs, kept, bits, count);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kept; i += SELECTORS) {
        pairs[i] = shared_pairs[i];
    }
}

static __global__ void __launch_bounds__(SELECTORS, 2) topk_kernel(cuda_kernel_work work)
{
    __shared__ selecting shared;
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    uint2 *pairs = (uint2 *)mine.codes;
    const uint32_t kept = kept_of(work, mine), found = find_candidates(&shared, bits, mine.count, kept);
    const bool is_done = found > 0 ? select_from(&shared, candidates(), found, kept, pairs)
                                   : select_from(&shared, all_elements{bits}, mine.count, kept, pairs);
    if (!is_done) {
        select_as_processors(pairs, kept, bits, mine.count);
    }
    if (threadIdx.x == 0) {
        *mine.size = kept * 8;
    }
}

/* ---- randomk ---- */

/* A chunk has a warp. All its threads draw all numbers, and each keeps one of 32. */
static __global__ void randomk_kernel(cuda_kernel_work work)
{
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    const uint32_t kept = kept_of(work, mine);
    codec_xorshift random = codec_xorshift_of_chunk(work.key, work.first_element + mine.first);
    for (uint32_t first = 0; first < kept; first += 32) {
        uint64_t drawn = 0;
        for (uint32_t i = 0; i < 32; i++) {
            const uint64_t next = codec_xorshift_next(&random);
            drawn = i == threadIdx.x ? next : drawn;
        }
        if (first + threadIdx.x < kept) {
            const uint32_t index = (uint32_t)(drawn % mine.count);
            ((uint2 *)mine.codes)[first + threadIdx.x] = make_uint2(index, bits[index]);
        }
    }
    if (threadIdx.x == 0) {
        *mine.size = kept * 8;
    }
}

/* ---- Decoding ---- */

/* Elements that no pair names become 0, or lose 0. */
template <int merge> static __global__ void blank_kernel(cuda_kernel_work work)
{
    const piece mine = chunk_of(work, blockIdx.x);
    uint32_t *bits = (uint32_t *)work.target + mine.first;
    if (merge == CUDA_KERNEL_GIVE_BACK && *mine.size == 0) {
        return;
    }
    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < mine.count; i += PARTS * THREADS) {
        bits[i] = merge == CUDA_KERNEL_STORE ? 0 : rest_of(bits[i], 0, merge == CUDA_KERNEL_SUBTRACT);
    }
}

/* Elements that are sent as they are leave nothing of themselves. */
template <int merge> static __global__ void __launch_bounds__(SELECTORS) scatter_kernel(cuda_kernel_work work)
{
    const piece mine = chunk_of(work, blockIdx.x);
    const uint2 *pairs = (const uint2 *)mine.codes;
    uint32_t *bits = (uint32_t *)work.target + mine.first;
    for (uint32_t i = threadIdx.x; i < *mine.size / 8; i += SELECTORS) {
        bits[pairs[i].x] = merge == CUDA_KERNEL_STORE ? pairs[i].y : 0;
    }
}

/* randomk may have an element twice, with the same value. A residual is never a NaN, so the first to come leaves one
 * for the others, and puts the sum in its place when all have come. */
static __global__ void __launch_bounds__(SELECTORS) give_back_kernel(cuda_kernel_work work)
{
    const piece mine = chunk_of(work, blockIdx.x);
    uint2 *pairs = (uint2 *)mine.codes;
    uint32_t *bits = (uint32_t *)work.target + mine.first;
    for (uint32_t i = threadIdx.x; i < *mine.size / 8; i += SELECTORS) {
        const uint32_t old = atomicExch(&bits[pairs[i].x], A_NAN);
        if (old == A_NAN) {
            pairs[i].x |= ALREADY;
        } else {
            pairs[i].y = rest_of(old, pairs[i].y, false);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < *mine.size / 8; i += SELECTORS) {
        if ((pairs[i].x & ALREADY) == 0) {
            bits[pairs[i].x] = pairs[i].y;
        }
    }
}

/* ---- Launches ---- */

typedef void kernel(cuda_kernel_work work);
static kernel *const blanks[] = {blank_kernel<CUDA_KERNEL_STORE>, blank_kernel<CUDA_KERNEL_SUBTRACT>,
                                 blank_kernel<CUDA_KERNEL_GIVE_BACK>};
static kernel *const scatters[] = {scatter_kernel<CUDA_KERNEL_STORE>, scatter_kernel<CUDA_KERNEL_SUBTRACT>,
                                   give_back_kernel};

cudaError_t cuda_sparse_load(void)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, topk_kernel);
    code = code != cudaSuccess ? code : cudaFuncGetAttributes(&attributes, randomk_kernel);
    for (uint32_t i = 0; i < sizeof blanks / sizeof blanks[0]; i++) {
        code = code != cudaSuccess ? code : cudaFuncGetAttributes(&attributes, blanks[i]);
        code = code != cudaSuccess ? code : cudaFuncGetAttributes(&attributes, scatters[i]);
    }
    return code;
}

cudaError_t cuda_sparse_encode(const cuda_kernel_work *work, cudaStream_t stream)
{
    if (work->codec == CUDA_KERNEL_RANDOMK) {
        randomk_kernel<<<dim3(chunks_of(work)), 32, 0, stream>>>(*work);
    } else {
        topk_kernel<<<dim3(chunks_of(work)), SELECTORS, PAIRS * sizeof(uint2), stream>>>(*work);
    }
    return cudaGetLastError();
}

cudaError_t cuda_sparse_decode(const cuda_kernel_work *work, cudaStream_t stream)
{
    blanks[work->merge]<<<dim3(chunks_of(work), PARTS), THREADS, 0, stream>>>(*work);
    const cudaError_t code = cudaGetLastError();
    if (code != cudaSuccess) {
        return code;
    }
    scatters[work->merge]<<<dim3(chunks_of(work)), SELECTORS, 0, stream>>>(*work);
    return cudaGetLastError();
}
