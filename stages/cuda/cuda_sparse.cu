/*
 * cuda_sparse.cu - topk and randomk on a GPU.
 *
 * topk finds the k-th largest magnitude by its bits, from the highest on: a histogram of 11 bits, then of 10, then of
 * 10 among the elements that share those before (radix selection, as in Alabi et al., "Fast k-selection algorithms for
 * graphics processing units", ACM JEA 17, 2012). A second walk writes the pairs in the order of their indices, where
 * processors leave them in a heap's order; the elements are the same. If more elements have that magnitude than places
 * are left, the heap decides which are kept. Then one thread does as processors do, and the order is theirs, too.
 */
#include "stages/cuda/cuda_chunk.cuh"

#define SELECTORS 1024u /* threads that select from a chunk */
#define WARPS (SELECTORS / 32)
#define BINS 2048u
#define HEAP_PAIRS 4800u /* of a heap in shared memory: 37.5 KiB of the 48 that a block has */
#define AHEAD 8u         /* elements that a thread reads at once for the heap */
#define ALREADY SIGN     /* in an index: the pair has fetched its element */

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

struct selecting {
    uint32_t bins[BINS];
    uint32_t above[WARPS]; /* elements that warps have found */
    uint32_t digit, left, equal;
};

/* Counts the digits of elements that share the bits above with `prefix`. Nobody asks how many have the digit 0. */
static __device__ void count_digits(selecting *shared, const uint32_t *bits, uint32_t count, uint32_t prefix,
                                    uint32_t shift, uint32_t width)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += SELECTORS) {
        shared->bins[i] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += SELECTORS) {
        const uint32_t magnitude = bits[i] & MAGNITUDE, digit = magnitude >> shift & ((1u << width) - 1);
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
static __device__ uint32_t find_least(selecting *shared, const uint32_t *bits, uint32_t count, uint32_t kept)
{
    uint32_t prefix = 0, left = kept, matching = count;
    for (uint32_t pass = 0; pass < 3; pass++) {
        const uint32_t shift = 20 - 10 * pass, width = pass == 0 ? 11 : 10;
        count_digits(shared, bits, count, prefix, shift, width);
        find_digit(shared, matching, left);
        prefix = prefix << width | shared->digit;
        left = shared->left;
        matching = shared->equal;
        __syncthreads();
    }
    return prefix;
}

/* ---- topk: the pairs ---- */

/* Each warp has a stretch of the chunk, and writes behind the warps before. */
static __device__ void collect(selecting *shared, const uint32_t *bits, uint32_t count, uint32_t least, uint2 *pairs)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t stretch = (count + SELECTORS - 1) / SELECTORS * 32;
    const uint64_t end = min((uint64_t)count, (uint64_t)(warp + 1) * stretch);
    uint32_t found = 0;
#pragma unroll 4
    for (uint64_t i = (uint64_t)warp * stretch + lane; i < end; i += 32) {
        found += (bits[i] & MAGNITUDE) >= least;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        found += __shfl_xor_sync(EVERYBODY, found, apart);
    }
    if (lane == 0) {
        shared->above[warp] = found;
    }
    __syncthreads();
    uint32_t at = 0;
    for (uint32_t i = 0; i < warp; i++) {
        at += shared->above[i];
    }
    for (uint64_t first = (uint64_t)warp * stretch; first < end; first += 32) {
        const uint64_t i = first + lane;
        const uint32_t element = i < end ? bits[i] : 0;
        const bool is_taken = i < end && (element & MAGNITUDE) >= least;
        const uint32_t taken = __ballot_sync(EVERYBODY, is_taken);
        if (is_taken) {
            pairs[at + __popc(taken & ((1u << lane) - 1))] = make_uint2((uint32_t)i, element);
        }
        at += __popc(taken);
    }
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

extern __shared__ uint2 heap_pairs[];

static __global__ void __launch_bounds__(SELECTORS) topk_kernel(cuda_kernel_work work)
{
    __shared__ selecting shared;
    const piece mine = chunk_of(work, blockIdx.x);
    const uint32_t *bits = (const uint32_t *)work.source + mine.first;
    const uint32_t kept = kept_of(work, mine);
    const uint32_t least = find_least(&shared, bits, mine.count, kept);
    if (shared.left == shared.equal) { /* nothing is left to choose */
        collect(&shared, bits, mine.count, least, (uint2 *)mine.codes);
    } else {
        const bool fits = kept <= HEAP_PAIRS;
        if (threadIdx.x < 32) {
            select_by_heap(fits ? (unsigned char *)heap_pairs : mine.codes, kept, bits, mine.count);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; fits && i < kept; i += SELECTORS) {
            ((uint2 *)mine.codes)[i] = heap_pairs[i];
        }
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
        topk_kernel<<<dim3(chunks_of(work)), SELECTORS, HEAP_PAIRS * sizeof(uint2), stream>>>(*work);
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
