/* Attention of many queries with AVX-512: sixteen queries of one slot and KV head in the lanes.
 *
 * Nothing is summed across lanes: N, M, D, den and acc of sixteen queries are vectors. A block of
 * queries counts the group's heads row by row, so that its lanes see nearly the same positions.
 * Integer sums are by vpdpwssd, or in attention_tiles.h by AMX where a tile serves enough blocks.
 *
 * If all |y| of a tile are below NEAR, s = 2^n·g is a normal float, and D and P are the integers
 * nearest to s·2^(20 - N) and s·2^ev·2^(12 - M). Where one is not, n and g are kept apart.
 */
#ifndef ATTENTION_LANES_H
#define ATTENTION_LANES_H

#include "attention16.h"

/* NEAR: 2^(n + ev) and 2^(12 - M) stay normal for |n| <= NEAR, -24 <= ev <= 5. */
enum { NEAR = 90, QUERIES = 16, FEW_BLOCKS = 3, MANY_BLOCKS = 12, CROWD = 12 };

/* Sixteen queries on their way through the tiles. */
struct block {
    __m512i lo, hi;        /* a lane sees positions [lo, hi) */
    __m512i R, X, least;   /* least: the smallest M so far */
    __m512 den, c, top, low;
    int32_t first, last;   /* what any lane sees: [first, last) */
    int32_t from, to;      /* what every lane sees */
    int32_t row[QUERIES], head[QUERIES], live; /* lanes behind `live` are copies */
    uint8_t *q;            /* pairs [stride/2][QUERIES][2], or digits as tiles load them */
    float *acc;            /* [stride][QUERIES] */
};

/* A worker's scratch: tables of one tile, blocks, then what has a head's size: of each block q and acc. */
struct bench {
    struct steps16 steps;
    int32_t T[TILE][QUERIES]; /* scores; then n, or s as a float */
    float g[TILE][QUERIES];
    uint8_t p[2 * TILE * QUERIES]; /* pairs [TILE/2][QUERIES][2], or digits as tiles load them */
    int32_t sums[2][3][16][QUERIES]; /* what tiles stored, by turns */
    uint8_t *keys, *values; /* digits of the tile */
    int16_t codes[QUERIES][MAX_HEAD];
    struct block blocks[MANY_BLOCKS];
};

/* A multiple of 64 codes of q and keys is laid out. */
#if defined(__AMX_INT8__)
enum { ATTEND_CODE_BYTES = MANY_BLOCKS * 6 * QUERIES + 4 * TILE };
#else
enum { ATTEND_CODE_BYTES = MANY_BLOCKS * 6 * QUERIES };
#endif
enum { ATTEND_BYTES = sizeof(struct bench) + 64 + 48 * ATTEND_CODE_BYTES };

INLINE uint8_t *aligned_scratch(const struct worker *w) {
    return (uint8_t *)(((uintptr_t)w->scratch + 63) & ~(uintptr_t)63);
}

