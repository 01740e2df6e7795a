/*
 * server_codec.c - encoded contributions of a core: their memory, their decoding, and the encoding of sums.
 *
 * Each encoded chunk begins with a description (encoding.h). A core keeps each description that it has seen once, so
 * that contributions are compared by its address.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/codec/encoding.h"
#include "engine/server/server_sum.h"

#define ENCODINGS_MAX 1024u /* bounds the memory that a peer can take with descriptions */

typedef struct known_encoding {
    struct known_encoding *next;
    trib_encoding encoding;
    trib_dtype dtype;
    unsigned char bytes[TRIB_ENCODING_SHARED_BYTES];
} known_encoding;

/* Memory for one encoded chunk. */
typedef struct landing {
    struct landing *next;
    unsigned char bytes[];
} landing;

typedef struct trib_server_codec {
    landing *free_landings;
    known_encoding *encodings; /* the one used last is the first */
    uint32_t encoding_count;
    unsigned char *encoded; /* room for an encoded sum, which then replaces the sum */
} trib_server_codec;

static size_t landing_bytes(const trib_core *core)
{
    return core->engine->roster->chunk_bytes + TRIB_ENCODING_MARGIN;
}

static trib_server_codec *codec_of(trib_core *core)
{
    if (core->codec == NULL) {
        trib_server_codec *self = trib_core_zalloc(core, sizeof *self);
        unsigned char *encoded = self == NULL ? NULL : trib_core_zalloc(core, landing_bytes(core));
        if (encoded == NULL) {
            free(self);
            return NULL;
        }
        self->encoded = encoded;
        core->codec = self;
    }
    return core->codec;
}

void trib_server_codec_close(trib_core *core)
{
    trib_server_codec *self = core->codec;
    core->codec = NULL;
    while (self != NULL && self->free_landings != NULL) {
        landing *next = self->free_landings->next;
        free(self->free_landings);
        self->free_landings = next;
    }
    while (self != NULL && self->encodings != NULL) {
        known_encoding *next = self->encodings->next;
        free(self->encodings);
        self->encodings = next;
    }
    free(self != NULL ? self->encoded : NULL);
    free(self);
}

/* ---- Landing ---- */

void trib_server_codec_give(trib_core *core, void *landed)
{
    landing *memory = landed;
    trib_assert(memory == NULL || core->codec == NULL || core->codec->free_landings != memory);
    if (memory != NULL && core->codec != NULL) {
        memory->next = core->codec->free_landings;
        core->codec->free_landings = memory;
    } else {
        free(memory);
    }
}

static void abandoned(trib_link *link, const trib_recv_claim *recv_claim)
{
    trib_server_codec_give(link->core, recv_claim->what);
}

trib_status trib_server_codec_land(trib_link *link, const trib_frame *frame, trib_recv_target *target)
{
    trib_core *core = link->core;
    trib_server_codec *self = codec_of(core);
    landing *memory = self == NULL ? NULL : self->free_landings;
    trib_assert(frame->payload_size <= landing_bytes(core));
    if (memory != NULL) {
        self->free_landings = memory->next;
    } else if (self != NULL) {
        memory = trib_core_zalloc(core, sizeof *memory + landing_bytes(core));
    }
    if (memory == NULL) {
        return TRIB_AGAIN;
    }
    target->buffer = memory->bytes;
    link->recv_claim.abandon = abandoned;
    link->recv_claim.what = memory;
    return TRIB_OK;
}

/* ---- Decoding ---- */

static void to_front(trib_server_codec *self, known_encoding **at)
{
    known_encoding *known = *at;
    *at = known->next;
    known->next = self->encodings;
    self->encodings = known;
}

/* Returns the one record of this description, or NULL with the error set. */
static const trib_encoding *know(trib_core *core, const trib_frame *frame, const unsigned char *payload,
                                 trib_error *error)
{
    trib_server_codec *self = codec_of(core);
    for (known_encoding **at = self == NULL ? NULL : &self->encodings; at != NULL && *at != NULL; at = &(*at)->next) {
        const known_encoding *known = *at;
        if (frame->payload_size > TRIB_ENCODING_BYTES && known->encoding.codec->id == frame->codec &&
            known->dtype == (trib_dtype)frame->dtype && memcmp(known->bytes, payload, sizeof known->bytes) == 0) {
            to_front(self, at);
            return &self->encodings->encoding;
        }
    }
    trib_encoding encoding;
    if (trib_encoding_get(&core->engine->codecs, frame->codec, payload, frame->payload_size, (trib_dtype)frame->dtype,
                          &encoding, error) != TRIB_OK) {
        return NULL;
    }
    known_encoding *known =
        self == NULL || self->encoding_count >= ENCODINGS_MAX ? NULL : trib_core_zalloc(core, sizeof *known);
    if (known == NULL) {
        (void)trib_error_set(error, TRIB_NO_MEMORY, "no room for one more codec: %u are known",
                             self == NULL ? 0 : self->encoding_count);
        return NULL;
    }
    known->encoding = encoding;
    known->dtype = (trib_dtype)frame->dtype;
    memcpy(known->bytes, payload, sizeof known->bytes);
    known->next = self->encodings;
    self->encodings = known;
    self->encoding_count++;
    return &known->encoding;
}

