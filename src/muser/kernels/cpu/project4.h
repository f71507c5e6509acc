/* Projection with NEON over packed weights: four outputs in the lanes of a vector, a panel of sixteen
 * in four vectors. Bytes are multiplied by SDOT, one lane of a row's codes against the codes of four
 * outputs, or, where I8MM is, by SMMLA: two rows against two outputs, eight elements deep. Both are
 * exact in int32.
 *
 * Codes stay as they lie in the file, 0 to 63; what an offset makes too large is taken off the sum:
 * the offset times the sum of the row's codes.
 */
#ifndef PROJECT4_H
#define PROJECT4_H

#include "byte_rows.h"
#include "exact4.h"
#include "pack.h"

enum { FOUR = 4, VECTORS = LANES / FOUR, MOST_ROWS = 8 };

/* The quantised rows of a tile: rows behind the last one are the last one again, never stored. */
struct tile_rows {
    const int8_t *codes[MOST_ROWS];
    const float *scales[MOST_ROWS];
    const float *sums[MOST_ROWS];
    const int16_t *group_sums[MOST_ROWS];
};

INLINE struct tile_rows rows_from(enum format f, int count, const struct args *a, int32_t base) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    struct tile_rows t;
    for (int r = 0; r < count; r++) {
        int64_t row = least(base + r, *a->rows - 1);
        t.codes[r] = (const int8_t *)a->codes + row * span * (f == GRID ? 2 : 1);
        t.scales[r] = a->scales + row * blocks;
        t.sums[r] = (const float *)(const void *)a->sums + row * blocks;
        t.group_sums[r] = a->sums + row * blocks * SUMS_OF_256;
    }
    return t;
}

/* Where the parts of block n of a panel of so many blocks begin. */
struct packed {
    const uint8_t *heads, *scales, *high, *codes;
};

INLINE struct packed packed_at(enum format f, const uint8_t *panel, int32_t blocks, int32_t n) {
    struct packed b;
    b.heads = panel + (int64_t)n * head_bytes(f);
    b.scales = panel + heads_bytes(f, blocks) + (int64_t)n * body_bytes(f);
    b.high = b.scales + VECTOR * (has_mins(f) ? 3 : f == Q6_K ? 4 : 0);
    b.codes = b.high + VECTOR * (f == Q5_0 || f == Q5_1 ? 1 : f == Q5_K ? 8 : f == Q6_K ? 16 : 0);
    return b;
}

/* What the codes of a format are too large by. */
INLINE int32_t offset_of(enum format f) {
    return f == Q4_0 ? 8 : f == Q5_0 ? 16 : f == Q6_K ? 32 : 0;
}

INLINE uint8x16_t bytes16(const uint8_t *p) { return vld1q_u8(p); }

INLINE uint8x16_t nibble_of(uint8x16_t v, int high) {
    return high ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15));
}

/* The bits of `mask`, 16 or 48, after bit `at` of h has come to bit 4. */
INLINE uint8x16_t raised(uint8x16_t h, int at, int mask) {
    return vandq_u8(vshlq_u8(h, vdupq_n_s8((int8_t)(4 - at))), vdupq_n_u8((uint8_t)mask));
}

/* Codes of elements 4j … 4j+3 of group g, for the four outputs of vector v. A 32-block is one group
 * of 32, Q4_K and Q5_K have eight of 32, Q6_K sixteen of 16. */
INLINE int8x16_t codes_of(enum format f, const struct packed *b, int g, int j, int v) {
    const int at = 16 * v;
    uint8x16_t code;
    switch (f) {
    case Q8_0: code = bytes16(b->codes + VECTOR * j + at); break;
    case Q4_K: case Q5_K:
        code = nibble_of(bytes16(b->codes + VECTOR * (8 * (g >> 1) + j) + at), g & 1);
        if (f == Q5_K) code = vorrq_u8(code, raised(bytes16(b->high + VECTOR * j + at), g, 16));
        break;
    case Q6_K: { /* half g/8, quarter, the first or second sixteen of 32 */
        const int half = g >> 3, quarter = g >> 1 & 3, i = 4 * (g & 1) + j;
        code = bytes16(b->codes + VECTOR * (16 * half + 8 * (quarter & 1) + i) + at);
        uint8x16_t high = bytes16(b->high + VECTOR * (8 * half + i) + at);
        code = vorrq_u8(nibble_of(code, quarter >> 1), raised(high, 2 * quarter, 48));
        break;
    }
    default:
        code = nibble_of(bytes16(b->codes + VECTOR * (j & 3) + at), j >> 2);
        if (f == Q5_0 || f == Q5_1) code = vorrq_u8(code, raised(bytes16(b->high + at), j, 16));
    }
    return vreinterpretq_s8_u8(code);
}

