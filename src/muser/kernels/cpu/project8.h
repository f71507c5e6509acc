/* Projection with AVX2: int16 products of folded codes (vpmaddwd), exact in int32 per block.
 *
 * Up to 4 rows: eight weight rows at a time, their outputs in the lanes of one vector, so that the
 * serial chain of a total is one fma a block for eight outputs.
 * Above: eight activation rows in the lanes (panels of rows.h); STRIP weight rows are unpacked once
 * into the worker's scratch and used for every tile of 16 rows.
 */
#ifndef PROJECT8_H
#define PROJECT8_H

#include "blocks8.h"
#include "rows.h"

/* Eight weight rows; behind the last one the last one again, whose results are not stored. */
struct octet {
    const uint8_t *row[8];
    const int8_t *step[8];
};

INLINE struct octet octet_of(enum format f, const struct args *a, int32_t o, int32_t blocks) {
    struct octet x;
    int64_t bytes = f == GRID ? (int64_t)a->width * 2 : a->row_bytes;
    for (int j = 0; j < 8; j++) {
        int64_t at = least(o + j, a->out_width - 1);
        x.row[j] = (const uint8_t *)a->weight + at * bytes;
        x.step[j] = f == GRID ? a->steps + at * blocks : NULL;
    }
    return x;
}

struct head8 {
    __m256 d, m;
};

INLINE __m256 halves8(const struct octet *x, int64_t at) {
#define HALF(j) (short)load_u16(x->row[j] + at)
    return _mm256_cvtph_ps(_mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5),
                                          HALF(6), HALF(7)));
#undef HALF
}

INLINE struct head8 heads8(enum format f, const struct octet *x, int32_t b) {
    struct head8 h = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if (f == GRID) {
        int32_t e[8];
        for (int j = 0; j < 8; j++) e[j] = x->step[j][b];
        h.d = two_to8(_mm256_loadu_si256((const __m256i *)e));
        return h;
    }
    int64_t at = (int64_t)b * bytes_of(f);
    h.d = halves8(x, at + (f == Q6_K ? 208 : 0));
    if (has_offset(f) || has_mins(f)) h.m = halves8(x, at + 2);
    return h;
}

/* t_b of eight outputs. */
INLINE __m256 block_value8(enum format f, __m256 d, __m256 m, __m256i dot, __m256 low) {
    __m256 x = _mm256_cvtepi32_ps(dot);
    if (has_mins(f)) return _mm256_fmsub_ps(d, x, _mm256_mul_ps(m, low));
    if (has_offset(f)) return _mm256_fmadd_ps(d, x, _mm256_mul_ps(m, low));
    return _mm256_mul_ps(d, x);
}

/* The last block of a grid row may be short: then its codes are copied and padded. */
INLINE const int16_t *grid_block(const struct args *a, const uint8_t *row, int32_t b, int16_t *pad) {
    const int16_t *codes = (const int16_t *)row + (int64_t)b * GRID_BLOCK;
    int32_t n = a->width - b * GRID_BLOCK;
    if (n >= GRID_BLOCK) return codes;
    memset(pad, 0, GRID_BLOCK * sizeof *pad);
    memcpy(pad, codes, (size_t)n * sizeof *pad);
    return pad;
}

INLINE __m256i dot_run(const int16_t *w, const int16_t *q, int32_t n) {
    __m256i sum = _mm256_setzero_si256();
    for (int32_t i = 0; i < n; i += 16)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load_codes(w + i), load_codes(q + i)));
    return sum;
}

