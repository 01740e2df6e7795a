/*
 * codec.h - codecs: how a chunk of floating-point numbers becomes fewer bytes, and numbers again.
 *
 * Every function here is pure: it keeps nothing between calls but what lies in the memory that its caller gives, and
 * any thread may call it. The unit is a chunk, and each encoded chunk can be decoded without any other. Buffers of
 * encoded bytes need no alignment; those of elements have that of their element. docs/codecs.md has each codec's error
 * bound.
 *
 * Encoding is deterministic. Random numbers come from the parameters' seed and the chunk's place, or from a state that
 * the caller keeps. Each implementation of the kernels gives the same bits.
 */
#ifndef TRIB_ENGINE_CODEC_H
#define TRIB_ENGINE_CODEC_H

#include "api/tributary.h"

/* The numbers go over the wire and stay as they are. 0 is for bytes that no codec has touched. */
typedef enum trib_codec_id {
    TRIB_CODEC_FP16 = 1,
    TRIB_CODEC_BF16 = 2,
    TRIB_CODEC_FP8_E4M3 = 3,
    TRIB_CODEC_FP8_E5M2 = 4,
    TRIB_CODEC_INT8 = 5,
    TRIB_CODEC_ONEBIT = 6,
    TRIB_CODEC_TOPK = 7,
    TRIB_CODEC_RANDOMK = 8,
    TRIB_CODEC_DITHERING = 9,
    TRIB_CODEC_UNIFORM = 10,
    TRIB_CODEC_BROUGHT = 255, /* one that a program brings (user_codec.h): the chunk's description says which */
} trib_codec_id;

/* The parameters of all codecs; a codec leaves those of others 0. */
typedef struct trib_codec_params {
    uint64_t seed;     /* randomk, dithering: of XorShift128+, if not 0; others: mixed into the numbers of places */
    double ratio;      /* topk, randomk: elements kept of each chunk; 0: k counts them */
    uint32_t k;        /* topk, randomk: elements kept of each partition; dithering: levels */
    uint8_t scaling;   /* onebit: decoded elements have the mean magnitude, else 1 */
    uint8_t partition; /* dithering: 0 linear levels, 1 powers of two */
    uint8_t normalize; /* dithering: 0 by the largest magnitude, 1 by the L2 norm */
    uint8_t select;    /* topk: 0 the largest, 1 those above a threshold that a sample gives, at most as many */
    const void *user;  /* the trib_user_codec of a codec that a program brings; not part of the text form */
} trib_codec_params;

/* Where a chunk stands in its job. A chunk may have any number of elements from 1 on. */
typedef struct trib_codec_place {
    uint64_t tensor_key; /* the same on all workers */
    uint64_t round;
    uint64_t first_element;   /* of the chunk in the tensor */
    uint64_t partition_first; /* of the partition in the tensor */
    uint64_t partition_count; /* elements of the partition, which share k; 0: the chunk is all of it */
    uint32_t rank;
    uint32_t reserved;
} trib_codec_place;

typedef struct trib_codec {
    const char *name;
    uint8_t id; /* a trib_codec_id */
    /* Refuses a type of elements or parameters that the codec cannot have: TRIB_INVALID, and a text that says what to
     * do. Everything below needs parameters and a type that were accepted here. */
    trib_status (*check)(const trib_codec_params *params, trib_dtype dtype, trib_error *error);
    /* Returns the largest number of bytes that `count` elements can become; a multiple of 4. */
    uint64_t (*bound)(const trib_codec_params *params, trib_dtype dtype, uint32_t count);
    /* Encodes `count` elements, at least 1, and returns the bytes: at least 1, and at most bound(). A program's codec
     * alone may fail: 0, or more than bound() (trib_codec_check_encoded). There is room for bound() bytes at
     * `encoded`, which does not overlap the source. `state` has state_bytes, which are zeros before a partition's first
     * chunk; its chunks then come in order. NULL: this chunk is the first. */
    uint32_t (*encode)(const trib_codec_params *params, const trib_codec_place *place, void *state, trib_dtype dtype,
                       const void *source, uint32_t count, unsigned char *encoded);
    /* Decodes what a peer sent, which may be anything: TRIB_PROTOCOL if encode cannot have made it for `count`
     * elements. Then the destination has any content. Nothing outside of the two buffers is touched. */
    trib_status (*decode)(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                          uint32_t encoded_size, void *destination, uint32_t count, trib_error *error);
    /* NULL, or the checks of decode without decoding, for a caller that lets a device decode. */
    trib_status (*inspect)(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                           uint32_t encoded_size, uint32_t count, trib_error *error);
    /* NULL, or adds what decode would give to `sum`, `count` accumulators (trib_acc_dtype), with the bits of an
     * addition of each element: one that was not sent adds 0. Servers add so where a sum waits for the chunk.
     * TRIB_PROTOCOL leaves the sum unchanged. */
    trib_status (*add_encoded)(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                               uint32_t encoded_size, void *sum, uint32_t count, trib_error *error);
    /* Bytes of a partition's state for encoding; 0: none is needed, and `state` is not looked at. */
    uint32_t state_bytes;
} trib_codec;

