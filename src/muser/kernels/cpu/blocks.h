/* Weight blocks as they lie in the file, and their integer codes.
 *
 *   Q8_0  34 B   d f16 | 32 x int8
 *   Q4_0  18 B   d f16 | 16 B: element i low nibble of byte i, i+16 high; minus 8
 *   Q4_1  20 B   d f16 | m f16 | 16 B as Q4_0, no offset
 *   Q5_0  22 B   d f16 | u32 of fifth bits, bit i of element i | 16 B as Q4_0; minus 16
 *   Q5_1  24 B   d f16 | m f16 | u32 of fifth bits | 16 B as Q4_0, no offset
 *   Q4_K 144 B   d f16 | dmin f16 | 12 B of 6-bit scales and mins | 128 B: group pairs, low then high
 *   Q5_K 176 B   d f16 | dmin f16 | 12 B | 32 B of fifth bits, bit g of byte l | 128 B as Q4_K
 *   Q6_K 210 B   128 B low nibbles | 64 B upper pairs | 16 x int8 scales | d f16; minus 32
 *   GRID         int16 codes [out][in], int8 steps e [out][blocks of 128]; the last may be short
 *
 * "Folded" codes carry their group's scale: at most 945, 1,953 and 4,096 in size for Q4_K, Q5_K and
 * Q6_K, so that a block is one run of int16 products and one integer sum.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "exact.h"

enum format { Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, GRID, F32, F16, BF16 };

INLINE int32_t elements_of(enum format f) {
    switch (f) {
    case Q4_K: case Q5_K: case Q6_K: return 256;
    case GRID: return GRID_BLOCK;
    case F32: case F16: case BF16: return 1;
    default: return 32;
    }
}

INLINE int32_t bytes_of(enum format f) {
    switch (f) {
    case Q8_0: return 34;
    case Q4_0: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case Q6_K: return 210;
    case F32: return 4;
    default: return 2;
    }
}

/* Values d·code + m. */
INLINE int has_offset(enum format f) { return f == Q4_1 || f == Q5_1; }

INLINE int has_mins(enum format f) { return f == Q4_K || f == Q5_K; }

/* The floats of one block: d, and the m of an offset or the K-quants' dmin. Grid: d is the step. */
struct head {
    float d, m;
};

/* The six-bit scales and mins of a Q4_K or Q5_K block; s = its 12 bytes. */
INLINE void scales_and_mins(const uint8_t *s, uint8_t scale[8], uint8_t min[8]) {
    uint32_t a = load_u32(s), b = load_u32(s + 4), c = load_u32(s + 8);
    uint32_t lo = a & 0x3f3f3f3fu, low = b & 0x3f3f3f3fu;
    uint32_t hi = (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4;
    uint32_t high = (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4;
    memcpy(scale, &lo, 4);
    memcpy(scale + 4, &hi, 4);
    memcpy(min, &low, 4);
    memcpy(min + 4, &high, 4);
}

INLINE struct head head_of(enum format f, const uint8_t *p) {
    struct head h = {0.0f, 0.0f};
    if (f == Q6_K) {
        h.d = load_half(p + 208);
        return h;
    }
    h.d = load_half(p);
    if (has_offset(f) || has_mins(f)) h.m = load_half(p + 2);
    return h;
}

INLINE void nibbles(const uint8_t *p, int32_t offset, int16_t *w) {
    for (int k = 0; k < 16; k++) {
        w[k] = (int16_t)((p[k] & 15) - offset);
        w[k + 16] = (int16_t)((p[k] >> 4) - offset);
    }
}

/* The nibbles at p with fifth bits `high`. */
INLINE void fives(const uint8_t *p, uint32_t high, int32_t offset, int16_t *w) {
    for (int k = 0; k < 16; k++) {
        w[k] = (int16_t)(((p[k] & 15) | (high >> k & 1) << 4) - offset);
        w[k + 16] = (int16_t)(((p[k] >> 4) | (high >> (k + 16) & 1) << 4) - offset);
    }
}

/* Folded codes of one Q4_K or Q5_K block; `high` is NULL for Q4_K. */
INLINE void fold_k45(const uint8_t *low, const uint8_t *high, const uint8_t scale[8], int16_t *w) {
    for (int g = 0; g < 4; g++)
        for (int k = 0; k < 32; k++) {
            int b = low[32 * g + k];
            int first = high ? high[k] >> (2 * g) & 1 : 0, second = high ? high[k] >> (2 * g + 1) & 1 : 0;
            w[64 * g + k] = (int16_t)(((b & 15) | first << 4) * scale[2 * g]);
            w[64 * g + 32 + k] = (int16_t)(((b >> 4) | second << 4) * scale[2 * g + 1]);
        }
}

INLINE void fold_q6_k(const uint8_t *p, int16_t *w) {
    const int8_t *scale = (const int8_t *)(p + 192);
    for (int g = 0; g < 2; g++)
        for (int k = 0; k < 32; k++) {
            int a = p[64 * g + k], b = p[64 * g + 32 + k], h = p[128 + 32 * g + k];
            const int8_t *s = scale + 8 * g + k / 16;
            int16_t *to = w + 128 * g + k;
            to[0] = (int16_t)((((a & 15) | (h & 3) << 4) - 32) * s[0]);
            to[32] = (int16_t)((((b & 15) | (h >> 2 & 3) << 4) - 32) * s[2]);
            to[64] = (int16_t)((((a >> 4) | (h >> 4 & 3) << 4) - 32) * s[4]);
            to[96] = (int16_t)((((b >> 4) | (h >> 6 & 3) << 4) - 32) * s[6]);
        }
}

/* Folded codes of a quantised block, and the mins of its eight groups where it has them. */
INLINE void fold_block(enum format f, const uint8_t *p, int16_t *w, uint8_t min[8]) {
    uint8_t scale[8];
    switch (f) {
    case Q8_0:
        for (int k = 0; k < 32; k++) w[k] = (int8_t)p[2 + k];
        break;
    case Q4_0: nibbles(p + 2, 8, w); break;
    case Q4_1: nibbles(p + 4, 0, w); break;
    case Q5_0: fives(p + 6, load_u32(p + 2), 16, w); break;
    case Q5_1: fives(p + 8, load_u32(p + 4), 0, w); break;
    case Q4_K:
        scales_and_mins(p + 4, scale, min);
        fold_k45(p + 16, NULL, scale, w);
        break;
    case Q5_K:
        scales_and_mins(p + 4, scale, min);
        fold_k45(p + 48, p + 16, scale, w);
        break;
    case Q6_K: fold_q6_k(p, w); break;
    default: break;
    }
}

/* t_b of section 4. `low` is the sum of m·q (K-quants) or of q (blocks with an offset). */
INLINE float block_value(enum format f, struct head h, int32_t dot, int32_t low) {
    if (has_mins(f)) return fmaf(h.d, (float)dot, -(h.m * (float)low));
    if (has_offset(f)) return fmaf(h.d, (float)dot, h.m * (float)low);
    return h.d * (float)dot;
}

#endif
