/* Projection with AVX-512 VNNI over packed weights: sixteen outputs in the lanes, bytes by vpdpbusd
 * (codes of weights unsigned, of activations signed), exact in int32.
 *
 * The unsigned codes of formats with an offset are turned back by what an accumulator begins with:
 * minus the offset times the sum of the row's codes.
 */
#ifndef PROJECT16_H
#define PROJECT16_H

#include "pack.h"
#include "byte_rows.h"

/* The quantised rows of a tile: rows behind the last one are the last one again, never stored. */
struct tile_rows {
    const int8_t *codes[8];
    const float *scales[8];
    const float *sums[8];
    const int16_t *group_sums[8];
};

INLINE struct tile_rows rows_from(enum format f, int count, const struct args *a, int32_t base) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    struct tile_rows t;
    UNROLL
    for (int r = 0; r < count; r++) {
        int64_t row = least(base + r, *a->rows - 1);
        t.codes[r] = (const int8_t *)a->codes + row * span * (f == GRID ? 2 : 1);
        t.scales[r] = a->scales + row * blocks;
        t.sums[r] = (const float *)(const void *)a->sums + row * blocks;
        t.group_sums[r] = a->sums + row * blocks * SUMS_OF_256;
    }
    return t;
}

/* What the unsigned codes of a 32-block are too large by. */
INLINE int32_t offset_of(enum format f) {
    switch (f) {
    case Q8_0: return 128;
    case Q4_0: return 8;
    case Q5_0: return 16;
    default: return 0;
    }
}

INLINE int has_fifth_bits(enum format f) { return f == Q5_0 || f == Q5_1 || f == Q5_K; }

INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }

/* Bit `bit` of every byte of h, as bit 4 of v's bytes. */
INLINE __m512i with_bit(__m512i v, __m512i h, int bit) {
    __m512i at_4 = bit <= 4 ? _mm512_slli_epi16(h, (unsigned)(4 - bit))
                            : _mm512_srli_epi16(h, (unsigned)(bit - 4));
    return _mm512_ternarylogic_epi32(v, at_4, _mm512_set1_epi8(16), 0xf8); /* v | (at_4 & 16) */
}

/* Unsigned codes of elements 4j … 4j+3 (low) and 16+4j … (high) of a 32-block; Q8_0 has them in
 * vectors j and 4+j. `p` stands behind H, which `fifth` holds. */
INLINE void codes_of_32(enum format f, const uint8_t *p, __m512i fifth, int j, __m512i *low,
                        __m512i *high) {
    if (f == Q8_0) {
        const __m512i sign = _mm512_set1_epi8((char)0x80);
        *low = _mm512_xor_si512(load16(p + VECTOR * j), sign);
        *high = _mm512_xor_si512(load16(p + VECTOR * (4 + j)), sign);
        return;
    }
    __m512i v = load16(p + VECTOR * j);
    *low = low_nibbles(v);
    *high = high_nibbles(v);
    if (has_fifth_bits(f)) {
        *low = with_bit(*low, fifth, j);
        *high = with_bit(*high, fifth, 4 + j);
    }
}

INLINE void add_block_of_32(enum format f, int count, const uint8_t *head, const uint8_t *p,
                            const struct tile_rows *t, int32_t b, __m512 total[8]) {
    const int32_t offset = offset_of(f);
    const __m512 d = halves16(head), m = has_offset(f) ? halves16(head + 2 * LANES) : d;
    __m512i fifth = _mm512_setzero_si512(), acc[8];
    if (has_fifth_bits(f)) {
        fifth = load16(p);
        p += VECTOR;
    }
    UNROLL
    for (int r = 0; r < count; r++)
        acc[r] = offset ? _mm512_set1_epi32(-offset * (int32_t)t->sums[r][b]) : _mm512_setzero_si512();
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i low, high;
        codes_of_32(f, p, fifth, j, &low, &high);
        UNROLL
        for (int r = 0; r < count; r++) {
            const int8_t *q = t->codes[r] + 32 * b + 4 * j;
            acc[r] = _mm512_dpbusd_epi32(acc[r], low, spread16(q));
            acc[r] = _mm512_dpbusd_epi32(acc[r], high, spread16(q + 16));
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        __m512 x = _mm512_cvtepi32_ps(acc[r]), value = _mm512_mul_ps(d, x);
        if (has_offset(f))
            value = _mm512_fmadd_ps(d, x, _mm512_mul_ps(m, _mm512_set1_ps(t->sums[r][b])));
        total[r] = _mm512_fmadd_ps(_mm512_set1_ps(t->scales[r][b]), value, total[r]);
    }
}