/* Returns the codec; NULL if there is none. */
const trib_codec *trib_codec_find(const char *name);
const trib_codec *trib_codec_by_id(uint8_t id);
/* The rank in the place of a sum that is encoded: it is nobody's contribution. */
#define TRIB_CODEC_RANK_OF_SUM UINT32_MAX
/* True if servers may encode sums with the codec: it needs no state, and it drops no element because of the order of
 * the others. */
bool trib_codec_may_answer(const trib_codec *codec);
/* Returns the codecs in the order of their ids; NULL from their count on. */
const trib_codec *trib_codec_at(size_t index);

/* ---- A codec with what is wrapped around it ------------------------------------------------------------------ */

typedef enum trib_codec_feedback {
    TRIB_FEEDBACK_NONE = 0,
    TRIB_FEEDBACK_VANILLA = 1, /* what encoding loses is kept, and added to the next round's elements */
} trib_codec_feedback;

/* m is the momentum, g the gradient. Both begin with m = mu * m + g. */
typedef enum trib_codec_momentum {
    TRIB_MOMENTUM_NONE = 0,
    TRIB_MOMENTUM_HEAVY_BALL = 1, /* m is encoded */
    TRIB_MOMENTUM_NESTEROV = 2,   /* g + mu * m is encoded */
} trib_codec_momentum;

#define TRIB_CODEC_TEXT_SIZE 192

typedef struct trib_codec_config {
    const trib_codec *codec; /* NULL: none */
    trib_codec_params params;
    trib_codec_feedback feedback;
    trib_codec_momentum momentum;
    float mu;
    uint32_t warmup; /* rounds that travel as they are before the first encoded one; momentum begins with that one */
    bool two_way;    /* sums come back encoded by the same codec, without feedback and momentum */
    char choices
        [TRIB_CODEC_TEXT_SIZE]; /* "": chosen; else "auto:..." in its one form, and no codec yet (codec_auto.h) */
} trib_codec_config;

/*
 * Reads "topk,ratio=0.01,ef=vanilla,momentum=nesterov,mu=0.9". "none" and an empty text are no codec. BytePS's form is
 * understood, too: "compressor=topk,k=0.01,seed=7", where k below 1 is a ratio, and scaling is off if it is not named.
 * "auto", or with a list, leaves the choice for later (codec_auto.h).
 * TRIB_INVALID: the error lists what is known, and the config is unchanged.
 */
trib_status trib_codec_parse(const char *text, trib_codec_config *config, trib_error *error);
/* As trib_codec_parse, for a program that has brought codecs of its own. NULL: none. */
struct trib_codec_set;
trib_status trib_codec_parse_with(const struct trib_codec_set *user, const char *text, trib_codec_config *config,
                                  trib_error *error);

/* Writes the one text of this config, which parse reads back to the same: members compare it. Returns `text`. */
const char *trib_codec_format(const trib_codec_config *config, char text[TRIB_CODEC_TEXT_SIZE]);

/*
 * The memory around one chunk. Residuals and momenta are accumulators (trib_acc_dtype: float32, or float64 for
 * float64), one for each element of the partition, and zeros at first. The caller points to the chunk's part of them.
 */
typedef struct trib_codec_memory {
    void *state;    /* of the partition; see trib_codec.encode */
    void *residual; /* with feedback */
    void *momentum; /* with momentum */
    void *scratch;  /* `count` elements of the tensor's type, with either; nothing is kept there */
} trib_codec_memory;

/* Encoded chunks of a contribution that did not count, for a device that keeps the residual: laid out as the device
 * made them, where a chunk of 0 bytes is none. */
typedef struct trib_codec_returned {
    struct trib_codec_returned *next;
    unsigned char chunks[];
} trib_codec_returned;

/* True if encoding needs `scratch`, which decoding never does. */
bool trib_codec_is_stateful(const trib_codec_config *config);

/* Applies momentum and feedback, and encodes; see trib_codec.encode. The source stays as it is. If a program's codec
 * fails the residual keeps all of the chunk. */
uint32_t trib_codec_encode(const trib_codec_config *config, const trib_codec_memory *memory,
                           const trib_codec_place *place, trib_dtype dtype, const void *source, uint32_t count,
                           unsigned char *encoded);

/* TRIB_INVALID: a program's codec has made no bytes of `count` elements, or more than the bound. */
TRIB_CHECKED trib_status trib_codec_check_encoded(const trib_codec_config *config, trib_dtype dtype, uint32_t count,
                                                  uint32_t bytes, trib_error *error);

/* Applies momentum, and puts the elements of a chunk that was never encoded into the residual. */
void trib_codec_keep(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                     const void *source, uint32_t count);

/* Puts an encoded chunk that did not count (a failed or withdrawn contribution) back into the residual. */
void trib_codec_take_back(const trib_codec_config *config, const trib_codec_memory *memory, trib_dtype dtype,
                          const unsigned char *encoded, uint32_t encoded_size, uint32_t count);

#endif
