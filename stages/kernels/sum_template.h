/*
 * sum_template.h - the loops over chunks and the dispatch among them, written once for every implementation.
 *
 * sum_scalar.c, sum_avx2.c and sum_avx512.c include this file at their end. Before that they define `sum_vec`, the
 * constant SUM_VECTOR_BYTES (0: sum_vec holds one element), and the primitives below, all SUM_INLINE. The loops take
 * primitives as arguments. Everything is inlined, so each call becomes a loop without calls. Elements that do not
 * fill a vector go through the same primitives in a small buffer.
 *
 *   load_8/16/32/64, store_...    elements of 8, 16, 32, 64 bits, unchanged
 *   widen_f16/bf16/e4m3/e5m2      loads to float32;  widen_i8/u8/i16/u16: to int32;  widen_i32/u32: to int64
 *   narrow_f16/bf16/float8        stores from float32;  narrow_i8/i16: from int32;  narrow_i32: from int64
 *   add_ and mul_ 8/16/32/64/f32/f64, min_ and max_ of all other types but bool, and_bits, or_bits, xor_bits
 *   extreme_8/16                  min_ or max_ of floats of 8 and 16 bits (sum_small_floats.h)
 *   div_f32, div_f64, div_i32, div_i64, div_u64
 */
#ifndef TRIB_STAGES_SUM_TEMPLATE_H
#define TRIB_STAGES_SUM_TEMPLATE_H

#include "stages/kernels/sum_small_floats.h"

typedef sum_vec (*sum_load)(const unsigned char *at);
typedef void (*sum_store)(unsigned char *at, sum_vec value);
typedef sum_vec (*sum_zip)(sum_vec left, sum_vec right);
typedef sum_vec (*sum_map)(sum_vec value, const sum_divisor *by);

typedef struct sum_operands {
    unsigned char *dst;
    const unsigned char *left;
    const unsigned char *right;
    trib_form left_form;
    trib_form right_form;
    size_t count;
} sum_operands;

/* Iterations are independent: a destination is exactly an operand, or disjoint from it. */
#if defined(__clang__)
#define SUM_TURNS_ARE_INDEPENDENT _Pragma("GCC unroll 4")
#else
#define SUM_TURNS_ARE_INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 4")
#endif

#define SUM_TAIL_BYTES 64
_Static_assert(SUM_VECTOR_BYTES <= SUM_TAIL_BYTES, "a vector fits into the buffer for the tail");
_Static_assert((SUM_VECTOR_BYTES & (SUM_VECTOR_BYTES - 1)) == 0, "lanes of any size fill a vector");

SUM_INLINE size_t lanes_of(size_t acc_size)
{
    return SUM_VECTOR_BYTES == 0 ? 1 : SUM_VECTOR_BYTES / acc_size;
}

/* ---- Combining --------------------------------------------------------------------------------------------------- */

/* The sizes are bytes per element in memory. An accumulator's element fills its lane. */
SUM_INLINE void zip_loop(const sum_operands *operands, sum_load load_left, size_t left_size, sum_load load_right,
                         size_t right_size, sum_store store, size_t acc_size, sum_zip zip)
{
    unsigned char *dst = operands->dst;
    const unsigned char *left = operands->left;
    const unsigned char *right = operands->right;
    const size_t lanes = lanes_of(acc_size);
    const size_t vectors = operands->count / lanes;
    const size_t tail = operands->count % lanes;

    SUM_TURNS_ARE_INDEPENDENT
    for (size_t i = 0; i < vectors; i++) {
        store(dst + i * lanes * acc_size,
              zip(load_left(left + i * lanes * left_size), load_right(right + i * lanes * right_size)));
    }
    if (tail > 0) {
        unsigned char left_tail[SUM_TAIL_BYTES] = {0};
        unsigned char right_tail[SUM_TAIL_BYTES] = {0};
        unsigned char dst_tail[SUM_TAIL_BYTES];
        memcpy(left_tail, left + vectors * lanes * left_size, tail * left_size);
        memcpy(right_tail, right + vectors * lanes * right_size, tail * right_size);
        store(dst_tail, zip(load_left(left_tail), load_right(right_tail)));
        memcpy(dst + vectors * lanes * acc_size, dst_tail, tail * acc_size);
    }
}

