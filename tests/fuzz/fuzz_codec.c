/*
 * fuzz_codec.c - each codec decodes or refuses any bytes as an encoded chunk, and touches nothing outside. Any text is
 * a codec, or is refused with a reason. A codec decodes its own encoding of any elements.
 *
 * An input is a codec's text of at most 64 bytes, a byte 0, a byte that chooses the type and the number of elements,
 * and the chunk.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/codec/codec.h"

#define TEXT_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Each buffer has its exact size, so that sanitizers see accesses outside. */
static unsigned char *copy_of(const uint8_t *data, size_t size)
{
    unsigned char *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

static void decode_hostile(const trib_codec_config *config, trib_dtype dtype, const uint8_t *data, size_t size,
                           uint32_t count)
{
    const trib_codec *codec = config->codec;
    unsigned char *encoded = copy_of(data, size);
    unsigned char *elements = malloc(count * trib_dtype_size(dtype));
    double *sum = calloc(count, sizeof *sum);
    require(elements != NULL && sum != NULL);
    trib_error error = {.text = ""};
    const trib_status status = codec->decode(&config->params, dtype, encoded, (uint32_t)size, elements, count, &error);
    require(status == TRIB_OK || (status == TRIB_PROTOCOL && strstr(error.text, codec->name) != NULL));
    if (codec->inspect != NULL) {
        require(codec->inspect(&config->params, dtype, encoded, (uint32_t)size, count, NULL) == status);
    }
    if (codec->add_encoded != NULL) {
        require(codec->add_encoded(&config->params, dtype, encoded, (uint32_t)size, sum, count, NULL) == status);
    }
    free(sum);
    free(elements);
    free(encoded);
}

static void encode_anything(const trib_codec_config *config, trib_dtype dtype, const uint8_t *data, uint32_t count,
                            uint32_t rank)
{
    const trib_codec *codec = config->codec;
    const size_t bytes = count * trib_dtype_size(dtype);
    const uint64_t bound = codec->bound(&config->params, dtype, count);
    unsigned char *elements = copy_of(data, bytes), *encoded = malloc(bound), *decoded = malloc(bytes);
    double *residual = calloc(count, sizeof *residual), *momentum = calloc(count, sizeof *momentum);
    void *scratch = malloc(bytes);
    require(encoded != NULL && decoded != NULL && residual != NULL && momentum != NULL && scratch != NULL);
    const trib_codec_memory memory = {.residual = residual, .momentum = momentum, .scratch = scratch};
    const trib_codec_place place = {.round = 1, .rank = rank};
    const uint32_t size = trib_codec_encode(config, &memory, &place, dtype, elements, count, encoded);
    require(size > 0 && size <= bound);
    require(codec->decode(&config->params, dtype, encoded, size, decoded, count, NULL) == TRIB_OK);
    free(scratch);
    free(momentum);
    free(residual);
    free(decoded);
    free(encoded);
    free(elements);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const trib_dtype dtypes[] = {TRIB_FLOAT32, TRIB_FLOAT64, TRIB_FLOAT16, TRIB_BFLOAT16};
    const uint8_t *end = memchr(data, 0, size < TEXT_MAX ? size : TEXT_MAX);
    if (size == 0 || end == NULL) {
        return 0;
    }
    trib_codec_config config;
    trib_error error = {.text = ""};
    if (trib_codec_parse((const char *)data, &config, &error) != TRIB_OK) {
        require(error.status == TRIB_INVALID && error.text[0] != '\0');
        return 0;
    }
    char text[TRIB_CODEC_TEXT_SIZE], again[TRIB_CODEC_TEXT_SIZE];
    trib_codec_config back;
    require(trib_codec_parse(trib_codec_format(&config, text), &back, &error) == TRIB_OK);
    require(strcmp(trib_codec_format(&back, again), text) == 0);
    size -= (size_t)(end + 1 - data);
    if (config.codec == NULL || size < 1) {
        return 0;
    }
    const uint8_t choice = end[1];
    const trib_dtype dtype = dtypes[choice % 4];
    if (config.codec->check(&config.params, dtype, &error) != TRIB_OK) {
        return 0;
    }
    const uint32_t counts[] = {1, 7, (uint32_t)size, 70000};
    decode_hostile(&config, dtype, end + 2, size - 1, counts[choice / 4 % 4]);
    const uint32_t count = (uint32_t)((size - 1) / trib_dtype_size(dtype));
    if (count > 0) {
        encode_anything(&config, dtype, end + 2, count, choice >= 128 ? TRIB_CODEC_RANK_OF_SUM : 0);
    }
    return 0;
}
