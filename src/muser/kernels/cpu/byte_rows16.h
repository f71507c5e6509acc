/* Byte rows with AVX-512; the functions beside its inclusion in byte_rows.h are the plain form. */
#ifndef BYTE_ROWS16_H
#define BYTE_ROWS16_H

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

/* Sixteen vectors, each reduced to one lane by `op`, in order: in every turn the halves of two meet in
 * one. `halves` gives the first or the second half of what is left of two vectors. */
INLINE __m512i halves(__m512i a, __m512i b, int turn, int second) {
    switch (2 * turn + second) {
    case 0: return _mm512_shuffle_i32x4(a, b, 0x44);
    case 1: return _mm512_shuffle_i32x4(a, b, 0xee);
    case 2: return _mm512_shuffle_i32x4(a, b, 0x88);
    case 3: return _mm512_shuffle_i32x4(a, b, 0xdd);
    case 4: return _mm512_unpacklo_epi64(a, b);
    case 5: return _mm512_unpackhi_epi64(a, b);
    case 6:
        return _mm512_castps_si512(
            _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
    default:
        return _mm512_castps_si512(
            _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
    }
}

#define REDUCE_SIXTEEN(name, op)                                                        \
    INLINE __m512i name(__m512i v[16]) {                                                \
        const __m512i order =                                                           \
            _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);    \
        UNROLL                                                                          \
        for (int i = 0; i < 8; i++) v[i] = op(halves(v[i], v[i + 8], 0, 0), halves(v[i], v[i + 8], 0, 1)); \
        UNROLL                                                                          \
        for (int i = 0; i < 4; i++) v[i] = op(halves(v[i], v[i + 4], 1, 0), halves(v[i], v[i + 4], 1, 1)); \
        UNROLL                                                                          \
        for (int i = 0; i < 2; i++) v[i] = op(halves(v[i], v[i + 2], 2, 0), halves(v[i], v[i + 2], 2, 1)); \
        return _mm512_permutexvar_epi32(order, op(halves(v[0], v[1], 3, 0), halves(v[0], v[1], 3, 1))); \
    }

REDUCE_SIXTEEN(largest_of_sixteen, _mm512_max_epu32)
REDUCE_SIXTEEN(sums_of_sixteen, _mm512_add_epi32)

/* Sixteen blocks of 32 at once: codes [16][32], scales [16], sums [16]. */
INLINE void quantise_sixteen_blocks(const float *x, int8_t *q, float *scales, float *sums) {
    __m512i v[16];
    _Alignas(64) float inverses[16];
    UNROLL
    for (int b = 0; b < 16; b++) v[b] = _mm512_max_epu32(sizes_at(x + 32 * b), sizes_at(x + 32 * b + 16));
    __m512i top = largest_of_sixteen(v);
    __mmask16 some = _mm512_test_epi32_mask(top, top);
    __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0f), _mm512_castsi512_ps(top));
    _mm512_store_ps(inverses, inverse);
    _mm512_storeu_ps(scales, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), inverse));
    UNROLL
    for (int b = 0; b < 16; b++) {
        const __m512 i = _mm512_set1_ps(inverses[b]);
        __m512i first = rne_product16(i, _mm512_loadu_ps(x + 32 * b));
        __m512i second = rne_product16(i, _mm512_loadu_ps(x + 32 * b + 16));
        _mm_storeu_si128((__m128i *)(q + 32 * b), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(q + 32 * b + 16), _mm512_cvtepi32_epi8(second));
        v[b] = _mm512_add_epi32(first, second);
    }
    _mm512_storeu_ps(sums, _mm512_cvtepi32_ps(sums_of_sixteen(v)));
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
