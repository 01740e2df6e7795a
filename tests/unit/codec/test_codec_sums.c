/* test_codec_sums.c - adding encoded chunks gives the bits of decoding and adding, and sums of uniform are exact. */
#include <math.h>
#include <string.h>

#include "tests/unit/codec/codec_draw.h"

#define COUNT 2500u

/* Workers of unlike magnitudes; the reference adds integers of the smallest step. */
static void test_uniform_sums_are_exact_in_any_order(void **state)
{
    (void)state;
    enum { WORKERS = 7 };
    const trib_codec_config config = parsed("uniform");
    static unsigned char encoded[WORKERS][2 * COUNT + 8];
    float chunk[COUNT], sum[COUNT], back[COUNT], least = INFINITY;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        fill(chunk, COUNT, rank % 2 ? 0.1f : 0.7f);
        const trib_codec_place place = {.round = 5, .rank = rank};
        assert_int_equal(config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, encoded[rank]),
                         COUNT + 4);
        float step;
        memcpy(&step, encoded[rank], sizeof step);
        least = fminf(least, step);
    }
    for (uint32_t turn = 0; turn < WORKERS; turn++) {
        memset(sum, 0, sizeof sum);
        for (uint32_t i = 0; i < WORKERS; i++) {
            assert_int_equal(config.codec->add_encoded(&config.params, TRIB_FLOAT32, encoded[(3 * i + turn) % WORKERS],
                                                       COUNT + 4, sum, COUNT, NULL),
                             TRIB_OK);
        }
        for (uint32_t k = 0; k < COUNT; k++) {
            int64_t whole = 0;
            for (uint32_t i = 0; i < WORKERS; i++) {
                float step;
                memcpy(&step, encoded[i], sizeof step);
                whole += (int64_t)(step / least) * (int8_t)encoded[i][4 + k];
            }
            assert_true((double)sum[k] == (double)whole * (double)least);
        }
    }
    /* On the way back nothing is lost. */
    static unsigned char answer[2 * COUNT + 4];
    const trib_codec_place place = {.rank = TRIB_CODEC_RANK_OF_SUM};
    assert_int_equal(config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, sum, COUNT, answer),
                     sizeof answer);
    assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, answer, sizeof answer, back, COUNT, NULL),
                     TRIB_OK);
    for (uint32_t k = 0; k < COUNT; k++) {
        assert_true(back[k] == sum[k]);
    }
}

static void test_sums_of_other_types_equal_decoded_ones(void **state)
{
    (void)state;
    static const char *const scaled[] = {"int8", "uniform", "fp8_e4m3", "fp8_e5m2"};
    uint16_t halves[COUNT], decoded[COUNT];
    double wide[COUNT], wide_decoded[COUNT], wide_sum[COUNT] = {0};
    float sum[COUNT] = {0};
    unsigned char encoded[COUNT + 8];
    const trib_codec_place place = {.round = 4};
    for (size_t i = 0; i < sizeof scaled / sizeof scaled[0]; i++) {
        const trib_codec_config config = parsed(scaled[i]);
        const trib_codec_params *params = &config.params;
        for (uint32_t k = 0; k < COUNT; k++) {
            halves[k] = (uint16_t)(0x3f80 + draw() % 64 + (draw() & 1) * 0x8000);
            wide[k] = (double)(int32_t)draw() / 3;
        }
        wide[0] = (double)NAN;
        uint32_t bytes = config.codec->encode(params, &place, NULL, TRIB_BFLOAT16, halves, COUNT, encoded);
        assert_int_equal(config.codec->decode(params, TRIB_BFLOAT16, encoded, bytes, decoded, COUNT, NULL), TRIB_OK);
        assert_int_equal(config.codec->add_encoded(params, TRIB_BFLOAT16, encoded, bytes, sum, COUNT, NULL), TRIB_OK);
        for (uint32_t k = 0; k < COUNT; k++) {
            const uint32_t bits = (uint32_t)decoded[k] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            assert_true(sum[k] == value);
            sum[k] = 0;
        }
        bytes = config.codec->encode(params, &place, NULL, TRIB_FLOAT64, wide, COUNT, encoded);
        assert_int_equal(config.codec->decode(params, TRIB_FLOAT64, encoded, bytes, wide_decoded, COUNT, NULL),
                         TRIB_OK);
        assert_int_equal(config.codec->add_encoded(params, TRIB_FLOAT64, encoded, bytes, wide_sum, COUNT, NULL),
                         TRIB_OK);
        assert_true(isnan(wide_decoded[0]) && isnan(wide_sum[0]));
        for (uint32_t k = 0; k < COUNT; k++) {
            assert_true(k == 0 || wide_sum[k] == wide_decoded[k]);
            wide_sum[k] = 0;
        }
    }
}

static void test_sums_of_encoded_chunks_equal_decoded_ones(void **state)
{
    (void)state;
    static const char *const adding[] = {"int8", "uniform", "fp8_e4m3", "fp8_e5m2"};
    float chunk[COUNT], decoded[COUNT], sum[COUNT], expected[COUNT];
    unsigned char encoded[COUNT * 8];
    for (size_t i = 0; i < sizeof adding / sizeof adding[0]; i++) {
        const trib_codec_config config = parsed(adding[i]);
        const trib_codec_place place = {.round = 4};
        fill(chunk, COUNT, 1);
        fill(sum, COUNT, 1);
        const uint32_t bytes = config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, COUNT, encoded);
        assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, COUNT, NULL),
                         TRIB_OK);
        for (uint32_t k = 0; k < COUNT; k++) {
            expected[k] = sum[k] + decoded[k];
        }
        assert_int_equal(config.codec->add_encoded(&config.params, TRIB_FLOAT32, encoded, bytes, sum, COUNT, NULL),
                         TRIB_OK);
        assert_memory_equal(sum, expected, sizeof sum);
    }
}

/* An element that was not sent decodes to 0; one that was sent is -0 itself. */
static void test_zeros_below_zero(void **state)
{
    (void)state;
    const trib_codec_config config = parsed("topk,k=2");
    const trib_codec_place place = {.round = 4};
    const float chunk[4] = {-0.0f, -3, 2, -0.0f};
    float decoded[4];
    unsigned char encoded[64];
    uint32_t bytes = config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, chunk, 4, encoded);
    assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, 4, NULL), TRIB_OK);
    assert_true(decoded[1] == -3 && decoded[2] == 2 && decoded[0] == 0 && decoded[3] == 0);
    assert_true(!signbit(decoded[0]) && !signbit(decoded[3]));
    const float zeros[2] = {-0.0f, -0.0f};
    bytes = config.codec->encode(&config.params, &place, NULL, TRIB_FLOAT32, zeros, 2, encoded);
    assert_int_equal(config.codec->decode(&config.params, TRIB_FLOAT32, encoded, bytes, decoded, 2, NULL), TRIB_OK);
    assert_true(signbit(decoded[0]) && signbit(decoded[1]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform_sums_are_exact_in_any_order),
        cmocka_unit_test(test_sums_of_other_types_equal_decoded_ones),
        cmocka_unit_test(test_sums_of_encoded_chunks_equal_decoded_ones),
        cmocka_unit_test(test_zeros_below_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