/* Rows of sixteen dwords become columns. */
INLINE void turn16(__m512i r[16]) {
    __m512i t[16], u[16];
    UNROLL
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i a = _mm512_shuffle_i32x4(u[k], u[4 + k], 0x88), b = _mm512_shuffle_i32x4(u[8 + k], u[12 + k], 0x88);
        __m512i c = _mm512_shuffle_i32x4(u[k], u[4 + k], 0xdd), d = _mm512_shuffle_i32x4(u[8 + k], u[12 + k], 0xdd);
        r[k] = _mm512_shuffle_i32x4(a, b, 0x88);
        r[4 + k] = _mm512_shuffle_i32x4(c, d, 0x88);
        r[8 + k] = _mm512_shuffle_i32x4(a, b, 0xdd);
        r[12 + k] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

#if defined(__AMX_INT8__)
#include "attention_tiles.h"
#else
enum { DIGITS = 0, CHUNK = 64 };
#endif

/* Codes [QUERIES][MAX_HEAD] as pairs [stride/2][QUERIES][2]. */
INLINE void lay_pairs(const int16_t (*codes)[MAX_HEAD], int32_t stride, uint8_t *to) {
    for (int32_t i = 0; i < stride; i += 32) {
        __m512i r[QUERIES];
        for (int n = 0; n < QUERIES; n++) r[n] = load16(codes[n] + i);
        turn16(r);
        for (int k = 0; k < 16 && i + 2 * k < stride; k++)
            _mm512_storeu_si512(to + (int64_t)(i / 2 + k) * 64, r[k]);
    }
}

/* Scores of sixteen positions from j on. */
INLINE void lane_scores(const struct block *b, const int16_t *keys, int32_t stride, int32_t j, struct bench *s) {
    const int16_t *k = keys + (int64_t)j * stride;
    __m512i T[QUERIES];
    for (int n = 0; n < 16; n++) T[n] = _mm512_setzero_si512();
    for (int32_t i = 0; i < stride; i += 2) {
        __m512i q = held16(b->q + (int64_t)i * 32);
        for (int n = 0; n < 16; n++)
            T[n] = _mm512_dpwssd_epi32(T[n], q, spread16(k + KEY_GROUP * i + KEY_UNIT * n));
    }
    for (int n = 0; n < 16; n++) _mm512_storeu_si512(s->T[j + n], T[n]);
}

/* What one tile makes of a block, lane by lane. */
struct outcome {
    __m512 top, low;
    __m512i M;
    __mmask16 any;          /* lanes that see a position */
};

/* Position `base` + j of every lane, whose scores are T: y, its bounds, and s, or n and g if `wide`. */
INLINE void weigh_position(int wide, int masked, const struct block *b, int32_t base, int32_t j, __m512i T,
                           struct bench *s, struct outcome *o) {
    const __m512i at = all16(base + j);
    __mmask16 seen = 0xffff;
    if (masked) seen = _mm512_cmpge_epi32_mask(at, b->lo) & _mm512_cmplt_epi32_mask(at, b->hi);
    __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(T), b->c);
    y = _mm512_mul_ps(y, _mm512_set1_ps(s->steps.key[j]));
    __m512 u = floored16(y);
    __m512 g = exp2_16(_mm512_sub_ps(y, _mm512_sub_ps(u, _mm512_set1_ps(FLOOR_BASE))));
    __m512i n = _mm512_castps_si512(u), m = _mm512_add_epi32(n, all16(s->steps.ev[j]));
    if (masked) {
        o->top = _mm512_mask_max_ps(o->top, seen, o->top, y);
        o->low = _mm512_mask_min_ps(o->low, seen, o->low, y);
        o->M = _mm512_mask_max_epi32(o->M, seen, o->M, m);
    } else {
        o->top = _mm512_max_ps(o->top, y);
        o->low = _mm512_min_ps(o->low, y);
        o->M = _mm512_max_epi32(o->M, m);
    }
    if (wide) {
        _mm512_storeu_si512(s->T[j], n);
        g = _mm512_maskz_mov_ps(seen, g);
        _mm512_storeu_ps(s->g[j], g);
        return;
    }
    __m512 power = times_two_to16(g, n);
    if (masked) power = _mm512_maskz_mov_ps(seen, power);
    _mm512_storeu_ps((float *)s->T[j], power);
}

INLINE void begin_outcome(struct outcome *o) {
    o->top = _mm512_set1_ps(-INFINITY);
    o->low = _mm512_set1_ps(INFINITY);
    o->M = all16(INT32_MIN);
}

INLINE void end_outcome(struct outcome *o) {
    o->any = _mm512_cmp_ps_mask(o->top, _mm512_set1_ps(-INFINITY), _CMP_NEQ_OQ);
}

/* Every lane sees sixteen positions from `at` on. */
INLINE int is_whole(const struct block *b, int32_t at) { return at >= b->from && at + 16 <= b->to; }

INLINE void weigh_lanes(int wide, const struct block *b, const int16_t *keys, int32_t stride, int32_t base,
                        struct span part, struct bench *s, struct outcome *o) {
    begin_outcome(o);
    for (int32_t j = part.begin; j < part.end; j += 16) {
        lane_scores(b, keys, stride, j, s);
        if (is_whole(b, base + j))
            for (int n = 0; n < 16; n++) weigh_position(wide, 0, b, base, j + n, load16(s->T[j + n]), s, o);
        else
            for (int n = 0; n < 16; n++) weigh_position(wide, 1, b, base, j + n, load16(s->T[j + n]), s, o);
    }
    end_outcome(o);
}

