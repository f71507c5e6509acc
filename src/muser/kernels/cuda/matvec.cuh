// One row, or two to four, times up to four weights that read it. Inside library.cu, after quantise.cuh.
//
// matvec_256_R, matvec_32_R, matvec_grid_R(Matvec), R = 1 (bucket 1), 4 (bucket 4): K-quants, 32-blocks, floats; the
//     input must be READY
//     grid   as many thread blocks as there are multiprocessors (fewer where there are fewer outputs), any number is right
//     block  32·(W + R) ≤ 512 (384 for R = 4)
//     dynamic shared bytes, all of it with unit = 256 elements (grid: 128), units = ceil(K/unit), blocks a row
//       N = units (256, grid) or 8·units (32), pitch = the largest group_bytes of the parts (grid: 256):
//         W·stages·32·pitch                            the weights under way; stages 1 … 4
//       + R·units·(272, grid: 256) + R·4·round_up(N, 4)  the quantised rows
//       + 2·R·T + R·4·M                                terms and totals
//         T = 4·32·W (256), 4·36·8·W (32), 8·32·W (grid) bytes
//         M = ceil(ceil(Σ outputs·pitch_p/16 / grid) / (least pitch_p/16)) + 4 outputs of one thread block
//     reads weights before the kernel before has ended; then `source` (see quantise.cuh), *count
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// A thread block owns neighbouring outputs, of each part as many as its share of all bytes. Each warp streams 32 groups
// at a time into its own ring; a lane does a whole group; the t_b go to shared memory, one window (a chunk of every
// warp) behind the other, and the last R warps walk the chains of the window that is complete. At the end of its
// requests a thread block asks for the first bytes of what the next kernel will read (`ahead`).
#pragma once

constexpr int PARTS = 4, CHUNK = 32, MOST_WARPS = 15, MOST_STAGES = 4;
constexpr int OUT_PLAIN = 0, OUT_SILU = 1, OUT_GELU = 2, OUT_LOGITS = 3;  // Matvec::epilogue

struct Part {
    const u8* weights;
    const void* plane;  // Q6_K: d f16; grid: steps f32
    float* out;
    u64 entry;  // of faults
    int outputs, format;
};

// Slice b of `bytes` (one of as many as there are thread blocks): its first `each` bytes.
struct Ahead {
    const u8* from;
    u64 bytes, each;
};

struct Matvec {
    Part parts[PARTS];  // unused: outputs 0, format as a used one's
    Source source;
    Ahead ahead[PARTS];  // unused: bytes 0
    float* out;          // OUT_SILU, OUT_GELU: parts 0 and 1 are gate and up, of as many outputs
    u64 act_entry, scale_entry, cap_entry;
    u64* faults;
    const int* count;
    float scale, cap, inverse_cap;  // OUT_LOGITS: z(x·scale), then z(cap·tanh(x·inverse_cap)); 0: not
    int epilogue, stages, stage_bytes;  // stage_bytes: 32 · pitch
    int slice, pass;                    // of batch.cuh
};

struct K256 {
    static constexpr int WORDS = 1, BLOCKS = 1, UNIT = GROUP, ROW_BYTES = CODES_PITCH;
};
struct K32 {
    static constexpr int WORDS = 8, BLOCKS = 8, UNIT = GROUP, ROW_BYTES = CODES_PITCH;
};
struct Grid {
    static constexpr int WORDS = 2, BLOCKS = 1, UNIT = GRID_BLOCK, ROW_BYTES = GRID_UNIT;
};

// Where term word i stands: for 32-blocks four words in 36 stay empty, against bank conflicts of the chains.
template <typename Form>
INLINE int spread_out(int i) {
    return Form::WORDS == 8 ? i + (i >> 5) * 4 : i;
}

struct Range {  // what a thread block owns of a part
    int first, count, chunk, flat;  // outputs; its first chunk and its first total
};
struct Shares {
    Range ranges[PARTS + 1];  // the last one holds the sums
};

