/*
 * sum_avx2_float8.h - the part of sum_avx2.c that is about 8-bit floats; for that file alone.
 */
#ifndef TRIB_STAGES_SUM_AVX2_FLOAT8_H
#define TRIB_STAGES_SUM_AVX2_FLOAT8_H

SUM_INLINE sum_vec widen_e4m3(const unsigned char *at)
{
    const __m256i bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f));
    const __m256 small = _mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20));
    const __m256i finite = _mm256_castps_si256(_mm256_mul_ps(small, _mm256_set1_ps(0x1p120f)));
    const __m256i number = _mm256_blendv_epi8(finite, _mm256_set1_epi32((int)SUM_F32_NAN),
                                              _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)SUM_E4M3_LARGEST)));
    return _mm256_or_si256(number, _mm256_slli_epi32(_mm256_srli_epi32(bits, 7), 31));
}

/* The upper half of a float16. */
SUM_INLINE sum_vec widen_e5m2(const unsigned char *at)
{
    return _mm256_castps_si256(
        _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)at)), 8)));
}

/* The comparisons are of signed numbers: no magnitude has the highest bit. */
SUM_INLINE void narrow_float8(unsigned char *at, sum_vec value, sum_float8 to)
{
    const __m256i magnitude = _mm256_and_si256(value, _mm256_set1_epi32(INT32_MAX));
    const __m256i steps = _mm256_set1_epi32((int)to.steps);
    const __m256 near = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(steps));
    const __m256i denormal = _mm256_sub_epi32(_mm256_castps_si256(near), steps);
    const __m128i shift = _mm_cvtsi32_si128((int)to.shift);
    const __m256i odd = _mm256_and_si256(_mm256_srl_epi32(magnitude, shift), _mm256_set1_epi32(1));
    const __m256i rebias = _mm256_set1_epi32((int)(to.rebias - (1u << (to.shift - 1)) + 1));
    const __m256i normal = _mm256_srl_epi32(_mm256_add_epi32(_mm256_sub_epi32(magnitude, rebias), odd), shift);
    const __m256i finite =
        _mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)to.normal_from), magnitude));
    const __m256i rounded = _mm256_blendv_epi8(finite, _mm256_set1_epi32((int)to.infinity),
                                               _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)to.finite_until)));
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(value, 31), 7);
    const __m256i with_sign = _mm256_or_si256(rounded, sign);
    narrow_i8(at, _mm256_blendv_epi8(with_sign, _mm256_set1_epi32((int)to.nan),
                                     _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)to.nan_above))));
}

/* Converts 8-bit floats to signed integers of the same order, and back. */
SUM_INLINE __m256i order_of_8(__m256i bits)
{
    const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bits);
    return _mm256_xor_si256(bits, _mm256_and_si256(negative, _mm256_set1_epi8(0x7f)));
}

SUM_INLINE __m256i is_nan_8(__m256i bits, uint32_t infinity)
{
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi8(0x7f));
    return _mm256_cmpgt_epi8(magnitude, _mm256_set1_epi8((char)infinity));
}

SUM_INLINE sum_vec extreme_8(sum_vec left, sum_vec right, uint32_t infinity, uint32_t nan, bool smaller)
{
    const __m256i a = order_of_8(left);
    const __m256i b = order_of_8(right);
    const __m256i chosen = order_of_8(smaller ? _mm256_min_epi8(a, b) : _mm256_max_epi8(a, b));
    const __m256i is_nan = _mm256_or_si256(is_nan_8(left, infinity), is_nan_8(right, infinity));
    return _mm256_blendv_epi8(chosen, _mm256_set1_epi8((char)nan), is_nan);
}

#endif
