// The tiles of one row that sees many (docs/arithmetic.md 7), for the chain of attention_decode.cuh or attention_few.cuh.
// Bucket 1. Inside library.cu, after attention_decode.cuh.
//
// decode_deep_64, _128: grid (units × blocks a unit), block 512, shared decode_deep_*_bytes (128: 226,176). A unit is up to 16
//     query heads of one KV head, which has dim = 64 or 128 elements. A block has two sides, each of which has a tile at a
//     time. The sides of all blocks of a unit take its tiles in turns, two each; further ones by claims, a word a unit, since
//     multiprocessors are not equally fast. The words are 0 between launches.
//     reads q, the cache, v_steps; writes tile_out, tile_sums. A score beyond 2^22 is reported.
//
// Little is asked for before q is there: it would wait behind that.
#pragma once

namespace attention {
constexpr int SIDES = 2;

template <int HEAD>
struct Deep {
    using Side = Decode<HEAD, DEEP>;
    static_assert(Side::SLOTS == 3);  // K, V, and the next K
    u8 queries[Side::Q_BYTES];
    Side sides[SIDES];
    int claimed[SIDES];
};

// K or V of a tile into shared memory, by the threads of a side; row `without` is left out.
template <int HEAD>
INLINE void copy_tile(u8* to, const u16* from, int thread, int without = -1) {
    constexpr int PIECES = HEAD / 8, STEP = THREADS / PIECES;
    int row = thread / PIECES;
    u8* at = to + swizzled<PIECES>(row, thread % PIECES);
    from += thread * 8;
#pragma unroll
    for (int i = 0; i < TILE / STEP; i++)
        if (row + i * STEP != without) copy16(at + i * (STEP * HEAD * 2), from + i * (STEP * HEAD));
}
template <int HEAD>
INLINE void copy_row(u8* to, const u16* from, int row, int thread) {
    constexpr int PIECES = HEAD / 8;
    if (thread < PIECES) copy16(to + swizzled<PIECES>(row, thread), from + row * HEAD + thread * 8);
}

template <int HEAD>
INLINE void decode_deep(const Attend& a, u8* shared) {
    using D = Decode<HEAD, DEEP>;
    Deep<HEAD>& all = *(Deep<HEAD>*)shared;
    int side = uniform(threadIdx.x / THREADS), thread = (int)unknown(threadIdx.x % THREADS), warp = uniform(thread / 32);
    int lane = threadIdx.x % 32;
    touch(a);
    next_kernel_may_start();
    int count = *a.step.count, position = *a.step.positions, slot = *a.step.slots;
    int ratio = a.heads / a.kv_heads, groups = (ratio + ROWS - 1) / ROWS, units = a.kv_heads * groups;
    int blocks = (int)gridDim.x / units, block = (int)blockIdx.x / units, unit = (int)blockIdx.x - block * units;
    int kv = unit / groups, part = (unit - kv * groups) * ROWS, query = kv * ratio + part, heads = min(ROWS, ratio - part);
    Span seen = visible_from(a, position);
    int first = first_tile(seen), fresh = position / TILE;  // whose row `position` the kernel before this one writes
    int last = last_tile(seen), tile = first + side * blocks + block, next = tile + SIDES * blocks;
    if (count == 0 || first + block >= last) return leave_early();
    size_t plane = (size_t)(slot * a.kv_heads + kv) * a.capacity;
    auto row_of = [&](int tile) { return plane + place_of(a, tile); };
    D& mem = all.sides[side];
    bool is_busy = tile < last;
    size_t row = row_of(tile);
    if (is_busy) {
        copy_tile<HEAD>(mem.ring[0], a.k + row * HEAD, thread, tile == fresh ? position - fresh * TILE : -1);
        // Where the other side asks for K, too, q would wait behind more.
        if (last - first <= blocks && thread * 64 < TILE * HEAD) will_read(a.v + row * HEAD + thread * 64);
    }
    previous_kernel_done();
    float values[HEAD / 32];
    int own = side * WARPS + warp;
    load_query<HEAD>(values, a.q + (size_t)(query + own) * a.dim, own < heads, a, lane);
    u32 pairs[2], ahead_pairs[2];
    const u16* steps = (const u16*)(a.v_steps + warp * 16) + (lane & 3);
    auto load_pairs = [&](size_t row) { ahead_pairs[0] = steps[row / 2], ahead_pairs[1] = steps[row / 2 + 4]; };
    if (is_busy) {
        load_pairs(row);
        if (tile == fresh) copy_row<HEAD>(mem.ring[0], a.k + row * HEAD, position - fresh * TILE, thread);
        copy_commit();
    }
    u16 *high = (u16*)(all.queries + own * D::Q_PITCH), *low = (u16*)(all.queries + (ROWS + own) * D::Q_PITCH);
    float scale = place_query<HEAD>(values, a, lane, [&](int x, u16 h, u16 l) { high[x] = h, low[x] = l; });
    if (lane < SIDES) all.sides[lane].row_scale[own] = scale;
    if (is_busy) copy_tile<HEAD>(mem.ring[1], a.v + row * HEAD, thread);
    copy_commit();
    __syncthreads();
    if (!is_busy) return;
    Query<HEAD, DEEP> q;
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) load_digits(q, s, all.queries, s, lane);
    // A side claims while it has its next tile, so there are as many claims as tiles that are not a side's first; whoever has the
    // last one sets the word back.
    int sides = SIDES * blocks, claims = last - first - sides;
    int k_slot = 0, claimed = 0;
    for (;;) {
        int v_slot = k_slot == 2 ? 0 : k_slot + 1, free_slot = k_slot == 0 ? 2 : k_slot - 1;
        bool has_next = next < last;
        copy_wait<1>();
        named_sync(1 + side, THREADS);  // K is there, and every warp has left the V before it
        if (has_next && thread == 0) claimed = (int)atomicAdd(a.claims + unit, 1u);
        size_t next_row = row_of(next);
        if (has_next) copy_tile<HEAD>(mem.ring[free_slot], a.k + next_row * HEAD, thread);
        copy_commit();
        float y[2][4], top[2][4] = {}, rest[2][4] = {};
        add_scores(top, rest, q, all.queries, mem.ring[k_slot], 0, warp, lane);
#pragma unroll
        for (int i = 0; i < 8; i++) y[i / 4][i % 4] = join(top[i / 4][i % 4], rest[i / 4][i % 4]);
        pairs[0] = ahead_pairs[0], pairs[1] = ahead_pairs[1];
        if (has_next) load_pairs(next_row);
        if (!(scale_scores(y, pairs, mem, seen, tile, warp, lane) < 0x1p22f)) report(a.faults, 0);
        named_sync(1 + side, THREADS);
        u32 top_n[2], top_m[2];
        place_weights(y, pairs, mem, top_n, top_m, warp, lane);
        if (has_next && thread == 0) {
            all.claimed[side] = claimed;
            if (claimed == claims - 1) a.claims[unit] = 0;
        }
        copy_wait<1>();
        named_sync(1 + side, THREADS);  // V is there, and every warp has left K
        if (has_next) copy_tile<HEAD>(mem.ring[k_slot], a.v + next_row * HEAD, thread);
        copy_commit();
        Place p = {query, heads, tile - first};
        if (warp == 0) write_sums(mem, top_n, top_m, a, p, lane);
        write_output(mem, mem.ring[v_slot], 0, a, p, warp, lane);
        if (!has_next) return;
        tile = next, next = first + 2 * sides + all.claimed[side], k_slot = free_slot;
    }
}
}  // namespace attention

SIZE(decode_deep_64_bytes, sizeof(attention::Deep<64>));
SIZE(decode_deep_128_bytes, sizeof(attention::Deep<128>));
KERNEL BOUNDS(512, 1) decode_deep_64(const __grid_constant__ attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_deep<64>(a, shared);
}
KERNEL BOUNDS(512, 1) decode_deep_128(const __grid_constant__ attention::Attend a) {
    SHARED_BYTES(shared);
    attention::decode_deep<128>(a, shared);
}