/* Both operands have the same form. */
SUM_INLINE void zip_same(const sum_operands *operands, sum_load load, sum_store store, size_t size, sum_zip zip)
{
    zip_loop(operands, load, size, load, size, store, size, zip);
}

/* Operands in wire form are widened as they are loaded. */
SUM_INLINE void zip_wide(const sum_operands *operands, sum_load widen, size_t wire_size, sum_load load, sum_store store,
                         size_t acc_size, sum_zip zip)
{
    const bool left_wide = operands->left_form == TRIB_FORM_WIRE;
    const bool right_wide = operands->right_form == TRIB_FORM_WIRE;
    if (left_wide && right_wide) {
        zip_loop(operands, widen, wire_size, widen, wire_size, store, acc_size, zip);
    } else if (left_wide) {
        zip_loop(operands, widen, wire_size, load, acc_size, store, acc_size, zip);
    } else if (right_wide) {
        zip_loop(operands, load, acc_size, widen, wire_size, store, acc_size, zip);
    } else {
        zip_loop(operands, load, acc_size, load, acc_size, store, acc_size, zip);
    }
}

/* MIN and MAX have no wider accumulator type. */
SUM_INLINE void zip_extreme(const sum_operands *operands, trib_reduce reduce, sum_load load, sum_store store,
                            size_t size, sum_zip min, sum_zip max)
{
    if (reduce == TRIB_MIN) {
        zip_same(operands, load, store, size, min);
    } else {
        zip_same(operands, load, store, size, max);
    }
}

static void combine_add(trib_dtype dtype, const sum_operands *operands)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        zip_same(operands, load_32, store_32, 4, add_f32);
        break;
    case TRIB_FLOAT64:
        zip_same(operands, load_64, store_64, 8, add_f64);
        break;
    case TRIB_FLOAT16:
        zip_wide(operands, widen_f16, 2, load_32, store_32, 4, add_f32);
        break;
    case TRIB_BFLOAT16:
        zip_wide(operands, widen_bf16, 2, load_32, store_32, 4, add_f32);
        break;
    case TRIB_FLOAT8_E4M3:
        zip_wide(operands, widen_e4m3, 1, load_32, store_32, 4, add_f32);
        break;
    case TRIB_FLOAT8_E5M2:
        zip_wide(operands, widen_e5m2, 1, load_32, store_32, 4, add_f32);
        break;
    case TRIB_INT8:
    case TRIB_UINT8:
        zip_same(operands, load_8, store_8, 1, add_8);
        break;
    case TRIB_INT16:
    case TRIB_UINT16:
        zip_same(operands, load_16, store_16, 2, add_16);
        break;
    case TRIB_INT32:
    case TRIB_UINT32:
        zip_same(operands, load_32, store_32, 4, add_32);
        break;
    case TRIB_INT64:
    case TRIB_UINT64:
        zip_same(operands, load_64, store_64, 8, add_64);
        break;
    default:
        trib_unreachable();
    }
}

