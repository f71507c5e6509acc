// t_b of docs/arithmetic.md 4 for sixteen outputs of a K-quant tile and up to four rows, by one warp on 8-bit matrix
// units. Inside library.cu, after blocks.cuh.
//
// A product is 16 outputs × 32 codes × 8 columns. Lane (g, q) = (lane / 4, lane % 4) gives it codes of outputs σ(g) and
// σ(g) + 8, and codes of column g. The order of the codes is free, as long as weights and rows have the same: a lane takes
// whole pieces as they lie in the file, so lanes with q < 2 hold codes of one scale, those with q ≥ 2 of another. Two
// columns keep them apart: 2n and 2n + 1 are of row n, and in column 2n + s only lanes with q / 2 == s hold anything but
// zeros. So lane (g, q) ends with all sums of row q, two of each accumulator and output.
#pragma once

struct Lane {
    u32 g, q;
};
// Worked out anew for every chunk: what follows from it, for three formats, would take registers all the time.
INLINE Lane own_lane() {
    u32 lane = unknown(threadIdx.x) % 32;
    return {lane / 4, lane % 4};
}

// What a lane holds of the rows, for each of two units. Where it holds zeros they stay: nothing is ever loaded there.
struct RowCodes {
    u32 words[2][4][4];
    bool mine;
    MEMBER void begin(int n) {
#pragma unroll
        for (int k = 0; k < 32; k++) words[k / 16][k / 4 % 4][k % 4] = 0;
        auto [g, q] = own_lane();
        mine = g % 2 == q / 2 && (int)g / 2 < n;
    }
};

// Where the codes and sums of a unit of the first row stand, and the bytes of a row.
struct UnitRows {
    const u8* q;
    int bytes;
};

// Codes of one word of nibbles, of the lower and the upper scale, the second times `fold`. Q4_K: sixteen times, which
// spares a shift. Q5_K: two times, so that one shift of the fifth bits (then at bits 4 and 5) serves both.
template <int FORMAT>
INLINE u32 half_codes(u32 x, u32 fifths, int high) {
    if (FORMAT == Q4_K) return x & (high ? 0xf0f0f0f0u : 0x0f0f0f0fu);
    return high ? (x >> 3 & 0x1e1e1e1eu) | (fifths & 0x20202020u) : (x & 0x0f0f0f0fu) | (fifths & 0x10101010u);
}
// As with_min, of `unfold` · sum, which both factors give exactly.
INLINE float folded_with_min(u32 d_dmin, int sum, int mins, float unfold) {
    float d = mul1(half_to_float(d_dmin), unfold), dmin = half_to_float(d_dmin >> 16);
    return fma1(d, __int2float_rn(sum), -mul1(dmin, __int2float_rn(mins)));
}

// t[0] of output σ(g) and t[1] of σ(g) + 8; `place` is σ(g), by which eight lanes meet no bank twice. Accumulator 2L + h
// has the sums of scales 4L + h and 4L + h + 2: low (h = 0) and high nibbles of pieces 4L … 4L + 3.
template <int FORMAT>
INLINE void fragment_k(const u8* tile, const UnitRows& rows, const Lane& lane, u32 (&b)[4][4], bool mine, float (&t)[2],
                       u32& place) {
    constexpr int BYTES = FORMAT == Q5_K ? 176 : 144, CODES = BYTES - 128, FOLD = FORMAT == Q5_K ? 2 : 16;
    auto [g, q] = lane;
    place = g / 2 + g % 2 * 4;
    const u8 *own = tile + place * BYTES, *sums_at = rows.q + (int)q * rows.bytes + GROUP;
    u32 from = shared_address(rows.q) + q / 2 * 64 + q % 2 * 16 + g / 2 * (u32)rows.bytes;
    int c[4][4] = {};
    uint4 h[2] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) load_quad_if(b[k], from + (u32)(128 * (k / 2) + 32 * (k % 2)), mine);
    if (FORMAT == Q5_K)
#pragma unroll
        for (int e = 0; e < 2; e++) h[e] = *(const uint4*)(own + e * 8 * BYTES + 16 + q % 2 * 16);
#pragma unroll
    for (int L = 0; L < 2; L++) {
        const u8* at = own + CODES + 64 * L + 16 * q;
        uint4 w[2] = {*(const uint4*)at, *(const uint4*)(at + 8 * BYTES)};
        u32 x[2][4], fifths[2][4];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            x[k / 4][k % 4] = word_of(w[k / 4], k % 4);
            u32 bits = word_of(h[k / 4], k % 4);
            fifths[k / 4][k % 4] = L ? bits >> (q & 2) : bits << (4 - (q & 2));
        }
