// One row, or two to four, times up to four weights that read it. Inside library.cu, after quantise.cuh.
//
// matvec_256_R, matvec_32_R, matvec_grid_R(Matvec), R = 1 (bucket 1), 4 (bucket 4): K-quants, 32-blocks, floats; the
//     input must be READY
//     grid   as many thread blocks as there are multiprocessors (fewer where there are fewer outputs), any number is right
//     block  32·W ≤ 512 (384 for R = 4)
//     dynamic shared bytes, all of it with unit = 256 elements (grid: 128), U = ceil(K/unit), N blocks a row = U (256,
//       grid) or 8·U (32), T words of an output's terms = U|1 (256), 8·U + 4 (32), 2·(U|1) (grid), P = a.pass:
//         W·stages·stage_bytes                the weights under way; stages 1 … 4
//       + R·U·(272, grid: 256) + R·4·round_up(N, 4)   the quantised rows
//       + R·P·64·T                            the terms of P segments (an even number with a gate)
//       + 16·S      S segments of one thread block: at most ceil(M/16) + 2·parts of M outputs,
//         M = ceil(ceil(Σ outputs·B_p/16 / a.split.full) / (least B_p/16)) + 4, B_p the bytes of a unit
//     reads weights before the kernel before has ended; then `source` (see quantise.cuh), *count
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// A thread block owns neighbouring outputs, of each part as many as its share of all bytes: segments, which are what it
// owns of a tile. A chunk is two units of a segment. Each warp streams chunks into its own ring, and a lane does one
// output's unit; half a warp reads the same piece of the row. The t_b go to shared memory. When P segments are complete,
// one thread an output walks its chain, while the ring goes on to fetch. A thread block that begins when the row is there
// already, since its multiprocessor was the last to be free, fetches the row first: behind what fills its rings it would wait
// for microseconds.
#pragma once

constexpr int PARTS = 4, SPAN = 2, MOST_WARPS = 16, MOST_STAGES = 4;
constexpr int OUT_PLAIN = 0, OUT_SILU = 1, OUT_GELU = 2, OUT_LOGITS = 3;  // Matvec::epilogue

struct Part {
    const u8* weights;
    float* out;
    u64 entry;  // of faults
    int outputs, format;
    u32 base;     // Σ outputs·cost of the parts before; cost: 16-byte pieces of an output's unit
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
    Split split;  // of Σ outputs·cost; with a gate of the outputs of one part
    u32 makers;
    u32 by_spans;  // ⌊2¹⁶ / chunks of a segment⌋ + 1
    u32 pause;     // nanoseconds before the first request: what makes the rows has memory to itself meanwhile
    float scale, cap, inverse_cap;  // OUT_LOGITS: z(x·scale), then z(cap·tanh(x·inverse_cap)); 0: not
    int epilogue, stages, stage_bytes;
    int slice;  // of batch.cuh
    int pass;
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
struct Range {  // of a part
    int first, count, segment, flat;  // outputs; its first segment and its first total
};
struct Shares {
    Range ranges[PARTS + 1];  // the last one holds the sums
};

INLINE u32 split_at(const Split& s, u32 b) {
    return b <= s.full ? s.each * b + __umulhi(s.rest * b, s.by_full) : s.total - (gridDim.x - b) * s.last;
}
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

// --- the ring of one warp ---
__shared__ u64 ring_full[MOST_WARPS * MOST_STAGES];

INLINE void fetch(u8* to, const u8* from, int bytes, u64* full) {
#ifdef HAS_BULK
    bulk_copy_once(to, from, (u32)bytes, full);
#else
    for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512) copy16(to + i, from + i);
#endif
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
    Segment* segments;
    int units, blocks, pitch, window;  // blocks of a row's scales; floats of an output's terms, of a row's in one pass
};
template <typename Form, int ROWS>
INLINE Layout layout_of(const Matvec& a, u8* shared, int warps) {
    Layout l;
    l.units = (a.source.width + Form::UNIT - 1) / Form::UNIT;
    l.blocks = (l.units * Form::BLOCKS + 3) / 4 * 4;
    l.pitch = Form::pitch(l.units), l.window = a.pass * TILE_OUTPUTS * l.pitch;
    l.ring = shared;
    l.codes = shared + warps * a.stages * a.stage_bytes;
    l.scales = (float*)(l.codes + ROWS * l.units * Form::ROW_BYTES);
    l.terms = l.scales + ROWS * l.blocks;
    l.segments = (Segment*)(l.terms + ROWS * l.window);
    return l;
}

