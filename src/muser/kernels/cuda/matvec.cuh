// One row, or two to four, times up to four weights that read it. Inside library.cu, after quantise.cuh.
//
// matvec_256_R, matvec_32_R, matvec_grid_R(Matvec), R = 1 (bucket 1), 4 (bucket 4): K-quants, 32-blocks, floats; the
//     input must be READY
//     grid   as many thread blocks as there are multiprocessors (fewer where there are fewer outputs), any number is right
//     block  32·(W + WALKERS) ≤ 512 (sm_100 on, K-quants, R = 4: 384)
//     dynamic shared bytes, all of it with unit = 256 elements (grid: 128), U = ceil(K/unit), N blocks a row = U (256,
//       grid) or 8·U (32), T words of an output's terms = U|1 (256), 8·U + 4 (32), 2·(U|1) (grid), S = a.slots:
//         W·stages·stage_bytes                the weights under way; stages 1 … 4
//       + R·U·(272, grid: 256) + R·4·round_up(N, 4)   the quantised rows
//       + R·S·64·T (R = 4: + 128)             the terms of S pieces; with a gate twice as many
//       + 32·P      P pieces of one thread block, with a gate twice as many: at most ⌊M/(U·c)⌋ + 2, M its share of the
//         line and c the least cost of a part
//     reads weights before the kernel before has ended; then `source` (see quantise.cuh), *count
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// All units of all tiles lie on a line, part by part and tile by tile (with a gate two tiles at a time: of gate and up), and
// a thread block owns a stretch of it, as many bytes as any other: whole tiles, and at its ends units of tiles that it shares
// with its neighbours. What it owns of a tile is a piece, SPAN units of it a chunk. W warps stream chunks, each into its own
// ring, and lay down their t_b in shared memory. Others, in the end all, walk the chains of complete pieces, a lane an output.
// Where the piece is not the tile's end, the totals go to the next thread block by a word of memory each; a thread block takes
// that piece, the last one of its stretch, first, and the one that continues another's chains last. So it waits for thread
// blocks of lower numbers alone, which began no later: for one, or where a stretch lies within a tile for all that share it.
// The first requests are made at the pace at which memory answers, so that whoever makes the row does not wait behind them; and
// what is not requested when the row is there is so behind the row, which would wait for it for microseconds else.
#pragma once
#include "fragments.cuh"

constexpr int PARTS = 4, SPAN = 2, MOST_WARPS = 16, MOST_STAGES = 4, MOST_SLOTS = 32;
template <int ROWS>
constexpr int WALKERS = ROWS == 1 ? 1 : 2;  // warps of a thread block that walk chains from the start
constexpr int OUT_PLAIN = 0, OUT_SILU = 1, OUT_GELU = 2, OUT_LOGITS = 3;  // Matvec::epilogue

struct Part {
    const u8* weights;
    float* out;
    u64 entry;  // of faults
    int outputs, format;
    u32 base;     // of the parts before, Σ tiles·units·cost; cost: 16-byte pieces of an output's unit
    u32 size;     // cost | 16-byte pieces that stand apart behind a tile << 5
    u32 by_cost;  // ⌈2³² / cost⌉
    u32 spare;
};

// Of n thread blocks the first `full` share evenly, what block b owns begins at each·b + ⌊rest·b/full⌋; each of the others
// owns `last`. Thread blocks begin in order, and the last ones when their rows are there and nothing of their weights is.
struct Split {
    u32 each, rest, by_full;  // by_full = ⌈2³² / full⌉
    u32 full, last, total;
};

struct Matvec {
    Part parts[PARTS];  // unused: outputs 0
    Source source;
    float* out;  // OUT_SILU, OUT_GELU: parts 0 and 1 are gate and up, of as many outputs
    u64 act_entry, scale_entry, cap_entry;
    u64* faults;
    const int* count;
    u32* made;    // how many of the `makers` thread blocks that make the rows are done; this kernel sets it back to 0
    Split split;  // of Σ tiles·units·cost; with a gate of tiles·units
    u32 makers;
    u32 by_units;  // ⌈2³² / units⌉
    u32 pace;      // cycles from one of a thread block's first requests to the next, while the row is being made
    float scale, cap, inverse_cap;  // OUT_LOGITS: z(x·scale), then z(cap·tanh(x·inverse_cap)); 0: not
    int epilogue, stages, stage_bytes;
    int slice, copies, pass;  // of batch.cuh
    int slots;        // pieces whose terms are in shared memory at a time; at most MOST_SLOTS
    int table;        // of batch.cuh: jobs that are worked out at a time, 0: none
    u32* handed;      // [thread blocks][R][gate and up][16] totals of tiles that two share, as ~bits; 0: not there (batch.cuh: R = 16)
};
INLINE bool is_gated(const Matvec& a) { return a.epilogue == OUT_SILU || a.epilogue == OUT_GELU; }