#if defined(__AMX_INT8__)
/* Sixteen positions whose sums are stored, between the steps of those after the next. */
INLINE void weigh_between(int wide, int masked, const struct block *b, int32_t base, int32_t j, const uint8_t *keys,
                          int32_t chunks, int more, struct bench *s, struct outcome *o) {
    UNROLL
    for (int step = 0; step < 4; step++) {
        if (more) score_step(step, keys, b->q, chunks);
        for (int n = 4 * step; n < 4 * step + 4; n++)
            weigh_position(wide, masked, b, base, j + n, whole16(s->sums[j / 16 & 1], n), s, o);
    }
}

/* The same as weigh_lanes by tiles. */
INLINE void weigh_tiles(int wide, const struct block *b, int32_t stride, int32_t base, struct span part,
                        struct bench *s, struct outcome *o) {
    const int32_t chunks = round_up(stride, CHUNK) / CHUNK, group = chunks * 2 * DIGITS;
    const uint8_t *keys = s->keys + (int64_t)(part.begin / 16) * group;
    begin_outcome(o);
    score_steps(keys, b->q, chunks);
    store_parts(s->sums[part.begin / 16 & 1]);
    if (part.begin + 16 < part.end) score_steps(keys + group, b->q, chunks);
    keys += 2 * group;
    for (int32_t j = part.begin; j < part.end; j += 16, keys += group) {
        const int more = j + 32 < part.end;
        if (j + 16 < part.end) store_parts(s->sums[(j / 16 + 1) & 1]);
        if (is_whole(b, base + j)) weigh_between(wide, 0, b, base, j, keys, chunks, more, s, o);
        else weigh_between(wide, 1, b, base, j, keys, chunks, more, s, o);
    }
    end_outcome(o);
}
#endif

/* Bits of P of position j, FLOOR_BITS + P, and D with its own added. */
INLINE __m512i weight_of(int wide, const struct bench *s, int32_t j, __m512i N, __m512 even, __m512 scale,
                         __m512i *D) {
    const __m512 base = _mm512_set1_ps(FLOOR_BASE);
    __m512 power = _mm512_loadu_ps(wide ? s->g[j] : (const float *)s->T[j]);
    if (wide) {
        __mmask16 seen = _mm512_cmp_ps_mask(power, _mm512_setzero_ps(), _CMP_NEQ_OQ);
        __m512i n = _mm512_max_epi32(_mm512_sub_epi32(load16(s->T[j]), N), all16(-100));
        power = _mm512_maskz_mov_ps(seen, times_two_to16(power, n));
    }
    *D = _mm512_add_epi32(*D, _mm512_castps_si512(_mm512_fmadd_ps(power, even, base)));
    __m512 at = _mm512_mul_ps(power, _mm512_set1_ps(s->steps.value[j]));
    return _mm512_castps_si512(_mm512_fmadd_ps(at, scale, base));
}

/* P as pairs of positions; returns D, with FLOOR_BITS of every position. */
INLINE __m512i mix_weights(int tiles, int wide, struct span part, __m512i N, __m512 even, __m512 scale,
                           struct bench *s) {
    __m512i D = _mm512_setzero_si512();
    for (int32_t j = part.begin; j < part.end; j += 4) {
        __m512i both[2];
        for (int k = 0; k < 2; k++) {
            __m512i one = weight_of(wide, s, j + 2 * k, N, even, scale, &D);
            __m512i two = weight_of(wide, s, j + 2 * k + 1, N, even, scale, &D);
            both[k] = _mm512_mask_blend_epi16(0xaaaaaaaau, one, _mm512_slli_epi32(two, 16));
            if (!tiles) _mm512_storeu_si512(s->p + (int64_t)(j / 2 + k) * 64, both[k]);
        }
#if defined(__AMX_INT8__)
        if (tiles) {
            __m512i high, low;
            uint8_t *to = s->p + j / CHUNK * 2 * DIGITS + j % CHUNK * 16;
            split16(both[0], both[1], &high, &low);
            _mm512_storeu_si512(to, high);
            _mm512_storeu_si512(to + DIGITS, low);
        }
#endif
    }
    return D;
}

/* How acc goes on after a tile, on the lanes that saw a position of it. far: z may act. */
struct merge {
    __m512 old, now;
    __mmask16 any;
    int far;
};

