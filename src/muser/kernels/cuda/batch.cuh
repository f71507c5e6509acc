// Up to sixteen rows (bucket 16, and any fewer) times up to four weights, on 8-bit matrix units. Inside
// library.cu, after matvec.cuh and batch_terms.cuh: the same struct, parts, line and epilogues; the input must be READY.
//
// batch_256, batch_32, batch_grid(Matvec): K-quants, 32-blocks, floats
//     grid   as many thread blocks as there are multiprocessors, or fewer tiles; any number is right
//     block  32·W, of turns 32·(W + 1); ≤ 512 (384 for batch_32, batch_grid, and for all of them except on sm_90): W warps
//            that multiply, and of turns one that fetches the rows
//     dynamic shared bytes; a job has C = 2 units (batch_32: 1); S = a.slice units of the rows at a time (a multiple of
//       C), F = a.copies slices of them at once where not all fit (4 to 12; else 12), P = a.pass pieces at a time (an even
//       number with a gate); U units, N blocks a row; T pieces of one thread block, those of gate and up both (as for matvec.cuh):
//         W·stages·stage_bytes                stage_bytes: one tile, the largest of the parts
//       + F·S < U ? F·16·pitch(S·unit) : 16·pitch(U·unit)   the rows; unit = 272 bytes, grid: 256
//         (batch_256: F·S < U ? F·S·16·272 : U·16·272)
//       + 64·N                                the rows' scales
//       + 1040·P                              chains, and how far they are
//       + 16·T + 32·a.table
//       pitch(n): n rounded up to an odd number of 32, batch_grid of 64
//     reads weights and *count before the kernel before has ended; then source.codes, source.scales: batch_256 as
//     `together` = 16 of quantise.cuh leaves them
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// A thread block owns a stretch of the line of matvec.cuh, to the unit: pieces of tiles. What its last piece's chains have come
// to is handed to the next thread block, which goes on with it as late as it can. The rows come in slices (those of batch_256 in
// one copy each), so that the first products need the first one only; where the rows do not fit, slices take turns. The t_b are
// made in any order, chains in theirs.
//   Runs (a.table = 0), where all of the rows fit and each thread block has a tile's units for each warp: all units, piece by
//     piece, are cut into W runs, and a warp goes through its own from its last piece back to its first one, the chain in
//     registers. So the totals of the piece that its run cuts off are there long before the next warp, which goes on with
//     them last, needs them.
//   Turns, else: a job is 16 outputs × C units × 16 rows. Jobs are numbered: the first job of each of P pieces, the
//     second of each, and so on (of a piece that another thread block has begun LAG rows later); then those of the next P
//     pieces. Warp w takes jobs w, w + W, …: it computes the t_b of a job, waits until the chain has come so far, continues
//     it, and says so. It waits only for jobs of lower numbers. What there is to know of a job is worked out by a thread, of
//     a.table jobs at a time.
// A warp asks for a unit where it has used up another one. Between one unit's products and the next one's there is little to
// execute, since nothing hides its latency: addresses of shared memory are kept as they are, and what all lanes have alike is
// known to be so (`uniform`, `elected`).
#pragma once
#include "batch_terms.cuh"

constexpr int COPIES = 12;  // slices of the rows that are in shared memory, at most
constexpr int LAG = 2;      // rows of jobs by which a piece comes later that another thread block has begun
constexpr int BATCH_WARPS = 16, BATCH_STAGES = 4;

// --- what a thread block has to do ---
struct Batch {
    int rows, scales, chains, list, table;  // where they begin; the rings stand before them
    int units, blocks, jobs;                // jobs of a tile
    int span, slices;                       // of a slice: jobs; how many there are
    int slice, by_slice, copies;            // units of a slice; ⌈2³² / slice⌉; slices in shared memory
    int pitch, step;                        // bytes from one row to the next, from one slice to the next
    int pieces, pass, each;                 // each: 2 with a gate, whose pieces 2i and 2i + 1 are the same of gate and up
    int from, to;                           // the first `each` pieces begin at this unit, the last ones end at that
    int all;                                // units of all pieces
    int before;                             // the thread block that began the first pieces
    int lag, held;                          // rows of jobs by which those come later; slices for which they need the past
    int rounds, again;                      // fetches of slices, `again` for each pass behind the first one; 0: all fit
    int rows_there;
};
__shared__ Batch work;
INLINE u8* at_byte(int offset) {
    SHARED_BYTES(shared);
    return shared + offset;
}

