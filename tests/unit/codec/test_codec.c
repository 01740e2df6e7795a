/* test_codec.c - the promises of every codec: its error bound, its bits, the types that it refuses; feedback, momentum,
 * the text form. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/codec/codec_draw.h"

#define COUNT 2500u

static const char *const configs[] = {"fp16",
                                      "bf16",
                                      "fp8_e4m3",
                                      "fp8_e5m2",
                                      "int8",
                                      "onebit",
                                      "topk,ratio=0.01",
                                      "topk,k=100",
                                      "topk,k=300,select=sampled",
                                      "uniform",
                                      "randomk,ratio=0.1",
                                      "randomk,k=30,seed=9",
                                      "dithering,k=16",
                                      "dithering,k=8,partition=natural,normalize=l2,seed=3"};
#define CONFIGS (sizeof configs / sizeof configs[0])

static unsigned char *room_for(const trib_codec_config *config, trib_dtype dtype, uint32_t count)
{
    unsigned char *room = malloc(config->codec->bound(&config->params, dtype, count)); /* sanitizers see its end */
    assert_non_null(room);
    return room;
}

static float largest_of(const float *chunk)
{
    float largest = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        largest = fabsf(chunk[i]) > largest ? fabsf(chunk[i]) : largest;
    }
    return largest;
}

/* The bounds of docs/codecs.md; -1: none for one element alone. */
static double bound_of(const trib_codec_config *config, float value, float largest)
{
    const double magnitude = fabs((double)value);
    switch (config->codec->id) {
    case TRIB_CODEC_FP16:
        return magnitude >= 65520 ? -1 : fmax(magnitude * 0x1p-11, 0x1p-25);
    case TRIB_CODEC_BF16:
        return magnitude >= 0x1.ffp127 ? -1 : fmax(magnitude * 0x1p-8, 0x1p-134);
    case TRIB_CODEC_FP8_E4M3:
        return fmax(magnitude * 0x1p-4, fmax(0x1p-136, (double)largest / 224 * 0x1p-10));
    case TRIB_CODEC_FP8_E5M2:
        return fmax(magnitude * 0x1p-3, fmax(0x1p-143, (double)largest / 28672 * 0x1p-17));
    case TRIB_CODEC_INT8:
        return fmax((double)largest, 0x1p-118) / 127 * (1 + 0x1p-20);
    case TRIB_CODEC_UNIFORM:
        return fmax((double)largest / 63.5, 0x1p-126) * (1 + 0x1p-20);
    case TRIB_CODEC_DITHERING:
        return config->params.normalize ? -1 : (double)largest / config->params.k * (1 + 0x1p-20);
    default:
        return -1;
    }
}

static void test_decoded_chunks_are_within_the_bound(void **state)
{
    (void)state;
    static const float scales[] = {1, 1e-3f, 60000, 0x1p-140f, 0x1p-149f, 0x1p-120f, 0x1.fffffep127f};
    float chunk[COUNT], decoded[COUNT];
    for (size_t i = 0; i < CONFIGS * (sizeof scales / sizeof scales[0]); i++) {
        const trib_codec_config config = parsed(configs[i % CONFIGS]);
        const float scale = scales[i / CONFIGS];
        fill(chunk, COUNT, scale);
        chunk[7] = scale;
        unsigned char *encoded = room_for(&config, TRIB_FLOAT32, COUNT);
        const trib_codec_place place = {.round = i};
        const uint32_t bytes = config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, encoded);
        assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, COUNT, NULL),
                         TRIB_OK);
        const float largest = largest_of(chunk);
        for (uint32_t k = 0; k < COUNT; k++) {
            const double bound = bound_of(&config, chunk[k], largest);
            if (bound >= 0 && !(fabs((double)chunk[k] - (double)decoded[k]) <= bound)) {
                fail_msg("%s: %a became %a, bound %a", configs[i % CONFIGS], (double)chunk[k], (double)decoded[k],
                         bound);
            }
        }
        free(encoded);
    }
}

static void test_infinities_and_nans_are_not_lost(void **state)
{
    (void)state;
    float chunk[COUNT], decoded[COUNT];
    for (size_t i = 0; i < CONFIGS * 2; i++) {
        const trib_codec_config config = parsed(configs[i % CONFIGS]);
        if (config.codec->id == TRIB_CODEC_RANDOMK) {
            continue; /* the bound does not depend on the values */
        }
        fill(chunk, COUNT, 1);
        chunk[1234] = i < CONFIGS ? NAN : -INFINITY;
        unsigned char *encoded = room_for(&config, TRIB_FLOAT32, COUNT);
        const trib_codec_place place = {.rank = 0};
        const uint32_t bytes = config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, encoded);
        assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, COUNT, NULL),
                         TRIB_OK);
        if (isfinite(decoded[1234])) {
            fail_msg("%s: %f became %f", configs[i % CONFIGS], (double)chunk[1234], (double)decoded[1234]);
        }
        free(encoded);
    }
}

