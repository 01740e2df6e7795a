/*
 * sparse.c - the codecs topk and randomk: some of a chunk's elements, each with its index, as they are.
 *
 * The bytes are BytePS's: pairs of an index and an element, both as wide as an element. Indices of elements of 16 bits
 * in a chunk of more than 2^16 need 32 bits, and the element then has 32, too. topk keeps the pairs in a heap with the
 * smallest magnitude on top, in the order that C++'s push_heap and pop_heap leave; a NaN counts as the largest. randomk
 * draws indices, and may draw one twice.
 *
 * With select=sampled topk looks at one of 16 elements to estimate which magnitude k elements exceed, and takes those
 * that do, at most k, in one pass. The pass begins at a place that is drawn, so that it does not always leave out the
 * same elements.
 */
#include "engine/codec/codec_parts.h"

#define MARKED_ELEMENTS 65536u /* number of elements whose indices are checked at once */

#define STRATUM_ELEMENTS 16u /* number of elements of which a sample has one */
#define SAMPLED_RANK 8u      /* the threshold's place among the sample, from the largest; a lower one would be chance */

#define SPARSE_INLINE static inline __attribute__((always_inline))

static trib_status check_sparse(const trib_codec *codec, const trib_codec_params *params, trib_dtype dtype,
                                trib_error *error)
{
    const bool has_ratio = params->ratio > 0 && params->ratio <= 1 && params->k == 0;
    const bool has_count = params->k > 0 && params->ratio == 0;
    if (!has_ratio && !has_count) {
        return trib_error_set(error, TRIB_INVALID,
                              "codec %s needs either ratio=, above 0 and at most 1, or k=, the elements to keep",
                              codec->name);
    }
    return trib_codec_check_dtype(codec, dtype, 1, error);
}

static trib_status check_topk(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    return check_sparse(&trib_codec_topk, params, dtype, error);
}

static trib_status check_randomk(const trib_codec_params *params, trib_dtype dtype, trib_error *error)
{
    return check_sparse(&trib_codec_randomk, params, dtype, error);
}

static size_t width_of(trib_dtype dtype, uint32_t count)
{
    const size_t size = trib_dtype_size(dtype);
    return size == sizeof(uint16_t) && count > UINT16_MAX + 1u ? sizeof(uint32_t) : size;
}

static uint32_t kept_at_most(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    if (params->k == 0) {
        return codec_kept_by_ratio(params->ratio, (uint32_t)trib_dtype_size(dtype), count);
    }
    return params->k < count ? params->k : count;
}

static uint32_t kept_of(const trib_codec_params *params, const trib_codec_place *place, trib_dtype dtype,
                        uint32_t count)
{
    if (params->k == 0 || place->partition_count <= count) {
        return kept_at_most(params, dtype, count);
    }
    trib_assert(place->first_element >= place->partition_first);
    return codec_kept_share(params->k, place->partition_count, place->first_element - place->partition_first, count);
}

static uint64_t bound_sparse(const trib_codec_params *params, trib_dtype dtype, uint32_t count)
{
    return (uint64_t)kept_at_most(params, dtype, count) * 2 * width_of(dtype, count);
}

/* ---- topk -------------------------------------------------------------------------------------------------------- */

static size_t screen(const codec_kernels *kernels, const void *source, size_t block, size_t blocks, uint64_t threshold,
                     size_t element)
{
    if (element == sizeof(uint32_t)) {
        return kernels->screen_32(source, block, blocks, (uint32_t)threshold);
    }
    if (element == sizeof(uint64_t)) {
        return kernels->screen_64(source, block, blocks, threshold);
    }
    return kernels->screen_16(source, block, blocks, (uint16_t)threshold);
}

SPARSE_INLINE void offer(unsigned char *heap, uint32_t kept, const unsigned char *source, uint32_t index, size_t width,
                         size_t element)
{
    const codec_pair added = {index, codec_load_word(source + (size_t)index * element, element)};
    if (codec_magnitude(added, element) > codec_magnitude(codec_load_pair(heap, 0, width), element)) {
        codec_replace_smallest(heap, kept, added, width, element);
    }
}

