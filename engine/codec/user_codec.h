/*
 * user_codec.h - codecs that a program brings itself: the public callbacks (trib_codec_desc) behind the table that all
 * codecs have.
 *
 * An engine has a set of them, which stays as it is from the engine's opening on. A chunk's description names one by
 * its identity, which is made of its name and version and so the same on all members.
 */
#ifndef TRIB_ENGINE_USER_CODEC_H
#define TRIB_ENGINE_USER_CODEC_H

#include "engine/codec/codec.h"

typedef struct trib_user_codec {
    trib_codec codec;
    trib_codec_desc desc;
    char name[TRIB_CODEC_NAME_MAX + 1];
    uint32_t identity; /* never 0, which stands for the built-in codecs */
} trib_user_codec;

typedef struct trib_codec_set {
    trib_user_codec *items;
    uint32_t count;
} trib_codec_set;

/* Copies the descriptions. TRIB_INVALID: one cannot be, or two have the same name. */
TRIB_CHECKED trib_status trib_codec_set_open(trib_codec_set *set, const trib_codec_desc *descs, uint32_t count,
                                             trib_error *error);
void trib_codec_set_close(trib_codec_set *set);

/* NULL: none. The set may be NULL. */
const trib_user_codec *trib_codec_set_find(const trib_codec_set *set, const char *name);
const trib_user_codec *trib_codec_set_by_identity(const trib_codec_set *set, uint32_t identity);
/* Returns the identity of the parameters' codec; 0: it is a built-in one. */
uint32_t trib_codec_identity(const trib_codec_params *params);

#endif
