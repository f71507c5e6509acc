/* Attention with AVX-512 and VNNI, sixteen lanes; planes as kv.h lays them out for it.
 *
 * Few rows: sixteen positions lie in the lanes, up to TOGETHER16 query heads of one KV head side by
 * side. Many rows: sixteen queries lie in the lanes (attention_lanes.h).
 * floor(y) comes from y + 1.5·2^23, rounded down: its bits are FLOOR_BITS + n for |y| < 2^22.
 * 2^k·g is made in the exponent bits of g, which lies in [1, 2]. Sums of rne are sums of the bits of
 * g·2^k + 1.5·2^23: the constant part falls out modulo 2^32.
 */
#ifndef ATTENTION16_H
#define ATTENTION16_H

#include "exact16.h"

enum { TOGETHER16 = 4, BUNDLES = 3, NOWHERE = -(1 << 30) }; /* NOWHERE: the N and M of no tile at all */

#define FLOOR_BASE 0x1.8p23f
#define FLOOR_BITS 0x4b400000u

INLINE __m512 exp2_16(__m512 f) {
    __m512 g = _mm512_set1_ps(0x1.cacdf6p-13f);
    g = _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1.44bd44p-10f));
    g = _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1.3d5826p-7f));
    g = _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1.c67ee4p-5f));
    g = _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1.ebfdf8p-3f));
    g = _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1.62e428p-1f));
    return _mm512_fmadd_ps(g, f, _mm512_set1_ps(0x1p+0f));
}

/* Bits FLOOR_BITS + floor(y). */
INLINE __m512 floored16(__m512 y) {
    return _mm512_add_round_ps(y, _mm512_set1_ps(FLOOR_BASE), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

INLINE __m512 two_to16(__m512i k) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(k, all16(127)), 23));
}

/* g·2^k, for g in [1, 2] and k where the product is normal. */
INLINE __m512 times_two_to16(__m512 g, __m512i k) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(g), _mm512_slli_epi32(k, 23)));
}

/* FLOOR_BITS + rne(x). */
INLINE __m512i nearest16(__m512 x) {
    return _mm512_castps_si512(_mm512_add_ps(x, _mm512_set1_ps(FLOOR_BASE)));
}

INLINE __m512 tile_factor16(__m512i shift) { return two_to16(_mm512_max_epi32(shift, all16(-100))); }

INLINE __m512i steps_at16(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

/* Sixteen lanes that stay in a register: gcc 12 loads them again for each head, which costs a third. */
INLINE __m512i held16(const void *p) {
    __m512i v = load16(p);
    __asm__("" : "+v"(v));
    return v;
}

/* a / b, rounded once, for b whose rounded reciprocal is r: two corrections by the remainder
 * (Markstein 1990: the first makes q one of the neighbours of the quotient, the second the nearer).
 * Sizes as here, far from the smallest and the largest, neither lose a remainder nor overflow. */
INLINE __m512 divide_by16(__m512 a, __m512 b, __m512 r) {
    __m512 q = _mm512_mul_ps(a, r);
    q = _mm512_fmadd_ps(_mm512_fnmadd_ps(b, q, a), r, q);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(b, q, a), r, q);
}

/* The lanes of positions j … j+15 that lie in [first, last). */
INLINE __mmask16 visible16(int32_t j, int32_t first, int32_t last) {
    int32_t from = most(first - j, 0), to = least(last - j, 16);
    return (__mmask16)((0xffffu << from) & (0xffffu >> (16 - to)));
}

/* 20 - ceil(log2 d) */
INLINE int32_t query_bits(int32_t d) { return 20 - (32 - __builtin_clz((unsigned)d - 1)); }

/* G(q, 20 - ceil(log2 d), -60) of one head: codes, zeros up to `stride`. Returns the step. */
INLINE int32_t grid_query16(const float *x, int32_t n, int32_t stride, int16_t *codes) {
    const int32_t p = query_bits(n);
    const struct grid16 g = grid_of16(top_of16(x, n), p, -60);
    for (int32_t k = 0; k < stride; k += 16)
        _mm256_storeu_si256((__m256i *)(codes + k), _mm512_cvtepi32_epi16(grid_at16(&g, x, k, n)));
    return g.e;
}

/* One query head on its way through the tiles; the same number in every lane of a vector. */
struct seeker {
    int16_t q[MAX_HEAD];
    float acc[MAX_HEAD];
    __m512 den, c;          /* c: that of section 7 times 2^eq */
    __m512i R, X;
    __m512 top, low;        /* y so far */
};

