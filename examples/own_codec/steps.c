/* steps.c - a codec of one's own: each element as a whole number of steps, in one byte. "steps,ratio=0.5" makes steps
 * of 0.5, so elements from -63.5 to 63.5 travel in a quarter of float32's bytes.
 *
 * The program beside it (main.c) brings the codec. Servers in processes of their own need it, too: this file alone
 * makes the library that they load (docs/codecs.md#your-own).
 *
 *     cc -shared -fPIC steps.c -o steps.so
 *     TRIB_CODEC_LIBRARY=$PWD/steps.so tributary run -n 2 -s 1 -- own_codec */
#include "steps.h"

#include <stdio.h>

static int steps_check(const trib_codec_chunk *chunk, char *why, size_t size)
{
    const bool is_good = chunk->dtype == TRIB_FLOAT32 && chunk->ratio > 0;
    snprintf(why, size, "%s", is_good ? "" : "it needs float32, and ratio: the step");
    return is_good ? 0 : 1;
}

static uint64_t steps_bound(const trib_codec_chunk *chunk)
{
    return chunk->count;
}

static int64_t steps_encode(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded, size_t room)
{
    (void)state;
    for (uint32_t i = 0; i < chunk->count && i < room; i++) {
        const double whole = ((const float *)source)[i] / chunk->ratio;
        const double nearest = whole < 0 ? whole - 0.5 : whole + 0.5;
        ((signed char *)encoded)[i] = (signed char)(nearest < -127 ? -127 : nearest < 127 ? nearest : 127);
    }
    return chunk->count;
}

static int steps_decode(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    if (size != chunk->count) {
        return 1; /* the bytes come from another process, and may be anything */
    }
    for (uint32_t i = 0; i < chunk->count; i++) {
        ((float *)destination)[i] = (float)(((const signed char *)encoded)[i] * chunk->ratio);
    }
    return 0;
}

const trib_codec_desc steps = {.struct_size = sizeof(trib_codec_desc),
                               .version = 1,
                               .name = "steps",
                               .check = steps_check,
                               .bound = steps_bound,
                               .encode = steps_encode,
                               .decode = steps_decode};

TRIB_API const trib_codec_desc *trib_codec_library(uint32_t *count_out)
{
    *count_out = 1;
    return &steps;
}
