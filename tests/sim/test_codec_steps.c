/* test_codec_steps.c - steps with a codec that is modelled beside the same steps with the codec itself: as long, and as
 * many bytes on the wire. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_bed.h"

enum { TENSORS = 6, MIB = 1 << 20 };

static study_model *make_model(void)
{
    study_model *model = calloc(1, sizeof *model + TENSORS * sizeof model->tensors[0]);
    assert_non_null(model);
    model->count = TENSORS;
    model->forward_ns = model->backward_ns = 2000000;
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(model->tensors[i].name, sizeof model->tensors[i].name, "t%u", i);
        model->tensors[i].bytes = i == 0 ? 4096 : MIB; /* the first one is too small for the job's codec */
        model->tensors[i].ready_ns = 300000 * (int64_t)(i + 1);
        model->tensors[i].dtype = TRIB_FLOAT32;
        model->bytes += model->tensors[i].bytes;
    }
    return model;
}

static study_step_config config_of(const study_model *model, uint32_t servers, uint64_t bits)
{
    study_step_config config = {.job = sim_job_config_default(3, servers),
                                .model = model,
                                .iterations = 2,
                                .priorities = true,
                                .codec_ratio = 1};
    config.job.link.egress_bits = config.job.link.ingress_bits = bits;
    return config;
}

static study_step_result run_step(const study_step_config *config)
{
    study_step_result result;
    trib_error error = {.text = ""};
    if (study_step_run(config, &result, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return result;
}

static bool is_near(double one, double other, double part)
{
    return one > other * (1 - part) && one < other * (1 + part);
}

/* The costs are the same, so that both differ in nothing but what the model leaves out. */
static void the_model_is_like_the_codec(void **state)
{
    (void)state;
    static const struct {
        const char *codec;
        uint32_t servers;
        uint64_t bits;
    } cases[] = {{"int8,two_way", 0, 1000000000},
                 {"int8,two_way", 2, 1000000000},
                 {"bf16", 0, 1000000000},
                 {"onebit,two_way", 0, 100000000},
                 {"int8,two_way", 0, 40000000000}};
    study_model *model = make_model();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        study_step_config config = config_of(model, cases[i].servers, cases[i].bits);
        trib_error error = {.text = ""};
        if (study_codec_read(cases[i].codec, &config.codec, &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_string_equal(config.codec.text, cases[i].codec);
        config.codec.speed.encode_ns = config.codec.speed.decode_ns = 0.5; /* as the default costs are */
        const study_step_result predicted = run_step(&config);
        study_step_config real = config_of(model, cases[i].servers, cases[i].bits);
        real.job.engine.codec = cases[i].codec;
        real.has_contents = true;
        const study_step_result simulated = run_step(&real);
        print_message("# %s, %u servers, %.1f Gbit/s: predicted %.3f ms and %.0f bytes, simulated %.3f ms and %.0f\n",
                      cases[i].codec, cases[i].servers, (double)cases[i].bits / 1e9, (double)predicted.step_ns / 1e6,
                      predicted.wire_bytes, (double)simulated.step_ns / 1e6, simulated.wire_bytes);
        assert_true(is_near((double)predicted.step_ns, (double)simulated.step_ns, 0.02));
        assert_true(is_near(predicted.wire_bytes, simulated.wire_bytes, 0.02));
    }
    free(model);
}

static void options_are_codecs_or_ratios(void **state)
{
    (void)state;
    study_codec codec = {.text = ""};
    double ratio = 1;
    trib_error error;
    assert_int_equal(study_codec_option("0.5", &codec, &ratio, &error), TRIB_OK);
    assert_true(ratio == 0.5 && codec.text[0] == '\0' && study_codec_ratio(&codec) == 1);
    assert_int_equal(study_codec_option("fp16", &codec, &ratio, &error), TRIB_OK);
    assert_true(study_codec_ratio(&codec) == 0.75 && codec.speed.encode_ns > 0 && codec.speed.decode_ns > 0);
    assert_int_equal(study_codec_option("2", &codec, &ratio, &error), TRIB_INVALID);
    assert_int_equal(study_codec_option("zip", &codec, &ratio, &error), TRIB_INVALID);
    assert_int_equal(study_codec_option("auto", &codec, &ratio, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "name a codec"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_like_the_codec),
        cmocka_unit_test(options_are_codecs_or_ratios),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