/* R, X, den and least after a tile of N, M and D. */
INLINE struct merge merge_lanes(struct block *b, __m512i N, __m512i M, __m512 D, __mmask16 any) {
    N = _mm512_mask_mov_epi32(all16(NOWHERE), any, N);
    M = _mm512_mask_mov_epi32(all16(NOWHERE), any, M);
    __m512i R = _mm512_max_epi32(b->R, N), X = _mm512_max_epi32(b->X, M);
    b->den = _mm512_add_ps(_mm512_mul_ps(b->den, tile_factor16(_mm512_sub_epi32(b->R, R))),
                           _mm512_mul_ps(D, tile_factor16(_mm512_sub_epi32(N, R))));
    struct merge m = {tile_factor16(_mm512_sub_epi32(b->X, X)), tile_factor16(_mm512_sub_epi32(M, X)), any, 0};
    b->R = R;
    b->X = X;
    b->least = _mm512_mask_min_epi32(b->least, any, b->least, M);
    m.far = _mm512_mask_cmpgt_epi32_mask(any, _mm512_sub_epi32(X, b->least), all16(40)) != 0;
    return m;
}

/* acc of one element after the tile. z acts on no multiple of 2^-40, and acc and O·2^(M - X) are
 * multiples of 2^(least - X): unless the M of a lane lie further apart, one fma does the same. */
INLINE void merge_element(int far, float *acc, __m512i O, const struct merge *m) {
    __m512 was = _mm512_loadu_ps(acc), is = _mm512_mul_ps(_mm512_cvtepi32_ps(O), m->now);
    if (far) was = _mm512_mask_add_ps(was, m->any, z16(_mm512_mul_ps(was, m->old)), z16(is));
    else was = _mm512_fmadd_ps(was, m->old, is);
    _mm512_storeu_ps(acc, was);
}

INLINE void mix_lanes(int far, struct block *b, const int16_t *values, int32_t stride, struct span part,
                      const struct bench *s, const struct merge *m) {
    for (int32_t i = 0; i < stride; i += QUERIES) {
        __m512i O[QUERIES];
        for (int n = 0; n < QUERIES; n++) O[n] = _mm512_setzero_si512();
        for (int32_t j = part.begin; j < part.end; j += VALUE_GROUP) {
            const int16_t *v = values + (int64_t)j * stride + VALUE_GROUP * i;
            __m512i p = held16(s->p + (int64_t)j / 2 * 64);
            for (int n = 0; n < QUERIES; n++) O[n] = _mm512_dpwssd_epi32(O[n], p, spread16(v + VALUE_GROUP * n));
        }
        for (int n = 0; n < QUERIES; n++) merge_element(far, b->acc + (int64_t)(i + n) * QUERIES, O[n], m);
    }
}

#if defined(__AMX_INT8__)
/* Positions of a tile's chunks that are not of `part` weigh nothing. */
INLINE void clear_weights(struct span part, struct bench *s) {
    for (int32_t j = part.begin / CHUNK * CHUNK; j < round_up(part.end, CHUNK); j += 4) {
        if (j >= part.begin && j < part.end) continue;
        uint8_t *to = s->p + j / CHUNK * 2 * DIGITS + j % CHUNK * 16;
        _mm512_storeu_si512(to, _mm512_setzero_si512());
        _mm512_storeu_si512(to + DIGITS, _mm512_setzero_si512());
    }
}

/* The same as mix_lanes by tiles. */
INLINE void mix_tiles(int far, struct block *b, int32_t stride, struct span part, struct bench *s,
                      const struct merge *m) {
    const int32_t first = part.begin / CHUNK, last = (part.end + CHUNK - 1) / CHUNK;
    const int64_t group = TILE / CHUNK * 2 * DIGITS;
    clear_weights(part, s);
    mix_parts(s->values, s->p, first, last);
    store_parts(s->sums[0]);
    if (stride > 16) mix_parts(s->values + group, s->p, first, last);
    for (int32_t i = 0; i < stride; i += 16) {
        if (i + 16 < stride) store_parts(s->sums[(i / 16 + 1) & 1]);
        if (i + 32 < stride) mix_parts(s->values + (i / 16 + 2) * group, s->p, first, last);
        for (int n = 0; n < 16; n++)
            merge_element(far, b->acc + (int64_t)(i + n) * QUERIES, whole16(s->sums[i / 16 & 1], n), m);
    }
}
#endif

