/* The primitives one by one, for the conformance run: arrays in, arrays out, nothing folded. */
#ifndef PRIMITIVES_H
#define PRIMITIVES_H

#include "exact.h"

EXPORT void muser_check_fma(int64_t n, const float *a, const float *b, const float *c, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = fmaf(a[i], b[i], c[i]);
}

EXPORT void muser_check_rne(int64_t n, const float *a, const float *b, int32_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = rne_product(a[i], b[i]);
}

EXPORT void muser_check_int32(int64_t n, const int32_t *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (float)a[i];
}

EXPORT void muser_check_int64(int64_t n, const int64_t *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = int64_to_float(a[i]);
}

EXPORT void muser_check_half(int64_t n, const float *a, uint16_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = float_to_half(a[i]);
}

EXPORT void muser_check_from_half(int64_t n, const uint16_t *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = half_to_float(a[i]);
}

EXPORT void muser_check_divide(int64_t n, const float *a, const float *b, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] / b[i];
}

EXPORT void muser_check_inverse_root(int64_t n, const float *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = 1.0f / sqrtf(a[i]);
}

EXPORT void muser_check_exp(int64_t n, const float *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = exp_of(a[i]);
}

EXPORT void muser_check_exp2_fraction(int64_t n, const float *a, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = exp2_of(a[i]);
}

EXPORT int32_t muser_check_grid(int64_t n, const float *x, int32_t p, int32_t lo, int16_t *codes) {
    int32_t e = grid_step(top_of(x, (int32_t)n), p, lo);
    grid_codes(x, (int32_t)n, p, e, codes);
    return e;
}

#endif
