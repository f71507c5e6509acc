// Projections of the chunk bucket on every architecture: mma.sync of 8 bits, copies two stages deep.
//
//   gemm_q4_k gemm_q5_k gemm_q6_k                     reads quantise_tiles_k's tiles
//   gemm_q8_0 gemm_q4_0 gemm_q4_1 gemm_q5_0 gemm_q5_1 reads quantise_tiles_32's
//   gemm_grid (F16, BF16, F32 weights)                reads quantise_tiles_grid's
//     out = rows of up to four weights of one format that read the same rows
//     grid (2 · ceil(chunk / 128), Σ over parts of ceil(outputs / W)), block 2·W, shared 2 · S bytes
//     W outputs a block and bytes S of a stage:
//       q4_k 128, 37,120   q5_k 128, 41,216   q6_k 128, 45,312   q8_0 128, 27,648  q4_0 128, 38,912
//       q4_1 128, 43,008   q5_0 128, 43,008   q5_1 128, 47,104   grid 64, 35,072
//     64 rows a block; blocks of rows beyond *count leave. Weights are read up to a multiple of W outputs.
#include "planes.cuh"

struct ChunkGemm {
    ChunkPart part[4];
    const u8* tiles;
    const int* count;
    u64* faults;
    int parts, groups;  // groups of 256 elements; grid: of 128
};
static_assert(sizeof(ChunkGemm) == 160, "as devices write it");

constexpr int SIDE = 64;  // rows of a block: one side of a tile
constexpr int SIDE_CODES = TILE_CODES / 2;

typedef float Totals[8][4];  // [8 rows of activations][accumulator of m16n8]

// Where a warp's part of the outputs stands: 16 outputs × 64 rows.
struct Warp {
    int g, t;        // of the fragment: lane / 4, lane % 4
    int first;       // of the block's outputs
    u32 activations; // this lane's row for load_matrix4, without the exchange
    int turn;        // of the exchange: row % 8
};

INLINE Warp this_warp(int lane, int warp) {
    Warp w = {lane >> 2, lane & 3, 16 * warp, 0, lane & 7};
    w.activations = (u32)((8 * (lane >> 4) + w.turn) * 128);
    return w;
}

// B of 32 elements (step 0-3 of a half or digit) for 16 rows of activations: b0, b1 of 8 rows, then of 8 more.
INLINE void load_rows(u32 (&b)[4], const Warp& w, u32 codes, int lane, int sixteen, int step) {
    int piece = (2 * step + (lane >> 3 & 1)) ^ w.turn;
    load_matrix4(b, codes + w.activations + sixteen * 2048 + piece * 16);
}

// Each thread keeps one address and adds constants to it: registers are scarce.
// One side of one half of the codes of a tile.
template <int THREADS>
INLINE void copy_half(u8* to, const u8* from, int side) {
    to += threadIdx.x * 16, from += side * SIDE * 128 + threadIdx.x * 16;
#pragma unroll
    for (int at = 0; at < SIDE * 128; at += THREADS * 16) copy16(to + at, from + at);
}
template <int THREADS>
INLINE void copy_tile(u8* to, const u8* from, int side) {
    copy_half<THREADS>(to, from, side);
    copy_half<THREADS>(to + SIDE * 128, from + TILE_CODES / 2, side);
}
// One side of small planes of 128 rows, at most 128 pieces of 16 bytes, without gaps between them.
INLINE void copy_planes(u8* to, const u8* from, int side, int planes, int bytes) {
    int pieces = bytes / 32, plane = threadIdx.x / pieces, at = threadIdx.x % pieces * 16;
    if (plane < planes) copy16(to + threadIdx.x * 16, from + (2 * plane + side) * (bytes / 2) + at);
}
// One group of a weight for every two threads: its first 16 bytes, then those from `skip` bytes further on,
// `bytes` of `own` in all; `pitch` apart here. Sixteen outputs lie together, the next sixteen `band` bytes on.
INLINE void copy_weights(u8* to, const u8* from, int bytes, int own, size_t band, int pitch, int skip = 0) {
    int output = threadIdx.x / 2, odd = threadIdx.x & 1;
    to += output * pitch + odd * 16;
    from += output / WEIGHT_OUTPUTS * band + output % WEIGHT_OUTPUTS * own + odd * 16;
#pragma unroll
    for (int at = 0; at < bytes; at += 32)
        if (at + 32 <= bytes || odd == 0) copy16(to + at, from + at + (at + odd > 0 ? skip : 0));
}

