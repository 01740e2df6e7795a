/* own_codecs.c - see own_codecs.h. */
#include "tests/loop/own_codecs.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"

/* ---- stride ---- */

static int check_stride(const trib_codec_chunk *chunk, char *why, size_t size)
{
    const bool is_good = chunk->dtype == TRIB_FLOAT32 && chunk->k > 1;
    snprintf(why, size, "%s", is_good ? "" : "it takes float32 and needs k above 1");
    return is_good ? 0 : 1;
}

static uint64_t bound_stride(const trib_codec_chunk *chunk)
{
    return 4 + (uint64_t)(chunk->count / chunk->k + 1) * sizeof(float);
}

static int64_t encode_stride(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded, size_t room)
{
    const float *elements = source;
    const uint64_t shifted = chunk->first_element + chunk->round;
    const uint32_t first = (uint32_t)((chunk->k - shifted % chunk->k) % chunk->k);
    unsigned char *at = encoded;
    trib_assert(state == NULL);
    memcpy(at, &first, sizeof first);
    at += sizeof first;
    for (uint32_t i = first; i < chunk->count; i += chunk->k, at += sizeof(float)) {
        memcpy(at, &elements[i], sizeof(float));
    }
    trib_assert((size_t)(at - (unsigned char *)encoded) <= room);
    return at - (unsigned char *)encoded;
}

static int decode_stride(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    float *elements = destination;
    const unsigned char *at = encoded;
    uint32_t first;
    if (size < sizeof first) {
        return 1;
    }
    memcpy(&first, at, sizeof first);
    at += sizeof first;
    const uint32_t kept = first < chunk->count ? (chunk->count - first - 1) / chunk->k + 1 : 0;
    if (first >= chunk->k || size != sizeof first + kept * sizeof(float)) {
        return 1;
    }
    memset(elements, 0, chunk->count * sizeof *elements);
    for (uint32_t i = first; i < chunk->count; i += chunk->k, at += sizeof(float)) {
        memcpy(&elements[i], at, sizeof(float));
    }
    return 0;
}

/* ---- upper ---- */

static own_codec_fault broken;

static uint64_t bound_upper(const trib_codec_chunk *chunk)
{
    return (uint64_t)chunk->count * 2;
}

static int64_t encode_upper(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded, size_t room)
{
    const own_codec_fault *may_fail = chunk->user;
    (void)state;
    for (uint32_t i = 0; i < chunk->count; i++) {
        memcpy((unsigned char *)encoded + i * 2, (const unsigned char *)source + i * 4 + 2, 2);
    }
    const int kind = atomic_load(&may_fail->rank) == chunk->rank ? atomic_load(&may_fail->kind) : WELL;
    return kind == ENCODE_FAILS ? -1 : kind == TOO_MANY_BYTES ? (int64_t)room + 1 : (int64_t)chunk->count * 2;
}

static int decode_upper(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    const own_codec_fault *may_fail = chunk->user;
    if (size != (size_t)chunk->count * 2 || atomic_load(&may_fail->kind) == DECODE_FAILS) {
        return -5;
    }
    memset(destination, 0, (size_t)chunk->count * 4);
    for (uint32_t i = 0; i < chunk->count; i++) {
        memcpy((unsigned char *)destination + i * 4 + 2, (const unsigned char *)encoded + i * 2, 2);
    }
    return 0;
}

static atomic_ullong added;

static int add_upper(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *sum)
{
    float *sums = sum;
    if (size != (size_t)chunk->count * 2) {
        return -5;
    }
    for (uint32_t i = 0; i < chunk->count; i++) {
        uint32_t bits = 0;
        float element;
        memcpy((unsigned char *)&bits + 2, (const unsigned char *)encoded + (size_t)i * 2, 2);
        memcpy(&element, &bits, sizeof element);
        sums[i] += element;
    }
    atomic_fetch_add(&added, 1);
    return 0;
}

unsigned long long own_codecs_added(void)
{
    return atomic_load(&added);
}

/* ---- counted ---- */

static int64_t encode_counted(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded,
                              size_t room)
{
    uint32_t before;
    memcpy(&before, state, sizeof before);
    memcpy((unsigned char *)encoded + (size_t)chunk->count * 2, &before, sizeof before);
    before++;
    memcpy(state, &before, sizeof before);
    return encode_upper(chunk, NULL, source, encoded, room) + 4;
}

static uint64_t bound_counted(const trib_codec_chunk *chunk)
{
    return (uint64_t)chunk->count * 2 + 4;
}

static int decode_counted(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    uint32_t before;
    if (size != (size_t)chunk->count * 2 + 4 || decode_upper(chunk, encoded, size - 4, destination) != 0) {
        return 1;
    }
    memcpy(&before, (const unsigned char *)encoded + size - 4, sizeof before);
    *(float *)destination = (float)before;
    return 0;
}

const trib_codec_desc own_codecs[OWN_CODECS] = {
    {.struct_size = sizeof(trib_codec_desc),
     .name = "stride",
     .version = 7,
     .check = check_stride,
     .bound = bound_stride,
     .encode = encode_stride,
     .decode = decode_stride},
    {.struct_size = sizeof(trib_codec_desc),
     .name = "upper",
     .user = &broken,
     .bound = bound_upper,
     .encode = encode_upper,
     .decode = decode_upper,
     .add_encoded = add_upper},
    {.struct_size = sizeof(trib_codec_desc),
     .name = "counted",
     .user = &broken,
     .state_bytes = 4,
     .bound = bound_counted,
     .encode = encode_counted,
     .decode = decode_counted},
};

void own_codecs_fail(int kind, uint32_t rank)
{
    atomic_store(&broken.rank, rank);
    atomic_store(&broken.kind, kind);
}
