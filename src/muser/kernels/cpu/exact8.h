/* Eight lanes of the primitives in exact.h: the same operations, the same order, the same bits. */
#ifndef EXACT8_H
#define EXACT8_H

#include "exact.h"

/* Sums of the eight lanes of each of eight vectors, in order. */
INLINE __m256i sums8(const __m256i a[8]) {
    __m256i ab = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    __m256i cd = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(ab, cd, 0x20),
                            _mm256_permute2x128_si256(ab, cd, 0x31));
}

INLINE __m256i sizes8(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

INLINE __m256 z8(__m256 x) {
    __m256i keep = _mm256_cmpgt_epi32(sizes8(x), _mm256_set1_epi32(0x2b7fffff));
    return _mm256_and_ps(x, _mm256_castsi256_ps(keep));
}

/* Bit i set: lane i has all exponent bits set. */
INLINE int endless8(__m256 x) {
    __m256i over = _mm256_cmpgt_epi32(sizes8(x), _mm256_set1_epi32(0x7f7fffff));
    return _mm256_movemask_ps(_mm256_castsi256_ps(over));
}

INLINE __m256 two_to8(__m256i k) {
    __m256i biased = _mm256_add_epi32(k, _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

INLINE __m256i rne_product8(__m256 a, __m256 b) {
    __m256 shifted = _mm256_fmadd_ps(a, b, _mm256_set1_ps(0x1.8p23f));
    __m256i low = _mm256_and_si256(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x7fffff));
    return _mm256_sub_epi32(low, _mm256_set1_epi32(0x400000));
}

INLINE __m256 exp2_8(__m256 f) {
    __m256 g = _mm256_set1_ps(0x1.cacdf6p-13f);
    g = _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1.44bd44p-10f));
    g = _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1.3d5826p-7f));
    g = _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1.c67ee4p-5f));
    g = _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1.ebfdf8p-3f));
    g = _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1.62e428p-1f));
    return _mm256_fmadd_ps(g, f, _mm256_set1_ps(0x1p+0f));
}

INLINE __m256i load_codes(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

INLINE __m128i load_bytes(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE __m256i pair8(const int16_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE int32_t most_lane(__m256i x) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

INLINE int32_t lane_sum(__m256i x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

#endif
