/* user_codec.c - see user_codec.h. */
#include "engine/codec/user_codec.h"

#include <stdlib.h>

#include "engine/codec/codec_parts.h"

/* ---- The table of such a codec ---- */

static const trib_user_codec *user_codec_of(const trib_codec_params *params)
{
    trib_assert(params->user != NULL);
    return params->user;
}

static trib_codec_chunk chunk_of(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    return (trib_codec_chunk){.user = user_codec_of(params)->desc.user,
                              .dtype = dtype,
                              .count = count,
                              .k = params->k,
                              .ratio = params->ratio,
                              .seed = params->seed};
}

static trib_status check_user_codec(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    const trib_user_codec *self = user_codec_of(params);
    const trib_codec_chunk what = chunk_of(params, dtype, 0);
    char why[TRIB_ERROR_TEXT_SIZE] = "";
    const trib_status status = trib_codec_check_dtype(&self->codec, dtype, 0, error);
    if (status != TRIB_OK || self->desc.check == NULL || self->desc.check(&what, why, sizeof why) == 0) {
        return status;
    }
    why[sizeof why - 1] = '\0';
    return trib_error_set(error, TRIB_INVALID, "codec %s refuses %s or its parameters: %.300s", self->name,
                          trib_dtype_name(dtype), why);
}

static uint64_t bound_user_codec(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    const trib_codec_chunk what = chunk_of(params, dtype, count);
    const uint64_t bytes = user_codec_of(params)->desc.bound(&what);
    return bytes > UINT32_MAX / 2 ? UINT32_MAX / 2 + 1 : (bytes + 3) / 4 * 4;
}

static uint32_t encode_user_codec(const trib_codec_params *params, const trib_codec_place *place, void *state,
                                  trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    const trib_user_codec *self = user_codec_of(params);
    trib_codec_chunk what = chunk_of(params, dtype, count);
    what.tensor_key = place->tensor_key;
    what.round = place->round;
    what.first_element = place->first_element;
    what.partition_first = place->partition_first;
    what.partition_count = place->partition_count;
    what.rank = place->rank;
    const int64_t bytes =
        self->desc.encode(&what, state, source, encoded, (size_t)bound_user_codec(params, dtype, count));
    return bytes <= 0 ? 0 : bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
}

static trib_status decode_user_codec(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                     uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    const trib_user_codec *self = user_codec_of(params);
    const trib_codec_chunk what = chunk_of(params, dtype, count);
    return self->desc.decode(&what, encoded, encoded_size, destination) == 0
               ? TRIB_OK
               : trib_codec_refuse(&self->codec, "bytes that its decode refuses", error);
}

static trib_status add_user_codec(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                  uint32_t encoded_size, void *sum, uint32_t count, trib_error *error)
{
    const trib_user_codec *self = user_codec_of(params);
    const trib_codec_chunk what = chunk_of(params, dtype, count);
    return self->desc.add_encoded(&what, encoded, encoded_size, sum) == 0
               ? TRIB_OK
               : trib_codec_refuse(&self->codec, "bytes that its add_encoded refuses", error);
}

/* ---- The set ---- */

static bool is_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const size_t length = name == NULL ? 0 : strlen(name);
    return length > 0 && length <= TRIB_CODEC_NAME_MAX && strspn(name, letters) == length;
}

static bool is_taken(const trib_codec_set *set, const char *name)
{
    static const char *const words[] = {"none", "auto", "two_way"};
    bool taken = trib_codec_find(name) != NULL || trib_codec_set_find(set, name) != NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        taken = taken || strcmp(words[i], name) == 0;
    }
    return taken;
}

