/* test_codec_auto_text.c - "auto" and its lists as texts, and the choice between codecs of known speeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/codec/codec_auto.h"

static void reads(const char *text, const char *wanted)
{
    trib_codec_config config, again;
    trib_error error = {.text = ""};
    char first[TRIB_CODEC_TEXT_SIZE], second[TRIB_CODEC_TEXT_SIZE];
    if (trib_codec_parse(text, &config, &error) != TRIB_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    assert_null(config.codec);
    assert_string_equal(trib_codec_format(&config, first), wanted);
    assert_int_equal(trib_codec_parse(first, &again, &error), TRIB_OK);
    assert_string_equal(trib_codec_format(&again, second), wanted);
}

static void lists_have_one_form(void **state)
{
    (void)state;
    reads("auto", "auto:" TRIB_CODEC_AUTO_DEFAULT);
    reads("auto:fp16", "auto:fp16");
    reads("auto:fp16,int8", "auto:fp16,int8");
    reads("auto:int8,two_way=1,ef=vanilla,topk,k=0.01,ef=vanilla",
          "auto:int8,ef=vanilla,two_way,topk,ratio=0.01,ef=vanilla");
}

static void refuses(const char *text, const char *words)
{
    trib_codec_config config;
    trib_error error = {.text = ""};
    assert_int_equal(trib_codec_parse(text, &config, &error), TRIB_INVALID);
    if (strstr(error.text, words) == NULL) {
        fail_msg("%s: \"%s\" does not say \"%s\"", text, error.text, words);
    }
}

static void bad_lists_are_refused(void **state)
{
    (void)state;
    refuses("auto:", "choice 1 of auto is empty");
    refuses("auto:fp16,", "choice 2 of auto is empty");
    refuses("auto:,fp16", "choice 1 of auto is empty");
    refuses("auto:none", "none is always possible");
    refuses("auto:fp16,zip", "choice 2 of auto: there is no codec 'zip'");
    refuses("auto:fp16,int8,k=3", "choice 2 of auto: codec int8 has no parameter 'k'");
    refuses("auto:two_way", "no codec is named");
    refuses("auto:auto", "it cannot choose auto");
    refuses("auto:fp16,bf16,int8,onebit,topk,k=1", "at most 4 codecs");
    refuses("automatic", "there is no codec 'automatic'");
    refuses("auto,ef=vanilla", "'auto'");
}

static uint32_t choose(const char *text, double link_ns, bool workers_sum, double codec_ns)
{
    trib_codec_choices choices;
    assert_int_equal(trib_codec_auto_parse(NULL, text, &choices, NULL), TRIB_OK);
    const trib_codec_step step = {
        .link_ns = link_ns, .sum_ns = 0.1, .workers = 4, .summing = 4, .reactors = 1, .workers_sum = workers_sum};
    trib_codec_speed speeds[TRIB_CODEC_CHOICES_MAX];
    for (uint32_t i = 0; i < choices.count; i++) {
        const double ratio = strcmp(choices.items[i].codec->name, "int8") == 0 ? 0.25 : 0.5;
        speeds[i] = (trib_codec_speed){.encode_ns = codec_ns, .decode_ns = codec_ns, .ratio = ratio};
    }
    return trib_codec_auto_choose(&step, &choices, speeds);
}

static void the_choice_is_arithmetic(void **state)
{
    (void)state;
    static const char both[] = "auto:fp16,two_way,int8,two_way";
    assert_int_equal(choose(both, 10, true, 0.1), 2);
    assert_int_equal(choose(both, 0.3, true, 0.1), 0);
    assert_int_equal(choose(both, 10, true, 10), 0);
    /* One way, where servers sum: the sums' way is as full as before. Where workers sum, half of the bytes are less. */
    assert_int_equal(choose("auto:fp16", 10, false, 0.1), 0);
    assert_int_equal(choose("auto:fp16", 10, true, 0.1), 1);
    assert_int_equal(choose("auto:int8,two_way,fp16,two_way", 10, true, 0.1), 1);
    /* A codec that is as fast loses no more. */
    assert_int_equal(choose("auto:fp16,two_way,fp16,two_way", 10, true, 0.1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_one_form),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(the_choice_is_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