/* The part [begin, end) of the tile at `base`, in multiples of sixteen, that a block sees of it. */
INLINE struct span part_of(const struct block *b, int32_t base) {
    struct span s = {most(b->first - base, 0) & ~15, least(round_up(b->last - base, 16), TILE)};
    return s;
}

INLINE int is_near(const struct outcome *o) {
    __m512 size = _mm512_max_ps(o->top, _mm512_sub_ps(_mm512_setzero_ps(), o->low));
    return _mm512_cmp_ps_mask(size, _mm512_set1_ps(NEAR), _CMP_NLT_UQ) == 0;
}

/* P of the tile, R, X and den after it. */
INLINE struct merge end_weights(int tiles, int wide, struct block *b, const struct outcome *o, struct span part,
                                struct bench *s) {
    const __m512i zero = all16((int32_t)FLOOR_BITS);
    __m512i N = _mm512_mask_mov_epi32(zero, o->any, _mm512_castps_si512(floored16(o->top)));
    __m512i M = _mm512_mask_mov_epi32(zero, o->any, o->M);
    __m512 even = wide ? _mm512_set1_ps(0x1p20f) : two_to16(_mm512_sub_epi32(all16(20), _mm512_sub_epi32(N, zero)));
    __m512 scale = two_to16(_mm512_sub_epi32(all16(12), _mm512_sub_epi32(M, wide ? N : zero)));
    __m512i D = mix_weights(tiles, wide, part, N, even, scale, s);
    D = _mm512_sub_epi32(D, all16((int32_t)((uint32_t)(part.end - part.begin) * FLOOR_BITS)));
    b->top = _mm512_max_ps(b->top, o->top);
    b->low = _mm512_min_ps(b->low, o->low);
    N = _mm512_sub_epi32(N, zero);
    M = _mm512_sub_epi32(M, zero);
    return merge_lanes(b, N, M, _mm512_cvtepi32_ps(D), o->any);
}

/* One tile for one block. */
APART void attend_tile_by_lanes(const struct view *v, struct block *b, int32_t base, int32_t at, struct bench *s) {
    const struct span part = part_of(b, base);
    const int16_t *keys = v->key + (int64_t)at * v->stride, *values = v->value + (int64_t)at * v->stride;
    struct outcome o;
    struct merge m;
    weigh_lanes(0, b, keys, v->stride, base, part, s, &o);
    if (is_near(&o)) {
        m = end_weights(0, 0, b, &o, part, s);
    } else {
        weigh_lanes(1, b, keys, v->stride, base, part, s, &o);
        m = end_weights(0, 1, b, &o, part, s);
    }
    if (m.far) mix_lanes(1, b, values, v->stride, part, s, &m);
    else mix_lanes(0, b, values, v->stride, part, s, &m);
}

#if defined(__AMX_INT8__)
APART void attend_tile_by_tiles(const struct view *v, struct block *b, int32_t base, struct bench *s) {
    const struct span part = part_of(b, base);
    struct outcome o;
    struct merge m;
    weigh_tiles(0, b, v->stride, base, part, s, &o);
    if (is_near(&o)) {
        m = end_weights(1, 0, b, &o, part, s);
    } else {
        weigh_tiles(1, b, v->stride, base, part, s, &o);
        m = end_weights(1, 1, b, &o, part, s);
    }
    if (m.far) mix_tiles(1, b, v->stride, part, s, &m);
    else mix_tiles(0, b, v->stride, part, s, &m);
}

/* Positions [first, last) of a tile as digits. */
APART void lay_tile(const struct view *v, int32_t at, int32_t first, int32_t last, struct bench *s) {
    const int16_t *keys = v->key + (int64_t)at * v->stride, *values = v->value + (int64_t)at * v->stride;
    const int64_t group = (int64_t)round_up(v->stride, CHUNK) / CHUNK * 2 * DIGITS;
    for (int32_t j = first & ~15; j < last; j += KEY_GROUP)
        lay_keys(keys + (int64_t)j * v->stride, v->stride, s->keys + j / KEY_GROUP * group);
    for (int32_t c = first / CHUNK; c * CHUNK < last; c++) lay_values(values, v->stride, c, s->values);
}
#endif

/* Rows [first, first + rows) of a step, which belong to one slot. */
struct run {
    int32_t first, rows;
};

