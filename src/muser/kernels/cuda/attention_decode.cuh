// Attention of few rows: split over tiles, then one chain over the tiles of each row and head
// (docs/arithmetic.md 7). Buckets 1, 4, 16. Two launches, the first of two kinds here or of attention_deep.cuh:
//
// decode_tiles_64, _128, _256 (the least that holds dim): grid (2 × multiprocessors, or fewer), block
//            256, shared decode_tiles_*_bytes (128: 108,672, on sm_80 and sm_120 75,904; two blocks a
//            multiprocessor).
// decode_one_64, _128: the same where each block has one tile at most: grid as many as there can be tiles, block 256,
//            shared decode_one_*_bytes (128: 75,904).
//            reads q, the cache, v_steps; writes tile_out, tile_sums. A score beyond 2^22 is reported.
// decode_combine: grid (heads, most rows of the bucket, ceil(dim / 32)), block 256, shared
//            decode_combine_bytes (3,984), so that the next projection's blocks have room beside.
//            reads tile_out, tile_sums, gate; writes out.
//
// Scratch: most rows × heads × places × (ceil(dim / 32) · 128 + 16) bytes, places = capacity / 128, with a
// window at most (window + 126) / 128 + 1. It is free again when decode_combine has ended.
//
// The tiles of all rows and KV heads are one list (row, unit, tile), of which a block takes an equal run;
// a unit is up to 16 query heads of one KV head. Rows of the cache that this step does not write are
// fetched before the kernel before this one has ended; the step itself was uploaded before the first
// kernel of the pass, and its arrays have room for the most rows of the bucket. The chain has warps in
// the first blocks (z below ceil(parts / 8)) for a row of at most RUN tiles, else a block a part.
#pragma once
#include "attention.cuh"

namespace attention {
constexpr int WARPS = 8, THREADS = WARPS * 32;

constexpr int TILES = 0, ALONE = 1, DEEP = 2;  // of a block: any number, one at most, those of attention_deep.cuh

template <int HEAD, int KIND>
struct Decode {
    static constexpr int CHUNK = HEAD < 128 ? HEAD : 128, CHUNKS = HEAD / CHUNK;  // dims of a slot
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
    static constexpr int SLOTS = KIND == ALONE || HEAD == 256 ? 2 : 3;
#else
    static constexpr int SLOTS = KIND == DEEP ? 3 : 2;  // two blocks of 99 KiB
#endif
    static constexpr int SLOT = TILE * CHUNK * 2;
    static constexpr int Q_PITCH = HEAD * 2 + 16, P_PITCH = TILE * 2 + 16;
    static constexpr int Q_BYTES = 2 * ROWS * Q_PITCH, P_BYTES = 2 * ROWS * P_PITCH;
    static constexpr bool KEPT = KIND != ALONE && HEAD <= 128;  // the digits of q stay in registers
    static constexpr bool SHARED = KIND != TILES || KEPT;       // where they were, those of P come; DEEP: they stand apart
    static constexpr int P_AT = SHARED ? 0 : Q_BYTES;
    static constexpr int DIGITS = SHARED ? (Q_BYTES > P_BYTES ? Q_BYTES : P_BYTES) : Q_BYTES + P_BYTES;
    static constexpr int N_TILES = CHUNK / 64;  // of 8 output dims a warp and chunk

