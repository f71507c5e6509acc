/* The integer sums of attention_lanes.h by AMX: codes and weights as two digits of base 256, the low
 * one without sign, four products of int8 a sum.
 *
 * A tile register takes sixteen rows of 64 bytes. Left, the rows are positions (of K) or elements (of
 * V), right the columns are queries. Four codes that lie together come in the order 0, 2, 1, 3.
 *     q       [stride/64][high, low][16 quads][QUERIES][4]
 *     keys    [TILE/16][stride/64][high, low][16 positions][64 elements]
 *     values  [stride/16][TILE/64][high, low][16 elements][64 positions]
 *     p       [TILE/64][high, low][16 quads][QUERIES][4]
 */
#ifndef ATTENTION_TILES_H
#define ATTENTION_TILES_H

#include "exact16.h"
#include "tiles.h"

enum { DIGITS = 1024, CHUNK = 64 }; /* bytes of a digit's tile; elements of a product */

/* Tile registers: macros, since compilers paste their numbers into assembly. */
#define HIGH_SUMS 0
#define MIXED_SUMS 1
#define LOW_SUMS 2
#define LEFT_HIGH 3
#define LEFT_LOW 4
#define RIGHT_HIGH 5
#define RIGHT_LOW 6

INLINE void begin_digits(void) {
    struct tile_shapes t;
    memset(&t, 0, sizeof t);
    t.palette = 1;
    for (int i = 0; i < 7; i++) shape(&t, i, 16, 64);
    take_shapes(&t);
}

/* Pairs of int16 to quads of bytes. */
INLINE void split16(__m512i one, __m512i two, __m512i *high, __m512i *low) {
    const __m512i even = _mm512_set1_epi32(0x00ff00ff);
    *low = _mm512_ternarylogic_epi32(even, one, _mm512_slli_epi32(two, 8), 0xca);
    *high = _mm512_ternarylogic_epi32(even, _mm512_srli_epi32(one, 8), two, 0xca);
}

/* Sixteen quads of sixteen rows: rows of 64 bytes. */
INLINE void store_digit(__m512i quads[16], uint8_t *to) {
    turn16(quads);
    for (int n = 0; n < 16; n++) _mm512_storeu_si512(to + 64 * n, quads[n]);
}

/* Codes [QUERIES][MAX_HEAD], zero up to a multiple of CHUNK. */
INLINE void lay_digits(const int16_t (*codes)[MAX_HEAD], int32_t stride, uint8_t *to) {
    for (int32_t i = 0; i < stride; i += 32) {
        __m512i r[16];
        for (int n = 0; n < 16; n++) r[n] = load16(codes[n] + i);
        turn16(r);
        uint8_t *at = to + (int64_t)(i / CHUNK) * 2 * DIGITS + i % CHUNK * 16;
        for (int k = 0; k < 8; k++) {
            __m512i high, low;
            split16(r[2 * k], r[2 * k + 1], &high, &low);
            _mm512_storeu_si512(at + 64 * k, high);
            _mm512_storeu_si512(at + DIGITS + 64 * k, low);
        }
    }
}

/* Sixteen positions of K. */
INLINE void lay_keys(const int16_t *group, int32_t stride, uint8_t *to) {
    for (int32_t i = 0; i < stride; i += CHUNK, to += 2 * DIGITS) {
        __m512i high[16], low[16];
        for (int k = 0; k < 16; k++) {
            high[k] = low[k] = _mm512_setzero_si512();
            if (i + 4 * k >= stride) continue;
            const int16_t *pairs = group + (int64_t)(i + 4 * k) * KEY_GROUP;
            split16(load16(pairs), load16(pairs + 2 * KEY_GROUP), &high[k], &low[k]);
        }
        store_digit(high, to);
        store_digit(low, to + DIGITS);
    }
}

/* CHUNK positions of V. */
INLINE void lay_values(const int16_t *rows, int32_t stride, int32_t chunk, uint8_t *to) {
    for (int32_t i = 0; i < stride; i += 16) {
        __m512i high[16], low[16];
        for (int k = 0; k < 16; k++) {
            const int16_t *pairs = rows + (int64_t)(CHUNK * chunk + 4 * k) * stride + VALUE_GROUP * i;
            split16(load16(pairs), load16(pairs + VALUE_GROUP * stride), &high[k], &low[k]);
        }
        uint8_t *at = to + (int64_t)(i / 16 * (TILE / CHUNK) + chunk) * 2 * DIGITS;
        store_digit(high, at);
        store_digit(low, at + DIGITS);
    }
}

