// What decode and prefill attention share (docs/arithmetic.md 7). Raw f16 K and V go into the matrix
// units, q and P as two digits base 128; every partial sum is an integer below 2^24 on its grid, so
// the accumulators are exact in any order. K's own steps drop out of the scores: f(T)·2^ek arrives
// already scaled. A tile is 128 absolute positions; a position that a query may not see gets the score
// HIDDEN, so its weight is 0 (its V row is still multiplied: caches must hold finite numbers only).
#pragma once
#include "muser.cuh"

namespace attention {
constexpr int ROWS = 16;           // of a matrix tile: query × head pairs of one KV head
constexpr int NEVER = -0x40000000;  // below every N and M
constexpr float HIDDEN = -8.0e6f;  // below every score that does not fault; MAGIC + it stays positive

// One layer's attention in one step. Heads of `dim` elements, 4 … 256; query head h reads KV head
// h / (heads / kv_heads). The query at position p sees max(0, p - window + 1) … p; window 0: all.
struct Attend {
    const float* q;     // [row][heads * dim]
    const float* gate;  // [row][heads * dim], or null: out = z(z(mixed) * sigmoid(gate))
    float* out;         // [row][heads * dim]
    const u16 *k, *v;   // [slot][kv head][capacity][dim]
    const i8* v_steps;  // [slot][kv head][capacity]
    float* tile_out;    // decode: f(O), [row][head][ceil(dim / 32)][places][32]
    int4* tile_sums;    // decode: N, M, the bits of f(D), 0; [row][head][places]
    u32* claims;        // attention_deep.cuh: [unit], zeros between launches
    Step step;
    Faults faults;
    float factor;  // c: f32 of the f64 product scale · log2 e
    int heads, kv_heads, dim, q_bits;  // q_bits: 20 - ceil(log2 dim)
    int capacity, window, places;      // places: most tiles that one row may see
};

struct Span {  // visible positions [lo, hi)
    int lo, hi;
};
INLINE int first_tile(const Span& s) { return s.lo / TILE; }
INLINE int last_tile(const Span& s) { return (s.hi + TILE - 1) / TILE; }  // one past
INLINE Span visible_from(const Attend& a, int position) {
    return {a.window ? max(0, position - a.window + 1) : 0, position + 1};
}
INLINE Span visible(const Attend& a, int row) { return visible_from(a, a.step.positions[row]); }

// Offset, in elements, of 16-byte piece `piece` of a row of PIECES pieces in shared memory: the pieces
// of eight rows that follow one another lie in different banks.
template <int PIECES>
INLINE int swizzled(int row, int piece) {
    return row * (PIECES * 16) + ((piece ^ (row & 7)) << 4);
}

// Elements 8 · first … of COUNT / PIECES cache rows of `dim` elements, zeros beyond dim.
template <int PIECES, int COUNT, int THREADS>
INLINE void fetch(u8* to, const u16* from, int first, int dim) {
    int thread = (int)unknown(threadIdx.x);
    if (dim % 8 == 0) {
        constexpr int STEP = THREADS / PIECES;  // rows that the block takes at a time
        int row = thread / PIECES, piece = thread % PIECES, x = (first + piece) * 8;
        int bytes = x < dim ? 16 : 0;
        const u16* source = from + row * dim + (x < dim ? x : 0);
#pragma unroll
        for (int i = 0; i < COUNT / THREADS; i++, source += STEP * dim)
            copy16(to + swizzled<PIECES>(row + i * STEP, piece), source, bytes);
        return;
    }
    for (int at = thread; at < COUNT; at += THREADS) {  // rows that are not aligned
        int row = at / PIECES, x = (first + at % PIECES) * 8;
        u16* place = (u16*)(to + swizzled<PIECES>(row, at % PIECES));
        for (int j = 0; j < 8; j++) place[j] = x + j < dim ? from[(size_t)row * dim + x + j] : (u16)0;
    }
}

// Rows [lo, hi) of the same.
template <int PIECES, int THREADS>
INLINE void fetch_rows(u8* to, const u16* from, int first, int dim, int lo, int hi) {
    int thread = (int)unknown(threadIdx.x), piece = thread % PIECES;
    int row = lo + thread / PIECES, x = (first + piece) * 8;
    if (dim % 8 == 0) {
        int bytes = x < dim ? 16 : 0;
        const u16* source = from + row * dim + (x < dim ? x : 0);
#pragma unroll 1
        for (; row < hi; row += THREADS / PIECES, source += THREADS / PIECES * dim)
            copy16(to + swizzled<PIECES>(row, piece), source, bytes);
        return;
    }
#pragma unroll 1
    for (; row < hi; row += THREADS / PIECES)
        for (int j = 0; j < 8; j++)
            ((u16*)(to + swizzled<PIECES>(row, piece)))[j] = x + j < dim ? from[(size_t)row * dim + x + j] : (u16)0;
}

// Elements lane, lane + 32, … of a query row, zeros beyond dim and where there is no row.
template <int HEAD>
INLINE void load_query(float (&v)[HEAD / 32], const float* x, bool there, const Attend& a, int lane) {
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) v[i] = there && lane + 32 * i < a.dim ? x[lane + 32 * i] : 0.0f;
}
// They go on their grid, two digits each, to place(element, high, low). Returns c·2^eq. All of a warp.
template <int HEAD, class Place>
INLINE float place_query(const float (&v)[HEAD / 32], const Attend& a, int lane, Place place) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) top = max(top, bits_abs(v[i]));
    float most = warp_max(top);
    int e = grid_step(most, a.q_bits, -60);
