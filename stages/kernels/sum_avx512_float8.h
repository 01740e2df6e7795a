/*
 * sum_avx512_float8.h - the part of sum_avx512.c that is about 8-bit floats; for that file alone.
 */
#ifndef TRIB_STAGES_SUM_AVX512_FLOAT8_H
#define TRIB_STAGES_SUM_AVX512_FLOAT8_H

SUM_INLINE sum_vec widen_e4m3(const unsigned char *at)
{
    const __m512i bits = _mm512_cvtepu8_epi32(load_quarter(at));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7f));
    const __m512 small = _mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20));
    const __m512i finite = _mm512_castps_si512(_mm512_mul_ps(small, _mm512_set1_ps(0x1p120f)));
    const __m512i number =
        _mm512_mask_mov_epi32(finite, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32((int)SUM_E4M3_LARGEST)),
                              _mm512_set1_epi32((int)SUM_F32_NAN));
    return _mm512_or_si512(number, _mm512_slli_epi32(_mm512_srli_epi32(bits, 7), 31));
}

/* The upper half of a float16. */
SUM_INLINE sum_vec widen_e5m2(const unsigned char *at)
{
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_quarter(at)), 8)));
}

/* The comparisons are of signed numbers: no magnitude has the highest bit. */
SUM_INLINE void narrow_float8(unsigned char *at, sum_vec value, sum_float8 to)
{
    const __m512i magnitude = _mm512_and_si512(value, _mm512_set1_epi32(INT32_MAX));
    const __m512i steps = _mm512_set1_epi32((int)to.steps);
    const __m512 near = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(steps));
    const __m512i denormal = _mm512_sub_epi32(_mm512_castps_si512(near), steps);
    const __m128i shift = _mm_cvtsi32_si128((int)to.shift);
    const __m512i odd = _mm512_and_si512(_mm512_srl_epi32(magnitude, shift), _mm512_set1_epi32(1));
    const __m512i rebias = _mm512_set1_epi32((int)(to.rebias - (1u << (to.shift - 1)) + 1));
    const __m512i normal = _mm512_srl_epi32(_mm512_add_epi32(_mm512_sub_epi32(magnitude, rebias), odd), shift);
    const __m512i finite = _mm512_mask_mov_epi32(
        normal, _mm512_cmpgt_epi32_mask(_mm512_set1_epi32((int)to.normal_from), magnitude), denormal);
    const __m512i rounded =
        _mm512_mask_mov_epi32(finite, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32((int)to.finite_until)),
                              _mm512_set1_epi32((int)to.infinity));
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(value, 31), 7);
    const __m512i with_sign = _mm512_or_si512(rounded, sign);
    narrow_i8(at,
              _mm512_mask_mov_epi32(with_sign, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32((int)to.nan_above)),
                                    _mm512_set1_epi32((int)to.nan)));
}

/* Converts 8-bit floats to signed integers of the same order, and back. */
SUM_INLINE __m512i order_of_8(__m512i bits)
{
    const __mmask64 negative = _mm512_movepi8_mask(bits);
    return _mm512_xor_si512(bits, _mm512_maskz_set1_epi8(negative, 0x7f));
}

SUM_INLINE __mmask64 is_nan_8(__m512i bits, uint32_t infinity)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi8(0x7f));
    return _mm512_cmpgt_epi8_mask(magnitude, _mm512_set1_epi8((char)infinity));
}

SUM_INLINE sum_vec extreme_8(sum_vec left, sum_vec right, uint32_t infinity, uint32_t nan, bool smaller)
{
    const __m512i a = order_of_8(left);
    const __m512i b = order_of_8(right);
    const __m512i chosen = order_of_8(smaller ? _mm512_min_epi8(a, b) : _mm512_max_epi8(a, b));
    const __mmask64 is_nan = is_nan_8(left, infinity) | is_nan_8(right, infinity);
    return _mm512_mask_mov_epi8(chosen, is_nan, _mm512_set1_epi8((char)nan));
}

#endif
