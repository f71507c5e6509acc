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

/* 1 if a code of a head whose largest size is `top` would not fit f16. */
INLINE int beyond_half(uint32_t top, int32_t e) {
    int32_t n = rne_product(float_of(top), two_to(-e));
    return (float)least(n < 0 ? -n : n, 2047) * two_to(e) > 65504.0f;
}

/* Snaps one head of n elements to plane row `at` (slot and head counted in); 1 if a value would not fit
 * f16. Writes no byte but the row's own, and each its last value: others may be writing the same. */
#if defined(__AVX512VNNI__)
#include "kv16.h"
#else
INLINE int append_head(const struct args *a, const float *x, int64_t at, int16_t *plane, int8_t *steps) {
    const int32_t n = a->head_dim, stride = plane_stride(a);
    const uint32_t top = top_of(x, n);
    const int32_t e = grid_step(top, 11, -24);
    int16_t codes[MAX_HEAD];
    grid_codes(x, n, 11, e, codes);
    memcpy(plane + at * stride, codes, (size_t)n * sizeof *codes);
    steps[at] = (int8_t)e;
    return beyond_half(top, e);
}

INLINE int append_key(const struct args *a, const float *x, int64_t at) {
    return append_head(a, x, at, a->key, a->key_steps);
}

INLINE int append_value(const struct args *a, const float *x, int64_t at) {
    return append_head(a, x, at, a->value, a->value_steps);
}
#endif

/* Reads x (keys), y (values), kv_heads, head_dim, capacity, step; writes the planes. */
INLINE void append_rows(const struct args *a, const struct worker *w) {
    const int32_t width = a->kv_heads * a->head_dim;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t h = 0; h < a->kv_heads; h++) {
            int64_t from = (int64_t)r * width + h * a->head_dim;
            int64_t at = plane_row(a, a->step->slots[r], h, a->step->positions[r]);
            int wrong = append_key(a, a->x + from, at);
            if (append_value(a, a->y + from, at) | wrong) report_fault(w, r);
        }
}

#endif