static void combine_product(trib_dtype dtype, const sum_operands *operands)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        zip_same(operands, load_32, store_32, 4, mul_f32);
        break;
    case TRIB_FLOAT64:
        zip_same(operands, load_64, store_64, 8, mul_f64);
        break;
    case TRIB_FLOAT16:
        zip_wide(operands, widen_f16, 2, load_32, store_32, 4, mul_f32);
        break;
    case TRIB_BFLOAT16:
        zip_wide(operands, widen_bf16, 2, load_32, store_32, 4, mul_f32);
        break;
    case TRIB_FLOAT8_E4M3:
        zip_wide(operands, widen_e4m3, 1, load_32, store_32, 4, mul_f32);
        break;
    case TRIB_FLOAT8_E5M2:
        zip_wide(operands, widen_e5m2, 1, load_32, store_32, 4, mul_f32);
        break;
    case TRIB_INT8:
    case TRIB_UINT8:
        zip_same(operands, load_8, store_8, 1, mul_8);
        break;
    case TRIB_INT16:
    case TRIB_UINT16:
        zip_same(operands, load_16, store_16, 2, mul_16);
        break;
    case TRIB_INT32:
    case TRIB_UINT32:
        zip_same(operands, load_32, store_32, 4, mul_32);
        break;
    case TRIB_INT64:
    case TRIB_UINT64:
        zip_same(operands, load_64, store_64, 8, mul_64);
        break;
    default:
        trib_unreachable();
    }
}

/* Bits have no size: the elements are taken as bytes. */
static void combine_bits(trib_dtype dtype, trib_reduce reduce, const sum_operands *operands)
{
    sum_operands bytes = *operands;
    bytes.count *= trib_dtype_size(dtype);
    if (reduce == TRIB_BIT_AND) {
        zip_same(&bytes, load_8, store_8, 1, and_bits);
    } else if (reduce == TRIB_BIT_OR) {
        zip_same(&bytes, load_8, store_8, 1, or_bits);
    } else {
        trib_assert(reduce == TRIB_BIT_XOR);
        zip_same(&bytes, load_8, store_8, 1, xor_bits);
    }
}

/* The bits of a bool, 0 or 1, give what the reduction of truth values gives. */
static trib_reduce reduce_of_bools(trib_reduce reduce)
{
    static const trib_reduce as[TRIB_REDUCE_COUNT] = {
        [TRIB_SUM] = TRIB_BIT_OR,      [TRIB_MIN] = TRIB_BIT_AND,     [TRIB_MAX] = TRIB_BIT_OR,
        [TRIB_PRODUCT] = TRIB_BIT_AND, [TRIB_BIT_AND] = TRIB_BIT_AND, [TRIB_BIT_OR] = TRIB_BIT_OR,
        [TRIB_BIT_XOR] = TRIB_BIT_XOR,
    };
    return as[reduce];
}

/* AVG adds as SUM does, but accumulates small integers in a wider type. */
static void combine_average(trib_dtype dtype, const sum_operands *operands)
{
    switch (dtype) {
    case TRIB_INT8:
        zip_wide(operands, widen_i8, 1, load_32, store_32, 4, add_32);
        break;
    case TRIB_UINT8:
        zip_wide(operands, widen_u8, 1, load_32, store_32, 4, add_32);
        break;
    case TRIB_INT16:
        zip_wide(operands, widen_i16, 2, load_32, store_32, 4, add_32);
        break;
    case TRIB_UINT16:
        zip_wide(operands, widen_u16, 2, load_32, store_32, 4, add_32);
        break;
    case TRIB_INT32:
        zip_wide(operands, widen_i32, 4, load_64, store_64, 8, add_64);
        break;
    case TRIB_UINT32:
        zip_wide(operands, widen_u32, 4, load_64, store_64, 8, add_64);
        break;
    default:
        combine_add(dtype, operands);
        break;
    }
}

