// Projections of the chunk bucket by K-quants on sm_90a: warpgroup matrix units of 8 bits, weights unpacked
// into registers as two planes (planes.cuh), bulk copies several stages deep.
//
//   gemm_wide   out = rows · weight, of up to four weights that read the same rows, formats mixed
//   gemm_gated  part[0].out = act(rows · part 0) · (rows · part 1): one format and size, gated 1 silu, 2 gelu;
//               faults of part 0 and 1 under their entries, of the product under `entry`
//     both: grid the number of multiprocessors (never more than fit at once: blocks wait for each other),
//     block 384, shared stages · stage_bytes + 1,024; read quantise_tiles_k's tiles; rows beyond *count stay.
//     stage_bytes = round_up(37,376 + 128 · B, 1,024), B = 144, 176, 208 (the largest of the parts):
//       56,320  60,416  64,512; stages: 4 for 56,320, else 3 (232,448 bytes at most)
//     carry: f32 [grid][64][256]; flags: u32 [grid], zeros before the first launch, zeros again after each;
//       launches that may run at once need their own
//
// A tile is 128 outputs × 128 rows, of which a warpgroup does 64 outputs; gated 64 of each weight, a lane's two
// rows of weights being gate and other of one output. Blocks take whole tiles in turn; the last one to two tiles
// a block are cut so that all end together: a block does the beginning of a tile, leaves its totals as carry,
// does a whole tile, and ends with the rest of the tile whose beginning the block before it did. The chain over
// groups stays one chain. Order of tiles: rows fastest, so that weights are read once.
#include "planes.cuh"

#ifdef HAS_WARPGROUPS
constexpr int WIDE_FEEDERS = 24, WIDE_WORKERS = 240, WIDE_THREADS = 256;
constexpr int WIDE_MOST_STAGES = 4;

struct WideGemm {
    ChunkPart part[4];
    const u8* tiles;
    const int* count;
    u64* faults;
    float* carry;
    u32* flags;
    u64 entry;  // of faults of a gated product
    int parts, groups, stages, stage_bytes, gated;
};
static_assert(sizeof(WideGemm) == 200, "as devices write it");

// A stretch of groups of one tile.
struct Piece {
    int tile, from, to;
};
struct WidePlan {
    int n, row_tiles, groups, rounds, base;
    int low, high;  // this block's stretch of the last tiles, in groups
};
struct WideShared {  // after the stages
    u64 full[WIDE_MOST_STAGES], free[WIDE_MOST_STAGES];  // two feeders, eight warps arrive
    WidePlan plan;
    int done[WIDE_THREADS / 32];  // pieces of each warp, which has no register left for them
};

template <bool GATED>
constexpr int WIDE_OUTPUTS = GATED ? 64 : 128;  // of a tile; gated: as many of the gate and of the other

template <bool GATED>
INLINE int wide_tiles_of(const WideGemm& a, int part) {
    return (a.part[part].outputs + WIDE_OUTPUTS<GATED> - 1) / WIDE_OUTPUTS<GATED>;
}

template <bool GATED>
INLINE WidePlan wide_plan(const WideGemm& a, int n) {
    int row_tiles = (n + TILE_ROWS - 1) / TILE_ROWS, tiles = 0, grid = gridDim.x, block = blockIdx.x;
    for (int p = 0; p < (GATED ? 1 : a.parts); p++) tiles += wide_tiles_of<GATED>(a, p);
    tiles *= row_tiles;
    if (tiles < grid) return {n, row_tiles, a.groups, block < tiles, 0, 0, 0};
    int rounds = tiles / grid - 1, last = (tiles - rounds * grid) * a.groups;
    int low = (int)((i64)block * last / grid), high = (int)((i64)(block + 1) * last / grid);
    return {n, row_tiles, a.groups, rounds, rounds * grid, low, high};
}

