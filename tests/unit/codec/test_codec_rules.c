/* test_codec_rules.c - which part of a text chooses the codec of a tensor, and parts that cannot be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/codec/codec_rules.h"

#define LEAST 1000u

static void chosen(const char *text, const char *name, uint64_t bytes, const char *wanted)
{
    trib_codec_rules rules;
    trib_error error = {.text = ""};
    char found[TRIB_CODEC_TEXT_SIZE];
    if (trib_codec_rules_open(&rules, NULL, text, &error) != TRIB_OK) {
        fail_msg("%s: %s", text == NULL ? "NULL" : text, error.text);
    }
    const trib_codec_config *config = trib_codec_rules_find(&rules, name, bytes, LEAST);
    if (wanted == NULL) {
        assert_null(config);
    } else {
        assert_non_null(config);
        assert_string_equal(trib_codec_format(config, found), wanted);
    }
    trib_codec_rules_close(&rules);
}

static void the_last_part_that_fits_counts(void **state)
{
    (void)state;
    static const char text[] = "int8; *.bias=none ;embed*@16M=topk,k=0.25,ef=vanilla;@1G=onebit";
    chosen(text, "layer.weight", 5000, "int8");
    chosen(text, "layer.bias", 5000, "none");
    chosen(text, "layer.bias.more", 5000, "int8");
    chosen(text, "embedding", (16u << 20) - 1, "int8");
    chosen(text, "embedding", 16u << 20, "topk,ratio=0.25,ef=vanilla");
    chosen(text, "embedding.bias", 16u << 20, "topk,ratio=0.25,ef=vanilla");
    chosen(text, "embedding", UINT64_C(1) << 30, "onebit");
}

static void the_least_size_is_that_of_parts_without_one(void **state)
{
    (void)state;
    chosen("int8", "t", LEAST - 1, NULL);
    chosen("int8", "t", LEAST, "int8");
    chosen("*=int8;small*@0=fp16", "small", 0, "fp16");
    chosen("*=int8;small*@0=fp16", "other", 999, NULL);
    chosen("@2k=int8", "t", 2047, NULL);
    chosen("@2k=int8", "t", 2048, "int8");
}

static void one_codec_is_a_text_as_ever(void **state)
{
    (void)state;
    chosen(NULL, "t", 5000, NULL);
    chosen("", "t", 5000, NULL);
    chosen("none", "t", 5000, "none");
    chosen("compressor=onebit,ef=vanilla", "t", 5000, "onebit,scaling=false,ef=vanilla");
    chosen("ef=vanilla,int8", "t", 5000, "int8,ef=vanilla");
    chosen("bert/*=compressor=onebit", "bert/w", 5000, "onebit,scaling=false");
    chosen("layer[0-3].?=fp16", "layer2.w", 5000, "fp16");
    chosen("layer[0-3].?=fp16", "layer4.w", 5000, NULL);
}

static void refused(const char *text, const char *words)
{
    trib_codec_rules rules;
    trib_error error = {.text = ""};
    assert_int_equal(trib_codec_rules_open(&rules, NULL, text, &error), TRIB_INVALID);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
    trib_codec_rules_close(&rules);
}

static void parts_that_cannot_be_are_told(void **state)
{
    (void)state;
    char many[400] = "int8";
    refused("zip", "there is no codec 'zip'");
    refused("int8;", "part 2 between ';' is empty");
    refused(";int8", "part 1 between ';' is empty");
    refused("int8;*.bias=zip", "part 2, \"*.bias=zip\": there is no codec 'zip'");
    refused("int8;=fp16", "the pattern of names before '=' is empty");
    refused("int8;a@=fp16", "\"@\" is no size");
    refused("int8;a@16X=fp16", "\"@16X\" is no size");
    refused("int8;a@16Mb=fp16", "is no size");
    refused("int8;a@-1=fp16", "is no size");
    refused("int8;a@99999999999999999999=fp16", "is no size");
    refused("int8;topk,k=0", "part 2, \"topk,k=0\": codec 'topk,k=0': k=0 is not a number above 0");
    refused("int8;embed*=topk", "part 2, \"embed*=topk\"");
    for (size_t i = 0; i < TRIB_CODEC_RULES_MAX; i++) {
        memcpy(many + 4 + i * 5, ";int8", 6);
    }
    refused(many, "65 parts, at most 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_part_that_fits_counts),
        cmocka_unit_test(the_least_size_is_that_of_parts_without_one),
        cmocka_unit_test(one_codec_is_a_text_as_ever),
        cmocka_unit_test(parts_that_cannot_be_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
