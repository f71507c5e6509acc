// Operators that take whole rows to whole rows: norms, what is fused with them, and elementwise ones.
//
//   rms_norm, add_norm, norm_add_norm   grid (rows), block 256, all buckets. A row's elements stay in
//       registers up to 8,192; `rms_norm` also takes wider ones and reads them twice. May write in place.
//   sigmoid_gate, silu_gate, gelu_gate, add, scale, softcap, scale_softcap
//       grid (ceil(width / (4·block)), rows), block 32 to 256 (64 for one row), all buckets. In place.
// The step was uploaded before a pass's first kernel: what it says may be read before the kernel before has ended.
// Rows are f32 [rows][width]; weights f32 [width], z'ed at load, or null for none. No dynamic shared memory.
#pragma once

constexpr int NORM_THREADS = 256;  // the lanes of the sum of squares
constexpr int NORM_VALUES = 32;    // elements of a row that a thread keeps
constexpr int NORM_WIDTH = NORM_THREADS * NORM_VALUES;

struct Norm {
    const float *x, *weight;
    float* out;
    Step step;
    Faults faults;
    int width;
    float inverse, eps;  // f32(1 / width)
};
// sum = left + right; out = norm(sum).
struct AddNorm {
    const float *left, *right, *weight;
    float *sum, *out;
    Step step;
    Faults faults;
    int width;
    float inverse, eps;
};
// sum = norm(branch) + stream; out = norm(sum).
struct NormAddNorm {
    const float *branch, *stream, *first_weight, *second_weight;
    float *sum, *out;
    Step step;
    Faults faults;
    int width;
    float inverse, first_eps, second_eps;
};

namespace rows {
// f(i, k) for each element k of this thread: i·256 + thread, so that thread = lane of the sum.
template <class F>
INLINE void each(int n, F f) {
#pragma unroll
    for (int i = 0; i < NORM_VALUES; i++) {
        if (i * NORM_THREADS >= n) break;
        int k = i * NORM_THREADS + (int)threadIdx.x;
        if (k < n) f(i, k);
    }
}

// Halves of 256 lanes: 128, 64, 32 from memory, 16 … 1 by shuffles (a + b is b + a). `s`: lane + 32·i of a warp.
INLINE float halve(float (&s)[8]) {
#pragma unroll
    for (int half = 4; half; half >>= 1)
#pragma unroll
        for (int i = 0; i < half; i++) s[i] = add1(s[i], s[i + half]);
#pragma unroll
    for (int half = 16; half; half >>= 1) s[0] = add1(s[0], __shfl_xor_sync(~0u, s[0], half));
    return s[0];
}

// The sum of all threads' s, in every thread. `lanes` is this sum's own: no barrier guards it afterwards.
INLINE float lane_sum(float s, float* lanes) {
    lanes[threadIdx.x] = s;
    __syncthreads();
    float mine[8];
#pragma unroll
    for (int i = 0; i < 8; i++) mine[i] = lanes[threadIdx.x % 32 + 32 * i];
    return halve(mine);
}

INLINE float inverse_root(float sum, float inverse, float eps) { return div1(1.0f, root(fma1(sum, inverse, eps))); }

// z, and whether the value left the finite numbers.
INLINE float kept(float x, bool& bad) {
    x = z(x);
    bad |= lost(x);
    return x;
}

INLINE void load_weight(float (&w)[NORM_VALUES], const float* weight, int n) {
    each(n, [&](int i, int k) { w[i] = weight ? __ldg(weight + k) : 1.0f; });
}

// x = norm(x), in registers.
INLINE void norm_values(float (&x)[NORM_VALUES], const float (&w)[NORM_VALUES], int n, float inverse, float eps,
                        float* lanes, bool& bad) {
    float s = 0.0f;
    each(n, [&](int i, int) { s = fma1(x[i], x[i], s); });
    float sum = lane_sum(s, lanes), r = inverse_root(sum, inverse, eps);
    bad |= lost(sum);
    each(n, [&](int i, int) { x[i] = kept(mul1(mul1(x[i], r), w[i]), bad); });
}

INLINE void norm_wide(const Norm& a, const float* x, float* out, float* lanes, bool& bad) {
    float s = 0.0f;
    for (int k = threadIdx.x; k < a.width; k += NORM_THREADS) s = fma1(x[k], x[k], s);
    float sum = lane_sum(s, lanes), r = inverse_root(sum, a.inverse, a.eps);
    bad |= lost(sum);
    for (int k = threadIdx.x; k < a.width; k += NORM_THREADS)
        out[k] = kept(mul1(mul1(x[k], r), a.weight ? a.weight[k] : 1.0f), bad);
}
}  // namespace rows