INLINE struct run run_at(const struct args *a, int32_t first) {
    const int32_t *slots = a->step->slots;
    struct run r = {first, 1};
    while (first + r.rows < *a->rows && slots[first + r.rows] == slots[first]) r.rows++;
    return r;
}

/* Queries of a KV head in a run: row by row, the heads of the group. */
INLINE int32_t queries_of(const struct args *a, const struct run *r) {
    return r->rows * (a->heads / a->kv_heads);
}

/* Block i of a run's queries of one KV head, ready for the first tile. */
INLINE void begin_block(int tiles, const struct args *a, const struct run *r, int32_t kv, int32_t i,
                        struct bench *s, struct block *b) {
    const int32_t group = a->heads / a->kv_heads, all = queries_of(a, r), stride = plane_stride(a);
    int32_t lo[QUERIES], hi[QUERIES], e[QUERIES];
    b->live = least(QUERIES, all - QUERIES * i);
    b->first = b->to = INT32_MAX;
    b->last = b->from = 0;
    for (int n = 0; n < QUERIES; n++) {
        int32_t query = least(QUERIES * i + n, all - 1);
        b->row[n] = r->first + query / group;
        b->head[n] = kv * group + query % group;
        const float *x = a->x + ((int64_t)b->row[n] * a->heads + b->head[n]) * a->head_dim;
        for (int32_t k = 0; k < a->head_dim; k += 16) _mm_prefetch((const char *)(x + k), _MM_HINT_T0);
    }
    for (int n = 0; n < QUERIES; n++) {
        hi[n] = a->step->positions[b->row[n]] + 1;
        lo[n] = a->window ? most(0, hi[n] - a->window) : 0;
        b->first = least(b->first, lo[n]);
        b->last = most(b->last, hi[n]);
        b->from = most(b->from, lo[n]);
        b->to = least(b->to, hi[n]);
        const float *x = a->x + ((int64_t)b->row[n] * a->heads + b->head[n]) * a->head_dim;
        e[n] = grid_query16(x, a->head_dim, round_up(stride, CHUNK), s->codes[n]);
    }
#if defined(__AMX_INT8__)
    if (tiles) lay_digits((const int16_t(*)[MAX_HEAD])s->codes, round_up(stride, CHUNK), b->q);
#endif
    if (!tiles) lay_pairs((const int16_t(*)[MAX_HEAD])s->codes, stride, b->q);
    b->lo = load16(lo);
    b->hi = load16(hi);
    b->c = _mm512_mul_ps(_mm512_set1_ps(a->factor), two_to16(load16(e)));
    b->R = b->X = all16(NOWHERE);
    b->least = all16(INT32_MAX);
    b->den = b->top = b->low = _mm512_setzero_ps();
    for (int32_t k = 0; k < stride; k++) _mm512_storeu_ps(b->acc + (int64_t)k * QUERIES, _mm512_setzero_ps());
}

INLINE void finish_block(const struct args *a, const struct block *b, const struct worker *w) {
    const __m512 r = _mm512_div_ps(_mm512_set1_ps(1.0f), b->den), limit = _mm512_set1_ps(0x1p22f);
    const __m512 back = two_to16(_mm512_add_epi32(_mm512_sub_epi32(b->X, b->R), all16(8)));
    __mmask16 wrong = _mm512_cmp_ps_mask(_mm512_max_ps(b->top, _mm512_abs_ps(b->low)), limit, _CMP_NLT_UQ);
    for (int32_t i = 0; i < a->head_dim; i += 16) {
        __mmask16 in = first16(a->head_dim - i);
        __m512i y[QUERIES];
        for (int k = 0; k < 16; k++) {
            __m512 acc = _mm512_loadu_ps(b->acc + (int64_t)(i + k) * QUERIES);
            __m512 out = z16(_mm512_mul_ps(divide_by16(acc, b->den, r), back));
            wrong |= endless16(out);
            y[k] = _mm512_castps_si512(out);
        }
        turn16(y);
        for (int32_t n = 0; n < b->live; n++) {
            float *to = a->out + ((int64_t)b->row[n] * a->heads + b->head[n]) * a->head_dim + i;
            _mm512_mask_storeu_epi32(to, in, y[n]);
        }
    }
    for (int32_t n = 0; wrong && n < b->live; n++)
        if (wrong >> n & 1) report_fault(w, b->row[n]);
}

/* Blocks [first, first + count) of one KV head: a tile is met by all before the next one is read. To
 * lay it out for tile registers pays where it serves a few blocks. */