/* The six-bit scales (groups 0-3, 4-7) and mins of sixteen rows, four bytes a lane. */
struct factors {
    __m512i scale[2], min[2];
};

INLINE struct factors factors_of(const uint8_t *p) {
    const __m512i six = _mm512_set1_epi8(0x3f), four = _mm512_set1_epi8(0x0f);
    const __m512i top = _mm512_set1_epi8(0x30);
    __m512i a = load16(p), b = load16(p + VECTOR), c = load16(p + 2 * VECTOR);
    struct factors k;
    k.scale[0] = _mm512_and_si512(a, six);
    k.min[0] = _mm512_and_si512(b, six);
    /* low | (upper >> 2 & top) */
    k.scale[1] = _mm512_ternarylogic_epi32(_mm512_and_si512(c, four), _mm512_srli_epi32(a, 2), top, 0xf8);
    k.min[1] = _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi32(c, 4), four),
                                         _mm512_srli_epi32(b, 2), top, 0xf8);
    return k;
}

/* Σ m·q of a block; the sums lie as 0, 2, 1, 3, 4, 6, 5, 7 so that two mins of a lane meet theirs. */
INLINE __m512i min_sums(const struct factors *k, const int16_t *sums) {
    const __m512i alternate = _mm512_set1_epi32(0x00ff00ff);
    __m512i low = _mm512_setzero_si512();
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i even = _mm512_and_si512(k->min[i], alternate);
        __m512i odd = _mm512_and_si512(_mm512_srli_epi32(k->min[i], 8), alternate);
        low = _mm512_dpwssd_epi32(low, even, spread16(sums + 4 * i));
        low = _mm512_dpwssd_epi32(low, odd, spread16(sums + 4 * i + 2));
    }
    return low;
}

/* t_b with mins, and the chain. */
INLINE __m512 add_with_mins(__m512 d, __m512 m, __m512i dot, __m512i low, float s, __m512 total) {
    __m512 under = _mm512_mul_ps(m, _mm512_cvtepi32_ps(low));
    __m512 value = _mm512_fmsub_ps(d, _mm512_cvtepi32_ps(dot), under);
    return _mm512_fmadd_ps(_mm512_set1_ps(s), value, total);
}

