/* gpu_data.c - the oracle of the GPU tests: small whole numbers, exact in every type, and what must come of them. */
#include <string.h>

#include "tests/gpu/gpu_worker.h"
#include "tests/support/values.h"

int data_value(trib_dtype dtype, uint64_t i, unsigned seed, int rank_index)
{
    const uint32_t mixed = (uint32_t)i * 2654435761u ^ seed * 40503u ^ (uint32_t)rank_index * 69621u;
    const int value = (int)((mixed >> 7) % 11u);
    return dtype == TRIB_UINT8 ? value : value - 5;
}

void data_fill(trib_dtype dtype, void *buffer, uint64_t count, unsigned seed, int rank_index)
{
    for (uint64_t i = 0; i < count; i++) {
        values_store(dtype, buffer, i, data_value(dtype, i, seed, rank_index));
    }
}

int64_t data_check(trib_dtype dtype, trib_reduce reduce, const void *buffer, uint64_t count, unsigned seed, int ranks)
{
    const size_t size = trib_dtype_size(dtype);
    for (uint64_t i = 0; i < count; i++) {
        double result = data_value(dtype, i, seed, 0);
        for (int r = 1; r < ranks; r++) {
            const double value = data_value(dtype, i, seed, r);
            if (reduce == TRIB_MIN) {
                result = value < result ? value : result;
            } else if (reduce == TRIB_MAX) {
                result = value > result ? value : result;
            } else {
                result += value;
            }
        }
        uint64_t wanted = 0;
        values_store(dtype, &wanted, 0, reduce == TRIB_AVG ? result / ranks : result);
        const unsigned char *at = (const unsigned char *)buffer + i * size;
        /* A sum of nothing but negative and positive numbers may be either zero. */
        if (memcmp(&wanted, at, size) != 0 && !(result == 0 && (at[size - 1] & 0x7f) == 0)) {
            return (int64_t)i;
        }
    }
    return -1;
}