/* Scores of one tile, then its weights: of a head, [TILE]. */
struct tile16 {
    int32_t T[TILE];
    float g[TILE];
    int16_t p[TILE];
    __m512 old, now;        /* what acc and O are multiplied with */
};

/* What all heads need of a tile's steps. */
struct steps16 {
    float key[TILE], value[TILE]; /* 2^ek, 2^ev */
    int32_t ev[TILE];
};

INLINE void read_steps16(const struct view *v, int32_t at, int32_t first, int32_t last, struct steps16 *s) {
    for (int32_t j = first & ~15; j < last; j += 16) {
        __m512i e = steps_at16(v->value_steps + at + j);
        _mm512_storeu_ps(s->key + j, two_to16(steps_at16(v->key_steps + at + j)));
        _mm512_storeu_ps(s->value + j, two_to16(e));
        _mm512_storeu_si512(s->ev + j, e);
    }
}

/* R, X and den after a tile of N, M and D; what acc and O are then multiplied with. */
INLINE void merge16(struct seeker *x, __m512i N, __m512i M, __m512 D, __m512 *old, __m512 *now) {
    __m512i R = _mm512_max_epi32(x->R, N), X = _mm512_max_epi32(x->X, M);
    x->den = _mm512_add_ps(_mm512_mul_ps(x->den, tile_factor16(_mm512_sub_epi32(x->R, R))),
                           _mm512_mul_ps(D, tile_factor16(_mm512_sub_epi32(N, R))));
    *old = tile_factor16(_mm512_sub_epi32(x->X, X));
    *now = tile_factor16(_mm512_sub_epi32(M, X));
    x->R = R;
    x->X = X;
}

/* T of 16·groups positions from `at` on, of `heads` heads. */
INLINE void score16(int heads, int groups, const struct seeker *x, const int16_t *k, int32_t stride,
                    int32_t at, struct tile16 *t) {
    __m512i T[TOGETHER16][4];
    for (int h = 0; h < heads; h++)
        for (int g = 0; g < groups; g++) T[h][g] = _mm512_setzero_si512();
    for (int32_t i = 0; i < stride; i += 2) {
        __m512i row[4];
        for (int g = 0; g < groups; g++)
            row[g] = held16(k + (int64_t)g * KEY_GROUP * stride + KEY_GROUP * i);
        for (int h = 0; h < heads; h++) {
            __m512i q = spread16(x[h].q + i);
            for (int g = 0; g < groups; g++) T[h][g] = _mm512_dpwssd_epi32(T[h][g], row[g], q);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int g = 0; g < groups; g++) _mm512_storeu_si512(t[h].T + at + 16 * g, T[h][g]);
}

/* Weights of positions [first, last) of a tile, and the head's R, X and den after it. With s = 2^(n - N)·g
 * P is the integer nearest to s·2^ev·2^(12 + N - M). Shifts of s are cut at -100: N - M is at most 24
 * and ev at most 5, so that P and D are zero there as they are at the shift of -40. */
INLINE void weigh16(const struct steps16 *e, struct seeker *x, int32_t first, int32_t last, struct tile16 *t) {
    const __m512 base = _mm512_set1_ps(FLOOR_BASE);
    __m512 top = _mm512_set1_ps(-INFINITY), low = _mm512_set1_ps(INFINITY);
    __m512i M = all16(INT32_MIN), D = _mm512_setzero_si512();
    for (int32_t j = first & ~15; j < last; j += 16) {
        __mmask16 seen = visible16(j, first, last);
        __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(load16(t->T + j)), x->c);
        y = _mm512_mul_ps(y, _mm512_loadu_ps(e->key + j));
        top = _mm512_mask_max_ps(top, seen, top, y);
        low = _mm512_mask_min_ps(low, seen, low, y);
        __m512 u = floored16(y);
        __m512i n = _mm512_castps_si512(u);
        M = _mm512_mask_max_epi32(M, seen, M, _mm512_add_epi32(n, load16(e->ev + j)));
        _mm512_storeu_si512(t->T + j, n);
        _mm512_storeu_ps(t->g + j, exp2_16(_mm512_sub_ps(y, _mm512_sub_ps(u, base))));
    }
    top = most_of16(top);
    x->low = _mm512_min_ps(x->low, low);
    x->top = _mm512_max_ps(x->top, top);
    const __m512i N = _mm512_castps_si512(floored16(top)), far = all16(-100);
    M = largest_of16(M);
    const __m512 scale = two_to16(_mm512_add_epi32(_mm512_sub_epi32(N, M), all16(12)));
    for (int32_t j = first & ~15; j < last; j += 16) {
        __mmask16 seen = visible16(j, first, last);
        __m512i n = _mm512_max_epi32(_mm512_sub_epi32(load16(t->T + j), N), far);
        __m512 s = times_two_to16(_mm512_loadu_ps(t->g + j), n);
        __m512 d = _mm512_fmadd_ps(s, _mm512_set1_ps(0x1p20f), base);
        __m512 p = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_loadu_ps(e->value + j)), scale, base);
        D = _mm512_mask_add_epi32(D, seen, D, _mm512_castps_si512(d));
        __m256i narrow = _mm512_maskz_cvtepi32_epi16(seen, _mm512_castps_si512(p));
        _mm256_storeu_si256((__m256i *)(t->p + j), narrow);
    }
    D = _mm512_sub_epi32(sum_of16(D), all16((int32_t)((uint32_t)(last - first) * FLOOR_BITS)));
    merge16(x, _mm512_sub_epi32(N, all16((int32_t)FLOOR_BITS)),
            _mm512_sub_epi32(M, all16((int32_t)FLOOR_BITS)), _mm512_cvtepi32_ps(D), &t->old, &t->now);
}