struct __align__(16) Tile {
    const u8* from;  // its first unit
    u32 what;        // part, format, bytes of a unit
    int output;      // the first one
    MEMBER int part() const { return (int)(what & 3); }
    MEMBER int format() const { return (int)(what >> 2 & 31); }
    MEMBER int bytes() const { return (int)(what >> 7); }
};
INLINE Tile& tile_of_piece(int i) { return ((Tile*)at_byte(work.list))[i]; }
INLINE Tile make_tile(const Part& part, int p, int units, int tile) {
    u32 bytes = (part.size & 31) * 256 + (part.size >> 5) * 16;
    return {part.weights + (i64)tile * units * bytes, (u32)p | (u32)part.format << 2 | bytes << 7, tile * TILE_OUTPUTS};
}
INLINE int slice_of(int unit) { return (int)(work.slice == 1 ? (u32)unit : __umulhi((u32)unit, (u32)work.by_slice)); }
template <typename Form>
INLINE const float* scales_at(int unit) {  // of this lane's first row
    return (const float*)at_byte(work.scales) + 16 * Form::BLOCKS * unit + 2 * own_pair();
}
INLINE int first_unit(int piece) { return piece < work.each ? work.from : 0; }
INLINE int end_unit(int piece) { return piece >= work.pieces - work.each ? work.to : work.units; }

struct __align__(16) Chain {
    float totals[16 * TILE_OUTPUTS];  // as the lanes hold them
    u32 done, spare[3];               // jobs of this piece and of those that were here before; of a run: 1
};
static_assert(sizeof(Chain) == 1040, "what the launch counts");
INLINE Chain* chain_at(int i) { return (Chain*)at_byte(work.chains) + i; }

// By one warp: lane p shares out part p.
template <typename Form>
INLINE void know_work(const Matvec& a, int warps) {
    int lane = threadIdx.x % 32, gated = is_gated(a), starts[PARTS + 1], count, from = 0, to, owner = 0;
    int units = (a.source.width + Form::UNIT - 1) / Form::UNIT;
    Line line = {units, 0, (int)a.by_units, 1 + gated};
    const Part& part = a.parts[gated ? 0 : lane % PARTS];
    Share s = share_of(part, a.split, line);
    to = units, count = lane < (gated ? 1 : PARTS) ? s.count : 0, starts[0] = 0;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        int more = __shfl_sync(~0u, count, k), low = __shfl_sync(~0u, s.begin, k), high = __shfl_sync(~0u, s.end, k);
        if (more && starts[k] == 0) from = low, owner = k;
        if (more) to = high;
        starts[k + 1] = starts[k] + more;
    }
    int before = (int)blockIdx.x - 1;
    if (lane == owner && from) {  // thread blocks between own nothing
        u32 cost = gated ? 1 : part.size & 31, begin = (u32)(s.first * units + from);
        while (unit_at(part, cost, split_at(a.split, (u32)before), line) == begin) before--;
    }

    Batch b;
    b.units = units, b.blocks = units * Form::BLOCKS, b.jobs = (units + Form::SPAN - 1) / Form::SPAN;
    b.slice = min(a.slice, b.jobs * Form::SPAN), b.by_slice = (int)(0xffffffffu / (u32)b.slice + 1);
    b.span = b.slice / Form::SPAN, b.slices = (int)((u32)(b.jobs + b.span - 1) / (u32)b.span);
    bool cut = a.copies * b.slice < units;
    b.pitch = pitch_of<Form>(cut ? b.slice : units);
    b.step = cut ? rows_bytes<Form>(b.slice) : b.slice * Form::NEXT;
    b.each = line.each, b.pieces = b.each * starts[PARTS], b.pass = a.pass;
    b.from = from, b.to = to, b.before = __shfl_sync(~0u, before, owner);
    b.all = b.pieces * units - b.each * (from + units - to);
    b.again = cut ? b.slices : 0;
    b.rounds = b.pieces ? b.slices : 0;
#pragma unroll 1
    for (int i = b.pass; i < b.pieces; i += b.pass) b.rounds += b.again;
    b.rows = warps * a.stages * a.stage_bytes;
    b.copies = a.copies, b.scales = b.rows + (cut ? b.copies * b.step : rows_bytes<Form>(units));
    b.chains = b.scales + 64 * b.blocks;
    b.list = b.chains + (int)sizeof(Chain) * b.pass;
    b.table = b.list + 16 * b.pieces;
    b.lag = from > 0 && a.table ? LAG : 0, b.held = (b.lag + b.span - 1) / b.span;
    if (lane == 0) b.rows_there = min(*a.count, 16), work = b;
    for (int i = lane; i < b.pass; i += 32) ((Chain*)at_byte(b.chains))[i].done = 0;
