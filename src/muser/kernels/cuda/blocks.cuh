// Weights as they lie on a device, and t_b of docs/arithmetic.md 4 for one group of 256 elements.
// Inside library.cu, after muser.cuh. A weight is [outputs padded to 128 / 16][units] tiles: a tile is
// one unit of sixteen neighbouring outputs, so what one warp, one matrix fragment and one copy take is
// one span of bytes, and the next unit of the same outputs lies behind it. A unit is a group of 256
// elements (the last one of a row filled up with zeros); of floats 128 elements. In a tile:
//
//   Q4_K [16][144]   0 d f16   2 dmin f16   4 scales[12]   16 nibbles[128]                 as in the file
//   Q5_K [16][176]   0 d       2 dmin       4 scales[12]   16 fifth bits[32]  48 nibbles[128]
//   Q6_K [16][208]   0 scales i8[16]   16 low nibbles[128]   144 high pairs[64];  then d f16 [16]
//   Q8_0 [16][272]   0 d f16[8]   16 codes i8[8][32]
//   Q4_0 [16][144]   0 d f16[8]   16 nibbles[8][16]
//   Q4_1 [16][160]   0 d f16[8]   16 m f16[8]   32 nibbles[8][16]
//   Q5_0 [16][176]   0 d f16[8]   16 fifth bits u32[8]   48 nibbles[8][16]
//   Q5_1 [16][192]   0 d f16[8]   16 m f16[8]   32 fifth bits u32[8]   64 nibbles[8][16]
//   floats [16][256] codes i16[128] of section 4's grid;  then steps f32 [16]
//
// A quantised row has 272 bytes a group: 256 codes i8, then eight sums of 32 codes, i16. A row on the
// grid has 256 bytes for 128 codes n = 128·high + low, |low| ≤ 64: per eight of them 8 low digits i8,
// then 8 high digits. Pitches that are odd multiples of 16 let eight lanes read eight outputs' groups, 16 bytes
// at a time, without meeting in a bank.
#pragma once

constexpr int F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8;  // numbers of GGUF
constexpr int Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30;

INLINE int group_bytes(int format) {
    switch (format) {
        case Q4_K:
        case Q4_0: return 144;
        case Q4_1: return 160;
        case Q5_K:
        case Q5_0: return 176;
        case Q5_1: return 192;
        case Q6_K: return 208;
        case Q8_0: return 272;
        default: return GRID_UNIT;
    }
}

constexpr int TILE_OUTPUTS = 16;
// Behind the sixteen outputs of a tile: bytes of an output's d or step.
INLINE int apart_bytes(int format) {
    switch (format) {
        case Q6_K: return 2;
        case F32:
        case F16:
        case BF16: return 4;
        default: return 0;
    }
}
INLINE int tile_bytes(int format) { return TILE_OUTPUTS * (group_bytes(format) + apart_bytes(format)); }
// Where the tile of output o and unit b begins, of `units` a row; the output's own bytes are o % 16 · group_bytes on.
INLINE i64 tile_at(int format, int units, int o, int b) {
    return ((i64)(o / TILE_OUTPUTS) * units + b) * tile_bytes(format);
}

