// A row that is made and quantised by 256 threads, thread t with its elements t, t + 256, …: those of its lane of the sums
// of squares, and one of each quantised group. They stay in registers, so the row goes through no memory meanwhile.
// Functions only: kernels are in quantise.cuh.
#pragma once
#include "source.cuh"

constexpr int HELD = 32;  // elements of a thread at most, so that lane k of a warp can look after group k
constexpr int LANES = rows::LANES;
static_assert(LANES == GROUP, "a thread has one element of each group");

// What comes before the row's first norm has a weight of its own.
INLINE bool has_branch_norm(const Source& s) { return s.kind == RESIDUAL && s.branch_norm; }
// Whole groups and real weights only: then offsets are constants, and no element asks where the row ends.
INLINE bool is_held(const Source& s) {
    return s.width % LANES == 0 && s.width <= HELD * LANES && s.weight && (!has_branch_norm(s) || s.branch_weight);
}

// Groups beyond the row's hold zeros, which change no sum: loops over all HELD of them have no branch, so that what belongs
// to many elements is under way at once.
struct Held {
    float v[HELD];
};
template <typename F>
INLINE void each_held(F f) {
#pragma unroll
    for (int k = 0; k < HELD; k++) f(k);
}
INLINE void hold(Held& to, const float* from, int groups) {
    from += threadIdx.x;
    each_held([&](int k) { to.v[k] = k < groups ? from[LANES * k] : 0.0f; });
}

// The norms' weights on their way to `staged`, the first norm's first, before the kernel before has ended; two groups of
// copies, so that each can be waited for where it is needed.
INLINE void stage_weight(const float* from, int width, float* to) {
#pragma unroll 1
    for (int i = threadIdx.x; i < width / 4; i += LANES) copy16(to + 4 * i, from + 4 * i);
    copy_commit();
}
INLINE void stage_weights(const Source& s, float* staged) {
    if (has_branch_norm(s)) stage_weight(s.branch_weight, s.width, staged), staged += s.width;
    else copy_commit();
    stage_weight(s.weight, s.width, staged);
}

INLINE float normed(float x, float factor, float weight) { return z(mul1(mul1(x, factor), weight)); }
// A sum of squares is lost: which elements were, and where.
INLINE void find_lost(const Source& s, const float* x, const float* other, const float* staged, float factor, Marks& bad) {
#pragma unroll 1
    for (int i = threadIdx.x; i < s.width; i += LANES) {
        float b = s.branch_norm ? normed(x[i], factor, staged[i]) : x[i];
        bad.branch |= s.branch_norm && lost(b);
        bad.sum |= lost(z(add1(b, other[i])));
    }
}

// Row r of a source; see make_row. `lanes`: 512 floats.
INLINE void make_held(const Source& s, int r, Held& own, float* staged, float* lanes, Marks& bad) {
    i64 from = (i64)(s.take ? s.take[r] : r) * s.width;
    const float *x = s.row + from, *other = s.other + from, *mine = staged + threadIdx.x;
    float *sum = s.sum + (i64)r * s.width + threadIdx.x, squares = 0.0f, factor = 1.0f;
    int groups = s.width / LANES;
    Held beside;
    hold(own, x, groups);
    if (s.kind == RESIDUAL) {
        hold(beside, other, groups);
        if (s.branch_norm) {
            each_held([&](int k) { squares = fma1(own.v[k], own.v[k], squares); });
            copy_wait<1>();  // before the barrier within
            float total = rows::lane_sum(squares, lanes);
            bad.branch = lost(total), factor = rows::inverse_root(total, s.inverse, s.branch_eps);
            each_held([&](int k) { own.v[k] = normed(own.v[k], factor, k < groups ? mine[LANES * k] : 0.0f); });
        }
        each_held([&](int k) {
            own.v[k] = z(add1(own.v[k], beside.v[k]));
            if (k < groups) sum[LANES * k] = own.v[k];
        });
    }
    squares = 0.0f;
    each_held([&](int k) { squares = fma1(own.v[k], own.v[k], squares); });
    copy_wait<0>();
    float total = rows::lane_sum(squares, lanes + LANES);
    if (lost(total)) {
        bad.norm = true;
        if (s.kind == RESIDUAL) find_lost(s, x, other, staged, factor, bad);
    }
    factor = rows::inverse_root(total, s.inverse, s.eps);
    if (has_branch_norm(s)) mine += s.width;
    each_held([&](int k) { own.v[k] = normed(own.v[k], factor, k < groups ? mine[LANES * k] : 0.0f); });
}