#pragma unroll 1
    for (int base = 0; base < b.pieces; base += 32) {
        int i = base + lane, p = (i >= starts[1]) + (i >= starts[2]) + (i >= starts[3]), tile = i;
        if (gated) {
            p = i & 1, tile = (i >> 1) + __shfl_sync(~0u, s.first, 0);
        } else {
#pragma unroll
            for (int k = 1; k < PARTS; k++) tile -= p == k ? starts[k] : 0;
            tile += __shfl_sync(~0u, s.first, p);
        }
        if (i < b.pieces) ((Tile*)at_byte(b.list))[i] = make_tile(a.parts[p], p, units, tile);
    }
}

// --- runs ---
struct Stretch {  // of a piece; behind the last one the piece is negative
    int piece, unit, end;
};
struct __align__(16) Run {
    int first, from, last, end;  // from unit `from` of the first piece up to unit `end` of the last one
};
__shared__ Run runs[BATCH_WARPS];
// Where all pieces of up stand behind all of gate, so that what is handed on ends a run, and what is taken begins one.
struct Position {
    int piece, unit;  // on that line
};
INLINE Position position_of(int x) {
    const Batch& b = work;
    int half = b.all / b.each, count = b.pieces / b.each, length = (count == 1 ? b.to : b.units) - b.from, base = 0;
    if (x >= half && b.each == 2) x -= half, base = count;
    if (x < length) return {base, b.from + x};
    x -= length;
    return {base + 1 + x / b.units, x % b.units};
}
INLINE int piece_at(int i) {
    int count = work.pieces / 2;
    return work.each == 1 ? i : i < count ? 2 * i : 2 * (i - count) + 1;
}
INLINE Run run_of(int warp, int warps) {
    int all = work.all, low = 0;
    if (work.each == 2 && warps % 2 == 0) {  // gate and up apart
        all /= 2, warps /= 2;
        if (warp >= warps) warp -= warps, low = all;
    }
    int each = all / warps, more = all - each * warps;
    low += each * warp + min(warp, more);
    Position a = position_of(low), b = position_of(low + each + (warp < more));
    bool is_cut = b.piece < work.pieces && b.unit > first_unit(piece_at(b.piece));
    return {a.piece, a.unit, b.piece - !is_cut, is_cut ? b.unit : end_unit(piece_at(b.piece - 1))};
}
// Its i-th stretch, as they are done: from the last piece to the first one.
INLINE Stretch stretch_of(int warp, int i) {
    Run r = runs[warp];
    int at = r.last - i, piece = piece_at(at);
    if (at < r.first) return {-1, 0, 0};
    return {piece, at == r.first ? r.from : first_unit(piece), i == 0 ? r.end : end_unit(piece)};
}

// --- turns ---
// A chain begins with zeros or with what another thread block handed on, and ends with the tile or is handed on.
constexpr u32 FROM_ZERO = 32, FROM_BLOCK = 64, TO_BLOCK = 128, TO_END = 256;
struct __align__(16) Job {
    const u8* from;  // its first unit
    int bytes, units;
    u32 place;   // in 16 bytes: where the unit of all rows stands | where their scales of it do << 16
    u32 when;    // the fetch that brings those | piece << 16
    u32 what;    // format | flags | chain << 16
    u32 before;  // jobs of its chain
    MEMBER int rows() const { return (int)(place & 0xffff) * 16; }
    MEMBER const float* scales() const { return (const float*)at_byte((int)(place >> 16) * 16) + 2 * own_pair(); }
    MEMBER int piece() const { return (int)(when >> 16); }
    MEMBER int format() const { return (int)(what & 31); }
    MEMBER bool is(u32 flags) const { return what & flags; }
    MEMBER Chain* chain() const { return chain_at((int)(what >> 16)); }
};
static_assert(sizeof(Job) == 32, "what the launch counts");
INLINE Job& job_at(int i) { return ((Job*)at_byte(work.table))[i]; }