/* Whole blocks without any element that is large enough are passed over. */
SPARSE_INLINE void select_largest(unsigned char *heap, uint32_t kept, const unsigned char *source, uint32_t count,
                                  size_t width, size_t element)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    uint32_t index = 0;
    for (; index < kept; index++) {
        codec_sift_up(heap, index, (codec_pair){index, codec_load_word(source + (size_t)index * element, element)},
                      width, element);
    }
    for (; index < count && index % CODEC_SCREEN_BLOCK != 0; index++) {
        offer(heap, kept, source, index, width, element);
    }
    const size_t blocks = count / CODEC_SCREEN_BLOCK;
    for (size_t block = index / CODEC_SCREEN_BLOCK; block < blocks; block++) {
        block =
            screen(kernels, source, block, blocks, codec_magnitude(codec_load_pair(heap, 0, width), element), element);
        index = (uint32_t)(block * CODEC_SCREEN_BLOCK);
        for (uint32_t i = 0; block < blocks && i < CODEC_SCREEN_BLOCK; i++) {
            offer(heap, kept, source, index++, width, element);
        }
    }
    for (; index < count; index++) {
        offer(heap, kept, source, index, width, element);
    }
}

typedef struct selection {
    unsigned char *pairs;
    uint64_t above; /* the magnitude that an element must exceed */
    uint32_t found, kept;
} selection;

SPARSE_INLINE void take_above(selection *chosen, const unsigned char *source, uint32_t index, uint32_t end,
                              size_t width, size_t element)
{
    for (; index < end && chosen->found < chosen->kept; index++) {
        const codec_pair one = {index, codec_load_word(source + (size_t)index * element, element)};
        codec_store_pair(chosen->pairs, chosen->found, width, one);
        chosen->found += codec_magnitude(one, element) > chosen->above;
    }
}

SPARSE_INLINE void take_blocks(selection *chosen, const unsigned char *source, size_t block, size_t blocks,
                               size_t width, size_t element)
{
    const codec_kernels *kernels = trib_codec_kernels_best();
    for (; block < blocks && chosen->found < chosen->kept; block++) {
        block = screen(kernels, source, block, blocks, chosen->above, element);
        const uint32_t index = (uint32_t)(block * CODEC_SCREEN_BLOCK);
        take_above(chosen, source, index, block < blocks ? index + CODEC_SCREEN_BLOCK : index, width, element);
    }
}

/* Returns the magnitude that `rank` elements of a sample have or exceed. They are kept in the room for pairs. */
SPARSE_INLINE uint64_t sampled_threshold(unsigned char *heap, uint32_t rank, uint64_t hash, uint32_t stratum,
                                         const unsigned char *source, uint32_t count, size_t width, size_t element)
{
    for (uint32_t i = 0; i < count / stratum; i++) {
        hash = i % 16 == 0 ? codec_mix(hash, i) : hash >> 4;
        const uint32_t index = i * stratum + (uint32_t)(hash % stratum);
        if (i < rank) {
            codec_sift_up(heap, i, (codec_pair){index, codec_load_word(source + (size_t)index * element, element)},
                          width, element);
        } else {
            offer(heap, rank, source, index, width, element);
        }
    }
    return codec_magnitude(codec_load_pair(heap, 0, width), element);
}

SPARSE_INLINE uint32_t select_sampled(unsigned char *pairs, uint32_t kept, uint64_t hash, const unsigned char *source,
                                      uint32_t count, size_t width, size_t element)
{
    uint32_t stratum = STRATUM_ELEMENTS;
    while (stratum > 1 && kept / stratum < SAMPLED_RANK) {
        stratum /= 2;
    }
    if (stratum == 1) { /* too few to estimate anything */
        select_largest(pairs, kept, source, count, width, element);
        return kept;
    }
    const uint64_t least = sampled_threshold(pairs, kept / stratum, hash, stratum, source, count, width, element);
    selection chosen = {.pairs = pairs, .above = least > 0 ? least - 1 : 0, .kept = kept};
    const size_t blocks = count / CODEC_SCREEN_BLOCK, begin = hash % (blocks + 1);
    take_blocks(&chosen, source, begin, blocks, width, element);
    take_above(&chosen, source, (uint32_t)(blocks * CODEC_SCREEN_BLOCK), count, width, element);
    take_blocks(&chosen, source, 0, begin, width, element);
    return chosen.found > 0 ? chosen.found : 1; /* all are 0: the first has its pair already */
}

