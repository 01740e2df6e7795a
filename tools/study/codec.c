/* codec.c - see codec.h. */
#include "tools/study/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/codec/codec_measure.h"

#define MODELLED "modelled"

static int64_t real_ns(void *user)
{
    struct timespec now;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void charge_nothing(void *user, bool is_encoded, size_t bytes)
{
    (void)user;
    (void)is_encoded;
    (void)bytes;
}

trib_status study_codec_read(const char *text, study_codec *codec, trib_error *error)
{
    const trib_codec_clock clock = {.now_ns = real_ns, .charge = charge_nothing};
    trib_codec_config config;
    const trib_status status = trib_codec_parse(text, &config, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (config.choices[0] != '\0') {
        return trib_error_set(error, TRIB_INVALID, "auto is chosen by real links: name a codec");
    }
    *codec = (study_codec){.two_way = config.two_way};
    if (config.codec == NULL) {
        return TRIB_OK;
    }
    trib_codec_format(&config, codec->text);
    return trib_codec_measure(&clock, &config, TRIB_FLOAT32, &codec->speed)
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory to measure codec \"%s\"", codec->text);
}

trib_status study_codec_option(const char *text, study_codec *codec, double *ratio_out, trib_error *error)
{
    char *end = NULL;
    const double ratio = strtod(text, &end);
    if (end == text || *end != '\0') {
        return study_codec_read(text, codec, error);
    }
    if (!(ratio >= 0.0001 && ratio <= 1)) {
        return trib_error_set(error, TRIB_INVALID, "%s is no ratio from 0.0001 to 1", text);
    }
    *ratio_out = ratio;
    return TRIB_OK;
}

double study_codec_ratio(const study_codec *codec)
{
    return codec->text[0] == '\0' ? 1 : (codec->speed.ratio + (codec->two_way ? codec->speed.ratio : 1)) / 2;
}

void study_codec_bits(const study_codec *codec, char *text, size_t size)
{
    snprintf(text, size, "%.1f bits an element in place of 32, %s", 32 * codec->speed.ratio,
             codec->two_way ? "sums too" : "sums as they are");
}

static uint64_t bytes_of(const trib_codec_chunk *chunk)
{
    const study_codec *self = chunk->user;
    const double bytes = (double)chunk->count * sizeof(float) * self->speed.ratio;
    return ((uint64_t)bytes + 4) / 4 * 4;
}

static int64_t encode_nothing(const trib_codec_chunk *chunk, void *state, const void *source, void *encoded,
                              size_t room)
{
    (void)chunk;
    (void)state;
    (void)source;
    (void)encoded;
    return (int64_t)room;
}

static int decode_nothing(const trib_codec_chunk *chunk, const void *encoded, size_t size, void *destination)
{
    (void)encoded;
    (void)destination;
    return size == bytes_of(chunk) ? 0 : 1;
}

void study_codec_apply(const study_codec *codec, trib_codec_desc *desc, sim_job_config *job)
{
    if (codec->text[0] == '\0') {
        return;
    }
    trib_codec_desc_init(desc, sizeof *desc);
    desc->name = MODELLED;
    desc->user = (void *)(uintptr_t)codec; /* only read */
    desc->bound = bytes_of;
    desc->encode = encode_nothing;
    desc->decode = decode_nothing;
    job->engine.codecs = desc;
    job->engine.codec_count = 1;
    job->engine.codec = codec->two_way ? MODELLED ",two_way" : MODELLED;
    job->modelled_codec = codec->text;
    job->costs.work[TRIB_COST_ENCODE].byte_ns = codec->speed.encode_ns;
    job->costs.work[TRIB_COST_DECODE].byte_ns = codec->speed.decode_ns;
}
