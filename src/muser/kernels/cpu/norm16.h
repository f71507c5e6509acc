/* Norms with AVX-512: the 256 lanes are sixteen vectors. `sum_of_squares` and `norm_run` of norm.h are
 * the plain forms. */
#ifndef NORM16_H
#define NORM16_H

#include "exact16.h"

INLINE float sum_of_squares16(const float *x, int32_t n) {
    __m512 lane[16];
    UNROLL
    for (int j = 0; j < 16; j++) lane[j] = _mm512_setzero_ps();
    int32_t k = 0;
    for (; k + 256 <= n; k += 256) {
        UNROLL
        for (int j = 0; j < 16; j++) {
            __m512 v = _mm512_loadu_ps(x + k + 16 * j);
            lane[j] = _mm512_fmadd_ps(v, v, lane[j]);
        }
    }
    if (k < n) {
        UNROLL
        for (int j = 0; j < 16; j++) {
            if (k + 16 * j >= n) break;
            __m512 v = _mm512_maskz_loadu_ps(first16(n - k - 16 * j), x + k + 16 * j);
            lane[j] = _mm512_fmadd_ps(v, v, lane[j]);
        }
    }
    UNROLL
    for (int half = 8; half > 0; half /= 2) {
        UNROLL
        for (int j = 0; j < half; j++) lane[j] = _mm512_add_ps(lane[j], lane[j + half]);
    }
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lane[0]), _mm512_extractf32x8_ps(lane[0], 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE uint32_t norm_run16(const float *x, const float *weight, int32_t n, float inverse, float eps,
                           float *out) {
    float sum = sum_of_squares16(x, n);
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(fmaf(sum, inverse, eps)));
    __m512i top = _mm512_setzero_si512();
    for (int32_t k = 0; k < n; k += 16) {
        const __mmask16 live = first16(n - k);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(live, x + k), r);
        if (weight) y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(live, weight + k));
        y = z16(y);
        top = _mm512_max_epu32(top, _mm512_maskz_mov_epi32(live, sizes16(y)));
        _mm512_mask_storeu_ps(out + k, live, y);
    }
    return larger(size_of(sum), _mm512_reduce_max_epu32(top));
}

#endif
