// Quantised rows (docs/arithmetic.md 2 and 3) for buckets 1, 4 and 16, and what comes before them in a
// fused projection: a gate, a norm, or the residual sum and its norm. Inside library.cu, after blocks.cuh.
//
// quantise_256, quantise_32, grid_rows(Quantise)   one thread block a row: grid (most rows of the bucket), block 512
//     no dynamic shared memory for kind PLAIN, else 4·width bytes
//     writes codes u8 [row][ceil(K/256)][272] and scales f32 [row][round_up(K,256)/B]; grid_rows writes
//     digits u8 [row][ceil(K/128)][256] and steps f32 [row][ceil(K/128)]; for kind RESIDUAL also `sum`
// The kinds, of row r (or row take[r]) of `row`, bit-equal to the operators one by one:
//     PLAIN x   GATED z(x·sigmoid(other))   NORM RmsNorm(x)·weight
//     RESIDUAL  b = branch_norm ? RmsNorm(x)·branch_weight : x;   sum = z(other + b);   RmsNorm(sum)·weight
// READY is for the projections: codes and scales are there already.
#pragma once

constexpr int READY = 0, PLAIN = 1, GATED = 2, NORM = 3, RESIDUAL = 4;

struct Source {
    const u8* codes;  // READY
    const float* scales;
    const float* row;            // f32 [rows][width]
    const float* other;          // GATED: the gate; RESIDUAL: the stream
    const float* branch_weight;  // f32 [width], or null: ones
    const float* weight;
    float* sum;       // RESIDUAL, f32 [rows][width]; never `other`, which other thread blocks still read
    const int* take;  // null: row r itself
    u64 branch_entry, sum_entry, norm_entry;  // of faults; sum_entry is also the gate's
    int width, kind, branch_norm;
    float inverse, branch_eps, eps;  // f32(1/width)
};

struct Quantise {
    Source source;
    u8* codes;
    float* scales;
    const int* count;
    u64* faults;
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

// BATCH pieces of 256 elements of a row, so that their loads are under way together: those of `warp`, `warps` apart.
constexpr int BATCH = 4;
INLINE void load_batch(const float* x, int first, int warps, int width, float (&v)[BATCH][8]) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) load8(x, (first + i * warps) * GROUP + 8 * (threadIdx.x % 32), width, v[i]);
}

template <int B>
INLINE void quantise_group(const float (&v)[8], int g, u8* codes, float* scales) {
    int lane = threadIdx.x % 32, sum = 0;
    float a = __uint_as_float(shared_max<B / 8>(top_of(v))), inverse = 0.0f, scale = 0.0f;
    if (a != 0.0f) inverse = div1(127.0f, a), scale = div1(1.0f, inverse);
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int q = rne(inverse, v[i]);
        sum += q, words[i / 4] |= (u32)(q & 255) << (8 * (i & 3));
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    u8* group = codes + g * CODES_PITCH;
    ((uint2*)group)[lane] = make_uint2(words[0], words[1]);
    if (lane % 4 == 0) ((i16*)(group + GROUP))[lane / 4] = (i16)sum;
    if (lane % (B / 8) == 0) scales[(g * 32 + lane) / (B / 8)] = scale;
}
// B: 256 or 32. To groups of 272 bytes and their scales, in whichever memory.
template <int B>
INLINE void quantise_row(const float* x, int width, u8* codes, float* scales, int warp, int warps) {
    int groups = (width + GROUP - 1) / GROUP;
    for (int g = warp; g < groups; g += BATCH * warps) {
        float v[BATCH][8];
        load_batch(x, g, warps, width, v);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (g + i * warps < groups) quantise_group<B>(v[i], g + i * warps, codes, scales);
    }
}

// To 16 bytes for every eight elements: their low digits, their high digits.
INLINE void grid_group(const float (&v)[8], int g, int blocks, u8* codes, float* steps) {
    int lane = threadIdx.x % 32, b = 2 * g + lane / 16, e = grid_step(__uint_as_float(shared_max<16>(top_of(v))), 13, -60);
    u32 w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int n = grid_code(v[i], e, 13), high = (n + 64) >> 7, shift = 8 * (i & 3);
        w[i / 4] |= (u32)(n - 128 * high & 255) << shift, w[2 + i / 4] |= (u32)(high & 255) << shift;
    }
    if (b >= blocks) return;
    ((uint4*)codes)[g * 32 + lane] = make_uint4(w[0], w[1], w[2], w[3]);
    if (lane % 16 == 0) steps[b] = pow2(e);
}
INLINE void grid_row(const float* x, int width, u8* codes, float* steps, int warp, int warps) {
    int groups = (width + GROUP - 1) / GROUP, blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    for (int g = warp; g < groups; g += BATCH * warps) {
        float v[BATCH][8];
        load_batch(x, g, warps, width, v);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (g + i * warps < groups) grid_group(v[i], g + i * warps, blocks, codes, steps);
    }
}

// --- before them ---
// This thread's elements i of a row: N of them with k known to the compiler, f(k, i); then the others, f(N, i).
template <int N, typename F>
INLINE void each_element(int width, F f) {
#pragma unroll
    for (int k = 0; k < N; k++) {
        int i = threadIdx.x + k * blockDim.x;
        if (i < width) f(k, i);
    }
    for (int i = threadIdx.x + N * blockDim.x; i < width; i += blockDim.x) f(N, i);
}
template <int N>
struct Held {  // the first N of them, in registers; null stands for ones
    float v[N];
    const float* from;

