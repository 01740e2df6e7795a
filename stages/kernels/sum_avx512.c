/*
 * sum_avx512.c - the kernels in vectors of 64 bytes, for x86-64 processors with AVX-512 F, BW, DQ and VL.
 *
 * This file is compiled with flags for those extensions. No code here may run, or be linked from elsewhere, before
 * stages/kernels/kernels.c has checked the processor. Each primitive computes, lane by lane, the same as in
 * sum_scalar.c.
 */
#include "stages/kernels/sum_common.h"

#if defined(__x86_64__)

#include <immintrin.h>

typedef __m512i sum_vec;

#define SUM_VECTOR_BYTES 64

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec load_64(const unsigned char *at)
{
    return _mm512_loadu_si512(at);
}

SUM_INLINE void store_64(unsigned char *at, sum_vec value)
{
    _mm512_storeu_si512(at, value);
}

/* Elements have the same layout in a vector as in memory, whatever their size. */
#define load_8 load_64
#define load_16 load_64
#define load_32 load_64
#define store_8 store_64
#define store_16 store_64
#define store_32 store_64

SUM_INLINE __m256i load_half(const unsigned char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

SUM_INLINE void store_half(unsigned char *at, __m256i value)
{
    _mm256_storeu_si256((__m256i *)(void *)at, value);
}

SUM_INLINE __m128i load_quarter(const unsigned char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* ---- NaN --------------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec canonical_f32(__m512 value)
{
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(_mm512_castps_si512(value), is_nan, _mm512_set1_epi32((int)SUM_F32_NAN));
}

SUM_INLINE sum_vec canonical_f64(__m512d value)
{
    const __mmask8 is_nan = _mm512_cmp_pd_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi64(_mm512_castpd_si512(value), is_nan, _mm512_set1_epi64((long long)SUM_F64_NAN));
}

/* ---- Widening and narrowing -------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec widen_f16(const unsigned char *at)
{
    return _mm512_castps_si512(_mm512_cvtph_ps(load_half(at)));
}

SUM_INLINE void narrow_f16(unsigned char *at, sum_vec value)
{
    const __m512 canonical = _mm512_castsi512_ps(canonical_f32(_mm512_castsi512_ps(value)));
    store_half(at, _mm512_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SUM_INLINE sum_vec widen_bf16(const unsigned char *at)
{
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(at)), 16);
}

/* The AVX512_BF16 conversion flushes denormals, so it is not used. */
SUM_INLINE void narrow_bf16(unsigned char *at, sum_vec value)
{
    const __m512i bits =
        canonical_f32(_mm512_castsi512_ps(value)); /* the canonical NaN survives the rounding, which only adds to it */
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    store_half(at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}

SUM_INLINE sum_vec widen_i8(const unsigned char *at)
{
    return _mm512_cvtepi8_epi32(load_quarter(at));
}

SUM_INLINE sum_vec widen_u8(const unsigned char *at)
{
    return _mm512_cvtepu8_epi32(load_quarter(at));
}

SUM_INLINE sum_vec widen_i16(const unsigned char *at)
{
    return _mm512_cvtepi16_epi32(load_half(at));
}

SUM_INLINE sum_vec widen_u16(const unsigned char *at)
{
    return _mm512_cvtepu16_epi32(load_half(at));
}

SUM_INLINE sum_vec widen_u32(const unsigned char *at)
{
    return _mm512_cvtepu32_epi64(load_half(at));
}

SUM_INLINE sum_vec widen_i32(const unsigned char *at)
{
    return _mm512_cvtepi32_epi64(load_half(at));
}

SUM_INLINE void narrow_i8(unsigned char *at, sum_vec value)
{
    _mm_storeu_si128((__m128i *)(void *)at, _mm512_cvtepi32_epi8(value));
}

SUM_INLINE void narrow_i16(unsigned char *at, sum_vec value)
{
    store_half(at, _mm512_cvtepi32_epi16(value));
}

SUM_INLINE void narrow_i32(unsigned char *at, sum_vec value)
{
    store_half(at, _mm512_cvtepi64_epi32(value));
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

SUM_INLINE sum_vec add_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(_mm512_add_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right)));
}

SUM_INLINE sum_vec add_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(_mm512_add_pd(_mm512_castsi512_pd(left), _mm512_castsi512_pd(right)));
}

SUM_INLINE sum_vec add_8(sum_vec left, sum_vec right)
{
    return _mm512_add_epi8(left, right);
}

SUM_INLINE sum_vec add_16(sum_vec left, sum_vec right)
{
    return _mm512_add_epi16(left, right);
}

SUM_INLINE sum_vec add_32(sum_vec left, sum_vec right)
{
    return _mm512_add_epi32(left, right);
}

SUM_INLINE sum_vec add_64(sum_vec left, sum_vec right)
{
    return _mm512_add_epi64(left, right);
}

