/*
 * codec_kernels.h - the loops over elements that codecs spend their time in, compiled for several processors.
 *
 * kernel_loops.h has them once, in plain C that compilers turn into vectors. Every implementation gives the same bits:
 * no loop adds floats in an order that the width of a vector would decide. Buffers need no alignment, as a chunk on the
 * wire may begin anywhere, and those of one call do not overlap.
 */
#ifndef TRIB_ENGINE_CODEC_KERNELS_H
#define TRIB_ENGINE_CODEC_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CODEC_F32_NAN 0x7fc00000u
#define CODEC_F32_INFINITY 0x7f800000u
#define CODEC_F32_SIGN 0x80000000u
#define CODEC_SCREEN_BLOCK 32u

/* The numbers that a chunk's elements draw: two words of a key, and the low bits of the first element's index. */
typedef struct codec_draws {
    uint32_t key[2];
    uint32_t first;
} codec_draws;

typedef struct codec_kernels {
    const char *name; /* "scalar", "avx2", "avx512" */

    /* Casts: round to nearest even, overflow to infinity, any NaN to the one that is positive and quiet. */
    void (*f32_to_f16)(void *restrict to, const void *restrict from, size_t count);
    void (*f16_to_f32)(void *restrict to, const void *restrict from, size_t count);
    void (*f32_to_bf16)(void *restrict to, const void *restrict from, size_t count);
    void (*bf16_to_f32)(void *restrict to, const void *restrict from, size_t count);
    void (*f32_to_e4m3)(void *restrict to, const void *restrict from, size_t count, float inverse);
    void (*e4m3_to_f32)(void *restrict to, const void *restrict from, size_t count, float scale);
    void (*f32_to_e5m2)(void *restrict to, const void *restrict from, size_t count, float inverse);
    void (*e5m2_to_f32)(void *restrict to, const void *restrict from, size_t count, float scale);

    /* Integers: -127..127, rounded at random; -32767..32767, the nearest one. No product may be larger. What is not
     * finite has a code of its own, the lowest, and comes back as NaN. */
    void (*f32_to_int8)(void *restrict to, const void *restrict from, size_t count, float inverse,
                        const codec_draws *draws);
    void (*int8_to_f32)(void *restrict to, const void *restrict from, size_t count, float scale);
    void (*f32_to_int16)(void *restrict to, const void *restrict from, size_t count, float inverse);
    void (*int16_to_f32)(void *restrict to, const void *restrict from, size_t count, float scale);
    /* Adds elements to a sum, whose NaN is always the same, as in stages/kernels/kernels.h. */
    void (*add_f32)(void *restrict sum, const void *restrict from, size_t count);

    /* The largest magnitude's bits: of the finite float32s, or of all. */
    uint32_t (*largest_finite)(const void *from, size_t count);
    uint32_t (*largest)(const void *from, size_t count);

    /* Packs which elements are below zero, the first in a word's highest bit; as many elements as a word has bits make
     * a word. `infinity` has the bits of infinity in the elements' type. And back: elements get these bits, with their
     * sign. */
    void (*signs_16)(void *restrict to, const void *restrict from, size_t words, uint16_t infinity);
    void (*signs_32)(void *restrict to, const void *restrict from, size_t words, uint32_t infinity);
    void (*signs_64)(void *restrict to, const void *restrict from, size_t words, uint64_t infinity);
    void (*spread_16)(void *restrict to, const void *restrict from, size_t words, uint16_t magnitude);
    void (*spread_32)(void *restrict to, const void *restrict from, size_t words, uint32_t magnitude);
    void (*spread_64)(void *restrict to, const void *restrict from, size_t words, uint64_t magnitude);

    /* Returns the first block of CODEC_SCREEN_BLOCK elements, from block `block` on and before `blocks`, that has a
     * magnitude above the threshold, or `blocks`. */
    size_t (*screen_16)(const void *from, size_t block, size_t blocks, uint16_t threshold);
    size_t (*screen_32)(const void *from, size_t block, size_t blocks, uint32_t threshold);
    size_t (*screen_64)(const void *from, size_t block, size_t blocks, uint64_t threshold);

    /* Magnitudes divided by the scale become levels, up with the probability of the rest: draw < rest * 2^64. */
    void (*dither_linear)(uint32_t *restrict to, const void *restrict from, size_t count, double scale, uint32_t levels,
                          const uint64_t *restrict draws);
    void (*dither_natural)(uint32_t *restrict to, const void *restrict from, size_t count, double scale,
                           uint32_t levels, const uint64_t *restrict draws);
} codec_kernels;

extern const codec_kernels trib_codec_kernels_scalar;
#if defined(__x86_64__)
extern const codec_kernels trib_codec_kernels_avx2;
extern const codec_kernels trib_codec_kernels_avx512;
#endif

/* Returns the fastest implementation that this processor runs; never NULL. */
const codec_kernels *trib_codec_kernels_best(void);

/* Returns the implementations that this processor runs, slowest first; NULL from their count on. */
const codec_kernels *trib_codec_kernels_at(size_t index);

#endif
