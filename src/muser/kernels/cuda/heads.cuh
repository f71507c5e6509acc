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
constexpr int MOST = HEAD_MOST / 32;  // elements of a thread: lane + 32·i

// WHOLE: n is 32·VALUES, so that nothing is asked.
template <int VALUES, bool WHOLE = false, class F>
INLINE void each(int n, F f) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (WHOLE || lane + 32 * i < n) f(i, lane + 32 * i);
}

template <int VALUES, bool WHOLE>
INLINE void norm_values(float (&x)[VALUES], const float (&w)[VALUES], int n, float inverse, float eps, bool& bad) {
    float s[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) s[i] = 0.0f;
    each<VALUES, WHOLE>(n, [&](int i, int) { s[i] = fma1(x[i], x[i], 0.0f); });
    float sum = rows::halve(s), r = rows::inverse_root(sum, inverse, eps);
    bad |= lost(sum);
    each<VALUES, WHOLE>(n, [&](int i, int) { x[i] = rows::kept(mul1(mul1(x[i], r), w[i]), bad); });
}

// Both of a pair, x0 first.
INLINE float2 turn(float x0, float x1, float2 t, bool& bad) {
    return make_float2(rows::kept(fma1(x0, t.x, -mul1(x1, t.y)), bad), rows::kept(fma1(x0, t.y, mul1(x1, t.x)), bad));
}

INLINE int pair_of(const Heads& a, int k) { return a.halves ? (k < a.rotated / 2 ? k : k - a.rotated / 2) : k / 2; }
// `held`: HEAD_MOST floats of this warp, through which an element meets the other of its pair. Either is a sum of two
// products, the second's with sine and cosine in the other order: no lane goes its own way.
template <int VALUES, bool WHOLE>
INLINE void rotate(float (&x)[VALUES], const Heads& a, const float2 (&turns)[VALUES], float* held, bool& bad) {
    int half = a.rotated / 2;
    each<VALUES, WHOLE>(a.head_dim, [&](int i, int k) { held[k] = x[i]; });
    __syncwarp();
    each<VALUES, WHOLE>(a.head_dim, [&](int i, int k) {
        bool second = a.halves ? k >= half : threadIdx.x & 1, turned = k < a.rotated;
        int apart = a.halves ? half : 1;
        float other = held[!turned ? k : second ? k - apart : k + apart];
        float u = second ? turns[i].y : turns[i].x, v = second ? turns[i].x : -turns[i].y;
        float sum = fma1(second ? other : x[i], u, mul1(second ? x[i] : other, v));
        x[i] = rows::kept(turned ? sum : x[i], bad);
    });
}

// G(x, 11, -24) as f16; returns the step. What f16 does not hold is a fault and becomes 0: a cache must stay finite.
template <int VALUES, bool WHOLE>
INLINE int snap(const float (&x)[VALUES], int n, u16* to, bool& bad) {
    u32 top = 0;
    each<VALUES, WHOLE>(n, [&](int i, int) { top = max(top, bits_abs(x[i])); });
    int e = grid_step(warp_max(top), 11, -24);
    each<VALUES, WHOLE>(n, [&](int i, int k) {
        float v = mul1(__int2float_rn(grid_code(x[i], e, 11)), pow2(e));
        bool fits = fabsf(v) <= 65504.0f && !lost(x[i]);
        bad |= !fits;
        to[k] = (u16)float_to_half(fits ? v : 0.0f);
    });
    return e;
}

// One head of a row, by a warp whose threads have VALUES elements each.
template <int VALUES, bool WHOLE>
INLINE void prepare(const Heads& a, float* held) {
    int row = blockIdx.y, n = a.head_dim, h = (int)blockIdx.x * HEAD_WARPS + (int)threadIdx.x / 32;
    bool is_q = h < a.heads, is_v = h >= a.heads + a.kv_heads, bad = false;
    bool inside = row < *a.step.count && h < a.heads + 2 * a.kv_heads;
    int kv = h - a.heads - (is_v ? a.kv_heads : 0), position = 0, slot = 0;
    float w[VALUES], x[VALUES];
    float2 turns[VALUES];
    if (inside) {
        const float* weight = is_q ? a.q_weight : a.k_weight;
        position = a.step.positions[row], slot = a.step.slots[row];
        if (a.normed && !is_v) each<VALUES, WHOLE>(n, [&](int i, int k) { w[i] = weight ? __ldg(weight + k) : 1.0f; });
        const float2* table = (const float2*)(a.table + (size_t)position * a.rotated);
        if (!is_v) each<VALUES>(a.rotated, [&](int i, int k) { turns[i] = __ldg(table + pair_of(a, k)); });
    }
    previous_kernel_done();
    if (!inside) return;
    const float* from = is_q   ? a.q + ((size_t)row * a.heads + h) * n
                        : is_v ? a.v + ((size_t)row * a.kv_heads + kv) * n
                               : a.k + ((size_t)row * a.kv_heads + kv) * n;
    each<VALUES, WHOLE>(n, [&](int i, int k) { x[i] = from[k]; });
    if (a.normed && !is_v) norm_values<VALUES, WHOLE>(x, w, n, a.inverse, a.eps, bad);
    if (a.rotated && !is_v) rotate<VALUES, WHOLE>(x, a, turns, held, bad);
    if (is_q) {
        float* to = a.q_out + ((size_t)row * a.heads + h) * n;
        each<VALUES, WHOLE>(n, [&](int i, int k) { to[k] = x[i]; });
    } else {
        size_t at = ((size_t)slot * a.kv_heads + kv) * a.capacity + position % a.capacity;
        int e = snap<VALUES, WHOLE>(x, n, (is_v ? a.v_cache : a.k_cache) + at * n, bad);
        if (is_v && threadIdx.x % 32 == 0) a.v_steps[at] = (i8)e;
    }
    if (bad) report(a.faults, row);
}
}  // namespace head

KERNEL BOUNDS(32 * HEAD_WARPS, 9) heads(const Heads a) {
    __shared__ float held[HEAD_WARPS][HEAD_MOST];
    float* own = held[threadIdx.x / 32];
    touch(a);
    next_kernel_may_start();
    if (a.head_dim == 64) head::prepare<2, true>(a, own);
    else if (a.head_dim == 128) head::prepare<4, true>(a, own);
    else head::prepare<head::MOST, false>(a, own);
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
    float s[head::MOST];
#pragma unroll
    for (int i = 0; i < head::MOST; i++) s[i] = 0.0f;
    for (int first = 0; first < n; first += HEAD_MOST)
        head::each<head::MOST>(min(n - first, HEAD_MOST), [&](int i, int k) {
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