/* ---- Multiplying, and bits --------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec mul_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(_mm512_mul_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right)));
}

SUM_INLINE sum_vec mul_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(_mm512_mul_pd(_mm512_castsi512_pd(left), _mm512_castsi512_pd(right)));
}

/* There is no product of bytes: those at even places and those at odd ones are multiplied as 16 bits. */
SUM_INLINE sum_vec mul_8(sum_vec left, sum_vec right)
{
    const __m512i even = _mm512_mullo_epi16(left, right);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(left, 8), _mm512_srli_epi16(right, 8));
    return _mm512_or_si512(_mm512_and_si512(even, _mm512_set1_epi16(0xff)), _mm512_slli_epi16(odd, 8));
}

SUM_INLINE sum_vec mul_16(sum_vec left, sum_vec right)
{
    return _mm512_mullo_epi16(left, right);
}

SUM_INLINE sum_vec mul_32(sum_vec left, sum_vec right)
{
    return _mm512_mullo_epi32(left, right);
}

SUM_INLINE sum_vec mul_64(sum_vec left, sum_vec right)
{
    return _mm512_mullo_epi64(left, right);
}

SUM_INLINE sum_vec and_bits(sum_vec left, sum_vec right)
{
    return _mm512_and_si512(left, right);
}

SUM_INLINE sum_vec or_bits(sum_vec left, sum_vec right)
{
    return _mm512_or_si512(left, right);
}

SUM_INLINE sum_vec xor_bits(sum_vec left, sum_vec right)
{
    return _mm512_xor_si512(left, right);
}

/* ---- Dividing ---------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec div_f32(sum_vec value, const sum_divisor *by)
{
    return canonical_f32(_mm512_div_ps(_mm512_castsi512_ps(value), _mm512_set1_ps(by->f32)));
}

SUM_INLINE sum_vec div_f64(sum_vec value, const sum_divisor *by)
{
    return canonical_f64(_mm512_div_pd(_mm512_castsi512_pd(value), _mm512_set1_pd(by->f64)));
}

SUM_INLINE sum_vec div_i32(sum_vec value, const sum_divisor *by)
{
    const __m512i multiplier = _mm512_set1_epi64((long long)by->multiplier_32);
    const __m512i sign = _mm512_srai_epi32(value, 31);
    const __m512i magnitude = _mm512_sub_epi32(_mm512_xor_si512(value, sign), sign);
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(magnitude, multiplier), 32);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(magnitude, 32), multiplier);
    const __m512i high = _mm512_mask_mov_epi32(even, 0xaaaa, odd);
    const __m512i rest = _mm512_srl_epi32(_mm512_sub_epi32(magnitude, high), _mm_cvtsi32_si128((int)by->shift_first));
    const __m512i quotient = _mm512_srl_epi32(_mm512_add_epi32(high, rest), _mm_cvtsi32_si128((int)by->shift_last));
    return _mm512_sub_epi32(_mm512_xor_si512(quotient, sign), sign);
}

/* AVX-512 has no instruction for the high half of a 64-bit product. */
SUM_INLINE sum_vec div_i64(sum_vec value, const sum_divisor *by)
{
    uint64_t lanes[8];
    memcpy(lanes, &value, sizeof(lanes));
    for (int i = 0; i < 8; i++) {
        lanes[i] = sum_divide_i64(lanes[i], by);
    }
    memcpy(&value, lanes, sizeof(lanes));
    return value;
}

