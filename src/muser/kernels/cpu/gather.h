/* Rows picked by number: embed (from the file's own values), rope, take_rows, argmax. */
#ifndef GATHER_H
#define GATHER_H

#include "blocks.h"

INLINE float float_element(enum format f, const uint8_t *p) {
    if (f == F32) return float_of(load_u32(p));
    if (f == F16) return load_half(p);
    return float_of((uint32_t)load_u16(p) << 16);
}

/* One row of the file as f32: d·(scale·code) is exact, the offset or min rounds once. */
INLINE void embed_row(enum format f, const uint8_t *p, int32_t n, float *out, uint32_t *top) {
    int32_t block = elements_of(f);
    int16_t w[256];
    uint8_t min[8] = {0};
    if (block == 1) {
        for (int32_t k = 0; k < n; k++) out[k] = kept(float_element(f, p + k * bytes_of(f)), top);
        return;
    }
    for (int32_t b = 0; b < n / block; b++, p += bytes_of(f)) {
        struct head h = head_of(f, p);
        fold_block(f, p, w, min);
        for (int32_t k = 0; k < block; k++) {
            float offset = has_offset(f) ? h.m : has_mins(f) ? -(h.m * (float)min[k / 32]) : 0.0f;
            out[b * block + k] = kept(h.d * (float)w[k] + offset, top);
        }
    }
}

/* Reads step->tokens, weight, row_bytes, width; writes out. */
INLINE void embed_rows(enum format f, const struct args *a, const struct worker *w) {
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++) {
        uint32_t top = 0;
        const uint8_t *p = (const uint8_t *)a->weight + a->step->tokens[r] * a->row_bytes;
        embed_row(f, p, a->width, a->out + (int64_t)r * a->width, &top);
        check_row(top, w, r);
    }
}

/* One head. `stride` between the two elements of a pair, `next` from pair to pair. */
INLINE void rotate(const float *x, const float *turn, int32_t rotated, int32_t head_dim, int halves,
                   float *out, uint32_t *top) {
    int32_t pairs = rotated / 2, stride = halves ? pairs : 1, next = halves ? 1 : 2;
    for (int32_t i = 0; i < pairs; i++) {
        float x0 = x[i * next], x1 = x[i * next + stride], c = turn[2 * i], s = turn[2 * i + 1];
        out[i * next] = kept(fmaf(x0, c, -(x1 * s)), top);
        out[i * next + stride] = kept(fmaf(x0, s, x1 * c), top);
    }
    for (int32_t k = rotated; k < head_dim; k++) out[k] = kept(x[k], top);
}

/* Reads x, weight (f32 table [position][rotated/2][cos, sin]), heads, head_dim, rotated. */
INLINE void rope_rows(int halves, const struct args *a, const struct worker *w) {
    int32_t width = a->heads * a->head_dim;
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++) {
        uint32_t top = 0;
        const float *turn = (const float *)a->weight + (int64_t)a->step->positions[r] * a->rotated;
        for (int32_t h = 0; h < a->heads; h++) {
            int64_t at = (int64_t)r * width + h * a->head_dim;
            rotate(a->x + at, turn, a->rotated, a->head_dim, halves, a->out + at, &top);
        }
        check_row(top, w, r);
    }
}

/* out[i] = out[outputs[i]], in place: outputs ascend, so a source is never overwritten early.
 * Cut by columns, so that every worker may go through the rows in order. */
INLINE void take_columns(const struct args *a, const struct worker *w) {
    struct span s = share(a->width, 16, w);
    for (int32_t i = 0; i < a->step->m; i++) {
        int64_t from = a->step->outputs[i];
        if (from == i || s.begin == s.end) continue;
        memcpy(a->out + (int64_t)i * a->width + s.begin, a->out + from * a->width + s.begin,
               (size_t)(s.end - s.begin) * sizeof(float));
    }
}

/* Token order of section 8: ordered bits of the logit, then the lower id. codes: int32 [rows] as target. */
INLINE void argmax_rows(const struct args *a, const struct worker *w) {
    struct span s = share_rows(*a->rows, w);
    for (int32_t r = s.begin; r < s.end; r++) {
        const float *x = a->x + (int64_t)r * a->width;
        uint64_t best = 0;
        for (int32_t k = 0; k < a->width; k++) {
            uint32_t u = bits_of(x[k]), ordered = u >> 31 ? ~u : u | 0x80000000u;
            uint64_t key = (uint64_t)ordered << 32 | (uint32_t)(UINT32_MAX - (uint32_t)k);
            if (key > best) best = key;
        }
        int32_t id = (int32_t)(UINT32_MAX - (uint32_t)best);
        memcpy(a->out + r, &id, sizeof id);
    }
}

#endif