static trib_status check_desc(const trib_codec_set *set, const trib_codec_desc *desc, uint32_t index, trib_error *error)
{
    if (desc->struct_size != sizeof *desc) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec %u of the program: struct_size is %u, this library knows %zu: call "
                              "trib_codec_desc_init and build against the same release",
                              index, desc->struct_size, sizeof *desc);
    }
    if (!is_name(desc->name)) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec %u of the program: its name must have 1 to %d letters, digits, '_', '-' or '.'",
                              index, TRIB_CODEC_NAME_MAX);
    }
    if (is_taken(set, desc->name)) {
        return trib_error_set(error, TRIB_INVALID, "codec '%s' of the program: that name is taken, choose another",
                              desc->name);
    }
    if (desc->bound == NULL || desc->encode == NULL || desc->decode == NULL) {
        return trib_error_set(error, TRIB_INVALID, "codec '%s' of the program: it lacks bound, encode or decode",
                              desc->name);
    }
    if (desc->state_bytes > TRIB_CODEC_STATE_MAX || desc->reserved_32 != 0 || desc->reserved != 0) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec '%s' of the program: state_bytes %u is more than %u, or a reserved field is not 0",
                              desc->name, desc->state_bytes, TRIB_CODEC_STATE_MAX);
    }
    return TRIB_OK;
}

static uint32_t identity_of(const trib_codec_desc *desc)
{
    uint64_t hash = codec_mix(TRIB_CODEC_BROUGHT, desc->version);
    for (const char *at = desc->name; *at != '\0'; at++) {
        hash = codec_mix(hash, (unsigned char)*at);
    }
    return (uint32_t)hash != 0 ? (uint32_t)hash : 1;
}

static void fill(trib_user_codec *self, const trib_codec_desc *desc)
{
    trib_assert(strlen(desc->name) < sizeof self->name);
    memcpy(self->name, desc->name, strlen(desc->name) + 1);
    self->desc = *desc;
    self->desc.name = self->name;
    self->identity = identity_of(desc);
    self->codec = (trib_codec){.name = self->name,
                               .id = TRIB_CODEC_BROUGHT,
                               .check = check_user_codec,
                               .bound = bound_user_codec,
                               .encode = encode_user_codec,
                               .decode = decode_user_codec,
                               .add_encoded = desc->add_encoded != NULL ? add_user_codec : NULL,
                               .state_bytes = desc->state_bytes};
}

trib_status trib_codec_set_open(trib_codec_set *set, const trib_codec_desc *descs, uint32_t count, trib_error *error)
{
    *set = (trib_codec_set){.items = NULL};
    if (count > TRIB_CODECS_MAX || (count > 0 && descs == NULL)) {
        return trib_error_set(error, TRIB_INVALID, "codec_count %u: at most %u, and codecs must not be NULL", count,
                              TRIB_CODECS_MAX);
    }
    set->items = count > 0 ? calloc(count, sizeof *set->items) : NULL;
    if (count > 0 && set->items == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the codecs that the program brings");
    }
    for (uint32_t i = 0; i < count; i++) {
        const trib_status status = check_desc(set, &descs[i], i, error);
        if (status != TRIB_OK) {
            return status;
        }
        fill(&set->items[i], &descs[i]);
        if (trib_codec_set_by_identity(set, set->items[i].identity) != NULL) {
            return trib_error_set(error, TRIB_INVALID,
                                  "codecs '%s' and '%s' of the program: members could not tell them apart: rename one",
                                  descs[i].name, trib_codec_set_by_identity(set, set->items[i].identity)->name);
        }
        set->count++;
    }
    return TRIB_OK;
}

void trib_codec_set_close(trib_codec_set *set)
{
    free(set->items);
    *set = (trib_codec_set){.items = NULL};
}

const trib_user_codec *trib_codec_set_find(const trib_codec_set *set, const char *name)
{
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        if (strcmp(set->items[i].name, name) == 0) {
            return &set->items[i];
        }
    }
    return NULL;
}

const trib_user_codec *trib_codec_set_by_identity(const trib_codec_set *set, uint32_t identity)
{
    for (uint32_t i = 0; set != NULL && i < set->count; i++) {
        if (set->items[i].identity == identity) {
            return &set->items[i];
        }
    }
    return NULL;
}

uint32_t trib_codec_identity(const trib_codec_params *params)
{
    return params->user != NULL ? user_codec_of(params)->identity : 0;
}