INLINE u32 share(u32 total, u32 b, u32 n) { return total / n * b + total % n * b / n; }  // ⌊total·b/n⌋

// `chunk` counts pieces of `size` out of `units` an output.
INLINE void make_shares(const Matvec& a, Shares& s, int units, int size) {
    u32 p = threadIdx.x, b = blockIdx.x, n = gridDim.x;
    if (p >= 32) return;
    const Part& part = a.parts[p < PARTS ? p : 0];
    u32 outputs = p < PARTS ? (u32)part.outputs : 0, cost = (u32)group_bytes(part.format) / 16, bytes = outputs * cost;
    u32 end = bytes;
#pragma unroll 1
    for (int k = 1; k < PARTS; k *= 2) {
        u32 before = __shfl_up_sync(~0u, end, k);
        if (p >= (u32)k) end += before;
    }
    u32 total = __shfl_sync(~0u, end, PARTS - 1), base = end - bytes;
    u32 low = share(total, b, n), high = share(total, b + 1, n);
    u32 from = low > base ? min(outputs, (low - base + cost - 1) / cost) : 0;
    u32 to = high > base ? min(outputs, (high - base + cost - 1) / cost) : 0;
    if (a.epilogue == OUT_SILU || a.epilogue == OUT_GELU) from = share(outputs, b, n), to = share(outputs, b + 1, n);
    int count = (int)(to - from), chunks = (count * units + size - 1) / size, chunk = 0, flat = 0;
    for (int k = 0; k < PARTS; k++) {
        int more = __shfl_sync(~0u, chunks, k), others = __shfl_sync(~0u, count, k);
        if (k < (int)p) chunk += more, flat += others;
    }
    if (p <= PARTS) s.ranges[p] = {(int)from, count, chunk, flat};
}

INLINE int part_of_chunk(const Shares& s, int c) {
    int p = 0;
    while (p < PARTS - 1 && c >= s.ranges[p + 1].chunk) p++;
    return p;
}
INLINE int part_of_total(const Shares& s, int o) {
    int p = 0;
    while (p < PARTS - 1 && o >= s.ranges[p + 1].flat) p++;
    return p;
}

// --- the ring of one warp ---
__shared__ u64 ring_full[MOST_WARPS * MOST_STAGES], window_full[2], window_empty[2];

