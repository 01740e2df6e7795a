/*
 * kernel_loops.h - the loops of codec_kernels.h, written once. The including file names the table, and is compiled with
 * a processor's instructions; compilers make vectors of loops without branches, so cases are chosen at their end.
 *
 * Every function here is static: the linker could pick an external one that was compiled for another processor.
 */
#include "engine/codec/kernels/codec_kernels.h"

#include <string.h>

#define LOOP_INLINE static inline __attribute__((always_inline, unused))

/* Elements anywhere in memory */
typedef uint8_t any_u8 __attribute__((may_alias));
typedef int8_t any_i8 __attribute__((may_alias));
typedef int16_t any_i16 __attribute__((aligned(1), may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint64_t any_u64 __attribute__((aligned(1), may_alias));
typedef float any_f32 __attribute__((aligned(1), may_alias));

#define F32_MAGNITUDE 0x7fffffffu
#define F32_LARGEST 0x7f7fffffu

LOOP_INLINE float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LOOP_INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LOOP_INLINE double f64_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LOOP_INLINE uint32_t mask(bool condition)
{
    return (uint32_t)0 - (uint32_t)condition;
}

LOOP_INLINE uint32_t smaller(uint32_t left, uint32_t right)
{
    return left < right ? left : right;
}

/* ---- Narrow floats ----------------------------------------------------------------------------------------------- */

/*
 * A format of fewer bits. A float32 whose exponent it has loses `shift` bits. A smaller one is added to `unit`, the
 * power of two whose last bit is worth as much as the format's last: the processor rounds, and the low bits are the
 * result.
 */
typedef struct narrow {
    uint32_t shift;    /* bits of a float32 that the format has not */
    uint32_t bias;     /* difference of the exponents' biases */
    uint32_t unit;     /* bits of the float32 above */
    uint32_t infinity; /* what overflow becomes */
    uint32_t nan;
    uint32_t sign_shift;
} narrow;

static const narrow format_f16 = {13, 112, 0x3f000000, 0x7c00, 0x7e00, 16};
/* E4M3 has no infinity. */
static const narrow format_e4m3 = {20, 120, 0x46800000, 0x7f, 0x7f, 24};
static const narrow format_e5m2 = {21, 112, 0x43000000, 0x7c, 0x7e, 24};

LOOP_INLINE uint32_t narrowed(uint32_t bits, const narrow *format)
{
    const uint32_t magnitude = bits & F32_MAGNITUDE;
    const uint32_t half = (1u << (format->shift - 1)) - 1;
    const uint32_t rounded = magnitude + half + (magnitude >> format->shift & 1) - (format->bias << 23);
    const uint32_t normal = smaller(rounded >> format->shift, format->infinity);
    const uint32_t small = bits_of(f32_of(magnitude) + f32_of(format->unit)) - format->unit;
    const uint32_t number = magnitude < (format->bias + 1) << 23 ? small : normal;
    const uint32_t sign = (bits & CODEC_F32_SIGN) >> format->sign_shift;
    return magnitude > CODEC_F32_INFINITY ? format->nan : number | sign;
}

/* `narrow_bits` has no sign. Infinity and NaN are chosen by the caller. */
LOOP_INLINE uint32_t widened(uint32_t narrow_bits, const narrow *format)
{
    const uint32_t normal = (narrow_bits << format->shift) + (format->bias << 23);
    const uint32_t small = bits_of(f32_of(format->unit + narrow_bits) - f32_of(format->unit));
    return narrow_bits < 1u << (23 - format->shift) ? small : normal;
}

static void f32_to_f16(void *restrict to, const void *restrict from, size_t count)
{
    any_u16 *halves = to;
    const any_u32 *bits = from;
    for (size_t i = 0; i < count; i++) {
        halves[i] = (uint16_t)narrowed(bits[i], &format_f16);
    }
}

static void f16_to_f32(void *restrict to, const void *restrict from, size_t count)
{
    any_u32 *bits = to;
    const any_u16 *halves = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = halves[i] & 0x7fffu;
        const uint32_t sign = (uint32_t)(halves[i] & 0x8000u) << 16;
        const uint32_t finite = widened(magnitude, &format_f16) | sign;
        const uint32_t special = magnitude > 0x7c00 ? CODEC_F32_NAN : CODEC_F32_INFINITY | sign;
        bits[i] = magnitude >= 0x7c00 ? special : finite;
    }
}

static void f32_to_bf16(void *restrict to, const void *restrict from, size_t count)
{
    any_u16 *halves = to;
    const any_u32 *bits = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t rounded = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
        halves[i] = (uint16_t)((bits[i] & F32_MAGNITUDE) > CODEC_F32_INFINITY ? 0x7fc0 : rounded);
    }
}