// Row r of a pass has job r of each of its pieces, of those that come late another one.
struct Pass {
    int late, whole, brief;  // pieces: that another thread block has begun, others, those of them that end early
    int lag, begin, late_end, jobs, brief_end;
    MEMBER int before(int row) const {  // jobs of the rows before it
        return whole * min(row, jobs) + brief * min(row, brief_end) + late * min(max(row - lag - begin, 0), late_end - begin);
    }
    MEMBER int rows() const { return late ? jobs + lag : jobs; }
};
template <typename Form>
INLINE Pass pass_of(int pass) {
    const Batch& b = work;
    int left = b.pieces - pass * b.pass, n = min(left, b.pass);
    Pass p = {pass == 0 && b.lag ? b.each : 0, 0, 0, b.lag, b.from / Form::SPAN};
    p.brief = n == left && n > p.late && b.to < b.units ? b.each : 0, p.whole = n - p.late - p.brief;
    p.jobs = b.jobs, p.brief_end = (b.to + Form::SPAN - 1) / Form::SPAN;
    p.late_end = b.pieces == b.each ? p.brief_end : b.jobs;
    return p;
}
template <typename Form>
INLINE int all_jobs() {
    const Batch& b = work;
    int begin = b.from / Form::SPAN, end = (b.to + Form::SPAN - 1) / Form::SPAN;
    return b.pieces * b.jobs - b.each * (begin + b.jobs - end);
}
template <typename Form>
INLINE Job make_job(int i) {
    const Batch& b = work;
    int pass = 0;
    Pass p = pass_of<Form>(0);
    int first = p.before(p.rows());
    if (i >= first) {
        int each = b.pass * b.jobs;
        i -= first, pass = 1 + i / each, i %= each;
        p = pass_of<Form>(pass);
    }
    int row = 0;
#pragma unroll 1
    for (int step = 1 << (31 - __clz(p.rows())); step; step >>= 1)
        if (row + step < p.rows() && p.before(row + step) <= i) row += step;
    int place = i - p.before(row), late = row - p.lag, q = row, chain = place;
    late = p.late && late >= p.begin && late < p.late_end ? p.late : 0;
    if (place < late) q -= p.lag;
    else chain += p.late - late;
    int piece = pass * b.pass + chain, unit = q * Form::SPAN, end = min(unit + Form::SPAN, b.units);
    u32 flags = unit == first_unit(piece) ? unit ? FROM_BLOCK : FROM_ZERO : 0;
    if (end >= end_unit(piece)) flags |= end < b.units ? TO_BLOCK : TO_END;
    const Tile& g = tile_of_piece(piece);
    int slice = slice_of(unit), round = pass * b.again + slice;
    int place_of_slice = round;  // modulo copies, in fewer registers
#pragma unroll 1
    while (place_of_slice >= b.copies) place_of_slice -= b.copies;
    int rows = b.rows + place_of_slice * b.step + (unit - slice * b.slice) * Form::NEXT;
    int scales = b.scales + 64 * Form::BLOCKS * unit;
    return {g.from + (i64)unit * g.bytes(), g.bytes(), end - unit, (u32)rows / 16 | (u32)scales / 16 << 16,
            ((u32)round & 0xffff) | (u32)piece << 16, (u32)g.format() | flags | (u32)chain << 16,
            (u32)(pass * b.jobs + q - (b.lag && chain < b.each ? p.begin : 0))};
}

// --- the rings: a unit of a tile in each stage ---
__shared__ u64 stages_full[BATCH_WARPS * BATCH_STAGES];
#ifdef HAS_BULK
constexpr int ARRIVALS = 1;
#else
constexpr int ARRIVALS = 32;
#endif

// By a warp.
INLINE void copy_some(u8* to, const u8* from, int bytes) {
    for (int k = 16 * (threadIdx.x % 32); k < bytes; k += 512) copy16(to + k, from + k);
}
struct Ring {
    int begin, stages, stage_bytes;  // where it begins in shared memory
    u32 full;                        // address of its first barrier
    int stage;
    u32 phase;
    const u8* from;  // what is asked for next: `left` units of a tile
    int bytes, left;

    MEMBER Ring(const Matvec& a, int of)
        : begin(of * a.stages * a.stage_bytes), stages(a.stages), stage_bytes(a.stage_bytes),
          full(unknown(shared_address(stages_full + of * BATCH_STAGES))), stage(0), phase(0), from(nullptr), bytes(0), left(0) {}
    MEMBER u8* here() const { return at_byte(begin + stage * stage_bytes); }
    MEMBER void await() const { barrier_wait(full + 8 * (u32)stage, phase); }
    MEMBER void advance() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    // One of the units that are left comes into this stage.
    MEMBER void request() {
#ifdef HAS_BULK
        if (elected()) {
            barrier_expect(full + 8 * (u32)stage, (u32)bytes);
            bulk_copy_once(shared_address(here()), from, (u32)bytes, full + 8 * (u32)stage);
        }
#else
        copy_some(here(), from, bytes);
        copy_arrive(full + 8 * (u32)stage);
#endif
        from += bytes, left--;
    }
    // The next unit comes into this stage, if there is one; `ask` finds what follows.
    template <typename Ask>
    MEMBER void go_on(Ask ask) {
        if (left) {
            request();
            if (left == 0) ask();
        }
    }
    // A unit into every stage of an empty ring, which is where it was before.
    template <typename Ask>
    MEMBER void fill(Ask ask) {
        int first = stage;
        u32 was = phase;
        ask();
#pragma unroll 1
        for (int i = 0; i < stages; i++) go_on(ask), advance();
        stage = first, phase = was;
    }
};

