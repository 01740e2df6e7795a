/*
 * sum_avx2.c - the kernels in vectors of 32 bytes, for x86-64 processors with AVX2 and F16C.
 *
 * This file is compiled with -mavx2 -mf16c. No code here may run, or be linked from elsewhere, before
 * stages/kernels/kernels.c has checked the processor. Each primitive computes, lane by lane, the same as in
 * sum_scalar.c.
 */
#include "stages/kernels/sum_common.h"

#if defined(__x86_64__)

#include <immintrin.h>

typedef __m256i sum_vec;

#define SUM_VECTOR_BYTES 32

/* ---- Loads and stores -------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec load_64(const unsigned char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

SUM_INLINE void store_64(unsigned char *at, sum_vec value)
{
    _mm256_storeu_si256((__m256i *)(void *)at, value);
}

/* Elements have the same layout in a vector as in memory, whatever their size. */
#define load_8 load_64
#define load_16 load_64
#define load_32 load_64
#define store_8 store_64
#define store_16 store_64
#define store_32 store_64

SUM_INLINE __m128i load_half(const unsigned char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

SUM_INLINE void store_half(unsigned char *at, __m128i value)
{
    _mm_storeu_si128((__m128i *)(void *)at, value);
}

/* ---- NaN --------------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec canonical_f32(__m256 value)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)SUM_F32_NAN));
    return _mm256_castps_si256(_mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}

SUM_INLINE sum_vec canonical_f64(__m256d value)
{
    const __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x((long long)SUM_F64_NAN));
    return _mm256_castpd_si256(_mm256_blendv_pd(value, nan, _mm256_cmp_pd(value, value, _CMP_UNORD_Q)));
}

/* ---- Widening and narrowing -------------------------------------------------------------------------------------- */

SUM_INLINE void narrow_i16(unsigned char *at, sum_vec value)
{
    const __m256i low = _mm256_and_si256(value, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_packus_epi32(low, low);
    store_half(at, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0))));
}

SUM_INLINE sum_vec widen_f16(const unsigned char *at)
{
    return _mm256_castps_si256(_mm256_cvtph_ps(load_half(at)));
}

SUM_INLINE void narrow_f16(unsigned char *at, sum_vec value)
{
    const __m256 canonical = _mm256_castsi256_ps(canonical_f32(_mm256_castsi256_ps(value)));
    store_half(at, _mm256_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SUM_INLINE sum_vec widen_bf16(const unsigned char *at)
{
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(at)), 16);
}

SUM_INLINE void narrow_bf16(unsigned char *at, sum_vec value)
{
    const __m256i bits =
        canonical_f32(_mm256_castsi256_ps(value)); /* the canonical NaN survives the rounding, which only adds to it */
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    narrow_i16(at, _mm256_srli_epi32(sum, 16));
}

SUM_INLINE sum_vec widen_i8(const unsigned char *at)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

SUM_INLINE sum_vec widen_u8(const unsigned char *at)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

SUM_INLINE sum_vec widen_i16(const unsigned char *at)
{
    return _mm256_cvtepi16_epi32(load_half(at));
}

SUM_INLINE sum_vec widen_u16(const unsigned char *at)
{
    return _mm256_cvtepu16_epi32(load_half(at));
}

SUM_INLINE sum_vec widen_u32(const unsigned char *at)
{
    return _mm256_cvtepu32_epi64(load_half(at));
}

SUM_INLINE sum_vec widen_i32(const unsigned char *at)
{
    return _mm256_cvtepi32_epi64(load_half(at));
}

SUM_INLINE void narrow_i8(unsigned char *at, sum_vec value)
{
    const __m256i low = _mm256_and_si256(value, _mm256_set1_epi32(0xff));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64((__m128i *)(void *)at, _mm_packus_epi16(words, words));
}

SUM_INLINE void narrow_i32(unsigned char *at, sum_vec value)
{
    const __m256i even_first = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    store_half(at, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(value, even_first)));
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

SUM_INLINE sum_vec add_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(_mm256_add_ps(_mm256_castsi256_ps(left), _mm256_castsi256_ps(right)));
}

SUM_INLINE sum_vec add_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(_mm256_add_pd(_mm256_castsi256_pd(left), _mm256_castsi256_pd(right)));
}

SUM_INLINE sum_vec add_8(sum_vec left, sum_vec right)
{
    return _mm256_add_epi8(left, right);
}

SUM_INLINE sum_vec add_16(sum_vec left, sum_vec right)
{
    return _mm256_add_epi16(left, right);
}

SUM_INLINE sum_vec add_32(sum_vec left, sum_vec right)
{
    return _mm256_add_epi32(left, right);
}

SUM_INLINE sum_vec add_64(sum_vec left, sum_vec right)
{
    return _mm256_add_epi64(left, right);
}

