/* rank_bits.c - see rank_bits.h. */
#include "engine/base/rank_bits.h"

#include <stdio.h>

#define RUN_TEXT_MAX 16 /* ", 4000 to 4095" */

uint32_t trib_rank_bits_count(const unsigned char *bits, uint32_t workers)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < workers; rank++) {
        count += trib_rank_bits_has(bits, rank);
    }
    return count;
}

void trib_rank_bits_describe(const unsigned char *bits, uint32_t workers, uint32_t except,
                             char text[TRIB_RANK_BITS_TEXT_SIZE])
{
    const size_t size = TRIB_RANK_BITS_TEXT_SIZE - sizeof " and more";
    uint32_t ranks = 0;
    size_t used = 0;
    char list[TRIB_RANK_BITS_TEXT_SIZE] = "";
    for (uint32_t rank = 0; rank < workers; rank++) {
        if (rank == except || !trib_rank_bits_has(bits, rank)) {
            continue;
        }
        if (used + sizeof "ranks" + RUN_TEXT_MAX >= size) {
            snprintf(list + used, sizeof list - used, " and more");
            break;
        }
        uint32_t last = rank;
        while (last + 1 < workers && last + 1 != except && trib_rank_bits_has(bits, last + 1)) {
            last++;
        }
        last = last == rank + 1 ? rank : last; /* two neighbours are listed as such */
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", used > 0 ? ", " : "", rank);
        if (last > rank) {
            used += (size_t)snprintf(list + used, sizeof list - used, " to %u", last);
        }
        ranks += last - rank + 1;
        rank = last;
    }
    snprintf(text, TRIB_RANK_BITS_TEXT_SIZE, "%s %.*s", ranks == 1 ? "rank" : "ranks",
             (int)(TRIB_RANK_BITS_TEXT_SIZE - sizeof "ranks "), list);
}