KERNEL BOUNDS(NORM_THREADS, 2) rms_norm(const Norm a) {
    __shared__ float lanes[NORM_THREADS];
    int row = blockIdx.x, n = a.width, count = *a.step.count;
    float w[NORM_VALUES], x[NORM_VALUES];
    bool bad = false;
    next_kernel_may_start();
    if (n <= NORM_WIDTH) rows::load_weight(w, a.weight, n);
    previous_kernel_done();
    if (row >= count) return;
    const float* from = a.x + (size_t)row * n;
    float* to = a.out + (size_t)row * n;
    if (n <= NORM_WIDTH) {
        rows::each(n, [&](int i, int k) { x[i] = from[k]; });
        rows::norm_values(x, w, n, a.inverse, a.eps, lanes, bad);
        rows::each(n, [&](int i, int k) { to[k] = x[i]; });
    } else {
        rows::norm_wide(a, from, to, lanes, bad);
    }
    if (bad) report(a.faults, row);
}

KERNEL BOUNDS(NORM_THREADS, 2) add_norm(const AddNorm a) {
    __shared__ float lanes[NORM_THREADS];
    int row = blockIdx.x, n = a.width, count = *a.step.count;
    size_t at = (size_t)row * n;
    float w[NORM_VALUES], x[NORM_VALUES], y[NORM_VALUES];
    bool bad = false;
    next_kernel_may_start();
    rows::load_weight(w, a.weight, n);
    previous_kernel_done();
    if (row >= count) return;
    rows::each(n, [&](int i, int k) { x[i] = a.left[at + k], y[i] = a.right[at + k]; });
    rows::each(n, [&](int i, int k) { a.sum[at + k] = x[i] = rows::kept(add1(x[i], y[i]), bad); });
    rows::norm_values(x, w, n, a.inverse, a.eps, lanes, bad);
    rows::each(n, [&](int i, int k) { a.out[at + k] = x[i]; });
    if (bad) report(a.faults, row);
}

KERNEL BOUNDS(NORM_THREADS, 1) norm_add_norm(const NormAddNorm a) {
    __shared__ float lanes[2][NORM_THREADS];
    int row = blockIdx.x, n = a.width, count = *a.step.count;
    size_t at = (size_t)row * n;
    float v[NORM_VALUES], w[NORM_VALUES], x[NORM_VALUES], y[NORM_VALUES];
    bool bad = false;
    next_kernel_may_start();
    rows::load_weight(v, a.first_weight, n);
    rows::load_weight(w, a.second_weight, n);
    previous_kernel_done();
    if (row >= count) return;
    rows::each(n, [&](int i, int k) { x[i] = a.branch[at + k], y[i] = a.stream[at + k]; });
    rows::norm_values(x, v, n, a.inverse, a.first_eps, lanes[0], bad);
    rows::each(n, [&](int i, int k) { a.sum[at + k] = x[i] = rows::kept(add1(x[i], y[i]), bad); });
    rows::norm_values(x, w, n, a.inverse, a.second_eps, lanes[1], bad);
    rows::each(n, [&](int i, int k) { a.out[at + k] = x[i]; });
    if (bad) report(a.faults, row);
}

// out = f(x, y) element by element; y is not read where an operator has one source.
struct Elementwise {
    const float *x, *y;
    float* out;
    Step step;
    Faults faults;
    int width;
    float factor, inverse, scale;  // scale's factor, or a cap and f32(1 / cap); scale before a cap
};

namespace rows {
template <bool TWO, class F>
INLINE void elementwise(const Elementwise& a, F f) {
    int row = blockIdx.y, k = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4, count = *a.step.count;
    size_t at = (size_t)row * a.width + k;
    bool bad = false;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= count || k >= a.width) return;
    if (a.width % 4 == 0) {
        float4 x = *(const float4*)(a.x + at), y = x;
        if (TWO) y = *(const float4*)(a.y + at);
        float4 r = {f(x.x, y.x, bad), f(x.y, y.y, bad), f(x.z, y.z, bad), f(x.w, y.w, bad)};
        *(float4*)(a.out + at) = r;
    } else {
        for (int i = 0; i < 4 && k + i < a.width; i++)
            a.out[at + i] = f(a.x[at + i], TWO ? a.y[at + i] : 0.0f, bad);
    }
    if (bad) report(a.faults, row);
}
INLINE float capped(float x, float cap, float inverse, bool& bad) {
    return kept(mul1(cap, tanh1(mul1(x, inverse))), bad);
}
}  // namespace rows

#define ELEMENTWISE(name, TWO, expression)                                                    \
    KERNEL BOUNDS(256, 4) name(const Elementwise a) {                                         \
        rows::elementwise<TWO>(a, [&](float x, float y, bool& bad) { return (expression); }); \
    }
ELEMENTWISE(sigmoid_gate, true, rows::kept(mul1(x, sigmoid1(y)), bad))
ELEMENTWISE(silu_gate, true, rows::kept(mul1(silu1(x), y), bad))
ELEMENTWISE(gelu_gate, true, rows::kept(mul1(gelu1(x), y), bad))
ELEMENTWISE(add, true, rows::kept(add1(x, y), bad))
ELEMENTWISE(scale, false, rows::kept(mul1(x, a.factor), bad))
ELEMENTWISE(softcap, false, rows::capped(x, a.factor, a.inverse, bad))
// The scaled value is stored by no one, but tested all the same.
ELEMENTWISE(scale_softcap, false, rows::capped(rows::kept(mul1(x, a.scale), bad), a.factor, a.inverse, bad))
#undef ELEMENTWISE