/* Sums of products of one group, four outputs a vector: `vectors` of them from `from` on. */
struct dots {
    int32x4_t row[MOST_ROWS][VECTORS];
};

/* The lane is a constant where this is unrolled. */
INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) {
    case 0: return vdotq_laneq_s32(sum, w, x, 0);
    case 1: return vdotq_laneq_s32(sum, w, x, 1);
    case 2: return vdotq_laneq_s32(sum, w, x, 2);
    default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

/* By SDOT: `quads` · 4 elements of group g, which begin at `at` in each row. */
INLINE void dot_lanes(enum format f, int quads, int count, int from, int vectors,
                      const struct packed *b, int g, const struct tile_rows *t, int32_t at,
                      struct dots *d) {
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
        for (int v = 0; v < vectors; v++) d->row[r][v] = vdupq_n_s32(0);
    UNROLL
    for (int j = 0; j < quads; j += 4) {
        int8x16_t x[MOST_ROWS];
        UNROLL
        for (int r = 0; r < count; r++) x[r] = vld1q_s8(t->codes[r] + at + 4 * j);
        UNROLL
        for (int k = 0; k < 4; k++)
            UNROLL
            for (int v = 0; v < vectors; v++) {
                int8x16_t w = codes_of(f, b, g, j + k, from + v);
                UNROLL
                for (int r = 0; r < count; r++) d->row[r][v] = dot_lane(d->row[r][v], w, x[r], k);
            }
    }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* Sums of two rows against two outputs each: row 0 with both, then row 1. */
struct quarters {
    int32x4_t of[MOST_ROWS / 2][VECTORS][2];
};

INLINE void part_quarters(int count, int vectors, const struct quarters *s, struct dots *d) {
    UNROLL
    for (int r = 0; r < count; r += 2)
        UNROLL
        for (int v = 0; v < vectors; v++) {
            int32x4_t one = s->of[r / 2][v][0], two = s->of[r / 2][v][1];
            d->row[r][v] = vcombine_s32(vget_low_s32(one), vget_low_s32(two));
            d->row[r + 1][v] = vcombine_s32(vget_high_s32(one), vget_high_s32(two));
        }
}

/* By SMMLA: the same sums as dot_lanes, for an even count of rows. */
INLINE void dot_pairs(enum format f, int quads, int count, int from, int vectors,
                      const struct packed *b, int g, const struct tile_rows *t, int32_t at,
                      struct dots *d) {
    struct quarters s;
    UNROLL
    for (int r = 0; r < count; r += 2)
        UNROLL
        for (int v = 0; v < vectors; v++) s.of[r / 2][v][0] = s.of[r / 2][v][1] = vdupq_n_s32(0);
    UNROLL
    for (int j = 0; j < quads; j += 2) {
        int8x16_t x[MOST_ROWS / 2];
        UNROLL
        for (int r = 0; r < count; r += 2)
            x[r / 2] = vcombine_s8(vld1_s8(t->codes[r] + at + 4 * j),
                                   vld1_s8(t->codes[r + 1] + at + 4 * j));
        UNROLL
        for (int v = 0; v < vectors; v++) {
            int32x4_t one = vreinterpretq_s32_s8(codes_of(f, b, g, j, from + v));
            int32x4_t two = vreinterpretq_s32_s8(codes_of(f, b, g, j + 1, from + v));
            int8x16_t first = vreinterpretq_s8_s32(vzip1q_s32(one, two));
            int8x16_t second = vreinterpretq_s8_s32(vzip2q_s32(one, two));
            UNROLL
            for (int r = 0; r < count; r += 2) {
                s.of[r / 2][v][0] = vmmlaq_s32(s.of[r / 2][v][0], x[r / 2], first);
                s.of[r / 2][v][1] = vmmlaq_s32(s.of[r / 2][v][1], x[r / 2], second);
            }
        }
    }
    part_quarters(count, vectors, &s, d);
}
#endif

INLINE void dot_group(enum format f, int quads, int count, int from, int vectors,
                      const struct packed *b, int g, const struct tile_rows *t, int32_t at,
                      struct dots *d) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (count > 1) {
        dot_pairs(f, quads, count, from, vectors, b, g, t, at, d);
        return;
    }
#endif
    dot_lanes(f, quads, count, from, vectors, b, g, t, at, d);
}

/* The outputs' totals on their way through the blocks. */
struct totals {
    float32x4_t row[MOST_ROWS][VECTORS];
};

/* Four f16 values. */
INLINE float32x4_t halves4(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE void add_block_of_32(enum format f, int count, int from, int vectors, const struct packed *b,
                            const struct tile_rows *t, int32_t n, struct totals *total) {
    struct dots d;
    dot_group(f, 8, count, from, vectors, b, 0, t, 32 * n, &d);
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const float32x4_t scale = halves4(b->heads + 8 * (from + v));
        const float32x4_t least_value =
            has_offset(f) ? halves4(b->heads + 2 * LANES + 8 * (from + v)) : vdupq_n_f32(0);
        UNROLL
        for (int r = 0; r < count; r++) {
            const float sum = t->sums[r][n];
            int32x4_t dot = d.row[r][v];
            if (offset_of(f)) dot = vsubq_s32(dot, vdupq_n_s32(offset_of(f) * (int32_t)sum));
            float32x4_t x = vcvtq_f32_s32(dot), value = vmulq_f32(scale, x);
            if (has_offset(f)) value = vfmaq_f32(vmulq_n_f32(least_value, sum), scale, x);
            total->row[r][v] = vfmaq_n_f32(total->row[r][v], value, t->scales[r][n]);
        }
    }
}

/* The six-bit scales and mins of four outputs; byte i of a lane is that of group i or 4 + i. */
struct factors {
    uint32x4_t scale[2], min[2];
};

INLINE struct factors factors_of(const uint8_t *p) {
    const uint8x16_t six = vdupq_n_u8(0x3f), four = vdupq_n_u8(0x0f), top = vdupq_n_u8(0x30);
    uint8x16_t a = bytes16(p), b = bytes16(p + VECTOR), c = bytes16(p + 2 * VECTOR);
    uint8x16_t scale = vorrq_u8(vandq_u8(c, four), vandq_u8(vshrq_n_u8(a, 2), top));
    uint8x16_t min = vorrq_u8(vshrq_n_u8(c, 4), vandq_u8(vshrq_n_u8(b, 2), top));
    struct factors k = {
        {vreinterpretq_u32_u8(vandq_u8(a, six)), vreinterpretq_u32_u8(scale)},
        {vreinterpretq_u32_u8(vandq_u8(b, six)), vreinterpretq_u32_u8(min)},
    };
    return k;
}

/* Byte i of every lane. */
INLINE int32x4_t unsigned_byte(uint32x4_t v, int i) {
    uint32x4_t down = vshlq_u32(v, vdupq_n_s32(-8 * i));
    return vreinterpretq_s32_u32(vandq_u32(down, vdupq_n_u32(0xff)));
}

INLINE int32x4_t signed_byte(uint32x4_t v, int i) {
    return vshrq_n_s32(vshlq_s32(vreinterpretq_s32_u32(v), vdupq_n_s32(24 - 8 * i)), 24);
}

/* Where the sum of group g stands among the first eight of a row's sums. */
INLINE int sum_place(int g) {
    static const uint8_t place[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    return place[g];
}

INLINE void clear(int count, int vectors, struct dots *d) {
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
        for (int v = 0; v < vectors; v++) d->row[r][v] = vdupq_n_s32(0);
}

INLINE void add_block_k45(enum format f, int count, int from, int vectors, const struct packed *b,
                          const struct tile_rows *t, int32_t n, struct totals *total) {
    struct dots sum, low;
    clear(count, vectors, &sum);
    clear(count, vectors, &low);
    for (int quad = 0; quad < 2; quad++) {
        uint32x4_t scales[VECTORS], mins[VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            struct factors k = factors_of(b->scales + 16 * (from + v));
            scales[v] = quad ? k.scale[1] : k.scale[0];
            mins[v] = quad ? k.min[1] : k.min[0];
        }
        for (int pair = 0; pair < 2; pair++)
            UNROLL
            for (int half = 0; half < 2; half++) {
                const int g = 4 * quad + 2 * pair + half;
                struct dots d;
                dot_group(f, 8, count, from, vectors, b, g, t, 256 * n + 32 * g, &d);
                UNROLL
                for (int v = 0; v < vectors; v++) {
                    int32x4_t scale = unsigned_byte(scales[v], 2 * pair + half);
                    int32x4_t min = unsigned_byte(mins[v], 2 * pair + half);
                    UNROLL
                    for (int r = 0; r < count; r++) {
                        const int32_t q = t->group_sums[r][n * SUMS_OF_256 + sum_place(g)];
                        sum.row[r][v] = vmlaq_s32(sum.row[r][v], scale, d.row[r][v]);
                        low.row[r][v] = vmlaq_n_s32(low.row[r][v], min, q);
                    }
                }
            }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const float32x4_t scale = halves4(b->heads + 8 * (from + v));
        const float32x4_t min = halves4(b->heads + 2 * LANES + 8 * (from + v));
        UNROLL
        for (int r = 0; r < count; r++) {
            float32x4_t under = vmulq_f32(min, vcvtq_f32_s32(low.row[r][v]));
            float32x4_t value = vfmaq_f32(vnegq_f32(under), scale, vcvtq_f32_s32(sum.row[r][v]));
            total->row[r][v] = vfmaq_n_f32(total->row[r][v], value, t->scales[r][n]);
        }
    }
}

INLINE void add_block_q6_k(int count, int from, int vectors, const struct packed *b,
                           const struct tile_rows *t, int32_t n, struct totals *total) {
    struct dots sum;
    clear(count, vectors, &sum);
    for (int g = 0; g < 16; g += 4)
        UNROLL
        for (int i = 0; i < 4; i++) {
            struct dots d;
            dot_group(Q6_K, 4, count, from, vectors, b, g + i, t, 256 * n + 16 * (g + i), &d);
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const uint8_t *four = b->scales + VECTOR * (g >> 2) + 16 * (from + v);
                int32x4_t scale = signed_byte(vreinterpretq_u32_u8(bytes16(four)), i);
                UNROLL
                for (int r = 0; r < count; r++) {
                    const int32_t q = t->group_sums[r][n * SUMS_OF_256 + 8 + g + i];
                    int32x4_t dot = vsubq_s32(d.row[r][v], vdupq_n_s32(offset_of(Q6_K) * q));
                    sum.row[r][v] = vmlaq_s32(sum.row[r][v], scale, dot);
                }
            }
        }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const float32x4_t scale = halves4(b->heads + 8 * (from + v));
        UNROLL
        for (int r = 0; r < count; r++) {
            float32x4_t value = vmulq_f32(scale, vcvtq_f32_s32(sum.row[r][v]));
            total->row[r][v] = vfmaq_n_f32(total->row[r][v], value, t->scales[r][n]);
        }
    }
}

