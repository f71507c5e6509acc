// Up to sixteen rows (bucket 16, and any fewer) times up to four weights, on 8-bit matrix units. Inside
// library.cu, after matvec.cuh: the same struct, parts, shares of thread blocks and epilogues; the input
// must be READY.
//
// batch_256, batch_32, batch_grid(Matvec): K-quants, 32-blocks, floats
//     grid   as many thread blocks as there are multiprocessors, or fewer outputs; any number is right
//     block  32·(W + 1) ≤ 512 (384 for batch_32, batch_grid, and for all of them except on sm_90): W warps that multiply,
//            one that fetches the rows
//     dynamic shared bytes; a job has C = 2 groups (batch_32: 1; batch_grid: 2 units of 128); S = a.slice
//       units of the rows at a time (a multiple of C; all of them or fewer); P = a.pass tiles at a time (a
//       multiple of 4, at most 252; slices·passes and jobs of a tile times passes stay below 65,536);
//       N blocks a row, M as in matvec.cuh:
//         W·stages·stage_bytes                stage_bytes = C tiles, the largest of the parts
//       + (S < units ? 2 : 1)·16·pitch(S·272, grid: S·256)
//       + 64·N                                the rows' scales
//       + 1028·P                              chains that are under way
//       + 16 for each segment, as many as in matvec.cuh
//       + 64·M with a gate
//       pitch(n): grid: n rounded up to 64, plus 64 if that is an even number of them; else the same with 32
//     reads weights before the kernel before has ended; then source.codes, source.scales, *count
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// A job is 16 outputs × C groups × 16 rows. Consecutive jobs are the tiles of a set of four, then the
// next groups of the same set, the next set, the next slice of the rows, the next pass, and warps take
// them in turn. A warp computes the t_b of its job in registers, waits until the chain of its tile has
// come so far, continues it, and hands it on: products in any order, chains in theirs. The order of k
// within a block of 32 is free too: a lane takes eight neighbouring codes of a weight and of a row.
#pragma once

constexpr int SET = 4;

struct B256 : K256 {
    static constexpr int SPAN = 2, STEP = 32;
};
struct B32 : K32 {
    static constexpr int SPAN = 1, STEP = 32;
};
struct BGrid : Grid {
    static constexpr int SPAN = 2, STEP = 64;
};

template <typename Form>
INLINE int padded(int bytes) {  // an odd number of STEPs: eight rows then meet no bank twice
    return ((bytes + Form::STEP - 1) / Form::STEP | 1) * Form::STEP;
}

struct Spot16 {          // this lane's place in a 16×8 accumulator
    int row, pair, column;  // outputs `row` and row + 8; rows 2·pair and 2·pair + 1 of each eight; row `column` to multiply
};
// Four neighbouring outputs of a tile would meet in the banks of shared memory; every second one does not.
INLINE Spot16 spot16() {
    int lane = threadIdx.x % 32, place = lane / 4;
    return {place % 4 * 2 + place / 4, lane % 4, place};
}

// What a lane multiplies: the weights of outputs `row` and row + 8, the codes of rows `row` and row + 8
// of the input.
struct Operands {
    const u8 *w, *q;
    int w8, q8;      // bytes from one to the other
    const u8* sums;  // of input row 2·pair
    int q1;          // bytes from one input row to the next
    u32 plane[2];
};
INLINE uint2 pair_of(const u8* p) { return *(const uint2*)p; }
INLINE uint4 quad_of(const u8* p) { return *(const uint4*)p; }
INLINE const u8* sums_of(const Operands& o, int i) {
    return o.sums + (i & 1) * o.q1 + (i >> 1) * o.q8;
}  // rows 0, 1, 8, 9