// Piece i of this block; false when there are no more.
INLINE bool wide_piece(const WidePlan& p, int i, Piece& piece) {
    int early = p.high % p.groups, late = p.low % p.groups;
    int first = (p.low + p.groups - 1) / p.groups, whole = p.high / p.groups - first;
    if (i < p.rounds) return piece = {(int)(blockIdx.x + i * gridDim.x), 0, p.groups}, true;
    i -= p.rounds;
    if (early > 0 && i == 0) return piece = {p.base + p.high / p.groups, 0, early}, true;
    i -= early > 0;
    if (i < whole) return piece = {p.base + first + i, 0, p.groups}, true;
    if (late > 0 && i == whole) return piece = {p.base + p.low / p.groups, late, p.groups}, true;
    return false;
}

struct WideTile {
    int part, output, row;  // the first ones
};
template <bool GATED>
INLINE WideTile wide_tile(const WideGemm& a, int tile, int row_tiles) {
    int y = tile / row_tiles, p = 0;
    while (!GATED && y >= wide_tiles_of<GATED>(a, p)) y -= wide_tiles_of<GATED>(a, p++);
    return {p, y * WIDE_OUTPUTS<GATED>, tile % row_tiles * TILE_ROWS};
}
INLINE int wide_bytes(int format) { return 144 + 32 * format; }
// Of a tile of weights: Q6_K's has sixteen d behind it.
INLINE u32 wide_unit(const WideGemm& a, int part) {
    int format = a.part[part].format;
    return 16 * wide_bytes(format) + (format == 2 ? 32 : 0);
}
INLINE const u8* wide_tile_of(const WideGemm& a, int part, int output) {  // of the first group
    return a.part[part].weights + (size_t)(output / 16) * a.groups * wide_unit(a, part);
}

struct WideStage {  // which one, and the parity of its barriers
    int at, phase;
    MEMBER void next(int stages) {
        if (++at == stages) at = 0, phase ^= 1;
    }
};

// Two threads feed: one the rows, one the weights.
INLINE void wide_feed_rows(const WideGemm& a, u8* shared, WideShared& mem) {
    WideStage s = {0, 0};
    Piece piece;
#pragma unroll 1
    for (int i = 0; wide_piece(mem.plan, i, piece); i++) {
        int tile = piece.tile % mem.plan.row_tiles;
        const u8* from = a.tiles + ((size_t)tile * a.groups + piece.from) * TILE_K;
#pragma unroll 1
        for (int left = piece.to - piece.from; left > 0; left--, from += TILE_K, s.next(a.stages)) {
            barrier_wait(&mem.free[s.at], s.phase ^ 1);
            barrier_expect(&mem.full[s.at], TILE_K);
            bulk_copy(shared + s.at * a.stage_bytes, from, TILE_K, &mem.full[s.at]);
        }
    }
}
template <bool GATED>
INLINE void wide_feed_weights(const WideGemm& a, u8* shared, WideShared& mem) {
    WideStage s = {0, 0};
    Piece piece;
#pragma unroll 1
    for (int i = 0; wide_piece(mem.plan, i, piece); i++) {
        WideTile tile = wide_tile<GATED>(a, piece.tile, mem.plan.row_tiles);
        int part = GATED ? 0 : tile.part;
        u32 size = 16 * wide_bytes(a.part[part].format), unit = wide_unit(a, part);
        const u8* from = wide_tile_of(a, part, tile.output) + (size_t)piece.from * unit;
#pragma unroll 1
        for (int left = piece.to - piece.from; left > 0; left--, from += unit, s.next(a.stages)) {
            u8* to = shared + s.at * a.stage_bytes + TILE_K;
            barrier_wait(&mem.free[s.at], s.phase ^ 1);
            barrier_expect(&mem.full[s.at], 8 * size);
#pragma unroll 1
            for (u32 i = 0; i < 4; i++, to += size) {
                u32 band = a.groups * unit;
                const u8* tile = from + i * band;
                bulk_copy(to, tile, size, &mem.full[s.at]);
                tile += GATED ? a.part[1].weights - a.part[0].weights : 4 * (i64)band;
                bulk_copy(to + 4 * size, tile, size, &mem.full[s.at]);
            }
        }
    }
}

// What a warp knows of its place; `row` are its two rows among the 128 of a stage.
struct WideWarp {
    int group, g, t, row[2];
};
template <bool GATED>
INLINE WideWarp wide_warp() {
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4;
    int first = GATED ? group * 32 + warp * 8 + g : group * 64 + warp * 16 + g;
    return {group, g, (int)(threadIdx.x % 4), {first, first + (GATED ? 64 : 8)}};
}