/* Sums of sixteen rows by sixteen queries, as three parts: high, mixed, low. */
typedef int32_t parts[3][16][16];

INLINE void store_parts(parts to) {
    _tile_stored(HIGH_SUMS, to[0], 64);
    _tile_stored(MIXED_SUMS, to[1], 64);
    _tile_stored(LOW_SUMS, to[2], 64);
}

INLINE void clear_parts(void) {
    _tile_zero(HIGH_SUMS);
    _tile_zero(MIXED_SUMS);
    _tile_zero(LOW_SUMS);
}

/* The barrier: compilers do not know that tiles are loaded from memory that was stored before. */
INLINE void load_sides(const uint8_t *left, const uint8_t *right) {
    __asm__ volatile("" : : : "memory");
    _tile_loadd(LEFT_HIGH, left, 64);
    _tile_loadd(RIGHT_HIGH, right, 64);
    _tile_loadd(RIGHT_LOW, right + DIGITS, 64);
    _tile_loadd(LEFT_LOW, left + DIGITS, 64);
}

/* One of four steps of sixteen positions' scores: other work between them hides what each one takes.
 * The high digits of keys and queries have a sign. */
INLINE void score_step(int step, const uint8_t *keys, const uint8_t *q, int32_t chunks) {
    if (step == 0) clear_parts();
    if (chunks == 1) {
        if (step == 0) load_sides(keys, q);
        if (step == 0) _tile_dpbssd(HIGH_SUMS, LEFT_HIGH, RIGHT_HIGH);
        if (step == 1) _tile_dpbsud(MIXED_SUMS, LEFT_HIGH, RIGHT_LOW);
        if (step == 2) _tile_dpbuud(LOW_SUMS, LEFT_LOW, RIGHT_LOW);
        if (step == 3) _tile_dpbusd(MIXED_SUMS, LEFT_LOW, RIGHT_HIGH);
        return;
    }
    for (int32_t c = step * chunks / 4; c < (step + 1) * chunks / 4; c++) {
        load_sides(keys + 2 * DIGITS * c, q + 2 * DIGITS * c);
        _tile_dpbssd(HIGH_SUMS, LEFT_HIGH, RIGHT_HIGH);
        _tile_dpbsud(MIXED_SUMS, LEFT_HIGH, RIGHT_LOW);
        _tile_dpbuud(LOW_SUMS, LEFT_LOW, RIGHT_LOW);
        _tile_dpbusd(MIXED_SUMS, LEFT_LOW, RIGHT_HIGH);
    }
}

INLINE void score_steps(const uint8_t *keys, const uint8_t *q, int32_t chunks) {
    UNROLL
    for (int step = 0; step < 4; step++) score_step(step, keys, q, chunks);
}

/* Sixteen elements of O; weights have no sign. Chunks [first, last) of the tile's positions. */
INLINE void mix_parts(const uint8_t *values, const uint8_t *p, int32_t first, int32_t last) {
    clear_parts();
    for (int32_t c = first; c < last; c++) {
        load_sides(values + 2 * DIGITS * c, p + 2 * DIGITS * c);
        _tile_dpbsud(HIGH_SUMS, LEFT_HIGH, RIGHT_HIGH);
        _tile_dpbsud(MIXED_SUMS, LEFT_HIGH, RIGHT_LOW);
        _tile_dpbuud(LOW_SUMS, LEFT_LOW, RIGHT_LOW);
        _tile_dpbuud(MIXED_SUMS, LEFT_LOW, RIGHT_HIGH);
    }
}

/* Row n of the sums. */
INLINE __m512i whole16(parts from, int n) {
    __m512i x = _mm512_add_epi32(_mm512_slli_epi32(load16(from[0][n]), 8), load16(from[1][n]));
    return _mm512_add_epi32(_mm512_slli_epi32(x, 8), load16(from[2][n]));
}

#endif