// sum[n][2h + i] += scale[h] · (a · rows 8n …), for outputs row + 8h and rows 2·pair + i.
INLINE void add_scaled(int (&sum)[2][4], const u32 (&a)[4], const uint2 (&b)[2], int scale, int scale8) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int c[4] = {0, 0, 0, 0};
        mma_s8(c, a, b[n].x, b[n].y);
        sum[n][0] += scale * c[0], sum[n][1] += scale * c[1];
        sum[n][2] += scale8 * c[2], sum[n][3] += scale8 * c[3];
    }
}
INLINE void rows_at(const Operands& o, int at, uint2 (&b)[2]) {
    b[0] = pair_of(o.q + at), b[1] = pair_of(o.q + o.q8 + at);
}

// --- t_b of one group: t[b][4n + 2h + i] ---
template <int FORMAT>
INLINE void tile_k(const Operands& o, int pair, float* t) {
    constexpr int CODES = FORMAT == Q5_K ? 48 : 16;
    uint4 head = quad_of(o.w), head8 = quad_of(o.w + o.w8);
    Scales s = read_scales(head.y, head.z, head.w), s8 = read_scales(head8.y, head8.z, head8.w);
    uint2 h = {0, 0}, h8 = {0, 0};
    if (FORMAT == Q5_K) h = pair_of(o.w + 16 + 8 * pair), h8 = pair_of(o.w + o.w8 + 16 + 8 * pair);
    int sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const u8* at = o.w + CODES + k / 2 * 32 + 8 * pair;
        uint2 w = pair_of(at), w8 = pair_of(at + o.w8), b[2];
        int shift = k & 1 ? 4 : 0;
        u32 a[4] = {w.x >> shift & 0x0f0f0f0fu, w8.x >> shift & 0x0f0f0f0fu, w.y >> shift & 0x0f0f0f0fu,
                    w8.y >> shift & 0x0f0f0f0fu};
        if (FORMAT == Q5_K)
            a[0] |= fifth(h.x, k), a[1] |= fifth(h8.x, k), a[2] |= fifth(h.y, k), a[3] |= fifth(h8.y, k);
        rows_at(o, 32 * k + 8 * pair, b);
        add_scaled(sum, a, b, scale_of(s, k), scale_of(s8, k));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 sums = quad_of(sums_of(o, i));
        int n = i >> 1, c = i & 1;
        t[4 * n + c] = with_min(head.x, sum[n][c], min_sum(sums, s));
        t[4 * n + 2 + c] = with_min(head8.x, sum[n][2 + c], min_sum(sums, s8));
    }
}

INLINE void tile_6(const Operands& o, int pair, float* t) {
    uint4 s = quad_of(o.w), s8 = quad_of(o.w + o.w8);
    u32 front = pair < 2 ? ~0u : 0;  // a lane's eight codes stand in one half of the 32
    int sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        int h = k >> 2, part = k & 3, right = part & 2 ? 4 : 0, shift = 2 * part;
        const u8 *at = o.w + 16 + 64 * h + 32 * (part & 1) + 8 * pair, *high = o.w + 144 + 32 * h + 8 * pair;
        uint2 w = pair_of(at), w8 = pair_of(at + o.w8), p = pair_of(high), p8 = pair_of(high + o.w8), b[2];
        u32 all[4] = {six_bits(w.x >> right, p.x, shift), six_bits(w8.x >> right, p8.x, shift),
                      six_bits(w.y >> right, p.y, shift), six_bits(w8.y >> right, p8.y, shift)};
        rows_at(o, 32 * k + 8 * pair, b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 keep = i ? ~front : front;
            u32 a[4] = {all[0] & keep, all[1] & keep, all[2] & keep, all[3] & keep};
            add_scaled(sum, a, b, byte_of(s, 2 * k + i), byte_of(s8, 2 * k + i));
        }
    }
    float d = half_to_float(o.plane[0]), d8 = half_to_float(o.plane[1]);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) t[4 * n + c] = mul1(c < 2 ? d : d8, __int2float_rn(sum[n][c]));
}