    u8 digits[KIND == DEEP ? P_BYTES : DIGITS];  // high, low [16 rows][pitch]: of q, of P
    u32 n[ROWS][WARPS], m[ROWS][WARPS], d[ROWS][WARPS];
    float row_scale[ROWS];
    __align__(128) u8 ring[SLOTS][SLOT];  // K, V, K, V, … of the tiles in turn, each in CHUNKS parts
};

struct Rows {  // of the step, one a lane
    int count, position, slot;
};
// A place in the list. A unit's first query head is `query`; its KV head has `rest` query heads from there on, and
// begins at row `base` of the cache, the tile at row base + place. `left`: tiles still to do, this one too.
struct Cursor {
    int row, query, rest, base, tile, place, first, last, left;
};
// What is the same for all units, so that nobody has to divide: query heads of a KV head, units of a row.
struct Units {
    int ratio, count;
};

INLINE Units units_of(const Attend& a) {
    int ratio = a.heads / a.kv_heads;
    return {ratio, a.kv_heads * ((ratio + ROWS - 1) / ROWS)};
}
INLINE Rows rows_of(const Attend& a, int lane) {
    Rows r = {*a.step.count, *a.step.positions, *a.step.slots};  // the loads of one row go together
    if (lane > 0 && lane < r.count) r.position = a.step.positions[lane], r.slot = a.step.slots[lane];
    return r;
}
INLINE int place_of(const Attend& a, int tile) { return (int)((u32)(tile * TILE) % (u32)a.capacity); }
INLINE void enter_row(const Attend& a, const Units& units, const Rows& rows, Cursor& c) {
    Span seen = visible_from(a, __shfl_sync(~0u, rows.position, c.row));
    c.first = first_tile(seen), c.last = last_tile(seen);
    c.query = 0, c.rest = units.ratio, c.base = a.step.slots[c.row] * a.kv_heads * a.capacity;
}
INLINE void next_unit(const Attend& a, const Units& units, Cursor& c) {
    bool whole = c.rest > ROWS;  // the next is of the same KV head
    c.query += whole ? ROWS : c.rest;
    c.base += whole ? 0 : a.capacity;
    c.rest = whole ? c.rest - ROWS : units.ratio;
}
INLINE Cursor run_of_block(const Attend& a, const Units& units, const Rows& rows, int lane) {
    Span seen = visible_from(a, rows.position);
    int own = lane < rows.count ? (last_tile(seen) - first_tile(seen)) * units.count : 0, upto = own;
    for (int x = 1; x < rows.count; x <<= 1) {
        int before = __shfl_up_sync(~0u, upto, x);
        upto += lane >= x ? before : 0;
    }
    int total = __shfl_sync(~0u, upto, max(rows.count - 1, 0)), grid = gridDim.x, block = blockIdx.x;
    // Neighbours may stand on one multiprocessor: where there is little to do, every other block has work.
    if (4 * total <= grid) block = block & 1 ? total : block / 2;
    int each = (int)((u32)(total + grid - 1) / (u32)grid), at = block * each;
    Cursor c = {0, 0, 0, 0, 0, 0, 0, 0, min(each, total - at)};
    if (c.left <= 0) return c;
    c.row = __popc(__ballot_sync(~0u, lane < rows.count && upto <= at));
    at -= __shfl_sync(~0u, upto - own, c.row);
    enter_row(a, units, rows, c);
    int unit = (int)((u32)at / (u32)(c.last - c.first));
    c.tile = c.first + at - unit * (c.last - c.first), c.place = place_of(a, c.tile);
    for (; unit > 0; unit--) next_unit(a, units, c);
    return c;
}
INLINE void advance(const Attend& a, const Units& units, const Rows& rows, Cursor& c) {
    c.left--, c.tile++, c.place += TILE;
    if (c.place == a.capacity) c.place = 0;
    if (c.tile < c.last) return;
    next_unit(a, units, c);
    if (c.query == a.heads) {
        c.row++;
        if (c.left > 0) enter_row(a, units, rows, c);
    }
    c.tile = c.first, c.place = place_of(a, c.tile);
}

// Rows of the tile among which a kernel of this step writes.
INLINE Span written(const Rows& rows, const Cursor& c, int lane) {
    int slot = __shfl_sync(~0u, rows.slot, c.row);
    bool here = lane < rows.count && rows.slot == slot;
    int least = __reduce_min_sync(~0u, here ? rows.position : 0x7fffffff);
    int most = __reduce_max_sync(~0u, here ? rows.position : -1);
    return {min(max(least - c.tile * TILE, 0), TILE), min(max(most + 1 - c.tile * TILE, 0), TILE)};
}

INLINE int cache_row(const Cursor& c) { return c.base + c.place; }
INLINE int heads_of(const Cursor& c) { return min(ROWS, c.rest); }

// Part `part` of a tile: K's chunks, then V's. Its first element in memory, and its first piece of a row.
template <int HEAD, int KIND>
INLINE const u16* source_of(const Attend& a, int row, int part) {
    return (part >= Decode<HEAD, KIND>::CHUNKS ? a.v : a.k) + (size_t)row * a.dim;
}
template <int HEAD, int KIND>
INLINE int piece_of(int part) {
    using D = Decode<HEAD, KIND>;
    return (part >= D::CHUNKS ? part - D::CHUNKS : part) * (D::CHUNK / 8);
}
// Rows [lo, hi) of a part of the first tile.
template <int HEAD, int KIND>
INLINE void feed_rows(const Attend& a, Decode<HEAD, KIND>& mem, const Cursor& c, int part, int lo, int hi) {
    const u16* from = source_of<HEAD, KIND>(a, cache_row(c), part);
    fetch_rows<Decode<HEAD, KIND>::CHUNK / 8, THREADS>(mem.ring[part], from, piece_of<HEAD, KIND>(part), a.dim, lo, hi);
}
// Part `part` of the tile at `row` when it has come and every warp has left the part before it, in whose slot goes the
// part SLOTS - 1 behind: of the same tile, or of the next one, `next`.
template <int HEAD, int KIND>
INLINE const u8* take(const Attend& a, Decode<HEAD, KIND>& mem, int part, int row, const Cursor& next, int& use) {
    using D = Decode<HEAD, KIND>;
    constexpr int PARTS = 2 * D::CHUNKS;
    copy_wait<D::SLOTS - 2>();
    __syncthreads();
    int other = part + D::SLOTS - 1, slot = use == 0 ? D::SLOTS - 1 : use - 1;
    bool same = other < PARTS;
    if (same || next.left > 0) {
        int chosen = same ? other : other - PARTS;
        const u16* from = source_of<HEAD, KIND>(a, same ? row : cache_row(next), chosen);
        fetch<D::CHUNK / 8, TILE * D::CHUNK / 8, THREADS>(mem.ring[slot], from, piece_of<HEAD, KIND>(chosen), a.dim);
    }
    copy_commit();
    const u8* taken = mem.ring[use];
    use = use + 1 == D::SLOTS ? 0 : use + 1;
    return taken;
}

template <int HEAD, int KIND>
struct Query {
    u32 high[Decode<HEAD, KIND>::KEPT ? HEAD / 16 : 1][4], low[Decode<HEAD, KIND>::KEPT ? HEAD / 16 : 1][4];
};
template <int HEAD, int KIND>
INLINE void load_digits(Query<HEAD, KIND>& q, int i, const u8* digits, int s, int lane) {
    u32 at = shared_address(digits) + (lane & 15) * Decode<HEAD, KIND>::Q_PITCH + (lane >> 4) * 16 + s * 32;
    load_matrix4(q.high[i], at);
    load_matrix4(q.low[i], at + ROWS * Decode<HEAD, KIND>::Q_PITCH);
}
// The heads of a unit on their grid; rows of the matrix tile beyond them are zeros.
template <int HEAD>
struct Heads {
    static constexpr int EACH = ROWS / WARPS;
    float v[EACH][HEAD / 32];
};
INLINE const float* first_query(const Attend& a, const Cursor& c, int warp) {
    return a.q + ((size_t)c.row * a.heads + c.query + warp * (ROWS / WARPS)) * a.dim;
}
template <int HEAD>
INLINE void load_heads(Heads<HEAD>& h, const Attend& a, const Cursor& c, int warp, int lane) {
    constexpr int EACH = Heads<HEAD>::EACH;
    int heads = heads_of(c);
    const float* from = first_query(a, c, warp);
#pragma unroll
    for (int i = 0; i < EACH; i++) load_query<HEAD>(h.v[i], from + i * a.dim, warp * EACH + i < heads, a, lane);
}
template <int HEAD, int KIND>
INLINE void place_heads(const Heads<HEAD>& h, const Attend& a, Decode<HEAD, KIND>& mem, Query<HEAD, KIND>& q, int warp,
                        int lane) {
    using D = Decode<HEAD, KIND>;
#pragma unroll
    for (int i = 0; i < Heads<HEAD>::EACH; i++) {
        int r = warp * Heads<HEAD>::EACH + i;
        u16 *high = (u16*)(mem.digits + r * D::Q_PITCH), *low = (u16*)(mem.digits + (ROWS + r) * D::Q_PITCH);
        auto put = [&](int x, u16 h, u16 l) { high[x] = h, low[x] = l; };
        float scale = place_query<HEAD>(h.v[i], a, lane, put);
        if (lane == 0) mem.row_scale[r] = scale;
    }
    if constexpr (KIND == ALONE) copy_wait<1>();  // K has come, too
    __syncthreads();
    if constexpr (D::KEPT) {
#pragma unroll
        for (int s = 0; s < HEAD / 16; s++) load_digits(q, s, mem.digits, s, lane);
    }
}

// Adds one chunk's products to the sums of the digits of the warp's 16 positions.
template <int HEAD, int KIND>
INLINE void add_scores(float (&high)[2][4], float (&low)[2][4], Query<HEAD, KIND>& q, const u8* digits, const u8* k, int chunk,
                       int warp, int lane) {
    using D = Decode<HEAD, KIND>;
    int matrix = lane >> 3, key = warp * 16 + (matrix >> 1) * 8 + (lane & 7);
    u32 base = shared_address(k);
#pragma unroll
    for (int s = 0; s < D::CHUNK / 16; s++) {
        u32 b[4];
        load_matrix4(b, base + swizzled<D::CHUNK / 8>(key, 2 * s + (matrix & 1)));
        if constexpr (!D::KEPT) load_digits(q, 0, digits, chunk * (D::CHUNK / 16) + s, lane);
        int at = D::KEPT ? s : 0;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_f16(high[n], q.high[at], b[2 * n], b[2 * n + 1]);
            mma_f16(low[n], q.low[at], b[2 * n], b[2 * n + 1]);
        }
    }
}

