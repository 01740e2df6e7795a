/* codec_measure.h - how long a codec takes on this machine, and how many bytes it makes: some chunks of float32 are
 * encoded and decoded. Time is the caller's, so that it can be virtual. */
#ifndef TRIB_ENGINE_CODEC_MEASURE_H
#define TRIB_ENGINE_CODEC_MEASURE_H

#include "engine/codec/codec_auto.h"

#define TRIB_CODEC_SAMPLE_COUNT 16384u /* elements of a chunk */
#define TRIB_CODEC_SAMPLE_TURNS 3u     /* number of turns, of which the fastest counts */

typedef struct trib_codec_clock {
    int64_t (*now_ns)(void *user);
    /* notes that so many bytes of elements were encoded or decoded */
    void (*charge)(void *user, bool is_encoded, size_t bytes);
    void *user;
} trib_codec_clock;

/* Measures the codec with what is wrapped around it. The ratio is that for elements of `dtype`, whose encoded bytes are
 * about as many as float32's. Returns false if memory runs out, or if a program's codec fails. */
TRIB_CHECKED bool trib_codec_measure(const trib_codec_clock *clock, const trib_codec_config *config, trib_dtype dtype,
                                     trib_codec_speed *speed);

#endif