/* One block of one weight row against one row of codes, sums still in eight lanes. */
INLINE __m256i dot_block(enum format f, const struct args *a, const uint8_t *row, int32_t b,
                         const int16_t *q, struct folds *k) {
    if (f == GRID) {
        int16_t pad[GRID_BLOCK];
        return dot_run(grid_block(a, row, b, pad), q, GRID_BLOCK);
    }
    const uint8_t *p = row + (int64_t)b * bytes_of(f);
    const int count = elements_of(f) / 16;
    read_folds(f, p, k);
    __m256i sum = _mm256_madd_epi16(codes16(f, p, k, 0), load_codes(q));
    UNROLL
    for (int i = 1; i < count; i++)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes16(f, p, k, i), load_codes(q + 16 * i)));
    return sum;
}

/* Unpacks one block of one weight row into w. */
INLINE void unpack_block(enum format f, const struct args *a, const uint8_t *row, int32_t b, int16_t *w,
                         struct folds *k) {
    if (f == GRID) {
        int16_t pad[GRID_BLOCK];
        memcpy(w, grid_block(a, row, b, pad), sizeof pad);
        return;
    }
    const uint8_t *p = row + (int64_t)b * bytes_of(f);
    const int count = elements_of(f) / 16;
    read_folds(f, p, k);
    UNROLL
    for (int i = 0; i < count; i++) _mm256_storeu_si256((__m256i *)(w + 16 * i), codes16(f, p, k, i));
}

/* Sum of q (offsets) or of m·q (K-quants) as floats, for eight weight rows and one activation row. */
INLINE __m256 lows8(enum format f, const struct folds k[8], const int16_t *sums) {
    if (has_offset(f)) return _mm256_set1_ps((float)sums[0]);
    if (!has_mins(f)) return _mm256_setzero_ps();
    __m128i s = _mm_loadu_si128((const __m128i *)sums);
    __m256i v[4], both = _mm256_broadcastsi128_si256(s);
    for (int j = 0; j < 4; j++) {
        __m128i one = _mm_loadu_si128((const __m128i *)k[j].min);
        __m128i two = _mm_loadu_si128((const __m128i *)k[j + 4].min);
        v[j] = _mm256_madd_epi16(_mm256_set_m128i(two, one), both);
    }
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm256_cvtepi32_ps(low);
}

INLINE void store8(const struct args *a, const struct worker *w, int32_t r, int32_t o, __m256 total) {
    __m256 y = z8(total);
    float *to = a->out + (int64_t)r * a->out_width + o;
    int32_t n = least(8, a->out_width - o);
    if (n == 8) {
        _mm256_storeu_ps(to, y);
    } else {
        float lanes[8];
        _mm256_storeu_ps(lanes, y);
        memcpy(to, lanes, (size_t)n * sizeof *lanes);
    }
    if (endless8(y) & ((1 << n) - 1)) report_fault(w, r);
}

INLINE __m256 add_block8(enum format f, struct head8 h, __m256i dot, __m256 low, float s, __m256 total) {
    __m256 scale = _mm256_set1_ps(s);
    if (f == GRID) return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(h.d, scale), total);
    return _mm256_fmadd_ps(scale, block_value8(f, h.d, h.m, dot, low), total);
}

/* Asks for the part of the next eight weight rows that lies as far on as block b in these. */
INLINE void ask_ahead(enum format f, const struct args *a, const struct octet *x, int32_t b) {
    const int64_t row = f == GRID ? (int64_t)a->width * 2 : a->row_bytes;
    const int32_t block = f == GRID ? 2 * GRID_BLOCK : bytes_of(f);
    const char *from = (const char *)x->row[0] + 8 * (row + (int64_t)b * block);
    for (int32_t at = 0; at < 8 * block; at += 64) _mm_prefetch(from + at, _MM_HINT_T0);
}

