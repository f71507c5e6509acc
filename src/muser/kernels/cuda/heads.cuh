// Operators on the heads of a row. One warp a head; heads of up to 256 elements in `heads`, any in the others.
//
//   heads       grid (ceil((heads + 2·kv_heads) / 4), rows), block 128, all buckets. Decode's one launch between
//       the projections of q, k, v and attention: norm and rotation of q and k (each may be left out), q to
//       q_out (may be q), k and v snapped into the cache.
//   head_norm   grid (ceil(heads / 4), rows), block 128, all buckets. May write in place.
//   rope_interleaved, rope_half_split
//               grid (ceil(heads·head_dim / (2·block)), rows), block 32 to 256, all buckets. In place.
// Cache: f16 [slot][kv head][capacity][head_dim], v_steps int8 [slot][kv head][capacity]; position p stands at
// p % capacity. table: f32 [context][rotated/2][cos, sin]. No dynamic shared memory. After rows.cuh.
#pragma once

constexpr int HEAD_WARPS = 4, HEAD_MOST = 256;

struct Heads {
    const float *q, *k, *v, *q_weight, *k_weight, *table;
    float* q_out;
    u16 *k_cache, *v_cache;
    i8* v_steps;
    Step step;
    Faults faults;
    int heads, kv_heads, head_dim, capacity;
    int normed;   // whether q and k pass a norm first
    int rotated;  // elements that rotate; 0: none
    int halves;   // pairs (i, i + rotated/2), else (2i, 2i + 1)
    float inverse, eps;
};
struct HeadNorm {
    const float *x, *weight;
    float* out;
    Step step;
    Faults faults;
    int heads, head_dim;
    float inverse, eps;
};
struct Rope {
    const float *x, *table;
    float* out;
    Step step;
    Faults faults;
    int heads, head_dim, rotated;
};

namespace head {
constexpr int VALUES = HEAD_MOST / 32;  // element lane + 32·i

template <class F>
INLINE void each(int n, F f) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < n) f(i, lane + 32 * i);
}

INLINE void norm_values(float (&x)[VALUES], const float (&w)[VALUES], int n, float inverse, float eps, bool& bad) {
    float s[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++) s[i] = 0.0f;
    each(n, [&](int i, int) { s[i] = fma1(x[i], x[i], 0.0f); });
    float sum = rows::halve(s), r = rows::inverse_root(sum, inverse, eps);
    bad |= lost(sum);
    each(n, [&](int i, int) { x[i] = rows::kept(mul1(mul1(x[i], r), w[i]), bad); });
}

// Both of a pair, x0 first.
INLINE float2 turn(float x0, float x1, float2 t, bool& bad) {
    return make_float2(rows::kept(fma1(x0, t.x, -mul1(x1, t.y)), bad), rows::kept(fma1(x0, t.y, mul1(x1, t.x)), bad));
}

INLINE int pair_of(const Heads& a, int k) { return a.halves ? (k < a.rotated / 2 ? k : k - a.rotated / 2) : k / 2; }
// `held`: HEAD_MOST floats of this warp, through which an element meets the other of its pair.
INLINE void rotate(float (&x)[VALUES], const Heads& a, const float2 (&turns)[VALUES], float* held, bool& bad) {
    int half = a.rotated / 2;
    each(a.head_dim, [&](int i, int k) { held[k] = x[i]; });
    __syncwarp();
    each(a.head_dim, [&](int i, int k) {
        if (k < a.rotated) {
            int pair = pair_of(a, k);
            bool second = a.halves ? k >= half : k % 2;
            float x0 = held[a.halves ? pair : 2 * pair], x1 = held[a.halves ? pair + half : 2 * pair + 1];
            float2 t = turns[i];
            x[i] = second ? fma1(x0, t.y, mul1(x1, t.x)) : fma1(x0, t.x, -mul1(x1, t.y));
        }
        x[i] = rows::kept(x[i], bad);
    });
}

// G(x, 11, -24) as f16; returns the step. What f16 does not hold is a fault and becomes 0: a cache must stay finite.
INLINE int snap(const float (&x)[VALUES], int n, u16* to, bool& bad) {
    u32 top = 0;
    each(n, [&](int i, int) { top = max(top, bits_abs(x[i])); });
    int e = grid_step(warp_max(top), 11, -24);
    each(n, [&](int i, int k) {
        float v = mul1(__int2float_rn(grid_code(x[i], e, 11)), pow2(e));
        bool fits = fabsf(v) <= 65504.0f && !lost(x[i]);
        bad |= !fits;
        to[k] = (u16)float_to_half(fits ? v : 0.0f);
    });
    return e;
}
}  // namespace head

