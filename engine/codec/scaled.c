/*
 * scaled.c - the codecs fp8_e4m3, fp8_e5m2, int8 and uniform: a small number for each element, and a scale for the
 * chunk before them.
 *
 * The scale of fp8 is a power of two, so that scaling rounds nothing. int8 is rounded up or down at random, by the
 * element's place, so that errors cancel out over rounds and workers. Infinities and NaNs do not count for the scale.
 * They come back as NaN, and from E5M2 an infinity as itself.
 *
 * uniform is int8 whose scale, the step, is a power of two. So all workers' elements are integers of one step, the
 * smallest, without having agreed on it, and float32 adds such integers exactly up to 2^24. Their sum does not depend
 * on an order, and comes back in 16 bits without a further loss.
 */
#include "engine/codec/codec_parts.h"

#define SCALE_BYTES 4u
#define INT8_LARGEST 127.0f
#define INT8_LEAST_RANGE 0x1p-118f /* below it the inverse scale would be infinite */
#define INT16_LARGEST 32767.0f

static uint64_t bound_bytes(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)params;
    (void)dtype;
    return ((uint64_t)count + SCALE_BYTES + 3) / 4 * 4;
}

/* A sum has 2 bytes for each element. */
static uint64_t bound_uniform(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)params;
    (void)dtype;
    return ((uint64_t)count * 2 + SCALE_BYTES + 3) / 4 * 4;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* Returns the smallest 2^e, e >= -126, with largest <= limit * 2^e. */
static float power_of_two_scale(float largest, float limit)
{
    const uint32_t bits = codec_bits_of(largest), most = codec_bits_of(limit);
    const int power = (int)(bits >> 23) - (int)(most >> 23) + ((bits & 0x7fffff) > (most & 0x7fffff) ? 1 : 0);
    trib_assert(power < 128); /* the scale is finite, as the largest number and the limit are */
    return codec_f32_of((uint32_t)((power < -126 ? -126 : power) + 127) << 23);
}

typedef void narrow_bytes(void *restrict to, const void *restrict from, size_t count, float inverse);
typedef void widen_bytes(void *restrict to, const void *restrict from, size_t count, float scale);

static uint32_t encode_fp8(narrow_bytes *narrow, float scale, trib_dtype dtype, const void *source, uint32_t count,
                           unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    trib_assert(codec_is_finite(scale) && scale > 0); /* what read_codes accepts */
    codec_store_f32(encoded, scale);
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        narrow(encoded + SCALE_BYTES + first, trib_codec_load_block(kernels, dtype, source, first, length, room),
               length, 1 / scale);
    }
    return SCALE_BYTES + count;
}

static uint32_t encode_fp8_e4m3(const trib_codec_params *params, const trib_codec_place *place, void *state,
                                trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)params;
    (void)place;
    (void)state;
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float scale = power_of_two_scale(trib_codec_largest_finite(kernels, dtype, source, count), 448);
    return encode_fp8(kernels->f32_to_e4m3, scale, dtype, source, count, encoded);
}

static uint32_t encode_fp8_e5m2(const trib_codec_params *params, const trib_codec_place *place, void *state,
                                trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)params;
    (void)place;
    (void)state;
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float scale = power_of_two_scale(trib_codec_largest_finite(kernels, dtype, source, count), 57344);
    return encode_fp8(kernels->f32_to_e5m2, scale, dtype, source, count, encoded);
}

/* Each element draws the number of its place. */
static uint32_t encode_at_random(const trib_codec_params *params, const trib_codec_place *place, float scale,
                                 float inverse, trib_dtype dtype, const void *source, uint32_t count,
                                 unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    const uint64_t of_tensor = codec_mix(codec_mix(params->seed, place->tensor_key), place->rank);
    const uint64_t key = codec_mix(codec_mix(of_tensor, place->round), place->first_element >> 32);
    codec_draws draws = {.key = {(uint32_t)key, (uint32_t)(key >> 32)}, .first = (uint32_t)place->first_element};
    float room[CODEC_BLOCK];
    codec_store_f32(encoded, scale);
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        kernels->f32_to_int8(encoded + SCALE_BYTES + first,
                             trib_codec_load_block(kernels, dtype, source, first, length, room), length, inverse,
                             &draws);
        draws.first += CODEC_BLOCK;
    }
    trib_assert(codec_is_finite(scale) && scale > 0); /* what read_codes accepts */
    return SCALE_BYTES + count;
}