INLINE void add_block_k45(enum format f, int count, const uint8_t *head, const uint8_t *p,
                          const struct tile_rows *t, int32_t b, __m512 total[8]) {
    const __m512 d = halves16(head), m = halves16(head + 2 * LANES);
    const struct factors k = factors_of(p);
    const uint8_t *bits = p + 3 * VECTOR, *codes = bits + (f == Q5_K ? 8 * VECTOR : 0);
    __m512i dot[8];
    UNROLL
    for (int r = 0; r < count; r++) dot[r] = _mm512_setzero_si512();
    for (int pair = 0; pair < 4; pair++) {
        __m512i first[8], second[8];
        UNROLL
        for (int r = 0; r < count; r++) first[r] = second[r] = _mm512_setzero_si512();
        UNROLL
        for (int j = 0; j < 8; j++) {
            __m512i v = load16(codes + VECTOR * (8 * pair + j));
            __m512i low = low_nibbles(v), high = high_nibbles(v);
            if (f == Q5_K) {
                __m512i h = _mm512_srl_epi16(load16(bits + VECTOR * j), _mm_cvtsi32_si128(2 * pair));
                low = with_bit(low, h, 0);
                high = with_bit(high, h, 1);
            }
            UNROLL
            for (int r = 0; r < count; r++) {
                const int8_t *q = t->codes[r] + 256 * (int64_t)b + 64 * pair + 4 * j;
                first[r] = _mm512_dpbusd_epi32(first[r], low, spread16(q));
                second[r] = _mm512_dpbusd_epi32(second[r], high, spread16(q + 32));
            }
        }
        __m512i scales = _mm512_srl_epi32(k.scale[pair >> 1], _mm_cvtsi32_si128(16 * (pair & 1)));
        __m512i one = _mm512_and_si512(scales, _mm512_set1_epi32(0xff));
        __m512i two = _mm512_and_si512(_mm512_srli_epi32(scales, 8), _mm512_set1_epi32(0xff));
        UNROLL
        for (int r = 0; r < count; r++) {
            dot[r] = _mm512_add_epi32(dot[r], _mm512_mullo_epi32(one, first[r]));
            dot[r] = _mm512_add_epi32(dot[r], _mm512_mullo_epi32(two, second[r]));
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        __m512i low = min_sums(&k, t->group_sums[r] + b * SUMS_OF_256);
        total[r] = add_with_mins(d, m, dot[r], low, t->scales[r][b], total[r]);
    }
}

/* Codes + 32 of one vector of a Q6_K half, quarter 0 to 3: a and b its nibbles, h its upper pairs. */
INLINE __m512i codes_q6_k(__m512i a, __m512i b, __m512i h, int quarter) {
    __m512i low = quarter & 1 ? b : a;
    low = quarter & 2 ? high_nibbles(low) : low_nibbles(low);
    __m512i at_4 = quarter <= 2 ? _mm512_slli_epi16(h, (unsigned)(4 - 2 * quarter))
                                : _mm512_srli_epi16(h, 2);
    return _mm512_ternarylogic_epi32(low, at_4, _mm512_set1_epi8(0x30), 0xf8);
}

INLINE void add_block_q6_k(int count, const uint8_t *head, const uint8_t *scales,
                           const struct tile_rows *t, int32_t b, __m512 total[8]) {
    const __m512 d = halves16(head);
    const uint8_t *pairs = scales + 4 * VECTOR, *low = pairs + 16 * VECTOR;
    __m512i dot[8];
    UNROLL
    for (int r = 0; r < count; r++) dot[r] = _mm512_setzero_si512();
    for (int part = 0; part < 4; part++) { /* half part/2, sixteen elements part%2 of each quarter */
        const int half = part >> 1, side = part & 1;
        __m512i acc[4][8];
        UNROLL
        for (int quarter = 0; quarter < 4; quarter++)
            UNROLL
            for (int r = 0; r < count; r++) {
                int32_t sum = t->group_sums[r][b * SUMS_OF_256 + 8 + 8 * half + 2 * quarter + side];
                acc[quarter][r] = _mm512_set1_epi32(-32 * sum);
            }
        UNROLL
        for (int j = 0; j < 4; j++) {
            __m512i one = load16(low + VECTOR * (16 * half + 4 * side + j));
            __m512i two = load16(low + VECTOR * (16 * half + 8 + 4 * side + j));
            __m512i high = load16(pairs + VECTOR * (8 * half + 4 * side + j));
            UNROLL
            for (int quarter = 0; quarter < 4; quarter++) {
                __m512i codes = codes_q6_k(one, two, high, quarter);
                UNROLL
                for (int r = 0; r < count; r++) {
                    const int8_t *q =
                        t->codes[r] + 256 * (int64_t)b + 128 * half + 32 * quarter + 16 * side + 4 * j;
                    acc[quarter][r] = _mm512_dpbusd_epi32(acc[quarter][r], codes, spread16(q));
                }
            }
        }
        UNROLL
        for (int quarter = 0; quarter < 4; quarter++) {
            __m512i four = load16(scales + VECTOR * (2 * half + (quarter >> 1)));
            int byte = 2 * (quarter & 1) + side;
            __m512i scale = _mm512_srai_epi32(_mm512_sll_epi32(four, _mm_cvtsi32_si128(24 - 8 * byte)), 24);
            UNROLL
            for (int r = 0; r < count; r++)
                dot[r] = _mm512_add_epi32(dot[r], _mm512_mullo_epi32(scale, acc[quarter][r]));
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        __m512 value = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot[r]));
        total[r] = _mm512_fmadd_ps(_mm512_set1_ps(t->scales[r][b]), value, total[r]);
    }
}