struct K256 {
    static constexpr int WORDS = 1, BLOCKS = 1, UNIT = GROUP, ROW_BYTES = CODES_PITCH;
    static MEMBER int pitch(int units) { return units | 1; }
};
struct K32 {
    static constexpr int WORDS = 8, BLOCKS = 8, UNIT = GROUP, ROW_BYTES = CODES_PITCH;
    static MEMBER int pitch(int units) { return 8 * units + 4; }
};
struct Grid {
    static constexpr int WORDS = 2, BLOCKS = 1, UNIT = GRID_BLOCK, ROW_BYTES = GRID_UNIT;
    static MEMBER int pitch(int units) { return 2 * (units | 1); }
};

// --- what a thread block owns ---
INLINE u32 split_at(const Split& s, u32 b) {
    return b <= s.full ? s.each * b + __umulhi(s.rest * b, s.by_full) : s.total - (gridDim.x - b) * s.last;
}

// What it owns of a tile, units `first` … `end` − 1. With a gate pieces 2i and 2i + 1 are the same of gate and up.
struct __align__(16) Piece {
    const u8* tile;  // of unit 0
    u32 what;        // part; format; 16-byte pieces of an output's unit, and apart
    int output;      // the tile's first
    int origin;      // where span 0 begins: a piece that is taken first ends with the last span
    int first, end;
    MEMBER int part() const { return (int)(what & 3); }
    MEMBER int format() const { return (int)(what >> 2 & 31); }
    MEMBER int unit_bytes() const { return (int)(what >> 7 & 31) * 16; }
    MEMBER int apart() const { return (int)(what >> 12 & 7) * 16; }
    MEMBER int bytes() const { return TILE_OUTPUTS * unit_bytes() + apart(); }
};
struct Line {  // a piece with a gate: both of them
    int units, spans, by_units, each;  // each: 2 with a gate
    int pieces, chunks, skipped;       // chunks of a whole piece; how many of the first piece are not there
};
INLINE int tile_of(u32 unit, const Line& l) { return (int)(l.units == 1 ? unit : __umulhi(unit, (u32)l.by_units)); }
// The unit of a part at which the share of the line ends that ends at x: chunks are whole, but for a tile's last.
INLINE u32 unit_at(const Part& part, u32 cost, u32 x, const Line& l) {
    u32 all = (u32)((part.outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS * l.units);
    u32 unit = x > part.base ? min(all, cost == 1 ? x - part.base : __umulhi(x - part.base + cost - 1, part.by_cost)) : 0;
    return unit - (u32)((int)unit - tile_of(unit, l) * l.units) % SPAN;
}
struct Share {  // of one part: tiles, the unit of the first one where it begins, that of the last one where it ends
    int first, count, begin, end;
};
INLINE Share share_of(const Part& part, const Split& split, const Line& l) {
    u32 cost = l.each == 2 ? 1 : part.size & 31;
    u32 low = unit_at(part, cost, split_at(split, blockIdx.x), l), high = unit_at(part, cost, split_at(split, blockIdx.x + 1), l);
    int first = tile_of(low, l), last = tile_of(high - (high > low), l);
    return {first, high > low ? last - first + 1 : 0, (int)low - first * l.units, (int)high - last * l.units};
}
// Of a stretch that begins at unit `begin` of its first tile and ends at unit `end` of its last one.
struct Order {
    bool is_shared, is_continued;  // whether the last piece goes first; whether the first one goes last
    MEMBER int place_of(int i, const Line& l) const {
        bool ahead = is_shared && i == l.pieces - 1, behind = is_continued && i == 0;
        return (ahead ? 0 : behind ? l.pieces - 1 : i + is_shared - is_continued) * l.each;
    }
};
INLINE Order order_of(Line& l, int begin, int end) {
    bool many = l.pieces > 1;
    Order order = {many && end < l.units, many && begin > 0};
    l.skipped = order.is_shared ? (l.spans - (end + SPAN - 1) / SPAN) * l.each : 0;
    return order;
}
// Piece i of all, number `own` of part p.
INLINE void put_piece(const Matvec& a, const Line& l, const Order& order, int i, int p, int own, const Share& s, Piece* to) {
    int tile = s.first + own, from = own > 0 ? 0 : s.begin, end = own < s.count - 1 ? l.units : s.end;
    int place = order.place_of(i, l), origin = place == 0 && order.is_shared ? -l.skipped / l.each * SPAN : from;
    for (int k = 0; k < l.each; k++) {
        const Part& part = a.parts[p + k];
        i64 bytes = (part.size & 31) * 256 + (part.size >> 5) * 16;
        to[place + k] = {part.weights + (i64)tile * l.units * bytes, (u32)(p + k) | (u32)part.format << 2 | part.size << 7,
                         tile * TILE_OUTPUTS, origin, from, end};
    }
}
// Without a barrier: every warp works it out.
INLINE Line make_pieces(const Matvec& a, int units, Piece* to) {
    bool gated = is_gated(a);
    Line l = {units, (units + SPAN - 1) / SPAN, (int)a.by_units, gated ? 2 : 1};
    l.chunks = l.spans * l.each;
    if (gated || a.parts[1].outputs == 0) {
        Share s = share_of(a.parts[0], a.split, l);
        l.pieces = s.count;
        Order order = order_of(l, s.begin, s.end);
#pragma unroll 1
        for (int i = threadIdx.x; i < l.pieces; i += blockDim.x) put_piece(a, l, order, i, 0, i, s, to);
        return l;
    }
    int lane = threadIdx.x % 32, start = 0, begin = 0, end = 0;
    Share s = share_of(a.parts[lane % PARTS], a.split, l);
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        int count = __shfl_sync(~0u, s.count, k), low = __shfl_sync(~0u, s.begin, k), high = __shfl_sync(~0u, s.end, k);
        if (count && l.pieces == 0) begin = low;
        if (count) end = high;
        if (k < lane) start += count;
        l.pieces += count;
    }
    Order order = order_of(l, begin, end);
#pragma unroll 1
    for (int base = 0; base < l.pieces; base += blockDim.x) {
        int i = base + (int)threadIdx.x, p = 0;
#pragma unroll
        for (int k = 1; k < PARTS; k++) p += i >= __shfl_sync(~0u, start, k);
        int own = i - __shfl_sync(~0u, start, p);
        Share of = {__shfl_sync(~0u, s.first, p), __shfl_sync(~0u, s.count, p), __shfl_sync(~0u, s.begin, p), __shfl_sync(~0u, s.end, p)};
        if (i < l.pieces) put_piece(a, l, order, i, p, own, of, to);
    }
    return l;
}

