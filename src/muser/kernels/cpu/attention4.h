/* Scores, weights and mixing of attention.h with NEON. Groups of four positions are aligned inside
 * the tile; lanes outside [first, last) are computed from stored integers and then masked. */
#ifndef ATTENTION4_H
#define ATTENTION4_H

#include "exact4.h"

/* All bits set where j … j+3 lie in [first, last). */
INLINE uint32x4_t visible4(int32_t j, int32_t first, int32_t last) {
    static const int32_t lane[4] = {0, 1, 2, 3};
    int32x4_t at = vaddq_s32(vdupq_n_s32(j), vld1q_s32(lane));
    return vandq_u32(vcgeq_s32(at, vdupq_n_s32(first)), vcltq_s32(at, vdupq_n_s32(last)));
}

INLINE int32x4_t steps4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(v)));
    return vmovl_s16(vget_low_s16(wide));
}

/* Scores of four stored rows. */
INLINE int32x4_t dots4(const int16_t *q, const int16_t *rows, int32_t stride) {
    int32x4_t sum[4];
    UNROLL
    for (int r = 0; r < 4; r++) sum[r] = vdupq_n_s32(0);
    for (int32_t i = 0; i < stride; i += 8) {
        int16x8_t x = vld1q_s16(q + i);
        UNROLL
        for (int r = 0; r < 4; r++) {
            int16x8_t y = vld1q_s16(rows + r * stride + i);
            sum[r] = vmlal_s16(sum[r], vget_low_s16(x), vget_low_s16(y));
            sum[r] = vmlal_high_s16(sum[r], x, y);
        }
    }
    return vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3]));
}

INLINE int weigh(const struct view *v, const struct query *q, int32_t at, int32_t first, int32_t last,
                 struct tile *t) {
    const int32x4_t nothing = vdupq_n_s32(INT32_MIN), far = vdupq_n_s32(-40);
    int32x4_t N = nothing, M = nothing, D = vdupq_n_s32(0);
    uint32x4_t wrong = vdupq_n_u32(0);
    for (int32_t j = first & ~3; j < last; j += 4) {
        int32x4_t T = dots4(q->codes, v->key + (int64_t)(at + j) * v->stride, v->stride);
        uint32x4_t seen = visible4(j, first, last);
        int32x4_t e = vaddq_s32(steps4(v->key_steps + at + j), vdupq_n_s32(q->step));
        float32x4_t y = vmulq_f32(vcvtq_f32_s32(T), vmulq_n_f32(two_to4(e), v->c));
        uint32x4_t small = vcltq_u32(sizes4(y), vdupq_n_u32(0x4a800000u)); /* 2^22 */
        wrong = vorrq_u32(wrong, vbicq_u32(seen, small));
        y = masked4(y, vandq_u32(small, seen));
        float32x4_t floor = vrndmq_f32(y);
        int32x4_t n = vcvtq_s32_f32(floor), m = vaddq_s32(n, steps4(v->value_steps + at + j));
        vst1q_s32(t->n + j, n);
        vst1q_f32(t->g + j, exp2_4(vsubq_f32(y, floor)));
        N = vmaxq_s32(N, vbslq_s32(seen, n, nothing));
        M = vmaxq_s32(M, vbslq_s32(seen, m, nothing));
    }
    t->N = vmaxvq_s32(N);
    t->M = vmaxvq_s32(M);
    for (int32_t j = first & ~3; j < last; j += 4) {
        int32x4_t seen = vreinterpretq_s32_u32(visible4(j, first, last)), n = vld1q_s32(t->n + j);
        int32x4_t m = vaddq_s32(n, steps4(v->value_steps + at + j));
        float32x4_t g = vld1q_f32(t->g + j);
        int32x4_t d = vmaxq_s32(vaddq_s32(n, vdupq_n_s32(20 - t->N)), far);
        int32x4_t p = vmaxq_s32(vaddq_s32(m, vdupq_n_s32(12 - t->M)), far);
        D = vaddq_s32(D, vandq_s32(rne_product4(g, two_to4(d)), seen));
        p = vandq_s32(rne_product4(g, two_to4(p)), seen);
        vst1_s16(t->p + j, vmovn_s32(p));
    }
    t->D = vaddvq_s32(D);
    return vmaxvq_u32(wrong) != 0;
}

/* 8·vectors dims. */
INLINE void mix_dims(int vectors, const int16_t *rows, int32_t stride, int32_t first, int32_t last,
                     const int16_t *p, int32_t *O) {
    int32x4_t low[4], high[4];
    UNROLL
    for (int i = 0; i < vectors; i++) low[i] = high[i] = vdupq_n_s32(0);
    for (int32_t j = first; j < last; j++) {
        UNROLL
        for (int i = 0; i < vectors; i++) {
            int16x8_t x = vld1q_s16(rows + (int64_t)j * stride + 8 * i);
            low[i] = vmlal_n_s16(low[i], vget_low_s16(x), p[j]);
            high[i] = vmlal_high_n_s16(high[i], x, p[j]);
        }
    }
    UNROLL
    for (int i = 0; i < vectors; i++) {
        vst1q_s32(O + 8 * i, low[i]);
        vst1q_s32(O + 8 * i + 4, high[i]);
    }
}

INLINE void mix(const struct view *v, int32_t at, int32_t first, int32_t last, const struct tile *t,
                int32_t *O) {
    const int16_t *rows = v->value + (int64_t)at * v->stride;
    int32_t i = 0;
    for (; i + 32 <= v->stride; i += 32) mix_dims(4, rows + i, v->stride, first, last, t->p, O + i);
    for (; i < v->stride; i += 16) mix_dims(2, rows + i, v->stride, first, last, t->p, O + i);
}

#endif