INLINE int dot4(u32 a, u32 b, int c) { return __dp4a((int)a, (int)b, c); }
INLINE int dot16(const uint4& a, const uint4& b, int c) {
    return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, c))));
}
INLINE uint4 low_nibbles(const uint4& w) {
    return make_uint4(w.x & 0x0f0f0f0fu, w.y & 0x0f0f0f0fu, w.z & 0x0f0f0f0fu, w.w & 0x0f0f0f0fu);
}
INLINE uint4 high_nibbles(const uint4& w) {
    return make_uint4(w.x >> 4 & 0x0f0f0f0fu, w.y >> 4 & 0x0f0f0f0fu, w.z >> 4 & 0x0f0f0f0fu,
                      w.w >> 4 & 0x0f0f0f0fu);
}
INLINE int dot16_u8(const uint4& a, const uint4& b, int c) {  // a without sign
    return dot4_u8(a.w, b.w, dot4_u8(a.z, b.z, dot4_u8(a.y, b.y, dot4_u8(a.x, b.x, c))));
}
// The high nibbles, times sixteen: no shift, and sums of them give it back at the end.
INLINE uint4 sixteenfold(const uint4& w) {
    return make_uint4(w.x & 0xf0f0f0f0u, w.y & 0xf0f0f0f0u, w.z & 0xf0f0f0f0u, w.w & 0xf0f0f0f0u);
}
INLINE u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
INLINE u32 half_of(const uint4& v, int i) { return word_of(v, i >> 1) >> (16 * (i & 1)); }
INLINE int sum_of(const uint4& v, int i) { return (int)(i16)half_of(v, i); }
INLINE int byte_of(const uint4& v, int i) { return (int)(i8)(word_of(v, i >> 2) >> (8 * (i & 3))); }

// --- K-quants ---
struct Scales {
    u32 scale[2], min[2];  // groups of 32: 0-3 and 4-7, one byte each
};
INLINE Scales read_scales(u32 w0, u32 w1, u32 w2) {
    Scales s;
    s.scale[0] = w0 & 0x3f3f3f3fu;
    s.min[0] = w1 & 0x3f3f3f3fu;
    s.scale[1] = (w2 & 0x0f0f0f0fu) | (w0 >> 2 & 0x30303030u);
    s.min[1] = (w2 >> 4 & 0x0f0f0f0fu) | (w1 >> 2 & 0x30303030u);
    return s;
}
INLINE int scale_of(const Scales& s, int i) { return (int)__byte_perm(s.scale[i >> 2], 0, 0x4440 + (i & 3)); }

INLINE int min_sum(const uint4& sums, const Scales& s) {  // Σ m · (sum of 32 codes)
    int total = __dp2a_lo((int)sums.x, (int)s.min[0], 0);
    total = __dp2a_hi((int)sums.y, (int)s.min[0], total);
    total = __dp2a_lo((int)sums.z, (int)s.min[1], total);
    return __dp2a_hi((int)sums.w, (int)s.min[1], total);
}

INLINE float with_min(u32 d_dmin, int sum, int mins) {
    float d = half_to_float(d_dmin), dmin = half_to_float(d_dmin >> 16);
    return fma1(d, __int2float_rn(sum), -mul1(dmin, __int2float_rn(mins)));
}

// Bit `bit` of every byte of h, as sixteens.
INLINE u32 fifth(u32 h, int bit) {
    return bit < 4 ? h << (4 - bit) & 0x10101010u : h >> (bit - 4) & 0x10101010u;
}
INLINE void add_fifths(uint4& w, const uint4& h, int bit) {
    w.x |= fifth(h.x, bit), w.y |= fifth(h.y, bit), w.z |= fifth(h.z, bit), w.w |= fifth(h.w, bit);
}

// Codes of elements 64j + 16i … and 64j + 32 + 16i … (16 each) of a Q4_K or Q5_K group.
template <int FORMAT>
INLINE void unpack_k(const uint4* group, int j, int i, uint4& low, uint4& high) {
    uint4 w = group[(FORMAT == Q5_K ? 3 : 1) + 2 * j + i];
    low = low_nibbles(w), high = high_nibbles(w);
    if (FORMAT == Q5_K) {
        uint4 h = group[1 + i];
        add_fifths(low, h, 2 * j), add_fifths(high, h, 2 * j + 1);
    }
}

