/* Projection of five rows and more with AMX: int8 tiles of sixteen rows by sixteen outputs.
 *
 * A worker unpacks one panel of weights over the whole width into its scratch, in the order in which
 * tiles are loaded, and takes every tile of sixteen rows against it.
 *   32-blocks: eight V of signed codes a block, one tile product, then t_b and the chain in lanes.
 *   256-blocks: the codes carry their group's scale, at most 4,096 in size, as two signed digits
 *   (code = low + high·2^k, k = 5, for Q6_K 6), so a block is four products a digit and one t_b.
 */
#ifndef PROJECT_TILES_H
#define PROJECT_TILES_H

#include "project16.h"
#include "tiles.h"

/* Tile registers: macros, since compilers paste their numbers into assembly. */
#define SUMS 0
#define MORE_SUMS 1
#define ROWS 2
#define CODES 3
#define MORE_CODES 4

/* `depth`: elements of a product, 32 or 64. */
INLINE void begin_tiles(int depth) {
    struct tile_shapes t;
    memset(&t, 0, sizeof t);
    t.palette = 1;
    shape(&t, SUMS, 16, 64);
    shape(&t, MORE_SUMS, 16, 64);
    shape(&t, ROWS, 16, depth);
    shape(&t, CODES, depth / 4, 64);
    shape(&t, MORE_CODES, depth / 4, 64);
    take_shapes(&t);
}

/* One panel, unpacked over the whole width: where its parts begin in a worker's scratch. */
struct unpacked {
    int8_t *codes;   /* 32-blocks: [block][8 V]; 256: [block][low, high][4 tiles][16 V] */
    float *d, *m;    /* [block][LANES] */
    uint8_t *mins;   /* 256: [block][4 V] pairs of int16 as min_sums reads them */
};

INLINE struct unpacked unpacked_at(const struct worker *w, int32_t block, int32_t blocks) {
    struct unpacked u;
    u.codes = (int8_t *)w->scratch;
    u.d = (float *)(w->scratch + (int64_t)blocks * block * LANES * (block == 256 ? 2 : 1));
    u.m = u.d + (int64_t)blocks * LANES;
    u.mins = (uint8_t *)(u.m + (int64_t)blocks * LANES);
    return u;
}

INLINE void unpack_block_of_32(enum format f, const uint8_t *head, const uint8_t *p, int32_t b,
                               const struct unpacked *u) {
    int8_t *to = u->codes + (int64_t)b * 8 * VECTOR;
    const __m512i offset = _mm512_set1_epi8((char)offset_of(f));
    __m512i fifth = _mm512_setzero_si512();
    _mm512_storeu_ps(u->d + LANES * b, halves16(head));
    if (has_offset(f)) _mm512_storeu_ps(u->m + LANES * b, halves16(head + 2 * LANES));
    if (has_fifth_bits(f)) {
        fifth = load16(p);
        p += VECTOR;
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i low, high;
        codes_of_32(f, p, fifth, j, &low, &high);
        _mm512_storeu_si512(to + VECTOR * j, _mm512_sub_epi8(low, offset));
        _mm512_storeu_si512(to + VECTOR * (4 + j), _mm512_sub_epi8(high, offset));
    }
}

/* Codes times scales of a V as two digits of `width` bits; `less` is taken off the codes before. */
INLINE void store_digits(__m512i codes, __m512i scale, int less, int width, int8_t *low, int8_t *high) {
    const __m512i bytes = _mm512_set1_epi16(0xff), mask = _mm512_set1_epi16((short)((1 << width) - 1));
    const __m512i away = _mm512_set1_epi16((short)less);
    __m512i both = _mm512_or_si512(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)),
                                   _mm512_slli_epi32(scale, 16));
    __m512i even = _mm512_and_si512(codes, bytes), odd = _mm512_srli_epi16(codes, 8);
    even = _mm512_mullo_epi16(_mm512_sub_epi16(even, away), both);
    odd = _mm512_mullo_epi16(_mm512_sub_epi16(odd, away), both);
    __m512i first = _mm512_and_si512(even, mask), second = _mm512_and_si512(odd, mask);
    _mm512_storeu_si512(low, _mm512_or_si512(first, _mm512_slli_epi16(second, 8)));
    const unsigned shift = (unsigned)width;
    even = _mm512_and_si512(_mm512_srai_epi16(even, shift), bytes);
    odd = _mm512_slli_epi16(_mm512_srai_epi16(odd, shift), 8);
    _mm512_storeu_si512(high, _mm512_or_si512(even, odd));
}

INLINE int digit_bits(enum format f) { return f == Q6_K ? 6 : 5; }

/* Byte `i` of every lane, zero-extended. */
INLINE __m512i byte_of(__m512i v, int i) {
    return _mm512_and_si512(_mm512_srl_epi32(v, _mm_cvtsi32_si128(8 * i)), _mm512_set1_epi32(0xff));
}

