/*
 * dithering.c - the codec dithering: magnitudes as levels of a chunk's scale, rounded at random, zeros left out.
 *
 * The bytes are BytePS's, for elements of each type as for float32. A stream of bits, the first in the highest bit of a
 * word of 32, has for each level above 0 the distance from the one before (Elias delta), the sign, and the level (Elias
 * delta). After the words stand the number of bits and the scale, a float32. A chunk with a NaN or an infinity, or
 * whose norm is infinite, has no bits, and a NaN as its scale: all of it decodes to NaN.
 */
#include "engine/codec/codec_parts.h"

#define TRAILER_BYTES 8u
#define LINEAR_LEVELS_MAX (1u << 20)
#define NATURAL_LEVELS_MAX 21u /* powers of two */
_Static_assert(1u << (NATURAL_LEVELS_MAX - 1) == LINEAR_LEVELS_MAX, "both kinds have the same largest level");

static trib_status check_dithering(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    const uint32_t most = params->partition ? NATURAL_LEVELS_MAX : LINEAR_LEVELS_MAX;
    if (params->k < 1 || params->k > most || params->ratio != 0) {
        return trib_error_set(error, TRIB_INVALID, "codec dithering needs k=, the number of %s levels: 1 to %u",
                              params->partition ? "natural" : "linear", most);
    }
    return trib_codec_check_dtype(&trib_codec_dithering, dtype, 1, error);
}

static uint32_t levels_of(const trib_codec_params *params)
{
    return params->partition ? 1u << (params->k - 1) : params->k;
}

static unsigned log2_of(uint32_t number)
{
    return 31u - (unsigned)__builtin_clz(number);
}

static unsigned elias_bits(uint32_t number)
{
    const unsigned length = log2_of(number) + 1;
    return 2 * log2_of(length) + length;
}

/* The most are needed if no element is left out: a distance of 1 has one bit, and a level at most twice the levels (a
 * norm of the smallest floats is not exact). */
static uint64_t bound_dithering(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    (void)dtype;
    const uint64_t bits = (uint64_t)count * (2 + elias_bits(2 * levels_of(params) + 1));
    return (bits + 31) / 32 * 4 + TRAILER_BYTES;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

typedef struct bit_writer {
    unsigned char *at;
    uint64_t pending;
    unsigned used; /* bits of `pending`, below 32 */
} bit_writer;

/* `count` is at most 32. A word is stored even if it is not full yet: it is stored again then, and the trailer's place
 * is behind it. */
static inline void put_bits(bit_writer *writer, uint64_t bits, unsigned count)
{
    writer->pending = writer->pending << count | bits;
    writer->used += count;
    codec_store_u32(writer->at, (uint32_t)(writer->pending << (63 - writer->used) >> 31));
    writer->at += writer->used / 32 * 4;
    writer->used %= 32;
}

static inline void put_elias(bit_writer *writer, uint32_t number)
{
    const unsigned length = log2_of(number) + 1;
    const uint32_t low = number & ((1u << (length - 1)) - 1);
    put_bits(writer, length, 2 * log2_of(length) + 1);
    put_bits(writer, low, length - 1);
}

#define SHORT_CODES 256u /* numbers below have codes of at most 14 bits */

typedef struct short_codes {
    uint16_t bits[SHORT_CODES];
    uint8_t counts[SHORT_CODES];
} short_codes;

static void make_short_codes(short_codes *codes)
{
    for (uint32_t number = 1; number < SHORT_CODES; number++) {
        const unsigned below = log2_of(number);
        codes->bits[number] = (uint16_t)((below + 1) << below | (number ^ 1u << below));
        codes->counts[number] = (uint8_t)elias_bits(number);
    }
}

/* The distance, sign and level of an element go as one where they fit. */
static inline void put_element(bit_writer *writer, const short_codes *codes, uint32_t distance, uint32_t sign,
                               uint32_t level)
{
    if ((distance | level) < SHORT_CODES) {
        const uint64_t first = (uint64_t)codes->bits[distance] << 1 | sign;
        put_bits(writer, first << codes->counts[level] | codes->bits[level],
                 codes->counts[distance] + 1u + codes->counts[level]);
        return;
    }
    put_elias(writer, distance);
    put_bits(writer, sign, 1);
    put_elias(writer, level);
}

/* The sum is in float64, element after element, of squares in float32. */
static double norm_of(const codec_kernels *kernels, trib_dtype dtype, const void *source, uint32_t count)
{
    float room[CODEC_BLOCK];
    double sum = 0;
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const float *block = trib_codec_load_block(kernels, dtype, source, first, length, room);
        for (size_t i = 0; i < length; i++) {
            const float square = block[i] * block[i];
            sum += (double)square;
        }
    }
    return __builtin_sqrt(sum);
}

