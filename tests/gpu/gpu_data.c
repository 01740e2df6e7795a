/* gpu_data.c - the oracle of the GPU tests: small whole numbers, exact in every type, and their expected results. */
#include <math.h>
#include <stdbool.h>
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

/* Returns the combination of the ranks' values before rounding; *size is the sum of their magnitudes. */
static double combined(trib_dtype dtype, trib_reduce reduce, uint64_t i, unsigned seed, int ranks, double *size)
{
    double result = data_value(dtype, i, seed, 0);
    *size = fabs(result);
    for (int r = 1; r < ranks; r++) {
        const double value = data_value(dtype, i, seed, r);
        *size += fabs(value);
        if (reduce == TRIB_MIN) {
            result = value < result ? value : result;
        } else if (reduce == TRIB_MAX) {
            result = value > result ? value : result;
        } else {
            result += value;
        }
    }
    return reduce == TRIB_AVG ? result / ranks : result;
}

/* NCCL's average on one machine multiplies each value by a rounded 1 / ranks and then sums. Returns the largest
 * error of that, as a part of the sum of all magnitudes; 0 if 1 / ranks is exact. */
static double nccl_average_error(trib_dtype dtype, int ranks)
{
    static const int fraction_bits[TRIB_DTYPE_COUNT] = {
        [TRIB_FLOAT32] = 24, [TRIB_FLOAT64] = 53, [TRIB_FLOAT16] = 11, [TRIB_BFLOAT16] = 8};
    const bool exact = (ranks & (ranks - 1)) == 0;
    return exact
               ? 0
               : ldexp((ranks + 2.0) / ranks, -fraction_bits[dtype]); /* 1 / ranks, the products, ranks - 1 additions */
}

int64_t data_check(trib_dtype dtype, trib_reduce reduce, const void *buffer, uint64_t count, unsigned seed, int ranks,
                   bool alone)
{
    const size_t bytes = trib_dtype_size(dtype);
    const double error = alone && reduce == TRIB_AVG ? nccl_average_error(dtype, ranks) : 0;
    for (uint64_t i = 0; i < count; i++) {
        double size = 0;
        const double result = combined(dtype, reduce, i, seed, ranks, &size);
        uint64_t wanted = 0;
        values_store(dtype, &wanted, 0, values_round(dtype, result));
        const unsigned char *at = (const unsigned char *)buffer + i * bytes;
        /* A sum that is zero may have either sign. */
        const bool exact = memcmp(&wanted, at, bytes) == 0 || (result == 0 && (at[bytes - 1] & 0x7f) == 0);
        if (!exact && (error == 0 || !(fabs(values_load(dtype, buffer, i) - result) <= error * size))) {
            return (int64_t)i;
        }
    }
    return -1;
}