// --- the ring of one warp ---
__shared__ u64 ring_full[MOST_WARPS * MOST_STAGES];

INLINE void fetch(u8* to, const u8* from, int bytes, u64* full) {
#ifdef HAS_BULK
    bulk_copy_once(to, from, (u32)bytes, full);
#else
    for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512) copy16(to + i, from + i);
#endif
}
// `units` units of a piece from `unit` on, as they lie. Without bulk copies all lanes copy.
INLINE void request(const Piece& g, int unit, int units, u8* to, u64* full) {
    int bytes = g.bytes();
#ifdef HAS_BULK
    if (!elected()) return;
    barrier_expect(full, (u32)(units * bytes));
#endif
    fetch(to, g.tile + (i64)unit * bytes, units * bytes, full);
}
INLINE void await(u64* full, u32 phase, int stages) {
#ifdef HAS_BULK
    barrier_wait(full, phase);
#else
    if (stages == 1) copy_wait<0>();
    else if (stages == 2) copy_wait<1>();
    else if (stages == 3) copy_wait<2>();
    else copy_wait<3>();
    __syncwarp();
#endif
}

// --- terms of one output's unit ---
template <int ROWS>
INLINE void unit_terms(K256, int format, const uint4* w, const u8* apart, int row, const uint4* q, int pieces, float* out,
                       int pitch) {
    if (format == Q4_K) terms_k<Q4_K, ROWS>(w, q, pieces, out, pitch);
    else if (format == Q5_K) terms_k<Q5_K, ROWS>(w, q, pieces, out, pitch);
    else terms_6<ROWS>(w, ((const u16*)apart)[row], q, pieces, out, pitch);
}
template <int ROWS>
INLINE void unit_terms(K32, int format, const uint4* w, const u8*, int, const uint4* q, int pieces, float* out, int pitch) {
    switch (format) {
        case Q8_0: return terms_32<Q8_0, ROWS>(w, q, pieces, out, pitch);
        case Q4_0: return terms_32<Q4_0, ROWS>(w, q, pieces, out, pitch);
        case Q4_1: return terms_32<Q4_1, ROWS>(w, q, pieces, out, pitch);
        case Q5_0: return terms_32<Q5_0, ROWS>(w, q, pieces, out, pitch);
        default: return terms_32<Q5_1, ROWS>(w, q, pieces, out, pitch);
    }
}
template <int ROWS>
INLINE void unit_terms(Grid, int, const uint4* w, const u8* apart, int row, const uint4* q, int pieces, float* out,
                       int pitch) {
    int dots[ROWS];
    dots_grid<ROWS>(w, q, pieces, threadIdx.x % 8, dots);
    float step = ((const float*)apart)[row];
    for (int r = 0; r < ROWS; r++) *(float2*)(out + r * pitch) = make_float2(__int2float_rn(dots[r]), step);
}