// --- the rows ---
// Full: a slice of the rows is there. Empty: all warps are through with it. Fetched: how many are there, or on their way.
__shared__ u64 rows_full[COPIES], rows_empty[COPIES];
__shared__ u32 fetched;

// Units [begin, begin + units) of all rows to `to`. TOGETHER: of all sixteen, whatever lies there, and their scales, if it is
// the first time.
template <typename Form>
INLINE void fetch_slice(const Matvec& a, const Batch& b, int n, int begin, int units, bool is_first, u8* to, u64* full) {
    int lane = threadIdx.x % 32;
    const u8* from = a.source.codes + (i64)begin * Form::NEXT;
    if constexpr (Form::TOGETHER) {
        constexpr int EACH = 64 * Form::BLOCKS;  // bytes of a unit's scales
        int bytes = units * Form::NEXT, more = is_first ? units * EACH : 0;
        u8* scales = at_byte(b.scales + begin * EACH);
        const u8* from_scales = (const u8*)a.source.scales + begin * EACH;
#ifdef HAS_BULK
        if (lane == 0) {
            barrier_expect(full, (u32)(bytes + more));
            bulk_copy(to, from, (u32)bytes, full);
            if (more) bulk_copy(scales, from_scales, (u32)more, full);
        }
        __syncwarp();
#else
        copy_some(to, from, bytes), copy_some(scales, from_scales, more);
#endif
    } else {
        int bytes = units * Form::ROW_BYTES;
        i64 row = (i64)b.units * Form::ROW_BYTES;
#ifdef HAS_BULK
        if (lane == 0) barrier_expect(full, (u32)(n * bytes));
        __syncwarp();
        if (lane < n) bulk_copy(to + lane * b.pitch, from + lane * row, (u32)bytes, full);
#else
        for (int r = 0; r < n; r++) copy_some(to + r * b.pitch, from + r * row, bytes);
#endif
    }
#ifndef HAS_BULK
    copy_arrive(full);
#endif
}
// By one warp: the rows, once they are there, a slice at a time.
template <typename Form>
INLINE void fetch_rows(const Matvec& a) {
    int begin = 0, lane = threadIdx.x % 32;
    touch(a);
    previous_kernel_done();
    if (blockIdx.x == 0 && lane == 0) *a.made = 0;
#pragma unroll 1
    for (int i = 0; i < work.rounds; i++) {
        u64* full = rows_full + i % COPIES;
        int gone = i - work.copies;
        if (gone >= 0) barrier_wait(rows_empty + gone % COPIES, (u32)(gone / COPIES) & 1);
        if (i >= COPIES) barrier_wait(full, (u32)(i / COPIES - 1) & 1);
        __syncwarp();  // all lanes have seen them before they can end again
        fetch_slice<Form>(a, work, work.rows_there, begin, min(work.slice, work.units - begin), i < work.slices,
                          at_byte(work.rows + i % work.copies * work.step), full);
        __syncwarp();
        if (lane == 0) count_set(&fetched, (u32)i + 1);
        begin += work.slice;
        if (begin >= work.units) begin = 0;
    }
}
// It may be that nobody needs the last ones; but they come, so somebody waits for them.
INLINE void await_last_rows() {
    for (int i = max(0, work.rounds - COPIES); i < work.rounds; i++)
        barrier_wait(rows_full + i % COPIES, (u32)(i / COPIES) & 1);
}
// The rows' scales, sixteen of a block side by side. Of rows that are not there something is read too, for nothing.
INLINE void fetch_scales(const float* from, float* to, int blocks, int warps) {
    int r = threadIdx.x % 16;
#pragma unroll 4
    for (int i = threadIdx.x / 16; i < blocks; i += 2 * warps) to[16 * i + r] = from[(i64)r * blocks + i];
}

