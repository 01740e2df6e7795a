/*
 * stateful.c - momentum and error feedback around any codec.
 *
 * They are computed in accumulators: m = mu * m + g; p = m, or g + mu * m; p = p + residual. What is encoded is p in
 * the tensor's type, and the residual becomes p less what decodes from it. Each operation rounds once. A residual that
 * is no finite number is forgotten, so that one infinite gradient does not stay for ever.
 */
#include "engine/codec/codec_parts.h"

bool trib_codec_is_stateful(const trib_codec_config *config)
{
    return config->feedback != TRIB_FEEDBACK_NONE || config->momentum != TRIB_MOMENTUM_NONE;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): an argument is a type */
#define DEFINE_FOR_ACCUMULATOR(type)                                                                                   \
    static void gather_##type(const trib_codec_config *config, type *momentum, type *residual, type *values,           \
                              size_t count)                                                                            \
    {                                                                                                                  \
        const type mu = (type)config->mu;                                                                              \
        for (size_t i = 0; i < count && momentum != NULL; i++) {                                                       \
            momentum[i] = values[i] + mu * momentum[i];                                                                \
            values[i] = config->momentum == TRIB_MOMENTUM_HEAVY_BALL ? momentum[i] : values[i] + mu * momentum[i];     \
        }                                                                                                              \
        for (size_t i = 0; i < count && residual != NULL; i++) {                                                       \
            residual[i] = values[i] + residual[i];                                                                     \
            values[i] = residual[i];                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    static void settle_##type(type *residual, const type *sent, type factor, size_t count)                             \
    {                                                                                                                  \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const type rest = residual[i] + factor * sent[i];                                                          \
            residual[i] = __builtin_isfinite(rest) ? rest : 0;                                                         \
        }                                                                                                              \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_FOR_ACCUMULATOR(float)
DEFINE_FOR_ACCUMULATOR(double)

/* Reads and writes elements of any type but float64 as float32, block by block. */
static void gather_blocks(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                          const void *source, uint32_t count)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    float *momentum = config->momentum != TRIB_MOMENTUM_NONE ? memory->momentum : NULL;
    float *residual = config->feedback != TRIB_FEEDBACK_NONE ? memory->residual : NULL;
    float room[CODEC_BLOCK], values[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        memcpy(values, trib_codec_load_block(kernels, dtype, source, first, length, room), length * sizeof *values);
        gather_float(config, momentum != NULL ? momentum + first : NULL, residual != NULL ? residual + first : NULL,
                     values, length);
        if (dtype == TRIB_FLOAT32) {
            memcpy((float *)memory->scratch + first, values, length * sizeof *values);
        }
        trib_codec_store_block(kernels, dtype, memory->scratch, first, length, values);
    }
}

static void gather(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                   const void *source, uint32_t count)
{
    if (dtype != TRIB_FLOAT64) {
        gather_blocks(config, memory, dtype, source, count);
        return;
    }
    memcpy(memory->scratch, source, count * sizeof(double));
    gather_double(config, config->momentum != TRIB_MOMENTUM_NONE ? memory->momentum : NULL,
                  config->feedback != TRIB_FEEDBACK_NONE ? memory->residual : NULL, memory->scratch, count);
}

/* Decodes into the scratch memory, and adds that, times the factor, to the residual. Returns false if a program's codec
 * refuses what it has encoded. */
static bool settle(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                   const unsigned char *encoded, uint32_t encoded_size, uint32_t count, int factor)
{
    const trib_status status =
        config->codec->decode(&config->params, dtype, encoded, encoded_size, memory->scratch, count, NULL);
    if (status != TRIB_OK) {
        trib_assert(config->params.user != NULL); /* it was encoded here */
        return false;
    }
    if (dtype == TRIB_FLOAT64) {
        settle_double(memory->residual, memory->scratch, (double)factor, count);
        return true;
    }
    const codec_kernels *kernels = trib_codec_kernels_best();
    float room[CODEC_BLOCK];
    for (size_t first = 0; first < count; first += CODEC_BLOCK) {
        const size_t length = codec_block_at(first, count);
        settle_float((float *)memory->residual + first,
                     trib_codec_load_block(kernels, dtype, memory->scratch, first, length, room), (float)factor,
                     length);
    }
    return true;
}

trib_status trib_codec_check_encoded(const trib_codec_config *config, trib_dtype dtype, uint32_t count, uint32_t bytes,
                                     trib_error *error)
{
    const uint64_t bound = config->codec->bound(&config->params, dtype, count);
    if (bytes > 0 && bytes <= bound) {
        return TRIB_OK;
    }
    trib_assert(config->params.user != NULL);
    return bytes == 0
               ? trib_error_set(error, TRIB_INVALID, "codec %s failed on a chunk of %u elements%s", config->codec->name,
                                count, config->feedback != TRIB_FEEDBACK_NONE ? ", or to decode what it made" : "")
               : trib_error_set(error, TRIB_INVALID,
                                "codec %s made %u bytes of a chunk of %u elements, and its bound says %llu",
                                config->codec->name, bytes, count, (unsigned long long)bound);
}

uint32_t trib_codec_encode(const trib_codec_config *config, const trib_codec_memory *memory,
                           const trib_codec_place *place, trib_dtype dtype, const void *source, uint32_t count,
                           unsigned char *encoded)
{
    const trib_codec *codec = config->codec;
    trib_assert(count > 0);
    if (!trib_codec_is_stateful(config)) {
        return codec->encode(&config->params, place, memory->state, dtype, source, count, encoded);
    }
    trib_assert(memory->scratch != NULL && memory->scratch != source);
    trib_assert(config->feedback == TRIB_FEEDBACK_NONE || memory->residual != NULL);
    gather(config, memory, dtype, source, count);
    const uint32_t bytes = codec->encode(&config->params, place, memory->state, dtype, memory->scratch, count, encoded);
    if (config->feedback == TRIB_FEEDBACK_NONE ||
        trib_codec_check_encoded(config, dtype, count, bytes, NULL) != TRIB_OK) {
        return bytes;
    }
    return settle(config, memory, dtype, encoded, bytes, count, -1) ? bytes : 0;
}

void trib_codec_keep(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                     const void *source, uint32_t count)
{
    trib_assert(config->feedback != TRIB_FEEDBACK_NONE);
    trib_assert(memory->residual != NULL && memory->scratch != NULL);
    gather(config, memory, dtype, source, count);
}

void trib_codec_take_back(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                          const unsigned char *encoded, uint32_t encoded_size, uint32_t count)
{
    trib_assert(config->feedback != TRIB_FEEDBACK_NONE);
    trib_assert(memory->residual != NULL && memory->scratch != NULL);
    /* A program's codec may refuse what it has decoded before: then the chunk is lost. */
    (void)settle(config, memory, dtype, encoded, encoded_size, count, 1);
}