/* ---- Multiplying, and bits --------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec mul_f32(sum_vec left, sum_vec right)
{
    return canonical_f32(_mm256_mul_ps(_mm256_castsi256_ps(left), _mm256_castsi256_ps(right)));
}

SUM_INLINE sum_vec mul_f64(sum_vec left, sum_vec right)
{
    return canonical_f64(_mm256_mul_pd(_mm256_castsi256_pd(left), _mm256_castsi256_pd(right)));
}

/* There is no product of bytes: those at even places and those at odd ones are multiplied as 16 bits. */
SUM_INLINE sum_vec mul_8(sum_vec left, sum_vec right)
{
    const __m256i even = _mm256_mullo_epi16(left, right);
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(left, 8), _mm256_srli_epi16(right, 8));
    return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(odd, 8));
}

SUM_INLINE sum_vec mul_16(sum_vec left, sum_vec right)
{
    return _mm256_mullo_epi16(left, right);
}

SUM_INLINE sum_vec mul_32(sum_vec left, sum_vec right)
{
    return _mm256_mullo_epi32(left, right);
}

/* AVX2 has no product of 64 bits. */
SUM_INLINE sum_vec mul_64(sum_vec left, sum_vec right)
{
    const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(left, 32), right),
                                           _mm256_mul_epu32(left, _mm256_srli_epi64(right, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(left, right), _mm256_slli_epi64(cross, 32));
}

SUM_INLINE sum_vec and_bits(sum_vec left, sum_vec right)
{
    return _mm256_and_si256(left, right);
}

SUM_INLINE sum_vec or_bits(sum_vec left, sum_vec right)
{
    return _mm256_or_si256(left, right);
}

SUM_INLINE sum_vec xor_bits(sum_vec left, sum_vec right)
{
    return _mm256_xor_si256(left, right);
}

/* ---- Dividing ---------------------------------------------------------------------------------------------------- */

SUM_INLINE sum_vec div_f32(sum_vec value, const sum_divisor *by)
{
    return canonical_f32(_mm256_div_ps(_mm256_castsi256_ps(value), _mm256_set1_ps(by->f32)));
}

SUM_INLINE sum_vec div_f64(sum_vec value, const sum_divisor *by)
{
    return canonical_f64(_mm256_div_pd(_mm256_castsi256_pd(value), _mm256_set1_pd(by->f64)));
}

SUM_INLINE sum_vec div_i32(sum_vec value, const sum_divisor *by)
{
    const __m256i multiplier = _mm256_set1_epi64x((long long)by->multiplier_32);
    const __m256i sign = _mm256_srai_epi32(value, 31);
    const __m256i magnitude = _mm256_sub_epi32(_mm256_xor_si256(value, sign), sign);
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(magnitude, multiplier), 32);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(magnitude, 32), multiplier);
    const __m256i high = _mm256_blend_epi32(even, odd, 0xaa);
    const __m256i rest = _mm256_srl_epi32(_mm256_sub_epi32(magnitude, high), _mm_cvtsi32_si128((int)by->shift_first));
    const __m256i quotient = _mm256_srl_epi32(_mm256_add_epi32(high, rest), _mm_cvtsi32_si128((int)by->shift_last));
    return _mm256_sub_epi32(_mm256_xor_si256(quotient, sign), sign);
}

/* AVX2 has no instruction for the high half of a 64-bit product. */
SUM_INLINE sum_vec div_i64(sum_vec value, const sum_divisor *by)
{
    const uint64_t lane_0 = sum_divide_i64((uint64_t)_mm256_extract_epi64(value, 0), by);
    const uint64_t lane_1 = sum_divide_i64((uint64_t)_mm256_extract_epi64(value, 1), by);
    const uint64_t lane_2 = sum_divide_i64((uint64_t)_mm256_extract_epi64(value, 2), by);
    const uint64_t lane_3 = sum_divide_i64((uint64_t)_mm256_extract_epi64(value, 3), by);
    return _mm256_setr_epi64x((long long)lane_0, (long long)lane_1, (long long)lane_2, (long long)lane_3);
}

SUM_INLINE sum_vec div_u64(sum_vec value, const sum_divisor *by)
{
    uint64_t lanes[4];
    memcpy(lanes, &value, sizeof(lanes));
    for (int i = 0; i < 4; i++) {
        lanes[i] = sum_divide_u64(lanes[i], by);
    }
    memcpy(&value, lanes, sizeof(lanes));
    return value;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/*
 * vminps and vmaxps return their second operand if both are zeros or one is NaN. Called in both orders, they return
 * both zeros. The sign is then the AND of the two (max) or the OR (min). All other results agree.
 */
SUM_INLINE sum_vec min_f32(sum_vec left, sum_vec right)
{
    const __m256 a = _mm256_castsi256_ps(left);
    const __m256 b = _mm256_castsi256_ps(right);
    /* A NaN ORed with anything is a NaN. */
    return canonical_f32(_mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)));
}

SUM_INLINE sum_vec max_f32(sum_vec left, sum_vec right)
{
    const __m256 a = _mm256_castsi256_ps(left);
    const __m256 b = _mm256_castsi256_ps(right);
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)SUM_F32_NAN));
    const __m256 larger = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
    return _mm256_castps_si256(_mm256_blendv_ps(larger, nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q)));
}