// Warpgroups take turns at the matrix units: one multiplies while the other works on floats.
INLINE void wide_take_turn(int group) { named_sync(1 + group, WIDE_THREADS); }
INLINE void wide_give_turn(int group) { named_arrive(2 - group, WIDE_THREADS); }

// The planes of step i + 1 are made while step i is multiplied; raw words are read one pair ahead.
template <typename P>
INLINE void wide_products(int (&high)[64], int (&low)[64], const Rows& rows, u32 codes, const WideWarp& w) {
    P p;
    u32 a[2][4], c[2][4];
    p.load(rows, 0, 0, w.t);
#pragma unroll
    for (int r = 0; r < 4; r++) p.planes(0, 0, r, a[0][r], c[0][r]);
    wide_take_turn(w.group);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int next = i + 1;
        u64 step = exchanged(codes + i / 4 * (TILE_CODES / 2) + P::step(i / 2 % 2, i % 2) * 32);
        matrix_fence();
        group_s8(high, a[i % 2], step, i);
        group_u8(low, c[i % 2], step, i);
        matrix_commit();
        if (next == 8) break;
        matrix_wait<1>();  // the planes of step i − 1 may be overwritten
#pragma unroll
        for (int r = 0; r < 4; r++) p.planes(next / 2 % 2, next % 2, r, a[next % 2][r], c[next % 2][r]);
        if (next % 2 == 1 && next < 7) p.load(rows, (next + 1) / 4, (next + 1) / 2 % 2, w.t);
    }
}

// Q6_K's d of this lane's two rows: that of the second one stands eight further on, or with a gate at the same place of
// the other weight.
template <bool GATED>
INLINE u32 wide_halves(const WideGemm& a, const WideTile& tile, int b, const WideWarp& w) {
    constexpr int HALVES = 16 * (PlanesQ6K::BYTES + 2) / 2;  // of a tile
    int output = tile.output + w.row[0], at = (output / 16 * a.groups + b) * HALVES + 8 * PlanesQ6K::BYTES + output % 16;
    const u16 *first = (const u16*)a.part[tile.part].weights + at;
    const u16 *second = GATED ? (const u16*)a.part[1].weights + at : first + 8;
    return *first | (u32)*second << 16;
}

template <typename P, bool GATED>
INLINE void wide_step(const WideGemm& a, float (&total)[64], const u8* stage, const WideTile& tile, int b,
                      const WideWarp& w) {
    const u8* weights = stage + TILE_K;
    Rows rows = {weights + w.row[0] * P::BYTES, weights + w.row[1] * P::BYTES};
    int high[64], low[64];
    float f[64], mins[64], d[2], dmin[2];
    u32 at = shared_address(stage);
    u32 both = P::MINS ? 0 : wide_halves<GATED>(a, tile, b, w);
    wide_products<P>(high, low, rows, at, w);
    wide_give_turn(w.group);
    matrix_wait<0>();
#pragma unroll
    for (int k = 0; k < 64; k++) f[k] = __int2float_rn(high[k] * 256 + low[k]);
    if (!P::MINS) d[0] = half_to_float(both), d[1] = half_to_float(both >> 16);
    if (P::MINS) {
        u32 m[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 both = word_at(rows[i]);
            d[i] = mul1(half_to_float(both), P::UNIT), dmin[i] = half_to_float(both >> 16);
            m[i] = m[i + 2] = min_halves(rows[i], w.t);
        }
        matrix_fence();
        group_f16_first(mins, m, descriptor(at + TILE_SUMS, 2048, 128, 0));
        matrix_commit();
        matrix_wait<0>();
    }
    const float2* scale = (const float2*)(stage + TILE_SCALES);
#pragma unroll
    for (int k = 0; k < 64; k += 2) {
        float2 s = scale[k / 4 * 4 + w.t];
        int r = k >> 1 & 1;
        float t0 = P::MINS ? fma1(d[r], f[k], -mul1(dmin[r], mins[k])) : mul1(d[r], f[k]);
        float t1 = P::MINS ? fma1(d[r], f[k + 1], -mul1(dmin[r], mins[k + 1])) : mul1(d[r], f[k + 1]);
        total[k] = fma1(s.x, t0, total[k]);
        total[k + 1] = fma1(s.y, t1, total[k + 1]);
    }
}

