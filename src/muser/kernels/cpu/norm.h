/* Norms: 256 lanes of squares, halved 128, 64, … 1; r = 1/sqrt(fma(sum, 1/n, eps)). */
#ifndef NORM_H
#define NORM_H

#include "exact.h"
#if defined(__AVX512VNNI__)
#include "norm16.h"
#endif

INLINE float sum_of_squares(const float *x, int32_t n) {
    float lane[256] = {0};
    int32_t k = 0;
    for (; k + 256 <= n; k += 256)
        for (int i = 0; i < 256; i++) lane[i] = fmaf(x[k + i], x[k + i], lane[i]);
    for (int i = 0; k + i < n; i++) lane[i] = fmaf(x[k + i], x[k + i], lane[i]);
    for (int half = 128; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* `weight` NULL: no factor. Returns the largest size written; an infinite sum counts as one. */
INLINE uint32_t norm_run(const float *x, const float *weight, int32_t n, float inverse, float eps,
                         float *out) {
    float sum = sum_of_squares(x, n);
    float r = 1.0f / sqrtf(fmaf(sum, inverse, eps));
    uint32_t top = size_of(sum);
    for (int32_t k = 0; k < n; k += RUN) {
        const int32_t m = least(RUN, n - k);
        float run[RUN];
        if (weight)
            for (int32_t i = 0; i < m; i++) run[i] = kept((x[k + i] * r) * weight[k + i], &top);
        else
            for (int32_t i = 0; i < m; i++) run[i] = kept(x[k + i] * r, &top);
        memcpy(out + k, run, (size_t)m * sizeof *run);
    }
    return top;
}

/* A norm's weight has been pushed out of the caches since the last token: it is asked for before the sum
 * that comes first. */
INLINE void ask_for_weight(const struct args *a) {
    if (a->weight)
        for (int32_t k = 0; k < a->head_dim; k += 16) __builtin_prefetch((const float *)a->weight + k);
}

/* x, weight (f32 [head_dim] or NULL), heads, head_dim, eps, inverse. rms_norm has one head. */
INLINE void norm_rows(const struct args *a, const float *x, float *out, const struct worker *w) {
    int32_t width = a->heads * a->head_dim;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t h = 0; h < a->heads; h++) {
            int64_t at = (int64_t)r * width + h * a->head_dim;
#if defined(__AVX512VNNI__)
            uint32_t top = norm_run16(x + at, a->weight, a->head_dim, a->inverse, a->eps, out + at);
#else
            uint32_t top = norm_run(x + at, a->weight, a->head_dim, a->inverse, a->eps, out + at);
#endif
            check_row(top, w, r);
        }
}

#endif
