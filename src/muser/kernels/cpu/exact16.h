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

INLINE __m512i all16(int32_t x) { return _mm512_set1_epi32(x); }

/* Reductions that leave the answer in every lane. */
#define EVERYWHERE16(name, operation, type, far, near)                                     \
    INLINE type name(type x) {                                                             \
        x = operation(x, far(x, x, 0x4e));                                                 \
        x = operation(x, far(x, x, 0xb1));                                                 \
        x = operation(x, near(x, 0x4e));                                                   \
        return operation(x, near(x, 0xb1));                                                \
    }

EVERYWHERE16(largest_of16, _mm512_max_epi32, __m512i, _mm512_shuffle_i32x4, _mm512_shuffle_epi32)
EVERYWHERE16(sum_of16, _mm512_add_epi32, __m512i, _mm512_shuffle_i32x4, _mm512_shuffle_epi32)
EVERYWHERE16(most_of16, _mm512_max_ps, __m512, _mm512_shuffle_f32x4, _mm512_permute_ps)

/* |x| at its largest, as bits. */
INLINE uint32_t top_of16(const float *x, int32_t n) {
    __m512i top = _mm512_setzero_si512();
    for (int32_t k = 0; k < n; k += 16)
        top = _mm512_max_epi32(top, sizes16(_mm512_maskz_loadu_ps(first16(n - k), x + k)));
    return (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(largest_of16(top)));
}

/* G(x, p, lo) of a run whose largest size is `top`. */
struct grid16 {
    __m512 inverse;
    __m512i bound;
    int32_t e;
};

INLINE struct grid16 grid_of16(uint32_t top, int32_t p, int32_t lo) {
    int32_t e = grid_step(top, p, lo);
    struct grid16 g = {_mm512_set1_ps(two_to(-e)), all16((1 << p) - 1), e};
    return g;
}

/* Codes of elements k … k+15 of n; zero behind the last one. */
INLINE __m512i grid_at16(const struct grid16 *g, const float *x, int32_t k, int32_t n) {
    __m512i q = rne_product16(_mm512_maskz_loadu_ps(first16(most(n - k, 0)), x + k), g->inverse);
    q = _mm512_min_epi32(g->bound, q);
    return _mm512_max_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), g->bound), q);
}

#endif
