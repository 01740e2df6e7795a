/* codec.c - the list of codecs, and what they share (codec_parts.h). */
#include "engine/codec/codec_parts.h"

static const trib_codec *const codecs[] = {
    &trib_codec_fp16,   &trib_codec_bf16, &trib_codec_fp8_e4m3, &trib_codec_fp8_e5m2,  &trib_codec_int8,
    &trib_codec_onebit, &trib_codec_topk, &trib_codec_randomk,  &trib_codec_dithering, &trib_codec_uniform,
};
#define CODEC_COUNT (sizeof codecs / sizeof codecs[0])
_Static_assert(CODEC_COUNT == TRIB_CODEC_UNIFORM, "each id but that of a program's codec has its codec");
_Static_assert(TRIB_CODEC_BROUGHT > TRIB_CODEC_UNIFORM && TRIB_CODEC_BROUGHT <= UINT8_MAX, "a frame has a byte for it");

const trib_codec *trib_codec_at(size_t index)
{
    return index < CODEC_COUNT ? codecs[index] : NULL;
}

const trib_codec *trib_codec_find(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i]->name, name) == 0) {
            return codecs[i];
        }
    }
    return NULL;
}

const trib_codec *trib_codec_by_id(uint8_t id)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (codecs[i]->id == id) {
            return codecs[i];
        }
    }
    return NULL;
}

trib_status trib_codec_check_dtype(const trib_codec *codec, trib_dtype dtype, size_t bytes, trib_error *error)
{
    if (dtype != TRIB_FLOAT32 && dtype != TRIB_FLOAT64 && dtype != TRIB_FLOAT16 && dtype != TRIB_BFLOAT16) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec %s encodes floating-point numbers, not %s: leave this tensor without a codec",
                              codec->name, trib_dtype_name(dtype));
    }
    if (trib_dtype_size(dtype) <= bytes) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec %s makes %s no smaller: leave this tensor without a codec, or choose another",
                              codec->name, trib_dtype_name(dtype));
    }
    return TRIB_OK;
}

trib_status trib_codec_refuse(const trib_codec *codec, const char *problem, trib_error *error)
{
    return trib_error_set(error, TRIB_PROTOCOL, "a chunk that was encoded with %s has %s", codec->name, problem);
}

/* ---- Blocks of float32 ------------------------------------------------------------------------------------------- */

const float *trib_codec_load_block(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t first,
                                   size_t count, float room[CODEC_BLOCK])
{
    switch (dtype) {
    case TRIB_FLOAT32:
        return (const float *)source + first;
    case TRIB_FLOAT64:
        for (size_t i = 0; i < count; i++) {
            room[i] = (float)((const double *)source)[first + i];
        }
        return room;
    case TRIB_FLOAT16:
        kernels->f16_to_f32(room, (const uint16_t *)source + first, count);
        return room;
    default:
        trib_assert(dtype == TRIB_BFLOAT16);
        kernels->bf16_to_f32(room, (const uint16_t *)source + first, count);
        return room;
    }
}

float *trib_codec_begin_block(trib_dtype dtype, void *destination, size_t first, float room[CODEC_BLOCK])
{
    return dtype == TRIB_FLOAT32 ? (float *)destination + first : room;
}

void trib_codec_store_block(const codec_kernels *kernels, trib_dtype dtype, void *destination, size_t first,
                            size_t count, const float *block)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        break;
    case TRIB_FLOAT64:
        for (size_t i = 0; i < count; i++) {
            ((double *)destination)[first + i] = (double)block[i];
        }
        break;
    case TRIB_FLOAT16:
        kernels->f32_to_f16((uint16_t *)destination + first, block, count);
        break;
    default:
        trib_assert(dtype == TRIB_BFLOAT16);
        kernels->f32_to_bf16((uint16_t *)destination + first, block, count);
        break;
    }
}

float trib_codec_largest_finite(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t count)
{
    float room[CODEC_BLOCK];
    uint32_t most = 0;
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const uint32_t bits =
            kernels->largest_finite(trib_codec_load_block(kernels, dtype, source, first, length, room), length);
        most = bits > most ? bits : most;
    }
    trib_assert(most < CODEC_F32_INFINITY); /* a magnitude, and finite */
    return codec_f32_of(most);
}

uint32_t trib_codec_largest_bits(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t count)
{
    float room[CODEC_BLOCK];
    uint32_t most = 0;
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const uint32_t bits =
            kernels->largest(trib_codec_load_block(kernels, dtype, source, first, length, room), length);
        most = bits > most ? bits : most;
    }
    trib_assert((most & CODEC_F32_SIGN) == 0);
    return most;
}

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

codec_xorshift trib_codec_xorshift_begin(const trib_codec_params *params, const trib_codec_place *place, uint64_t salt,
                                         const void *state)
{
    codec_xorshift begin = {0, 0};
    if (params->seed == 0) {
        const uint64_t of_tensor = codec_mix(codec_mix(salt, place->tensor_key), place->round);
        return codec_xorshift_of_chunk(of_tensor, place->first_element);
    }
    if (state != NULL) {
        memcpy(&begin, state, sizeof begin);
    }
    return begin.older == 0 && begin.newer == 0 ? (codec_xorshift){params->seed, params->seed} : begin;
}

void trib_codec_xorshift_end(const trib_codec_params *params, codec_xorshift after, void *state)
{
    trib_assert(after.older != 0 || after.newer != 0); /* zeros would give zeros for ever, and mean "not begun" */
    if (params->seed != 0 && state != NULL) {
        memcpy(state, &after, sizeof after);
    }
}