struct ChunkAt {
    int segment, span;
};

// Chunks of one warp, in order; it goes on where it stopped.
template <typename Form, int ROWS>
struct Stream {
    ChunkAt at, next, step;  // to be multiplied; to be requested; from one to the next
    int spans, stage;
    u32 phase;

    MEMBER void forward(ChunkAt& spot) {
        spot.segment += step.segment, spot.span += step.span;
        if (spot.span >= spans) spot.span -= spans, spot.segment++;
    }
    MEMBER void ask(const Matvec& a, const Shares& s, const Layout& l, int warp, u8* to, u64* full) {
        int unit = SPAN * next.span;
        if (next.segment < s.ranges[PARTS].segment)
            request(l.segments[next.segment], unit, min(SPAN, l.units - unit), to, full);
#ifndef HAS_BULK
        copy_commit();
#endif
        forward(next);
    }
    MEMBER void begin(const Matvec& a, const Shares& s, const Layout& l, int warp, int warps) {
        spans = (l.units + SPAN - 1) / SPAN, stage = 0, phase = 0;
        int first = (int)(warp * a.by_spans >> 16), each = (int)(warps * a.by_spans >> 16);
        at = next = {first, warp - first * spans}, step = {each, warps - each * spans};
#pragma unroll 1
        for (int i = 0; i < a.stages; i++)
            ask(a, s, l, warp, l.ring + (warp * a.stages + i) * a.stage_bytes, ring_full + warp * MOST_STAGES + i);
    }
    // Terms of the chunks of segments `from` … `end` − 1.
    MEMBER void run(const Matvec& a, const Shares& s, const Layout& l, int warp, int warps, int from, int end) {
        int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
#pragma unroll 1
        while (at.segment < end) {
            Segment g = l.segments[at.segment];
            int unit = SPAN * at.span + half;
            u64* full = ring_full + warp * MOST_STAGES + stage;
            u8* here = l.ring + (warp * a.stages + stage) * a.stage_bytes;
            const u8* tile = here + half * g.bytes();
            await(full, phase, a.stages);
            if (unit < l.units && (u32)(row - g.first()) < (u32)g.count())
                unit_terms<ROWS>(Form(), g.format(), (const uint4*)(tile + row * g.unit_bytes()),
                                 tile + TILE_OUTPUTS * g.unit_bytes(), row,
                                 (const uint4*)(l.codes + unit * Form::ROW_BYTES), l.units * Form::ROW_BYTES / 16,
                                 l.terms + ((at.segment - from) * TILE_OUTPUTS + row) * l.pitch + unit * Form::WORDS,
                                 l.window);
            __syncwarp();
            ask(a, s, l, warp, here, full);
            forward(at);
            if (++stage == a.stages) stage = 0, phase ^= 1;
        }
    }
};

// --- the chains: the total over all blocks of a row ---
INLINE float walk(K256, const float* terms, const float* scales, int units) {
    constexpr int SOME = 8;  // loads under way
    float total = 0.0f;
    int b = 0;
#pragma unroll 1
    for (; b + SOME <= units; b += SOME) {
        float s[SOME], t[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) s[i] = scales[b + i], t[i] = terms[b + i];
#pragma unroll
        for (int i = 0; i < SOME; i++) total = fma1(s[i], t[i], total);
    }
#pragma unroll 2
    for (; b < units; b++) total = fma1(scales[b], terms[b], total);
    return total;
}
INLINE float walk(K32, const float* terms, const float* scales, int units) {
    float total = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 8 * units; k += 4) {
        float4 t = *(const float4*)(terms + k), s = *(const float4*)(scales + k);
        total = fma1(s.w, t.w, fma1(s.z, t.z, fma1(s.y, t.y, fma1(s.x, t.x, total))));
    }
    return total;
}
INLINE float walk(Grid, const float* terms, const float* scales, int units) {
    float total = 0.0f;
#pragma unroll 4
    for (int b = 0; b < units; b++) {
        float2 t = *(const float2*)(terms + 2 * b);
        total = fma1(t.x, mul1(t.y, scales[b]), total);
    }
    return total;
}