struct Block {
    const ChunkPart* part;
    int output, row;    // the first ones
    const u8* tile;     // of the first group
    int side;
    const u8* weights;  // of the first outputs' first tile
};
// What stands behind the sixteen outputs of a tile: `first` is one of the lower eight of them.
template <int UNIT, int BYTES>
INLINE const u8* beside(const Block& block, int groups, int b, int first) {
    return block.weights + ((size_t)(first / WEIGHT_OUTPUTS) * groups + b) * UNIT + WEIGHT_OUTPUTS * BYTES;
}

// --- K-quants: floats once per group ---
template <typename P>
struct GemmK {
    static constexpr int OUTPUTS = 128, THREADS = 256, BLOCKS = P::MINS ? 1 : 2, PARTS = 1;
    static constexpr int TILE_SIZE = TILE_K, BYTES = P::BYTES, UNIT = WEIGHT_OUTPUTS * (BYTES + (P::MINS ? 0 : 2));
    static constexpr int SUMS = SIDE_CODES, SCALES = SUMS + 2048, WEIGHTS = SCALES + 256;
    static constexpr int STAGE = WEIGHTS + OUTPUTS * BYTES;

    static MEMBER void copy_rows(u8* stage, const u8* tile, int side, int) {
        copy_tile<THREADS>(stage, tile, side);
        copy_planes(stage + SUMS, tile + TILE_SUMS, side, 2, 2048);
        copy_planes(stage + SCALES, tile + TILE_SCALES, side, 1, 512);
    }
    static MEMBER void copy_codes(u8* stage, const u8* weights, int groups, int) {
        copy_weights(stage + WEIGHTS, weights, BYTES, BYTES, (size_t)groups * UNIT, BYTES);
    }

