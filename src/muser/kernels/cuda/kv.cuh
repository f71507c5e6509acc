// Rows of K and V into the cache and out of it (docs/arithmetic.md 7, "Stored rows").
// Cache of a layer: K and V f16 [slot][kv head][capacity][dim], V steps int8 [slot][kv head][capacity];
// position p stands at p % capacity; all of it starts as zeros.
//
// kv_append  grid (most rows of the bucket, kv heads), block 64, shared 0; every bucket.
//            reads k, v f32 [row][kv heads * dim]; writes the cache. A row beyond f16 is reported.
// kv_import  grid (count, kv heads), block 64, shared 0; outside a step, fully after what came before.
//            reads k, v f16 [count][kv heads][dim]; snaps them again; writes the cache. A row that is
//            not finite is reported by its index in the import.
// kv_export  grid (count, kv heads), block 64, shared 0; outside a step.
//            reads the cache; writes k, v f16 [count][kv heads][dim].
#pragma once
#include "muser.cuh"

namespace kv {
constexpr int MOST = 256 / 32;  // elements of a row that a lane takes

struct Append {
    const float *k, *v;
    u16 *k_cache, *v_cache;
    i8* v_steps;
    Step step;
    Faults faults;
    int kv_heads, dim, capacity;
};

struct Copy {  // positions first … first + count - 1 of one slot
    u16 *k, *v, *k_cache, *v_cache;
    i8* v_steps;
    Faults faults;
    int kv_heads, dim, capacity, slot, first, count;
};

INLINE size_t place(int slot, int head, int position, int kv_heads, int capacity) {
    return (size_t)(slot * kv_heads + head) * capacity + position % capacity;
}

// Elements lane, lane + 32, … of one row onto G(·, 11, -24); returns its step. `wrong`: not finite,
// or beyond f16.
INLINE int snap(float (&x)[MOST], u16* to, int dim, int lane, bool& wrong) {
    u32 top = 0;
    for (int i = 0; i < MOST; i++) top = max(top, bits_abs(x[i]));
    float a = warp_max(top);
    int e = grid_step(a, 11, -24);
    wrong = lost(a);
    if (wrong) return 0;
    for (int i = 0; i < MOST; i++) {
        float y = mul1((float)grid_code(x[i], e, 11), pow2(e));
        wrong |= fabsf(y) > 65504.0f;
        if (lane + 32 * i < dim) to[lane + 32 * i] = (u16)float_to_half(y);
    }
    wrong = __any_sync(~0u, wrong);
    return wrong ? 0 : e;
}
}  // namespace kv

KERNEL BOUNDS(64, 16) kv_append(kv::Append a) {
    next_kernel_may_start();
    int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31, of_v = threadIdx.x >> 5;
    previous_kernel_done();
    if (row >= *a.step.count) return;
    size_t at = kv::place(a.step.slots[row], head, a.step.positions[row], a.kv_heads, a.capacity);
    const float* from = (of_v ? a.v : a.k) + ((size_t)row * a.kv_heads + head) * a.dim;
    float x[kv::MOST];
    for (int i = 0; i < kv::MOST; i++) x[i] = lane + 32 * i < a.dim ? from[lane + 32 * i] : 0.0f;
    bool wrong;
    int e = kv::snap(x, (of_v ? a.v_cache : a.k_cache) + at * a.dim, a.dim, lane, wrong);
    if (lane == 0 && of_v) a.v_steps[at] = (i8)e;
    if (lane == 0 && wrong) report(a.faults, row);
}

KERNEL BOUNDS(64, 16) kv_import(kv::Copy a) {
    int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31, of_v = threadIdx.x >> 5;
    previous_kernel_done();
    size_t at = kv::place(a.slot, head, a.first + row, a.kv_heads, a.capacity);
    const u16* from = (of_v ? a.v : a.k) + ((size_t)row * a.kv_heads + head) * a.dim;
    float x[kv::MOST];
    for (int i = 0; i < kv::MOST; i++)
        x[i] = lane + 32 * i < a.dim ? half_to_float(from[lane + 32 * i]) : 0.0f;
    bool wrong;
    int e = kv::snap(x, (of_v ? a.v_cache : a.k_cache) + at * a.dim, a.dim, lane, wrong);
    if (lane == 0 && of_v) a.v_steps[at] = (i8)e;
    if (lane == 0 && wrong) report(a.faults, row);
}

KERNEL BOUNDS(64, 16) kv_export(kv::Copy a) {
    int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31, of_v = threadIdx.x >> 5;
    previous_kernel_done();
    size_t at = kv::place(a.slot, head, a.first + row, a.kv_heads, a.capacity);
    const u16* from = (of_v ? a.v_cache : a.k_cache) + at * a.dim;
    u16* to = (of_v ? a.v : a.k) + ((size_t)row * a.kv_heads + head) * a.dim;
    for (int i = lane; i < a.dim; i += 32) to[i] = from[i];
}