// Scores from their sums, and the warp's maxima of N and M into shared memory; returns the largest |y|.
template <int HEAD, int KIND>
INLINE float scale_scores(float (&y)[2][4], const u32 (&pairs)[2], Decode<HEAD, KIND>& mem, const Span& seen, int tile,
                          int warp, int lane) {
    int g = lane >> 2, t = lane & 3;
    u32 top_n[2] = {0, 0}, top_m[2] = {0, 0};
    float top = 0.0f;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int position = tile * TILE + warp * 16 + n * 8 + 2 * t + (j & 1), r = j >> 1;
            bool shown = position >= seen.lo && position < seen.hi;
            float v = mul1(y[n][j], mem.row_scale[g + 8 * r]);
            top = shown ? fmaxf(top, fabsf(v)) : top;
            y[n][j] = shown ? v : HIDDEN;
            u32 bits = floor_bits(y[n][j]);
            top_n[r] = max(top_n[r], bits);
            top_m[r] = max(top_m[r], bits + step_of_pair(pairs[n], j & 1));
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int x = 1; x < 4; x <<= 1) {
            top_n[r] = max(top_n[r], __shfl_xor_sync(~0u, top_n[r], x));
            top_m[r] = max(top_m[r], __shfl_xor_sync(~0u, top_m[r], x));
        }
        if (t == 0) mem.n[g + 8 * r][warp] = top_n[r], mem.m[g + 8 * r][warp] = top_m[r];
    }
    return top;
}

