/*
 * codec_rules.h - the codec of a tensor that names none: one for all tensors, or others by name and size.
 *
 * "int8; *.bias=none; embed*@16M=topk,ratio=0.01" is int8, but none for names that end with ".bias", and topk for those
 * that begin with "embed" and have 16 MiB or more. The last part that fits a tensor counts.
 */
#ifndef TRIB_ENGINE_CODEC_RULES_H
#define TRIB_ENGINE_CODEC_RULES_H

#include "engine/codec/user_codec.h"

#define TRIB_CODEC_RULES_MAX 64u
#define TRIB_CODEC_PATTERN_MAX 127u

typedef struct trib_codec_rule {
    char pattern[TRIB_CODEC_PATTERN_MAX + 1]; /* of fnmatch; "*" fits all names */
    uint64_t bytes_least;                     /* of a tensor; UINT64_MAX: as the setting for all says */
    trib_codec_config config;
} trib_codec_rule;

typedef struct trib_codec_rules {
    trib_codec_rule *items;
    uint32_t count;
} trib_codec_rules;

/* NULL is no rule. TRIB_INVALID names the part that cannot be, and why. */
TRIB_CHECKED trib_status trib_codec_rules_open(trib_codec_rules *rules, const trib_codec_set *user, const char *text,
                                               trib_error *error);
void trib_codec_rules_close(trib_codec_rules *rules);

/* Returns the codec for such a tensor; NULL: no part fits. `least` is the size from which on parts without one fit. */
const trib_codec_config *trib_codec_rules_find(const trib_codec_rules *rules, const char *name, uint64_t bytes,
                                               uint64_t least);

#endif
