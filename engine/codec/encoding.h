/* encoding.h - a worker's description of the codec in front of each encoded chunk, so that a server can decode it
 * without knowing the tensor. */
#ifndef TRIB_ENGINE_ENCODING_H
#define TRIB_ENGINE_ENCODING_H

#include "engine/codec/user_codec.h"

#define TRIB_ENCODING_BYTES 32u    /* of the description */
#define TRIB_ENCODING_SMALL 4096u  /* bytes; a smaller sum has as much room as one of this size */
#define TRIB_ENCODING_MARGIN 4096u /* bytes that an encoded chunk may have more than the largest chunk */

typedef struct trib_encoding {
    const trib_codec *codec;
    trib_codec_params params;
    bool two_way;             /* the sum comes back encoded, too */
    uint32_t partition_count; /* elements of the partition */
} trib_encoding;

void trib_encoding_put(const trib_encoding *encoding, unsigned char bytes[TRIB_ENCODING_BYTES]);
/* Reads what a peer wrote about a codec with that number, one of ours or of those that were brought. TRIB_PROTOCOL:
 * there is no such codec, or it cannot have these parameters or that type. */
TRIB_CHECKED trib_status trib_encoding_get(const trib_codec_set *user, uint8_t codec, const unsigned char *bytes,
                                           uint32_t size, trib_dtype dtype, trib_encoding *encoding, trib_error *error);
/* The part of the description that all chunks of a tensor share, and the elements of the chunk's partition. */
#define TRIB_ENCODING_SHARED_BYTES 28u
uint32_t trib_encoding_partition_count(const unsigned char bytes[TRIB_ENCODING_BYTES]);
/* True if a sum of that many elements comes back encoded: its bytes replace it in its own memory. */
bool trib_encoding_answers(const trib_encoding *encoding, trib_dtype dtype, uint32_t count);

/* The place of a sum's chunk, which is the same for whoever encodes it. */
static inline trib_codec_place trib_encoding_sum_place(uint32_t partition, uint32_t partition_count, uint32_t round,
                                                       uint32_t first_element)
{
    return (trib_codec_place){.tensor_key = partition,
                              .round = round,
                              .first_element = first_element,
                              .partition_count = partition_count,
                              .rank = TRIB_CODEC_RANK_OF_SUM};
}

#endif