static uint32_t encode_int8(const trib_codec_params *params, const trib_codec_place *place, void *state,
                            trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)state;
    const float largest = trib_codec_largest_finite(trib_codec_kernels_best(), dtype, source, count);
    const float range = largest > INT8_LEAST_RANGE ? largest : INT8_LEAST_RANGE;
    float inverse = INT8_LARGEST / range;
    if ((double)inverse * (double)range > (double)INT8_LARGEST) {
        inverse = codec_f32_of(codec_bits_of(inverse) - 1); /* no product may be above the largest code */
    }
    return encode_at_random(params, place, range / INT8_LARGEST, inverse, dtype, source, count, encoded);
}

/* Sums are multiples of a step: in 16 bits they are what they were, unless they need more. */
static uint32_t encode_sum(trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float step = power_of_two_scale(trib_codec_largest_finite(kernels, dtype, source, count), INT16_LARGEST);
    float room[CODEC_BLOCK];
    trib_assert(codec_is_finite(step) && (codec_bits_of(step) & 0x7fffff) == 0); /* what read_codes accepts */
    codec_store_f32(encoded, step);
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        kernels->f32_to_int16(encoded + SCALE_BYTES + 2 * first,
                              trib_codec_load_block(kernels, dtype, source, first, length, room), length, 1 / step);
    }
    return SCALE_BYTES + 2 * count;
}

static uint32_t encode_uniform(const trib_codec_params *params, const trib_codec_place *place, void *state,
                               trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)state;
    if (place->rank == TRIB_CODEC_RANK_OF_SUM) {
        return encode_sum(dtype, source, count, encoded);
    }
    const float largest = trib_codec_largest_finite(trib_codec_kernels_best(), dtype, source, count);
    const float step = power_of_two_scale(largest, INT8_LARGEST);
    return encode_at_random(params, place, step, 1 / step, dtype, source, count, encoded);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

typedef struct scaled_codes {
    widen_bytes *widen;
    const unsigned char *first;
    size_t width;
    float scale;
} scaled_codes;

static widen_bytes *widening(const trib_codec *codec, const codec_kernels *kernels, bool is_wide)
{
    switch (codec->id) {
    case TRIB_CODEC_FP8_E4M3:
        return kernels->e4m3_to_f32;
    case TRIB_CODEC_FP8_E5M2:
        return kernels->e5m2_to_f32;
    default:
        trib_assert(codec->id == TRIB_CODEC_INT8 || codec->id == TRIB_CODEC_UNIFORM);
        trib_assert(!is_wide || codec->id == TRIB_CODEC_UNIFORM); /* sums alone are wide */
        return is_wide ? kernels->int16_to_f32 : kernels->int8_to_f32;
    }
}

/* Returns what is wrong with the bytes of a peer, or NULL. */
static const char *read_codes(const trib_codec *codec, const unsigned char *encoded, uint32_t encoded_size,
                              uint32_t count, scaled_codes *codes)
{
    const bool is_uniform = codec->id == TRIB_CODEC_UNIFORM;
    const bool is_wide = is_uniform && encoded_size == (uint64_t)count * 2 + SCALE_BYTES;
    if (!is_wide && encoded_size != (uint64_t)count + SCALE_BYTES) {
        return "another length than its elements have";
    }
    const float scale = codec_load_f32(encoded);
    if (!(scale > 0) || !codec_is_finite(scale)) {
        return "a scale that is not above zero and finite";
    }
    if (is_uniform && (codec_bits_of(scale) & 0x7fffff) != 0) {
        return "a scale that is not a power of two";
    }
    *codes = (scaled_codes){.widen = widening(codec, trib_codec_kernels_best(), is_wide),
                            .first = encoded + SCALE_BYTES,
                            .width = is_wide ? 2 : 1,
                            .scale = scale};
    return NULL;
}

