// The norm of a row, and the sum in front of it: functions alone; kernels are in rows.cuh and tile_rows.cuh.
//
//     ALONE   made = x                 NORM(made) · weight is what follows
//     ADDED   made = sum = x + other
//     NORMED  made = sum = NORM(x) · first_weight + other
//
// 256 threads a row: the lanes of the sum of squares. A block has one row, or two neighbouring ones whose threads
// go in step, so that a weight comes from the second-level cache once for both. A row whose width is a multiple of
// four is held in shared memory meanwhile (norm_bytes): each element is copied there once, 16 bytes at a time and
// all of them under way together. Others are read again where they lie.
#pragma once

namespace rows {
constexpr int ALONE = 0, ADDED = 1, NORMED = 2;
constexpr int LANES = 256, MOST = 2;  // of a row; rows of a block

struct Norm {
    const float *x, *other;              // [rows][width]; other not of ALONE
    const float *first_weight, *weight;  // [width], z'ed at load; null for ones
    float *sum, *out;                    // may be other, x
    Step step;
    Faults faults;
    int width, held;  // whether shared memory holds the rows
    float inverse, first_eps, eps;  // f32(1 / width)
};
struct Lanes {
    float first[MOST * LANES], second[MOST * LANES];
};

INLINE int own_row() { return (int)(blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES); }
INLINE int own_lane() { return threadIdx.x % LANES; }

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

// The sum of s over the threads of a row, in each of them. `lanes` is this sum's own: no barrier guards it
// afterwards, and the one here shows every thread what the others wrote before.
INLINE float lane_sum(float s, float* lanes) {
    float mine[8];
    lanes[threadIdx.x] = s;
    __syncthreads();
    const float* row = lanes + threadIdx.x / LANES * LANES;
#pragma unroll
    for (int i = 0; i < 8; i++) mine[i] = row[threadIdx.x % 32 + 32 * i];
    return halve(mine);
}

INLINE float inverse_root(float sum, float inverse, float eps) { return div1(1.0f, root(fma1(sum, inverse, eps))); }

// z, and whether the value left the finite numbers.
INLINE float kept(float x, bool& bad) {
    x = z(x);
    bad |= lost(x);
    return x;
}
INLINE float weight_at(const float* weight, int k) { return weight ? __ldg(weight + k) : 1.0f; }
INLINE float scaled(float x, float factor, float weight) { return z(mul1(mul1(x, factor), weight)); }

// --- lane by lane: a thread's elements are lane, lane + 256, … ---
INLINE float squares(const float* x, int n) {
    float s = 0.0f;
#pragma unroll 8
    for (int k = own_lane(); k < n; k += LANES) s = fma1(x[k], x[k], s);
    return s;
}

// Where the elements of a row stand, and where their sums go: to `made`, which the norm reads, and to `sum`.
struct Row {
    const float *x, *other;
    float *made, *sum;  // the second null: nowhere
};

// COUNT elements of a thread from k on; all loads before the first store. An element that was lost shows in s.
template <int COUNT, bool FIRST>
INLINE float add_some(const Row& row, const float* weight, float factor, int k, float s) {
    float x[COUNT], other[COUNT], w[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        x[i] = row.x[k + i * LANES], other[i] = row.other[k + i * LANES];
        if (FIRST) w[i] = weight_at(weight, k + i * LANES);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float v = z(add1(FIRST ? scaled(x[i], factor, w[i]) : x[i], other[i]));
        row.made[k + i * LANES] = v;
        if (row.sum) row.sum[k + i * LANES] = v;
        s = fma1(v, v, s);
    }
    return s;
}
template <int COUNT, bool FIRST>
INLINE void add_on(const Row& row, const float* weight, float factor, int n, int& k, float& s) {
#pragma unroll 1
    for (; k + (COUNT - 1) * LANES < n; k += COUNT * LANES) s = add_some<COUNT, FIRST>(row, weight, factor, k, s);
}
template <bool FIRST>
INLINE float add_all(const Row& row, const float* weight, float factor, int n) {
    int k = own_lane();
    float s = 0.0f;
    add_on<8, FIRST>(row, weight, factor, n, k, s);
    add_on<2, FIRST>(row, weight, factor, n, k, s);
    add_on<1, FIRST>(row, weight, factor, n, k, s);
    return s;
}

// 1 / √(mean of squares), and whether the sum, or an element before it, left the finite numbers.
INLINE float factor_of(float s, float* lanes, float inverse, float eps, bool& bad) {
    float sum = lane_sum(s, lanes);
    bad |= lost(sum);
    return inverse_root(sum, inverse, eps);
}

// What the elements of `made` are multiplied by before their weights. Ends behind a barrier that shows `made` to all.
template <bool HELD>
INLINE float make(const Norm& a, int kind, const Row& row, Lanes& lanes, bool& bad) {
    float s;
    if (kind == NORMED) {
        s = squares(row.x, a.width);
        if (HELD) copy_wait<0>();
        float factor = factor_of(s, lanes.first, a.inverse, a.first_eps, bad);
        s = add_all<true>(row, a.first_weight, factor, a.width);
    } else if (kind == ADDED) {
        s = add_all<false>(row, nullptr, 1.0f, a.width);
    } else {
        s = squares(row.x, a.width);
    }
    return factor_of(s, lanes.second, a.inverse, a.eps, bad);
}

// A row into shared memory; zeros for one that the step does not have.
INLINE void bring(float* to, const float* from, int n, bool real) {
    for (int k = 4 * own_lane(); k < n; k += 4 * LANES) copy16(to + k, from + k, real ? 16 : 0);
    copy_commit();
}
INLINE Row hold(const Norm& a, int kind, int row, bool real, float* shared) {
    size_t at = (size_t)row * a.width;
    float *x = shared + threadIdx.x / LANES * (kind == ALONE ? 1 : 2) * a.width, *other = x + a.width;
    bring(x, a.x + at, a.width, real);
    if (kind != ALONE) bring(other, a.other + at, a.width, real);
    if (kind == NORMED) copy_wait<1>();
    else copy_wait<0>();
    __syncthreads();
    return {x, other, x, real ? a.sum + at : nullptr};
}
}  // namespace rows