// --- chains ---
INLINE int own_input(int k) { return (k >> 2) * 8 + 2 * own_pair() + (k & 1); }  // the row of a lane's element k
struct RowScales {
    float2 low, high;  // of a lane's four rows
    MEMBER float of(int k) const { return k < 4 ? (k & 1 ? low.y : low.x) : k & 1 ? high.y : high.x; }
};
INLINE RowScales row_scales(const float* s) { return {*(const float2*)s, *(const float2*)(s + 8)}; }
// `scales`: of this lane's first row and the unit's first block.
INLINE void advance(B256, const float* scales, const Terms<B256>& x, float (&total)[8]) {
    RowScales s = row_scales(scales);
#pragma unroll
    for (int k = 0; k < 8; k++) total[k] = fma1(s.of(k), x.t[k], total[k]);
}
INLINE void advance(B32, const float* scales, const Terms<B32>& x, float (&total)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        RowScales s = row_scales(scales + 16 * j);
#pragma unroll
        for (int k = 0; k < 8; k++) total[k] = fma1(s.of(k), x.t[8 * j + k], total[k]);
    }
}
INLINE void advance(BGrid, const float* scales, const Terms<BGrid>& x, float (&total)[8]) {
    RowScales s = row_scales(scales);
#pragma unroll
    for (int k = 0; k < 8; k++)
        total[k] = fma1(x.t[k], mul1(__uint_as_float(x.step[k >> 1 & 1]), s.of(k)), total[k]);
}
INLINE void load_chain(const float* from, float (&total)[8]) {
    float4 x = ((const float4*)from)[threadIdx.x % 32], y = ((const float4*)from)[threadIdx.x % 32 + 32];
    total[0] = x.x, total[1] = x.y, total[2] = x.z, total[3] = x.w;
    total[4] = y.x, total[5] = y.y, total[6] = y.z, total[7] = y.w;
}
INLINE void store_chain(float* to, const float (&total)[8]) {
    ((float4*)to)[threadIdx.x % 32] = make_float4(total[0], total[1], total[2], total[3]);
    ((float4*)to)[threadIdx.x % 32 + 32] = make_float4(total[4], total[5], total[6], total[7]);
}

// Of four outputs of a lane: what left the finite numbers.
INLINE void report_tile(const Matvec& a, const Part& part, const float (&v)[4], const float (&other)[4],
                        const float (&made)[4], const bool (&there)[4], int half) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int r = own_input(k) + 8 * half;
        if (!there[k]) continue;
        report_if(lost(v[k]), a.faults, part.entry, r);
        if (!is_gated(a)) continue;
        report_if(lost(other[k]), a.faults, a.parts[0].entry, r);
        report_if(lost(made[k]), a.faults, a.act_entry, r);
    }
}

// A tile's outputs, four of a lane at a time, so that they do not wait for each other; `gate`: the chain of the gate's
// tile.
template <typename Form>
INLINE void write_tile(const Matvec& a, const Tile& g, float (&total)[8], const float* gate) {
    const Part& part = a.parts[g.part()];
    bool gated = is_gated(a), own[2];
    int row = own_row<Form>(), outputs = part.outputs, n = work.rows_there;
    float* out = (gated ? a.out : part.out) + g.output + row;
#pragma unroll
    for (int h = 0; h < 2; h++) own[h] = g.output + row + 8 * h < outputs;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float v[4], made[4], other[4] = {};
        bool there[4], bad = false;
        if (gated) {
            float4 x = ((const float4*)gate)[threadIdx.x % 32 + 32 * half];
            other[0] = z(x.x), other[1] = z(x.y), other[2] = z(x.z), other[3] = z(x.w);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[k] = total[k], total[k] = total[k + 4];
            there[k] = own_input(k) + 8 * half < n && own[k >> 1];
        }
        if (a.epilogue == OUT_LOGITS) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (there[k]) made[k] = finished(a, part, v[k], own_input(k) + 8 * half);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) made[k] = v[k] = z(v[k]);
            if (a.epilogue == OUT_SILU) {
#pragma unroll
                for (int k = 0; k < 4; k++) made[k] = z(mul1(silu1(other[k]), v[k]));
            } else if (gated) {
#pragma unroll
                for (int k = 0; k < 4; k++) made[k] = z(mul1(gelu1(other[k]), v[k]));
            }
#pragma unroll
            for (int k = 0; k < 4; k++) bad |= there[k] && (lost(v[k]) || lost(other[k]) || lost(made[k]));
            if (bad) report_tile(a, part, v, other, made, there, half);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (there[k]) out[(i64)(own_input(k) + 8 * half) * outputs + 8 * (k >> 1)] = made[k];
    }
}

// What one thread block hands to another: totals of the piece that both have a part of.
INLINE u32* handed_by(const Matvec& a, int block, int piece) {
    return a.handed + ((i64)(2 * block + piece % work.each) * 32 + threadIdx.x % 32) * 8;
}
INLINE void hand_chain(u32* to, const float (&total)[8]) {  // of rows that are not there zeros: theirs may be anything
#pragma unroll
    for (int k = 0; k < 8; k++) hand_on(to + k, own_input(k) < work.rows_there ? total[k] : 0.0f);
}