INLINE void project_few(enum format f, int32_t bucket, const struct args *a, const struct worker *w) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    int16_t codes[8][256];
    struct folds k[8];
    struct span part = share(a->out_width, 16, w);
    for (int32_t base = 0; base < *a->rows; base += bucket) {
        const int32_t rows = bucket == 1 ? 1 : least(bucket, *a->rows - base);
        for (int32_t o = part.begin; o < part.end; o += 8) {
            struct octet x = octet_of(f, a, o, blocks);
            __m256 total[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                               _mm256_setzero_ps()};
            for (int32_t b = 0; b < blocks; b++) {
                struct head8 h = heads8(f, &x, b);
                __m256i dots[8];
                ask_ahead(f, a, &x, b);
                if (bucket > 1)
                    for (int j = 0; j < 8; j++) unpack_block(f, a, x.row[j], b, codes[j], &k[j]);
                for (int32_t r = 0; r < rows; r++) {
                    const int16_t *q = a->codes + (int64_t)(base + r) * span + b * block;
                    const int16_t *sums = a->sums + ((int64_t)(base + r) * span + b * block) / CODE_GROUP;
                    float s = a->scales[(int64_t)(base + r) * blocks + b];
                    for (int j = 0; j < 8; j++)
                        dots[j] = bucket == 1 ? dot_block(f, a, x.row[j], b, q, &k[j])
                                              : dot_run(codes[j], q, block);
                    total[r] = add_block8(f, h, sums8(dots), lows8(f, k, sums), s, total[r]);
                }
            }
            for (int32_t r = 0; r < rows; r++) store8(a, w, base + r, o, total[r]);
        }
    }
}

/* STRIP weight rows, unpacked over the whole width, in the worker's scratch: STRIP times 2 bytes an
 * element and STRIP_HEAD_BYTES a block. */
struct strip {
    int16_t *codes;  /* [STRIP][span] */
    int16_t *min;    /* [STRIP][blocks][8] */
    float *d, *m;    /* [STRIP][blocks] */
};

INLINE struct strip strip_of(const struct worker *w, int32_t span, int32_t blocks) {
    struct strip s;
    s.codes = (int16_t *)w->scratch;
    s.min = s.codes + STRIP * (int64_t)span;
    s.d = (float *)(s.min + STRIP * 8 * (int64_t)blocks);
    s.m = s.d + STRIP * (int64_t)blocks;
    return s;
}

INLINE void unpack_strip(enum format f, const struct args *a, int32_t o, int32_t blocks, struct strip *s) {
    const int32_t block = elements_of(f);
    for (int32_t j = 0; j < STRIP; j++) {
        int64_t at = least(o + j, a->out_width - 1);
        const uint8_t *row =
            (const uint8_t *)a->weight + at * (f == GRID ? (int64_t)a->width * 2 : a->row_bytes);
        for (int32_t b = 0; b < blocks; b++) {
            struct folds k;
            struct head h = {0.0f, 0.0f};
            unpack_block(f, a, row, b, s->codes + ((int64_t)j * blocks + b) * block, &k);
            if (f == GRID) h.d = two_to(a->steps[at * blocks + b]);
            else h = head_of(f, row + (int64_t)b * bytes_of(f));
            s->d[j * blocks + b] = h.d;
            s->m[j * blocks + b] = h.m;
            if (has_mins(f)) memcpy(s->min + ((int64_t)j * blocks + b) * 8, k.min, sizeof k.min);
        }
    }
}

/* Eight rows of STRIP outputs: lanes are rows, so four columns are turned before they are stored. */
INLINE void store_panel(const struct args *a, const struct worker *w, int32_t base, int32_t o,
                        const __m256 total[STRIP]) {
    float lanes[STRIP][8];
    int32_t rows = least(8, *a->rows - base), columns = least(STRIP, a->out_width - o);
    int endless = 0;
    for (int j = 0; j < STRIP; j++) {
        __m256 y = z8(total[j]);
        _mm256_storeu_ps(lanes[j], y);
        if (j < columns) endless |= endless8(y);
    }
    for (int32_t r = 0; r < rows; r++) {
        float *to = a->out + (int64_t)(base + r) * a->out_width + o;
        for (int32_t j = 0; j < columns; j++) to[j] = lanes[j][r];
        if (endless >> r & 1) report_fault(w, base + r);
    }
}