// Eight neighbouring codes of block j, not centred: the low nibbles are elements 0 to 15, the high ones
// 16 to 31.
template <int FORMAT>
INLINE uint2 codes_32(const u8* group, int j, int pair) {
    using Form = Form32<FORMAT>;
    if (FORMAT == Q8_0) return pair_of(group + 16 + 32 * j + 8 * pair);
    uint2 w = pair_of(group + 16 * (Form::HEAD + j) + 8 * (pair & 1));
    int shift = pair & 2 ? 4 : 0;
    w.x = w.x >> shift & 0x0f0f0f0fu, w.y = w.y >> shift & 0x0f0f0f0fu;
    if (Form::FIFTHS) {
        u32 h = *(const u32*)(group + 16 * Form::HEAD - 32 + 4 * j) >> (8 * pair);
        w.x |= spread(h), w.y |= spread(h >> 4);
    }
    return w;
}

template <int FORMAT>
INLINE void tile_32(const Operands& o, int pair, float* t) {
    using Form = Form32<FORMAT>;
    constexpr bool SUMS = Form::OFFSET || Form::CENTRE != 0;
    uint4 d = quad_of(o.w), d8 = quad_of(o.w + o.w8), m = d, m8 = d8;
    if (Form::OFFSET) m = quad_of(o.w + 16), m8 = quad_of(o.w + o.w8 + 16);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint2 w = codes_32<FORMAT>(o.w, j, pair), w8 = codes_32<FORMAT>(o.w + o.w8, j, pair), b[2];
        u32 a[4] = {w.x, w8.x, w.y, w8.y};
        rows_at(o, 32 * j + 8 * pair, b);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            int c[4] = {0, 0, 0, 0};
            mma_s8(c, a, b[n].x, b[n].y);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int sum = SUMS ? *(const i16*)(sums_of(o, 2 * n + i) + 2 * j) : 0;
                t[8 * j + 4 * n + i] = term_32<FORMAT>(c[i], sum, half_of(d, j), half_of(m, j));
                t[8 * j + 4 * n + 2 + i] = term_32<FORMAT>(c[2 + i], sum, half_of(d8, j), half_of(m8, j));
            }
        }
    }
}

// A weight's code is 256·high + low, low without sign: two permutations make both of two words.
INLINE void tile_grid(const Operands& o, int pair, float* t) {
    int hh[2][4] = {}, hl[2][4] = {}, lh[2][4] = {}, ll[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int at = 64 * k + 16 * pair;
        uint4 w = quad_of(o.w + at), w8 = quad_of(o.w + o.w8 + at);
        u32 low[4] = {__byte_perm(w.x, w.y, 0x6420), __byte_perm(w8.x, w8.y, 0x6420),
                      __byte_perm(w.z, w.w, 0x6420), __byte_perm(w8.z, w8.w, 0x6420)};
        u32 high[4] = {__byte_perm(w.x, w.y, 0x7531), __byte_perm(w8.x, w8.y, 0x7531),
                       __byte_perm(w.z, w.w, 0x7531), __byte_perm(w8.z, w8.w, 0x7531)};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint4 x = quad_of(o.q + n * o.q8 + at);
            mma_s8(hh[n], high, x.z, x.w), mma_s8(hl[n], high, x.x, x.y);
            mma_u8(lh[n], low, x.z, x.w), mma_u8(ll[n], low, x.x, x.y);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            u32 high = ((u32)hh[n][c] << 7) + (u32)hl[n][c], low = ((u32)lh[n][c] << 7) + (u32)ll[n][c];
            t[4 * n + c] = __int2float_rn((int)((high << 8) + low));
        }
}

INLINE void tile_terms(B256, int format, const Operands& o, int pair, float* t) {
    if (format == Q4_K) tile_k<Q4_K>(o, pair, t);
    else if (format == Q5_K) tile_k<Q5_K>(o, pair, t);
    else tile_6(o, pair, t);
}
INLINE void tile_terms(B32, int format, const Operands& o, int pair, float* t) {
    switch (format) {
        case Q8_0: return tile_32<Q8_0>(o, pair, t);
        case Q4_0: return tile_32<Q4_0>(o, pair, t);
        case Q4_1: return tile_32<Q4_1>(o, pair, t);
        case Q5_0: return tile_32<Q5_0>(o, pair, t);
        default: return tile_32<Q5_1>(o, pair, t);
    }
}
INLINE void tile_terms(BGrid, int, const Operands& o, int pair, float* t) { tile_grid(o, pair, t); }