// --- in and out ---
template <typename Form>
INLINE void fetch_row(const Source& s, const Layout& l, int r) {  // a quantised row into shared memory
    int from_blocks = Form::UNIT == GRID_BLOCK ? l.units : l.units * Form::BLOCKS;
    const uint4* from = (const uint4*)(s.codes + (i64)r * l.units * Form::ROW_BYTES);
    uint4* to = (uint4*)(l.codes + r * l.units * Form::ROW_BYTES);
#pragma unroll 4
    for (int i = threadIdx.x; i < l.units * Form::ROW_BYTES / 16; i += blockDim.x) to[i] = from[i];
    for (int i = threadIdx.x; i < from_blocks; i += blockDim.x)
        l.scales[r * l.blocks + i] = s.scales[(i64)r * from_blocks + i];
}
INLINE float activated(float gate, int epilogue) { return epilogue == OUT_SILU ? silu1(gate) : gelu1(gate); }

INLINE float finished(const Matvec& a, const Part& part, float total, int r) {
    float v = stored(total, {a.faults, part.entry}, r);
    if (a.epilogue != OUT_LOGITS) return v;
    if (a.scale != 0.0f) v = stored(mul1(v, a.scale), {a.faults, a.scale_entry}, r);
    if (a.cap != 0.0f) v = stored(mul1(a.cap, tanh1(mul1(v, a.inverse_cap))), {a.faults, a.cap_entry}, r);
    return v;
}
// The outputs of segments `from` … `end` − 1, with a gate of every second one.
template <typename Form>
INLINE void write_out(const Matvec& a, const Layout& l, int from, int end, int n) {
    bool gated = is_gated(a);
    int each = gated ? 2 : 1, slots = (end - from) / each * TILE_OUTPUTS;
#pragma unroll 1
    for (int i = threadIdx.x; i < n * slots; i += blockDim.x) {
        int r = i / slots, slot = i % slots, row = slot % TILE_OUTPUTS, segment = slot / TILE_OUTPUTS * each;
        const Segment& g = l.segments[from + segment];
        if ((u32)(row - g.first()) >= (u32)g.count()) continue;
        const float *terms = l.terms + r * l.window + (segment * TILE_OUTPUTS + row) * l.pitch, *scales = l.scales + r * l.blocks;
        const Part& part = a.parts[g.part()];
        float v = finished(a, part, walk(Form(), terms, scales, l.units), r);
        float* out = part.out;
        if (gated) {
            float up = finished(a, a.parts[1], walk(Form(), terms + TILE_OUTPUTS * l.pitch, scales, l.units), r);
            v = stored(mul1(activated(v, a.epilogue), up), {a.faults, a.act_entry}, r);
            out = a.out;
        }
        out[(i64)r * part.outputs + g.output + row] = v;
    }
}

template <typename Form, int ROWS>
INLINE void matvec(const Matvec& a) {
    SHARED_BYTES(shared);
    __shared__ Shares shares;
    __shared__ int there;  // rows: not in a register meanwhile
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    next_kernel_may_start();
    int n = min(*a.count, ROWS);
    bool late = *(const volatile u32*)a.made == a.makers;
    if (threadIdx.x % 32 == 0)  // lanes of one warp would do it one by one
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) barrier_init(ring_full + warp * MOST_STAGES + i, 1);
#ifdef HAS_BULK
    barrier_fence();
#endif
    Layout l = layout_of<Form, ROWS>(a, shared, warps);
    make_segments(a, shares, l.units, l.segments);
    __syncthreads();
    int segments = shares.ranges[PARTS].segment;
    Stream<Form, ROWS> stream;
    if (threadIdx.x == 0) there = n;
#pragma unroll 1
    for (u32 turn = 0; turn < unknown(2); turn++) {  // written once: code is fetched anew in every launch
        if (late == (turn == 1)) {
            if (turn == 0 && a.pause) __nanosleep(a.pause);
            stream.begin(a, shares, l, warp, warps);
        }
        if (turn == 1) break;
        touch(a);
        previous_kernel_done();
#pragma unroll 1
        for (int r = 0; r < ROWS && (r == 0 || r < n); r++) fetch_row<Form>(a.source, l, r);
    }
    __syncthreads();
#pragma unroll 1
    for (int from = 0; from < segments; from += a.pass) {
        int end = min(from + a.pass, segments);
        stream.run(a, shares, l, warp, warps, from, end);
        __syncthreads();
        write_out<Form>(a, l, from, end, there);
        if (end < segments) __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.made = 0;
#ifndef HAS_BULK
    copy_wait<0>();
#endif
}
