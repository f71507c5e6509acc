/* Rows ready for integer products: codes, scales, and sums of codes.
 *
 * B elements share a scale: 32, 256, or GRID_BLOCK for grid rows (whose scale is the step 2^e).
 * `span` = width rounded up to B; the elements behind `width` are zero.
 * Row-major (up to 4 rows, and everywhere without AVX2):
 *     codes [row][span]   scales [row][span/B]   sums [row][span/32]: sum of q over each 32
 * Panels of 8 rows (AVX2, buckets above 4 rows), so that rows lie in lanes:
 *     codes [panel][span/2][8][2]   scales [panel][span/B][8]
 *     sums  B = 32: [panel][span/32][8];  B = 256: [panel][span/64][8][2]
 * Lanes behind the last row hold old finite values; their results are never stored.
 * Sets with packed weights have byte rows instead (byte_rows.h), and row-major grid rows.
 */
#ifndef ROWS_H
#define ROWS_H

#include "exact.h"

enum { LANED = AVX2_LANES };

enum { SUM_WORDS = 3 }; /* int16 that the sums of CODE_GROUP codes take at most, in every layout */

INLINE int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

/* Q(x, n) of section 2; returns s, the scale. */
INLINE float quantise_run(const float *x, int32_t n, int16_t *q) {
    uint32_t top = top_of(x, n);
    if (top == 0) {
        memset(q, 0, (size_t)n * sizeof *q);
        return 0.0f;
    }
    float inverse = 127.0f / float_of(top);
    for (int32_t k = 0; k < n; k++) q[k] = (int16_t)rne_product(inverse, x[k]);
    return 1.0f / inverse;
}

INLINE void put_codes(const struct args *a, int32_t r, int32_t at, const int16_t *q, int32_t n,
                      int32_t span, int panel) {
    if (!panel) {
        memcpy(a->codes + (int64_t)r * span + at, q, (size_t)n * sizeof *q);
        return;
    }
    int16_t *to = a->codes + (int64_t)(r / PANEL) * PANEL * span + (int64_t)at * PANEL + r % PANEL * 2;
    for (int32_t k = 0; k < n; k += 2) memcpy(to + k * PANEL, q + k, 2 * sizeof *q);
}

INLINE void put_sum(const struct args *a, int32_t r, int32_t group, int32_t sum, int32_t groups,
                    int32_t block, int panel) {
    int64_t at = (int64_t)r * groups + group;
    if (panel && block == 32) at = ((int64_t)(r / PANEL) * groups + group) * PANEL + r % PANEL;
    if (panel && block == 256)
        at = (((int64_t)(r / PANEL) * groups + (group & ~1)) * PANEL) + r % PANEL * 2 + (group & 1);
    a->sums[at] = (int16_t)sum;
}

INLINE void put_scale(const struct args *a, int32_t r, int32_t b, float s, int32_t blocks, int panel) {
    int64_t at = panel ? ((int64_t)(r / PANEL) * blocks + b) * PANEL + r % PANEL
                       : (int64_t)r * blocks + b;
    a->scales[at] = s;
}

/* Rows of x, width elements each. Writes codes, scales, sums. */
INLINE void quantise_rows(int32_t block, int panel, const struct args *a, const float *x,
                          const struct worker *w) {
    int16_t q[256];
    int32_t blocks = a->width / block, groups = a->width / CODE_GROUP;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t b = 0; b < blocks; b++) {
            const float *from = x + (int64_t)r * a->width + b * block;
            put_scale(a, r, b, quantise_run(from, block, q), blocks, panel);
            put_codes(a, r, b * block, q, block, a->width, panel);
            for (int32_t g = 0; g < block / CODE_GROUP; g++) {
                int32_t sum = 0;
                for (int k = 0; k < CODE_GROUP; k++) sum += q[CODE_GROUP * g + k];
                put_sum(a, r, b * (block / CODE_GROUP) + g, sum, groups, block, panel);
            }
        }
}

/* The same; codes and scales (steps): G(x, 13, -60) per 128. */
INLINE void grid_rows(int panel, const struct args *a, const float *x, const struct worker *w) {
    int16_t q[GRID_BLOCK];
    int32_t blocks = round_up(a->width, GRID_BLOCK) / GRID_BLOCK;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++)
        for (int32_t b = 0; b < blocks; b++) {
            const float *from = x + (int64_t)r * a->width + b * GRID_BLOCK;
            int32_t n = least(GRID_BLOCK, a->width - b * GRID_BLOCK);
            int32_t e = grid_step(top_of(from, n), 13, -60);
            memset(q, 0, sizeof q);
            grid_codes(from, n, 13, e, q);
            put_scale(a, r, b, two_to(e), blocks, panel);
            put_codes(a, r, b * GRID_BLOCK, q, GRID_BLOCK, blocks * GRID_BLOCK, panel);
        }
}

#endif