INLINE void add_block_grid(int count, const uint8_t *head, const uint8_t *p, const struct tile_rows *t,
                           int32_t b, __m512 total[8]) {
    const __m512 step = _mm512_loadu_ps(head);
    __m512i dot[8];
    UNROLL
    for (int r = 0; r < count; r++) dot[r] = _mm512_setzero_si512();
    for (int j = 0; j < GRID_BLOCK / 2; j++) {
        __m512i w = load16(p + VECTOR * j);
        UNROLL
        for (int r = 0; r < count; r++) {
            const int8_t *q = t->codes[r] + 2 * GRID_BLOCK * (int64_t)b + 4 * j;
            dot[r] = _mm512_dpwssd_epi32(dot[r], w, spread16(q));
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        __m512 both = _mm512_mul_ps(step, _mm512_set1_ps(t->scales[r][b]));
        total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), both, total[r]);
    }
}

INLINE void store16(const struct args *a, const struct worker *w, int32_t r, int32_t o, __m512 total) {
    __m512 y = z16(total);
    int32_t n = least(LANES, a->out_width - o);
    __mmask16 stored = (__mmask16)(0xffffu >> (LANES - n));
    _mm512_mask_storeu_ps(a->out + (int64_t)r * a->out_width + o, stored, y);
    if (endless16(y) & stored) report_fault(w, r);
}

/* Panels lie one behind the other, so a worker knows what it reads next; the processor's own
 * prefetching stops at every page. */
INLINE void ask_ahead(const uint8_t *p, int32_t bytes) {
    for (int32_t at = 0; at < bytes; at += 64)
        _mm_prefetch((const char *)p + AHEAD + at, _MM_HINT_T0);
}

/* One panel against `count` rows from `base` on. */
INLINE void project_panel(enum format f, int count, const struct args *a, const struct worker *w,
                          const uint8_t *panel, int32_t base, int32_t o) {
    const int32_t block = elements_of(f), blocks = round_up(a->width, block) / block;
    const struct tile_rows t = rows_from(f, count, a, base);
    __m512 total[8];
    UNROLL
    for (int r = 0; r < count; r++) total[r] = _mm512_setzero_ps();
    const uint8_t *head = panel, *body = panel + heads_bytes(f, blocks);
    for (int32_t b = 0; b < blocks; b++, head += head_bytes(f), body += body_bytes(f)) {
        if (count == 1) ask_ahead(body, body_bytes(f));
        if (f == GRID) add_block_grid(count, head, body, &t, b, total);
        else if (f == Q6_K) add_block_q6_k(count, head, body, &t, b, total);
        else if (has_mins(f)) add_block_k45(f, count, head, body, &t, b, total);
        else add_block_of_32(f, count, head, body, &t, b, total);
    }
    UNROLL
    for (int r = 0; r < count; r++)
        if (base + r < *a->rows) store16(a, w, base + r, o, total[r]);
}

/* Rows that share a pass over the weights: as many as leave their sums in registers. */
INLINE int rows_at_once(enum format f, int32_t bucket) {
    if (bucket == 1) return 1;
    if (f == Q6_K) return 2;
    return bucket == 4 || elements_of(f) == 256 ? 4 : 8;
}

INLINE void project_packed(enum format f, int32_t bucket, const struct args *a, const struct worker *w) {
    const int32_t block = elements_of(f), blocks = round_up(a->width, block) / block;
    const int count = rows_at_once(f, bucket);
    struct span part = share(a->out_width, LANES, w);
    for (int32_t o = part.begin; o < part.end; o += LANES) {
        const uint8_t *panel = (const uint8_t *)a->weight + o / LANES * panel_bytes(f, blocks);
        for (int32_t base = 0; base < *a->rows; base += count)
            project_panel(f, count, a, w, panel, base, o);
    }
}

#endif
