// Operators that take whole rows to whole rows: norms, what is fused with them, and elementwise ones.
//
//   rms_norm, add_norm, norm_add_norm   rows.ALONE, ADDED, NORMED of norms.cuh; all buckets. Grid (rows), block 256,
//       or grid (ceil(rows / 2)), block 512; may write in place. Held: width a multiple of four, shared memory
//       4·width bytes a row of the block, the latter two 8·width. Else block 256 and no dynamic shared memory.
//   sigmoid_gate, silu_gate, gelu_gate, add, scale, softcap, scale_softcap
//       grid (ceil(width / (4·block)), rows), block 32 to 256 (64 for one row), all buckets. In place.
// The step was uploaded before a pass's first kernel: what it says may be read before the kernel before has ended.
// Rows are f32 [rows][width]; weights f32 [width], z'ed at load, or null for none.
#pragma once

#include "norms.cuh"

namespace rows {
INLINE void write_norm(const Norm& a, const float* made, float factor, float* out, bool& bad) {
#pragma unroll 4
    for (int k = own_lane(); k < a.width; k += LANES)
        out[k] = kept(mul1(mul1(made[k], factor), weight_at(a.weight, k)), bad);
}

template <int KIND>
INLINE void norm_rows(const Norm& a) {
    SHARED_BYTES(shared);
    __shared__ Lanes lanes;
    int row = own_row(), count = *a.step.count;
    size_t at = (size_t)row * a.width;
    bool bad = false, real = row < count;
    next_kernel_may_start();
    previous_kernel_done();
    if (row - (int)threadIdx.x / LANES >= count) return;
    if (a.held) {
        Row here = hold(a, KIND, row, real, (float*)shared);
        float factor = make<true>(a, KIND, here, lanes, bad);
        if (real) write_norm(a, here.made, factor, a.out + at, bad);
    } else {
        Row there = {a.x + at, a.other + at, a.sum + at, nullptr};
        float factor = make<false>(a, KIND, there, lanes, bad);
        write_norm(a, KIND == ALONE ? there.x : there.made, factor, a.out + at, bad);
    }
    if (bad && real) report(a.faults, row);
}
}  // namespace rows

KERNEL BOUNDS(512, 2) rms_norm(const rows::Norm a) { rows::norm_rows<rows::ALONE>(a); }
KERNEL BOUNDS(512, 2) add_norm(const rows::Norm a) { rows::norm_rows<rows::ADDED>(a); }
KERNEL BOUNDS(512, 2) norm_add_norm(const rows::Norm a) { rows::norm_rows<rows::NORMED>(a); }

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
