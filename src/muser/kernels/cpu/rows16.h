/* Byte rows with AVX-512; `quantise_bytes` in rows.h is the plain form. */
#ifndef ROWS16_H
#define ROWS16_H

#include "exact16.h"

INLINE __m512i sizes_at(const float *x) { return sizes16(_mm512_loadu_ps(x)); }

/* Codes of n elements (a multiple of 32), s returned. */
INLINE float quantise_run16(const float *x, int32_t n, int8_t *q) {
    __m512i top = _mm512_max_epu32(sizes_at(x), sizes_at(x + 16));
    for (int32_t k = 32; k < n; k += 32)
        top = _mm512_max_epu32(top, _mm512_max_epu32(sizes_at(x + k), sizes_at(x + k + 16)));
    uint32_t largest = _mm512_reduce_max_epu32(top);
    if (largest == 0) {
        memset(q, 0, (size_t)n);
        return 0.0f;
    }
    float inverse = 127.0f / float_of(largest);
    __m512 i = _mm512_set1_ps(inverse);
    for (int32_t k = 0; k < n; k += 16) {
        __m512i code = rne_product16(i, _mm512_loadu_ps(x + k));
        _mm_storeu_si128((__m128i *)(q + k), _mm512_cvtepi32_epi8(code));
    }
    return 1.0f / inverse;
}

INLINE float sum_of_32(const int8_t *q) {
    __m256i ones = _mm256_set1_epi8(1), codes = _mm256_loadu_si256((const __m256i *)q);
    __m256i four = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, codes);
    __m128i two = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    two = _mm_add_epi32(two, _mm_shuffle_epi32(two, 0x4e));
    two = _mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1));
    return (float)_mm_cvtsi128_si32(two);
}

/* The twenty-four sums of a block of 256. */
INLINE void sums_of_256(const int8_t *q, int16_t *sums) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i even = _mm512_setr_epi32(0, 4, 2, 6, 8, 12, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i all = _mm512_setzero_si512();
    UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, load16(q + 64 * v));
        s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0x4e));
        s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0xb1));
        all = _mm512_mask_mov_epi32(all, (__mmask16)(0x1111 << v), s); /* lane 4g+v: group 4v+g */
    }
    all = _mm512_permutexvar_epi32(order, all);
    _mm256_storeu_si256((__m256i *)(sums + 8), _mm512_cvtepi32_epi16(all));
    __m512i pairs = _mm512_add_epi32(
        _mm512_permutexvar_epi32(even, all),
        _mm512_permutexvar_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(1)), all));
    _mm_storeu_si128((__m128i *)sums, _mm256_castsi256_si128(_mm512_cvtepi32_epi16(pairs)));
}

#endif
