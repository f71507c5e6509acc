/* Packed weights: the bytes of a file, turned so that sixteen outputs lie in lanes together.
 *
 * A panel is LANES weight rows, the last one filled up with zero bytes: first the heads (floats) of all
 * its blocks, filled up to a multiple of 64 bytes, then their bodies. No bit is added, so a packed
 * tensor has about the file's size, and every V begins a cache line.
 * V is 64 bytes: dword j of the codes of row 0, of row 1, … of row 15.
 *
 *         head                body
 *   Q8_0  d f16[16]           8 V: elements 4j … 4j+3
 *   Q4_0  d[16]               4 V: low nibbles elements 4j …, high nibbles 16+4j …
 *   Q4_1  d[16] | m[16]       4 V
 *   Q5_0  d[16]               H | 4 V    H: byte i, bit j of a row's dword is the fifth bit of 4j+i
 *   Q5_1  d[16] | m[16]       H | 4 V
 *   Q4_K  d[16] | dmin[16]    3 V of the 12 scale bytes | 32 V
 *   Q5_K  d[16] | dmin[16]    3 V | 8 V of fifth bits | 32 V
 *   Q6_K  d[16]               4 V of the scales | 16 V of upper pairs | 32 V of low nibbles
 *   GRID  f32 step 2^e [16]   64 V: elements 2j, 2j+1 as int16; the last block filled up with zeros
 */
#ifndef PACK_H
#define PACK_H

#include "blocks.h"

enum { LANES = 16, VECTOR = 4 * LANES };

/* A run of a block's bytes in the file, by dwords; bits: the fifth bits of a 32-block. */
struct part {
    int32_t at, dwords, bits;
};

INLINE int32_t head_bytes(enum format f) {
    if (f == GRID) return LANES * (int32_t)sizeof(float);
    return 2 * LANES * (has_offset(f) || has_mins(f) ? 2 : 1);
}

INLINE int32_t body_bytes(enum format f) {
    return f == GRID ? GRID_BLOCK / 2 * VECTOR : LANES * bytes_of(f) - head_bytes(f);
}

/* Where the bodies of a panel begin. */
INLINE int64_t heads_bytes(enum format f, int32_t blocks) {
    return ((int64_t)blocks * head_bytes(f) + VECTOR - 1) / VECTOR * VECTOR;
}

INLINE int64_t panel_bytes(enum format f, int32_t blocks) {
    return heads_bytes(f, blocks) + (int64_t)blocks * body_bytes(f);
}

/* Where the halves of a block begin, and its parts in packed order, an empty one last. */
INLINE int32_t parts_of(enum format f, int32_t halves[2], struct part parts[4]) {
    static const struct part none = {0, 0, 0};
    for (int i = 0; i < 4; i++) parts[i] = none;
    halves[0] = f == Q6_K ? 208 : 0;
    halves[1] = 2;
    switch (f) {
    case Q8_0: parts[0] = (struct part){2, 8, 0}; return 1;
    case Q4_0: parts[0] = (struct part){2, 4, 0}; return 1;
    case Q4_1: parts[0] = (struct part){4, 4, 0}; return 2;
    case Q5_0: parts[0] = (struct part){2, 1, 1}, parts[1] = (struct part){6, 4, 0}; return 1;
    case Q5_1: parts[0] = (struct part){4, 1, 1}, parts[1] = (struct part){8, 4, 0}; return 2;
    case Q4_K: parts[0] = (struct part){4, 3, 0}, parts[1] = (struct part){16, 32, 0}; return 2;
    case Q5_K:
        parts[0] = (struct part){4, 3, 0}, parts[1] = (struct part){16, 8, 0};
        parts[2] = (struct part){48, 32, 0};
        return 2;
    default: /* Q6_K */
        parts[0] = (struct part){192, 4, 0}, parts[1] = (struct part){128, 16, 0};
        parts[2] = (struct part){0, 32, 0};
        return 1;
    }
}

