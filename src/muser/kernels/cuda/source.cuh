// What the rows of a projection are made of (docs/arithmetic.md 2 and 3): quantised rows, and what comes before
// them, of row r (or row take[r]) of `row`, bit-equal to the operators one by one:
//     PLAIN x   NORM RmsNorm(x)·weight
//     RESIDUAL  b = branch_norm ? RmsNorm(x)·branch_weight : x;   sum = z(other + b);   RmsNorm(sum)·weight
// READY is for the projections: codes and scales are there already. Functions only: kernels are in quantise.cuh.
#pragma once
#include "norms.cuh"

constexpr int READY = 0, PLAIN = 1, NORM = 2, RESIDUAL = 3;

struct Source {
    const u8* codes;  // READY
    const float* scales;
    const float* row;            // f32 [rows][width]
    const float* other;          // RESIDUAL: the stream
    const float* branch_weight;  // f32 [width], or null: ones
    const float* weight;
    float* sum;       // RESIDUAL, f32 [rows][width]; never `other`, which other thread blocks still read
    const int* take;  // null: row r itself
    u64 branch_entry, sum_entry, norm_entry;  // of faults
    int width, kind, branch_norm;
    float inverse, branch_eps, eps;  // f32(1/width)
};

// --- Q(x, B) and G(x, 13, -60), one warp 256 elements, eight a lane ---
INLINE void load8(const float* x, int at, int width, float (&v)[8]) {
    if (width % 8 == 0 && at < width) {
        float4 a = ((const float4*)(x + at))[0], b = ((const float4*)(x + at))[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = at + i < width ? x[at + i] : 0.0f;
}
INLINE u32 top_of(const float (&v)[8]) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) top = max(top, bits_abs(v[i]));
    return top;
}
template <int LANES>
INLINE u32 shared_max(u32 top) {  // among LANES neighbouring lanes
    if constexpr (LANES == 32) {
        return __reduce_max_sync(~0u, top);
    } else {
        for (int i = 1; i < LANES; i *= 2) top = max(top, __shfl_xor_sync(~0u, top, i));
        return top;
    }
}

// A quantised row, in whichever memory: its groups of codes and its scales, `rows` times their size apart.
struct Made {
    u8* codes;
    float* scales;
    int rows;
};
template <int B>
INLINE void quantise_group(const float (&v)[8], u32 top, int g, const Made& to) {
    int lane = threadIdx.x % 32, sum = 0;
    float a = __uint_as_float(shared_max<B / 8>(top)), inverse = 0.0f, scale = 0.0f;
    if (a != 0.0f) inverse = div1(127.0f, a), scale = div1(1.0f, inverse);
    u32 low = rne4(inverse, v[0], v[1], v[2], v[3], sum), high = rne4(inverse, v[4], v[5], v[6], v[7], sum);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    u8* group = to.codes + g * to.rows * CODES_PITCH;
    ((uint2*)group)[lane] = make_uint2(low, high);
    if (lane % 4 == 0) ((i16*)(group + GROUP))[lane / 4] = (i16)sum;
    if (lane % (B / 8) == 0) to.scales[(g * 32 + lane) / (B / 8) * to.rows] = scale;
}
// The next group's loads are under way while one is quantised. One copy of the code: see FOURS. Whether an element was lost.
template <typename F>
INLINE bool each_group(const float* x, int width, int warp, int warps, F f) {
    int groups = (width + GROUP - 1) / GROUP, at = 8 * (threadIdx.x % 32);
    float v[8], next[8];
    bool bad = false;
    if (warp < groups) load8(x, warp * GROUP + at, width, next);
#pragma unroll 1
    for (int g = warp; g < groups; g += warps) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = next[i];
        if (g + warps < groups) load8(x, (g + warps) * GROUP + at, width, next);
        u32 top = top_of(v);
        bad |= top >= 0x7f800000u;
        f(v, top, g);
    }
    return bad;
}
// B: 256 or 32. To groups of 272 bytes and their scales.
template <int B>
INLINE bool quantise_row(const float* x, int width, const Made& to, int warp, int warps) {
    return each_group(x, width, warp, warps, [&](const float (&v)[8], u32 top, int g) { quantise_group<B>(v, top, g, to); });
}