#pragma unroll
        for (int high = 0; high < 2; high++)
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = half_codes<FORMAT>(x[i % 2][k + i / 2], fifths[i % 2][k + i / 2], high);
                mma_u8(c[2 * L + high], a, b[2 * L + high][k], b[2 * L + high][k + 1]);
            }
    }
    uint4 sums = *(const uint4*)sums_at;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        uint4 head = *(const uint4*)(own + e * 8 * BYTES);
        Scales s = read_scales(head.y, head.z, head.w);
        u32 sum[2] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) sum[k & 1] += (u32)scale_of(s, k) * (u32)c[k / 4 * 2 + k % 2][2 * e + k / 2 % 2];
        t[e] = folded_with_min(head.x, (int)(FOLD * sum[0] + sum[1]), min_sum(sums, s), 1.0f / FOLD);
    }
}

// The same with another σ: here sixteen lanes meet no bank twice. Codes 128h + 32p … have scales 8h + 2p and 8h + 2p + 1.
// As numbers without sign: what they are too large, 32 times the sum of a row's codes, is a product too.
INLINE void fragment_6(const u8* tile, const UnitRows& rows, const Lane& lane, u32 (&b)[4][4], bool mine, float (&t)[2],
                       u32& place) {
    constexpr int BYTES = 208;
    const u32 centre[4] = {0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u, 0xe0e0e0e0u};  // −32
    auto [g, q] = lane;
    place = g % 4 * 2 + g / 4;
    const u8* own = tile + place * BYTES;
    u32 from = shared_address(rows.q) + 8 * q + g / 2 * (u32)rows.bytes, sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int c[4][4] = {};
        uint2 w[2][2], pairs[2];
#pragma unroll
        for (int p = 0; p < 4; p++) load_pair_if(b[p][2 * h], b[p][2 * h + 1], from + (u32)(128 * h + 32 * p), mine);
#pragma unroll
        for (int k = 0; k < 4; k++)
            w[k / 2][k % 2] = *(const uint2*)(own + k % 2 * 8 * BYTES + 16 + 64 * h + 32 * (k / 2) + 8 * q);
#pragma unroll
        for (int e = 0; e < 2; e++) pairs[e] = *(const uint2*)(own + e * 8 * BYTES + 144 + 32 * h + 8 * q);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            u32 a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint2 &x = w[p & 1][i % 2], &y = pairs[i % 2];
                u32 nibbles = i / 2 ? x.y : x.x;
                a[i] = unsigned_six(p & 2 ? nibbles >> 4 : nibbles, i / 2 ? y.y : y.x, 2 * p);
            }
            mma_s8(c[p], centre, b[p][2 * h], b[p][2 * h + 1]);
            mma_u8(c[p], a, b[p][2 * h], b[p][2 * h + 1]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint2 scales = *(const uint2*)(own + e * 8 * BYTES + 8 * h);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum[e] += signed_byte(k < 4 ? scales.x : scales.y, k % 4) * (u32)c[k / 2][2 * e + k % 2];
        }
    }
    const u16* d = (const u16*)(tile + TILE_OUTPUTS * BYTES) + place;
#pragma unroll
    for (int e = 0; e < 2; e++) t[e] = mul1(half_to_float(d[8 * e]), __int2float_rn((int)sum[e]));
}

// Terms of a chunk of two units, of which one or both are there: that of output o, row r and unit u at to[o · pitch +
// r · window + u]. All of it is computed, whatever lies there.
template <int FORMAT>
INLINE void chunk_terms(const u8* tile, UnitRows rows, RowCodes& b, int units, float* to, int pitch, int window) {
    float t[2][2];
    u32 place;
    Lane lane = own_lane();
#pragma unroll
    for (int u = 0; u < 2; u++, tile += tile_bytes(FORMAT), rows.q += CODES_PITCH) {
        if constexpr (FORMAT == Q6_K) fragment_6(tile, rows, lane, b.words[u], b.mine, t[u], place);
        else fragment_k<FORMAT>(tile, rows, lane, b.words[u], b.mine, t[u], place);
    }
    to += (int)place * pitch + (int)lane.q * window;
#pragma unroll
    for (int e = 0; e < 2; e++, to += 8 * pitch) {
        to[0] = t[0][e];
        if (units > 1) to[1] = t[1][e];
    }
}