// Of all warps, by the four lanes of a row.
INLINE u32 largest(const u32 (&x)[WARPS], int t) {
    uint2 two = *(const uint2*)(x + 2 * t);
    u32 most = max(two.x, two.y);
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    return max(most, __shfl_xor_sync(~0u, most, 2));
}

// Digits of P of the warp's positions, and their part of D, into shared memory; N and M of the rows.
template <int HEAD, int KIND>
INLINE void place_weights(const float (&y)[2][4], const u32 (&pairs)[2], Decode<HEAD, KIND>& mem, u32 (&top_n)[2],
                          u32 (&top_m)[2], int warp, int lane) {
    using D = Decode<HEAD, KIND>;
    int g = lane >> 2, t = lane & 3;
    u32 sum[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top_n[r] = largest(mem.n[g + 8 * r], t), top_m[r] = largest(mem.m[g + 8 * r], t);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int ev[2] = {step_of_pair(pairs[n], 0), step_of_pair(pairs[n], 1)};
        float unit[2] = {pow2(-15 - ev[0]), pow2(-15 - ev[1])};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float h[2], l[2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                weigh(y[n][2 * r + j], 147 - (int)top_n[r], 139 + ev[j] - (int)top_m[r], unit[j], h[j], l[j],
                      sum[r]);
            u8* at = mem.digits + D::P_AT + (g + 8 * r) * D::P_PITCH + (warp * 16 + n * 8 + 2 * t) * 2;
            *(u32*)at = float_to_half2(h[0], h[1]);
            *(u32*)(at + ROWS * D::P_PITCH) = float_to_half2(l[0], l[1]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if (t == 0) mem.d[g + 8 * r][warp] = sum[r];
    }
}

struct Place {  // of one unit's tile in the scratch
    int row;    // row and head of the unit's first head
    int heads, tile;
};

// f(O) of the warp's dims of one chunk to the scratch.
template <int HEAD, int KIND>
INLINE void write_output(const Decode<HEAD, KIND>& mem, const u8* v, int chunk, const Attend& a, const Place& p,
                         int warp, int lane) {
    using D = Decode<HEAD, KIND>;
    constexpr int N_TILES = D::N_TILES;
    int g = lane >> 2, t = lane & 3, matrix = lane >> 3, parts = (a.dim + 31) / 32;
    u32 weights = shared_address(mem.digits) + D::P_AT + (lane & 15) * D::P_PITCH + (lane >> 4) * 16;
    u32 values = shared_address(v);
    float high[N_TILES][4] = {}, low[N_TILES][4] = {};
    int piece = N_TILES * warp + (N_TILES == 2 ? matrix >> 1 : 0);
#pragma unroll
    for (int s = 0; s < TILE / 16; s++) {
        u32 ah[4], al[4], b[4];
        load_matrix4(ah, weights + s * 32);
        load_matrix4(al, weights + ROWS * D::P_PITCH + s * 32);
        load_matrix4_turned(b, values + swizzled<D::CHUNK / 8>(16 * s + (lane & 15), piece));
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            mma_f16(high[n], ah, b[2 * n], b[2 * n + 1]);
            mma_f16(low[n], al, b[2 * n], b[2 * n + 1]);
        }
    }
    int x = chunk * D::CHUNK + N_TILES * warp * 8 + 2 * t, part = x / 32;  // one part for all of the warp's dims
    float* to = a.tile_out + (((size_t)(p.row + g) * parts + part) * a.places + p.tile) * 32 + x % 32;
    if (part >= parts) return;
#pragma unroll
    for (int r = 0; r < 2; r++, to += (size_t)8 * parts * a.places * 32) {
        if (g + 8 * r >= p.heads) break;
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            float o0 = mul1(join(high[n][2 * r], low[n][2 * r]), 0x1p15f);
            float o1 = mul1(join(high[n][2 * r + 1], low[n][2 * r + 1]), 0x1p15f);
            *(float2*)(to + n * 8) = make_float2(o0, o1);
        }
    }
}
template <int HEAD, int KIND>
INLINE void write_sums(const Decode<HEAD, KIND>& mem, const u32 (&top_n)[2], const u32 (&top_m)[2], const Attend& a,
                       const Place& p, int lane) {
    int g = lane >> 2;
    if (lane & 3) return;
    for (int r = 0; r < 2; r++) {
        if (g + 8 * r >= p.heads) continue;
        u32 d = 0;
        for (int w = 0; w < WARPS; w++) d += mem.d[g + 8 * r][w];
        int bits = (int)__float_as_uint((float)(int)d);
        a.tile_sums[(size_t)(p.row + g + 8 * r) * a.places + p.tile] =
             make_int4(from_bits(top_n[r]), from_bits(top_m[r]), bits, 0);
    }
}

