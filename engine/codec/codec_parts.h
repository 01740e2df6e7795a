/* codec_parts.h - shared by the codecs: their tables, elements of any type as blocks of float32, bytes anywhere in
 * memory, and random numbers that depend on a place. */
#ifndef TRIB_ENGINE_CODEC_PARTS_H
#define TRIB_ENGINE_CODEC_PARTS_H

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "engine/codec/codec.h"
#include "engine/codec/codec_share.h"
#include "engine/codec/kernels/codec_kernels.h"

#include <string.h>

extern const trib_codec trib_codec_fp16;
extern const trib_codec trib_codec_bf16;
extern const trib_codec trib_codec_fp8_e4m3;
extern const trib_codec trib_codec_fp8_e5m2;
extern const trib_codec trib_codec_int8;
extern const trib_codec trib_codec_onebit;
extern const trib_codec trib_codec_topk;
extern const trib_codec trib_codec_randomk;
extern const trib_codec trib_codec_dithering;
extern const trib_codec trib_codec_uniform;

/* Refuses types that are not floats, or whose elements are not larger than `bytes`. */
trib_status trib_codec_check_dtype(const trib_codec *codec, trib_dtype dtype, size_t bytes, trib_error *error);

/* Fails with TRIB_PROTOCOL for encoded bytes that no encoder makes. */
trib_status trib_codec_refuse(const trib_codec *codec, const char *problem, trib_error *error);

/* ---- Blocks of float32 ------------------------------------------------------------------------------------------- */

#define CODEC_BLOCK 1024u /* elements: a few of these arrays fit on a stack and in the first cache */

/* Returns elements first..first + count - 1 as float32: converted in `room`, or in place. A float64 is rounded. */
const float *trib_codec_load_block(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t first,
                                   size_t count, float room[CODEC_BLOCK]);

/* Returns where to decode these elements to: the destination itself, or `room`, from where trib_codec_store_block then
 * converts them. */
float *trib_codec_begin_block(trib_dtype dtype, void *destination, size_t first, float room[CODEC_BLOCK]);
void trib_codec_store_block(const codec_kernels *kernels, trib_dtype dtype, void *destination, size_t first,
                            size_t count, const float *block);

static inline size_t codec_block_at(size_t first, size_t count)
{
    return count - first < CODEC_BLOCK ? count - first : CODEC_BLOCK;
}

/* Returns the largest finite magnitude of a chunk, or the bits of the largest that there is. */
float trib_codec_largest_finite(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t count);
uint32_t trib_codec_largest_bits(const codec_kernels *kernels, trib_dtype dtype, const void *source, size_t count);

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static inline uint32_t codec_load_u32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value); /* these processors are little-endian */
    return value;
}

static inline void codec_store_u32(unsigned char *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static inline float codec_load_f32(const unsigned char *at)
{
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void codec_store_f32(unsigned char *at, float value)
{
    memcpy(at, &value, sizeof value);
}

static inline float codec_f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t codec_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline bool codec_is_finite(float value)
{
    return (codec_bits_of(value) & ~CODEC_F32_SIGN) < CODEC_F32_INFINITY;
}

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

/* Returns the state to go on with: with a seed the partition's (NULL: of a first chunk), else one of the chunk's place
 * and of `salt`. */
codec_xorshift trib_codec_xorshift_begin(const trib_codec_params *params, const trib_codec_place *place, uint64_t salt,
                                         const void *state);
void trib_codec_xorshift_end(const trib_codec_params *params, codec_xorshift after, void *state);

#endif
