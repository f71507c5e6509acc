/* Four lanes of the primitives in exact.h: the same operations, the same order, the same bits.
 * vfmaq_f32(c, a, b) is fma(a, b, c); vmlaq on floats may or may not fuse and stands nowhere here. */
#ifndef EXACT4_H
#define EXACT4_H

#include <arm_neon.h>

#include "exact.h"

INLINE uint32x4_t sizes4(float32x4_t x) {
    return vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fffffffu));
}

INLINE float32x4_t masked4(float32x4_t x, uint32x4_t keep) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), keep));
}

INLINE float32x4_t z4(float32x4_t x) {
    return masked4(x, vcgeq_u32(sizes4(x), vdupq_n_u32(0x2b800000u)));
}

INLINE float32x4_t two_to4(int32x4_t k) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k, vdupq_n_s32(127)), 23));
}

INLINE int32x4_t rne_product4(float32x4_t a, float32x4_t b) {
    float32x4_t shifted = vfmaq_f32(vdupq_n_f32(0x1.8p23f), a, b);
    int32x4_t low = vandq_s32(vreinterpretq_s32_f32(shifted), vdupq_n_s32(0x7fffff));
    return vsubq_s32(low, vdupq_n_s32(0x400000));
}

INLINE float32x4_t exp2_4(float32x4_t f) {
    float32x4_t g = vdupq_n_f32(0x1.cacdf6p-13f);
    g = vfmaq_f32(vdupq_n_f32(0x1.44bd44p-10f), g, f);
    g = vfmaq_f32(vdupq_n_f32(0x1.3d5826p-7f), g, f);
    g = vfmaq_f32(vdupq_n_f32(0x1.c67ee4p-5f), g, f);
    g = vfmaq_f32(vdupq_n_f32(0x1.ebfdf8p-3f), g, f);
    g = vfmaq_f32(vdupq_n_f32(0x1.62e428p-1f), g, f);
    return vfmaq_f32(vdupq_n_f32(0x1p+0f), g, f);
}

#endif
