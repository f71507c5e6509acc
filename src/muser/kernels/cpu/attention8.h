/* Scores, weights and mixing of attention.h with AVX2. Groups of eight positions are aligned inside
 * the tile; lanes outside [first, last) are computed from stored integers and then masked. */
#ifndef ATTENTION8_H
#define ATTENTION8_H

#include "exact8.h"

INLINE __m256i visible8(int32_t j, int32_t first, int32_t last) {
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32(j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(first - 1)),
                            _mm256_cmpgt_epi32(_mm256_set1_epi32(last), at));
}

INLINE __m256i steps8(const int8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE __m256i dots8(const int16_t *q, const int16_t *rows, int32_t stride) {
    __m256i acc[8];
    UNROLL
    for (int r = 0; r < 8; r++) acc[r] = _mm256_setzero_si256();
    for (int32_t i = 0; i < stride; i += 16) {
        __m256i x = load_codes(q + i);
        UNROLL
        for (int r = 0; r < 8; r++)
            acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(x, load_codes(rows + r * stride + i)));
    }
    return sums8(acc);
}

INLINE int weigh(const struct view *v, const struct query *q, int32_t at, int32_t first, int32_t last,
                 struct tile *t) {
    const __m256i nothing = _mm256_set1_epi32(INT32_MIN);
    const __m256 limit = _mm256_set1_ps(0x1p22f);
    __m256i N = nothing, M = nothing, D = _mm256_setzero_si256();
    int wrong = 0;
    for (int32_t j = first & ~7; j < last; j += 8) {
        __m256i T = dots8(q->codes, v->key + (int64_t)(at + j) * v->stride, v->stride);
        __m256i seen = visible8(j, first, last);
        __m256i e = _mm256_add_epi32(steps8(v->key_steps + at + j), _mm256_set1_epi32(q->step));
        __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(T), _mm256_mul_ps(_mm256_set1_ps(v->c), two_to8(e)));
        __m256 small = _mm256_cmp_ps(_mm256_castsi256_ps(sizes8(y)), limit, _CMP_LT_OQ);
        wrong |= _mm256_movemask_ps(_mm256_andnot_ps(small, _mm256_castsi256_ps(seen)));
        y = _mm256_and_ps(y, _mm256_and_ps(small, _mm256_castsi256_ps(seen)));
        __m256 floor = _mm256_floor_ps(y);
        __m256i n = _mm256_cvtps_epi32(floor);
        __m256i m = _mm256_add_epi32(n, steps8(v->value_steps + at + j));
        _mm256_storeu_si256((__m256i *)(t->n + j), n);
        _mm256_storeu_ps(t->g + j, exp2_8(_mm256_sub_ps(y, floor)));
        N = _mm256_max_epi32(N, _mm256_blendv_epi8(nothing, n, seen));
        M = _mm256_max_epi32(M, _mm256_blendv_epi8(nothing, m, seen));
    }
    t->N = most_lane(N);
    t->M = most_lane(M);
    const __m256i far = _mm256_set1_epi32(-40);
    for (int32_t j = first & ~7; j < last; j += 8) {
        __m256i seen = visible8(j, first, last), n = _mm256_loadu_si256((const __m256i *)(t->n + j));
        __m256i m = _mm256_add_epi32(n, steps8(v->value_steps + at + j));
        __m256 g = _mm256_loadu_ps(t->g + j);
        __m256i d = _mm256_max_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(20 - t->N)), far);
        __m256i p = _mm256_max_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(12 - t->M)), far);
        D = _mm256_add_epi32(D, _mm256_and_si256(rne_product8(g, two_to8(d)), seen));
        p = _mm256_and_si256(rne_product8(g, two_to8(p)), seen);
        __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
        _mm_storeu_si128((__m128i *)(t->p + j), narrow);
    }
    t->D = lane_sum(D);
    return wrong != 0;
}

/* 16·vectors dims: pairs of positions, unpacked so that one vpmaddwd adds both. */
INLINE void mix_dims(int vectors, const int16_t *rows, int32_t stride, int32_t first, int32_t last,
                     const int16_t *p, int32_t *O) {
    __m256i low[4], high[4];
    for (int i = 0; i < vectors; i++) low[i] = high[i] = _mm256_setzero_si256();
    for (int32_t j = first & ~1; j < last; j += 2) {
        const int16_t *one = rows + (int64_t)j * stride, *two = one + stride;
        __m256i weight = pair8(p + j);
        for (int i = 0; i < vectors; i++) {
            __m256i a = load_codes(one + 16 * i), b = load_codes(two + 16 * i);
            low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight));
            high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight));
        }
    }
    for (int i = 0; i < vectors; i++) {
        __m256i *to = (__m256i *)(O + 16 * i);
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(low[i], high[i], 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low[i], high[i], 0x31));
    }
}

INLINE void mix(const struct view *v, int32_t at, int32_t first, int32_t last, const struct tile *t,
                int32_t *O) {
    const int16_t *rows = v->value + (int64_t)at * v->stride;
    int32_t i = 0;
    for (; i + 64 <= v->stride; i += 64) mix_dims(4, rows + i, v->stride, first, last, t->p, O + i);
    for (; i < v->stride; i += 16) mix_dims(1, rows + i, v->stride, first, last, t->p, O + i);
}

#endif