static void bf16_to_f32(void *restrict to, const void *restrict from, size_t count)
{
    any_u32 *bits = to;
    const any_u16 *halves = from;
    for (size_t i = 0; i < count; i++) {
        bits[i] = (halves[i] & 0x7fffu) > 0x7f80 ? CODEC_F32_NAN : (uint32_t)halves[i] << 16;
    }
}

LOOP_INLINE void to_fp8(void *restrict to, const void *restrict from, size_t count, float inverse, const narrow *format)
{
    any_u8 *codes = to;
    const any_f32 *values = from;
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)narrowed(bits_of(values[i] * inverse), format);
    }
}

/* Rounding may have taken the largest floats beyond what float32 has. They come back as its largest. */
LOOP_INLINE uint32_t scaled(uint32_t magnitude, float scale)
{
    return smaller(bits_of(f32_of(magnitude) * scale), F32_LARGEST);
}

static void f32_to_e4m3(void *restrict to, const void *restrict from, size_t count, float inverse)
{
    to_fp8(to, from, count, inverse, &format_e4m3);
}

static void e4m3_to_f32(void *restrict to, const void *restrict from, size_t count, float scale)
{
    any_u32 *bits = to;
    const any_u8 *codes = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = codes[i] & 0x7fu;
        const uint32_t finite = scaled(widened(magnitude, &format_e4m3), scale) | (uint32_t)(codes[i] & 0x80u) << 24;
        bits[i] = magnitude == 0x7f ? CODEC_F32_NAN : finite;
    }
}

static void f32_to_e5m2(void *restrict to, const void *restrict from, size_t count, float inverse)
{
    to_fp8(to, from, count, inverse, &format_e5m2);
}

static void e5m2_to_f32(void *restrict to, const void *restrict from, size_t count, float scale)
{
    any_u32 *bits = to;
    const any_u8 *codes = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = codes[i] & 0x7fu;
        const uint32_t sign = (uint32_t)(codes[i] & 0x80u) << 24;
        const uint32_t finite = scaled(widened(magnitude, &format_e5m2), scale) | sign;
        const uint32_t special = magnitude > 0x7c ? CODEC_F32_NAN : CODEC_F32_INFINITY | sign;
        bits[i] = magnitude >= 0x7c ? special : finite;
    }
}

/* ---- Integers ---------------------------------------------------------------------------------------------------- */

/* Mixes an element's index and its chunk's key to 24 bits. */
LOOP_INLINE uint32_t drawn(const codec_draws *draws, uint32_t index)
{
    uint32_t number = (draws->first + index) ^ draws->key[0];
    number = (number ^ number >> 16) * 0x7feb352du + draws->key[1];
    return (number ^ number >> 15) * 0x846ca68bu >> 8;
}

/* A product has 24 bits behind the point. With a number of as many bits added it is rounded up with the probability of
 * what is left over, and stays below 2^31. */
static void f32_to_int8(void *restrict to, const void *restrict from, size_t count, float inverse,
                        const codec_draws *draws)
{
    any_i8 *codes = to;
    const any_u32 *bits = from;
    const codec_draws mine = *draws; /* a local copy, which the stores cannot alias */
    for (size_t i = 0; i < count; i++) {
        const uint32_t finite = mask((bits[i] & F32_MAGNITUDE) < CODEC_F32_INFINITY);
        const float value = f32_of(bits[i] & finite) * inverse;
        const int32_t fixed = (int32_t)(value * 0x1p24f);
        const int32_t rounded = (fixed + (int32_t)drawn(&mine, (uint32_t)i)) >> 24;
        codes[i] = (int8_t)(((uint32_t)rounded & finite) | (~finite & 0x80));
    }
}

