/*
 * codec_auto.h - "auto" in place of a codec: the codecs that may be chosen, and the choice by what was measured. Pure
 * functions.
 *
 * "auto:bf16,two_way,int8,ef=vanilla" has two codecs to choose from: a word without '=' that is not two_way begins the
 * next one. Its form without a list stands for TRIB_CODEC_AUTO_DEFAULT. None is always possible.
 */
#ifndef TRIB_ENGINE_CODEC_AUTO_H
#define TRIB_ENGINE_CODEC_AUTO_H

#include "engine/codec/user_codec.h"

#define TRIB_CODEC_CHOICES_MAX 4u
#define TRIB_CODEC_AUTO_DEFAULT "bf16,two_way,int8,ef=vanilla,two_way"

typedef struct trib_codec_choices {
    trib_codec_config items[TRIB_CODEC_CHOICES_MAX]; /* in the order of the list */
    uint32_t count;
} trib_codec_choices;

/* True if the text begins with "auto". */
bool trib_codec_is_auto(const char *text);
/* Reads such a text. TRIB_INVALID: the error names the codec that cannot be. */
TRIB_CHECKED trib_status trib_codec_auto_parse(const trib_codec_set *user, const char *text,
                                               trib_codec_choices *choices, trib_error *error);
/* Writes the one form of these choices. TRIB_INVALID: it is longer than a text may be. */
TRIB_CHECKED trib_status trib_codec_auto_format(const trib_codec_choices *choices, char text[TRIB_CODEC_TEXT_SIZE],
                                                trib_error *error);

/* Nanoseconds for each byte of elements. */
typedef struct trib_codec_speed {
    double encode_ns, decode_ns;
    double ratio; /* encoded bytes for each byte */
} trib_codec_speed;

/* The parts of a step that a codec changes. The nanoseconds are for each byte of elements. */
typedef struct trib_codec_step {
    double link_ns; /* all that a link carries each way in a step, as it is; 0: there is no link */
    double sum_ns;  /* adding a contribution */
    uint32_t workers, summing, reactors;
    bool workers_sum; /* workers sum too; otherwise a worker's link has contributions one way and sums the other way */
} trib_codec_step;

/* Returns the time of a step for each byte of a worker's elements: its way over the links, and what the processors of
 * the busiest member do for it. NULL: no codec. */
double trib_codec_step_ns(const trib_codec_step *step, const trib_codec_config *config, const trib_codec_speed *speed);

/* Returns the number of the choice, from 1 on, 0: none. A later choice, which loses more, has to be clearly faster than
 * an earlier one, and any of them than none. */
uint32_t trib_codec_auto_choose(const trib_codec_step *step, const trib_codec_choices *choices,
                                const trib_codec_speed speeds[TRIB_CODEC_CHOICES_MAX]);

#endif