// --- warps that multiply ---
// Where slices take turns all warps pass all fetches, whether they have a unit there or not.
struct Slices {
    int there;
    MEMBER void go_to(int round) {
#pragma unroll 1
        while (there < round) {
            int held = work.held, lane = threadIdx.x % 32, left = there - held + lane;
            int to = min(round, there + work.copies - 1 - held);
            count_wait(&fetched, (u32)to + 1);  // so all warps have left what was there before these
            __syncwarp();
            if (lane < to - there && left >= 0) barrier_arrive(rows_empty + left % COPIES);
            there = to;
        }
    }
    MEMBER void reach_all(int jobs) {  // of this table
        int most = 0;
        for (int i = threadIdx.x % 32; i < jobs; i += 32) most = max(most, (int)(i16)(job_at(i).when - (u32)there));
        go_to(there + __reduce_max_sync(~0u, most));
    }
    MEMBER void reach(const Job& job) {
        int round = (int)(job.when & 0xffff);
        if (work.again) {
            int more = (i16)(job.when - (u32)there);
            round = there + more;
            if (more > 0) go_to(round);
        }
        barrier_wait(rows_full + round % COPIES, (u32)(round / COPIES) & 1);
    }
};
// By all warps that multiply. The scales, unless they come with the rows.
template <typename Form>
INLINE void await_rows(const Matvec& a, int warps) {
    previous_kernel_done();
    if constexpr (!Form::TOGETHER) {
        fetch_scales(a.source.scales, (float*)at_byte(work.scales), work.blocks, warps);
        named_sync(1, 32 * warps);
    }
}

// A run. It is a tile long at least, so the totals that it goes on with at its end are there by then.
template <typename Form>
INLINE void multiply_run(const Matvec& a, int warp, int warps) {
    int next = 0;  // stretch to ask for
    bool gated = is_gated(a);
    Ring ring(a, warp);
    auto ask = [&] {
        Stretch s = stretch_of(warp, next++);
        if (s.piece < 0) return;
        const Tile& g = tile_of_piece(s.piece);
        ring.bytes = g.bytes(), ring.from = g.from + (i64)s.unit * ring.bytes, ring.left = s.end - s.unit;
    };
    if (threadIdx.x % 32 == 0) runs[warp] = run_of(warp, warps);
    __syncwarp();
    ring.fill(ask);
    if (warp == warps - 1) fetch_rows<Form>(a);
    await_rows<Form>(a, warps);

    float total[8];
#pragma unroll 1
    for (int i = 0;; i++) {
        Stretch s = stretch_of(warp, i);
        if (s.piece < 0) break;
        const Tile& g = tile_of_piece(s.piece);
        int format = g.format(), unit = s.unit;
        Chain* before = chain_at(gated ? s.piece : warp - 1);
        auto rows = rows_at(Form(), at_byte(work.rows), work.pitch);
        rows.next(unit);
        const float* scales = scales_at<Form>(unit);
        if (unit == 0) {
            for (int k = 0; k < 8; k++) total[k] = 0.0f;
        } else if (unit == first_unit(s.piece)) {
            taken8(handed_by(a, work.before, s.piece), total);
        } else {
            count_wait(&before->done, 1);
            load_chain(before->totals, total);
        }
#pragma unroll 1
        while (unit < s.end) {
            int slice = slice_of(unit), until = min(s.end, (slice + 1) * work.slice);
            barrier_wait(rows_full + slice, 0);
#pragma unroll 1
            for (; unit < until; unit++) {
                Terms<Form> now;
                ring.await();
                unit_terms(Form(), format, ring.here(), rows, now);
                __syncwarp();
                ring.go_on(ask);
                advance(Form(), scales, now, total);
                rows.next(1), scales += 16 * Form::BLOCKS;
                ring.advance();
            }
        }
        if (s.end == work.units && !gated) {
            write_tile<Form>(a, g, total, nullptr);
        } else if (s.end == end_unit(s.piece) && s.end < work.units) {
            hand_chain(handed_by(a, blockIdx.x, s.piece), total);
        } else {
            Chain* chain = chain_at(gated ? s.piece : warp);
            store_chain(chain->totals, total);
            __syncwarp();
            if (s.end < work.units && threadIdx.x % 32 == 0) count_set(&chain->done, 1);
        }
    }
    if (!gated) return;
    named_sync(1, 32 * warps);
    for (int i = 2 * warp; i < work.pieces; i += 2 * warps) {
        if (end_unit(i) < work.units) continue;
        load_chain(chain_at(i + 1)->totals, total);
        write_tile<Form>(a, tile_of_piece(i + 1), total, chain_at(i)->totals);
    }
}