static uint64_t infinity_of(trib_dtype dtype)
{
    if (dtype == TRIB_FLOAT64) {
        return 0x7ff0000000000000u;
    }
    return dtype == TRIB_FLOAT16 ? 0x7c00 : dtype == TRIB_BFLOAT16 ? 0x7f80 : CODEC_F32_INFINITY;
}

SPARSE_INLINE bool is_all_finite(trib_dtype dtype, const unsigned char *source, uint32_t count, size_t element)
{
    const uint64_t infinity = infinity_of(dtype);
    const uint32_t blocks = count / CODEC_SCREEN_BLOCK;
    bool all = screen(trib_codec_kernels_best(), source, 0, blocks, infinity - 1, element) == blocks;
    for (uint32_t i = blocks * CODEC_SCREEN_BLOCK; i < count; i++) {
        all &= codec_magnitude((codec_pair){i, codec_load_word(source + (size_t)i * element, element)}, element) <
               infinity;
    }
    return all;
}

/* The selection is exact where an element is not finite: left out by chance, feedback would forget it. */
SPARSE_INLINE uint32_t select_pairs(unsigned char *pairs, uint32_t kept, const trib_codec_params *params,
                                    const trib_codec_place *place, trib_dtype dtype, const unsigned char *source,
                                    uint32_t count, size_t width, size_t element)
{
    if (params->select && is_all_finite(dtype, source, count, element)) {
        const uint64_t of_tensor = codec_mix(codec_mix(params->seed, place->tensor_key), place->rank);
        const uint64_t hash = codec_mix(codec_mix(of_tensor, place->round), place->first_element);
        return select_sampled(pairs, kept, hash, source, count, width, element);
    }
    select_largest(pairs, kept, source, count, width, element);
    return kept;
}

static uint32_t encode_topk(const trib_codec_params *params, const trib_codec_place *place, void *state,
                            trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    (void)state;
    const uint32_t kept = kept_of(params, place, dtype, count);
    const size_t width = width_of(dtype, count), element = trib_dtype_size(dtype);
    uint32_t pairs;
    if (element == sizeof(uint32_t)) {
        pairs = select_pairs(encoded, kept, params, place, dtype, source, count, sizeof(uint32_t), sizeof(uint32_t));
    } else if (element == sizeof(uint64_t)) {
        pairs = select_pairs(encoded, kept, params, place, dtype, source, count, sizeof(uint64_t), sizeof(uint64_t));
    } else if (width == sizeof(uint16_t)) {
        pairs = select_pairs(encoded, kept, params, place, dtype, source, count, sizeof(uint16_t), sizeof(uint16_t));
    } else {
        pairs = select_pairs(encoded, kept, params, place, dtype, source, count, sizeof(uint32_t), sizeof(uint16_t));
    }
    trib_assert(pairs > 0 && pairs <= kept_at_most(params, dtype, count)); /* what check_pairs accepts */
    return (uint32_t)(pairs * 2 * width);
}

/* ---- randomk ----------------------------------------------------------------------------------------------------- */