/* acc after the tile, 16·vectors elements of `heads` heads from `rows` on. */
INLINE void mix16(int heads, int vectors, struct seeker *x, const int16_t *rows, int32_t stride, int32_t i,
                  int32_t first, int32_t last, const struct tile16 *t) {
    __m512i O[TOGETHER16][4];
    for (int h = 0; h < heads; h++)
        for (int g = 0; g < vectors; g++) O[h][g] = _mm512_setzero_si512();
    for (int32_t j = first & ~1; j < last; j += 2) {
        __m512i row[4];
        for (int g = 0; g < vectors; g++)
            row[g] = held16(rows + (int64_t)j * stride + VALUE_GROUP * (i + 16 * g));
        for (int h = 0; h < heads; h++) {
            __m512i p = spread16(t[h].p + j);
            for (int g = 0; g < vectors; g++) O[h][g] = _mm512_dpwssd_epi32(O[h][g], row[g], p);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int g = 0; g < vectors; g++) {
            float *acc = x[h].acc + i + 16 * g;
            __m512 old = z16(_mm512_mul_ps(_mm512_loadu_ps(acc), t[h].old));
            __m512 now = z16(_mm512_mul_ps(_mm512_cvtepi32_ps(O[h][g]), t[h].now));
            _mm512_storeu_ps(acc, _mm512_add_ps(old, now));
        }
}

INLINE void begin16(const struct args *a, int32_t row, int32_t head, int32_t stride, struct seeker *x) {
    const float *q = a->x + ((int64_t)row * a->heads + head) * a->head_dim;
    int32_t e = grid_query16(q, a->head_dim, stride, x->q);
    x->c = _mm512_set1_ps(a->factor * two_to(e));
    x->R = x->X = all16(NOWHERE);
    x->den = _mm512_setzero_ps();
    x->top = x->low = _mm512_setzero_ps();
    for (int32_t i = 0; i < stride; i += 16) _mm512_storeu_ps(x->acc + i, _mm512_setzero_ps());
}

INLINE void finish16(const struct args *a, int32_t row, int32_t head, const struct seeker *x,
                     const struct worker *w) {
    const __m512 r = _mm512_div_ps(_mm512_set1_ps(1.0f), x->den);
    const __m512 back = two_to16(_mm512_add_epi32(_mm512_sub_epi32(x->X, x->R), all16(8)));
    float *out = a->out + ((int64_t)row * a->heads + head) * a->head_dim;
    const __m512 limit = _mm512_set1_ps(0x1p22f);
    __mmask16 wrong = _mm512_cmp_ps_mask(_mm512_max_ps(x->top, _mm512_abs_ps(x->low)), limit, _CMP_NLT_UQ);
    for (int32_t i = 0; i < a->head_dim; i += 16) {
        __mmask16 in = first16(a->head_dim - i);
        __m512 y = z16(_mm512_mul_ps(divide_by16(_mm512_loadu_ps(x->acc + i), x->den, r), back));
        wrong |= endless16(y) & in;
        _mm512_mask_storeu_ps(out + i, in, y);
    }
    if (wrong) report_fault(w, row);
}

/* Up to TOGETHER16 heads from `head` on, which read one KV head: what is loaded of a tile serves all. */
struct bundle {
    struct view v;
    struct seeker *x;
    struct tile16 *t;
    int32_t head, heads;
};

/* `heads` of a call as a constant. */
#define OF_HEADS16(heads, call)                                                            \
    switch (heads) {                                                                       \
    case 1: { enum { HEADS = 1 }; call; } break;                                           \
    case 2: { enum { HEADS = 2 }; call; } break;                                           \
    case 3: { enum { HEADS = 3 }; call; } break;                                           \
    default: { enum { HEADS = TOGETHER16 }; call; } break;                                 \
    }

/* Of a few positions no more is read than the groups of sixteen that they lie in. */
INLINE void score_tile16(int heads, const struct bundle *b, int32_t at, int32_t first, int32_t last) {
    const int32_t stride = b->v.stride;
    int32_t j = first & ~15;
    for (; last - j > 32; j += 64)
        score16(heads, 4, b->x, b->v.key + (int64_t)(at + j) * stride, stride, j, b->t);
    const int16_t *rest = b->v.key + (int64_t)(at + j) * stride;
    if (last - j > 16) score16(heads, 2, b->x, rest, stride, j, b->t);
    else if (last > j) score16(heads, 1, b->x, rest, stride, j, b->t);
}

INLINE void weigh_tile16(const struct bundle *b, int32_t at, int32_t first, int32_t last) {
    struct steps16 e;
    read_steps16(&b->v, at, first, last, &e);
    for (int32_t h = 0; h < b->heads; h++) weigh16(&e, &b->x[h], first, last, &b->t[h]);
}

INLINE void mix_tile16(int heads, const struct bundle *b, int32_t at, int32_t first, int32_t last) {
    const int32_t stride = b->v.stride;
    const int16_t *rows = b->v.value + (int64_t)at * stride;
    int32_t i = 0;
    for (; i + 64 <= stride; i += 64) mix16(heads, 4, b->x, rows, stride, i, first, last, b->t);
    for (; i < stride; i += 16) mix16(heads, 1, b->x, rows, stride, i, first, last, b->t);
}

/* The first tile is asked for while queries are read: of keys and values `rows` positions each. */
INLINE void ask_for_tile16(const struct view *v, int32_t at, int32_t rows) {
    const int64_t from = (int64_t)at * v->stride, bytes = (int64_t)rows * v->stride * 2;
    for (int64_t k = 0; k < bytes; k += 64) __builtin_prefetch((const char *)(v->key + from) + k);
    for (int64_t k = 0; k < bytes; k += 64) __builtin_prefetch((const char *)(v->value + from) + k);
}

/* Heads [begin, end) of one row, at most BUNDLES times TOGETHER16. Every stage goes through all of
 * them before the next one begins: what one head waits for leaves room for the others. */
INLINE void attend_heads16(const struct args *a, int32_t row, int32_t begin, int32_t end, const struct worker *w) {
    struct seeker x[BUNDLES * TOGETHER16];
    struct tile16 t[BUNDLES * TOGETHER16];
    struct bundle bundles[BUNDLES * TOGETHER16];
    const int32_t group = a->heads / a->kv_heads, stride = plane_stride(a);
    int32_t count = 0, hi = a->step->positions[row] + 1, lo = a->window ? most(0, hi - a->window) : 0;
    for (int32_t head = begin; head < end; count++) {
        int32_t stop = least(least((head / group + 1) * group, end), head + TOGETHER16);
        struct bundle b = {view_of(a, row, head), x + head - begin, t + head - begin, head, stop - head};
        bundles[count] = b;
        ask_for_tile16(&b.v, lo / TILE * TILE % a->capacity, least(32, hi - lo / TILE * TILE));
        head = stop;
    }
    for (int32_t h = begin; h < end; h++) begin16(a, row, h, stride, &x[h - begin]);
    for (int32_t base = lo / TILE * TILE; base < hi; base += TILE) {
        int32_t first = most(lo - base, 0), last = least(hi - base, TILE), at = base % a->capacity;
        for (int32_t i = 0; i < count; i++)
            OF_HEADS16(bundles[i].heads, score_tile16(HEADS, &bundles[i], at, first, last))
        for (int32_t i = 0; i < count; i++) weigh_tile16(&bundles[i], at, first, last);
        for (int32_t i = 0; i < count; i++)
            OF_HEADS16(bundles[i].heads, mix_tile16(HEADS, &bundles[i], at, first, last))
    }
    for (int32_t h = begin; h < end; h++) finish16(a, row, h, &x[h - begin], w);
}

/* Items [begin, end) of rows times heads. */
INLINE void attend_items(const struct args *a, int64_t begin, int64_t end, const struct worker *w) {
    while (begin < end) {
        int64_t stop = (begin / a->heads + 1) * a->heads;
        int32_t count = least((int32_t)((stop < end ? stop : end) - begin), BUNDLES * TOGETHER16);
        int32_t row = (int32_t)(begin / a->heads), head = (int32_t)(begin % a->heads);
        attend_heads16(a, row, head, head + count, w);
        begin += count;
    }
}

#endif