/* Adds the chunk to the sum that waits for it, or decodes it into memory of its own. */
static trib_status take_chunk(const trib_server_sum *sum, const trib_contribution *what, const unsigned char *encoded,
                              uint32_t size, trib_arrived *arrived, trib_error *why)
{
    trib_aggregator *aggregator = sum->aggregator;
    const trib_codec *codec = what->encoding->codec;
    const uint32_t count = what->size / (uint32_t)trib_dtype_size(what->dtype);
    void *place = NULL;
    trib_status status = TRIB_OK;
    if (codec->add_encoded != NULL) {
        status = aggregator->ops->sum_at(aggregator, what, &place, why);
    }
    if (status == TRIB_OK && place != NULL) {
        *arrived = (trib_arrived){.payload = place};
        return codec->add_encoded(&what->encoding->params, what->dtype, encoded, size, place, count, why);
    }
    if (status == TRIB_OK) {
        status = aggregator->ops->recv_target(aggregator, what, &place, why);
    }
    if (status != TRIB_OK) {
        return status;
    }
    status = codec->decode(&what->encoding->params, what->dtype, encoded, size, place, count, why);
    if (status != TRIB_OK) {
        aggregator->ops->abandon(aggregator, place);
        return status;
    }
    *arrived = (trib_arrived){.buffer = place, .payload = place};
    return TRIB_OK;
}

trib_status trib_server_codec_decode(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame,
                                     const void *payload, trib_contribution *what, trib_arrived *arrived,
                                     trib_error *error)
{
    trib_core *core = sum->core;
    trib_error why;
    trib_error_clear(&why);
    const char *name = trib_roster_name(core->engine->roster, link->peer);
    what->encoding = know(core, frame, payload, &why);
    if (what->encoding == NULL) {
        return trib_error_set(error, why.status, "PUSH from %s: %.300s", name, why.text);
    }
    what->partition_elements = trib_encoding_partition_count(payload);
    const trib_status status = take_chunk(sum, what, (const unsigned char *)payload + TRIB_ENCODING_BYTES,
                                          frame->payload_size - TRIB_ENCODING_BYTES, arrived, &why);
    trib_charge(core->reactor, TRIB_COST_DECODE, what->size);
    if (status == TRIB_AGAIN || status == TRIB_NO_MEMORY) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a chunk of %u bytes", what->size);
    }
    return status == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_PROTOCOL, "PUSH from %s: chunk %u of partition %u of tensor %u: %.300s",
                                name, what->chunk, what->partition, what->tensor, why.text);
}

/* ---- Encoding ---- */

void trib_server_codec_encode(void *user, const trib_contribution *what, trib_sum_buffer *buffer)
{
    const trib_server_sum *sum = user;
    const trib_encoding *encoding = what->encoding;
    const uint32_t element = (uint32_t)trib_dtype_size(what->dtype), count = what->size / element;
    if (!trib_encoding_answers(encoding, what->dtype, count)) {
        return;
    }
    /* All chunks but the last have the same size, and the partition's elements say where that one begins. */
    const bool is_last = what->chunk + 1 == what->chunk_count;
    const uint32_t all = what->partition_elements;
    const uint32_t first = is_last && all > count ? all - count : what->chunk * count;
    const trib_codec_place place = trib_encoding_sum_place(what->partition, all, what->round, first);
    unsigned char *encoded = sum->core->codec->encoded;
    const trib_codec_config config = {.codec = encoding->codec, .params = encoding->params};
    const uint32_t size =
        encoding->codec->encode(&encoding->params, &place, NULL, what->dtype, buffer->data, count, encoded);
    if (trib_codec_check_encoded(&config, what->dtype, count, size, NULL) != TRIB_OK) {
        return; /* the sum goes back as it is */
    }
    trib_assert(size <= landing_bytes(sum->core));
    buffer->size = size;
    buffer->codec = encoding->codec->id;
    sum->core->engine->env.kernels->copy(buffer->data, encoded, buffer->size);
    trib_charge(sum->core->reactor, TRIB_COST_ENCODE, what->size);
}