// V's steps of the thread's positions, two and two.
INLINE const u16* first_steps(const Attend& a, const Cursor& c, int warp, int lane) {
    return (const u16*)(a.v_steps + cache_row(c) + warp * 16) + (lane & 3);
}
INLINE void load_steps(u32 (&pairs)[2], const Attend& a, const Cursor& c, int warp, int lane) {
    const u16* at = first_steps(a, c, warp, lane);
    pairs[0] = at[0], pairs[1] = at[4];
}

template <int HEAD>
INLINE void decode_tiles(const Attend& a, u8* shared) {
    using D = Decode<HEAD, TILES>;
    D& mem = *(D*)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, use = 0;
    touch(a);
    next_kernel_may_start();
    Units units = units_of(a);
    Rows rows = rows_of(a, lane);
    Cursor at = run_of_block(a, units, rows, lane);
    Span fresh = {0, 0};
    if (at.left > 0) {
        fresh = written(rows, at, lane);
#pragma unroll 1
        for (int i = 0; i < 2 * (D::SLOTS - 1); i++)
            feed_rows(a, mem, at, i / 2, i & 1 ? fresh.hi : 0, i & 1 ? TILE : fresh.lo);
        // The second tile goes to the second-level cache, so that memory does not rest until the first one is done.
        if (at.left > 1 && at.tile + 1 < at.last) {
            size_t to = (size_t)(at.base + (at.place + TILE == a.capacity ? 0 : at.place + TILE)) * a.dim;
#pragma unroll 1
            for (int i = threadIdx.x * 64; i < TILE * a.dim; i += THREADS * 64) will_read(a.k + to + i), will_read(a.v + to + i);
        }
        if (warp * (ROWS / WARPS) < heads_of(at) && lane < a.dim) will_read(first_query(a, at, warp) + lane);
        will_read(first_steps(a, at, warp, lane));
    }
    if (at.left <= 0) return leave_early();  // the multiprocessor is free for the next projection
    previous_kernel_done();
    Heads<HEAD> heads;
    Query<HEAD, TILES> q;
    u32 pairs[2], ahead_pairs[2];
    load_heads(heads, a, at, warp, lane);
    load_steps(ahead_pairs, a, at, warp, lane);
#pragma unroll 1
    for (int i = 0; i < D::SLOTS - 1; i++) feed_rows(a, mem, at, i, fresh.lo, fresh.hi), copy_commit();
    bool entered = true;
    for (;;) {
        if (entered) place_heads(heads, a, mem, q, warp, lane);
        const Cursor here = at;
        int from = cache_row(here);
        advance(a, units, rows, at);
        float y[2][4], high[2][4] = {}, low[2][4] = {};
#pragma unroll
        for (int c = 0; c < D::CHUNKS - 1; c++)
            add_scores(high, low, q, mem.digits, take(a, mem, c, from, at, use), c, warp, lane);
        if constexpr (D::CHUNKS == 2) {
            float other[2][4] = {};
            add_scores(high, other, q, mem.digits, take(a, mem, 1, from, at, use), 1, warp, lane);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i / 4][i % 4] = join(high[i / 4][i % 4], low[i / 4][i % 4], other[i / 4][i % 4]);
        } else {
            add_scores(high, low, q, mem.digits, take(a, mem, 0, from, at, use), 0, warp, lane);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i / 4][i % 4] = join(high[i / 4][i % 4], low[i / 4][i % 4]);
        }
        pairs[0] = ahead_pairs[0], pairs[1] = ahead_pairs[1];
        if (at.left > 0) load_steps(ahead_pairs, a, at, warp, lane);
        Span seen = visible_from(a, __shfl_sync(~0u, rows.position, here.row));
        float top = scale_scores(y, pairs, mem, seen, here.tile, warp, lane);
        if (!(top < 0x1p22f)) report(a.faults, here.row);
        __syncthreads();
        u32 top_n[2], top_m[2];
        place_weights(y, pairs, mem, top_n, top_m, warp, lane);
        Place p = {here.row * a.heads + here.query, heads_of(here), here.tile - here.first};
#pragma unroll
        for (int c = 0; c < D::CHUNKS; c++) {
            const u8* v = take(a, mem, D::CHUNKS + c, from, at, use);
            if (c == 0 && warp == 0) write_sums(mem, top_n, top_m, a, p, lane);
            write_output(mem, v, c, a, p, warp, lane);
        }
        if (at.left <= 0) return;
        entered = at.query != here.query || at.row != here.row;
        if (entered) {
            load_heads(heads, a, at, warp, lane);
            __syncthreads();  // the digits are not read any more
        }
    }
}