static double scale_of(const codec_kernels *kernels, const trib_codec_params *params, trib_dtype dtype,
                       const void *source, uint32_t count)
{
    const uint32_t largest = trib_codec_largest_bits(kernels, dtype, source, count);
    const double scale = params->normalize && largest < CODEC_F32_INFINITY ? norm_of(kernels, dtype, source, count)
                                                                           : (double)codec_f32_of(largest);
    return scale <= (double)__FLT_MAX__ ? scale : __builtin_nan("");
}

typedef struct dither_block {
    float room[CODEC_BLOCK];
    uint64_t draws[CODEC_BLOCK];
    uint32_t levels[CODEC_BLOCK];
    uint32_t above_zero[CODEC_BLOCK]; /* indices of the levels above 0 */
    short_codes codes;
} dither_block;

static void write_block(bit_writer *writer, dither_block *block, const float *values, size_t length, uint32_t *distance)
{
    size_t found = 0;
    uint32_t *indices = block->above_zero;
    for (uint32_t i = 0; i < length; i++) {
        indices[found] = i;
        found += block->levels[i] != 0;
    }
    uint32_t next = 0;
    for (size_t i = 0; i < found; i++) {
        const uint32_t index = indices[i];
        put_element(writer, &block->codes, *distance + index - next + 1, codec_bits_of(values[index]) >> 31,
                    block->levels[index]);
        *distance = 0;
        next = index + 1;
    }
    *distance += (uint32_t)length - next;
}

static uint32_t encode_dithering(const trib_codec_params *params, const trib_codec_place *place, void *state,
                                 trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    const double scale = scale_of(kernels, params, dtype, source, count);
    const uint64_t salt = codec_mix(TRIB_CODEC_DITHERING, place->rank);
    codec_xorshift random = trib_codec_xorshift_begin(params, place, salt, state);
    bit_writer writer = {.at = encoded};
    dither_block block;
    uint32_t distance = 0;
    make_short_codes(&block.codes);
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        const float *values = trib_codec_load_block(kernels, dtype, source, first, length, block.room);
        for (size_t i = 0; i < length; i++) {
            block.draws[i] = codec_xorshift_next(&random);
        }
        if (!(scale > 0)) {
            continue; /* the draws count, so that what comes later does not depend on it */
        }
        (params->partition ? kernels->dither_natural : kernels->dither_linear)(block.levels, values, length, scale,
                                                                               levels_of(params), block.draws);
        write_block(&writer, &block, values, length, &distance);
    }
    trib_codec_xorshift_end(params, random, state);
    const uint32_t bits = (uint32_t)(writer.at - encoded) * 8 + writer.used;
    if (writer.used > 0) {
        put_bits(&writer, 0, 32 - writer.used);
    }
    trib_assert(writer.used == 0); /* the trailer stands behind whole words */
    trib_assert((uint64_t)(writer.at - encoded) + TRAILER_BYTES <= bound_dithering(params, dtype, count));
    codec_store_u32(writer.at, bits);
    codec_store_f32(writer.at + 4, (float)scale);
    return (uint32_t)(writer.at - encoded) + TRAILER_BYTES;
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

typedef struct bit_reader {
    const unsigned char *words;
    uint32_t at;
    uint32_t bits; /* length of the stream, in whole words */
} bit_reader;

/* Returns the next 32 bits, zeros beyond the end. */
static inline uint32_t peek_bits(const bit_reader *reader)
{
    const uint32_t word = reader->at / 32;
    const uint32_t words = (reader->bits + 31) / 32;
    const uint64_t first = word < words ? codec_load_u32(reader->words + (size_t)word * 4) : 0;
    const uint64_t second = word + 1 < words ? codec_load_u32(reader->words + (size_t)(word + 1) * 4) : 0;
    return (uint32_t)((first << 32 | second) >> (32 - reader->at % 32));
}

/* Returns 0 for what is no number of up to 32 bits. The end of the stream is checked once for each element. */
static inline uint32_t take_elias(bit_reader *reader)
{
    const uint32_t head = peek_bits(reader);
    const unsigned zeros = head == 0 ? 32 : (unsigned)__builtin_clz(head);
    if (zeros > 5) {
        return 0;
    }
    const unsigned length = head >> (31 - 2 * zeros);
    if (length > 32) {
        return 0;
    }
    reader->at += 2 * zeros + 1;
    const uint32_t low = length > 1 ? peek_bits(reader) >> (33 - length) : 0;
    reader->at += length - 1;
    return low | 1u << (length - 1);
}

/* The product comes first, as in BytePS, unless it is beyond what float32 has. */
static inline float magnitude_of(uint32_t level, float scale, float levels)
{
    const float product = (float)level * scale;
    return codec_is_finite(product) ? product / levels : (float)level / levels * scale;
}