static uint32_t encode_randomk(const trib_codec_params *params, const trib_codec_place *place, void *state,
                               trib_dtype dtype, const void *source, uint32_t count, unsigned char *encoded)
{
    const uint32_t kept = kept_of(params, place, dtype, count);
    const size_t width = width_of(dtype, count), element = trib_dtype_size(dtype);
    trib_assert(kept <= kept_at_most(params, dtype, count)); /* what check_pairs accepts */
    codec_xorshift random =
        trib_codec_xorshift_begin(params, place, TRIB_CODEC_RANDOMK, state); /* alike on all workers */
    for (uint32_t i = 0; i < kept; i++) {
        const uint64_t index = codec_xorshift_next(&random) % count;
        codec_store_pair(
            encoded, i, width,
            (codec_pair){index, codec_load_word((const unsigned char *)source + index * element, element)});
    }
    trib_codec_xorshift_end(params, random, state);
    return (uint32_t)(kept * 2 * width);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static bool mark(uint64_t marks[MARKED_ELEMENTS / 64], uint64_t at)
{
    const uint64_t bit = (uint64_t)1 << at % 64;
    const bool is_new = (marks[at / 64] & bit) == 0;
    marks[at / 64] |= bit;
    return is_new;
}

static bool has_duplicates(const unsigned char *encoded, uint32_t pairs, size_t width, uint32_t count)
{
    uint64_t marks[MARKED_ELEMENTS / 64];
    for (uint64_t first = 0; first < count; first += MARKED_ELEMENTS) {
        memset(marks, 0, sizeof marks);
        for (uint32_t i = 0; i < pairs; i++) {
            const uint64_t at = codec_load_pair(encoded, i, width).index - first;
            if (at < MARKED_ELEMENTS && !mark(marks, at)) {
                return true;
            }
        }
    }
    return false;
}

/* Checks the bytes of a peer, and counts the pairs. */
static trib_status check_pairs(const trib_codec *codec, const trib_codec_params *params, trib_dtype dtype,
                               const unsigned char *encoded, uint32_t encoded_size, uint32_t count, uint32_t *pairs_out,
                               trib_error *error)
{
    const size_t width = width_of(dtype, count);
    const uint32_t pairs = (uint32_t)(encoded_size / (2 * width));
    if (pairs == 0 || encoded_size % (2 * width) != 0 || pairs > kept_at_most(params, dtype, count)) {
        return trib_codec_refuse(codec, "a length that is not that of its pairs", error);
    }
    for (uint32_t i = 0; i < pairs; i++) {
        if (codec_load_pair(encoded, i, width).index >= count) {
            return trib_codec_refuse(codec, "an index beyond its elements", error);
        }
    }
    if (codec == &trib_codec_topk && has_duplicates(encoded, pairs, width, count)) {
        return trib_codec_refuse(codec, "an index twice", error);
    }
    *pairs_out = pairs;
    return TRIB_OK;
}

static trib_status decode_sparse(const trib_codec *codec, const trib_codec_params *params, trib_dtype dtype,
                                 const unsigned char *encoded, uint32_t encoded_size, void *destination, uint32_t count,
                                 trib_error *error)
{
    const size_t width = width_of(dtype, count), element = trib_dtype_size(dtype);
    uint32_t pairs = 0;
    const trib_status status = check_pairs(codec, params, dtype, encoded, encoded_size, count, &pairs, error);
    if (status != TRIB_OK) {
        return status;
    }
    memset(destination, 0, count * element);
    for (uint32_t i = 0; i < pairs; i++) {
        const codec_pair one = codec_load_pair(encoded, i, width);
        memcpy((unsigned char *)destination + one.index * element, &one.bits, element);
    }
    return TRIB_OK;
}

static trib_status decode_topk(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                               uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    return decode_sparse(&trib_codec_topk, params, dtype, encoded, encoded_size, destination, count, error);
}

static trib_status decode_randomk(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                  uint32_t encoded_size, void *destination, uint32_t count, trib_error *error)
{
    return decode_sparse(&trib_codec_randomk, params, dtype, encoded, encoded_size, destination, count, error);
}

static trib_status inspect_topk(const trib_codec_params *params, trib_dtype dtype, const unsigned char *encoded,
                                uint32_t encoded_size, uint32_t count, trib_error *error)
{
    uint32_t pairs = 0;
    return check_pairs(&trib_codec_topk, params, dtype, encoded, encoded_size, count, &pairs, error);
}

const trib_codec trib_codec_topk = {.name = "topk",
                                    .id = TRIB_CODEC_TOPK,
                                    .check = check_topk,
                                    .bound = bound_sparse,
                                    .encode = encode_topk,
                                    .decode = decode_topk,
                                    .inspect = inspect_topk};

const trib_codec trib_codec_randomk = {.name = "randomk",
                                       .id = TRIB_CODEC_RANDOMK,
                                       .check = check_randomk,
                                       .bound = bound_sparse,
                                       .encode = encode_randomk,
                                       .decode = decode_randomk,
                                       .state_bytes = sizeof(codec_xorshift)};