SUM_INLINE sum_vec min_f64(sum_vec left, sum_vec right)
{
    const __m256d a = _mm256_castsi256_pd(left);
    const __m256d b = _mm256_castsi256_pd(right);
    return canonical_f64(_mm256_or_pd(_mm256_min_pd(a, b), _mm256_min_pd(b, a)));
}

SUM_INLINE sum_vec max_f64(sum_vec left, sum_vec right)
{
    const __m256d a = _mm256_castsi256_pd(left);
    const __m256d b = _mm256_castsi256_pd(right);
    const __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x((long long)SUM_F64_NAN));
    const __m256d larger = _mm256_and_pd(_mm256_max_pd(a, b), _mm256_max_pd(b, a));
    return _mm256_castpd_si256(_mm256_blendv_pd(larger, nan, _mm256_cmp_pd(a, b, _CMP_UNORD_Q)));
}

/* Converts 16-bit floats to signed integers of the same order, and back. */
SUM_INLINE __m256i order_of_16(__m256i bits)
{
    const __m256i negative = _mm256_srai_epi16(bits, 15);
    return _mm256_xor_si256(bits, _mm256_and_si256(negative, _mm256_set1_epi16(0x7fff)));
}

SUM_INLINE __m256i is_nan_16(__m256i bits, uint32_t infinity)
{
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    return _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16((short)infinity));
}

SUM_INLINE sum_vec extreme_16(sum_vec left, sum_vec right, uint32_t infinity, uint32_t nan, bool smaller)
{
    const __m256i a = order_of_16(left);
    const __m256i b = order_of_16(right);
    const __m256i chosen = order_of_16(smaller ? _mm256_min_epi16(a, b) : _mm256_max_epi16(a, b));
    const __m256i is_nan = _mm256_or_si256(is_nan_16(left, infinity), is_nan_16(right, infinity));
    return _mm256_blendv_epi8(chosen, _mm256_set1_epi16((short)nan), is_nan);
}

SUM_INLINE sum_vec min_i8(sum_vec left, sum_vec right)
{
    return _mm256_min_epi8(left, right);
}

SUM_INLINE sum_vec max_i8(sum_vec left, sum_vec right)
{
    return _mm256_max_epi8(left, right);
}

SUM_INLINE sum_vec min_u8(sum_vec left, sum_vec right)
{
    return _mm256_min_epu8(left, right);
}

SUM_INLINE sum_vec max_u8(sum_vec left, sum_vec right)
{
    return _mm256_max_epu8(left, right);
}

SUM_INLINE sum_vec min_i32(sum_vec left, sum_vec right)
{
    return _mm256_min_epi32(left, right);
}

SUM_INLINE sum_vec max_i32(sum_vec left, sum_vec right)
{
    return _mm256_max_epi32(left, right);
}

SUM_INLINE sum_vec min_i64(sum_vec left, sum_vec right)
{
    return _mm256_blendv_epi8(left, right, _mm256_cmpgt_epi64(left, right));
}

SUM_INLINE sum_vec max_i64(sum_vec left, sum_vec right)
{
    return _mm256_blendv_epi8(right, left, _mm256_cmpgt_epi64(left, right));
}

SUM_INLINE sum_vec min_i16(sum_vec left, sum_vec right)
{
    return _mm256_min_epi16(left, right);
}

SUM_INLINE sum_vec max_i16(sum_vec left, sum_vec right)
{
    return _mm256_max_epi16(left, right);
}

SUM_INLINE sum_vec min_u16(sum_vec left, sum_vec right)
{
    return _mm256_min_epu16(left, right);
}

SUM_INLINE sum_vec max_u16(sum_vec left, sum_vec right)
{
    return _mm256_max_epu16(left, right);
}

SUM_INLINE sum_vec min_u32(sum_vec left, sum_vec right)
{
    return _mm256_min_epu32(left, right);
}

SUM_INLINE sum_vec max_u32(sum_vec left, sum_vec right)
{
    return _mm256_max_epu32(left, right);
}

/* AVX2 compares signed numbers only: without their highest bits they have the order of unsigned ones. */
SUM_INLINE __m256i is_above_u64(sum_vec left, sum_vec right)
{
    const __m256i highest = _mm256_set1_epi64x(INT64_MIN);
    return _mm256_cmpgt_epi64(_mm256_xor_si256(left, highest), _mm256_xor_si256(right, highest));
}

SUM_INLINE sum_vec min_u64(sum_vec left, sum_vec right)
{
    return _mm256_blendv_epi8(left, right, is_above_u64(left, right));
}

SUM_INLINE sum_vec max_u64(sum_vec left, sum_vec right)
{
    return _mm256_blendv_epi8(right, left, is_above_u64(left, right));
}

#include "stages/kernels/sum_avx2_float8.h"
#include "stages/kernels/sum_template.h"

const trib_kernels trib_kernels_avx2 = {"avx2", combine, finish, memcpy, trib_copy_nontemporal};

#else

typedef int sum_avx2_nothing_here; /* ISO C wants a declaration in every file */

#endif