/* Random numbers depend on the place alone: chunks may have any size, be encoded again, and come from any rank. */
static void test_random_numbers_follow_from_the_place(void **state)
{
    (void)state;
    const trib_codec_config int8 = parsed("int8,seed=5"), randomk = parsed("randomk,k=50");
    float chunk[COUNT];
    unsigned char whole[COUNT + 8], half[COUNT + 8], other[COUNT + 8];
    fill(chunk, COUNT, 1);
    chunk[0] = chunk[COUNT - 1] = 1; /* both halves have the whole's scale */
    trib_codec_place place = {.tensor_key = 3, .rank = 1, .round = 8, .first_element = 50};
    (void)int8.codec->encode(&int8.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, whole);
    place.first_element += COUNT / 2;
    (void)int8.codec->encode(&int8.params, &place, NULL, TRIB_FLOAT32, chunk + COUNT / 2, COUNT / 2, half);
    place.first_element -= COUNT / 2;
    assert_memory_equal(whole + 4 + COUNT / 2, half + 4, COUNT / 2);
    place.rank = 2;
    (void)int8.codec->encode(&int8.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, other);
    assert_memory_not_equal(whole, other, COUNT + 4);
    uint32_t bytes = randomk.codec->encode(&randomk.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, whole);
    place.rank = 1;
    assert_int_equal(randomk.codec->encode(&randomk.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, half), bytes);
    assert_memory_equal(whole, half, bytes);
    place.round++;
    (void)randomk.codec->encode(&randomk.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, half);
    assert_memory_not_equal(whole, half, bytes);
}

static void test_a_partition_shares_k_among_its_chunks(void **state)
{
    (void)state;
    const trib_codec_config config = parsed("topk,k=1000");
    float chunk[COUNT];
    unsigned char encoded[COUNT * 8];
    fill(chunk, COUNT, 1);
    trib_codec_place place = {.first_element = 70000, .partition_first = 70000, .partition_count = 30 * COUNT};
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < 30; i++, place.first_element += COUNT) {
        bytes += config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, encoded);
    }
    assert_in_range(bytes, 999 * 8, 1000 * 8);
}

/* Sums of quarters of small integers are exact in float32, whatever a codec takes out of them. */
static void test_feedback_loses_nothing(void **state)
{
    (void)state;
    static const char *const exact[] = {"topk,k=100", "randomk,ratio=0.1", "onebit,scaling=false", "fp16", "bf16"};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        trib_codec_config config = parsed(exact[i]);
        config.feedback = TRIB_FEEDBACK_VANILLA;
        unsigned char *encoded = room_for(&config, TRIB_FLOAT32, COUNT);
        float residual[COUNT] = {0}, scratch[COUNT], chunk[COUNT], decoded[COUNT];
        float given[COUNT] = {0}, sent[COUNT] = {0};
        const trib_codec_memory memory = {.residual = residual, .scratch = scratch};
        for (uint32_t round = 0; round < 20; round++) {
            for (uint32_t k = 0; k < COUNT; k++) {
                chunk[k] = (float)((int32_t)(draw() % 8001) - 4000) / 4;
                given[k] += chunk[k];
            }
            const trib_codec_place place = {.round = round};
            const uint32_t bytes = trib_codec_encode(&config, &memory, &place, TRIB_FLOAT32, chunk, COUNT, encoded);
            if (round % 5 == 4) { /* this one does not count */
                trib_codec_take_back(&config, &memory, TRIB_FLOAT32, encoded, bytes, COUNT);
                continue;
            }
            assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, COUNT, NULL),
                             TRIB_OK);
            for (uint32_t k = 0; k < COUNT; k++) {
                sent[k] += decoded[k];
            }
        }
        for (uint32_t k = 0; k < COUNT; k++) {
            assert_true(given[k] == sent[k] + residual[k]);
        }
        free(encoded);
    }
}

