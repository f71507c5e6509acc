/* K and V rows on their grid: n·2^e with |n| <= 2047, e >= -24, one e per row and head.
 *
 * Planes: codes int16 [slot][kv head][capacity][stride], stride = head_dim rounded up to PLANE_LANES
 * (the rest stays zero), steps e int8 [slot][kv head][capacity]. Position p lies at p mod capacity;
 * capacity is a multiple of TILE, so a tile is contiguous.
 */
#ifndef KV_H
#define KV_H

#include "rows.h"

INLINE int32_t plane_stride(const struct args *a) { return round_up(a->head_dim, PLANE_LANES); }

INLINE int64_t plane_row(const struct args *a, int32_t slot, int32_t head, int32_t position) {
    return ((int64_t)slot * a->kv_heads + head) * a->capacity + position % a->capacity;
}

/* Snaps one head; 1 if a value would not fit f16. */
INLINE int snap_head(const float *x, int32_t n, int16_t *codes, int8_t *step) {
    int32_t e = grid_step(top_of(x, n), 11, -24), most_code = 0;
    grid_codes(x, n, 11, e, codes);
    for (int32_t k = 0; k < n; k++) most_code = most(most_code, codes[k] < 0 ? -codes[k] : codes[k]);
    *step = (int8_t)e;
    return (float)most_code * two_to(e) > 65504.0f;
}

/* Reads x (keys), y (values), kv_heads, head_dim, capacity, step; writes the planes. */
INLINE void append_rows(const struct args *a, const struct worker *w) {
    int32_t width = a->kv_heads * a->head_dim, stride = plane_stride(a);
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t h = 0; h < a->kv_heads; h++) {
            int64_t from = (int64_t)r * width + h * a->head_dim;
            int64_t at = plane_row(a, a->step->slots[r], h, a->step->positions[r]);
            int wrong = snap_head(a->x + from, a->head_dim, a->key + at * stride, a->key_steps + at);
            wrong |= snap_head(a->y + from, a->head_dim, a->value + at * stride, a->value_steps + at);
            if (wrong) report_fault(w, r);
        }
}

#endif