// --- jobs ---
struct Batch {  // what a thread block knows of its work
    u8 *ring, *rows;
    float *scales, *chains, *totals;
    u32* turn;  // jobs of each slot that are done
    Segment* segments;
    int units, pitch, slice, slices, tiles, pass,
        passes;                           // `pass` tiles at a time, all their slices one after another
    int spans, last_spans, jobs, rounds;  // jobs of a tile in a slice, in the last slice; all jobs
};
template <typename Form>
INLINE Batch batch_of(const Matvec& a, const Shares& s, u8* shared, int warps) {
    Batch b;
    b.units = (a.source.width + Form::UNIT - 1) / Form::UNIT, b.tiles = s.ranges[PARTS].segment;
    b.slice = min(a.slice, b.units), b.slices = (b.units + b.slice - 1) / b.slice;
    b.pass = a.pass, b.passes = (b.tiles + b.pass - 1) / b.pass;
    b.spans = (b.slice + Form::SPAN - 1) / Form::SPAN;
    b.last_spans = (b.units - (b.slices - 1) * b.slice + Form::SPAN - 1) / Form::SPAN;
    b.jobs = b.tiles * ((b.slices - 1) * b.spans + b.last_spans);
    b.rounds = b.slices == 1 ? 1 : b.slices * b.passes;
    b.pitch = padded<Form>(b.slice * Form::ROW_BYTES);
    b.ring = shared, b.rows = shared + warps * a.stages * a.stage_bytes;
    b.scales = (float*)(b.rows + (b.slices > 1 ? 2 : 1) * 16 * b.pitch);
    b.chains = b.scales + 16 * b.units * Form::BLOCKS;
    b.turn = (u32*)(b.chains + 256 * b.pass), b.segments = (Segment*)(b.turn + b.pass);
    b.totals = (float*)(b.segments + b.tiles);
    return b;
}

struct Job {
    int unit, count, slot;  // first unit and how many (0: no job); the chain's place
    int segment;
    int round, index;  // which fetch of the rows; how many jobs of its slot come before
};
template <typename Form>
INLINE uint4 packed_job(const Batch& b, int j) {
    if (j >= b.jobs) return make_uint4(0, 0, 0, 0);
    int total = (b.slices - 1) * b.spans + b.last_spans, pass = min(j / (b.pass * total), b.passes - 1);
    int rest = j - pass * b.pass * total, tiles = min(b.pass, b.tiles - pass * b.pass);
    int slice = min(rest / (tiles * b.spans), b.slices - 1),
        spans = slice == b.slices - 1 ? b.last_spans : b.spans;
    rest -= slice * tiles * b.spans;
    int set = rest / (SET * spans), width = min(SET, tiles - set * SET);
    rest -= set * SET * spans;
    int span = rest / width, slot = set * SET + rest % width, tile = pass * b.pass + slot,
        index = pass * total + slice * b.spans + span;
    int unit = slice * b.slice + span * Form::SPAN,
        count = min(Form::SPAN, min((slice + 1) * b.slice, b.units) - unit);
    int round = b.slices == 1 ? 0 : pass * b.slices + slice;
    return make_uint4((u32)unit | (u32)slot << 16 | (u32)count << 24, (u32)round | (u32)index << 16, (u32)tile, 0);
}
// The next jobs of each warp, worked out sixteen at a time.
constexpr int KNOWN = 32;
__shared__ __align__(16) uint4 known_jobs[(MOST_WARPS - 1) * KNOWN];
__shared__ Batch work;  // for them alone: what the products do not need stays out of registers