template <typename P, bool GATED>
INLINE void wide_multiply(const WideGemm& a, float (&total)[64], const WideTile& tile, const Piece& piece,
                          u8* shared, WideShared& mem, const WideWarp& w, WideStage& s) {
    for (int b = piece.from; b < piece.to; b++, s.next(a.stages)) {
        barrier_wait(&mem.full[s.at], s.phase);
        wide_step<P, GATED>(a, total, shared + s.at * a.stage_bytes, tile, b, w);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(&mem.free[s.at]);
    }
}

// Totals of a tile that another block goes on with.
INLINE void wide_leave(const WideGemm& a, const float (&total)[64]) {
    float* to = a.carry + (size_t)blockIdx.x * 64 * WIDE_THREADS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 64; k++) to[k * WIDE_THREADS] = total[k];
    named_sync(3, WIDE_THREADS);
    if (threadIdx.x == 0) flag_set(&a.flags[blockIdx.x]);
}
INLINE void wide_take(const WideGemm& a, float (&total)[64]) {
    const float* from = a.carry + (size_t)(blockIdx.x - 1) * 64 * WIDE_THREADS + threadIdx.x;
    if (threadIdx.x == 0) {
        flag_wait(&a.flags[blockIdx.x - 1]);
        a.flags[blockIdx.x - 1] = 0;
    }
    named_sync(3, WIDE_THREADS);
#pragma unroll
    for (int k = 0; k < 64; k++) total[k] = from[k * WIDE_THREADS];
}

template <bool GATED>
INLINE void wide_report(const WideGemm& a, const float (&total)[64], const WideTile& tile, const WideWarp& w,
                        int n) {
#pragma unroll
    for (int k = 0; k < 64; k++) {
        int row = tile.row + k / 4 * 8 + 2 * w.t + (k & 1), part = GATED ? k >> 1 & 1 : tile.part;
        if (row < n && lost(total[k])) report({a.faults, a.part[part].entry}, row);
    }
}

// Accumulators k and k + 2 of a lane stand in one row; its rows are first, first + 1, first + 8, first + 9, …
INLINE void wide_store(const WideGemm& a, const float (&total)[64], const WideTile& tile, const WideWarp& w,
                       int n) {
    const ChunkPart& part = a.part[tile.part];
    int first = tile.row + 2 * w.t, left = part.outputs - tile.output - w.row[0];
    float* out = part.out + (size_t)first * part.outputs + tile.output + w.row[0];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int k = i / 2 * 4 + i % 2;
        bool inside = first + i / 2 * 8 + i % 2 < n;
        if (inside && left > 0) out[0] = z(total[k]);
        if (inside && left > 8) out[8] = z(total[k + 2]);
        out += i % 2 ? 7 * part.outputs : part.outputs;
    }
}

// silu1 and gelu1 of muser.cuh, word by word, with one exponential and one quotient in the text.
INLINE float wide_act(int kind, float x) {
    float inner = mul1(0x1.988454p-1f, fma1(mul1(mul1(0x1.6e4e26p-5f, x), x), x, x));
    float e = exp1(kind == 1 ? -fabsf(x) : mul1(-2.0f, fabsf(inner)));
    float q = div1(kind != 1 ? add1(1.0f, -e) : x >= 0.0f ? 1.0f : e, add1(1.0f, e));
    return kind == 1 ? mul1(x, q) : mul1(mul1(0.5f, x), add1(1.0f, inner < 0.0f ? -q : q));
}

INLINE void wide_store_gated(const WideGemm& a, const float (&total)[64], const WideTile& tile,
                             const WideWarp& w, int n) {
    const ChunkPart& part = a.part[0];
    int first = tile.row + 2 * w.t;
    bool inside = tile.output + w.row[0] < part.outputs;
    float* out = part.out + (size_t)first * part.outputs + tile.output + w.row[0];
    u32 lost_rows = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int k = i / 2 * 4 + i % 2;
        float product = mul1(wide_act(a.gated, z(total[k])), z(total[k + 2]));
        if (lost(product)) lost_rows |= 1u << i;
        if (inside && first + i / 2 * 8 + i % 2 < n) *out = z(product);
        out += i % 2 ? 7 * part.outputs : part.outputs;
    }
    for (int i = 0; lost_rows != 0; i++, lost_rows >>= 1)
        if ((lost_rows & 1) != 0 && first + i / 2 * 8 + i % 2 < n)
            report({a.faults, a.entry}, first + i / 2 * 8 + i % 2);
}