struct Layout {
    u8 *ring, *codes;
    float *scales, *terms;
    Piece* pieces;
    int units, blocks, pitch, window;  // blocks of a row's scales; floats of an output's terms, of a row's
};
template <typename Form, int ROWS>
INLINE Layout layout_of(const Matvec& a, u8* shared, int warps) {
    Layout l;
    l.units = (a.source.width + Form::UNIT - 1) / Form::UNIT;
    l.blocks = (l.units * Form::BLOCKS + 3) / 4 * 4;
    l.pitch = Form::pitch(l.units);
    l.window = a.slots * (is_gated(a) ? 2 : 1) * TILE_OUTPUTS * l.pitch + (ROWS > 1 ? 8 : 0);  // rows meet no bank twice
    l.ring = shared;
    l.codes = shared + warps * a.stages * a.stage_bytes;
    l.scales = (float*)(l.codes + ROWS * l.units * Form::ROW_BYTES);
    l.terms = l.scales + ROWS * l.blocks;
    l.pieces = (Piece*)(l.terms + ROWS * l.window);
    return l;
}

// --- the chains: the total over all blocks of a row ---
// `total` is the chain's value before block or unit `from`.
INLINE float walk(K256, const float* terms, const float* scales, int from, int end, float total) {
    constexpr int SOME = 8;
    float s[SOME], t[SOME], s2[SOME], t2[SOME];
    int b = from;
    auto load = [&](float (&s)[SOME], float (&t)[SOME]) {
        bool whole = b + SOME <= end;
#pragma unroll
        for (int i = 0; i < SOME; i++)
            if (whole) s[i] = scales[b + i], t[i] = terms[b + i];
        return whole;
    };
    bool more = load(s, t);
#pragma unroll 1
    while (more) {  // the next ones are loaded meanwhile
        b += SOME;
        more = load(s2, t2);
#pragma unroll
        for (int i = 0; i < SOME; i++) total = fma1(s[i], t[i], total), s[i] = s2[i], t[i] = t2[i];
    }
#pragma unroll 2
    for (; b < end; b++) total = fma1(scales[b], terms[b], total);
    return total;
}
INLINE float walk(K32, const float* terms, const float* scales, int from, int end, float total) {
#pragma unroll 4
    for (int k = 8 * from; k < 8 * end; k += 4) {
        float4 t = *(const float4*)(terms + k), s = *(const float4*)(scales + k);
        total = fma1(s.w, t.w, fma1(s.z, t.z, fma1(s.y, t.y, fma1(s.x, t.x, total))));
    }
    return total;
}
INLINE float walk(Grid, const float* terms, const float* scales, int from, int end, float total) {
#pragma unroll 4
    for (int b = from; b < end; b++) {
        float2 t = *(const float2*)(terms + 2 * b);
        total = fma1(t.x, mul1(t.y, scales[b]), total);
    }
    return total;
}