static void combine_extreme(trib_dtype dtype, trib_reduce reduce, const sum_operands *operands)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        zip_extreme(operands, reduce, load_32, store_32, 4, min_f32, max_f32);
        break;
    case TRIB_FLOAT64:
        zip_extreme(operands, reduce, load_64, store_64, 8, min_f64, max_f64);
        break;
    case TRIB_FLOAT16:
        zip_extreme(operands, reduce, load_16, store_16, 2, min_f16, max_f16);
        break;
    case TRIB_BFLOAT16:
        zip_extreme(operands, reduce, load_16, store_16, 2, min_bf16, max_bf16);
        break;
    case TRIB_INT8:
        zip_extreme(operands, reduce, load_8, store_8, 1, min_i8, max_i8);
        break;
    case TRIB_UINT8:
        zip_extreme(operands, reduce, load_8, store_8, 1, min_u8, max_u8);
        break;
    case TRIB_INT16:
        zip_extreme(operands, reduce, load_16, store_16, 2, min_i16, max_i16);
        break;
    case TRIB_UINT16:
        zip_extreme(operands, reduce, load_16, store_16, 2, min_u16, max_u16);
        break;
    case TRIB_INT32:
        zip_extreme(operands, reduce, load_32, store_32, 4, min_i32, max_i32);
        break;
    case TRIB_UINT32:
        zip_extreme(operands, reduce, load_32, store_32, 4, min_u32, max_u32);
        break;
    case TRIB_INT64:
        zip_extreme(operands, reduce, load_64, store_64, 8, min_i64, max_i64);
        break;
    case TRIB_UINT64:
        zip_extreme(operands, reduce, load_64, store_64, 8, min_u64, max_u64);
        break;
    case TRIB_FLOAT8_E4M3:
        zip_extreme(operands, reduce, load_8, store_8, 1, min_e4m3, max_e4m3);
        break;
    case TRIB_FLOAT8_E5M2:
        zip_extreme(operands, reduce, load_8, store_8, 1, min_e5m2, max_e5m2);
        break;
    default:
        trib_unreachable();
    }
}

static void combine(trib_dtype dtype, trib_reduce reduce, void *dst_acc, const void *left, trib_form left_form,
                    const void *right, trib_form right_form, size_t count)
{
    const sum_operands operands = {dst_acc, left, right, left_form, right_form, count};
    const trib_reduce as = dtype == TRIB_BOOL ? reduce_of_bools(reduce) : reduce;
    switch (as) {
    case TRIB_SUM:
        combine_add(dtype, &operands);
        break;
    case TRIB_AVG:
        combine_average(dtype, &operands);
        break;
    case TRIB_MIN:
    case TRIB_MAX:
        combine_extreme(dtype, as, &operands);
        break;
    case TRIB_PRODUCT:
        combine_product(dtype, &operands);
        break;
    default:
        combine_bits(dtype, as, &operands);
        break;
    }
}

/* ---- Finishing --------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec keep(sum_vec value, const sum_divisor *by)
{
    (void)by;
    return value;
}

/*
 * `lanes` is the number of elements in a vector during the computation. An in-place run goes upwards and its results
 * are not wider than accumulators, so it never overwrites sources not yet loaded.
 */
SUM_INLINE void map_loop(const sum_operands *operands, sum_load load, size_t src_size, sum_map map, sum_store store,
                         size_t dst_size, size_t lanes, const sum_divisor *by)
{
    unsigned char *dst = operands->dst;
    const unsigned char *src = operands->left;
    const sum_divisor divisor = *by; /* a local copy, which the stores cannot alias, stays in registers */
    const size_t vectors = operands->count / lanes;
    const size_t tail = operands->count % lanes;

#pragma GCC unroll 2
    for (size_t i = 0; i < vectors; i++) {
        store(dst + i * lanes * dst_size, map(load(src + i * lanes * src_size), &divisor));
    }
    if (tail > 0) {
        unsigned char src_tail[SUM_TAIL_BYTES] = {0};
        unsigned char dst_tail[SUM_TAIL_BYTES];
        memcpy(src_tail, src + vectors * lanes * src_size, tail * src_size);
        store(dst_tail, map(load(src_tail), &divisor));
        memcpy(dst + vectors * lanes * dst_size, dst_tail, tail * dst_size);
    }
}

/* Divides and narrows operands in either form. */
SUM_INLINE void map_narrow(const sum_operands *operands, sum_load widen, size_t wire_size, sum_load load,
                           size_t acc_size, sum_map map, sum_store narrow, const sum_divisor *by)
{
    const size_t lanes = lanes_of(acc_size);
    if (operands->left_form == TRIB_FORM_WIRE) {
        map_loop(operands, widen, wire_size, map, narrow, wire_size, lanes, by);
    } else {
        map_loop(operands, load, acc_size, map, narrow, wire_size, lanes, by);
    }
}

