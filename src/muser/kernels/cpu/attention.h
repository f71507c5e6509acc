/* Attention over absolute tiles of 128 positions (section 7): integers inside a tile, one float
 * step a tile. Rows outside [first, last) of a tile are skipped, never multiplied. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "kv.h"

/* What a (row, head) sees of the planes. */
struct view {
    const int16_t *key, *value;     /* the head's plane: [capacity][stride] */
    const int8_t *key_steps, *value_steps;
    int32_t stride, head_dim;
    float c;
};

INLINE struct view view_of(const struct args *a, int32_t row, int32_t head) {
    int32_t kv = head / (a->heads / a->kv_heads), stride = plane_stride(a);
    int64_t at = ((int64_t)a->step->slots[row] * a->kv_heads + kv) * a->capacity;
    struct view v = {a->key + at * stride, a->value + at * stride, a->key_steps + at,
                     a->value_steps + at, stride, a->head_dim, a->factor};
    return v;
}

/* Scratch that attention takes of a worker, and more for each code of a stored row. */
#if !defined(__AVX512VNNI__)
enum { ATTEND_BYTES = 0, ATTEND_CODE_BYTES = 0 };
#endif

#if defined(__AVX512VNNI__)
#include "attention16.h"
#include "attention_lanes.h"
#else
enum { TOGETHER = 8 }; /* heads that go through the tiles side by side */

/* A query head on its grid. */
struct query {
    int16_t codes[MAX_HEAD];
    int32_t step;
};

/* One tile's weights: n of section 7, P, and the tile's N, M, D. */
struct tile {
    int32_t n[TILE];
    float g[TILE];
    int16_t p[TILE];
    int32_t N, M, D;
};

struct sums {
    float acc[MAX_HEAD];
    float den;
    int32_t R, X;
    int started;
};

INLINE int32_t floor_to_int(float y) {
    int32_t n = (int32_t)y;
    return n - ((float)n > y);
}

/* Shifts below -100 between tiles count as -100. */
INLINE float tile_factor(int32_t shift) { return two_to(most(shift, -100)); }

#if defined(MUSER_NEON)
#include "attention4.h"
#elif defined(__AVX2__)
#include "attention8.h"
#else
/* Scores and weights of rows [first, last) of the tile at ring row `at`; 1 if |y| >= 2^22. */
INLINE int weigh(const struct view *v, const struct query *q, int32_t at, int32_t first, int32_t last,
                 struct tile *t) {
    int wrong = 0;
    t->N = t->M = INT32_MIN;
    for (int32_t j = first; j < last; j++) {
        const int16_t *k = v->key + (int64_t)(at + j) * v->stride;
        int32_t dot = 0;
        for (int32_t i = 0; i < v->stride; i++) dot += (int32_t)q->codes[i] * k[i];
        float y = (float)dot * (v->c * two_to(q->step + v->key_steps[at + j]));
        if (!(absolute(y) < 0x1p22f)) {
            wrong = 1;
            y = 0.0f;
        }
        t->n[j] = floor_to_int(y);
        t->g[j] = exp2_of(y - (float)t->n[j]);
        t->N = most(t->N, t->n[j]);
        t->M = most(t->M, t->n[j] + v->value_steps[at + j]);
    }
    t->D = 0;
    for (int32_t j = first; j < last; j++) {
        int32_t d = most(20 + t->n[j] - t->N, -40);
        int32_t p = most(12 + t->n[j] + v->value_steps[at + j] - t->M, -40);
        t->D += rne_product(t->g[j], two_to(d));
        t->p[j] = (int16_t)rne_product(t->g[j], two_to(p));
    }
    return wrong;
}

/* O = sum of P·v over the tile's visible rows. */
INLINE void mix(const struct view *v, int32_t at, int32_t first, int32_t last, const struct tile *t,
                int32_t *O) {
    memset(O, 0, (size_t)v->stride * sizeof *O);
    for (int32_t j = first; j < last; j++) {
        const int16_t *row = v->value + (int64_t)(at + j) * v->stride;
        for (int32_t i = 0; i < v->stride; i++) O[i] += (int32_t)t->p[j] * row[i];
    }
}
#endif

