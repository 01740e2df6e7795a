/* codec_draw.h - the parts that tests of codecs share: drawn numbers, parsed codecs, filled chunks. */
#ifndef TRIB_TESTS_UNIT_CODEC_DRAW_H
#define TRIB_TESTS_UNIT_CODEC_DRAW_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/codec/codec.h"

static uint64_t random_state;

static uint32_t draw(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static trib_codec_config parsed(const char *text)
{
    trib_codec_config config;
    trib_error error = {.text = ""};
    if (trib_codec_parse(text, &config, &error) != TRIB_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    return config;
}

static void fill(float *chunk, uint32_t count, float scale)
{
    for (uint32_t i = 0; i < count; i++) {
        const float uniform = (float)((int32_t)draw() >> 8) * 0x1p-23f;
        chunk[i] = uniform * uniform * uniform * scale;
    }
}

#endif