template <typename Form>
INLINE void know_jobs(int from) {  // jobs from … from + 15 of this warp
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 - 1, i = from + threadIdx.x % 16;
    if (threadIdx.x % 32 < 16)
        known_jobs[warp * KNOWN + i % KNOWN] = packed_job<Form>(work, warp + i * warps);
    __syncwarp();
}
INLINE Job job_at(int i) {
    uint4 p = known_jobs[threadIdx.x / 32 * KNOWN + i % KNOWN];
    Job r;
    r.unit = (int)(p.x & 0xffff), r.slot = (int)(p.x >> 16 & 255), r.count = (int)(p.x >> 24 & 3);
    r.round = (int)(p.y & 0xffff), r.index = (int)(p.y >> 16), r.segment = (int)p.z;
    return r;
}

// A job's weights into a stage; a group of copies even where there is no job, so that they can be counted.
INLINE void request_tile(const Batch& b, const Job& job, u8* to, u64* full) {
    if (job.count) request(b.segments[job.segment], job.unit, job.count, to, full);
#ifndef HAS_BULK
    copy_commit();
#endif
}

// What stands behind a tile for outputs row + 8h: d of Q6_K, the steps of a grid.
INLINE u32 apart_at(B256, const Segment& g, const u8* behind, int row) {
    return g.format() == Q6_K ? ((const u16*)behind)[row] : 0;
}
INLINE u32 apart_at(B32, const Segment&, const u8*, int) { return 0; }
INLINE u32 apart_at(BGrid, const Segment&, const u8* behind, int row) { return ((const u32*)behind)[row]; }

struct Planes {
    u32 v[2][2];  // of unit i and output row + 8h
};

// --- chains ---
INLINE void advance(B256, const Batch& b, int unit, const u32 (&)[2], const float* t, float (&total)[8]) {
    const float* s = b.scales + 16 * unit + 2 * spot16().pair;
#pragma unroll
    for (int k = 0; k < 8; k++) total[k] = fma1(s[(k >> 2) * 8 + (k & 1)], t[k], total[k]);
}
INLINE void advance(B32, const Batch& b, int unit, const u32 (&)[2], const float* t, float (&total)[8]) {
    const float* s = b.scales + 128 * unit + 2 * spot16().pair;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            total[k] = fma1(s[16 * j + (k >> 2) * 8 + (k & 1)], t[8 * j + k], total[k]);
}
INLINE void advance(BGrid, const Batch& b, int unit, const u32 (&steps)[2], const float* t,
                    float (&total)[8]) {
    const float* s = b.scales + 16 * unit + 2 * spot16().pair;
#pragma unroll
    for (int k = 0; k < 8; k++)
        total[k] = fma1(t[k], mul1(__uint_as_float(steps[k >> 1 & 1]), s[(k >> 2) * 8 + (k & 1)]), total[k]);
}

INLINE void end_tile(const Matvec& a, const Shares& s, const Batch& b, const Job& job,
                     const float (&total)[8], int n, bool gated) {
    Spot16 spot = spot16();
    const Segment& g = b.segments[job.segment];
    const Part& part = a.parts[g.part()];
    int flat = s.ranges[g.part()].flat - s.ranges[g.part()].first;
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
        int row = spot.row + 8 * h, o = g.output + row;
        if ((u32)(row - g.first()) >= (u32)g.count()) continue;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int r = (k >> 1) * 8 + 2 * spot.pair + (k & 1);
            float v = h ? total[(k >> 1) * 4 + 2 + (k & 1)] : total[(k >> 1) * 4 + (k & 1)];
            if (r >= n) continue;
            if (gated) b.totals[(flat + o) * 16 + r] = v;
            else part.out[(i64)r * part.outputs + o] = finished(a, part, v, r);
        }
    }
}

// A count, not a barrier: a job may wait for one that is many turns away.
INLINE void wait_turn(const u32* turn, u32 index) {
    while (*(const volatile u32*)turn != index) __nanosleep(16);
    __threadfence_block();
}
INLINE void pass_turn(u32* turn, u32 index) {
    __threadfence_block();
    *(volatile u32*)turn = index;
}