// The same for a block of one tile, without a loop, in half the registers.
template <int HEAD>
INLINE void decode_one(const Attend& a, u8* shared) {
    using D = Decode<HEAD, ALONE>;
    D& mem = *(D*)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    touch(a);
    next_kernel_may_start();
    Units units = units_of(a);
    Rows rows = rows_of(a, lane);
    Cursor at = run_of_block(a, units, rows, lane);
    if (at.left <= 0) return leave_early();  // the multiprocessor is free for the next projection
    Span fresh = written(rows, at, lane), seen = visible_from(a, __shfl_sync(~0u, rows.position, at.row));
#pragma unroll 1
    for (int i = 0; i < 4; i++) feed_rows(a, mem, at, i / 2, i & 1 ? fresh.hi : 0, i & 1 ? TILE : fresh.lo);
    if (warp * (ROWS / WARPS) < heads_of(at) && lane < a.dim) will_read(first_query(a, at, warp) + lane);
    will_read(first_steps(a, at, warp, lane));
    previous_kernel_done();
    Heads<HEAD> heads;
    Query<HEAD, ALONE> q;
    u32 pairs[2], top_n[2], top_m[2];
    load_heads(heads, a, at, warp, lane);
    load_steps(pairs, a, at, warp, lane);
#pragma unroll 1
    for (int i = 0; i < 2; i++) feed_rows(a, mem, at, i, fresh.lo, fresh.hi), copy_commit();
    place_heads(heads, a, mem, q, warp, lane);
    float y[2][4], high[2][4] = {}, low[2][4] = {};
    add_scores(high, low, q, mem.digits, mem.ring[0], 0, warp, lane);
#pragma unroll
    for (int i = 0; i < 8; i++) y[i / 4][i % 4] = join(high[i / 4][i % 4], low[i / 4][i % 4]);
    float top = scale_scores(y, pairs, mem, seen, at.tile, warp, lane);
    if (!(top < 0x1p22f)) report(a.faults, at.row);
    __syncthreads();
    place_weights(y, pairs, mem, top_n, top_m, warp, lane);
    copy_wait<0>();
    __syncthreads();
    Place p = {at.row * a.heads + at.query, heads_of(at), at.tile - at.first};
    if (warp == 0) write_sums(mem, top_n, top_m, a, p, lane);
    write_output(mem, mem.ring[1], 0, a, p, warp, lane);
}

// --- the chain ---
// acc is a multiple of 2^(least M so far - X): while the M of a head span at most 40 binades z cannot
// act, acc·2^k is exact, and a step is one fma. Otherwise z is applied as written. den never falls below
// 2^20, so its steps are one fma always. In turns a warp holds RUN tiles in registers and walks over them; a row that
// sees no more is one warp's alone, and the block has as many parts. Else the maxima of all runs are found
// first, the warps of a block walk in turn, and each has its next tiles under way while the others walk.
constexpr int RUN = 24, RUNS = 8, TOPS = 64;

struct Powers {  // R, X and the least M of some tiles
    int r, x, low;
};
template <int N>
struct __align__(16) Scales {  // of the N tiles of a run; beyond them a step changes nothing
    float acc[N], out[N];   // 2^(X - X'), 2^(M - X')
    float den[N], term[N];  // 2^(R - R'), f(D)·2^(N - R')
};
struct Chain {
    Scales<RUN> scales[RUNS];
    Powers tops[TOPS];   // of so many runs
    float acc[32], den;  // from one warp to the next
};
template <int N>
struct Stretch {  // tiles of a warp
    static constexpr int EACH = (N + 31) / 32;  // that a lane has the sums of, one after another
    int count;
    int n[EACH], m[EACH], d[EACH];  // N, M, f(D) of those tiles
    float out[N];                   // f(O), an element a lane
    int r, x;                       // of the lanes before this one
};

INLINE Powers join(const Powers& a, const Powers& b) { return {max(a.r, b.r), max(a.x, b.x), min(a.low, b.low)}; }

// f(i) for the AHEAD elements from i of an array that stays in registers, as far as there are tiles. What they are multiplied
// with is read together and waited for once; of a long array fewer at a time, since that takes registers, too.
template <int N>
constexpr int AHEAD = N > 32 ? 4 : N;
template <int N, class F>
INLINE void each_ahead(int count, F f) {
#pragma unroll
    for (int i = 0; i < N; i += AHEAD<N>) {
        if (i >= count) break;
        f(i);
    }
}

// From `sums` of the lane's first tile, and `out` of its element of the first of all.
template <int N>
INLINE void load_run(Stretch<N>& run, const int4* sums, const float* out, int lane) {
    constexpr int EACH = Stretch<N>::EACH;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int4 s = make_int4(NEVER, NEVER, 0, 0);
        if (lane * EACH + j < run.count) s = sums[j];
        run.n[j] = s.x, run.m[j] = s.y, run.d[j] = s.z;
    }
    each_ahead<N>(run.count, [&](int i) {
        bool whole = N > 32 && i + AHEAD<N> <= run.count;
#pragma unroll
        for (int j = i; whole && j < i + AHEAD<N>; j++) run.out[j] = out[j * 32];
#pragma unroll
        for (int j = i; !whole && j < i + AHEAD<N>; j++) run.out[j] = j < run.count ? out[j * 32] : 0.0f;
    });
}