INLINE void request(const Matvec& a, const Shares& s, int c, int units, u8* to, u64* full) {
    int lane = threadIdx.x % 32;
    if (c < s.ranges[PARTS].chunk) {
        int p = part_of_chunk(s, c);
        Range range = s.ranges[p];
        int pitch = group_bytes(a.parts[p].format), unit = (c - range.chunk) * CHUNK;
        u32 bytes = (u32)(min(CHUNK, range.count * units - unit) * pitch);
        const u8* from = a.parts[p].weights + ((i64)range.first * units + unit) * pitch;
#ifdef HAS_BULK
        if (lane == 0) barrier_expect(full, bytes), bulk_copy(to, from, bytes, full);
#else
        for (u32 i = 16 * lane; i < bytes; i += 512) copy16(to + i, from + i);
#endif
    }
#ifndef HAS_BULK
    copy_commit();
#endif
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

INLINE void look_ahead(const Matvec& a, int warp, int warps) {
    if (threadIdx.x % 32) return;
#pragma unroll 1
    for (int k = 0; k < PARTS; k++) {
        const Ahead& next = a.ahead[k];
        u64 from = next.bytes * blockIdx.x / gridDim.x & ~127ull;
        u64 bytes = next.bytes == 0 ? 0 : min(next.each, min(next.bytes - from, next.bytes / gridDim.x + 128)) & ~127ull;
        u64 low = bytes * warp / warps & ~127ull, high = bytes * (warp + 1) / warps & ~127ull;
        if (high > low) prefetch(next.from + from + low, (u32)(high - low));
    }
}

// --- terms of one chunk ---
template <int ROWS>
INLINE void unit_terms(K256, int format, const uint4* w, u32 d, const uint4* q, int pieces, float* out, int pitch) {
    if (format == Q4_K) terms_k<Q4_K, ROWS>(w, q, pieces, out, pitch);
    else if (format == Q5_K) terms_k<Q5_K, ROWS>(w, q, pieces, out, pitch);
    else terms_6<ROWS>(w, d, q, pieces, out, pitch);
}
template <int ROWS>
INLINE void unit_terms(K32, int format, const uint4* w, u32, const uint4* q, int pieces, float* out, int pitch) {
    switch (format) {
        case Q8_0: return terms_32<Q8_0, ROWS>(w, q, pieces, out, pitch);
        case Q4_0: return terms_32<Q4_0, ROWS>(w, q, pieces, out, pitch);
        case Q4_1: return terms_32<Q4_1, ROWS>(w, q, pieces, out, pitch);
        case Q5_0: return terms_32<Q5_0, ROWS>(w, q, pieces, out, pitch);
        default: return terms_32<Q5_1, ROWS>(w, q, pieces, out, pitch);
    }
}
template <int ROWS>
INLINE void unit_terms(Grid, int, const uint4* w, u32 step, const uint4* q, int pieces, float* out, int pitch) {
    int dots[ROWS];
    dots_grid<ROWS>(w, q, pieces, threadIdx.x % 8, dots);
    for (int r = 0; r < ROWS; r++)
        *(float2*)(out + r * pitch) = make_float2(__int2float_rn(dots[r]), __uint_as_float(step));
}
// d or step of a unit, from the plane.
INLINE u32 plane_at(K256, const Part& part, i64 unit) { return part.format == Q6_K ? ((const u16*)part.plane)[unit] : 0; }
INLINE u32 plane_at(K32, const Part&, i64) { return 0; }
INLINE u32 plane_at(Grid, const Part& part, i64 unit) { return ((const u32*)part.plane)[unit]; }

struct Layout {
    u8 *ring, *codes;
    float *scales, *terms, *totals, *row;
    int units, blocks, pitch, window;  // blocks of a row's scales; floats of a row's terms in one window
};
template <typename Form, int ROWS>
INLINE Layout layout_of(const Matvec& a, u8* shared, int warps) {
    Layout l;
    l.units = (a.source.width + Form::UNIT - 1) / Form::UNIT;
    l.blocks = (l.units * Form::BLOCKS + 3) / 4 * 4;
    l.window = spread_out<Form>(warps * CHUNK * Form::WORDS);
    l.ring = shared;
    l.codes = shared + warps * a.stages * a.stage_bytes;
    l.scales = (float*)(l.codes + ROWS * l.units * Form::ROW_BYTES);
    l.row = l.terms = l.scales + ROWS * l.blocks;
    l.totals = l.terms + 2 * ROWS * l.window;
    return l;
}

template <typename Form>
struct Lane {  // this lane's unit of a chunk
    int format, b;
    u32 plane;
};
template <typename Form>
INLINE Lane<Form> lane_of(const Matvec& a, const Shares& s, int c, int units) {
    if (c >= s.ranges[PARTS].chunk) return {0, -1, 0};
    int p = part_of_chunk(s, c), unit = (c - s.ranges[p].chunk) * CHUNK + threadIdx.x % 32;
    if (unit >= s.ranges[p].count * units) return {0, -1, 0};
    return {a.parts[p].format, unit % units, plane_at(Form(), a.parts[p], (i64)s.ranges[p].first * units + unit)};
}

template <typename Form, int ROWS>
INLINE void read_weights(const Matvec& a, const Shares& s, const Layout& l, int warp, int warps) {
    int lane = threadIdx.x % 32, chunks = s.ranges[PARTS].chunk, stage = 0;
    u8* ring = l.ring + warp * a.stages * a.stage_bytes;
    u64* full = ring_full + warp * MOST_STAGES;
    u32 phase = 0;
    Lane<Form> next = lane_of<Form>(a, s, warp, l.units);
#pragma unroll 1
    for (int w = 0, c = warp; w * warps < chunks; w++, c += warps) {
        Lane<Form> now = next;
        next = lane_of<Form>(a, s, c + warps, l.units);
        if (c < chunks) await(full + stage, phase, a.stages);
        if (w >= 2) barrier_wait(window_empty + (w & 1), (u32)((w >> 1) - 1) & 1);
        if (now.b >= 0)
            unit_terms<ROWS>(Form(), now.format, (const uint4*)(ring + stage * a.stage_bytes + lane * group_bytes(now.format)),
                             now.plane, (const uint4*)(l.codes + now.b * Form::ROW_BYTES), l.units * Form::ROW_BYTES / 16,
                             l.terms + (w & 1) * ROWS * l.window + spread_out<Form>((warp * CHUNK + lane) * Form::WORDS),
                             l.window);
        __syncwarp();
        int later = c + a.stages * warps;
        request(a, s, later, l.units, ring + stage * a.stage_bytes, full + stage);
        if (later >= chunks && (w == 0 || later - warps < chunks)) look_ahead(a, warp, warps);
        if (lane == 0) barrier_arrive(window_full + (w & 1));
        if (++stage == a.stages) stage = 0, phase ^= 1;
    }
}

// --- the chains ---
// total over blocks b0 … b1 − 1 of a row; `at`: the term word of b0.
INLINE float walk(K256, const float* terms, int at, const float* scales, int b0, int b1, float total) {
#pragma unroll 4
    for (int b = b0; b < b1; b++) total = fma1(scales[b], terms[at + b - b0], total);
    return total;
}
INLINE float walk(K32, const float* terms, int at, const float* scales, int b0, int b1, float total) {
#pragma unroll 4
    for (int k = 8 * b0; k < 8 * b1; k += 4) {
        float4 t = *(const float4*)(terms + spread_out<K32>(at + k - 8 * b0)), s = *(const float4*)(scales + k);
        total = fma1(s.w, t.w, fma1(s.z, t.z, fma1(s.y, t.y, fma1(s.x, t.x, total))));
    }
    return total;
}
INLINE float walk(Grid, const float* terms, int at, const float* scales, int b0, int b1, float total) {
#pragma unroll 4
    for (int b = b0; b < b1; b++) {
        float2 t = *(const float2*)(terms + at + 2 * (b - b0));
        total = fma1(t.x, mul1(t.y, scales[b]), total);
    }
    return total;
}

// One warp a row. `done`: outputs whose chain has ended; of the next one `walked` units are in `carry`.
template <typename Form>
INLINE void walk_chains(const Shares& s, const Layout& l, const float* terms, int stride, const float* scales, float* totals,
                        int warps) {
    int lane = threadIdx.x % 32, outputs = s.ranges[PARTS].flat, done = 0, walked = 0;
    float carry = 0.0f;
#pragma unroll 1
    for (int w = 0; w * warps < s.ranges[PARTS].chunk; w++) {
        int begin = w * warps * CHUNK, end = begin + warps * CHUNK, ended;
        barrier_wait(window_full + (w & 1), (u32)(w >> 1) & 1);
#pragma unroll 1
        do {
            int o = done + lane, p = part_of_total(s, o);
            int start = s.ranges[p].chunk * CHUNK + (o - s.ranges[p].flat) * l.units;
            bool mine = o < outputs && start < end;
            int b0 = lane == 0 ? walked : 0, b1 = mine ? min(l.units, end - start) : b0;
            float total = walk(Form(), terms + (w & 1) * stride, (start + b0 - begin) * Form::WORDS, scales, b0, b1,
                               lane == 0 ? carry : 0.0f);
            if (mine && b1 == l.units) totals[o] = total;
            u32 whole = __ballot_sync(~0u, mine && b1 == l.units), begun = __ballot_sync(~0u, mine);
            ended = __popc(whole);
            int last = min(ended, 31);
            bool part = (begun & ~whole) != 0;  // at most one, and behind all that have ended
            carry = __shfl_sync(~0u, total, last), walked = __shfl_sync(~0u, b1, last);
            if (!part) carry = 0.0f, walked = 0;
            done += ended;
        } while (ended == 32);
        if (lane == 0) barrier_arrive(window_empty + (w & 1));
    }
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

INLINE float finished(const Matvec& a, const Shares& s, const float* total, int i, float v, int r) {
    if (a.epilogue == OUT_SILU || a.epilogue == OUT_GELU) {
        v = z(mul1(activated(v, a.epilogue), z(total[s.ranges[1].flat + i])));
        if (lost(v)) report({a.faults, a.act_entry}, r);
    }
    if (a.epilogue == OUT_LOGITS) {
        if (a.scale != 0.0f) v = stored(mul1(v, a.scale), {a.faults, a.scale_entry}, r);
        if (a.cap != 0.0f) v = stored(mul1(a.cap, tanh1(mul1(v, a.inverse_cap))), {a.faults, a.cap_entry}, r);
    }
    return v;
}
template <int ROWS>
INLINE void write_out(const Matvec& a, const Shares& s, const float* totals, int n) {
    int outputs = s.ranges[PARTS].flat;
    bool gated = a.epilogue == OUT_SILU || a.epilogue == OUT_GELU;
#pragma unroll 1
    for (int r = 0; r < ROWS && r < n; r++) {
        const float* total = totals + r * outputs;
#pragma unroll 1
        for (int i = threadIdx.x; i < outputs; i += blockDim.x) {
            int p = part_of_total(s, i), o = i - s.ranges[p].flat + s.ranges[p].first;
            float v = stored(total[i], {a.faults, a.parts[p].entry}, r);
            if (gated && p) continue;
            float* out = gated ? a.out : a.parts[p].out;
            out[(i64)r * a.parts[p].outputs + o] = finished(a, s, total, i, v, r);
        }
    }
}

template <typename Form, int ROWS>
INLINE void matvec(const Matvec& a) {
    SHARED_BYTES(shared);
    __shared__ Shares shares;
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 - ROWS;
    Layout l = layout_of<Form, ROWS>(a, shared, warps);
    next_kernel_may_start();
    make_shares(a, shares, l.units, CHUNK);
    if (threadIdx.x % 32 == 0) {  // lanes of one warp would do it one by one
        if (warp < warps)
            for (int i = 0; i < a.stages; i++) barrier_init(ring_full + warp * MOST_STAGES + i, 1);
        else if (warp == warps)
            for (int i = 0; i < 2; i++) barrier_init(window_full + i, warps), barrier_init(window_empty + i, ROWS);
    }
#ifdef HAS_BULK
    barrier_fence();
#endif
    __syncthreads();
    if (warp < warps)
#pragma unroll 1
        for (int i = 0; i < a.stages; i++)
            request(a, shares, warp + i * warps, l.units, l.ring + (warp * a.stages + i) * a.stage_bytes,
                    ring_full + warp * MOST_STAGES + i);
    previous_kernel_done();
    int n = *a.count;
#pragma unroll 1
    for (int r = 0; r < ROWS && (r == 0 || r < n); r++) fetch_row<Form>(a.source, l, r);
    __syncthreads();
    if (warp < warps) read_weights<Form, ROWS>(a, shares, l, warp, warps);
    else
        walk_chains<Form>(shares, l, l.terms + (warp - warps) * l.window, ROWS * l.window, l.scales + (warp - warps) * l.blocks,
                          l.totals + (warp - warps) * shares.ranges[PARTS].flat, warps);
    __syncthreads();
    write_out<ROWS>(a, shares, l.totals, n);
}