template <typename Form>
INLINE void hand_on(const Matvec& a, const Shares& s, const Batch& b, const Job& job, const float* t,
                    const Planes& planes, int n, bool gated) {
    int lane = threadIdx.x % 32;
    bool last = job.unit + job.count == b.units;
    float total[8] = {};
    float4* chain = (float4*)(b.chains + 256 * job.slot) + lane;
    wait_turn(b.turn + job.slot, (u32)job.index);
    if (job.unit) {
        float4 x = chain[0], y = chain[32];
        total[0] = x.x, total[1] = x.y, total[2] = x.z, total[3] = x.w;
        total[4] = y.x, total[5] = y.y, total[6] = y.z, total[7] = y.w;
    }
#pragma unroll
    for (int i = 0; i < Form::SPAN; i++)
        if (i < job.count) advance(Form(), b, job.unit + i, planes.v[i], t + 8 * Form::BLOCKS * i, total);
    if (!last) {
        chain[0] = make_float4(total[0], total[1], total[2], total[3]);
        chain[32] = make_float4(total[4], total[5], total[6], total[7]);
    }
    __syncwarp();
    if (lane == 0) pass_turn(b.turn + job.slot, (u32)job.index + 1);
    if (last) end_tile(a, s, b, job, total, n, gated);
}

__shared__ u64 rows_full[2], rows_empty[2];

// The warp that fetches the rows, a slice at a time.
template <typename Form>
INLINE void fetch_slices(const Matvec& a, const Batch& b, int n) {
    int lane = threadIdx.x % 32;
    for (int i = 0; i < b.rounds; i++) {
        int begin = i % b.slices * b.slice,
            pieces = (min(begin + b.slice, b.units) - begin) * Form::ROW_BYTES / 16;
        if (i >= 2) barrier_wait(rows_empty + (i & 1), (u32)((i >> 1) - 1) & 1);
        for (int r = 0; r < n; r++) {
            const u8* from = a.source.codes + ((i64)r * b.units + begin) * Form::ROW_BYTES;
            u8* to = b.rows + ((i & 1) * 16 + r) * b.pitch;
            for (int k = lane; k < pieces; k += 32) copy16(to + 16 * k, from + 16 * k);
        }
        copy_commit();
        copy_wait<0>();
        barrier_arrive(rows_full + (i & 1));
    }
}
// A warp goes on to the next fetch: all of them pass all of them, whether they have a job there or not.
INLINE void next_round(int& round) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(rows_empty + (round & 1));
    round++;
    barrier_wait(rows_full + (round & 1), (u32)(round >> 1) & 1);
}

template <typename Form>
INLINE void multiply(const Matvec& a, const Shares& s, const Batch& b, u8* ring, int n, bool gated) {
    Spot16 spot = spot16();
    int warp = threadIdx.x / 32, round = 0, stage = 0;
    u64* full = ring_full + warp * MOST_STAGES;
    u32 phase = 0;
    barrier_wait(rows_full, 0);
    for (int i = 0;; i++) {
        Job job = job_at(i);
        if (job.count == 0) break;
        if (i % 16 == 0) know_jobs<Form>(i + 16);
        while (round < job.round) next_round(round);
        Segment g = b.segments[job.segment];
        int slice = b.slices == 1 ? 0 : job.unit / b.slice * b.slice;
        const u8* rows = b.rows + (round & 1) * 16 * b.pitch + (job.unit - slice) * Form::ROW_BYTES;
        u8* here = ring + stage * a.stage_bytes;
        float t[Form::SPAN * Form::BLOCKS * 8];
        Planes planes = {};
        await(full + stage, phase, a.stages);
#pragma unroll
        for (int k = 0; k < Form::SPAN; k++) {
            if (k >= job.count) break;
            __syncwarp();  // one group after the other: side by side they do not fit the registers
            const u8 *q = rows + k * Form::ROW_BYTES, *tile = here + k * g.bytes();
            for (int h = 0; h < 2; h++)
                planes.v[k][h] = apart_at(Form(), g, tile + TILE_OUTPUTS * g.unit_bytes(), spot.row + 8 * h);
            Operands o = {tile + spot.row * g.unit_bytes(),
                          q + spot.column * b.pitch,
                          8 * g.unit_bytes(),
                          8 * b.pitch,
                          q + 2 * spot.pair * b.pitch + GROUP,
                          b.pitch,
                          {planes.v[k][0], planes.v[k][1]}};
            tile_terms(Form(), g.format(), o, spot.pair, t + 8 * Form::BLOCKS * k);
        }
        __syncwarp();
        request_tile(b, job_at(i + a.stages), here, full + stage);
        hand_on<Form>(a, s, b, job_at(i), t, planes, n, gated);
        if (++stage == a.stages) stage = 0, phase ^= 1;
    }
    while (round < b.rounds - 1) next_round(round);
#ifndef HAS_BULK
    copy_wait<0>();
#endif
}

