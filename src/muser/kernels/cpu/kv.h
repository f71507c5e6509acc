/* K and V rows on their grid: n·2^e with |n| <= 2047, e >= -24, one e per row and head.
 *
 * Planes: codes int16 [slot][kv head][capacity/G][stride/U][G][U], where G positions lie side by side,
 * U elements of each together; stride = head_dim rounded up to PLANE_LANES (the rest stays zero);
 * steps e int8 [slot][kv head][capacity]. Position p lies at p mod capacity; capacity is a multiple
 * of TILE, so a tile is contiguous. Rows as they are (G = 1), or with AVX-512:
 *     keys     G = 16, U = 2: a vector is a pair of elements of sixteen positions
 *     values   G = 2, U = 1: a vector is sixteen elements of two positions
 * so that one vpdpwssd adds a pair to sixteen sums.
 */
#ifndef KV_H
#define KV_H

#include "rows.h"

#if defined(__AVX512VNNI__)
enum { KEY_GROUP = 16, KEY_UNIT = 2, VALUE_GROUP = 2, VALUE_UNIT = 1 };
#else
enum { KEY_GROUP = 1, KEY_UNIT = 1, VALUE_GROUP = 1, VALUE_UNIT = 1 };
#endif

INLINE int32_t plane_stride(const struct args *a) { return round_up(a->head_dim, PLANE_LANES); }

INLINE int64_t plane_row(const struct args *a, int32_t slot, int32_t head, int32_t position) {
    return ((int64_t)slot * a->kv_heads + head) * a->capacity + position % a->capacity;
}

/* A row of codes into plane row `at` (slot and head counted in). */
INLINE void put_row(const int16_t *codes, int32_t n, int32_t stride, int64_t at, int32_t group,
                    int32_t unit, int16_t *plane) {
    int16_t *to = plane + at / group * group * stride + at % group * unit;
    if (group == 1) memcpy(to, codes, (size_t)n * sizeof *codes);
    else
        for (int32_t k = 0; k < stride; k += unit)
            memcpy(to + (int64_t)k * group, codes + k, (size_t)unit * sizeof *codes);
}

/* Snaps one head of n elements, stride of them zero-padded in `codes`; 1 if a value would not fit f16. */
INLINE int snap_head(const float *x, int32_t n, int32_t stride, int16_t *codes, int8_t *step) {
    int32_t e = grid_step(top_of(x, n), 11, -24), most_code = 0;
    memset(codes, 0, (size_t)stride * sizeof *codes);
    grid_codes(x, n, 11, e, codes);
    for (int32_t k = 0; k < n; k++) most_code = most(most_code, codes[k] < 0 ? -codes[k] : codes[k]);
    *step = (int8_t)e;
    return (float)most_code * two_to(e) > 65504.0f;
}

/* Reads x (keys), y (values), kv_heads, head_dim, capacity, step; writes the planes. */
INLINE void append_rows(const struct args *a, const struct worker *w) {
    int32_t width = a->kv_heads * a->head_dim, n = a->head_dim, stride = plane_stride(a);
    int16_t codes[MAX_HEAD];
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t h = 0; h < a->kv_heads; h++) {
            int64_t from = (int64_t)r * width + h * n;
            int64_t at = plane_row(a, a->step->slots[r], h, a->step->positions[r]);
            int wrong = snap_head(a->x + from, n, stride, codes, a->key_steps + at);
            put_row(codes, n, stride, at, KEY_GROUP, KEY_UNIT, a->key);
            wrong |= snap_head(a->y + from, n, stride, codes, a->value_steps + at);
            put_row(codes, n, stride, at, VALUE_GROUP, VALUE_UNIT, a->value);
            if (wrong) report_fault(w, r);
        }
}

#endif