#pragma unroll
    for (int i = 0; i < HEAD / 32; i++) {
        int n = grid_code(v[i], e, a.q_bits), high = (n + 64) >> 7;
        place(lane + 32 * i, (u16)float_to_half((float)high), (u16)float_to_half((float)(n - (high << 7))));
    }
    return mul1(a.factor, pow2(e));
}

// f(T)·2^ek from the sums of the digits; with 256 elements the low digit has two sums, and the three
// are added with one rounding: s + e = low0 + low1 and r + f = 128·high + s exactly.
INLINE float join(float high, float low) { return fma1(high, 128.0f, low); }
INLINE float join(float high, float low0, float low1) {
    float s = add1(low0, low1), b = add1(s, -low0);
    float e = add1(add1(low0, -add1(s, -b)), add1(low1, -b));
    float t = mul1(high, 128.0f), r = add1(t, s), c = add1(r, -t);
    float f = add1(add1(t, -add1(r, -c)), add1(s, -c));
    return add1(r, add1(f, e));
}

// floor(y) as MAGIC's low bits: they order like y, also for HIDDEN.
INLINE u32 floor_bits(float y) { return __float_as_uint(__fadd_rd(y, MAGIC)); }
INLINE int from_bits(u32 bits) { return (int)(bits - MAGIC_BITS); }

// The two digits of P of one score, times unit = 2^(-15 - ev), and its part of D. n_base = 147 - N and
// m_base = 139 + ev - M (of floor_bits), so that exponents come out biased; 87 is 2^-40.
INLINE void weigh(float y, int n_base, int m_base, float unit, float& high, float& low, u32& sum) {
    float t = __fadd_rd(y, MAGIC), g = exp2_unit(add1(y, -add1(t, -MAGIC)));
    int bits = (int)__float_as_uint(t);
    float d_scale = __uint_as_float((u32)max(bits + n_base, 87) << 23);
    float p_scale = __uint_as_float((u32)max(bits + m_base, 87) << 23);
    sum += __float_as_uint(fma1(g, d_scale, MAGIC)) - MAGIC_BITS;
    float p = add1(fma1(g, p_scale, MAGIC), -MAGIC);
    float h = add1(fma1(p, 0x1p-7f, MAGIC), -MAGIC);
    high = mul1(h, unit), low = mul1(fma1(h, -128.0f, p), unit);
}

// V's steps of two neighbouring positions.
INLINE int step_of_pair(u32 pair, int j) { return (int)(j ? pair << 16 : pair << 24) >> 24; }

INLINE float shift(int k) { return pow2(max(k, -100)); }

// The last step of a row's element, and the gate that may follow; `open`: the sigmoid of it.
INLINE float finish(const Attend& a, float acc, float den, int lift, float open, size_t at, int row) {
    float v = mul1(div1(acc, den), pow2(lift));
    if (lost(acc) || lost(den) || lost(v)) report(a.faults, row);
    v = z(v);
    if (a.gate) {
        v = z(mul1(v, open));
        if (lost(v)) report(a.faults, row);
    }
    a.out[at] = v;
    return v;
}
INLINE void finish(const Attend& a, float acc, float den, int lift, size_t at, int row) {
    finish(a, acc, den, lift, a.gate ? sigmoid1(a.gate[at]) : 1.0f, at, row);
}
}  // namespace attention