INLINE void write_gated(const Matvec& a, const Shares& s, const float* totals, int n) {
    int count = s.ranges[0].count;
    for (int i = threadIdx.x; i < count * n; i += blockDim.x) {
        int r = i / count, o = i % count;
        float gate = stored(totals[o * 16 + r], {a.faults, a.parts[0].entry}, r);
        float up = stored(totals[(s.ranges[1].flat + o) * 16 + r], {a.faults, a.parts[1].entry}, r);
        a.out[(i64)r * a.parts[0].outputs + s.ranges[0].first + o] =
            stored(mul1(activated(gate, a.epilogue), up), {a.faults, a.act_entry}, r);
    }
}

template <typename Form>
INLINE void batch(const Matvec& a) {
    SHARED_BYTES(shared);
    __shared__ Shares shares;
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 - 1;
    next_kernel_may_start();
    make_shares(a, shares);
    if (threadIdx.x < 2)
        barrier_init(rows_full + threadIdx.x, 32), barrier_init(rows_empty + threadIdx.x, warps);
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < a.stages; i++) barrier_init(ring_full + warp * MOST_STAGES + i, 1);
#ifdef HAS_BULK
    barrier_fence();
#endif
    __syncthreads();
    Batch b = batch_of<Form>(a, shares, shared, warps);
    make_segments(a, shares, b.units, b.segments);
    if (threadIdx.x == 0) work = b;
    __syncthreads();
    for (int i = threadIdx.x; i < b.pass; i += blockDim.x) b.turn[i] = 0;
    u8* ring = b.ring + warp * a.stages * a.stage_bytes;
    if (warp < warps) {
        know_jobs<Form>(0);
        for (int i = 0; i < a.stages; i++)
            request_tile(b, job_at(i), ring + i * a.stage_bytes, ring_full + warp * MOST_STAGES + i);
    }
    previous_kernel_done();
    int n = min(*a.count, 16), blocks = b.units * Form::BLOCKS;
    for (int i = threadIdx.x; i < 16 * blocks; i += blockDim.x) {
        int r = i / blocks;
        b.scales[i % blocks * 16 + r] = r < n ? a.source.scales[i] : 0.0f;
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.made = 0;
    bool gated = a.epilogue == OUT_SILU || a.epilogue == OUT_GELU;
    if (warp == warps) fetch_slices<Form>(a, b, n);
    else multiply<Form>(a, shares, b, ring, n, gated);
    if (!gated) return;
    __syncthreads();
    write_gated(a, shares, b.totals, n);
}

#if __CUDA_ARCH__ == 900
constexpr int MOST_THREADS = 512;
#else
constexpr int MOST_THREADS = 384;  // elsewhere the compiler spills below 168 registers
#endif
KERNEL BOUNDS(MOST_THREADS, 1) batch_256(const __grid_constant__ Matvec a) { batch<B256>(a); }
KERNEL BOUNDS(384, 1) batch_32(const __grid_constant__ Matvec a) { batch<B32>(a); }
KERNEL BOUNDS(384, 1) batch_grid(const __grid_constant__ Matvec a) { batch<BGrid>(a); }