/* Grid codes: int16, two elements of an output in a dword. */
INLINE int32x4_t add_wide(int32x4_t sum, int16x4_t w, int16x4_t x, int lane) {
    switch (lane) {
    case 0: return vmlal_lane_s16(sum, w, x, 0);
    case 1: return vmlal_lane_s16(sum, w, x, 1);
    case 2: return vmlal_lane_s16(sum, w, x, 2);
    default: return vmlal_lane_s16(sum, w, x, 3);
    }
}

INLINE void add_block_grid(int count, int from, int vectors, const struct packed *b,
                           const struct tile_rows *t, int32_t n, struct totals *total) {
    struct dots d;
    clear(count, vectors, &d);
    for (int j = 0; j < GRID_BLOCK / 2; j += 2) {
        int16x4_t x[MOST_ROWS];
        UNROLL
        for (int r = 0; r < count; r++)
            x[r] = vld1_s16((const int16_t *)(const void *)t->codes[r] + GRID_BLOCK * n + 2 * j);
        UNROLL
        for (int k = 0; k < 2; k++)
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const uint8_t *at = b->codes + VECTOR * (j + k) + 16 * (from + v);
                int32x4_t both = vreinterpretq_s32_u8(bytes16(at));
                int16x4_t even = vmovn_s32(both), odd = vshrn_n_s32(both, 16);
                UNROLL
                for (int r = 0; r < count; r++) {
                    d.row[r][v] = add_wide(d.row[r][v], even, x[r], 2 * k);
                    d.row[r][v] = add_wide(d.row[r][v], odd, x[r], 2 * k + 1);
                }
            }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const float32x4_t step = vreinterpretq_f32_u8(bytes16(b->heads + 16 * (from + v)));
        UNROLL
        for (int r = 0; r < count; r++) {
            float32x4_t both = vmulq_n_f32(step, t->scales[r][n]);
            total->row[r][v] = vfmaq_f32(total->row[r][v], vcvtq_f32_s32(d.row[r][v]), both);
        }
    }
}

