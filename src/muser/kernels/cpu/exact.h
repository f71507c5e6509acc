/* The scalar primitives of docs/arithmetic.md, `fmaf` exactly where it says fma. Sections named in
 * these texts are those of that page. */
#ifndef EXACT_H
#define EXACT_H

#include "muser.h"

/* Results pass through a run of this many before they are stored: a target may be its own source,
 * and a compiler must see that the loop's loads and stores do not meet. */
enum { RUN = 64 };

INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

INLINE uint32_t size_of(float x) { return bits_of(x) & 0x7fffffffu; }

INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

INLINE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

/* z(x) = |x| < 2^-40 ? +0 : x, by a mask: with a select here the maximum of `kept` would become a
 * conditional one, and its loop stay scalar. */
INLINE float z(float x) {
    uint32_t keep = 0u - (uint32_t)(size_of(x) >= 0x2b800000u);
    return float_of(bits_of(x) & keep);
}

/* What every stored f32 goes through: z, and the running maximum for the exponent test. */
INLINE float kept(float x, uint32_t *top) {
    float y = z(x);
    *top = larger(*top, size_of(y));
    return y;
}

/* 2^k, -126 <= k <= 127. */
INLINE float two_to(int32_t k) { return float_of((uint32_t)(k + 127) << 23); }

/* Nearest-even integer of a·b, |a·b| < 2^22, without rounding the product first. */
INLINE int32_t rne_product(float a, float b) {
    return (int32_t)(bits_of(fmaf(a, b, 0x1.8p23f)) & 0x7fffffu) - 0x400000;
}

/* f(i) of a 64-bit integer. clang 19 turns a loop of casts for ARM into two roundings, by way of f64: so
 * what f64 has no room for is folded into the lowest bit that it keeps, and the first one is exact. */
INLINE float int64_to_float(int64_t i) {
    uint64_t u = i < 0 ? 0u - (uint64_t)i : (uint64_t)i, rest = 0x7ff;
    if (u >> 53) u = (u | ((u & rest) + rest)) & ~rest;
    float x = (float)(double)u;
    return i < 0 ? -x : x;
}

INLINE float half_to_float(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
    if (body >= 0x7c00u) return float_of(sign | 0x7f800000u | (body & 0x3ffu) << 13);
    if (body < 0x400u) {
        float x = (float)body * 0x1p-24f;
        return sign ? -x : x;
    }
    return float_of(sign | ((body << 13) + 0x38000000u));
#endif
}

INLINE uint16_t float_to_half(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, 0);
#else
    uint32_t u = bits_of(x), body = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (body > 0x7f800000u) return sign | 0x7e00u;
    if (body >= 0x477ff000u) return sign | 0x7c00u;
    if (body < 0x38800000u) { /* below 2^-14: count steps of 2^-24 with the adder's own rounding */
        float steps = float_of(body) + 0.5f;
        return sign | (uint16_t)(bits_of(steps) - 0x3f000000u);
    }
    uint32_t odd = body >> 13 & 1u;
    return sign | (uint16_t)((body + 0xfffu + odd - 0x38000000u) >> 13);
#endif
}

INLINE uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE float load_half(const uint8_t *p) { return half_to_float(load_u16(p)); }

/* `yes` where u lies in (over, up_to], by one unsigned comparison and masks: a select of floats
 * would let a compiler branch around the operations that made them, and the loop stays scalar. */
INLINE float select_between(uint32_t u, uint32_t over, uint32_t up_to, float yes, float no) {
    uint32_t mask = 0u - (uint32_t)(u - over - 1u < up_to - over);
    return float_of((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

/* exp of section 5; below -80 zero, above 80 taken as 80, NaN stays NaN. */
INLINE float exp_of(float x) {
    float c = select_between(bits_of(x), 0x42a00000u, 0x7f800000u, 80.0f, x);
    float shifted = fmaf(c, 0x1.715476p+0f, 0x1.8p23f);
    float n = shifted - 0x1.8p23f;
    float r = fmaf(-n, 0x1.62e4p-1f, c);
    r = fmaf(-n, 0x1.7f7d1cp-20f, r);
    float scale = float_of((bits_of(shifted) << 23) + 0x3f800000u);
    float r2 = r * r;
    float p1 = fmaf(0x1.0e4020p-7f, r, 0x1.573e2ep-5f);
    float p2 = fmaf(0x1.555e66p-3f, r, 0x1.fffdb6p-2f);
    p2 = fmaf(p1, r2, p2);
    float p = fmaf(p2, r2, 0x1.ffffecp-1f * r);
    float y = fmaf(p, scale, scale);
    return select_between(bits_of(x), 0xc2a00000u, 0xff800000u, 0.0f, y);
}

INLINE float absolute(float x) { return float_of(size_of(x)); }

INLINE float sigmoid_of(float x) {
    float e = exp_of(-absolute(x));
    float up = select_between(bits_of(x), 0x7fffffffu, 0xffffffffu, e, 1.0f); /* -0: e is 1 */
    return up / (1.0f + e);
}

INLINE float silu_of(float x) { return x * sigmoid_of(x); }

INLINE float tanh_of(float x) {
    float e = exp_of(-2.0f * absolute(x));
    float t = (1.0f - e) / (1.0f + e);
    return float_of(bits_of(t) | (bits_of(x) & 0x80000000u));
}

INLINE float gelu_of(float x) {
    float inner = fmaf((0x1.6e4e26p-5f * x) * x, x, x);
    return 0.5f * x * (1.0f + tanh_of(0x1.988454p-1f * inner));
}

/* E(f) of 2^f on [0, 1): Horner by fma, degree 6. */
INLINE float exp2_of(float f) {
    float g = 0x1.cacdf6p-13f;
    g = fmaf(g, f, 0x1.44bd44p-10f);
    g = fmaf(g, f, 0x1.3d5826p-7f);
    g = fmaf(g, f, 0x1.c67ee4p-5f);
    g = fmaf(g, f, 0x1.ebfdf8p-3f);
    g = fmaf(g, f, 0x1.62e428p-1f);
    return fmaf(g, f, 0x1p+0f);
}

/* Largest |x| of a run, as bits. */
INLINE uint32_t top_of(const float *x, int32_t n) {
    uint32_t top = 0;
    for (int32_t k = 0; k < n; k++) top = larger(top, size_of(x[k]));
    return top;
}

/* G(x, p, lo): the step e, which stands for 2^e, of a run whose largest size is `top` (bits). */
INLINE int32_t grid_step(uint32_t top, int32_t p, int32_t lo) {
    if (top == 0) return lo;
    return most((int32_t)(top >> 23) - 127 + 1 - p, lo);
}

INLINE void grid_codes(const float *x, int32_t n, int32_t p, int32_t e, int16_t *codes) {
    float inverse = two_to(-e);
    int32_t bound = (1 << p) - 1;
    for (int32_t k = 0; k < n; k++)
        codes[k] = (int16_t)most(-bound, least(bound, rne_product(x[k], inverse)));
}

#endif