KERNEL BOUNDS(32 * HEAD_WARPS, 4) heads(const Heads a) {
    __shared__ float held[HEAD_WARPS][HEAD_MOST];
    int warp = threadIdx.x / 32, row = blockIdx.y, n = a.head_dim;
    int h = (int)blockIdx.x * HEAD_WARPS + warp;
    bool is_q = h < a.heads, is_v = h >= a.heads + a.kv_heads, bad = false;
    bool inside = row < *a.step.count && h < a.heads + 2 * a.kv_heads;
    int kv = h - a.heads - (is_v ? a.kv_heads : 0), position = 0, slot = 0;
    float w[head::VALUES], x[head::VALUES];
    float2 turns[head::VALUES];
    next_kernel_may_start();
    if (inside) {  // what no earlier kernel writes
        const float* weight = is_q ? a.q_weight : a.k_weight;
        position = a.step.positions[row], slot = a.step.slots[row];
        if (a.normed && !is_v) head::each(n, [&](int i, int k) { w[i] = weight ? __ldg(weight + k) : 1.0f; });
        const float2* table = (const float2*)(a.table + (size_t)position * a.rotated);
        if (!is_v) head::each(a.rotated, [&](int i, int k) { turns[i] = __ldg(table + head::pair_of(a, k)); });
    }
    previous_kernel_done();
    if (!inside) return;
    const float* from = is_q   ? a.q + ((size_t)row * a.heads + h) * n
                        : is_v ? a.v + ((size_t)row * a.kv_heads + kv) * n
                               : a.k + ((size_t)row * a.kv_heads + kv) * n;
    head::each(n, [&](int i, int k) { x[i] = from[k]; });
    if (a.normed && !is_v) head::norm_values(x, w, n, a.inverse, a.eps, bad);
    if (a.rotated && !is_v) head::rotate(x, a, turns, held[warp], bad);
    if (is_q) {
        float* to = a.q_out + ((size_t)row * a.heads + h) * n;
        head::each(n, [&](int i, int k) { to[k] = x[i]; });
    } else {
        size_t at = ((size_t)slot * a.kv_heads + kv) * a.capacity + position % a.capacity;
        int e = head::snap(x, n, (is_v ? a.v_cache : a.k_cache) + at * n, bad);
        if (is_v && threadIdx.x % 32 == 0) a.v_steps[at] = (i8)e;
    }
    if (bad) report(a.faults, row);
}

KERNEL BOUNDS(32 * HEAD_WARPS, 4) head_norm(const HeadNorm a) {
    int row = blockIdx.y, lane = threadIdx.x % 32, n = a.head_dim;
    int h = (int)blockIdx.x * HEAD_WARPS + (int)threadIdx.x / 32;
    int count = *a.step.count;
    bool bad = false;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= count || h >= a.heads) return;
    size_t at = ((size_t)row * a.heads + h) * n;
    float s[head::VALUES];
#pragma unroll
    for (int i = 0; i < head::VALUES; i++) s[i] = 0.0f;
    for (int first = 0; first < n; first += HEAD_MOST)
        head::each(min(n - first, HEAD_MOST), [&](int i, int k) {
            float x = a.x[at + first + k];
            s[i] = fma1(x, x, s[i]);
        });
    float sum = rows::halve(s), r = rows::inverse_root(sum, a.inverse, a.eps);
    bad |= lost(sum);
    for (int k = lane; k < n; k += 32)
        a.out[at + k] = rows::kept(mul1(mul1(a.x[at + k], r), a.weight ? a.weight[k] : 1.0f), bad);
    if (bad) report(a.faults, row);
}

namespace head {
// A thread takes two elements: a pair, or two neighbours of those that do not rotate.
template <bool HALVES>
INLINE void rope(const Rope& a) {
    int row = blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), pairs = a.head_dim / 2;
    int count = *a.step.count;
    bool bad = false;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= count || i >= a.heads * pairs) return;
    int pair = i % pairs, half = a.rotated / 2;
    size_t at = ((size_t)row * a.heads + i / pairs) * a.head_dim;
    bool turns = pair < half;
    int first = HALVES && turns ? pair : 2 * pair, second = HALVES && turns ? pair + half : 2 * pair + 1;
    float2 r = make_float2(a.x[at + first], a.x[at + second]);
    if (turns) {
        r = turn(r.x, r.y, ((const float2*)(a.table + (size_t)a.step.positions[row] * a.rotated))[pair], bad);
    } else {
        r = make_float2(rows::kept(r.x, bad), rows::kept(r.y, bad));
    }
    a.out[at + first] = r.x;
    a.out[at + second] = r.y;
    if (bad) report(a.faults, row);
}
}  // namespace head

KERNEL BOUNDS(256, 4) rope_interleaved(const Rope a) { head::rope<false>(a); }
KERNEL BOUNDS(256, 4) rope_half_split(const Rope a) { head::rope<true>(a); }