template <bool GATED>
INLINE void wide_finish(const WideGemm& a, const float (&total)[64], const WideTile& tile, const WideWarp& w,
                        int n) {
    float probe = 0.0f;
#pragma unroll
    for (int k = 0; k < 64; k++) probe = probe_of(total[k], probe);
    if (lost(probe)) wide_report<GATED>(a, total, tile, w, n);
    if (GATED) wide_store_gated(a, total, tile, w, n);
    else wide_store(a, total, tile, w, n);
}

template <bool GATED>
INLINE void wide_multiply_any(const WideGemm& a, float (&total)[64], const Piece& piece, u8* shared,
                              WideShared& mem, const WideWarp& w, WideStage& s) {
    WideTile tile = wide_tile<GATED>(a, piece.tile, mem.plan.row_tiles);
    int format = a.part[tile.part].format;
    if (format == 0) wide_multiply<PlanesQ4K, GATED>(a, total, tile, piece, shared, mem, w, s);
    if (format == 1) wide_multiply<PlanesQ5K, GATED>(a, total, tile, piece, shared, mem, w, s);
    if (format == 2) wide_multiply<PlanesQ6K, GATED>(a, total, tile, piece, shared, mem, w, s);
}

template <bool GATED>
INLINE void wide_work(const WideGemm& a, u8* shared, WideShared& mem) {
    WideWarp w = wide_warp<GATED>();
    WideStage s = {0, 0};
    Piece piece;
    if (w.group == 1) wide_give_turn(1);  // the first one; that of the last step is taken by nobody
#pragma unroll 1
    while (wide_piece(mem.plan, mem.done[threadIdx.x / 32], piece)) {
        float total[64];
#pragma unroll
        for (int k = 0; k < 64; k++) total[k] = 0.0f;
        if (piece.from > 0) wide_take(a, total);
        wide_multiply_any<GATED>(a, total, piece, shared, mem, w, s);
        if (piece.to < a.groups) wide_leave(a, total);
        else wide_finish<GATED>(a, total, wide_tile<GATED>(a, piece.tile, mem.plan.row_tiles), w, mem.plan.n);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mem.done[threadIdx.x / 32]++;
        __syncwarp();
    }
}

// Weights are on their way before the kernel before has ended.
template <bool GATED>
INLINE void wide_block(const WideGemm& a, u8* shared) {
    WideShared& mem = *(WideShared*)(shared + a.stages * a.stage_bytes);
    next_kernel_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < a.stages; s++) barrier_init(&mem.full[s], 2), barrier_init(&mem.free[s], 8);
        mem.plan = wide_plan<GATED>(a, *a.count);
        for (int w = 0; w < WIDE_THREADS / 32; w++) mem.done[w] = 0;
        barrier_fence();
    }
    __syncthreads();
    if (threadIdx.x >= WIDE_THREADS) {
        registers_shrink<WIDE_FEEDERS>();
        if (threadIdx.x == WIDE_THREADS + 32) wide_feed_weights<GATED>(a, shared, mem);
        previous_kernel_done();
        if (threadIdx.x == WIDE_THREADS) wide_feed_rows(a, shared, mem);
    } else {
        registers_grow<WIDE_WORKERS>();
        previous_kernel_done();
        wide_work<GATED>(a, shared, mem);
    }
}

KERNEL BOUNDS(384, 1) gemm_wide(const __grid_constant__ WideGemm a) {
    SHARED_BYTES(shared);
    wide_block<false>(a, shared);
}
KERNEL BOUNDS(384, 1) gemm_gated(const __grid_constant__ WideGemm a) {
    SHARED_BYTES(shared);
    wide_block<true>(a, shared);
}
#endif