// --- in and out ---
// Quantised rows into shared memory: all loads are under way at once, codes without a register between.
template <typename Form>
INLINE void fetch_rows(const Source& s, const Layout& l, int n) {
    int each = Form::UNIT == GRID_BLOCK ? l.units : l.units * Form::BLOCKS;
#pragma unroll 4
    for (int i = threadIdx.x; i < n * l.units * (Form::ROW_BYTES / 16); i += blockDim.x)
        copy16(l.codes + 16 * i, s.codes + 16 * (i64)i);
    copy_commit();
#pragma unroll 2
    for (int i = threadIdx.x; i < n * each; i += blockDim.x) {
        int r = (i >= each) + (i >= 2 * each) + (i >= 3 * each);
        l.scales[i + r * (l.blocks - each)] = s.scales[i];
    }
#ifndef HAS_BULK
    copy_wait<0>();  // the ring's copies are counted too
#endif
}
INLINE float activated(float gate, int epilogue) { return epilogue == OUT_SILU ? silu1(gate) : gelu1(gate); }

INLINE float finished(const Matvec& a, const Part& part, float total, int r) {
    float v = stored(total, {a.faults, part.entry}, r);
    if (a.epilogue != OUT_LOGITS) return v;
    if (a.scale != 0.0f) v = stored(mul1(v, a.scale), {a.faults, a.scale_entry}, r);
    if (a.cap != 0.0f) v = stored(mul1(a.cap, tanh1(mul1(v, a.inverse_cap))), {a.faults, a.cap_entry}, r);
    return v;
}
// The thread block whose stretch ends where piece g begins: the one before, but for those that own nothing.
INLINE int begun_by(const Matvec& a, const Piece& g, const Line& line) {
    const Part& part = a.parts[g.part()];
    u32 cost = line.each == 2 ? 1 : part.size & 31, begin = (u32)(g.output / TILE_OUTPUTS * line.units + g.first);
    int block = (int)blockIdx.x - 1;
    while (unit_at(part, cost, split_at(a.split, (u32)block), line) == begin) block--;
    return block;
}
__shared__ u32 laid_down[MOST_SLOTS];  // of the pieces that were in a slot: chunks, those that a piece has not included
__shared__ u32 walked[MOST_SLOTS];     // and walks along their chains, one after another
__shared__ u32 claimed;                // walks that somebody does
__shared__ volatile u32 row_there;     // or about to be

// The chains of piece i, of rows `first` and, without a gate, the one behind it if there are so many: half of a warp walks
// gate and half up, or each half a row.
template <typename Form, int ROWS>
INLINE void walk_piece(const Matvec& a, const Line& line, const Layout& l, int i, int slot, u32 complete, int first, int n) {
    bool gated = line.each == 2;
    int row = threadIdx.x % 16, half = threadIdx.x % 32 / 16, sub = gated ? half : 0, r = gated ? first : first + half;
    const Piece& g = l.pieces[i * line.each + sub];
    const Part& part = a.parts[g.part()];
    bool owned = r < n, there = owned && g.output + row < part.outputs;
    u32* handed = a.handed + (2 * r + sub) * TILE_OUTPUTS + row;
    float *out = gated ? a.out : part.out, v = 0.0f;
    out += (i64)r * part.outputs + g.output + row;
    // It is there long before the last chunk of the piece is, so it is asked for first.
    if (owned && g.first > 0) v = taken(handed + (i64)begun_by(a, g, line) * ROWS * 2 * TILE_OUTPUTS);
    count_wait(laid_down + slot, complete);
    if (owned) v = walk(Form(), l.terms + r * l.window + ((slot * line.each + sub) * TILE_OUTPUTS + row) * l.pitch,
                        l.scales + r * l.blocks, g.first, g.end, v);
    if (g.end < line.units) {
        if (owned) hand_on(handed + (i64)blockIdx.x * ROWS * 2 * TILE_OUTPUTS, v);
        return;
    }
    if (there) v = finished(a, part, v, r);
    if (gated) {
        float up = __shfl_xor_sync(~0u, v, TILE_OUTPUTS);
        there = there && half == 0;
        if (there) v = stored(mul1(activated(v, a.epilogue), up), {a.faults, a.act_entry}, r);
    }
    if (there) *out = v;
}