INLINE void merge(struct sums *s, const struct tile *t, const int32_t *O, int32_t n) {
    if (!s->started) {
        s->started = 1;
        s->R = t->N;
        s->X = t->M;
        s->den = (float)t->D;
        for (int32_t i = 0; i < n; i++) s->acc[i] = z((float)O[i]);
        return;
    }
    int32_t R = most(s->R, t->N), X = most(s->X, t->M);
    float old = tile_factor(s->X - X), now = tile_factor(t->M - X);
    s->den = s->den * tile_factor(s->R - R) + (float)t->D * tile_factor(t->N - R);
    for (int32_t i = 0; i < n; i++) s->acc[i] = z(s->acc[i] * old) + z((float)O[i] * now);
    s->R = R;
    s->X = X;
}

INLINE void read_query(const struct args *a, int32_t row, int32_t head, struct query *q) {
    const float *x = a->x + ((int64_t)row * a->heads + head) * a->head_dim;
    int32_t ceiling = 0;
    while ((1 << ceiling) < a->head_dim) ceiling++;
    q->step = grid_step(top_of(x, a->head_dim), 20 - ceiling, -60);
    memset(q->codes, 0, (size_t)plane_stride(a) * sizeof *q->codes);
    grid_codes(x, a->head_dim, 20 - ceiling, q->step, q->codes);
}

/* One query head on its way through the tiles. */
struct seeker {
    struct query q;
    struct sums s;
    int wrong;
};

INLINE void finish(const struct args *a, int32_t row, int32_t head, const struct seeker *x,
                   const struct worker *w) {
    const struct sums *s = &x->s;
    uint32_t top = size_of(s->den);
    float back = two_to(s->X - s->R + 8);
    float *out = a->out + ((int64_t)row * a->heads + head) * a->head_dim;
    for (int32_t i = 0; i < a->head_dim; i++) {
        top = larger(top, size_of(s->acc[i]));
        out[i] = kept((s->acc[i] / s->den) * back, &top);
    }
    if (x->wrong) report_fault(w, row);
    check_row(top, w, row);
}

/* `count` heads from `head` on, which read one KV head: a tile is met by all before the next one is
 * read, so that it comes from memory once. */
INLINE void attend_together(const struct args *a, int32_t row, int32_t head, int32_t count,
                            const struct worker *w) {
    struct seeker seekers[TOGETHER];
    struct tile t;
    int32_t O[MAX_HEAD];
    struct view v = view_of(a, row, head);
    int32_t hi = a->step->positions[row] + 1, lo = a->window ? most(0, hi - a->window) : 0;
    for (int32_t h = 0; h < count; h++) {
        struct seeker *x = &seekers[h];
        read_query(a, row, head + h, &x->q);
        x->s.started = x->s.R = x->s.X = x->wrong = 0;
        x->s.den = 0.0f;
    }
    for (int32_t base = lo / TILE * TILE; base < hi; base += TILE) {
        int32_t first = most(lo - base, 0), last = least(hi - base, TILE), at = base % a->capacity;
        for (int32_t h = 0; h < count; h++) {
            seekers[h].wrong |= weigh(&v, &seekers[h].q, at, first, last, &t);
            mix(&v, at, first, last, &t, O);
            merge(&seekers[h].s, &t, O, a->head_dim);
        }
    }
    for (int32_t h = 0; h < count; h++) finish(a, row, head + h, &seekers[h], w);
}

/* Items [begin, end) of rows times heads, in runs that share a KV head. */
INLINE void attend_items(const struct args *a, int64_t begin, int64_t end, const struct worker *w) {
    const int32_t group = a->heads / a->kv_heads;
    while (begin < end) {
        int64_t stop = (begin / group + 1) * group;
        int32_t count = (int32_t)((stop < end ? stop : end) - begin);
        count = least(count, TOGETHER);
        attend_together(a, (int32_t)(begin / a->heads), (int32_t)(begin % a->heads), count, w);
        begin += count;
    }
}
#endif

/* Reads x (queries), heads, kv_heads, head_dim, capacity, window, factor (c), planes; writes out.
 * Many rows: whole groups in turn, since later rows see more. Few: heads are shared out evenly. */
INLINE void attend_rows(const struct args *a, const struct worker *w) {
#if defined(__AVX512VNNI__)
    if (is_crowded(a)) {
        attend_in_lanes(a, w);
        return;
    }
#endif
    const int64_t groups = (int64_t)*a->rows * a->kv_heads, group = a->heads / a->kv_heads;
    if (groups < 4 * w->count) {
        struct span s = share(*a->rows * a->heads, 1, w);
        attend_items(a, s.begin, s.end, w);
        return;
    }
    for (int64_t i = w->index; i < groups; i += w->count)
        attend_items(a, i * group, (i + 1) * group, w);
}

#endif
