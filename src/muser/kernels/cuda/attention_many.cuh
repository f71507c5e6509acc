// What the attention texts of many rows share: which rows and heads a block has, and one tile's step for two
// rows a thread, in the accumulator layout of the matrix units: y[block of 8 positions][row g: 2, row g + 8: 2].
//
// A block has rows of the step that follow one another; those of one slot form a run, and runs go one after
// another. Rows may stand at any position: each has its own visible span.
#pragma once
#include "attention.cuh"

namespace attention {
struct Run {  // rows [from, to) of the step, of one slot; the tiles that any of them sees
    int from, to, first, last;
};
INLINE Run run_at(const Attend& a, int from, int limit) {
    Span seen = visible(a, from);
    Run run = {from, from + 1, first_tile(seen), last_tile(seen)};
    int slot = a.step.slots[from];
    for (; run.to < limit && a.step.slots[run.to] == slot; run.to++) {
        seen = visible(a, run.to);
        run.first = min(run.first, first_tile(seen)), run.last = max(run.last, last_tile(seen));
    }
    return run;
}

struct Pair {  // one row of the matrix tile
    int row, head;  // row -1: none
    Span seen;
};

struct State {  // of one row of the matrix tile; low: least M so far
    int n, m, low;
    float den;
};

// The heads and rows that a block does.
struct Share {
    int kv_head, head, heads, each, warps;  // each: queries of a warp
};
INLINE Share share_of(const Attend& a, int unit, int warps) {
    int ratio = a.heads / a.kv_heads, groups = (ratio + ROWS - 1) / ROWS, kv = unit / groups;
    int at = unit % groups * ROWS, heads = min(ROWS, ratio - at);
    return {kv, kv * ratio + at, heads, ratio < ROWS ? ROWS / ratio : 1, warps};
}
INLINE int first_row(const Share& s) {  // the longest blocks come first
    return (int)(gridDim.x - 1 - blockIdx.x) * s.warps * s.each;
}
INLINE Pair pair_of(const Attend& a, const Share& s, const Run& run, int warp, int r) {
    int query = r / s.heads, row = first_row(s) + warp * s.each + query;
    if (query >= s.each || row < run.from || row >= run.to) return {-1, 0, {0, 0}};
    return {row, s.head + r % s.heads, visible(a, row)};
}

// The warp's rows on their grid, and what they see. put(row, element, high, low) stores two digits.
template <int HEAD, class Memory, class Put>
INLINE void place_rows(const Attend& a, Memory& mem, const Share& s, const Run& run, int warp, int lane, Put put) {
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        Pair p = pair_of(a, s, run, warp, r);
        int at = warp * ROWS + r;
        auto put_here = [&](int x, u16 high, u16 low) { put(at, x, high, low); };
        float v[HEAD / 32];
        load_query<HEAD>(v, a.q + ((size_t)p.row * a.heads + p.head) * a.dim, p.row >= 0, a, lane);
        float mine = place_query<HEAD>(v, a, lane, put_here);
        if (lane == 0) mem.pair[at] = p, mem.scale[at] = mine;
    }
    __syncwarp();
}

// Hides what a row may not see; the largest |y| of what it sees.
INLINE void hide(float (&y)[64], float (&top)[2], const Pair* rows, int tile, int t) {
    Span seen[2] = {rows[0].seen, rows[8].seen};
    bool whole = true;
    for (int r = 0; r < 2; r++) whole &= seen[r].lo <= tile * TILE && seen[r].hi >= tile * TILE + TILE;
    if (whole) {
#pragma unroll
        for (int i = 0; i < 64; i++) top[i >> 1 & 1] = fmaxf(top[i >> 1 & 1], fabsf(y[i]));
        return;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int at = tile * TILE + i / 4 * 8 + 2 * t + (i & 1), r = i >> 1 & 1;
        bool shown = at >= seen[r].lo && at < seen[r].hi;
        top[r] = fmaxf(top[r], shown ? fabsf(y[i]) : 0.0f);
        if (!shown) y[i] = HIDDEN;
    }
}

