/* Projection, the plain form: out[r][o] = sum over blocks of s_b · t_b, ascending.
 *
 * Reads weight, steps, row_bytes, codes, scales, sums, width, out_width; writes out.
 * A block is unpacked once for up to ROW_TILE rows. An infinite or undefined t_b stays so through
 * the chain (0 · Inf is NaN, Inf - Inf is NaN), so that the test of the stored total is enough.
 */
#ifndef PROJECT_H
#define PROJECT_H

#include "blocks.h"
#include "rows.h"
#if defined(__AMX_INT8__)
#include "project_tiles.h"
#elif defined(__AVX512VNNI__)
#include "project16.h"
#elif defined(MUSER_NEON)
#include "project4.h"
#elif defined(__AVX2__)
#include "project8.h"
#endif

INLINE struct head fold_any(enum format f, const struct args *a, int32_t o, int32_t b, int16_t *w,
                            uint8_t min[8]) {
    if (f == GRID) {
        int32_t n = least(GRID_BLOCK, a->width - b * GRID_BLOCK);
        int32_t blocks = round_up(a->width, GRID_BLOCK) / GRID_BLOCK;
        const int16_t *codes = (const int16_t *)a->weight + (int64_t)o * a->width + b * GRID_BLOCK;
        memset(w, 0, GRID_BLOCK * sizeof *w);
        memcpy(w, codes, (size_t)n * sizeof *w);
        struct head h = {two_to(a->steps[(int64_t)o * blocks + b]), 0.0f};
        return h;
    }
    const uint8_t *p = (const uint8_t *)a->weight + o * a->row_bytes + (int64_t)b * bytes_of(f);
    fold_block(f, p, w, min);
    return head_of(f, p);
}

INLINE int32_t low_sum(enum format f, const int16_t *sums, const uint8_t min[8]) {
    if (has_offset(f)) return sums[0];
    int32_t low = 0;
    if (has_mins(f))
        for (int g = 0; g < 8; g++) low += sums[g] * min[g];
    return low;
}

INLINE void project_plain(enum format f, const struct args *a, const struct worker *wk) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    int16_t w[256];
    uint8_t min[8] = {0};
    int32_t n = *a->rows;
    struct span part = share(a->out_width, 16, wk);
    for (int32_t base = 0; base < n; base += ROW_TILE) {
        int32_t rows = least(ROW_TILE, n - base);
        for (int32_t o = part.begin; o < part.end; o++) {
            float total[ROW_TILE] = {0};
            for (int32_t b = 0; b < blocks; b++) {
                struct head h = fold_any(f, a, o, b, w, min);
                for (int32_t r = 0; r < rows; r++) {
                    const int16_t *q = a->codes + (int64_t)(base + r) * span + b * block;
                    const int16_t *sums = a->sums + ((int64_t)(base + r) * span + b * block) / CODE_GROUP;
                    float s = a->scales[(int64_t)(base + r) * blocks + b];
                    int32_t dot = 0;
                    for (int32_t k = 0; k < block; k++) dot += (int32_t)w[k] * q[k];
                    if (f == GRID) total[r] = fmaf((float)dot, h.d * s, total[r]);
                    else total[r] = fmaf(s, block_value(f, h, dot, low_sum(f, sums, min)), total[r]);
                }
            }
            for (int32_t r = 0; r < rows; r++) {
                uint32_t top = 0;
                a->out[(int64_t)(base + r) * a->out_width + o] = kept(total[r], &top);
                check_row(top, wk, base + r);
            }
        }
    }
}

/* `bucket` 1, 4, 16, or 0 for a chunk. */
INLINE void project(enum format f, int32_t bucket, const struct args *a, const struct worker *w) {
#if defined(__AMX_INT8__)
    if (f != GRID && bucket != 1 && bucket != 4) project_tiles(f, a, w);
    else project_packed(f, bucket, a, w);
#elif PACKED
    project_packed(f, bucket, a, w);
#elif defined(__AVX2__)
    if (bucket == 1 || bucket == 4) project_few(f, bucket, a, w);
    else project_many(f, a, w);
#else
    (void)bucket;
    project_plain(f, a, w);
#endif
}

#endif