static trib_status inspect_scaled(const trib_codec *codec, const unsigned char *encoded, uint32_t encoded_size,
                                  uint32_t count, trib_error *error)
{
    scaled_codes codes;
    const char *problem = read_codes(codec, encoded, encoded_size, count, &codes);
    return problem == NULL ? TRIB_OK : trib_codec_refuse(codec, problem, error);
}

static trib_status decode_scaled(const trib_codec *codec, trib_dtype dtype, const unsigned char *encoded,
                                 uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    scaled_codes codes;
    const char *problem = read_codes(codec, encoded, encoded_size, count, &codes);
    if (problem != NULL) {
        return trib_codec_refuse(codec, problem, error);
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        float *block = trib_codec_begin_block(dtype, destination, first, room);
        codes.widen(block, codes.first + first * codes.width, length, codes.scale);
        trib_codec_store_block(kernels, dtype, destination, first, length, block);
    }
    return TRIB_OK;
}

static void add_f64(double *sum, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double added = sum[i] + (double)values[i];
        sum[i] = added != added ? __builtin_nan("") : added;
    }
}

/* A block is decoded where the processor has it at hand, and added from there. */
static trib_status add_scaled(const trib_codec *codec, trib_dtype dtype, const unsigned char *encoded,
                              uint32_t encoded_size, void *sum, uint32_t count, trib_error *error)
{
    scaled_codes codes;
    const char *problem = read_codes(codec, encoded, encoded_size, count, &codes);
    if (problem != NULL) {
        return trib_codec_refuse(codec, problem, error);
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    uint16_t halves[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        codes.widen(room, codes.first + first * codes.width, length, codes.scale);
        if (dtype == TRIB_FLOAT64) {
            add_f64((double *)sum + first, room, length);
            continue;
        }
        if (dtype != TRIB_FLOAT32) { /* what decodes is of the tensor's type */
            trib_codec_store_block(kernels, dtype, halves, 0, length, room);
            (void)trib_codec_load_block(kernels, dtype, halves, 0, length, room);
        }
        kernels->add_f32((float *)sum + first, room, length);
    }
    return TRIB_OK;
}

#define DEFINE_CODEC(codec, number, bytes)                                                                             \
    static trib_status check_##codec(const trib_codec_params *params, trib_dtype dtype, trib_error *error)             \
    {                                                                                                                  \
        (void)params;                                                                                                  \
        return trib_codec_check_dtype(&trib_codec_##codec, dtype, 1, error);                                           \
    }                                                                                                                  \
    static trib_status decode_##codec(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded, \
                                      uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)     \
    {                                                                                                                  \
        (void)params;                                                                                                  \
        return decode_scaled(&trib_codec_##codec, dtype, encoded, encoded_size, destination, count, error);            \
    }                                                                                                                  \
    static trib_status inspect_##codec(const trib_codec_params *params, trib_dtype dtype,                              \
                                       const unsigned char *encoded, uint32_t encoded_size, uint32_t count,            \
                                       trib_error *error)                                                              \
    {                                                                                                                  \
        (void)params;                                                                                                  \
        (void)dtype;                                                                                                   \
        return inspect_scaled(&trib_codec_##codec, encoded, encoded_size, count, error);                               \
    }                                                                                                                  \
    static trib_status add_##codec(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,    \
                                   uint32_t encoded_size, void *sum, uint32_t count, trib_error *error)                \
    {                                                                                                                  \
        (void)params;                                                                                                  \
        return add_scaled(&trib_codec_##codec, dtype, encoded, encoded_size, sum, count, error);                       \
    }                                                                                                                  \
    const trib_codec trib_codec_##codec = {.name = #codec,                                                             \
                                           .id = (number),                                                             \
                                           .check = check_##codec,                                                     \
                                           .bound = bound_##bytes,                                                     \
                                           .encode = encode_##codec,                                                   \
                                           .decode = decode_##codec,                                                   \
                                           .inspect = inspect_##codec,                                                 \
                                           .add_encoded = add_##codec};

DEFINE_CODEC(fp8_e4m3, TRIB_CODEC_FP8_E4M3, bytes)
DEFINE_CODEC(fp8_e5m2, TRIB_CODEC_FP8_E5M2, bytes)
DEFINE_CODEC(int8, TRIB_CODEC_INT8, bytes)
DEFINE_CODEC(uniform, TRIB_CODEC_UNIFORM, uniform)