// Scores become digits of P, in the order of the matrix unit's left operand: [position / 16][4].
struct Weights {
    u32 high[32], low[32];
};
INLINE void weigh_tile(const float (&y)[64], const i8* steps, Weights& w, u32 (&top_n)[2], u32 (&top_m)[2],
                       u32 (&sum)[2], int t) {
    const u16* pairs = (const u16*)steps;
#pragma unroll
    for (int r = 0; r < 2; r++) top_n[r] = top_m[r] = sum[r] = 0;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        u32 bits = floor_bits(y[i]);
        int r = i >> 1 & 1;
        top_n[r] = max(top_n[r], bits);
        top_m[r] = max(top_m[r], bits + step_of_pair(pairs[i / 4 * 4 + t], i & 1));
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 1; x < 4; x <<= 1) {
            top_n[r] = max(top_n[r], __shfl_xor_sync(~0u, top_n[r], x));
            top_m[r] = max(top_m[r], __shfl_xor_sync(~0u, top_m[r], x));
        }
    pairs += unknown((u32)t);  // read anew
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
        u32 pair = pairs[i];
        int ev[2] = {step_of_pair(pair, 0), step_of_pair(pair, 1)};
        float unit[2] = {pow2(-15 - ev[0]), pow2(-15 - ev[1])};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float h[2], l[2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                weigh(y[i + 2 * r + j], 147 - (int)top_n[r], 139 + ev[j] - (int)top_m[r], unit[j], h[j], l[j], sum[r]);
            w.high[i / 2 + r] = float_to_half2(h[0], h[1]);
            w.low[i / 2 + r] = float_to_half2(l[0], l[1]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
}

struct Merge {  // one step of the chain for two rows
    float kept[2], added[2];
    bool sees[2], plain;
};
INLINE Merge merge_sums(State (&state)[2], const Pair* rows, const u32 (&top_n)[2], const u32 (&top_m)[2],
                        const u32 (&sum)[2], int tile) {
    Merge step;
    step.plain = true;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        State& s = state[r];
        int n = from_bits(top_n[r]), m = from_bits(top_m[r]);
        step.sees[r] = rows[8 * r].seen.lo < (tile + 1) * TILE && rows[8 * r].seen.hi > tile * TILE;
        step.kept[r] = 1.0f, step.added[r] = 0.0f;
        if (step.sees[r]) {
            int n2 = max(s.n, n), m2 = max(s.m, m);  // before the first tile den and acc are 0
            s.den = fma1(s.den, shift(s.n - n2), mul1((float)(int)sum[r], shift(n - n2)));
            step.kept[r] = shift(s.m - m2);
            step.added[r] = pow2(15 + max(m - m2, -100));  // the digits were scaled by 2^-15
            s.low = min(s.low, m);
            s.n = n2, s.m = m2;
            step.plain &= s.low - m2 >= -40;
        }
    }
    step.plain = __all_sync(~0u, step.plain);  // z cannot act: see decode_combine
    return step;
}
INLINE void merge_value(float& acc, float high, float low, const Merge& step, int r) {
    float o = mul1(join(high, low), step.added[r]);
    if (step.plain) {
        acc = fma1(acc, step.kept[r], o);
    } else if (step.sees[r]) {
        acc = add1(z(mul1(acc, step.kept[r])), z(o));
    }
}

template <int COUNT>
INLINE void write_rows(const Attend& a, const float (&acc)[COUNT], const State (&state)[2], const Pair* rows, int out,
                       int t) {
    Pair pair[2] = {rows[0], rows[8]};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int r = i >> 1 & 1, x = out + i / 4 * 8 + 2 * t + (i & 1);
        if (pair[r].row < 0 || x >= a.dim) continue;
        size_t at = ((size_t)pair[r].row * a.heads + pair[r].head) * a.dim + x;
        finish(a, acc[i], state[r].den, state[r].m - state[r].n + 8, at, pair[r].row);
    }
}
}  // namespace attention