    // A half of a block. Q4_K and Q5_K: the codes themselves, times their scale after every step.
    static MEMBER void scaled(int (&sum)[8][4], const Rows& rows, int half, u32 codes, const Warp& w,
                              int lane) {
        P p;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            int pair = step / 2, s = step % 2;
            if (s == 0) p.load(rows, half, pair, w.t);
            u32 a[4], b[4];
            int by[2] = {(int)p.scale_of(step, 0), (int)p.scale_of(step, 1)};
#pragma unroll
            for (int r = 0; r < 4; r++) a[r] = p.codes(pair, s, r);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int c[4];
                if (j % 2 == 0) load_rows(b, w, codes, lane, j / 2, step);
                mma_s8_from(0, c, a, b[j % 2 * 2], b[j % 2 * 2 + 1]);
#pragma unroll
                for (int i = 0; i < 4; i++) sum[j][i] += by[i / 2] * c[i];
            }
        }
    }

    // Q6_K, whose scales change within a step: one plane of scale·code.
    template <bool LOW>
    static MEMBER void plane(int (&sum)[8][4], const Rows& rows, int half, u32 codes, const Warp& w,
                             int lane) {
        P p;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int pair = i / 2, s = i % 2;
            if (s == 0) p.load(rows, half, pair, w.t);
            u32 high[4], low[4], b[4];
#pragma unroll
            for (int r = 0; r < 4; r++) p.planes(pair, s, r, high[r], low[r]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (j % 2 == 0) load_rows(b, w, codes, lane, j / 2, P::step(pair, s));
                if (LOW) mma_u8(sum[j], low, b[j % 2 * 2], b[j % 2 * 2 + 1]);
                if (!LOW) mma_s8(sum[j], high, b[j % 2 * 2], b[j % 2 * 2 + 1]);
            }
        }
    }

    static MEMBER void products(int (&sum)[8][4], const Rows& rows, u32 codes, const Warp& w, int lane) {
        constexpr u32 HALF = SIDE * 128;
        if constexpr (P::MINS) {
#pragma unroll 1
            for (int half = 0; half < 2; half++) scaled(sum, rows, half, codes + half * HALF, w, lane);
        } else {
#pragma unroll 1
            for (int half = 0; half < 2; half++) plane<false>(sum, rows, half, codes + half * HALF, w, lane);
#pragma unroll
            for (int i = 0; i < 32; i++) sum[i / 4][i % 4] *= 256;
#pragma unroll 1
            for (int half = 0; half < 2; half++) plane<true>(sum, rows, half, codes + half * HALF, w, lane);
        }
    }

    static MEMBER void group(Totals& total, const u8* stage, const Block& block, int groups, int b, int,
                             const Warp& w, int lane) {
        int sum[8][4] = {}, first = w.first + w.g;
        const u8* weights = stage + WEIGHTS;
        Rows rows = {weights + first * BYTES, weights + (first + 8) * BYTES};
        float d[2], dmin[2];
        u32 mins[4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (P::MINS) {
                u32 both = word_at(rows[i]);
                d[i] = half_to_float(both), dmin[i] = half_to_float(both >> 16);
                mins[i] = mins[i + 2] = min_halves(rows[i], w.t);
            } else {
                d[i] = half_to_float(((const u16*)beside<UNIT, BYTES>(block, groups, b, first))[(first + 8 * i) % 16]);
            }
        }
        products(sum, rows, shared_address(stage), w, lane);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float m[4] = {}, t[4];
            if (P::MINS) {
                const u8* sums = stage + SUMS + (8 * j + w.g) * 16 + 4 * w.t;
                mma_f16(m, mins, word_at(sums), word_at(sums + SIDE * 16));
            }
            float2 s = ((const float2*)(stage + SCALES))[4 * j + w.t];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float f = __int2float_rn(sum[j][i]);
                t[i] = P::MINS ? fma1(d[i / 2], f, -mul1(dmin[i / 2], m[i])) : mul1(d[i / 2], f);
                total[j][i] = fma1(i & 1 ? s.y : s.x, t[i], total[j][i]);
            }
        }
    }
};

// --- blocks of 32: floats once per block ---
struct BlocksQ8 {
    static constexpr int BYTES = 272, PITCH = 144, PARTS = 2;
    static constexpr bool OFFSET = false;
    static MEMBER void codes(u32 (&a)[4], const Rows& rows, int j, int t) {
#pragma unroll
        for (int r = 0; r < 4; r++) a[r] = word_at(rows[r & 1] + 16 + 32 * j + 16 * (r >> 1) + 4 * t);
    }
};

// Nibbles; FIFTH: where the eight words of fifth bits are, or 0; CENTRE is what codes are less.
template <int SIZE, int PITCHED, int FIFTH, int CODES, int CENTRE, bool OFFSETS>
struct BlocksNibbles {
    static constexpr int BYTES = SIZE, PITCH = PITCHED, PARTS = 1;
    static constexpr bool OFFSET = OFFSETS;
    static MEMBER u32 centred(u32 codes) {
        constexpr u32 add = (128u - CENTRE) * 0x01010101u;
        return CENTRE == 0 ? codes : (codes + add) ^ 0x80808080u;
    }
    static MEMBER u32 fifths(u32 bits) { return (bits & 15) * 0x02040810u & 0x10101010u; }
    static MEMBER void codes(u32 (&a)[4], const Rows& rows, int j, int t) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 x = word_at(rows[i] + CODES + 16 * j + 4 * t);
            u32 low = x & 0x0f0f0f0fu, high = x >> 4 & 0x0f0f0f0fu;
            if (FIFTH != 0) {
                u32 bits = word_at(rows[i] + FIFTH + 4 * j) >> (4 * t);
                low |= fifths(bits), high |= fifths(bits >> 16);
            }
            a[i] = centred(low), a[i + 2] = centred(high);
        }
    }
};
typedef BlocksNibbles<144, 144, 0, 16, 8, false> BlocksQ40;
typedef BlocksNibbles<160, 176, 0, 32, 0, true> BlocksQ41;
typedef BlocksNibbles<176, 176, 16, 48, 16, false> BlocksQ50;
typedef BlocksNibbles<192, 208, 32, 64, 0, true> BlocksQ51;