INLINE void unpack_k45(enum format f, const uint8_t *head, const uint8_t *p, int32_t b,
                       const struct unpacked *u) {
    const struct factors k = factors_of(p);
    const uint8_t *bits = p + 3 * VECTOR, *codes = bits + (f == Q5_K ? 8 * VECTOR : 0);
    const __m512i alternate = _mm512_set1_epi32(0x00ff00ff);
    int8_t *low = u->codes + (int64_t)b * 128 * VECTOR, *high = low + 64 * VECTOR;
    _mm512_storeu_ps(u->d + LANES * b, halves16(head));
    _mm512_storeu_ps(u->m + LANES * b, halves16(head + 2 * LANES));
    UNROLL
    for (int i = 0; i < 2; i++) {
        uint8_t *to = u->mins + (int64_t)(4 * b + 2 * i) * VECTOR;
        _mm512_storeu_si512(to, _mm512_and_si512(k.min[i], alternate));
        _mm512_storeu_si512(to + VECTOR, _mm512_and_si512(_mm512_srli_epi32(k.min[i], 8), alternate));
    }
    for (int pair = 0; pair < 4; pair++) {
        __m512i one = byte_of(k.scale[pair >> 1], 2 * (pair & 1));
        __m512i two = byte_of(k.scale[pair >> 1], 2 * (pair & 1) + 1);
        UNROLL
        for (int j = 0; j < 8; j++) {
            __m512i v = load16(codes + VECTOR * (8 * pair + j));
            __m512i first = low_nibbles(v), second = high_nibbles(v);
            if (f == Q5_K) {
                __m512i h = _mm512_srl_epi16(load16(bits + VECTOR * j), _mm_cvtsi32_si128(2 * pair));
                first = with_bit(first, h, 0);
                second = with_bit(second, h, 1);
            }
            int64_t at = (int64_t)(16 * pair + j) * VECTOR, next = at + 8 * VECTOR;
            store_digits(first, one, 0, digit_bits(f), low + at, high + at);
            store_digits(second, two, 0, digit_bits(f), low + next, high + next);
        }
    }
}

INLINE void unpack_q6_k(const uint8_t *head, const uint8_t *scales, int32_t b, const struct unpacked *u) {
    const uint8_t *pairs = scales + 4 * VECTOR, *nibble = pairs + 16 * VECTOR;
    int8_t *low = u->codes + (int64_t)b * 128 * VECTOR, *high = low + 64 * VECTOR;
    _mm512_storeu_ps(u->d + LANES * b, halves16(head));
    for (int v = 0; v < 16; v++) { /* half v/8, vector v%8 of each quarter */
        const int half = v >> 3, j = v & 7, side = j >> 2;
        __m512i one = load16(nibble + VECTOR * (16 * half + j));
        __m512i two = load16(nibble + VECTOR * (16 * half + 8 + j));
        __m512i upper = load16(pairs + VECTOR * v);
        UNROLL
        for (int quarter = 0; quarter < 4; quarter++) {
            __m512i four = load16(scales + VECTOR * (2 * half + (quarter >> 1)));
            int byte = 2 * (quarter & 1) + side;
            __m512i scale = _mm512_srai_epi32(_mm512_sll_epi32(four, _mm_cvtsi32_si128(24 - 8 * byte)), 24);
            int64_t at = (int64_t)(32 * half + 8 * quarter + j) * VECTOR;
            store_digits(codes_q6_k(one, two, upper, quarter), scale, 32, digit_bits(Q6_K), low + at,
                         high + at);
        }
    }
}

INLINE void unpack_panel(enum format f, const uint8_t *panel, int32_t blocks, const struct unpacked *u) {
    const uint8_t *head = panel, *body = panel + heads_bytes(f, blocks);
    for (int32_t b = 0; b < blocks; b++, head += head_bytes(f), body += body_bytes(f)) {
        if (f == Q6_K) unpack_q6_k(head, body, b, u);
        else if (has_mins(f)) unpack_k45(f, head, body, b, u);
        else unpack_block_of_32(f, head, body, b, u);
    }
}

/* Sixteen rows from `base` on; the arena's rows come in sixteens. */
struct tile_view {
    const int8_t *codes;             /* [16][span] */
    const float *scales, *sums;      /* [block][16] */
    const int16_t *group_sums;       /* [block][16][24] */
    int32_t span, blocks;
};

INLINE struct tile_view sixteen_rows(enum format f, const struct args *a, int32_t base) {
    const int32_t block = elements_of(f), span = round_up(a->width, block), blocks = span / block;
    struct tile_view v = {(const int8_t *)a->codes + (int64_t)base * span,
                          a->scales + (int64_t)base * blocks,
                          (const float *)(const void *)a->sums + (int64_t)base * blocks,
                          a->sums + (int64_t)base * blocks * SUMS_OF_256,
                          span,
                          blocks};
    return v;
}

