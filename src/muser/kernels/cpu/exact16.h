/* Sixteen lanes of the primitives in exact.h: the same operations, the same order, the same bits. */
#ifndef EXACT16_H
#define EXACT16_H

#include "exact.h"

/* The first n lanes, n ≥ 0. */
INLINE __mmask16 first16(int32_t n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1); }

INLINE __m512i sizes16(__m512 x) {
    return _mm512_and_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

INLINE __m512 z16(__m512 x) {
    __mmask16 keep = _mm512_cmpgt_epi32_mask(sizes16(x), _mm512_set1_epi32(0x2b7fffff));
    return _mm512_maskz_mov_ps(keep, x);
}

/* Bit i set: lane i has all exponent bits set. */
INLINE __mmask16 endless16(__m512 x) {
    return _mm512_cmpgt_epi32_mask(sizes16(x), _mm512_set1_epi32(0x7f7fffff));
}

INLINE __m512i rne_product16(__m512 a, __m512 b) {
    __m512 shifted = _mm512_fmadd_ps(a, b, _mm512_set1_ps(0x1.8p23f));
    __m512i low = _mm512_and_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x7fffff));
    return _mm512_sub_epi32(low, _mm512_set1_epi32(0x400000));
}

INLINE __m512i load16(const void *p) { return _mm512_loadu_si512(p); }

/* Four bytes, or two int16, in every lane. */
INLINE __m512i spread16(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/* Sixteen f16 values. */
INLINE __m512 halves16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

#endif