// The largest |x| of each group in this warp: lane k has that of group k.
INLINE u32 tops_of(const Held& own) {
    u32 top = 0;
    each_held([&](int k) {
        u32 most = __reduce_max_sync(~0u, bits_abs(own.v[k]));
        if (threadIdx.x % 32 == (u32)k) top = most;
    });
    return top;
}
// The same of `warps` neighbouring warps; `tops`: 256 words.
INLINE u32 tops_among(int warps, u32 top, u32* tops) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp / warps * warps;
    tops[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < warps; i++) top = max(top, tops[(first + i) * 32 + lane]);
    return top;
}

// As quantise_row and grid_row do; `made`: the row's codes, in shared memory. Also whether an element was lost.
template <int B>
INLINE bool quantise_held(const Held& own, int width, u8* codes, float* scales, u8* made, u32* tops) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = width / GROUP;
    u32 top = tops_of(own);
    bool bad = top >= 0x7f800000u;
    if (B == 256) top = tops_among(8, top, tops);
    float a = __uint_as_float(top), inverse = 0.0f, scale = 0.0f;
    if (a != 0.0f) inverse = div1(127.0f, a), scale = div1(1.0f, inverse);
    if (lane < groups && (B == 32 || warp == 0)) scales[B == 32 ? lane * 8 + warp : lane] = scale;
    u8* at = made + threadIdx.x;
    each_held([&](int k) {
        u32 code = __float_as_uint(fma1(__shfl_sync(~0u, inverse, k), own.v[k], MAGIC));
        if (k < groups) at[k * CODES_PITCH] = (u8)code;
    });
    __syncthreads();
    if ((int)threadIdx.x < 8 * groups) {
        int g = threadIdx.x / 8, part = threadIdx.x % 8, sum = 0;
        const uint4* from = (const uint4*)(made + g * CODES_PITCH + 32 * part);
        const uint4 ones = make_uint4(0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u);
        sum = dot16(from[1], ones, dot16(from[0], ones, sum));
        ((i16*)(codes + g * CODES_PITCH + GROUP))[part] = (i16)sum;
    }
    for (int i = threadIdx.x; i < groups * (GROUP / 16); i += LANES)
        ((uint4*)(codes + i / 16 * CODES_PITCH))[i % 16] = ((const uint4*)(made + i / 16 * CODES_PITCH))[i % 16];
    return bad;
}
INLINE bool grid_held(const Held& own, int width, u8* codes, float* steps, u8* made, u32* tops) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = width / GRID_BLOCK, half = warp / 4;
    u32 top = tops_of(own);
    bool bad = top >= 0x7f800000u;
    top = tops_among(4, top, tops);
    int e = grid_step(__uint_as_float(top), 13, -60);
    if (warp % 4 == 0 && 2 * lane + half < blocks) steps[2 * lane + half] = pow2(e);
    u8* at = made + threadIdx.x / 8 * 16 + threadIdx.x % 8;
    each_held([&](int k) {
        int n = grid_code(own.v[k], __shfl_sync(~0u, e, k), 13), high = (n + 64) >> 7;
        if (2 * k < blocks) at[2 * LANES * k] = (u8)(n - 128 * high), at[2 * LANES * k + 8] = (u8)high;
    });
    __syncthreads();
    for (int i = threadIdx.x; i < blocks * (GRID_UNIT / 16); i += LANES) ((uint4*)codes)[i] = ((const uint4*)made)[i];
    return bad;
}
