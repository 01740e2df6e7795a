/* encoding.c - see encoding.h. */
#include "engine/codec/encoding.h"

#include <string.h>

#include "engine/codec/codec_parts.h"

enum { SEED_AT = 0, RATIO_AT = 8, K_AT = 16, SCALING_AT = 20, PARTITION_AT = 21, NORMALIZE_AT = 22, FLAGS_AT = 23 };
enum { IDENTITY_AT = 24, COUNT_AT = 28 };
_Static_assert(COUNT_AT == TRIB_ENCODING_SHARED_BYTES, "the partition comes behind what is shared");
#define FLAG_TWO_WAY 1u
#define FLAG_SAMPLED 2u /* params.select */

static void put(unsigned char *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(value >> 8 * i);
    }
}

static uint64_t get(const unsigned char *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << 8 * i;
    }
    return value;
}

void trib_encoding_put(const trib_encoding *encoding, unsigned char bytes[TRIB_ENCODING_BYTES])
{
    const trib_codec_params *params = &encoding->params;
    trib_assert(encoding->codec != NULL && encoding->partition_count > 0); /* what trib_encoding_get accepts */
    trib_assert(params->scaling <= 1 && params->partition <= 1 && params->normalize <= 1);
    uint64_t ratio;
    memcpy(&ratio, &params->ratio, sizeof ratio);
    put(bytes + SEED_AT, params->seed, 8);
    put(bytes + RATIO_AT, ratio, 8);
    put(bytes + K_AT, params->k, 4);
    bytes[SCALING_AT] = params->scaling;
    bytes[PARTITION_AT] = params->partition;
    bytes[NORMALIZE_AT] = params->normalize;
    bytes[FLAGS_AT] = (unsigned char)((encoding->two_way ? FLAG_TWO_WAY : 0) | (params->select ? FLAG_SAMPLED : 0));
    put(bytes + IDENTITY_AT, trib_codec_identity(params), 4);
    put(bytes + COUNT_AT, encoding->partition_count, 4);
}

trib_status trib_encoding_get(const trib_codec_set *user, uint8_t codec, const unsigned char *bytes, uint32_t size,
                              trib_dtype dtype, trib_encoding *encoding, trib_error *error)
{
    if (size <= TRIB_ENCODING_BYTES) {
        return trib_error_set(error, TRIB_PROTOCOL, "an encoded chunk of %u bytes, which is too short", size);
    }
    const uint64_t ratio = get(bytes + RATIO_AT, 8);
    const uint32_t identity = (uint32_t)get(bytes + IDENTITY_AT, 4);
    const bool is_user_codec = codec == TRIB_CODEC_BROUGHT;
    const trib_user_codec *found = is_user_codec ? trib_codec_set_by_identity(user, identity) : NULL;
    *encoding = (trib_encoding){.codec = found != NULL ? &found->codec : trib_codec_by_id(codec),
                                .params = {.seed = get(bytes + SEED_AT, 8),
                                           .k = (uint32_t)get(bytes + K_AT, 4),
                                           .scaling = bytes[SCALING_AT],
                                           .partition = bytes[PARTITION_AT],
                                           .normalize = bytes[NORMALIZE_AT],
                                           .select = (bytes[FLAGS_AT] & FLAG_SAMPLED) != 0,
                                           .user = found},
                                .two_way = (bytes[FLAGS_AT] & FLAG_TWO_WAY) != 0,
                                .partition_count = (uint32_t)get(bytes + COUNT_AT, 4)};
    memcpy(&encoding->params.ratio, &ratio, sizeof ratio);
    if (encoding->codec == NULL || bytes[FLAGS_AT] > (FLAG_TWO_WAY | FLAG_SAMPLED) ||
        (!is_user_codec && identity != 0) || encoding->partition_count == 0 || bytes[SCALING_AT] > 1 ||
        bytes[PARTITION_AT] > 1 || bytes[NORMALIZE_AT] > 1 ||
        (encoding->two_way && !trib_codec_may_answer(encoding->codec))) {
        return trib_error_set(error, TRIB_PROTOCOL, "a chunk of codec %u with a description that cannot be", codec);
    }
    trib_error why;
    trib_error_clear(&why);
    if (encoding->codec->check(&encoding->params, dtype, &why) != TRIB_OK) {
        return trib_error_set(error, TRIB_PROTOCOL, "a chunk of codec %s that cannot be: %.300s", encoding->codec->name,
                              why.text);
    }
    return TRIB_OK;
}

uint32_t trib_encoding_partition_count(const unsigned char bytes[TRIB_ENCODING_BYTES])
{
    return (uint32_t)get(bytes + COUNT_AT, 4);
}

bool trib_encoding_answers(const trib_encoding *encoding, trib_dtype dtype, uint32_t count)
{
    const uint64_t size = (uint64_t)count * trib_dtype_size(dtype);
    const uint64_t room = size < TRIB_ENCODING_SMALL ? TRIB_ENCODING_SMALL : size;
    return encoding->two_way && encoding->codec->bound(&encoding->params, dtype, count) <= room;
}