// PARTS 2: a stage holds half a group (of Q8_0: all d, then 128 codes).
template <typename P>
struct Gemm32 {
    static constexpr int OUTPUTS = 128, THREADS = 256, BLOCKS = 2, PARTS = P::PARTS, STEPS = 8 / PARTS;
    static constexpr int TILE_SIZE = TILE_32, BYTES = P::BYTES, UNIT = WEIGHT_OUTPUTS * BYTES;
    static constexpr int SCALES = SIDE_CODES / PARTS, SUMS = SCALES + STEPS * 256;
    static constexpr int WEIGHTS = SUMS + (PARTS == 1 ? 2048 : 0), STAGE = WEIGHTS + OUTPUTS * P::PITCH;
    static_assert(PARTS == 1 || !P::OFFSET, "sums have room in whole groups");

    static MEMBER void copy_rows(u8* stage, const u8* tile, int side, int part) {
        if (PARTS == 1) copy_tile<THREADS>(stage, tile, side);
        else copy_half<THREADS>(stage, tile + part * (TILE_CODES / 2), side);
        copy_planes(stage + SCALES, tile + TILE_CODES + part * STEPS * 512, side, STEPS, 512);
        if (P::OFFSET) copy_planes(stage + SUMS, tile + TILE_32_SUMS, side, 8, 512);
    }
    static MEMBER void copy_codes(u8* stage, const u8* weights, int groups, int part) {
        size_t band = (size_t)groups * UNIT;
        if (PARTS == 1) copy_weights(stage + WEIGHTS, weights, BYTES, BYTES, band, P::PITCH);
        else copy_weights(stage + WEIGHTS, weights, P::PITCH, BYTES, band, P::PITCH, part * 128);
    }

    static MEMBER void block(Totals& total, const u8* stage, const Rows& rows, int k, int part, const Warp& w,
                             int lane) {
        u32 a[4], b[4], codes = shared_address(stage) + k / 4 * (SIDE * 128);
        float d[2], m[2];
        P::codes(a, rows, k, w.t);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            d[i] = half_to_float(*(const u16*)(rows[i] + 2 * (part * STEPS + k)));
            if (P::OFFSET) m[i] = half_to_float(*(const u16*)(rows[i] + 16 + 2 * k));
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int c[4];
            if (j % 2 == 0) load_rows(b, w, codes, lane, j / 2, k % 4);
            mma_s8_from((int)MAGIC_BITS, c, a, b[j % 2 * 2], b[j % 2 * 2 + 1]);  // |sums| < 2^22
            int at = k * (SIDE / 2) + 4 * j + w.t;
            float2 s = ((const float2*)(stage + SCALES))[at], sum = {0.0f, 0.0f};
            if (P::OFFSET) sum = ((const float2*)(stage + SUMS))[at];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float f = add1(__int_as_float(c[i]), -MAGIC);
                float own = i & 1 ? sum.y : sum.x;
                float t = P::OFFSET ? fma1(d[i / 2], f, mul1(m[i / 2], own)) : mul1(d[i / 2], f);
                total[j][i] = fma1(i & 1 ? s.y : s.x, t, total[j][i]);
            }
        }
    }

    static MEMBER void group(Totals& total, const u8* stage, const Block&, int, int, int part, const Warp& w,
                             int lane) {
        const u8* weights = stage + WEIGHTS + (w.first + w.g) * P::PITCH;
        Rows rows = {weights, weights + 8 * P::PITCH};
#pragma unroll 2
        for (int k = 0; k < STEPS; k++) block(total, stage, rows, k, part, w, lane);
    }
};

