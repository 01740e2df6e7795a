/*
 * onebit.c - the codec onebit: the sign of each element, and with `scaling` the mean magnitude of the chunk.
 *
 * Its bits are BytePS's. A word has as many bits as an element, the first element in its highest bit; 1 is below zero,
 * so that -0.0 and NaN are 0. After the words stands a float32 with the magnitude. The mean is summed in float64,
 * element after element. A NaN or an infinity in the chunk makes the mean one, and with it all of the chunk.
 */
#include "engine/codec/codec_parts.h"

#define SCALE_BYTES 4u

static trib_status check_onebit(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    (void)params;
    return trib_codec_check_dtype(&trib_codec_onebit, dtype, 1, error);
}

static uint64_t words_bytes(trib_dtype dtype, uint32_t count)
{
    const uint64_t size = trib_dtype_size(dtype);
    return (count + 8 * size - 1) / (8 * size) * size;
}

static uint64_t bound_onebit(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)params;
    return (words_bytes(dtype, count) + SCALE_BYTES + 3) / 4 * 4;
}

/* A mean that is no number has always the same bits, whoever computes it. */
static float mean_of(double sum, uint32_t count)
{
    return sum != sum ? codec_f32_of(CODEC_F32_NAN) : (float)(sum / count);
}

static float mean_magnitude(const codec_kernels *kernels, trib_dtype dtype, const void *source, uint32_t count)
{
    double sum = 0;
    if (dtype == TRIB_FLOAT64) {
        for (uint32_t i = 0; i < count; i++) {
            sum += __builtin_fabs(((const double *)source)[i]);
        }
        return mean_of(sum, count);
    }
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const float *block = trib_codec_load_block(kernels, dtype, source, first, length, room);
        for (size_t i = 0; i < length; i++) {
            sum += (double)__builtin_fabsf(block[i]);
        }
    }
    return mean_of(sum, count);
}

static void pack_signs(const codec_kernels *kernels, trib_dtype dtype, void *to, const void *from, size_t words)
{
    if (dtype == TRIB_FLOAT32) {
        kernels->signs_32(to, from, words, CODEC_F32_INFINITY);
    } else if (dtype == TRIB_FLOAT64) {
        kernels->signs_64(to, from, words, 0x7ff0000000000000u);
    } else {
        trib_assert(dtype == TRIB_FLOAT16 || dtype == TRIB_BFLOAT16);
        kernels->signs_16(to, from, words, dtype == TRIB_FLOAT16 ? 0x7c00 : 0x7f80);
    }
}

static uint32_t encode_onebit(const trib_codec_params *params, const trib_codec_place *place, void *state,
                              trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)place;
    (void)state;
    const codec_kernels *kernels = trib_codec_kernels_best();
    const size_t size = trib_dtype_size(dtype), words = count / (8 * size), rest = count % (8 * size);
    const float scale = params->scaling ? mean_magnitude(kernels, dtype, source, count) : 1.0f;
    pack_signs(kernels, dtype, encoded, source, words);
    if (rest > 0) {
        uint64_t padded[sizeof(double) * 8] = {0};
        memcpy(padded, (const unsigned char *)source + words * 8 * size * size, rest * size);
        pack_signs(kernels, dtype, encoded + words * size, padded, 1);
    }
    const uint64_t bytes = words_bytes(dtype, count);
    trib_assert(bytes == (words + (rest > 0 ? 1 : 0)) * size); /* the scale stands behind the last word */
    trib_assert(bytes + SCALE_BYTES <= bound_onebit(params, dtype, count));
    codec_store_f32(encoded + bytes, scale);
    return (uint32_t)bytes + SCALE_BYTES;
}

static void spread_signs(const codec_kernels *kernels, trib_dtype dtype, void *to, const void *from, size_t words,
                         float scale)
{
    const double wide = (double)scale;
    uint64_t bits;
    uint16_t half;
    memcpy(&bits, &wide, sizeof bits);
    switch (dtype) {
    case TRIB_FLOAT32:
        kernels->spread_32(to, from, words, codec_bits_of(scale));
        break;
    case TRIB_FLOAT64:
        kernels->spread_64(to, from, words, bits);
        break;
    case TRIB_FLOAT16:
        kernels->f32_to_f16(&half, &scale, 1);
        kernels->spread_16(to, from, words, half);
        break;
    default:
        trib_assert(dtype == TRIB_BFLOAT16);
        kernels->f32_to_bf16(&half, &scale, 1);
        kernels->spread_16(to, from, words, half);
        break;
    }
}

static trib_status inspect_onebit(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                  uint32_t encoded_size, uint32_t count, trib_error *error)
{
    (void)params;
    (void)encoded;
    return encoded_size == words_bytes(dtype, count) + SCALE_BYTES
               ? TRIB_OK
               : trib_codec_refuse(&trib_codec_onebit, "another length than its elements have", error);
}

static trib_status decode_onebit(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                 uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    const uint64_t bytes = words_bytes(dtype, count);
    const trib_status status = inspect_onebit(params, dtype, encoded, encoded_size, count, error);
    if (status != TRIB_OK) {
        return status;
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    const size_t size = trib_dtype_size(dtype), words = count / (8 * size), rest = count % (8 * size);
    const float scale = codec_load_f32(encoded + bytes);
    spread_signs(kernels, dtype, destination, encoded, words, scale);
    if (rest > 0) {
        uint64_t padded[sizeof(double) * 8];
        spread_signs(kernels, dtype, padded, encoded + words * size, 1, scale);
        memcpy((unsigned char *)destination + words * 8 * size * size, padded, rest * size);
    }
    return TRIB_OK;
}

const trib_codec trib_codec_onebit = {.name = "onebit",
                                      .id = TRIB_CODEC_ONEBIT,
                                      .check = check_onebit,
                                      .bound = bound_onebit,
                                      .encode = encode_onebit,
                                      .decode = decode_onebit,
                                      .inspect = inspect_onebit};