INLINE void add_tile_of_32(enum format f, const struct tile_view *v, const struct unpacked *u, int32_t b,
                           __m512 total[16]) {
    _Alignas(64) int32_t dots[16][LANES];
    _tile_zero(SUMS);
    _tile_loadd(ROWS, v->codes + 32 * b, v->span);
    _tile_loadd(CODES, u->codes + (int64_t)b * 8 * VECTOR, VECTOR);
    _tile_dpbssd(SUMS, ROWS, CODES);
    _tile_stored(SUMS, dots, VECTOR);
    const __m512 d = _mm512_loadu_ps(u->d + LANES * b);
    const __m512 m = has_offset(f) ? _mm512_loadu_ps(u->m + LANES * b) : _mm512_setzero_ps();
    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512 x = _mm512_cvtepi32_ps(load16(dots[r])), value = _mm512_mul_ps(d, x);
        if (has_offset(f))
            value = _mm512_fmadd_ps(d, x, _mm512_mul_ps(m, _mm512_set1_ps(v->sums[16 * b + r])));
        total[r] = _mm512_fmadd_ps(_mm512_set1_ps(v->scales[16 * b + r]), value, total[r]);
    }
}

INLINE void add_tile_of_256(enum format f, const struct tile_view *v, const struct unpacked *u, int32_t b,
                            __m512 total[16]) {
    _Alignas(64) int32_t low[16][LANES], high[16][LANES];
    const int8_t *codes = u->codes + (int64_t)b * 128 * VECTOR;
    _tile_zero(SUMS);
    _tile_zero(MORE_SUMS);
    UNROLL
    for (int k = 0; k < 4; k++) {
        _tile_loadd(ROWS, v->codes + 256 * (int64_t)b + 64 * k, v->span);
        _tile_loadd(CODES, codes + 16 * k * VECTOR, VECTOR);
        _tile_loadd(MORE_CODES, codes + (64 + 16 * k) * VECTOR, VECTOR);
        _tile_dpbssd(SUMS, ROWS, CODES);
        _tile_dpbssd(MORE_SUMS, ROWS, MORE_CODES);
    }
    _tile_stored(SUMS, low, VECTOR);
    _tile_stored(MORE_SUMS, high, VECTOR);
    const __m512 d = _mm512_loadu_ps(u->d + LANES * b);
    const __m512 m = has_mins(f) ? _mm512_loadu_ps(u->m + LANES * b) : _mm512_setzero_ps();
    __m512i mins[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        mins[i] = has_mins(f) ? load16(u->mins + (int64_t)(4 * b + i) * VECTOR) : _mm512_setzero_si512();
    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512i dot = _mm512_slli_epi32(load16(high[r]), (unsigned)digit_bits(f));
        dot = _mm512_add_epi32(dot, load16(low[r]));
        const float s = v->scales[16 * b + r];
        if (has_mins(f)) {
            const int16_t *sums = v->group_sums + (16 * (int64_t)b + r) * SUMS_OF_256;
            __m512i under = _mm512_setzero_si512();
            UNROLL
            for (int i = 0; i < 4; i++) under = _mm512_dpwssd_epi32(under, mins[i], spread16(sums + 2 * i));
            total[r] = add_with_mins(d, m, dot, under, s, total[r]);
        } else {
            __m512 value = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot));
            total[r] = _mm512_fmadd_ps(_mm512_set1_ps(s), value, total[r]);
        }
    }
}

INLINE void project_tile(enum format f, const struct args *a, const struct worker *w,
                         const struct unpacked *u, int32_t base, int32_t o) {
    const struct tile_view v = sixteen_rows(f, a, base);
    __m512 total[16];
    UNROLL
    for (int r = 0; r < 16; r++) total[r] = _mm512_setzero_ps();
    for (int32_t b = 0; b < v.blocks; b++) {
        if (elements_of(f) == 256) add_tile_of_256(f, &v, u, b, total);
        else add_tile_of_32(f, &v, u, b, total);
    }
    UNROLL
    for (int r = 0; r < 16; r++)
        if (base + r < *a->rows) store16(a, w, base + r, o, total[r]);
}

INLINE void project_tiles(enum format f, const struct args *a, const struct worker *w) {
    const int32_t block = elements_of(f), blocks = round_up(a->width, block) / block;
    const struct unpacked u = unpacked_at(w, block, blocks);
    struct span part = share(a->out_width, LANES, w);
    if (part.begin == part.end || *a->rows == 0) return;
    begin_tiles(block == 256 ? 64 : 32);
    for (int32_t o = part.begin; o < part.end; o += LANES) {
        const int64_t at = o / LANES * panel_bytes(f, blocks);
        unpack_panel(f, (const uint8_t *)a->weight + at, blocks, &u);
        __asm__ volatile("" : : : "memory"); /* nor that _tile_loadd reads: these stores come first */
        for (int32_t base = 0; base < *a->rows; base += 16) project_tile(f, a, w, &u, base, o);
    }
    _tile_release();
}

#endif