static void int8_to_f32(void *restrict to, const void *restrict from, size_t count, float scale)
{
    any_u32 *bits = to;
    const any_i8 *codes = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t product = bits_of((float)codes[i] * scale);
        const uint32_t finite = smaller(product & F32_MAGNITUDE, F32_LARGEST) | (product & CODEC_F32_SIGN);
        bits[i] = codes[i] == -128 ? CODEC_F32_NAN : finite;
    }
}

/* Adding 1.5 * 2^23 lets the processor round to the nearest integer. */
static void f32_to_int16(void *restrict to, const void *restrict from, size_t count, float inverse)
{
    any_i16 *codes = to;
    const any_u32 *bits = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t finite = mask((bits[i] & F32_MAGNITUDE) < CODEC_F32_INFINITY);
        const uint32_t rounded = bits_of(f32_of(bits[i] & finite) * inverse + 0x1.8p23f) - bits_of(0x1.8p23f);
        codes[i] = (int16_t)((rounded & finite) | (~finite & 0x8000));
    }
}

static void int16_to_f32(void *restrict to, const void *restrict from, size_t count, float scale)
{
    any_u32 *bits = to;
    const any_i16 *codes = from;
    for (size_t i = 0; i < count; i++) {
        const uint32_t product = bits_of((float)codes[i] * scale);
        const uint32_t finite = smaller(product & F32_MAGNITUDE, F32_LARGEST) | (product & CODEC_F32_SIGN);
        bits[i] = codes[i] == INT16_MIN ? CODEC_F32_NAN : finite;
    }
}

static void add_f32(void *restrict sum, const void *restrict from, size_t count)
{
    any_f32 *sums = sum;
    const any_f32 *values = from;
    for (size_t i = 0; i < count; i++) {
        const float added = sums[i] + values[i];
        sums[i] = added != added ? f32_of(CODEC_F32_NAN) : added;
    }
}

/* ---- Magnitudes -------------------------------------------------------------------------------------------------- */

static uint32_t largest_finite(const void *from, size_t count)
{
    const any_u32 *bits = from;
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = bits[i] & F32_MAGNITUDE;
        const uint32_t finite = magnitude & mask(magnitude < CODEC_F32_INFINITY);
        most = finite > most ? finite : most;
    }
    return most;
}

