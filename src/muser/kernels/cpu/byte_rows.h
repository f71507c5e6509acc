/* Quantised rows for packed weights: codes of one byte.
 *
 *     codes int8 [row][span]
 *     scales f32, sums: at(row, block), one of two orders:
 *         row-major [row][span/B]
 *         tiled [row/16][span/B][row%16], where AMX multiplies sixteen rows (buckets above 4)
 *     sums  B = 32: f32
 *           B = 256: int16 [24]: sums of 32 in the order of groups 0, 2, 1, 3, 4, 6, 5, 7, then the
 *           sixteen sums of 16
 */
#ifndef BYTE_ROWS_H
#define BYTE_ROWS_H

#include "rows.h"

enum { SUMS_OF_256 = 24, ROWS_TOGETHER = 16 };

#if defined(__AMX_INT8__)
enum { TILED = 1 };
#else
enum { TILED = 0 };
#endif

INLINE int64_t place_of(int32_t r, int32_t b, int32_t blocks, int tiled) {
    if (!tiled) return (int64_t)r * blocks + b;
    return ((int64_t)(r / ROWS_TOGETHER) * blocks + b) * ROWS_TOGETHER + r % ROWS_TOGETHER;
}

#if defined(__AVX512VNNI__)
#include "byte_rows16.h"

INLINE float quantise_to_bytes(const float *x, int32_t n, int8_t *q) { return quantise_run16(x, n, q); }
#else
INLINE float quantise_to_bytes(const float *x, int32_t n, int8_t *q) {
    int16_t wide[256];
    float s = quantise_run(x, n, wide);
    for (int32_t k = 0; k < n; k++) q[k] = (int8_t)wide[k];
    return s;
}

INLINE int32_t sum_of(const int8_t *q, int32_t n) {
    int32_t sum = 0;
    for (int32_t k = 0; k < n; k++) sum += q[k];
    return sum;
}

INLINE float sum_of_32(const int8_t *q) { return (float)sum_of(q, 32); }

INLINE void sums_of_256(const int8_t *q, int16_t *sums) {
    static const int32_t group[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (int g = 0; g < 8; g++) sums[g] = (int16_t)sum_of(q + 32 * group[g], 32);
    for (int g = 0; g < 16; g++) sums[8 + g] = (int16_t)sum_of(q + 16 * g, 16);
}
#endif

/* Rows of x, width elements each. Writes codes, scales, sums. */
INLINE void quantise_bytes(int32_t block, int tiled, const struct args *a, const float *x,
                           const struct worker *w) {
    const int32_t blocks = a->width / block;
    float *sums = (float *)(void *)a->sums;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++) {
        const float *row = x + (int64_t)r * a->width;
        int8_t *codes = (int8_t *)a->codes + (int64_t)r * a->width;
        int32_t b = 0;
#if defined(__AVX512VNNI__)
        for (; block == 32 && b + 16 <= blocks; b += 16) {
            float scale[16], sum[16];
            quantise_sixteen_blocks(row + 32 * b, codes + 32 * b, scale, sum);
            for (int i = 0; i < 16; i++) {
                const int64_t at = place_of(r, b + i, blocks, tiled);
                a->scales[at] = scale[i];
                sums[at] = sum[i];
            }
        }
#endif
        for (; b < blocks; b++) {
            const int64_t at = place_of(r, b, blocks, tiled);
            int8_t *q = codes + b * block;
            a->scales[at] = quantise_to_bytes(row + b * block, block, q);
            if (block == 256) sums_of_256(q, a->sums + at * SUMS_OF_256);
            else sums[at] = sum_of_32(q);
        }
    }
}

#endif