// To 16 bytes for every eight elements: their low digits, their high digits.
INLINE void grid_group(const float (&v)[8], u32 top, int g, int blocks, const Made& to) {
    int lane = threadIdx.x % 32, b = 2 * g + lane / 16, e = grid_step(__uint_as_float(shared_max<16>(top)), 13, -60);
    u32 w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int n = grid_code(v[i], e, 13), high = (n + 64) >> 7, shift = 8 * (i & 3);
        w[i / 4] |= (u32)(n - 128 * high & 255) << shift, w[2 + i / 4] |= (u32)(high & 255) << shift;
    }
    if (b >= blocks) return;
    ((uint4*)(to.codes + b * to.rows * GRID_UNIT))[lane % 16] = make_uint4(w[0], w[1], w[2], w[3]);
    if (lane % 16 == 0) to.scales[b * to.rows] = pow2(e);
}
INLINE bool grid_row(const float* x, int width, const Made& to, int warp, int warps) {
    int blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    return each_group(x, width, warp, warps, [&](const float (&v)[8], u32 top, int g) { grid_group(v, top, g, blocks, to); });
}

// --- before them, of rows that held.cuh does not make ---
template <typename F>
INLINE void each_element(int width, F f) {
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += blockDim.x) f(i);
}
using rows::kept;
using rows::weight_at;

// Σ x² by 256 lanes; the threads of all warps get it. `lanes` holds 256 floats that no thread reads any more.
INLINE float sum_of_squares(const float* row, int width, float* lanes) {
    if (threadIdx.x < 256) {
        float s = 0.0f;
#pragma unroll 8
        for (int i = threadIdx.x; i < width; i += 256) s = fma1(row[i], row[i], s);
        lanes[threadIdx.x] = s;
    }
    __syncthreads();
    float s[8];
    for (int k = 0; k < 8; k++) s[k] = lanes[threadIdx.x % 32 + 32 * k];
    return rows::halve(s);
}

INLINE float root_factor(const float* row, const Source& s, float eps, float* lanes, bool& bad) {
    float total = sum_of_squares(row, s.width, lanes);
    bad |= lost(total);
    return rows::inverse_root(total, s.inverse, eps);
}
INLINE float stored(float x, const Faults& faults, int row) {
    float v = z(x);
    if (lost(v)) report(faults, row);
    return v;
}
INLINE void report_if(bool bad, u64* word, u64 entry, int row) {
    if (bad) report({word, entry}, row);
}

struct Marks {  // what left the finite numbers
    bool branch, sum, norm;
};
INLINE void made_one_by_one(const Source& s, const float* x, const float* other, float* sum, float* made, float* lanes,
                            Marks& bad) {
    each_element(s.width, [&](int i) { made[i] = x[i]; });
    __syncthreads();
    if (s.kind == RESIDUAL) {
        float factor = s.branch_norm ? root_factor(made, s, s.branch_eps, lanes, bad.branch) : 1.0f;
        each_element(s.width, [&](int i) {
            float b = made[i];
            if (s.branch_norm) b = kept(mul1(mul1(b, factor), weight_at(s.branch_weight, i)), bad.branch);
            made[i] = b = kept(add1(b, other[i]), bad.sum);
            sum[i] = b;
        });
        __syncthreads();
    }
    float factor = root_factor(made, s, s.eps, lanes + 256, bad.norm);
    each_element(s.width, [&](int i) { made[i] = kept(mul1(mul1(made[i], factor), weight_at(s.weight, i)), bad.norm); });
}

INLINE void tell(const Marks& bad, const Source& s, u64* word, int r) {
    report_if(bad.branch, word, s.branch_entry, r);
    report_if(bad.sum, word, s.sum_entry, r);
    report_if(bad.norm, word, s.norm_entry, r);
}

// Row r of a source in f32, made by the whole thread block in `made` (f32 [width], shared memory); ends with a barrier.
INLINE void make_row(const Source& s, int r, u64* word, float* made, float* lanes) {
    i64 from = (i64)(s.take ? s.take[r] : r) * s.width;
    Marks bad = {false, false, false};
    made_one_by_one(s, s.row + from, s.other + from, s.sum + (i64)r * s.width, made, lanes, bad);
    __syncthreads();
    tell(bad, s, word, r);
}
