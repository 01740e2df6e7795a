/*
 * codec_share.h - arithmetic of codecs that processors and GPUs have in common (engine/codec, stages/cuda): hashes,
 * XorShift128+, how many elements of a chunk are kept, and the heap that fixes which of equal elements topk keeps.
 *
 * C and CUDA's C++ compile it, so it has neither compound literals nor casts from void pointers that are left out.
 */
#ifndef TRIB_ENGINE_CODEC_SHARE_H
#define TRIB_ENGINE_CODEC_SHARE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CODEC_SHARED static __host__ __device__ __forceinline__
#else
#define CODEC_SHARED static inline __attribute__((always_inline, unused))
#endif

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

/* Mixes a number into a hash, so that each bit of both changes about half of the result's. */
CODEC_SHARED uint64_t codec_mix(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) + UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
    return hash ^ hash >> 31;
}

/* XorShift128+ in the form of BytePS: both words begin as the seed. All zeros: it has not begun. */
typedef struct codec_xorshift {
    uint64_t older;
    uint64_t newer;
} codec_xorshift;

CODEC_SHARED uint64_t codec_xorshift_next(codec_xorshift *state)
{
    uint64_t mixed = state->older;
    const uint64_t newer = state->newer;
    mixed ^= mixed << 23;
    mixed ^= mixed >> 17;
    mixed ^= newer ^ newer >> 26;
    state->older = newer;
    state->newer = mixed;
    return mixed + newer;
}

/* Returns the state of a chunk that begins one of its own. `of_tensor` is made of salt, tensor and round. */
CODEC_SHARED codec_xorshift codec_xorshift_of_chunk(uint64_t of_tensor, uint64_t first_element)
{
    const uint64_t of_place = codec_mix(of_tensor, first_element);
    codec_xorshift state;
    state.older = of_place | 1; /* not both 0 */
    state.newer = codec_mix(of_place, of_tensor);
    return state;
}

/* ---- Sparse codecs: how many elements are kept ------------------------------------------------------------------- */

/* A ratio is taken in float32, as BytePS does. `element` is the bytes of one. */
CODEC_SHARED uint32_t codec_kept_by_ratio(double ratio, uint32_t element, uint32_t count)
{
    const float size = (float)element;
    const float kept = (float)ratio * (float)((uint64_t)count * element) / size;
    return kept < 1 ? 1 : kept >= (float)count ? count : (uint32_t)kept;
}

/* A partition's k is spread over its chunks: each has the difference of two rounded shares, and at least one. `begin`
 * is the chunk's first element in the partition. */
CODEC_SHARED uint32_t codec_kept_share(uint32_t k, uint64_t partition_count, uint64_t begin, uint32_t count)
{
    const double step = (double)k / (double)partition_count;
    const uint64_t before = (uint64_t)((double)begin * step);
    const uint64_t share = (uint64_t)((double)(begin + count) * step) - before;
    return share < 1 ? 1 : share > count ? count : (uint32_t)share;
}

/* ---- Pairs, and a heap of them with the smallest magnitude on top ------------------------------------------------ */

typedef struct codec_pair {
    uint64_t index;
    uint64_t bits;
} codec_pair;

CODEC_SHARED codec_pair codec_pair_of(uint64_t index, uint64_t bits)
{
    codec_pair made;
    made.index = index;
    made.bits = bits;
    return made;
}

CODEC_SHARED uint64_t codec_load_word(const unsigned char *at, size_t width)
{
    uint64_t word = 0;
    memcpy(&word, at, width);
    return word;
}

CODEC_SHARED codec_pair codec_load_pair(const unsigned char *pairs, uint32_t at, size_t width)
{
    const unsigned char *from = pairs + (size_t)at * 2 * width;
#ifdef __CUDA_ARCH__ /* words of 4 bytes alone, and pairs lie on 8: otherwise a GPU would take byte after byte */
    return codec_pair_of(((const uint2 *)from)->x, ((const uint2 *)from)->y);
#else
    return codec_pair_of(codec_load_word(from, width), codec_load_word(from + width, width));
#endif
}

CODEC_SHARED void codec_store_pair(unsigned char *pairs, uint32_t at, size_t width, codec_pair stored)
{
    unsigned char *to = pairs + (size_t)at * 2 * width;
#ifdef __CUDA_ARCH__
    *(uint2 *)to = make_uint2((uint32_t)stored.index, (uint32_t)stored.bits);
#else
    memcpy(to, &stored.index, width);
    memcpy(to + width, &stored.bits, width);
#endif
}

CODEC_SHARED uint64_t codec_magnitude(codec_pair of, size_t element)
{
    return of.bits & (((uint64_t)1 << (8 * element - 1)) - 1);
}

/* Moves `moved` up from `hole` to its place in the heap. */
CODEC_SHARED void codec_sift_up(unsigned char *heap, uint32_t hole, codec_pair moved, size_t width, size_t element)
{
    while (hole > 0) {
        const uint32_t parent = (hole - 1) / 2;
        const codec_pair above = codec_load_pair(heap, parent, width);
        if (codec_magnitude(above, element) <= codec_magnitude(moved, element)) {
            break;
        }
        codec_store_pair(heap, hole, width, above);
        hole = parent;
    }
    codec_store_pair(heap, hole, width, moved);
}

/* Takes the smallest of a heap of `size` pairs out, and puts `added` in, as pop_heap and push_heap do: the last pair
 * goes to where the smaller children have left a hole at the bottom, then up. */
CODEC_SHARED void codec_replace_smallest(unsigned char *heap, uint32_t size, codec_pair added, size_t width,
                                         size_t element)
{
    const codec_pair last = codec_load_pair(heap, size - 1, width);
    const uint32_t length = size - 1;
    uint32_t hole = 0;
    for (uint32_t child = 2; child <= length; child = 2 * hole + 2) {
        if (child == length) { /* a left child alone */
            if (length < 2) {
                break;
            }
            codec_store_pair(heap, hole, width, codec_load_pair(heap, child - 1, width));
            hole = child - 1;
            break;
        }
        codec_pair chosen = codec_load_pair(heap, child, width);
        const codec_pair left = codec_load_pair(heap, child - 1, width);
        if (codec_magnitude(chosen, element) > codec_magnitude(left, element)) {
            chosen = left;
            child--;
        }
        codec_store_pair(heap, hole, width, chosen);
        hole = child;
    }
    if (length > 0) {
        codec_sift_up(heap, hole, last, width, element);
    }
    codec_sift_up(heap, size - 1, added, width, element);
}

#endif