// --- float weights: codes n_w = 256·H + L (L without sign), n_x = 128·h + l, one accumulator ---
// Σ n_w·n_x = ((Σ H·h · 128 + Σ H·l) · 2 + Σ L·h) · 128 + Σ L·l. The result fits 32 bits; what stands on the
// way wraps, which does no harm.
struct GemmGrid {
    static constexpr int OUTPUTS = 64, THREADS = 128, BLOCKS = 2, PARTS = 1;
    static constexpr int TILE_SIZE = TILE_GRID, BYTES = 256, PITCH = 288, UNIT = WEIGHT_OUTPUTS * (BYTES + 4);
    static constexpr int STEPS = SIDE_CODES, WEIGHTS = STEPS + 256, STAGE = WEIGHTS + OUTPUTS * PITCH;

    static MEMBER void copy_rows(u8* stage, const u8* tile, int side, int) {
        copy_tile<THREADS>(stage, tile, side);
        copy_planes(stage + STEPS, tile + TILE_CODES, side, 1, 512);
    }
    static MEMBER void copy_codes(u8* stage, const u8* weights, int groups, int) {
        copy_weights(stage + WEIGHTS, weights, BYTES, BYTES, (size_t)groups * UNIT, PITCH);
    }

    // High or low bytes of 128 codes of this lane's two outputs, times the digits of the rows.
    template <bool LOW>
    static MEMBER void fragments(u32 (&a)[4][4], const u8* weights, int t) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int k = i / 4, r = i % 4;
            uint2 x = *(const uint2*)(weights + 8 * (r & 1) * PITCH + 64 * k + 32 * (r >> 1) + 8 * t);
            a[k][r] = __byte_perm(x.x, x.y, LOW ? 0x6420 : 0x7531);
        }
    }
    template <bool LOW>
    static MEMBER void products(int (&c)[8][4], const u32 (&a)[4][4], u32 codes, const Warp& w, int lane) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 b[4];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (j % 2 == 0) load_rows(b, w, codes, lane, j / 2, k);
                if (LOW) mma_u8(c[j], a[k], b[j % 2 * 2], b[j % 2 * 2 + 1]);
                if (!LOW) mma_s8(c[j], a[k], b[j % 2 * 2], b[j % 2 * 2 + 1]);
            }
        }
    }
    static MEMBER void shift(int (&c)[8][4], int bits) {
#pragma unroll
        for (int i = 0; i < 32; i++) c[i / 4][i % 4] = (int)((u32)c[i / 4][i % 4] << bits);
    }

    static MEMBER void group(Totals& total, const u8* stage, const Block& block, int groups, int b, int,
                             const Warp& w, int lane) {
        u32 parts[4][4], codes = shared_address(stage);
        float step[2];
        int c[8][4] = {}, first = w.first + w.g;
        const u8* weights = stage + WEIGHTS + first * PITCH;
#pragma unroll
        for (int i = 0; i < 2; i++)
            step[i] = ((const float*)beside<UNIT, BYTES>(block, groups, b, first))[(first + 8 * i) % 16];
        fragments<false>(parts, weights, w.t);
        products<false>(c, parts, codes, w, lane), shift(c, 7);
        products<false>(c, parts, codes + SIDE * 128, w, lane), shift(c, 1);
        fragments<true>(parts, weights, w.t);
        products<true>(c, parts, codes, w, lane), shift(c, 7);
        products<true>(c, parts, codes + SIDE * 128, w, lane);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 s = ((const float2*)(stage + STEPS))[4 * j + w.t];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float scale = mul1(step[i / 2], i & 1 ? s.y : s.x);
                total[j][i] = fma1(__int2float_rn(c[j][i]), scale, total[j][i]);
            }
        }
    }
};

