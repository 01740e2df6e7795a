/* rank_bits.h - sets of workers: a bit for each rank, the lowest rank in the lowest bit of the first byte. */
#ifndef TRIB_ENGINE_RANK_BITS_H
#define TRIB_ENGINE_RANK_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/limits.h"

#define TRIB_RANK_BITS_BYTES ((TRIB_CONTRIBUTORS_MAX + 7) / 8)
#define TRIB_RANK_BITS_TEXT_SIZE 112 /* of a text that trib_rank_bits_describe writes */

static inline uint32_t trib_rank_bits_bytes(uint32_t workers)
{
    return (workers + 7) / 8;
}

static inline bool trib_rank_bits_has(const unsigned char *bits, uint32_t rank)
{
    return (bits[rank / 8] >> rank % 8 & 1) != 0;
}

static inline void trib_rank_bits_put(unsigned char *bits, uint32_t rank, bool is_in)
{
    const unsigned char bit = (unsigned char)(1u << rank % 8);
    bits[rank / 8] = (unsigned char)(is_in ? bits[rank / 8] | bit : bits[rank / 8] & ~bit);
}

uint32_t trib_rank_bits_count(const unsigned char *bits, uint32_t workers);
/* Writes the ranks but `except` as text, such as "rank 4" or "ranks 4, 6 to 9". Where there is no room for all, the
 * text ends with "and more". */
void trib_rank_bits_describe(const unsigned char *bits, uint32_t workers, uint32_t except,
                             char text[TRIB_RANK_BITS_TEXT_SIZE]);

#endif
