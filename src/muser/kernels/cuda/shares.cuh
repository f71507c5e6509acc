// What a thread block of batch.cuh owns: neighbouring outputs, of each part as many as its share of all bytes; segments are
// what it owns of a tile. Inside library.cu, after matvec.cuh.
#pragma once

struct Range {  // of a part
    int first, count, segment, flat;  // outputs; its first segment and its first total
};
struct Shares {
    Range ranges[PARTS + 1];  // the last one holds the sums
};

// The first output that begins at or behind x.
INLINE u32 output_at(const Part& part, u32 cost, u32 x) {
    return x > part.base ? min((u32)part.outputs, __umulhi(x - part.base + cost - 1, part.by_cost)) : 0;
}

// What it owns of a tile. With a gate segments 2i and 2i + 1 are the same outputs of gate and up.
struct __align__(16) Segment {
    const u8* tile;  // of the first unit
    u32 what;        // first output owned; how many − 1; part; format; 16-byte pieces of an output, and apart
    int output;      // the tile's first
    MEMBER int first() const { return (int)(what & 15); }
    MEMBER int count() const { return (int)(what >> 4 & 15) + 1; }
    MEMBER int part() const { return (int)(what >> 8 & 3); }
    MEMBER int format() const { return (int)(what >> 10 & 31); }
    MEMBER int unit_bytes() const { return (int)(what >> 15 & 31) * 16; }
    MEMBER int apart() const { return (int)(what >> 20 & 7) * 16; }
    MEMBER int bytes() const { return TILE_OUTPUTS * unit_bytes() + apart(); }
};
INLINE Segment segment_of(const Part& part, int p, int units, int tile, int first, int count) {
    int output = tile * TILE_OUTPUTS, low = max(first, output), high = min(first + count, output + TILE_OUTPUTS);
    u32 what = (u32)(low - output) | (u32)(high - low - 1) << 4 | (u32)p << 8 | (u32)part.format << 10 | part.size << 15;
    i64 bytes = (part.size & 31) * 256 + (part.size >> 5) * 16;
    return {part.weights + (i64)tile * units * bytes, what, output};
}
// Lane p of a warp gets what the thread block owns of part p, lane PARTS the sums.
INLINE Range own_range(const Matvec& a) {
    int lane = threadIdx.x % 32, gated = is_gated(a), segment = 0, flat = 0;
    const Part& part = a.parts[lane % PARTS];
    u32 low = split_at(a.split, blockIdx.x), high = split_at(a.split, blockIdx.x + 1), cost = part.size & 31;
    int from = (int)low, count = (int)(high - low);
    if (!gated) from = (int)output_at(part, cost, low), count = (int)output_at(part, cost, high) - from;
    if (lane >= (gated ? 2 : PARTS)) count = 0;
    int segments = count ? (from + count - 1) / TILE_OUTPUTS - from / TILE_OUTPUTS + 1 : 0;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        int more = __shfl_sync(~0u, segments, k), others = __shfl_sync(~0u, count, k);
        if (k < lane) segment += more, flat += others;
    }
    return {from, count, segment, flat};
}
INLINE void make_shares(const Matvec& a, Shares& s) {
    if (threadIdx.x >= 32) return;
    Range own = own_range(a);
    if (threadIdx.x <= PARTS) s.ranges[threadIdx.x] = own;
}
// The shares too, without a barrier: every warp works them out.
INLINE void make_segments(const Matvec& a, Shares& s, int units, Segment* to) {
    Range own = own_range(a);
    if (threadIdx.x <= PARTS) s.ranges[threadIdx.x] = own;
    int starts[PARTS + 1];
#pragma unroll
    for (int k = 0; k <= PARTS; k++) starts[k] = __shfl_sync(~0u, own.segment, k);
#pragma unroll 1
    for (int base = 0; base < starts[PARTS]; base += blockDim.x) {
        int i = base + (int)threadIdx.x, p = (i >= starts[1]) + (i >= starts[2]) + (i >= starts[3]), tile = i;
        if (is_gated(a)) p = i & 1, tile = i >> 1;
        else tile -= __shfl_sync(~0u, own.segment, p);
        int first = __shfl_sync(~0u, own.first, p), count = __shfl_sync(~0u, own.count, p);
        if (i < starts[PARTS]) to[i] = segment_of(a.parts[p], p, units, first / TILE_OUTPUTS + tile, first, count);
    }
}

// `units` units of a segment from `unit` on, as they lie. Without bulk copies all lanes copy.
INLINE void request(const Segment& g, int unit, int units, u8* to, u64* full) {
    int bytes = g.bytes(), own = g.unit_bytes(), first = g.first() * own, size = g.count() * own, apart = g.apart();
    const u8* from = g.tile + (i64)unit * bytes;
#ifdef HAS_BULK
    if (threadIdx.x % 32) return;
    barrier_expect(full, (u32)(units * (g.count() == TILE_OUTPUTS ? bytes : size + apart)));
#endif
    if (g.count() == TILE_OUTPUTS) return fetch(to, from, units * bytes, full);
#pragma unroll 1
    for (int i = 0; i < units; i++, to += bytes, from += bytes) {
        fetch(to + first, from + first, size, full);
        if (apart) fetch(to + bytes - apart, from + bytes - apart, apart, full);
    }
}