typedef struct dithered {
    uint32_t distance; /* 0: the bits are those of no element */
    uint32_t sign;
    uint32_t level;
} dithered;

/* Reads two short codes and the sign between them from one window of 64 bits, which is whole: the trailer has two words
 * after the stream. What a window has beyond the stream's end is found when its length is checked. */
static inline dithered take_element(bit_reader *reader)
{
    const unsigned char *at = reader->words + (size_t)(reader->at / 32) * 4;
    const uint64_t high = (uint64_t)codec_load_u32(at) << 32 | codec_load_u32(at + 4);
    const unsigned shift = reader->at % 32;
    const uint64_t window = high << shift | (uint64_t)codec_load_u32(at + 8) >> (32 - shift);
    const unsigned zeros = (unsigned)__builtin_clzll(window | 1), first = (unsigned)(window << zeros >> (63 - zeros));
    const unsigned begin = 2 * zeros + first; /* of the sign: the code has as many bits */
    if (zeros <= 3) {
        const uint64_t rest = window << begin;
        const uint64_t next = rest << 1;
        const unsigned more = (unsigned)__builtin_clzll(next | 1), second = (unsigned)(next << more >> (63 - more));
        if (more <= 3) {
            reader->at += begin + 1 + 2 * more + second;
            return (dithered){
                (uint32_t)((window << (2 * zeros + 1) >> 1 | (uint64_t)1 << 63) >> (64 - first)),
                (uint32_t)(rest >> 63) << 31,
                (uint32_t)((next << (2 * more + 1) >> 1 | (uint64_t)1 << 63) >> (64 - second)),
            };
        }
    }
    dithered taken = {.distance = take_elias(reader)};
    taken.sign = peek_bits(reader) & CODEC_F32_SIGN;
    reader->at += 1;
    taken.level = taken.distance != 0 ? take_elias(reader) : 0;
    return taken;
}

static trib_status decode_blocks(bit_reader *reader, const trib_codec_params *params, float scale, trib_dtype dtype,
                                 void *destination, uint32_t count, trib_error *error)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    const float levels = (float)levels_of(params);
    float room[CODEC_BLOCK];
    uint64_t next = UINT64_MAX; /* the last element that was not 0 */
    float value = 0;
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        float *block = trib_codec_begin_block(dtype, destination, first, room);
        memset(block, 0, length * sizeof *block);
        if (next != UINT64_MAX && next >= first && next < first + length) {
            block[next - first] = value;
        }
        while (reader->at < reader->bits && (next == UINT64_MAX || next < first + length)) {
            const dithered taken = take_element(reader);
            next += taken.distance;
            if (taken.distance == 0 || taken.level == 0 || reader->at > reader->bits || next >= count) {
                return trib_codec_refuse(&trib_codec_dithering, "bits that are not those of its elements", error);
            }
            value = codec_f32_of(codec_bits_of(magnitude_of(taken.level, scale, levels)) ^ taken.sign);
            if (next < first + length) {
                block[next - first] = value;
            }
        }
        trib_codec_store_block(kernels, dtype, destination, first, length, block);
    }
    return TRIB_OK;
}

static void fill_with_nan(trib_dtype dtype, void *destination, uint32_t count)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        float *block = trib_codec_begin_block(dtype, destination, first, room);
        for (size_t i = 0; i < length; i++) {
            block[i] = codec_f32_of(CODEC_F32_NAN);
        }
        trib_codec_store_block(kernels, dtype, destination, first, length, block);
    }
}

static trib_status decode_dithering(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                    uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    if (encoded_size < TRAILER_BYTES || encoded_size % 4 != 0) {
        return trib_codec_refuse(&trib_codec_dithering, "a length that is not of whole words", error);
    }
    const uint32_t words = (encoded_size - TRAILER_BYTES) / 4;
    bit_reader reader = {.words = encoded, .bits = codec_load_u32(encoded + (size_t)words * 4)};
    const float scale = codec_load_f32(encoded + (size_t)words * 4 + 4);
    if (((uint64_t)reader.bits + 31) / 32 != words) {
        return trib_codec_refuse(&trib_codec_dithering, "a number of bits that does not fit its length", error);
    }
    if (!codec_is_finite(scale)) {
        fill_with_nan(dtype, destination, count);
        return TRIB_OK;
    }
    return decode_blocks(&reader, params, scale, dtype, destination, count, error);
}

const trib_codec trib_codec_dithering = {.name = "dithering",
                                         .id = TRIB_CODEC_DITHERING,
                                         .check = check_dithering,
                                         .bound = bound_dithering,
                                         .encode = encode_dithering,
                                         .decode = decode_dithering,
                                         .state_bytes = sizeof(codec_xorshift)};