// --- the walk that all share ---
template <typename F>
INLINE bool this_block(const ChunkGemm& a, Block& block) {
    int y = blockIdx.y, p = 0, tile = blockIdx.x / 2;
    while (p < a.parts && y >= (a.part[p].outputs + F::OUTPUTS - 1) / F::OUTPUTS)
        y -= (a.part[p].outputs + F::OUTPUTS - 1) / F::OUTPUTS, p++;
    block.row = blockIdx.x * SIDE, block.output = y * F::OUTPUTS, block.side = blockIdx.x % 2;
    if (p == a.parts || block.row >= *a.count) return false;
    block.part = &a.part[p];
    block.tile = a.tiles + (size_t)tile * a.groups * F::TILE_SIZE;
    block.weights = block.part->weights + (size_t)(block.output / WEIGHT_OUTPUTS) * a.groups * F::UNIT;
    return true;
}

INLINE void report_totals(const ChunkGemm& a, const Block& block, const Totals& total, const Warp& w, int n) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int row = block.row + i / 4 * 8 + 2 * w.t + (i & 1);
        if (row < n && lost(total[i / 4][i % 4])) report({a.faults, block.part->entry}, row);
    }
}

INLINE void store_totals(const ChunkGemm& a, const Block& block, const Totals& total, const Warp& w) {
    int n = *a.count, pitch = block.part->outputs, output = block.output + w.first + w.g;
    int first = block.row + 2 * w.t;
    float* out = block.part->out + (size_t)first * pitch + output;
    float probe = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) probe = probe_of(total[i / 4][i % 4], probe);
    if (lost(probe)) report_totals(a, block, total, w, n);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float(&pair)[4] = total[i / 2];
        bool inside = first + i / 2 * 8 + i % 2 < n;
        if (inside && output < pitch) out[0] = z(pair[i % 2]);
        if (inside && output + 8 < pitch) out[8] = z(pair[i % 2 + 2]);
        out += i % 2 ? 7 * pitch : pitch;
    }
}

// Weights are on their way before the kernel before has ended.
template <typename F>
INLINE void gemm_chunk(const ChunkGemm& a, u8* shared) {
    Block block;
    next_kernel_may_start();
    bool working = this_block<F>(a, block);
    if (working) F::copy_codes(shared, block.weights, a.groups, 0);
    previous_kernel_done();
    if (!working) return;
    int lane = threadIdx.x % 32;
    Warp w = this_warp(lane, threadIdx.x / 32);
    Totals total = {};
    F::copy_rows(shared, block.tile, block.side, 0);
    copy_commit();
    for (int i = 0; i < a.groups * F::PARTS; i++) {
        int next = i + 1, b = next / F::PARTS, part = next % F::PARTS;
        if (b < a.groups) {
            u8* stage = shared + next % 2 * F::STAGE;
            F::copy_rows(stage, block.tile + (size_t)b * F::TILE_SIZE, block.side, part);
            F::copy_codes(stage, block.weights + (size_t)b * F::UNIT, a.groups, part);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        F::group(total, shared + i % 2 * F::STAGE, block, a.groups, i / F::PARTS, i % F::PARTS, w, lane);
        __syncthreads();
    }
    store_totals(a, block, total, w);
}

#define GEMM(NAME, FORMAT)                                                            \
    static_assert(2 * FORMAT::STAGE <= 101376, "two stages fit a block of any card"); \
    KERNEL BOUNDS(FORMAT::THREADS, FORMAT::BLOCKS) NAME(const __grid_constant__ ChunkGemm a) {     \
        SHARED_BYTES(shared);                                                         \
        gemm_chunk<FORMAT>(a, shared);                                                \
    }
GEMM(gemm_q4_k, GemmK<PlanesQ4K>)
GEMM(gemm_q5_k, GemmK<PlanesQ5K>)
GEMM(gemm_q6_k, GemmK<PlanesQ6K>)
GEMM(gemm_q8_0, Gemm32<BlocksQ8>)
GEMM(gemm_q4_0, Gemm32<BlocksQ40>)
GEMM(gemm_q4_1, Gemm32<BlocksQ41>)
GEMM(gemm_q5_0, Gemm32<BlocksQ50>)
GEMM(gemm_q5_1, Gemm32<BlocksQ51>)
GEMM(gemm_grid, GemmGrid)
#undef GEMM