    __device__ void hold(const float* row, int width) {
        from = row;
#pragma unroll
        for (int k = 0; k < N; k++) {
            int i = threadIdx.x + k * blockDim.x;
            v[k] = row && i < width ? row[i] : 1.0f;
        }
    }
    __device__ float at(int k, int i) const { return k < N ? v[k] : from ? from[i] : 1.0f; }
};

// The norms' weights of this thread, read before the kernel before has ended.
template <int N>
struct Weights {
    Held<N> branch, norm;
};
template <int N>
INLINE void hold_weights(Weights<N>& w, const Source& s) {
    if (s.kind == RESIDUAL && s.branch_norm) w.branch.hold(s.branch_weight, s.width);
    if (s.kind == RESIDUAL || s.kind == NORM) w.norm.hold(s.weight, s.width);
}

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
    for (int half = 4; half; half /= 2)
        for (int k = 0; k < half; k++) s[k] = add1(s[k], s[k + half]);
    for (int half = 16; half; half /= 2) s[0] = add1(s[0], __shfl_down_sync(~0u, s[0], half));
    return __shfl_sync(~0u, s[0], 0);
}

INLINE float root_factor(const float* row, const Source& s, float eps, float* lanes, bool& bad) {
    float total = sum_of_squares(row, s.width, lanes);
    bad |= lost(total);
    return div1(1.0f, root(fma1(total, s.inverse, eps)));
}
INLINE float stored(float x, bool& bad) {
    float v = z(x);
    bad |= lost(v);
    return v;
}
INLINE float stored(float x, const Faults& faults, int row) {
    float v = z(x);
    if (lost(v)) report(faults, row);
    return v;
}
INLINE void report_if(bool bad, u64* word, u64 entry, int row) {
    if (bad) report({word, entry}, row);
}

// Row r of a source in f32: where it is, or made by the whole thread block in `made` (f32 [width], shared memory).
// Ends with a barrier if it was made. `first`: the thread block that also writes the sum. Of a row that is not one of
// the n nothing is told; row 0 may be such a row, so that its loads need not wait for n.
template <int N>
INLINE const float* make_row(const Source& s, int r, int n, bool first, u64* word, float* made, float* lanes, const Weights<N>& w) {
    i64 from = (i64)(s.take == nullptr ? r : r < n ? s.take[r] : 0) * s.width;
    const float *x = s.row + from, *other = s.other + from;
    bool bad_branch = false, bad_sum = false, bad_norm = false;
    if (s.kind == PLAIN) return x;
    if (s.kind == GATED) {
#pragma unroll 4
        for (int i = threadIdx.x; i < s.width; i += blockDim.x) made[i] = stored(mul1(x[i], sigmoid1(other[i])), bad_sum);
        __syncthreads();
        report_if(bad_sum && r < n, word, s.sum_entry, r);
        return made;
    }
    Held<N> own, beside;
    own.hold(x, s.width);
    if (s.kind == RESIDUAL) beside.hold(other, s.width);
    each_element<N>(s.width, [&](int k, int i) { made[i] = own.at(k, i); });
    __syncthreads();
    if (s.kind == RESIDUAL) {
        float factor = s.branch_norm ? root_factor(made, s, s.branch_eps, lanes, bad_branch) : 1.0f;
        each_element<N>(s.width, [&](int k, int i) {
            float b = made[i];
            if (s.branch_norm) b = stored(mul1(mul1(b, factor), w.branch.at(k, i)), bad_branch);
            made[i] = b = stored(add1(b, beside.at(k, i)), bad_sum);
            if (first && r < n) s.sum[(i64)r * s.width + i] = b;
        });
        __syncthreads();
    }
    float factor = root_factor(made, s, s.eps, lanes + 256, bad_norm);
    each_element<N>(s.width, [&](int k, int i) {
        made[i] = stored(mul1(mul1(made[i], factor), w.norm.at(k, i)), bad_norm);
    });
    __syncthreads();
    report_if(bad_branch && r < n, word, s.branch_entry, r);
    report_if(bad_sum && r < n, word, s.sum_entry, r);
    report_if(bad_norm && r < n, word, s.norm_entry, r);
    return made;
}

template <int B>  // 256, 32, or 0: the grid
INLINE void quantise_rows(const Quantise& a) {
    SHARED_BYTES(shared);
    __shared__ float lanes[512];
    Weights<16> w;
    next_kernel_may_start();
    hold_weights(w, a.source);
    previous_kernel_done();
    int r = blockIdx.x, width = a.source.width, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int n = *a.count;
    if (r >= n) return;
    const float* x = make_row(a.source, r, n, true, a.faults, (float*)shared, lanes, w);
    i64 groups = (width + GROUP - 1) / GROUP, blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    if constexpr (B == 0) grid_row(x, width, a.codes + r * blocks * GRID_UNIT, a.scales + r * blocks, warp, warps);
    else quantise_row<B>(x, width, a.codes + r * groups * CODES_PITCH, a.scales + r * groups * (GROUP / B), warp, warps);
}
KERNEL BOUNDS(512, 1) quantise_256(Quantise a) { quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) quantise_32(Quantise a) { quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) grid_rows(Quantise a) { quantise_rows<0>(a); }