// The maxima before each lane's tiles, and those of all.
template <int N>
INLINE Powers scan_run(Stretch<N>& run, int lane) {
    constexpr int EACH = Stretch<N>::EACH;
    int r = NEVER, x = NEVER, low = -NEVER, lanes = (run.count + EACH - 1) / EACH;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        r = max(r, run.n[j]), x = max(x, run.m[j]);
        low = min(low, lane * EACH + j < run.count ? run.m[j] : -NEVER);
    }
#pragma unroll 1
    for (int i = 1; i < lanes; i <<= 1) {
        r = max(r, __shfl_up_sync(~0u, r, i));
        x = max(x, __shfl_up_sync(~0u, x, i));
    }
    int last = max(lanes - 1, 0);
    Powers all = {__shfl_sync(~0u, r, last), __shfl_sync(~0u, x, last), __reduce_min_sync(~0u, low)};
    run.r = __shfl_up_sync(~0u, r, 1), run.x = __shfl_up_sync(~0u, x, 1);
    if (lane == 0) run.r = run.x = NEVER;
    return all;
}

// The powers of two of a run behind tiles whose maxima are `before`; f(O) gets its own.
template <int N>
INLINE void scale_run(Scales<N>& to, Stretch<N>& run, const Powers& before, int lane) {
    constexpr int EACH = Stretch<N>::EACH;
    int r = max(before.r, run.r), x = max(before.x, run.x);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int tile = lane * EACH + j, r2 = max(r, run.n[j]), x2 = max(x, run.m[j]);
        bool there = tile < run.count;
        if (tile < N) {
            to.acc[tile] = there ? shift(x - x2) : 1.0f;  // before the first tile acc and den are 0
            to.out[tile] = there ? shift(run.m[j] - x2) : 0.0f;
            to.den[tile] = there ? shift(r - r2) : 1.0f;
            to.term[tile] = there ? mul1(__uint_as_float((u32)run.d[j]), shift(run.n[j] - r2)) : 0.0f;
        }
        r = r2, x = x2;
    }
    __syncwarp();
    const float4* out = (const float4*)to.out;
    each_ahead<N>(run.count, [&](int i) {
#pragma unroll
        for (int j = i; j < i + AHEAD<N>; j += 4) {
            float4 k = out[j / 4];
            run.out[j] = mul1(run.out[j], k.x), run.out[j + 1] = mul1(run.out[j + 1], k.y);
            run.out[j + 2] = mul1(run.out[j + 2], k.z), run.out[j + 3] = mul1(run.out[j + 3], k.w);
        }
    });
}

// PLAIN: z cannot act.
template <bool PLAIN>
INLINE float step_of_chain(float acc, float kept, float added, bool there) {
    if (PLAIN) return fma1(acc, kept, added);
    return there ? add1(z(mul1(acc, kept)), z(added)) : acc;
}
template <bool PLAIN, int N>
INLINE void walk_run(const Scales<N>& c, const Stretch<N>& run, float& acc, float& den) {
    const float4 *kept = (const float4*)c.acc, *dens = (const float4*)c.den, *terms = (const float4*)c.term;
    each_ahead<N>(run.count, [&](int i) {
#pragma unroll
        for (int j = i; j < i + AHEAD<N>; j += 4) {
            float4 s = kept[j / 4], d = dens[j / 4], t = terms[j / 4];
            acc = step_of_chain<PLAIN>(acc, s.x, run.out[j], j < run.count);
            acc = step_of_chain<PLAIN>(acc, s.y, run.out[j + 1], j + 1 < run.count);
            acc = step_of_chain<PLAIN>(acc, s.z, run.out[j + 2], j + 2 < run.count);
            acc = step_of_chain<PLAIN>(acc, s.w, run.out[j + 3], j + 3 < run.count);
            den = fma1(den, d.x, t.x), den = fma1(den, d.y, t.y);
            den = fma1(den, d.z, t.z), den = fma1(den, d.w, t.w);
        }
    });
}
// `all`: of the run and what was before it.
template <int N>
INLINE void walk(const Scales<N>& c, const Stretch<N>& run, const Powers& all, float& acc, float& den) {
    if (all.low - all.x >= -40) walk_run<true>(c, run, acc, den);
    else walk_run<false>(c, run, acc, den);
}

// Of the tiles of a run, one a lane.
INLINE Powers top_of_run(const int4* sums, int count, int lane) {
    int2 s = make_int2(NEVER, NEVER);
    if (lane < min(count, RUN)) s = *(const int2*)(sums + lane);
    int low = s.y == NEVER ? -NEVER : s.y;
    return {__reduce_max_sync(~0u, s.x), __reduce_max_sync(~0u, s.y), __reduce_min_sync(~0u, low)};
}

// What a block walks over: parts of a head that have warps there, `alone`, or one in turns.
struct Walk {
    int row, head, part, tiles;
    bool is_there, alone;
};