// Of one piece: a row each, or without a gate two.
template <int ROWS>
INLINE u32 walks_of(const Line& line) {
    return ROWS == 1 ? 1 : ROWS / 2 * (u32)line.each;
}
// What a warp does that has nothing to multiply: one walk after another, in order.
template <typename Form, int ROWS>
INLINE void walk_pieces(const Matvec& a, const Line& line, const Layout& l, int n) {
    u32 walks = walks_of<ROWS>(line);
#pragma unroll 1
    while (true) {
        u32 own = 0;
        if (threadIdx.x % 32 == 0) own = atomicAdd(&claimed, 1u);
        own = __shfl_sync(~0u, own, 0);
        u32 i = own / walks, turn = i / (u32)a.slots, slot = i % (u32)a.slots;
        if (i >= (u32)line.pieces) return;
        walk_piece<Form, ROWS>(a, line, l, (int)i, (int)slot, (turn + 1) * (u32)line.chunks,
                               (int)(own % walks) * (line.each == 2 ? 1 : 2), n);
        __syncwarp();
        if (threadIdx.x % 32 == 0) count_add(walked + slot, 1);
    }
}

struct ChunkAt {
    int piece, span;  // with a gate spans of gate and up in turns
};

// Chunks of one warp, in order.
template <typename Form, int ROWS>
struct Stream {
    static constexpr bool BY_WARP = ROWS > 1 && Form::UNIT == GROUP && Form::BLOCKS == 1;
    ChunkAt at, next, step;  // to be multiplied; to be requested; from one to the next
    int stage, slot;         // of `at`
    u32 phase, turn;         // turn: how often all slots were used before

    MEMBER void forward(const Line& line, ChunkAt& spot) {
        spot.piece += step.piece, spot.span += step.span;
        if (spot.span >= line.chunks) spot.span -= line.chunks, spot.piece++;
    }
    MEMBER u64* full_at(int warp, int i) const { return ring_full + warp * MOST_STAGES + i; }
    MEMBER u8* ring_at(const Matvec& a, const Layout& l, int warp, int i) const {
        return l.ring + (warp * a.stages + i) * a.stage_bytes;
    }
    // Whether there is such a chunk, and where.
    MEMBER bool find(const Line& line, const Layout& l, const ChunkAt& spot, int& index, int& unit) {
        if (spot.piece >= line.pieces) return false;
        int gated = line.each - 1;
        index = (spot.piece << gated) + (spot.span & gated);
        unit = l.pieces[index].origin + SPAN * (spot.span >> gated);
        return unit < l.pieces[index].end;
    }
    MEMBER void ask(const Line& line, const Layout& l, u8* to, u64* full) {
        int index, unit;
        if (find(line, l, next, index, unit)) {
            const Piece& g = l.pieces[index];
            request(g, unit, min(SPAN, g.end - unit), to, full);
        }
#ifndef HAS_BULK
        copy_commit();
#endif
        forward(line, next);
    }
    MEMBER void move_slot(const Matvec& a, int pieces) {
        slot += pieces;
#pragma unroll 1
        while (slot >= a.slots) slot -= a.slots, turn++;
    }
    MEMBER static ChunkAt chunk_at(int i, int chunks) {
        ChunkAt spot = {0, i};
#pragma unroll 1
        while (spot.span >= chunks) spot.span -= chunks, spot.piece++;
        return spot;
    }
    MEMBER void begin(const Matvec& a, const Line& line, int warp, int warps) {
        stage = 0, phase = 0, slot = 0, turn = 0;
        at = next = chunk_at(line.skipped + warp, line.chunks), step = chunk_at(warps, line.chunks);
        move_slot(a, at.piece);
    }
    // The first requests of each stage from `stage` on, at a pace until the row is there, or all that are left.
    MEMBER void fill(const Matvec& a, const Line& line, const Layout& l, int warp, int warps, u32 start, bool paced) {
#pragma unroll 1
        for (; stage < a.stages; stage++) {
            if (paced) {
                while (cycles() - start < (u32)(stage * warps + warp) * a.pace && !row_there);
                if (uniform(row_there)) return;
            }
            ask(line, l, ring_at(a, l, warp, stage), full_at(warp, stage));
        }
        if (!paced) stage = 0;
    }
    // Terms of one or two units that stand at `tile`, from unit `unit` on. K-quants and four rows: by the warp, on matrix units.
    // Else a lane does one output's unit: of one row that takes no more instructions.
    MEMBER void multiply(const Layout& l, const Piece& g, const u8* tile, int unit, int left, float* to, RowCodes& b) {
        if constexpr (BY_WARP) {
            UnitRows rows = {l.codes + unit * Form::ROW_BYTES, l.units * Form::ROW_BYTES};
            if (g.format() == Q4_K) chunk_terms<Q4_K>(tile, rows, b, left, to, l.pitch, l.window);
            else if (g.format() == Q5_K) chunk_terms<Q5_K>(tile, rows, b, left, to, l.pitch, l.window);
            else chunk_terms<Q6_K>(tile, rows, b, left, to, l.pitch, l.window);
        } else {
            int row = threadIdx.x % 16, half = threadIdx.x % 32 / 16;
            tile += half * g.bytes();
            if (half < left)
                unit_terms<ROWS>(Form(), g.format(), (const uint4*)(tile + row * g.unit_bytes()),
                                 tile + TILE_OUTPUTS * g.unit_bytes(), row,
                                 (const uint4*)(l.codes + (unit + half) * Form::ROW_BYTES), l.units * Form::ROW_BYTES / 16,
                                 to + row * l.pitch + half * Form::WORDS, l.window);
        }
    }
    MEMBER void run(const Matvec& a, const Line& line, const Layout& l, int warp, int n) {
        int index, unit;
        RowCodes codes;
        if (BY_WARP) codes.begin(n);
#pragma unroll 1
        while (find(line, l, at, index, unit)) {
            const Piece& g = l.pieces[index];
            int left = min(SPAN, g.end - unit);
            if (turn) count_wait(walked + slot, turn * walks_of<ROWS>(line));
            await(full_at(warp, stage), phase, a.stages);
            multiply(l, g, ring_at(a, l, warp, stage), unit, left,
                     l.terms + (slot * line.each + (at.span & line.each - 1)) * TILE_OUTPUTS * l.pitch + unit * Form::WORDS,
                     codes);
            __syncwarp();
            ask(line, l, ring_at(a, l, warp, stage), full_at(warp, stage));
            int missing = unit == g.first ? line.spans - (int)((u32)(g.end - g.first + SPAN - 1) / SPAN) : 0;
            if (threadIdx.x % 32 == 0) count_add(laid_down + slot, (u32)(1 + missing));
            int piece = at.piece;
            forward(line, at);
            move_slot(a, at.piece - piece);
            if (++stage == a.stages) stage = 0, phase ^= 1;
        }
    }
};