static void finish_average(trib_dtype dtype, const sum_operands *operands, const sum_divisor *by)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        map_loop(operands, load_32, 4, div_f32, store_32, 4, lanes_of(4), by);
        break;
    case TRIB_FLOAT64:
        map_loop(operands, load_64, 8, div_f64, store_64, 8, lanes_of(8), by);
        break;
    case TRIB_FLOAT16:
        map_narrow(operands, widen_f16, 2, load_32, 4, div_f32, narrow_f16, by);
        break;
    case TRIB_BFLOAT16:
        map_narrow(operands, widen_bf16, 2, load_32, 4, div_f32, narrow_bf16, by);
        break;
    case TRIB_INT8:
        map_narrow(operands, widen_i8, 1, load_32, 4, div_i32, narrow_i8, by);
        break;
    case TRIB_UINT8:
        map_narrow(operands, widen_u8, 1, load_32, 4, div_i32, narrow_i8, by);
        break;
    case TRIB_INT16:
        map_narrow(operands, widen_i16, 2, load_32, 4, div_i32, narrow_i16, by);
        break;
    case TRIB_UINT16:
        map_narrow(operands, widen_u16, 2, load_32, 4, div_i32, narrow_i16, by);
        break;
    case TRIB_INT32:
        map_narrow(operands, widen_i32, 4, load_64, 8, div_i64, narrow_i32, by);
        break;
    case TRIB_UINT32:
        map_narrow(operands, widen_u32, 4, load_64, 8, div_i64, narrow_i32, by);
        break;
    case TRIB_INT64:
        map_loop(operands, load_64, 8, div_i64, store_64, 8, lanes_of(8), by);
        break;
    case TRIB_UINT64:
        map_loop(operands, load_64, 8, div_u64, store_64, 8, lanes_of(8), by);
        break;
    case TRIB_FLOAT8_E4M3:
        map_narrow(operands, widen_e4m3, 1, load_32, 4, div_f32, narrow_e4m3, by);
        break;
    case TRIB_FLOAT8_E5M2:
        map_narrow(operands, widen_e5m2, 1, load_32, 4, div_f32, narrow_e5m2, by);
        break;
    default:
        trib_unreachable();
    }
}

/* Rounds float32 accumulators to the type. */
static void finish_rounding(trib_dtype dtype, const sum_operands *operands, const sum_divisor *by)
{
    switch (dtype) {
    case TRIB_FLOAT16:
        map_loop(operands, load_32, 4, keep, narrow_f16, 2, lanes_of(4), by);
        break;
    case TRIB_BFLOAT16:
        map_loop(operands, load_32, 4, keep, narrow_bf16, 2, lanes_of(4), by);
        break;
    case TRIB_FLOAT8_E4M3:
        map_loop(operands, load_32, 4, keep, narrow_e4m3, 1, lanes_of(4), by);
        break;
    case TRIB_FLOAT8_E5M2:
        map_loop(operands, load_32, 4, keep, narrow_e5m2, 1, lanes_of(4), by);
        break;
    default:
        trib_unreachable();
    }
}

static void finish(trib_dtype dtype, trib_reduce reduce, void *dst_wire, const void *src, trib_form src_form,
                   size_t count, uint32_t contributors)
{
    const sum_operands operands = {dst_wire, src, NULL, src_form, src_form, count};
    const bool is_wire = src_form == TRIB_FORM_WIRE || trib_acc_is_wire(dtype, reduce);
    const sum_divisor by = sum_divisor_of(contributors);

    if (is_wire && (reduce != TRIB_AVG || contributors == 1)) {
        if (dst_wire != src) {
            memcpy(dst_wire, src, count * trib_dtype_size(dtype));
        }
    } else if (reduce == TRIB_AVG) {
        finish_average(dtype, &operands, &by);
    } else {
        finish_rounding(dtype, &operands, &by);
    }
}

#endif