/* Bit 4j+i of h goes to bit j of byte i. */
INLINE uint32_t spread_bits(uint32_t h) {
    uint32_t out = 0;
    for (int k = 0; k < 32; k++) out |= (h >> k & 1u) << (8 * (k & 3) + (k >> 2));
    return out;
}

/* One block of `rows` (at most sixteen) weight rows; the targets hold zeros. */
INLINE void pack_block(enum format f, const uint8_t *from, int64_t row_bytes, int32_t rows,
                       uint8_t *head, uint8_t *to) {
    int32_t halves[2];
    struct part parts[4];
    int32_t count = parts_of(f, halves, parts);
    for (int32_t h = 0; h < count; h++, head += 2 * LANES)
        for (int32_t r = 0; r < rows; r++) memcpy(head + 2 * r, from + r * row_bytes + halves[h], 2);
    for (const struct part *p = parts; p->dwords; p++)
        for (int32_t j = 0; j < p->dwords; j++, to += VECTOR)
            for (int32_t r = 0; r < rows; r++) {
                uint32_t v = load_u32(from + r * row_bytes + p->at + 4 * j);
                if (p->bits) v = spread_bits(v);
                memcpy(to + 4 * r, &v, 4);
            }
}

static void pack_rows(enum format f, const uint8_t *weight, int64_t row_bytes, int32_t out,
                      int32_t blocks, uint8_t *to) {
    for (int32_t o = 0; o < out; o += LANES, to += panel_bytes(f, blocks)) {
        uint8_t *head = to, *body = to + heads_bytes(f, blocks);
        for (int32_t b = 0; b < blocks; b++, head += head_bytes(f), body += body_bytes(f))
            pack_block(f, weight + o * row_bytes + (int64_t)b * bytes_of(f), row_bytes,
                       least(LANES, out - o), head, body);
    }
}

/* Of one panel whose rows have `blocks` blocks. */
EXPORT int64_t muser_panel_bytes(int32_t format, int32_t blocks) {
    return panel_bytes((enum format)format, blocks);
}

/* Packs `out` weight rows of `blocks` blocks into `to`, which holds zeros. 0, or -1 for a format
 * that is not packed so. */
EXPORT int32_t muser_pack(int32_t format, const uint8_t *weight, int64_t row_bytes, int32_t out,
                          int32_t blocks, uint8_t *to) {
#define PACK(f) \
    case f: pack_rows(f, weight, row_bytes, out, blocks, to); return 0;
    switch (format) {
        PACK(Q8_0)
        PACK(Q4_0)
        PACK(Q4_1)
        PACK(Q5_0)
        PACK(Q5_1)
        PACK(Q4_K)
        PACK(Q5_K)
        PACK(Q6_K)
    default: return -1;
    }
#undef PACK
}

/* Float weights on their grid: codes int16 [out][width], steps int8 [out][blocks of 128]. */
EXPORT void muser_pack_grid(const int16_t *codes, const int8_t *steps, int32_t out, int32_t width,
                            uint8_t *to) {
    const int32_t blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    for (int32_t o = 0; o < out; o += LANES, to += panel_bytes(GRID, blocks))
        for (int32_t b = 0; b < blocks; b++) {
            uint8_t *head = to + (int64_t)b * head_bytes(GRID);
            uint8_t *body = to + heads_bytes(GRID, blocks) + (int64_t)b * body_bytes(GRID);
            for (int32_t r = 0; r < least(LANES, out - o); r++) {
                const int16_t *row = codes + (int64_t)(o + r) * width + b * GRID_BLOCK;
                float step = two_to(steps[(int64_t)(o + r) * blocks + b]);
                memcpy(head + 4 * r, &step, sizeof step);
                for (int32_t k = 0; k < least(GRID_BLOCK, width - b * GRID_BLOCK); k++)
                    memcpy(body + k / 2 * VECTOR + 4 * r + 2 * (k & 1), row + k, 2);
            }
        }
}

#endif