SUM_INLINE sum_vec div_u64(sum_vec value, const sum_divisor *by)
{
    uint64_t lanes[8];
    memcpy(lanes, &value, sizeof(lanes));
    for (int i = 0; i < 8; i++) {
        lanes[i] = sum_divide_u64(lanes[i], by);
    }
    memcpy(&value, lanes, sizeof(lanes));
    return value;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/* The selectors of vrangeps: the smaller or the larger, by value and then by sign, with the sign of the selected
 * operand. */
#define RANGE_MIN 0x4
#define RANGE_MAX 0x5

/* vrangeps ignores a quiet NaN, so an unordered comparison adds it. */
SUM_INLINE sum_vec nan_unless_ordered_f32(__m512 value, __m512 left, __m512 right)
{
    const __mmask16 is_nan = _mm512_cmp_ps_mask(left, right, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(_mm512_castps_si512(value), is_nan, _mm512_set1_epi32((int)SUM_F32_NAN));
}

SUM_INLINE sum_vec nan_unless_ordered_f64(__m512d value, __m512d left, __m512d right)
{
    const __mmask8 is_nan = _mm512_cmp_pd_mask(left, right, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi64(_mm512_castpd_si512(value), is_nan, _mm512_set1_epi64((long long)SUM_F64_NAN));
}

SUM_INLINE sum_vec min_f32(sum_vec left, sum_vec right)
{
    const __m512 a = _mm512_castsi512_ps(left);
    const __m512 b = _mm512_castsi512_ps(right);
    return nan_unless_ordered_f32(_mm512_range_ps(a, b, RANGE_MIN), a, b);
}

SUM_INLINE sum_vec max_f32(sum_vec left, sum_vec right)
{
    const __m512 a = _mm512_castsi512_ps(left);
    const __m512 b = _mm512_castsi512_ps(right);
    return nan_unless_ordered_f32(_mm512_range_ps(a, b, RANGE_MAX), a, b);
}

SUM_INLINE sum_vec min_f64(sum_vec left, sum_vec right)
{
    const __m512d a = _mm512_castsi512_pd(left);
    const __m512d b = _mm512_castsi512_pd(right);
    return nan_unless_ordered_f64(_mm512_range_pd(a, b, RANGE_MIN), a, b);
}

SUM_INLINE sum_vec max_f64(sum_vec left, sum_vec right)
{
    const __m512d a = _mm512_castsi512_pd(left);
    const __m512d b = _mm512_castsi512_pd(right);
    return nan_unless_ordered_f64(_mm512_range_pd(a, b, RANGE_MAX), a, b);
}

/* Converts 16-bit floats to signed integers of the same order, and back. */
SUM_INLINE __m512i order_of_16(__m512i bits)
{
    const __m512i negative = _mm512_srai_epi16(bits, 15);
    return _mm512_xor_si512(bits, _mm512_and_si512(negative, _mm512_set1_epi16(0x7fff)));
}

SUM_INLINE __mmask32 is_nan_16(__m512i bits, uint32_t infinity)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    return _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16((short)infinity));
}

SUM_INLINE sum_vec extreme_16(sum_vec left, sum_vec right, uint32_t infinity, uint32_t nan, bool smaller)
{
    const __m512i a = order_of_16(left);
    const __m512i b = order_of_16(right);
    const __m512i chosen = order_of_16(smaller ? _mm512_min_epi16(a, b) : _mm512_max_epi16(a, b));
    const __mmask32 is_nan = is_nan_16(left, infinity) | is_nan_16(right, infinity);
    return _mm512_mask_mov_epi16(chosen, is_nan, _mm512_set1_epi16((short)nan));
}

SUM_INLINE sum_vec min_i8(sum_vec left, sum_vec right)
{
    return _mm512_min_epi8(left, right);
}

SUM_INLINE sum_vec max_i8(sum_vec left, sum_vec right)
{
    return _mm512_max_epi8(left, right);
}

SUM_INLINE sum_vec min_u8(sum_vec left, sum_vec right)
{
    return _mm512_min_epu8(left, right);
}

SUM_INLINE sum_vec max_u8(sum_vec left, sum_vec right)
{
    return _mm512_max_epu8(left, right);
}

SUM_INLINE sum_vec min_i32(sum_vec left, sum_vec right)
{
    return _mm512_min_epi32(left, right);
}

SUM_INLINE sum_vec max_i32(sum_vec left, sum_vec right)
{
    return _mm512_max_epi32(left, right);
}

SUM_INLINE sum_vec min_i64(sum_vec left, sum_vec right)
{
    return _mm512_min_epi64(left, right);
}

SUM_INLINE sum_vec max_i64(sum_vec left, sum_vec right)
{
    return _mm512_max_epi64(left, right);
}

SUM_INLINE sum_vec min_i16(sum_vec left, sum_vec right)
{
    return _mm512_min_epi16(left, right);
}

SUM_INLINE sum_vec max_i16(sum_vec left, sum_vec right)
{
    return _mm512_max_epi16(left, right);
}

SUM_INLINE sum_vec min_u16(sum_vec left, sum_vec right)
{
    return _mm512_min_epu16(left, right);
}

SUM_INLINE sum_vec max_u16(sum_vec left, sum_vec right)
{
    return _mm512_max_epu16(left, right);
}

SUM_INLINE sum_vec min_u32(sum_vec left, sum_vec right)
{
    return _mm512_min_epu32(left, right);
}

SUM_INLINE sum_vec max_u32(sum_vec left, sum_vec right)
{
    return _mm512_max_epu32(left, right);
}

SUM_INLINE sum_vec min_u64(sum_vec left, sum_vec right)
{
    return _mm512_min_epu64(left, right);
}

SUM_INLINE sum_vec max_u64(sum_vec left, sum_vec right)
{
    return _mm512_max_epu64(left, right);
}

#include "stages/kernels/sum_avx512_float8.h"
#include "stages/kernels/sum_template.h"

const trib_kernels trib_kernels_avx512 = {"avx512", combine, finish, memcpy, trib_copy_nontemporal};

#else

typedef int sum_avx512_nothing_here; /* ISO C wants a declaration in every file */

#endif