// done(element of the row, what it is) by the warp that has walked over the last tile, every lane its element, if it has one.
template <class Done>
INLINE void walk_in_turns(const Attend& a, Chain& mem, const Walk& w, Done done) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, parts = (a.dim + 31) / 32, tiles = w.tiles;
    int x = w.part * 32 + lane, own = w.alone ? 0 : warp, runs = (tiles + RUN - 1) / RUN;
    size_t at = (size_t)w.row * a.heads + w.head, element = at * a.dim + x;
    const int4* sums = a.tile_sums + at * a.places;
    const float* out = a.tile_out + (at * parts + w.part) * a.places * 32 + lane;
    const float* gate = a.gate + element;
    bool gated = a.gate;
    if (w.is_there && own * RUN + lane < tiles) will_read(sums + own * RUN + lane);
    if (w.is_there && own * RUN < tiles) will_read(out + (size_t)own * (RUN * 32));
    if (w.is_there && gated && x < a.dim) will_read(gate);
    previous_kernel_done();
    if (!w.is_there) return;
    Stretch<RUN> run;
    Scales<RUN>& scales = mem.scales[warp];
    Powers before = {NEVER, NEVER, -NEVER};
    float open = 1.0f, acc = 0.0f, den = 0.0f;
    if (gated && x < a.dim) open = *gate;
    auto begin = [&](int i) {
        run.count = max(0, min(RUN, tiles - i * RUN));
        load_run(run, sums + i * RUN + lane, out + (size_t)i * (RUN * 32), lane);
    };
    begin(own);
#pragma unroll 1
    for (int first = 0; first < runs; first += TOPS) {  // `before`: of the runs before these
        int here = min(TOPS, runs - first), joined = 0;
        if (!w.alone) {
            const int4* from = sums + first * RUN;
#pragma unroll 4
            for (int i = warp; i < here; i += RUNS) {
                Powers top = top_of_run(from + i * RUN, tiles - (first + i) * RUN, lane);
                if (lane == 0) mem.tops[i] = top;
            }
            __syncthreads();
        }
        if (first == 0 && gated) open = sigmoid1(open);
#pragma unroll 1
        for (int i = own; i < here; i += RUNS) {
#pragma unroll 1
            for (; joined < i; joined++) before = join(before, mem.tops[joined]);
            Powers all = join(before, scan_run(run, lane));
            scale_run(scales, run, before, lane);
            if (first + i > 0) {
                named_sync(warp + 1, 64);  // the one before has walked
                acc = mem.acc[lane], den = mem.den;
            }
            walk(scales, run, all, acc, den);
            if (first + i + 1 == runs) {
                float v = 0.0f;
                if (x < a.dim) v = finish(a, acc, den, all.x - all.r + 8, open, element, w.row);
                return done(w.head * a.dim + x, v);
            }
            mem.acc[lane] = acc;
            __syncwarp();  // all lanes have read it
            if (lane == 0) mem.den = den;
            named_arrive((warp + 1) % RUNS + 1, 64);
            begin(first + i + RUNS);
        }
        if (first + TOPS >= runs) return;
#pragma unroll 1
        for (; joined < TOPS; joined++) before = join(before, mem.tops[joined]);
        __syncthreads();
    }
}

INLINE void combine(const Attend& a, u8* shared) {
    int warp = threadIdx.x / 32, row = blockIdx.y, parts = gridDim.z;
    touch(a);
    next_kernel_may_start();
    int rows = *a.step.count;
    Span seen = visible(a, row);  // also of a row beyond them: the loads go together
    int tiles = last_tile(seen) - first_tile(seen);
    bool alone = tiles <= RUN;
    int part = alone ? (int)blockIdx.z * RUNS + warp : (int)blockIdx.z;
    Walk w = {row, (int)blockIdx.x, part, tiles, row < rows && part < parts, alone};
    walk_in_turns(a, *(Chain*)shared, w, [](int, float) {});
}
}  // namespace attention

SIZE(decode_tiles_64_bytes, (sizeof(attention::Decode<64, attention::TILES>)));
SIZE(decode_tiles_128_bytes, (sizeof(attention::Decode<128, attention::TILES>)));
SIZE(decode_tiles_256_bytes, (sizeof(attention::Decode<256, attention::TILES>)));
SIZE(decode_one_64_bytes, (sizeof(attention::Decode<64, attention::ALONE>)));
SIZE(decode_one_128_bytes, (sizeof(attention::Decode<128, attention::ALONE>)));
SIZE(decode_combine_bytes, sizeof(attention::Chain));
KERNEL BOUNDS(256, 2) decode_tiles_64(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_tiles<64>(a, shared);
}
KERNEL BOUNDS(256, 2) decode_tiles_128(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_tiles<128>(a, shared);
}
KERNEL BOUNDS(256, 2) decode_tiles_256(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_tiles<256>(a, shared);
}
KERNEL BOUNDS(256, 4) decode_one_64(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_one<64>(a, shared);
}
KERNEL BOUNDS(256, 4) decode_one_128(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_one<128>(a, shared);
}
KERNEL BOUNDS(256, 2) decode_combine(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::combine(a, shared);
}
