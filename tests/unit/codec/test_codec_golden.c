/* test_codec_golden.c - chunks encode to the bytes that golden_codecs.py has computed, which no code here has made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/codec/codec.h"
#include "tests/unit/codec/golden_codecs.h"

#define ENCODED_MAX 4096u

static void fill(float chunk[GOLDEN_COUNT])
{
    uint32_t state = 12345;
    for (uint32_t i = 0; i < GOLDEN_COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        chunk[i] = (float)((int32_t)((state >> 8) % 2001) - 1000) / 1024;
    }
}

static void test_chunks_have_the_bytes_of_the_definitions(void **state)
{
    (void)state;
    float chunk[GOLDEN_COUNT];
    fill(chunk);
    for (size_t i = 0; i < sizeof golden_chunks / sizeof golden_chunks[0]; i++) {
        trib_codec_config config;
        trib_error error;
        assert_int_equal(trib_codec_parse(golden_chunks[i].codec, &config, &error), TRIB_OK);
        unsigned char encoded[ENCODED_MAX];
        const uint64_t bound = config.codec->bound(&config.params, TRIB_FLOAT32, GOLDEN_COUNT);
        assert_true(bound <= sizeof encoded);
        const trib_codec_memory memory = {.state = NULL};
        const trib_codec_place place = {.rank = 3};
        const uint32_t bytes = trib_codec_encode(&config, &memory, &place, TRIB_FLOAT32, chunk, GOLDEN_COUNT, encoded);
        assert_true(bytes <= bound);
        char digits[2 * ENCODED_MAX + 1] = "";
        for (uint32_t k = 0; k < bytes; k++) {
            (void)snprintf(digits + (size_t)2 * k, 3, "%02x", encoded[k]);
        }
        print_message("# %s\n", golden_chunks[i].codec);
        assert_string_equal(digits, golden_chunks[i].encoded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_have_the_bytes_of_the_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