static void test_momentum_and_feedback_of_each_type(void **state)
{
    (void)state;
    trib_codec_config config = parsed("onebit,scaling=false,ef=vanilla,momentum=nesterov,mu=0.5");
    double as_f64[3] = {3, -2, 0.25}, wide_residual[3] = {0}, wide_momentum[3] = {0}, scratch[3];
    const uint16_t as_f16[3] = {0x4200, 0xc000, 0x3400};
    float residual[3] = {0}, momentum[3] = {0};
    const double expected[3] = {3 + 1.5 - 1, -2 - 1 + 1, 0.25 + 0.125 - 1};
    unsigned char encoded[64];
    const trib_codec_place place = {.rank = 0};
    const trib_codec_memory wide = {.residual = wide_residual, .momentum = wide_momentum, .scratch = scratch};
    (void)trib_codec_encode(&config, &wide, &place, TRIB_FLOAT64, as_f64, 3, encoded);
    const trib_codec_memory memory = {.residual = residual, .momentum = momentum, .scratch = scratch};
    (void)trib_codec_encode(&config, &memory, &place, TRIB_FLOAT16, as_f16, 3, encoded);
    for (uint32_t k = 0; k < 3; k++) {
        assert_true(wide_momentum[k] == as_f64[k] && (double)momentum[k] == as_f64[k]);
        assert_true(wide_residual[k] == expected[k] && (double)residual[k] == expected[k]);
    }
    config.momentum = TRIB_MOMENTUM_HEAVY_BALL;
    config.feedback = TRIB_FEEDBACK_NONE;
    (void)trib_codec_encode(&config, &wide, &place, TRIB_FLOAT64, as_f64, 3, encoded);
    assert_true(scratch[0] == 4.5 && scratch[1] == -3 && scratch[2] == 0.375);
}

static void test_sampled_selection_keeps_large_elements(void **state)
{
    (void)state;
    enum { K = 300 };
    const trib_codec_config config = parsed("topk,k=300,select=sampled");
    float chunk[COUNT];
    uint32_t first[2 * K], again[2 * K], later[2 * K];
    fill(chunk, COUNT, 1);
    for (uint64_t round = 0; round < 50; round++) {
        const trib_codec_place place = {.tensor_key = 3, .round = round}, next = {.tensor_key = 3, .round = round + 1};
        const uint32_t bytes =
            config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, (unsigned char *)first);
        assert_in_range(bytes / 8, K / 3, K);
        assert_int_equal(
            config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, (unsigned char *)again),
            bytes);
        assert_memory_equal(first, again, bytes);
        (void)config.codec->encode(&config.params, &next, NULL, TRIB_FLOAT32, chunk, COUNT, (unsigned char *)later);
        assert_memory_not_equal(first, later, K / 3 * 8);
        for (uint32_t i = 0; i < bytes / 8; i++) {
            uint32_t larger = 0;
            for (uint32_t k = 0; k < COUNT; k++) {
                larger += fabsf(chunk[k]) > fabsf(chunk[first[2 * i]]);
            }
            assert_memory_equal(&chunk[first[2 * i]], &first[2 * i + 1], 4);
            assert_in_range(larger, 0, 3 * K);
        }
    }
    /* Elements that are all alike, and nothing but zeros */
    const trib_codec_place place = {.round = 1};
    for (uint32_t i = 0; i < COUNT; i++) {
        chunk[i] = -2;
    }
    assert_int_equal(
        config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, (unsigned char *)first), K * 8);
    memset(chunk, 0, sizeof chunk);
    assert_int_equal(
        config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, (unsigned char *)first), 8);
    assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, (unsigned char *)first, 8, chunk, COUNT, NULL),
                     TRIB_OK);
}

static void test_a_hostile_chunk_is_refused(void **state)
{
    (void)state;
    const trib_codec_config topk = parsed("topk,k=2"), int8 = parsed("int8");
    float decoded[4], sum[4] = {1, 2, 3, 4};
    const uint32_t beyond[] = {0, 0x3f800000, 4, 0x3f800000}, twice[] = {3, 0x3f800000, 3, 0x3f800000};
    const unsigned char endless[] = {0, 0, 0x80, 0x7f, 1, 2, 3, 4}; /* an infinite scale */
    trib_error error;
    const unsigned char *bad[] = {(const unsigned char *)beyond, (const unsigned char *)twice};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(topk.codec->decode(&topk.params, TRIB_FLOAT32, bad[i], 16, decoded, 4, &error), TRIB_PROTOCOL);
        assert_non_null(strstr(error.text, "an index"));
    }
    assert_int_equal(int8.codec->decode(&int8.params, TRIB_FLOAT32, endless, 8, decoded, 4, &error), TRIB_PROTOCOL);
    assert_non_null(strstr(error.text, "scale"));
    assert_int_equal(int8.codec->inspect(&int8.params, TRIB_FLOAT32, endless, 8, 4, &error), TRIB_PROTOCOL);
    assert_non_null(strstr(error.text, "scale"));
    const trib_codec_config fp16 = parsed("fp16");
    assert_int_equal(fp16.codec->inspect(&fp16.params, TRIB_FLOAT32, endless, 8, 4, &error), TRIB_OK);
    assert_int_equal(fp16.codec->inspect(&fp16.params, TRIB_FLOAT32, endless, 7, 4, &error), TRIB_PROTOCOL);
    const trib_codec_config uniform = parsed("uniform");
    const unsigned char uneven[] = {0, 0, 0xc0, 0x3f, 1, 2, 3, 4}; /* a step of 1.5 */
    assert_int_equal(uniform.codec->add_encoded(&uniform.params, TRIB_FLOAT32, uneven, 8, sum, 4, &error),
                     TRIB_PROTOCOL);
    assert_true(strstr(error.text, "power of two") != NULL && sum[0] == 1);
}

