/*
 * bench_ops.c - see bench_ops.h.
 *
 * Elements are whole numbers below 3, so that sums over up to 64 workers are exact in every type.
 */
#include "tools/cli/bench_ops.h"

#include <string.h>

const bench_op bench_ops[] = {
    {"push_pull", TRIB_WHOLE, true, trib_push_pull},     {"all_reduce", TRIB_WHOLE, true, trib_all_reduce},
    {"broadcast", TRIB_WHOLE, false, trib_broadcast},    {"reduce", TRIB_WHOLE, true, trib_reduce_to},
    {"all_gather", TRIB_SLICES, false, trib_all_gather}, {"reduce_scatter", TRIB_SLICES, true, trib_reduce_scatter},
    {"all_to_all", TRIB_PAIRS, false, trib_all_to_all},
};

const char *const bench_op_names[] = {"push_pull",  "all_reduce",     "broadcast",  "reduce",
                                      "all_gather", "reduce_scatter", "all_to_all", NULL};

uint64_t bench_count(const bench_op *op, uint64_t count, uint64_t workers)
{
    return op->layout == TRIB_WHOLE ? count : (count + workers - 1) / workers * workers;
}

/* ---- Elements ---- */

/* Returns the bits of a whole number below 2048 in a format with that exponent bias and `fraction` bits of fraction. */
static uint64_t float_bits(uint64_t number, unsigned bias, unsigned fraction)
{
    if (number == 0) {
        return 0;
    }
    const unsigned exponent = 63 - (unsigned)__builtin_clzll(number);
    const uint64_t rest = number - (UINT64_C(1) << exponent), field = (uint64_t)(exponent + bias) << fraction;
    if (exponent <= fraction) {
        return field | rest << (fraction - exponent);
    }
    const unsigned lost = exponent - fraction; /* bits that are rounded away, to even; a carry reaches the exponent */
    return field + ((rest + (UINT64_C(1) << (lost - 1)) - 1 + (rest >> lost & 1)) >> lost);
}

static uint64_t bits_of(trib_dtype dtype, uint64_t number)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        return float_bits(number, 127, 23);
    case TRIB_FLOAT64:
        return float_bits(number, 1023, 52);
    case TRIB_FLOAT16:
        return float_bits(number, 15, 10);
    case TRIB_BFLOAT16:
        return float_bits(number, 127, 7);
    case TRIB_FLOAT8_E4M3:
        return float_bits(number, 7, 3);
    case TRIB_FLOAT8_E5M2:
        return float_bits(number, 15, 2);
    case TRIB_BOOL:
        return number != 0;
    default:
        return number;
    }
}

/* Element i of that worker's contribution. */
static uint64_t value(uint64_t rank, uint64_t i)
{
    return (i + i / 1009 + rank) % 3;
}

static void store(const bench_case *what, unsigned char *data, uint64_t i, uint64_t number)
{
    const uint64_t bits = bits_of(what->dtype, number); /* the machine is little-endian */
    const size_t size = trib_dtype_size(what->dtype);
    memcpy(data + i * size, &bits, size);
}

static bool holds(const bench_case *what, const unsigned char *data, uint64_t i, uint64_t number)
{
    const uint64_t bits = bits_of(what->dtype, number);
    const size_t size = trib_dtype_size(what->dtype);
    return memcmp(data + i * size, &bits, size) == 0;
}

/* ---- Buffers ---- */

/* Input and output share memory: a slice lies at its place. Pairs cannot. */
void bench_set_buffers(const bench_case *what, trib_op_params *params)
{
    const size_t size = trib_dtype_size(what->dtype);
    unsigned char *slice = what->data + what->rank * what->slice * size;
    params->input = params->output = what->data;
    if (what->op->layout == TRIB_SLICES) {
        params->input = what->op->sums ? what->data : slice;
        params->output = what->op->sums ? slice : what->data;
    } else if (what->op->layout == TRIB_PAIRS) {
        params->output = what->other;
    }
    params->prescale = what->prescale;
    params->postscale = what->postscale;
    params->output_bytes = what->op->layout == TRIB_WHOLE ? 0 : what->count * size;
}

void bench_fill(const bench_case *what)
{
    const size_t size = trib_dtype_size(what->dtype);
    const bool gathers = what->op->layout == TRIB_SLICES && !what->op->sums;
    if (gathers) {
        memset(what->data, 0xff, what->count * size);
    }
    if (what->other != NULL) {
        memset(what->other, 0xff, what->count * size);
    }
    const uint64_t first = gathers ? what->rank * what->slice : 0, count = gathers ? what->slice : what->count;
    for (uint64_t i = 0; i < count; i++) {
        store(what, what->data, first + i, value(what->rank, i));
    }
}

static uint64_t sum_at(const bench_case *what, uint64_t i)
{
    uint64_t sum = 0;
    for (uint64_t rank = 0; rank < what->workers; rank++) {
        sum += value(rank, i);
    }
    return sum * (what->prescale > 0 ? what->prescale : 1) * (what->postscale > 0 ? what->postscale : 1);
}

static uint64_t expected(const bench_case *what, uint64_t i)
{
    const uint64_t giver = what->slice > 0 ? i / what->slice : 0, within = what->slice > 0 ? i % what->slice : 0;
    if (what->op->layout == TRIB_PAIRS) {
        return value(giver, what->rank * what->slice + within);
    }
    if (what->op->layout == TRIB_SLICES) {
        return what->op->sums ? sum_at(what, what->rank * what->slice + i) : value(giver, within);
    }
    return what->op->sums ? sum_at(what, i) : value(0, i);
}

uint64_t bench_count_wrong(const bench_case *what)
{
    const bool scatters = what->op->layout == TRIB_SLICES && what->op->sums;
    const bool to_one = what->op->run == trib_reduce_to && what->rank != 0;
    const uint64_t count = to_one ? 0 : scatters ? what->slice : what->count;
    trib_op_params params = {.input = NULL};
    bench_set_buffers(what, &params);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) {
        wrong += !holds(what, params.output, i, expected(what, i));
    }
    return wrong;
}

double bench_bus_factor(const bench_case *what)
{
    const double n = (double)what->workers;
    if (what->op->layout != TRIB_WHOLE) {
        return (n - 1) / n;
    }
    const bool to_all = what->op->sums && what->op->run != trib_reduce_to;
    return to_all ? 2 * (n - 1) / n : 1;
}
