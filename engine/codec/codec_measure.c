/* codec_measure.c - see codec_measure.h. */
#include "engine/codec/codec_measure.h"

#include <stdlib.h>

#include "engine/base/assert.h"

#define COUNT TRIB_CODEC_SAMPLE_COUNT
#define BYTES (COUNT * sizeof(float))

/* Elements of some magnitudes and both signs, the same in every job. */
static void fill(float *elements)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        double sum = -2;
        for (int k = 0; k < 4; k++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (double)(state >> 40) / (double)(1 << 24);
        }
        elements[i] = (float)sum;
    }
}

static int64_t least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static bool measure(const trib_codec_clock *clock, const trib_codec_config *config, const trib_codec_memory *memory,
                    const float *elements, float *decoded, unsigned char *encoded, trib_codec_speed *speed)
{
    int64_t encode_ns = INT64_MAX, decode_ns = INT64_MAX;
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < TRIB_CODEC_SAMPLE_TURNS; i++) {
        const trib_codec_place place = {.round = i + 1};
        const int64_t began_ns = clock->now_ns(clock->user);
        bytes = trib_codec_encode(config, memory, &place, TRIB_FLOAT32, elements, COUNT, encoded);
        clock->charge(clock->user, true, BYTES);
        const int64_t between_ns = clock->now_ns(clock->user);
        if (trib_codec_check_encoded(config, TRIB_FLOAT32, COUNT, bytes, NULL) != TRIB_OK ||
            config->codec->decode(&config->params, TRIB_FLOAT32, encoded, bytes, decoded, COUNT, NULL) != TRIB_OK) {
            return false;
        }
        clock->charge(clock->user, false, BYTES);
        encode_ns = least(encode_ns, between_ns - began_ns);
        decode_ns = least(decode_ns, clock->now_ns(clock->user) - between_ns);
    }
    speed->encode_ns = (double)encode_ns / (double)BYTES;
    speed->decode_ns = (double)decode_ns / (double)BYTES;
    trib_assert(encode_ns >= 0 && decode_ns >= 0); /* the clock is monotonic */
    speed->ratio = (double)bytes;
    return true;
}

bool trib_codec_measure(const trib_codec_clock *clock, const trib_codec_config *config, trib_dtype dtype,
                        trib_codec_speed *speed)
{
    if (config->codec->check(&config->params, TRIB_FLOAT32, NULL) != TRIB_OK) {
        return false; /* the measurement has no others */
    }
    /* The elements, what is decoded, a residual, a momentum, a scratch; then the state and the encoded bytes. */
    const uint64_t room = config->codec->bound(&config->params, TRIB_FLOAT32, COUNT);
    trib_assert(room % 4 == 0);
    const size_t state_bytes = (config->codec->state_bytes + 63u) / 64 * 64;
    float *memory = calloc(1, 5 * BYTES + state_bytes + room);
    if (memory == NULL) {
        return false;
    }
    unsigned char *behind = (unsigned char *)(memory + 5 * (size_t)COUNT);
    const trib_codec_memory around = {.residual = memory + 2 * (size_t)COUNT,
                                      .momentum = memory + 3 * (size_t)COUNT,
                                      .scratch = memory + 4 * (size_t)COUNT,
                                      .state = behind};
    fill(memory);
    const bool is_measured = measure(clock, config, &around, memory, memory + COUNT, behind + state_bytes, speed);
    speed->ratio /= (double)(COUNT * trib_dtype_size(dtype));
    free(memory);
    return is_measured;
}