static uint32_t largest(const void *from, size_t count)
{
    const any_u32 *bits = from;
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = bits[i] & F32_MAGNITUDE;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* ---- Signs, and magnitudes above a threshold: for elements of 16, 32 and 64 bits --------------------------------- */

/* NOLINTBEGIN(bugprone-macro-parentheses): some arguments are types */
#define DEFINE_FOR_WIDTH(width, word, any)                                                                             \
    static void signs_##width(void *restrict to, const void *restrict from, size_t words, word infinity)               \
    {                                                                                                                  \
        any *packed = to;                                                                                              \
        const any *bits = from;                                                                                        \
        const word sign = (word)1 << (width - 1);                                                                      \
        const word lowest = sign | infinity;                                                                           \
        for (size_t i = 0; i < words; i++) {                                                                           \
            word signs = 0;                                                                                            \
            for (unsigned k = 0; k < width; k++) {                                                                     \
                const word element = bits[i * width + k];                                                              \
                const word is_below = element > sign && element <= lowest ? (word)(sign >> k) : 0;                     \
                signs |= is_below;                                                                                     \
            }                                                                                                          \
            packed[i] = signs;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void spread_##width(void *restrict to, const void *restrict from, size_t words, word magnitude)             \
    {                                                                                                                  \
        any *bits = to;                                                                                                \
        const any *packed = from;                                                                                      \
        const word sign = (word)1 << (width - 1);                                                                      \
        for (size_t i = 0; i < words; i++) {                                                                           \
            const word signs = packed[i];                                                                              \
            for (unsigned k = 0; k < width; k++) {                                                                     \
                bits[i * width + k] = (word)(magnitude ^ ((word)(signs << k) & sign));                                 \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static size_t screen_##width(const void *from, size_t block, size_t blocks, word threshold)                        \
    {                                                                                                                  \
        const any *bits = from;                                                                                        \
        const word magnitudes = (word)(((word)1 << (width - 1)) - 1);                                                  \
        for (; block < blocks; block++) {                                                                              \
            word above = 0;                                                                                            \
            for (unsigned k = 0; k < CODEC_SCREEN_BLOCK; k++) {                                                        \
                above |= (word)((bits[block * CODEC_SCREEN_BLOCK + k] & magnitudes) > threshold);                      \
            }                                                                                                          \
            if (above != 0) {                                                                                          \
                break;                                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        return block;                                                                                                  \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_FOR_WIDTH(16, uint16_t, any_u16)
DEFINE_FOR_WIDTH(32, uint32_t, any_u32)
DEFINE_FOR_WIDTH(64, uint64_t, any_u64)

/* ---- Dithering --------------------------------------------------------------------------------------------------- */

/* The nearest double. Both halves are exact beside a power of two, so only the last addition rounds. */
LOOP_INLINE double nearest_f64(uint64_t number)
{
    const double high = f64_of(number >> 32 | 0x4530000000000000u) - (0x1p84 + 0x1p52);
    return high + f64_of((number & UINT32_MAX) | 0x4330000000000000u);
}

static void dither_linear(uint32_t *restrict to, const void *restrict from, size_t count, double scale, uint32_t levels,
                          const uint64_t *restrict draws)
{
    const any_u32 *bits = from;
    const double steps = levels;
    for (size_t i = 0; i < count; i++) {
        const float normalized = (float)((double)f32_of(bits[i] & F32_MAGNITUDE) / scale * steps);
        const int32_t below = (int32_t)normalized;
        const double rest = (double)(normalized - (float)below);
        to[i] = (uint32_t)below + (nearest_f64(draws[i]) < rest * 0x1p64 ? 1u : 0u);
    }
}

/* Returns the smallest power of two that is not below value; 0 for 0. */
LOOP_INLINE uint32_t power_above(uint32_t value)
{
    value--;
    value |= value >> 1;
    value |= value >> 2;
    value |= value >> 4;
    value |= value >> 8;
    value |= value >> 16;
    return value + 1;
}

static void dither_natural(uint32_t *restrict to, const void *restrict from, size_t count, double scale,
                           uint32_t levels, const uint64_t *restrict draws)
{
    const any_u32 *bits = from;
    const double steps = levels;
    for (size_t i = 0; i < count; i++) {
        const double normalized = (double)f32_of(bits[i] & F32_MAGNITUDE) / scale * steps;
        const int32_t towards_zero = (int32_t)normalized;
        const uint32_t above = (uint32_t)towards_zero + ((double)towards_zero < normalized ? 1u : 0u);
        const uint32_t below = power_above(above) >> 1;
        const uint32_t length = below != 0 ? below : 1;
        const double rest = (normalized - (double)(int32_t)below) / (double)(int32_t)length;
        to[i] = below + (nearest_f64(draws[i]) < rest * 0x1p64 ? length : 0);
    }
}

const codec_kernels CODEC_KERNELS_TABLE = {
    .name = CODEC_KERNELS_NAME,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .bf16_to_f32 = bf16_to_f32,
    .f32_to_e4m3 = f32_to_e4m3,
    .e4m3_to_f32 = e4m3_to_f32,
    .f32_to_e5m2 = f32_to_e5m2,
    .e5m2_to_f32 = e5m2_to_f32,
    .f32_to_int8 = f32_to_int8,
    .int8_to_f32 = int8_to_f32,
    .f32_to_int16 = f32_to_int16,
    .int16_to_f32 = int16_to_f32,
    .add_f32 = add_f32,
    .largest_finite = largest_finite,
    .largest = largest,
    .signs_16 = signs_16,
    .signs_32 = signs_32,
    .signs_64 = signs_64,
    .spread_16 = spread_16,
    .spread_32 = spread_32,
    .spread_64 = spread_64,
    .screen_16 = screen_16,
    .screen_32 = screen_32,
    .screen_64 = screen_64,
    .dither_linear = dither_linear,
    .dither_natural = dither_natural,
};