// t_b of a Q4_K or Q5_K group for ROWS rows; q: the group of the first row, rows `pieces` · 16 bytes apart.
template <int FORMAT, int ROWS>
INLINE void terms_k(const uint4* group, const uint4* q, int pieces, float* out, int pitch) {
    constexpr bool FOLD = FORMAT == Q4_K;  // high nibbles stay where they are
    uint4 head = group[0];
    Scales s = read_scales(head.y, head.z, head.w);
    int sum[ROWS] = {}, fold[ROWS] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int low[ROWS] = {}, high[ROWS] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 a, b;
            unpack_k<FORMAT>(group, j, i, a, b);
            if (FOLD) b = sixteenfold(group[1 + 2 * j + i]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint4* at = q + r * pieces + 4 * j + i;
                low[r] = dot16(a, at[0], low[r]);
                high[r] = FOLD ? dot16_u8(b, at[2], high[r]) : dot16(b, at[2], high[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] += scale_of(s, 2 * j) * low[r];
            (FOLD ? fold : sum)[r] += scale_of(s, 2 * j + 1) * high[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        out[r * pitch] = with_min(head.x, sum[r] + (fold[r] >> 4), min_sum(q[r * pieces + 16], s));
}

// Six bits without sign, each minus 32: bit 5 inverted becomes bits 5, 6 and 7.
INLINE u32 centred(u32 w) {
    u32 clear = ~w & 0x20202020u;
    return (w & 0x1f1f1f1fu) | clear * 7;
}
INLINE u32 unsigned_six(u32 nibbles, u32 pairs, int shift) {  // nibbles in place; pairs at bits `shift` and up
    u32 high = shift < 4 ? pairs << (4 - shift) : pairs >> (shift - 4);
    return (nibbles & 0x0f0f0f0fu) | (high & 0x30303030u);
}
// Codes 16i …, not centred, of the 32-element part `part` of half h of a Q6_K group: elements 128h + 32·part + 16i.
INLINE uint4 unpack_6(const uint4* group, int h, int part, int i) {
    uint4 w = group[1 + 4 * h + 2 * (part & 1) + i], p = group[9 + 2 * h + i];
    int right = part & 2 ? 4 : 0, shift = 2 * part;
    return make_uint4(unsigned_six(w.x >> right, p.x, shift), unsigned_six(w.y >> right, p.y, shift),
                      unsigned_six(w.z >> right, p.z, shift), unsigned_six(w.w >> right, p.w, shift));
}

template <int ROWS>
INLINE void terms_6(const uint4* group, u32 d, const uint4* q, int pieces, float* out, int pitch) {
    uint4 scales = group[0];
    int sum[ROWS] = {};
    const uint4 centre = make_uint4(~0u / 255 * 0xe0, ~0u / 255 * 0xe0, ~0u / 255 * 0xe0, ~0u / 255 * 0xe0);  // −32
#pragma unroll
    for (int k = 0; k < 16; k++) {
        uint4 w = unpack_6(group, k >> 3, k >> 1 & 3, k & 1);
        if (ROWS > 1) w = make_uint4(centred(w.x), centred(w.y), centred(w.z), centred(w.w));
#pragma unroll
        for (int r = 0; r < ROWS; r++) {  // of one row four products are fewer instructions than centring four words
            uint4 codes = q[r * pieces + k];
            sum[r] += byte_of(scales, k) * dot16(w, codes, ROWS > 1 ? 0 : dot16(centre, codes, 0));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) out[r * pitch] = mul1(half_to_float(d), __int2float_rn(sum[r]));
}

// --- blocks of 32 ---
INLINE u32 spread(u32 bits) { return (bits & 15) * 0x02040810u & 0x10101010u; }  // bit i to bit 4 of byte i

template <int FORMAT>
struct Form32 {  // pieces of 16 bytes before the codes, and what is there
    static constexpr bool OFFSET = FORMAT == Q4_1 || FORMAT == Q5_1,
                          FIFTHS = FORMAT == Q5_0 || FORMAT == Q5_1;
    static constexpr int HEAD = 1 + OFFSET + 2 * FIFTHS;
    static constexpr int CENTRE = FORMAT == Q4_0 ? 8 : FORMAT == Q5_0 ? 16 : 0;
};

// The 32 codes of block j of a group, not centred.
template <int FORMAT>
INLINE void unpack_32(const uint4* group, int j, uint4& low, uint4& high) {
    using Form = Form32<FORMAT>;
    if (FORMAT == Q8_0) {
        low = group[1 + 2 * j], high = group[2 + 2 * j];
        return;
    }
    uint4 w = group[Form::HEAD + j];
    low = low_nibbles(w), high = high_nibbles(w);
    if (Form::FIFTHS) {
        u32 h = ((const u32*)(group + Form::HEAD - 2))[j];
        low.x |= spread(h), low.y |= spread(h >> 4), low.z |= spread(h >> 8), low.w |= spread(h >> 12);
        high.x |= spread(h >> 16), high.y |= spread(h >> 20), high.z |= spread(h >> 24),
            high.w |= spread(h >> 28);
    }
}

template <int FORMAT>
INLINE float term_32(int dot, int sum, u32 d, u32 m) {
    using Form = Form32<FORMAT>;
    float dots = __int2float_rn(dot - Form::CENTRE * sum);
    if (!Form::OFFSET) return mul1(half_to_float(d), dots);
    return fma1(half_to_float(d), dots, mul1(half_to_float(m), __int2float_rn(sum)));
}

// The eight terms of a group at `out`, rows `pitch` floats apart.
template <int FORMAT, int ROWS>
INLINE void terms_32(const uint4* group, const uint4* q, int pieces, float* out, int pitch) {
    uint4 d = group[0], m = Form32<FORMAT>::OFFSET ? group[1] : d;
    constexpr bool SUMS = Form32<FORMAT>::OFFSET || Form32<FORMAT>::CENTRE != 0;
    constexpr int WIDE = ROWS == 4 ? 2 : 4;  // terms of a row that wait in registers for one store
    uint4 sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = SUMS ? q[r * pieces + 16] : d;
#pragma unroll
    for (int part = 0; part < 8 / WIDE; part++) {
        float t[ROWS][WIDE];
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            int j = WIDE * part + i;
            uint4 low, high;
            unpack_32<FORMAT>(group, j, low, high);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint4* at = q + r * pieces + 2 * j;
                int dot = dot16(high, at[1], dot16(low, at[0], 0));
                t[r][i] = term_32<FORMAT>(dot, sum_of(sums[r], j), half_of(d, j), half_of(m, j));
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if constexpr (WIDE == 4)
                ((float4*)(out + r * pitch))[part] = make_float4(t[r][0], t[r][1], t[r][2], t[r][3]);
            else ((float2*)(out + r * pitch))[part] = make_float2(t[r][0], t[r][1]);
        }
    }
}

// --- the grid of float weights ---
// Σ n_w · n_x of 128 elements for ROWS rows, `pieces` · 16 bytes apart. Lanes of one bank start at
// different pieces.
template <int ROWS>
INLINE void dots_grid(const uint4* w, const uint4* x, int pieces, int turn, int (&dots)[ROWS]) {
    int low[ROWS] = {}, high[ROWS] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint4 a = w[i ^ turn];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint4 b = x[r * pieces + (i ^ turn)];
            low[r] = __dp2a_lo((int)a.x, (int)b.x, __dp2a_hi((int)a.y, (int)b.x, low[r]));
            low[r] = __dp2a_lo((int)a.z, (int)b.y, __dp2a_hi((int)a.w, (int)b.y, low[r]));
            high[r] = __dp2a_lo((int)a.x, (int)b.z, __dp2a_hi((int)a.y, (int)b.z, high[r]));
            high[r] = __dp2a_lo((int)a.z, (int)b.w, __dp2a_hi((int)a.w, (int)b.w, high[r]));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) dots[r] = 128 * high[r] + low[r];
}