/* Outputs o … of row r; those behind the last are left out. */
INLINE void store4(const struct args *a, const struct worker *w, int32_t r, int32_t o, float32x4_t total) {
    float lanes[FOUR];
    float *to = a->out + (int64_t)r * a->out_width + o;
    const int32_t n = least(FOUR, a->out_width - o);
    uint32_t top = 0;
    vst1q_f32(lanes, z4(total));
    for (int32_t i = 0; i < n; i++) {
        to[i] = lanes[i];
        top = larger(top, size_of(lanes[i]));
    }
    check_row(top, w, r);
}

/* `vectors` of a panel from `from` on against `count` rows from `base` on. */
INLINE void project_part(enum format f, int count, int from, int vectors, const struct args *a,
                         const struct worker *w, const uint8_t *panel, int32_t base, int32_t o) {
    const int32_t blocks = round_up(a->width, elements_of(f)) / elements_of(f);
    const struct tile_rows t = rows_from(f, count, a, base);
    struct totals total;
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
        for (int v = 0; v < vectors; v++) total.row[r][v] = vdupq_n_f32(0);
    for (int32_t n = 0; n < blocks; n++) {
        const struct packed b = packed_at(f, panel, blocks, n);
        if (f == GRID) add_block_grid(count, from, vectors, &b, &t, n, &total);
        else if (f == Q6_K) add_block_q6_k(count, from, vectors, &b, &t, n, &total);
        else if (has_mins(f)) add_block_k45(f, count, from, vectors, &b, &t, n, &total);
        else add_block_of_32(f, count, from, vectors, &b, &t, n, &total);
    }
    for (int r = 0; r < count && base + r < *a->rows; r++)
        for (int v = 0; v < vectors && o + FOUR * (from + v) < a->out_width; v++)
            store4(a, w, base + r, o + FOUR * (from + v), total.row[r][v]);
}

/* One row, or four, against a whole panel; eight against one half of it and then the other, so that
 * the sums stay in registers. */
INLINE void project_packed(enum format f, int32_t bucket, const struct args *a, const struct worker *w) {
    const int32_t blocks = round_up(a->width, elements_of(f)) / elements_of(f);
    const int count = bucket == 1 ? 1 : bucket == 4 ? 4 : 8, vectors = count == 8 ? 2 : VECTORS;
    struct span part = share(a->out_width, LANES, w);
    for (int32_t o = part.begin; o < part.end; o += LANES) {
        const uint8_t *panel = (const uint8_t *)a->weight + o / LANES * panel_bytes(f, blocks);
        for (int32_t base = 0; base < *a->rows; base += count)
            for (int from = 0; from < VECTORS; from += vectors)
                project_part(f, count, from, vectors, a, w, panel, base, o);
    }
}

#endif
