/* torture_data.c - what workers contribute and the results they must get, computed without any of the engine's code. */
#include <math.h>
#include <string.h>

#include "tests/sim/torture.h"
#include "tests/support/values.h"

int torture_value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    uint32_t mixed = (tensor * 2654435761u) ^ (round * 40503u) ^ (rank * 69621u) ^ (i * 2246822519u);
    mixed ^= mixed >> 15;
    return (int)(mixed % 21u) - 10;
}

/* Contributions to unsigned types are not negative. If sums are rounded, contributions differ by orders of
 * magnitude. */
static double value_for(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i)
{
    const int value = torture_value(tensor, round, rank, i);
    if (what->inexact) {
        return values_round(what->dtype, value / (3.0 + rank * 1000.0));
    }
    switch (what->dtype) {
    case TRIB_BOOL:
        return value & 1;
    case TRIB_UINT8:
    case TRIB_UINT16:
    case TRIB_UINT32:
    case TRIB_UINT64:
        return value + 10;
    case TRIB_FLOAT8_E4M3: /* GPUs of a machine round their sum, which has to be exact */
    case TRIB_FLOAT8_E5M2:
        return value % 2;
    default:
        return value;
    }
}

void torture_fill(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, uint32_t count,
                  void *buffer)
{
    for (uint32_t i = 0; i < count; i++) {
        values_store(what->dtype, buffer, i, value_for(what, tensor, round, rank, i));
    }
}

/* The sum over `width` ranks starting at `first`; width is a power of two. Both halves are summed, and their sum is
 * rounded. */
static double tree_sum(const double *values, uint32_t first, uint32_t width, uint32_t workers, bool single)
{
    double sum = values[first];
    for (uint32_t level = 1; level < width; level *= 2) {
        if (first + level < workers) {
            const double right = tree_sum(values, first + level, level, workers, single);
            sum = single ? (double)((float)sum + (float)right) : sum + right;
        }
    }
    return sum;
}

static double average(const torture_tensor *what, double sum, uint32_t workers)
{
    switch (what->dtype) {
    case TRIB_FLOAT32:
    case TRIB_FLOAT16:
    case TRIB_BFLOAT16:
    case TRIB_FLOAT8_E4M3:
    case TRIB_FLOAT8_E5M2:
        return (double)((float)sum / (float)workers);
    case TRIB_FLOAT64:
        return sum / workers;
    default:
        return workers > 0 ? (double)((int)sum / (int)workers) : 0;
    }
}

/* Products and bits of integers, and all reductions of bools. No product of small numbers is too large here. */
static double of_integers(trib_reduce reduce, const double *values, uint32_t workers)
{
    int64_t all = (int64_t)values[0];
    for (uint32_t k = 1; k < workers; k++) {
        const int64_t one = (int64_t)values[k];
        all = reduce == TRIB_PRODUCT || reduce == TRIB_MIN ? all * one
              : reduce == TRIB_BIT_AND                     ? all & one
              : reduce == TRIB_BIT_XOR                     ? all ^ one
                                                           : all | one;
    }
    return (double)all;
}

/* The contribution of a worker that has joined: what changes no result. */
static double neutral(const torture_tensor *what)
{
    const bool is_bool = what->dtype == TRIB_BOOL;
    switch (what->reduce) {
    case TRIB_PRODUCT:
        return 1;
    case TRIB_MIN:
        return is_bool ? 1 : INFINITY;
    case TRIB_MAX:
        return is_bool ? 0 : -INFINITY;
    case TRIB_BIT_AND:
        return is_bool ? 1 : -1;
    default:
        return -0.0;
    }
}

/* Integers are truncated before the sum and after it. A sum of floats is multiplied once, in double precision, as
 * more bits would round float64 twice. A quotient has more bits. */
static double scaled(const torture_tensor *what, const double *values, uint32_t workers)
{
    const double before = what->prescale == 0 ? 1 : what->prescale, after = what->postscale == 0 ? 1 : what->postscale;
    const long double divisor = what->reduce == TRIB_AVG ? workers : 1;
    if (trib_dtype_is_float(what->dtype)) {
        const double sum = (double)tree_sum(values, 0, 8, workers, what->dtype != TRIB_FLOAT64);
        return divisor == 1 ? sum * (before * after) : (double)(sum * (long double)(before * after) / divisor);
    }
    long double sum = 0;
    for (uint32_t k = 0; k < workers; k++) {
        sum += trunc(values[k] * before);
    }
    return trunc((double)(sum * after / divisor));
}

/* The reduction of element i over all that share the tensor. */
static double reduced(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t all, uint32_t i)
{
    const uint32_t workers = torture_members(what, all);
    double values[TORTURE_WORKERS_MAX] = {0}, least = 0, most = 0;
    for (uint32_t k = 0; k < workers; k++) {
        const uint32_t rank = torture_rank_at(what, all, k);
        const bool is_absent = (what->absent >> rank & 1) != 0;
        values[k] = is_absent ? neutral(what) : value_for(what, tensor, round, rank, i);
        least = k == 0 || values[k] < least ? values[k] : least;
        most = k == 0 || values[k] > most ? values[k] : most;
    }
    if (what->dtype == TRIB_BOOL || what->reduce >= TRIB_PRODUCT) {
        return of_integers(what->reduce, values, workers);
    }
    if (what->prescale != 0 || what->postscale != 0) {
        return scaled(what, values, workers);
    }
    switch (what->reduce) {
    case TRIB_MIN:
        return least;
    case TRIB_MAX:
        return most;
    case TRIB_AVG:
        return average(what, tree_sum(values, 0, 8, workers, false), workers);
    default: /* halves are added as floats, and rounded once */
        return tree_sum(values, 0, 8, workers, what->dtype != TRIB_FLOAT64);
    }
}

/* Element i of what the worker gets when others give, and nothing is added. */
static double given(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers, uint32_t rank,
                    uint32_t i)
{
    const uint32_t place = torture_place_of(what, workers, rank);
    for (uint32_t giver = 0;; giver++) {
        const uint32_t length = torture_slice(what, giver, what->exchange == TORTURE_PAIRS ? place : 0);
        if (i >= length) {
            i -= length;
            continue;
        }
        for (uint32_t k = 0; k < place && what->exchange == TORTURE_PAIRS; k++) {
            i += torture_slice(what, giver, k);
        }
        return value_for(what, tensor, round, torture_rank_at(what, workers, giver), i);
    }
}

static double expected(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers, uint32_t rank,
                       uint32_t i)
{
    switch (what->exchange) {
    case TORTURE_GATHER:
    case TORTURE_PAIRS:
        return given(what, tensor, round, workers, rank, i);
    case TORTURE_SCATTER:
        return reduced(what, tensor, round, workers, torture_before(what, workers, rank) + i);
    case TORTURE_WHOLE:
        if (what->root >= 0) {
            return value_for(what, tensor, round, torture_rank_at(what, workers, (uint32_t)what->root), i);
        }
        return reduced(what, tensor, round, workers, i);
    default:
        return reduced(what, tensor, round, workers, i);
    }
}

uint32_t torture_check(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers, uint32_t rank,
                       const void *buffer)
{
    const size_t size = trib_dtype_size(what->dtype);
    const uint32_t count = torture_taken(what, workers, rank);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t wanted = 0;
        values_store(what->dtype, &wanted, 0,
                     values_round(what->dtype, expected(what, tensor, round, workers, rank, i)));
        if (memcmp(&wanted, (const unsigned char *)buffer + i * size, size) != 0) {
            return i;
        }
    }
    return UINT32_MAX;
}