APART void attend_blocks(const struct args *a, const struct run *r, int32_t kv, int32_t first, int32_t count,
                         const struct worker *w) {
    const struct view v = view_of(a, r->first, kv * (a->heads / a->kv_heads));
    const int64_t padded = round_up(v.stride, CHUNK);
    struct bench *s = (struct bench *)aligned_scratch(w);
    uint8_t *room = (uint8_t *)(s + 1);
    int32_t begin = INT32_MAX, end = 0;
    int tiles = 0;
#if defined(__AMX_INT8__)
    tiles = count >= FEW_BLOCKS;
    s->keys = room;
    s->values = s->keys + 2 * TILE * padded;
    room = s->values + 2 * TILE * padded;
    if (tiles) begin_digits();
#endif
    for (int32_t i = 0; i < count; i++) {
        struct block *b = &s->blocks[i];
        b->q = room;
        b->acc = (float *)(room + padded * 2 * QUERIES);
        room += padded * 6 * QUERIES;
        begin_block(tiles, a, r, kv, first + i, s, b);
        begin = least(begin, b->first);
        end = most(end, b->last);
    }
    for (int32_t base = begin / TILE * TILE; base < end; base += TILE) {
        int32_t at = base % a->capacity, from = most(begin - base, 0), to = least(end - base, TILE);
        read_steps16(&v, at, from, to, &s->steps);
#if defined(__AMX_INT8__)
        if (tiles) lay_tile(&v, at, from, to, s);
#endif
        for (int32_t i = 0; i < count; i++) {
            struct block *b = &s->blocks[i];
            if (b->first >= base + TILE || b->last <= base) continue;
#if defined(__AMX_INT8__)
            if (tiles) attend_tile_by_tiles(&v, b, base, s);
#endif
            if (!tiles) attend_tile_by_lanes(&v, b, base, at, s);
        }
    }
    for (int32_t i = 0; i < count; i++) finish_block(a, &s->blocks[i], w);
#if defined(__AMX_INT8__)
    if (tiles) _tile_release();
#endif
}

/* What block i of a run costs, in positions: those that its last row sees, and what it takes to begin
 * and to finish. */
INLINE int64_t cost_of(const struct args *a, const struct run *r, int32_t i) {
    const int32_t group = a->heads / a->kv_heads;
    int32_t last = least(QUERIES * (i + 1), queries_of(a, r)) - 1;
    int32_t hi = a->step->positions[r->first + last / group] + 1;
    return 64 + (a->window ? least(hi, a->window + QUERIES) : hi);
}

INLINE int32_t blocks_of(const struct args *a, const struct run *r) {
    return (queries_of(a, r) + QUERIES - 1) / QUERIES;
}

/* Blocks in the order of runs, KV heads and rows are cut where their costs are equal for all workers. */
INLINE void attend_in_lanes(const struct args *a, const struct worker *w) {
    int64_t total = 0, done = 0;
    for (int32_t row = 0; row < *a->rows;) {
        struct run r = run_at(a, row);
        for (int32_t i = 0; i < blocks_of(a, &r); i++) total += cost_of(a, &r, i) * a->kv_heads;
        row += r.rows;
    }
    for (int32_t row = 0; row < *a->rows;) {
        struct run r = run_at(a, row);
        for (int32_t kv = 0; kv < a->kv_heads; kv++) {
            int32_t first = 0, count = 0;
            for (int32_t i = 0; i < blocks_of(a, &r); i++) {
                int64_t cost = cost_of(a, &r, i), owner = (2 * done + cost) * w->count / (2 * total);
                done += cost;
                if (owner != w->index) continue;
                if (count == 0) first = i;
                if (++count < MANY_BLOCKS) continue;
                attend_blocks(a, &r, kv, first, count, w);
                count = 0;
            }
            if (count) attend_blocks(a, &r, kv, first, count, w);
        }
        row += r.rows;
    }
}

/* Whether sixteen queries of a slot and KV head come together often enough to lie in the lanes. */
INLINE int is_crowded(const struct args *a) {
    int32_t runs = 0;
    for (int32_t row = 0; row < *a->rows; row += run_at(a, row).rows) runs++;
    return (int64_t)*a->rows * (a->heads / a->kv_heads) >= (int64_t)runs * CROWD;
}

#endif