/* `panels` (1 or 2) times eight rows from row `base` on. */
INLINE void project_tile(enum format f, int panels, const struct args *a, const struct worker *w,
                         const struct strip *s, int32_t base, int32_t o) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    const int64_t first = base / PANEL;
    __m256 total[STRIP][2];
    for (int j = 0; j < STRIP; j++) total[j][0] = total[j][1] = _mm256_setzero_ps();
    for (int32_t b = 0; b < blocks; b++) {
        __m256i acc[STRIP][2], low[STRIP][2];
        const int16_t *q = a->codes + first * PANEL * span + (int64_t)b * block * PANEL;
        for (int j = 0; j < STRIP; j++)
            for (int v = 0; v < panels; v++) acc[j][v] = low[j][v] = _mm256_setzero_si256();
        for (int32_t p = 0; p < block / 2; p++) {
            __m256i x[2];
            for (int v = 0; v < panels; v++)
                x[v] = load_codes(q + (int64_t)v * PANEL * span + 16 * p);
            for (int j = 0; j < STRIP; j++) {
                __m256i y = pair8(s->codes + ((int64_t)j * blocks + b) * block + 2 * p);
                for (int v = 0; v < panels; v++)
                    acc[j][v] = _mm256_add_epi32(acc[j][v], _mm256_madd_epi16(x[v], y));
            }
        }
        const int64_t groups = span / CODE_GROUP; /* of a row */
        const int16_t *sums = a->sums + (first * groups + (int64_t)b * (block / CODE_GROUP)) * PANEL;
        if (has_mins(f))
            for (int v = 0; v < panels; v++)
                for (int p = 0; p < 4; p++) {
                    __m256i x = load_codes(sums + v * PANEL * groups + 16 * p);
                    for (int j = 0; j < STRIP; j++) {
                        __m256i y = pair8(s->min + ((int64_t)j * blocks + b) * 8 + 2 * p);
                        low[j][v] = _mm256_add_epi32(low[j][v], _mm256_madd_epi16(x, y));
                    }
                }
        for (int v = 0; v < panels; v++) {
            __m256 scale = _mm256_loadu_ps(a->scales + ((first + v) * blocks + b) * PANEL);
            __m256 plain = _mm256_setzero_ps();
            if (has_offset(f)) {
                const int16_t *at = sums + v * PANEL * groups;
                plain = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)at)));
            }
            for (int j = 0; j < STRIP; j++) {
                __m256 d = _mm256_set1_ps(s->d[j * blocks + b]), m = _mm256_set1_ps(s->m[j * blocks + b]);
                __m256 sum = has_mins(f) ? _mm256_cvtepi32_ps(low[j][v]) : plain;
                if (f == GRID)
                    total[j][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[j][v]), _mm256_mul_ps(d, scale),
                                                  total[j][v]);
                else
                    total[j][v] =
                        _mm256_fmadd_ps(scale, block_value8(f, d, m, acc[j][v], sum), total[j][v]);
            }
        }
    }
    for (int v = 0; v < panels; v++) {
        __m256 column[STRIP];
        for (int j = 0; j < STRIP; j++) column[j] = total[j][v];
        store_panel(a, w, base + v * PANEL, o, column);
    }
}

INLINE void project_many(enum format f, const struct args *a, const struct worker *w) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    struct strip s = strip_of(w, span, blocks);
    struct span part = share(a->out_width, 16, w);
    for (int32_t o = part.begin; o < part.end && *a->rows > 0; o += STRIP) {
        unpack_strip(f, a, o, blocks, &s);
        for (int32_t base = 0; base < *a->rows; base += ROW_TILE)
            if (*a->rows - base > PANEL) project_tile(f, 2, a, w, &s, base, o);
            else project_tile(f, 1, a, w, &s, base, o);
    }
}

#endif