static void test_texts_say_what_is_known(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {{"gzip", "known are fp16, bf16"},
               {"topk,ratio=2", "at most 1"},
               {"topk", "either ratio="},
               {"topk,k=9,select=best", "exact or sampled"},
               {"randomk,k=9,select=sampled", "no parameter 'select'"},
               {"topk,bits=3,k=1", "no parameter 'bits'"},
               {"onebit,k=3", "it has scaling"},
               {"k=3", "no codec is named"},
               {"fp16,ef=sgd", "vanilla or none"},
               {"fp16,momentum=nesterov", "belong together"},
               {"onebit,warmup=soon", "not a number of rounds"},
               {"none,warmup=3", "no parameter 'warmup'"},
               {"topk,,k=2", "empty"},
               {"topk,k=2,k=2", "twice"},
               {"dithering,k=0", "above 0"},
               {"topk,k=2,ratio=0.5", "exclude"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        trib_codec_config config = {.mu = 7};
        trib_error error = {.text = ""};
        assert_int_equal(trib_codec_parse(bad[i].text, &config, &error), TRIB_INVALID);
        if (strstr(error.text, bad[i].says) == NULL || config.mu != 7) {
            fail_msg("%s: %s", bad[i].text, error.text);
        }
    }
    static const char *const same[][2] = {
        {"compressor=topk,k=0.01,ef=vanilla,momentum=nesterov,mu=0.9,seed=7",
         "topk,ratio=0.01,seed=7,ef=vanilla,momentum=nesterov,mu=0.899999976"},
        {"compressor=onebit", "onebit,scaling=false"},
        {"onebit,two_way,warmup=200,ef=vanilla", "onebit,ef=vanilla,warmup=200,two_way"},
        {"topk,select=sampled,k=9", "topk,k=9,select=sampled"},
        {"compressor=onebit,scaling=True", "onebit"},
        {"dithering,k=4,partition=1,normalize=1", "dithering,k=4,partition=natural,normalize=l2"},
        {"", "none"},
        {"none", "none"}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char text[TRIB_CODEC_TEXT_SIZE], again[TRIB_CODEC_TEXT_SIZE];
        const trib_codec_config config = parsed(same[i][0]);
        const char *first = trib_codec_format(&config, text);
        const trib_codec_config back = parsed(first);
        assert_string_equal(trib_codec_format(&back, again), first);
        assert_int_equal(back.params.scaling, config.params.scaling);
        assert_true(back.params.ratio == config.params.ratio);
        if (strchr(same[i][1], '.') == NULL) {
            assert_string_equal(first, same[i][1]);
        }
    }
}

static void test_integers_have_no_codec(void **state)
{
    (void)state;
    for (size_t i = 0; i < CONFIGS; i++) {
        const trib_codec_config config = parsed(configs[i]);
        trib_error error;
        assert_int_equal(config.codec->check(&config.params, TRIB_INT32, &error), TRIB_INVALID);
        assert_non_null(strstr(error.text, "not int32"));
        assert_ptr_equal(trib_codec_by_id(config.codec->id), config.codec);
    }
    assert_int_equal(trib_codec_find("fp16")->check(NULL, TRIB_BFLOAT16, NULL), TRIB_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoded_chunks_are_within_the_bound),
        cmocka_unit_test(test_infinities_and_nans_are_not_lost),
        cmocka_unit_test(test_random_numbers_follow_from_the_place),
        cmocka_unit_test(test_a_partition_shares_k_among_its_chunks),
        cmocka_unit_test(test_feedback_loses_nothing),
        cmocka_unit_test(test_momentum_and_feedback_of_each_type),
        cmocka_unit_test(test_sampled_selection_keeps_large_elements),
        cmocka_unit_test(test_a_hostile_chunk_is_refused),
        cmocka_unit_test(test_texts_say_what_is_known),
        cmocka_unit_test(test_integers_have_no_codec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