// The jobs of one warp.
template <typename Form>
INLINE void multiply(const Matvec& a, int warp, int warps) {
    int all = all_jobs<Form>(), next = 0, end = 0;  // jobs of this table: which to ask for, how many
    bool gated = is_gated(a);
    Ring ring(a, warp);
    Slices slices = {-1};
    auto ask = [&] {
        if (next >= end) return;
        const Job& job = job_at(next);
        next += warps;
        ring.from = job.from, ring.bytes = job.bytes, ring.left = job.units;
    };
#pragma unroll 1
    for (int base = 0; base < all || base == 0; base += a.table) {
        if (base) {
            if (work.again) slices.reach_all(end);  // nobody waits for a slice that a warp holds which waits here
            named_sync(1, 32 * warps);
        }
        end = min(all - base, a.table);
        for (int i = threadIdx.x; i < end; i += 32 * warps) job_at(i) = make_job<Form>(base + i);
        named_sync(1, 32 * warps);
        next = warp;
        ring.fill(ask);
        if (base == 0) await_rows<Form>(a, warps);
#pragma unroll 1
        for (int i = warp; i < end; i += warps) {
            const Job job = job_at(i);
            slices.reach(job);
            auto rows = rows_at(Form(), at_byte(job.rows()), work.pitch);
            Terms<Form> now;
            float total[8];
            u32 steps[2] = {};
            bool is_pair = Form::SPAN > 1 && job.units > 1;
#pragma unroll 1
            for (int k = 0;; k++) {
                ring.await();
                unit_terms(Form(), job.format(), ring.here(), rows, now);
                __syncwarp();
                ring.go_on(ask);
                ring.advance();
                if (!is_pair || k) break;
                hold(now, total, steps);
                rows.next(1);
            }
            Terms<Form> before;
            hold(total, steps, before);

            // Of a gate's tile the totals stay, until those of the other tile are written out.
            bool kept = gated && job.piece() % 2 == 0;
            Chain* chain = job.chain();
            const float* scales = job.scales();
            count_wait(&chain->done, job.before);
            if (job.is(FROM_ZERO)) {
                if (kept) count_wait(&chain[1].done, job.before);
                for (int k = 0; k < 8; k++) total[k] = 0.0f;
            } else if (job.is(FROM_BLOCK)) {
                taken8(handed_by(a, work.before, job.piece()), total);
            } else {
                load_chain(chain->totals, total);
            }
            if (is_pair) advance(Form(), scales, before, total), scales += 16 * Form::BLOCKS;
            advance(Form(), scales, now, total);
            if (job.is(TO_END) && !kept) {
                if (gated) count_wait(&chain[-1].done, job.before + 1);
                write_tile<Form>(a, tile_of_piece(job.piece()), total, chain[-1].totals);
            } else if (job.is(TO_BLOCK)) {
                hand_chain(handed_by(a, blockIdx.x, job.piece()), total);
            } else {
                store_chain(chain->totals, total);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) count_set(&chain->done, job.before + 1);
        }
    }
    if (work.again) slices.go_to(work.rounds - 1);
}

template <typename Form>
INLINE void batch(const Matvec& a) {
    int warp = uniform(threadIdx.x / 32), warps = blockDim.x / 32 - (a.table > 0), lane = threadIdx.x % 32;
    next_kernel_may_start();
    if (warp == 0) know_work<Form>(a, warps);
    if (threadIdx.x == 0) fetched = 0;
    if (warp < warps && lane < a.stages) barrier_init(stages_full + warp * BATCH_STAGES + lane, ARRIVALS);
    if (warp == warps - 1 && lane < COPIES) barrier_init(rows_full + lane, ARRIVALS), barrier_init(rows_empty + lane, warps);
#ifdef HAS_BULK
    barrier_fence();
#endif
    __syncthreads();
    if (warp == warps) fetch_rows<Form>(a), await_last_rows();
    else if (a.table) multiply<Form>(a, warp, warps);
    else multiply_run<Form>(a, warp, warps);
}

#if __CUDA_ARCH__ == 900
constexpr int MOST_THREADS = 512;
#else
constexpr int MOST_THREADS = 384;  // elsewhere the compiler spills below 168 registers
#endif
KERNEL BOUNDS(MOST_THREADS, 1) batch_256(const __grid_constant__ Matvec a) { batch<B256>(a); }
KERNEL BOUNDS(384, 1) batch_32(const __grid_constant__ Matvec a) { batch<B32>(a); }
KERNEL BOUNDS(384, 1) batch_grid(const __grid_constant__ Matvec a) { batch<BGrid>(a); }
