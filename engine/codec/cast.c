/*
 * cast.c - the codecs fp16 and bf16: each element as a float of 16 bits, rounded to nearest even.
 *
 * Numbers beyond the format become infinite, a NaN stays one. A float64 is rounded to float32 first.
 */
#include "engine/codec/codec_parts.h"

static trib_status check_cast(const trib_codec *codec, trib_dtype dtype, trib_error *error)
{
    return trib_codec_check_dtype(codec, dtype, sizeof(uint16_t), error);
}

static trib_status check_fp16(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return check_cast(&trib_codec_fp16, dtype, error);
}

static trib_status check_bf16(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return check_cast(&trib_codec_bf16, dtype, error);
}

static uint64_t bound_cast(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)params;
    (void)dtype;
    return ((uint64_t)count * sizeof(uint16_t) + 3) / 4 * 4;
}

static uint32_t encode_cast(trib_dtype narrow, trib_dtype dtype, const void *source, uint32_t count,
                            unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const float *block = trib_codec_load_block(kernels, dtype, source, first, length, room);
        unsigned char *to = encoded + first * sizeof(uint16_t);
        if (narrow == TRIB_FLOAT16) {
            kernels->f32_to_f16(to, block, length);
        } else {
            kernels->f32_to_bf16(to, block, length);
        }
    }
    return (uint32_t)(count * sizeof(uint16_t));
}

static uint32_t encode_fp16(const trib_codec_params *params, const trib_codec_place *place, void *state,
                            trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)params;
    (void)place;
    (void)state;
    return encode_cast(TRIB_FLOAT16, dtype, source, count, encoded);
}

static uint32_t encode_bf16(const trib_codec_params *params, const trib_codec_place *place, void *state,
                            trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)params;
    (void)place;
    (void)state;
    return encode_cast(TRIB_BFLOAT16, dtype, source, count, encoded);
}

static trib_status inspect_cast(const trib_codec *codec, uint32_t encoded_size, uint32_t count, trib_error *error)
{
    return encoded_size == (uint64_t)count * sizeof(uint16_t)
               ? TRIB_OK
               : trib_codec_refuse(codec, "another length than its elements have", error);
}

static trib_status decode_cast(const trib_codec *codec, trib_dtype narrow, trib_dtype dtype,
                               const unsigned char *encoded, uint32_t encoded_size, void *destination, uint32_t count,
                               trib_error *error)
{
    const trib_status status = inspect_cast(codec, encoded_size, count, error);
    if (status != TRIB_OK) {
        return status;
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        float *block = trib_codec_begin_block(dtype, destination, first, room);
        const unsigned char *from = encoded + first * sizeof(uint16_t);
        if (narrow == TRIB_FLOAT16) {
            kernels->f16_to_f32(block, from, length);
        } else {
            kernels->bf16_to_f32(block, from, length);
        }
        trib_codec_store_block(kernels, dtype, destination, first, length, block);
    }
    return TRIB_OK;
}

static trib_status decode_fp16(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                               uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    (void)params;
    return decode_cast(&trib_codec_fp16, TRIB_FLOAT16, dtype, encoded, encoded_size, destination, count, error);
}

static trib_status decode_bf16(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                               uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    (void)params;
    return decode_cast(&trib_codec_bf16, TRIB_BFLOAT16, dtype, encoded, encoded_size, destination, count, error);
}

static trib_status inspect_fp16(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                uint32_t encoded_size, uint32_t count, trib_error *error)
{
    (void)params;
    (void)dtype;
    (void)encoded;
    return inspect_cast(&trib_codec_fp16, encoded_size, count, error);
}

static trib_status inspect_bf16(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                uint32_t encoded_size, uint32_t count, trib_error *error)
{
    (void)params;
    (void)dtype;
    (void)encoded;
    return inspect_cast(&trib_codec_bf16, encoded_size, count, error);
}

const trib_codec trib_codec_fp16 = {.name = "fp16",
                                    .id = TRIB_CODEC_FP16,
                                    .check = check_fp16,
                                    .bound = bound_cast,
                                    .encode = encode_fp16,
                                    .decode = decode_fp16,
                                    .inspect = inspect_fp16};

const trib_codec trib_codec_bf16 = {.name = "bf16",
                                    .id = TRIB_CODEC_BF16,
                                    .check = check_bf16,
                                    .bound = bound_cast,
                                    .encode = encode_bf16,
                                    .decode = decode_bf16,
                                    .inspect = inspect_bf16};
