/*
 * scaled.c - the codecs fp8_e4m3, fp8_e5m2 and int8: one byte for each element, and a scale for the chunk before them.
 *
 * The scale of fp8 is a power of two, so that scaling rounds nothing. int8 is rounded up or down at random, by the
 * element's place, so that errors cancel out over rounds and workers. Infinities and NaNs do not count for the scale.
 * They come back as NaN, and from E5M2 an infinity as itself.
 */
#include "engine/codec/codec_parts.h"

#define SCALE_BYTES 4u
#define INT8_LARGEST 127.0f
#define INT8_LEAST_RANGE 0x1p-118f /* below it the inverse scale would be infinite */

static trib_status check_fp8_e4m3(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return trib_codec_check_dtype(&trib_codec_fp8_e4m3, dtype, 1, error);
}

static trib_status check_fp8_e5m2(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return trib_codec_check_dtype(&trib_codec_fp8_e5m2, dtype, 1, error);
}

static trib_status check_int8(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return trib_codec_check_dtype(&trib_codec_int8, dtype, 1, error);
}

static uint64_t bound_bytes(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)params;
    (void)dtype;
    return ((uint64_t)count + SCALE_BYTES + 3) / 4 * 4;
}

/* Returns the smallest 2^e, e >= -126, with largest <= limit * 2^e. The limit is 1.75 * 2^exponent. */
static float power_of_two_scale(float largest, int exponent)
{
    const uint32_t bits = codec_bits_of(largest);
    const int power = (int)(bits >> 23) - 127 - exponent + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
    return codec_f32_of((uint32_t)((power < -126 ? -126 : power) + 127) << 23);
}

typedef void narrow_bytes(void *restrict to, const void *restrict from, size_t count, float inverse);
typedef void widen_bytes(void *restrict to, const void *restrict from, size_t count, float scale);

static uint32_t encode_fp8(narrow_bytes *narrow, float scale, trib_dtype dtype, const void *source, uint32_t count,
                           unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
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
    const float scale = power_of_two_scale(trib_codec_largest_finite(kernels, dtype, source, count), 8); /* 448 */
    return encode_fp8(kernels->f32_to_e4m3, scale, dtype, source, count, encoded);
}

static uint32_t encode_fp8_e5m2(const trib_codec_params *params, const trib_codec_place *place, void *state,
                                trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)params;
    (void)place;
    (void)state;
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float scale = power_of_two_scale(trib_codec_largest_finite(kernels, dtype, source, count), 15); /* 57344 */
    return encode_fp8(kernels->f32_to_e5m2, scale, dtype, source, count, encoded);
}

static uint32_t encode_int8(const trib_codec_params *params, const trib_codec_place *place, void *state,
                            trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)state;
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float largest = trib_codec_largest_finite(kernels, dtype, source, count);
    const float range = largest > INT8_LEAST_RANGE ? largest : INT8_LEAST_RANGE;
    const uint64_t of_tensor = trib_codec_mix(trib_codec_mix(params->seed, place->tensor_key), place->rank);
    const uint64_t key = trib_codec_mix(trib_codec_mix(of_tensor, place->round), place->first_element >> 32);
    codec_draws draws = {.key = {(uint32_t)key, (uint32_t)(key >> 32)}, .first = (uint32_t)place->first_element};
    float room[CODEC_BLOCK];
    codec_store_f32(encoded, range / INT8_LARGEST);
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        kernels->f32_to_int8(encoded + SCALE_BYTES + first,
                             trib_codec_load_block(kernels, dtype, source, first, length, room), length,
                             INT8_LARGEST / range, &draws);
        draws.first += CODEC_BLOCK;
    }
    return SCALE_BYTES + count;
}

static trib_status decode_bytes(const trib_codec *codec, widen_bytes *widen, trib_dtype dtype,
                                const unsigned char *encoded, uint32_t encoded_size, void *destination, uint32_t count,
                                trib_error *error)
{
    if (encoded_size != (uint64_t)count + SCALE_BYTES) {
        return trib_codec_refuse(codec, "another length than its elements have", error);
    }
    const float scale = codec_load_f32(encoded);
    if (!(scale > 0) || !codec_is_finite(scale)) {
        return trib_codec_refuse(codec, "a scale that is not above zero and finite", error);
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        float *block = trib_codec_begin_block(dtype, destination, first, room);
        widen(block, encoded + SCALE_BYTES + first, length, scale);
        trib_codec_store_block(kernels, dtype, destination, first, length, block);
    }
    return TRIB_OK;
}

static trib_status decode_fp8_e4m3(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                   uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    (void)params;
    return decode_bytes(&trib_codec_fp8_e4m3, trib_codec_kernels_best()->e4m3_to_f32, dtype, encoded, encoded_size,
                        destination, count, error);
}

static trib_status decode_fp8_e5m2(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                   uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    (void)params;
    return decode_bytes(&trib_codec_fp8_e5m2, trib_codec_kernels_best()->e5m2_to_f32, dtype, encoded, encoded_size,
                        destination, count, error);
}

static trib_status decode_int8(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                               uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    (void)params;
    return decode_bytes(&trib_codec_int8, trib_codec_kernels_best()->int8_to_f32, dtype, encoded, encoded_size,
                        destination, count, error);
}

const trib_codec trib_codec_fp8_e4m3 = {.name = "fp8_e4m3",
                                        .id = TRIB_CODEC_FP8_E4M3,
                                        .check = check_fp8_e4m3,
                                        .bound = bound_bytes,
                                        .encode = encode_fp8_e4m3,
                                        .decode = decode_fp8_e4m3};

const trib_codec trib_codec_fp8_e5m2 = {.name = "fp8_e5m2",
                                        .id = TRIB_CODEC_FP8_E5M2,
                                        .check = check_fp8_e5m2,
                                        .bound = bound_bytes,
                                        .encode = encode_fp8_e5m2,
                                        .decode = decode_fp8_e5m2};

const trib_codec trib_codec_int8 = {.name = "int8",
                                    .id = TRIB_CODEC_INT8,
                                    .check = check_int8,
                                    .bound = bound_bytes,
                                    .encode = encode_int8,
                                    .decode = decode_int8};