INLINE bool is_made(const Matvec& a) { return *(const volatile u32*)a.made == a.makers; }

template <typename Form, int ROWS>
INLINE void matvec(const Matvec& a) {
    SHARED_BYTES(shared);
    __shared__ int there;  // rows: not in a register meanwhile
    int warp = uniform(threadIdx.x / 32), warps = blockDim.x / 32 - WALKERS<ROWS>;
    next_kernel_may_start();
    int n = min(*a.count, ROWS);
    if (threadIdx.x % 32 == 0 && warp < warps)  // lanes of one warp would do it one by one
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) barrier_init(ring_full + warp * MOST_STAGES + i, 1);
    if (threadIdx.x < MOST_SLOTS) laid_down[threadIdx.x] = walked[threadIdx.x] = 0;
    if (threadIdx.x == 0) claimed = 0, row_there = is_made(a);
#ifdef HAS_BULK
    barrier_fence();
#endif
    Layout l = layout_of<Form, ROWS>(a, shared, warps);
    Line line = make_pieces(a, l.units, l.pieces);
    __syncthreads();
    Stream<Form, ROWS> stream;
    u32 start = cycles();
    if (threadIdx.x == 0) there = n;
    if (warp < warps) stream.begin(a, line, warp, warps);
#pragma unroll 1
    for (u32 turn = 0; turn < unknown(2); turn++) {  // written once: code is fetched anew in every launch
        if (warp < warps) stream.fill(a, line, l, warp, warps, start, turn == 0);
        if (turn == 1) break;
        touch(a);
        previous_kernel_done();
        if (warp == warps) row_there = 1;
        fetch_rows<Form>(a.source, l, ROWS == 1 ? 1 : n);
    }
#ifdef HAS_BULK
    copy_wait<0>();
#endif
    __syncthreads();
    if (warp < warps) stream.run(a, line, l, warp, there);
    walk_pieces<Form, ROWS>(a, line, l, there);
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.made = 0;
#ifndef HAS_BULK
    copy_wait<0>();
#endif
}
