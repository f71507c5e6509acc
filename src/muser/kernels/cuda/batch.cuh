// Up to sixteen rows (bucket 16, and any fewer) times up to four weights, on 8-bit matrix units. Inside
// library.cu, after matvec.cuh: the same struct, parts, split and epilogues; the input must be READY.
//
// batch_256, batch_32, batch_grid(Matvec): K-quants, 32-blocks, floats
//     grid   as many thread blocks as there are multiprocessors, or fewer outputs; any number is right
//     block  32·(W + 1) ≤ 512 (384 for batch_32, batch_grid, and for all of them except on sm_90): W warps that
//            multiply, one that fetches the rows
//     dynamic shared bytes; a job has C = 2 units (batch_32: 1); S = a.slice units of the rows at a time (a multiple of
//       C), P = a.pass tiles at a time (an even number with a gate); U units, N blocks a row; T tiles of one thread
//       block, those of gate and up both:
//         W·stages·stage_bytes                stage_bytes: one tile, the largest of the parts
//       + 4·S < U ? 4·16·pitch(S·unit) : 16·pitch(U·unit)   the rows; unit = 272 bytes, grid: 256
//         (batch_256: 4·S < U ? 4·S·16·272 : U·16·272)
//       + 64·N                                the rows' scales
//       + 1040·P                              chains, and how far they are
//       + 16·T
//       pitch(n): n rounded up to an odd number of 32, batch_grid of 64
//     reads weights and *count before the kernel before has ended; then source.codes, source.scales: batch_256 as
//     `together` = 16 of quantise.cuh leaves them
//     writes each part's out f32 [rows][outputs], or with a gate only `out` f32 [rows][outputs of part 0]
//
// A thread block owns whole tiles: those that begin in its share. The rows come in slices (those of batch_256 in one copy
// each), so that the first products need the first one only; where the rows do not fit, slices take turns. The t_b are made in
// any order, chains in theirs.
//   Runs, where all of the rows fit and there is a tile for each warp: all units, tile by tile, are cut into W
//     pieces, and a warp keeps the chain of its piece in registers. The totals of the tile in which its piece ends it
//     makes first and hands to the next warp, which goes on with them last.
//   Turns, else: a job is 16 outputs × C units × 16 rows. Jobs are numbered: the first job of each of P tiles, the
//     second of each, and so on; then those of the next P tiles. Warp w takes jobs w, w + W, …: it computes the t_b
//     of a job, waits until the chain has come so far, continues it, and says so. It waits only for jobs of lower
//     numbers.
// The order of k within a block of 32 is free, as long as weights and rows have the same.
#pragma once

constexpr int COPIES = 4;  // slices of the rows that are in shared memory
constexpr int BATCH_WARPS = 15, BATCH_STAGES = 4;

struct Batch {  // what a thread block knows of its work
    int rows, scales, chains, list;  // where they begin; the rings of the warps stand before them
    int units, blocks, jobs;         // jobs of a tile
    int span, slices;                // of a slice: jobs; how many there are
    int slice, pitch, step;          // units of a slice; bytes from one row to the next, from one slice to the next
    int tiles, pass;
    int rounds, again;  // fetches of slices, `again` of them for each pass behind the first one
    int runs, rows_there;
};
__shared__ Batch work;
INLINE u8* at_byte(int offset) {
    SHARED_BYTES(shared);
    return shared + offset;
}

// Bytes from a unit of a row to the next. TOGETHER: the same unit of all sixteen rows side by side, 272 bytes each, so that
// eight rows meet no bank twice; else rows are an odd number of STEPs apart.
struct B256 : K256 {
    static constexpr bool TOGETHER = true;
    static constexpr int SPAN = 2, STEP = 16, NEXT = 16 * ROW_BYTES;
};
struct B32 : K32 {
    static constexpr bool TOGETHER = false;
    static constexpr int SPAN = 1, STEP = 32, NEXT = ROW_BYTES;
};
struct BGrid : Grid {
    static constexpr bool TOGETHER = false;
    static constexpr int SPAN = 2, STEP = 64, NEXT = ROW_BYTES;
};

// Bytes of `units` units of all rows in shared memory, and from one row to the next.
template <typename Form>
INLINE int pitch_of(int units) {
    int bytes = units * Form::ROW_BYTES;
    return Form::TOGETHER ? Form::ROW_BYTES : ((bytes + Form::STEP - 1) / Form::STEP | 1) * Form::STEP;
}
template <typename Form>
INLINE int rows_bytes(int units) {
    return Form::TOGETHER ? units * Form::NEXT : 16 * pitch_of<Form>(units);
}

INLINE uint2 pair_of(const u8* p) { return *(const uint2*)p; }
INLINE uint4 quad_of(const u8* p) { return *(const uint4*)p; }

// What a lane holds of an accumulator of 16 outputs × 8 rows: outputs `row` and row + 8, rows 2·pair and 2·pair + 1.
template <typename Form>
INLINE int own_row() {
    int place = threadIdx.x % 32 / 4;
    // Four neighbouring outputs of a tile would meet in the banks of shared memory where a lane reads eight bytes;
    // every second one does not.
    return Form::STEP == 16 ? place : place % 4 * 2 + place / 4;
}
INLINE int own_pair() { return threadIdx.x % 4; }

// The terms t_b of a unit, t[b][4n + 2h + i]: of output row + 8h and input row 8n + 2·pair + i.
template <typename Form>
struct Terms {
    float t[8 * Form::BLOCKS];
    u32 step[2];  // of a grid: of outputs row and row + 8
};
// Terms of one block where a chain's totals stand, while those are somewhere else.
template <typename Form>
INLINE void hold(const Terms<Form>& x, float (&t)[8], u32 (&step)[2]) {
#pragma unroll
    for (int k = 0; k < 8; k++) t[k] = x.t[k];
    if (Form::STEP == 64) step[0] = x.step[0], step[1] = x.step[1];
}
template <typename Form>
INLINE void hold(const float (&t)[8], const u32 (&step)[2], Terms<Form>& x) {
#pragma unroll
    for (int k = 0; k < 8; k++) x.t[k] = t[k];
    x.step[0] = step[0], x.step[1] = step[1];
}

// --- K-quants: fragments by matrix loads ---
// sum[n][2h + i] += scale[h] · c[n][2h + i].
INLINE void add_scaled(u32 (&sum)[2][4], const int (&c)[2][4], u32 scale, u32 scale8) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        sum[n][0] += scale * (u32)c[n][0], sum[n][1] += scale * (u32)c[n][1];
        sum[n][2] += scale8 * (u32)c[n][2], sum[n][3] += scale8 * (u32)c[n][3];
    }
}
// Codes of a tile's outputs from byte `at` of each on, 32 bytes; of 32 codes of sixteen rows.
INLINE void load_codes(u32 (&a)[4], const u8* tile, int bytes, int at) {
    int lane = threadIdx.x % 32;
    load_matrix4(a, shared_address(tile) + (u32)(lane % 16 * bytes + lane / 16 * 16 + at));
}
// A unit of the rows: where this lane begins to load 32 codes (registers 0 and 1: rows 0 to 7, 2 and 3: rows 8 to 15),
// and its two sums of row `lane / 4`.
struct Rows256 {
    u32 codes;
    const u8* sums;
    MEMBER void next(int units) { codes += (u32)(units * B256::NEXT), sums += units * B256::NEXT; }
};
INLINE Rows256 rows_at(B256, const u8* q, int) {
    int lane = threadIdx.x % 32;
    return {shared_address(q) + (u32)((lane % 8 + lane / 16 * 8) * CODES_PITCH + lane / 8 % 2 * 16),
            q + lane / 4 * CODES_PITCH + GROUP + 4 * own_pair()};
}
INLINE void load_rows(u32 (&b)[4], u32 codes, int k) { load_matrix4(b, codes + (u32)(32 * k)); }

// Mins 2·pair and 2·pair + 1 of a block, as f16.
INLINE u32 own_mins(const uint4& head) {
    int pair = own_pair();
    bool late = pair & 2;
    u32 mins = head.z >> (late ? 2 : 0) & (late ? 0x30303030u : 0x3f3f3f3fu);
    mins |= head.w >> 4 & (late ? 0x0f0f0f0fu : 0);
    return fma_halves(__byte_perm(mins, 0x64646464u, pair & 1 ? 0x4342 : 0x4140), 0x3c003c00u, 0xe400e400u);  // − 1024
}
// Σ m · (sum of 32 codes). A sum is 16·h + l, both whole numbers that f16 has: h and l are the last bits of
// 1536 + h and 1024 + l.
INLINE void min_sums(float (&m)[2][4], const uint4& head, const uint4& head8, const Rows256& rows) {
    u32 low = own_mins(head), high = own_mins(head8), a[4] = {low, high, low, high};
#pragma unroll
    for (int n = 0; n < 2; n++) {
        u32 w = *(const u32*)(rows.sums + n * 8 * CODES_PITCH);
        u32 l = fma_halves((w & 0x000f000fu) | 0x64006400u, 0x3c003c00u, 0xe400e400u);         // · 1 − 1024
        u32 h = fma_halves((w >> 4 & 0x03ff03ffu) ^ 0x66006600u, 0x4c004c00u, 0xf600f600u);  // · 16 − 24576
        m[n][0] = m[n][1] = m[n][2] = m[n][3] = 0.0f;
        mma_f16(m[n], a, l, h);
    }
}

// Codes of one word of nibbles, those of block 2j and of block 2j + 1, times `fold`. Q4_K: sixteen times
// the high one, which spares a shift. Q5_K: two times that, so that one shift of the fifth bits serves both.
template <int FORMAT>
INLINE void split_codes(u32 x, u32 fifths, int j, u32& first, u32& second) {
    if (FORMAT == Q4_K) {
        first = x & 0x0f0f0f0fu, second = x & 0xf0f0f0f0u;
    } else {
        u32 h = j < 2 ? fifths << (4 - 2 * j) : fifths >> (2 * j - 4);
        first = (x & 0x0f0f0f0fu) | (h & 0x10101010u), second = (x >> 3 & 0x1e1e1e1eu) | (h & 0x20202020u);
    }
}
// What those are multiplied by, so that both together are fold · (scale · low + scale · high).
template <int FORMAT>
INLINE void split_scales(const Scales& s, int j, u32& first, u32& second) {
    u32 even = s.scale[j >> 1] & 0x00ff00ffu;
    first = __byte_perm(FORMAT == Q4_K ? even * 16 : even * 2, 0, j & 1 ? 0x4432 : 0x4410);
    second = (u32)scale_of(s, 2 * j + 1);
}

template <int FORMAT>
INLINE void tile_k(const u8* tile, const Rows256& rows, float (&t)[8]) {
    constexpr int BYTES = FORMAT == Q5_K ? 176 : 144, CODES = BYTES - 128;
    u32 sum[2][4] = {}, fifths[4] = {};
    const u8* own = tile + own_row<B256>() * BYTES;
    uint4 head = quad_of(own), head8 = quad_of(own + 8 * BYTES);
    Scales s = read_scales(head.y, head.z, head.w), s8 = read_scales(head8.y, head8.z, head8.w);
    if (FORMAT == Q5_K) load_codes(fifths, tile, BYTES, 16);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 x[4], a[4], a2[4], b[4], b2[4], scale, scale8, by, by8;
        int c[2][4] = {}, c2[2][4] = {};
        load_codes(x, tile, BYTES, CODES + 32 * j);
        load_rows(b, rows.codes, 2 * j), load_rows(b2, rows.codes, 2 * j + 1);
#pragma unroll
        for (int i = 0; i < 4; i++) split_codes<FORMAT>(x[i], fifths[i], j, a[i], a2[i]);
        split_scales<FORMAT>(s, j, scale, by), split_scales<FORMAT>(s8, j, scale8, by8);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_u8(c[n], a, b[2 * n], b[2 * n + 1]);
            mma_u8(c2[n], a2, b2[2 * n], b2[2 * n + 1]);
        }
        add_scaled(sum, c, scale, scale8), add_scaled(sum, c2, by, by8);
    }
    float m[2][4], unfold = FORMAT == Q4_K ? 0x1p-4f : 0x1p-1f;
    min_sums(m, head, head8, rows);
    float d = mul1(half_to_float(head.x), unfold), d8 = mul1(half_to_float(head8.x), unfold);  // exact
    float dmin = half_to_float(head.x >> 16), dmin8 = half_to_float(head8.x >> 16);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        bool high = k & 2;
        float mins = mul1(high ? dmin8 : dmin, m[k >> 2][k & 3]);
        t[k] = fma1(high ? d8 : d, __int2float_rn((int)sum[k >> 2][k & 3]), -mins);
    }
}

// Four times the codes, centred: six bits without sign at the upper end of a byte, the highest one inverted.
INLINE u32 four_centred(u32 nibbles, u32 pairs, int part) {  // nibbles in place; pairs at bits 2·part and up, inverted
    u32 low = part < 2 ? nibbles << 2 : nibbles >> 2, high = pairs << (6 - 2 * part);
    return (low & 0x3c3c3c3cu) | (high & 0xc0c0c0c0u);
}
INLINE void tile_6(const u8* tile, const Rows256& rows, float (&t)[8]) {
    constexpr int BYTES = 208;
    const u8* own = tile + own_row<B256>() * BYTES;
    const u16* apart = (const u16*)(tile + TILE_OUTPUTS * BYTES) + own_row<B256>();
    u32 d_of = apart[0], d8_of = apart[8], codes = rows.codes, sum[2][4] = {};
#pragma unroll 1
    for (int half = 0; half < 2; half++, own += 8, codes += 128) {
        uint2 s = pair_of(own), s8 = pair_of(own + 8 * BYTES);
        u32 nibbles[2][4], pairs[4];
        load_codes(nibbles[0], tile + 64 * half, BYTES, 16), load_codes(nibbles[1], tile + 64 * half, BYTES, 48);
        load_codes(pairs, tile + 32 * half, BYTES, 144);
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] ^= 0xaaaaaaaau;
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 a[4], b[4];
            load_rows(b, codes, part);
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = four_centred(nibbles[part & 1][i], pairs[i], part);
#pragma unroll
            for (int i = 0; i < 2; i++) {  // sixteen codes have a scale
                int c[2][4] = {}, at = 2 * (part & 1) + i;
                for (int n = 0; n < 2; n++) mma_s8_16(c[n], a[2 * i], a[2 * i + 1], b[2 * n + i]);
                add_scaled(sum, c, signed_byte(part < 2 ? s.x : s.y, at), signed_byte(part < 2 ? s8.x : s8.y, at));
            }
        }
    }
    float d = mul1(half_to_float(d_of), 0x1p-2f), d8 = mul1(half_to_float(d8_of), 0x1p-2f);  // exact
#pragma unroll
    for (int k = 0; k < 8; k++) t[k] = mul1(k & 2 ? d8 : d, __int2float_rn((int)sum[k >> 2][k & 3]));
}
INLINE void unit_terms(B256, int format, const u8* tile, const Rows256& rows, Terms<B256>& to) {
    if (format == Q4_K) tile_k<Q4_K>(tile, rows, to.t);
    else if (format == Q5_K) tile_k<Q5_K>(tile, rows, to.t);
    else tile_6(tile, rows, to.t);
}

// --- blocks of 32 and floats: a lane takes eight neighbouring codes of a weight and of a row ---
template <int BYTES>
struct RowsPlain {
    const u8* q;
    int pitch;
    MEMBER void next(int units) { q += units * BYTES; }
};
INLINE RowsPlain<CODES_PITCH> rows_at(B32, const u8* q, int pitch) { return {q, pitch}; }
INLINE RowsPlain<GRID_UNIT> rows_at(BGrid, const u8* q, int pitch) { return {q, pitch}; }
struct Operands {
    const u8 *w, *q;  // of outputs `row` and row + 8; of input rows `column` and column + 8
    int w8, q8;       // bytes from one to the other
    const u8* sums;   // of input row 2·pair
    int q1;           // bytes from one input row to the next
};
INLINE const u8* sums_of(const Operands& o, int i) {
    return o.sums + (i & 1) * o.q1 + (i >> 1) * o.q8;
}  // rows 0, 1, 8, 9
INLINE void pairs_at(const Operands& o, int at, uint2 (&b)[2]) {
    b[0] = pair_of(o.q + at), b[1] = pair_of(o.q + o.q8 + at);
}
INLINE Operands operands(int bytes, int row, const u8* tile, const u8* q, int pitch) {
    int column = threadIdx.x % 32 / 4;
    return {tile + row * bytes, q + column * pitch, 8 * bytes, 8 * pitch,
            q + 2 * own_pair() * pitch + GROUP, pitch};
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
        pairs_at(o, 32 * j + 8 * pair, b);
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

INLINE void unit_terms(B32, int format, const u8* tile, const RowsPlain<CODES_PITCH>& rows, Terms<B32>& to) {
    Operands o = operands(group_bytes(format), own_row<B32>(), tile, rows.q, rows.pitch);
    switch (format) {
        case Q8_0: return tile_32<Q8_0>(o, own_pair(), to.t);
        case Q4_0: return tile_32<Q4_0>(o, own_pair(), to.t);
        case Q4_1: return tile_32<Q4_1>(o, own_pair(), to.t);
        case Q5_0: return tile_32<Q5_0>(o, own_pair(), to.t);
        default: return tile_32<Q5_1>(o, own_pair(), to.t);
    }
}
INLINE void unit_terms(BGrid, int, const u8* tile, const RowsPlain<GRID_UNIT>& rows, Terms<BGrid>& to) {
    int row = own_row<BGrid>();
    const u32* steps = (const u32*)(tile + TILE_OUTPUTS * GRID_UNIT);
    to.step[0] = steps[row], to.step[1] = steps[row + 8];
    tile_grid(operands(GRID_UNIT, row, tile, rows.q, rows.pitch), own_pair(), to.t);
}

// --- jobs ---
struct __align__(16) Tile {
    const u8* from;  // its first unit
    u32 what;        // part, format, bytes of a unit
    int output;      // the first one
    MEMBER int part() const { return (int)(what & 3); }
    MEMBER int format() const { return (int)(what >> 2 & 31); }
    MEMBER int bytes() const { return (int)(what >> 7); }
};
INLINE Tile& tile_of_block(int i) { return ((Tile*)at_byte(work.list))[i]; }
INLINE Tile make_tile(const Part& part, int p, int units, int tile) {
    u32 bytes = (part.size & 31) * 256 + (part.size >> 5) * 16;
    return {part.weights + (i64)tile * units * bytes, (u32)p | (u32)part.format << 2 | bytes << 7, tile * TILE_OUTPUTS};
}

struct __align__(16) Chain {
    float totals[16 * TILE_OUTPUTS];  // as the lanes hold them
    u32 done, spare[3];               // jobs of this tile and of those that were here before
};
static_assert(sizeof(Chain) == 1040, "what the launch counts");

INLINE Chain* chain_at(int i) { return (Chain*)at_byte(work.chains) + i; }
template <typename Form>
INLINE const float* scales_at(int unit) {  // of this lane's first row
    return (const float*)at_byte(work.scales) + 16 * Form::BLOCKS * unit + 2 * own_pair();
}

// The first output that begins at or behind x.
INLINE u32 output_at(const Part& part, u32 cost, u32 x) {
    return x > part.base ? min((u32)part.outputs, __umulhi(x - part.base + cost - 1, part.by_cost)) : 0;
}

// What a thread block has to do, by one warp: lane p shares out part p, lane PARTS has the sums.
template <typename Form>
INLINE void know_work(const Matvec& a, int warps) {
    int lane = threadIdx.x % 32, gated = is_gated(a), before = 0, starts[PARTS + 1];
    const Part& part = a.parts[lane % PARTS];
    u32 low = split_at(a.split, blockIdx.x), high = split_at(a.split, blockIdx.x + 1), cost = part.size & 31;
    if (!gated) low = output_at(part, cost, low), high = output_at(part, cost, high);
    int first = (int)(low + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    int count = (int)(high + TILE_OUTPUTS - 1) / TILE_OUTPUTS - first;
    if (lane >= (gated ? 2 : PARTS)) count = 0;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        int more = __shfl_sync(~0u, count, k);
        if (k < lane) before += more;
    }
#pragma unroll
    for (int k = 0; k <= PARTS; k++) starts[k] = __shfl_sync(~0u, before, k);

    Batch b;
    int units = (a.source.width + Form::UNIT - 1) / Form::UNIT;
    b.units = units, b.blocks = units * Form::BLOCKS, b.jobs = (units + Form::SPAN - 1) / Form::SPAN;
    b.slice = min(a.slice, b.jobs * Form::SPAN);
    b.span = b.slice / Form::SPAN, b.slices = (int)((u32)(b.jobs + b.span - 1) / (u32)b.span);
    bool cut = b.slices > COPIES;
    b.pitch = pitch_of<Form>(cut ? b.slice : units);
    b.step = cut ? rows_bytes<Form>(b.slice) : b.slice * Form::NEXT;
    b.tiles = starts[PARTS], b.pass = a.pass;
    b.again = cut ? b.slices : 0;
    b.rounds = b.tiles ? b.slices : 0;
#pragma unroll 1
    for (int i = b.pass; i < b.tiles; i += b.pass) b.rounds += b.again;
    b.rows = warps * a.stages * a.stage_bytes;
    b.scales = b.rows + (cut ? COPIES * b.step : rows_bytes<Form>(units));
    b.chains = b.scales + 64 * b.blocks;
    b.list = b.chains + (int)sizeof(Chain) * b.pass;
    b.runs = !cut && b.tiles >= warps && b.pass >= (gated ? b.tiles : warps);
    if (lane == 0) work = b;
    for (int i = lane; i < b.pass; i += 32) ((Chain*)at_byte(b.chains))[i].done = 0;
#pragma unroll 1
    for (int base = 0; base < b.tiles; base += 32) {
        int i = base + lane, p = (i >= starts[1]) + (i >= starts[2]) + (i >= starts[3]), tile = i;
        if (gated) p = i & 1, tile = i >> 1;
        else tile -= __shfl_sync(~0u, before, p);
        tile += __shfl_sync(~0u, first, p);
        if (i < b.tiles) ((Tile*)at_byte(b.list))[i] = make_tile(a.parts[p], p, units, tile);
    }
}

// Where a warp is: job q of tile t of the n that are under way in this pass; behind the last one q is negative.
struct Walk {
    int q, t, n, pass;
    MEMBER bool over() const { return q < 0; }
    MEMBER int tile() const { return pass * work.pass + t; }
    MEMBER bool forward(int by) {  // whether into another pass
        bool another = false;
        t += by;
#pragma unroll 1
        while (t >= n) t -= n, q++;
#pragma unroll 1
        while (q >= work.jobs) {
            t += (q - work.jobs) * n, q = 0, pass++, another = true;
            n = min(work.pass, work.tiles - pass * work.pass);
            if (n <= 0) {
                q = -1;
                break;
            }
#pragma unroll 1
            while (t >= n) t -= n, q++;
        }
        return another;
    }
};
INLINE Walk walk_from(int job) {
    Walk w = {0, 0, min(work.pass, work.tiles), 0};
    if (w.n <= 0) w.q = -1;
    else w.forward(job);
    return w;
}

// The part of all units, tile by tile, that one warp does: from unit `unit` of a tile up to unit `end` of another one.
struct __align__(16) Run {
    int tile, unit, last, end;
};
__shared__ Run runs[BATCH_WARPS];
INLINE Run run_of(int warp, int warps) {
    int units = work.units, all = work.tiles * units, each = all / warps, more = all - each * warps;
    int low = each * warp + min(warp, more), high = low + each + (warp < more);
    int first = low / units, last = high / units;
    return {first, low - first * units, last, high - last * units};
}
// Its i-th stretch of a tile, as they are done: the last tile's first units, whole tiles, the first tile's last units.
struct Stretch {
    int tile, unit, end;  // no tile: -1
};
INLINE Stretch stretch_of(int i) {
    Run r = runs[threadIdx.x / 32];
    if (r.end && i == 0) return {r.last, 0, r.end};
    int tile = r.tile + (r.unit > 0) + i - (r.end > 0);
    if (tile < r.last) return {tile, 0, work.units};
    return {tile == r.last && r.unit ? r.tile : -1, r.unit, work.units};
}

// --- the ring of one warp: a unit of a tile in each stage ---
__shared__ u64 stages_full[BATCH_WARPS * BATCH_STAGES];

INLINE u8* stage_at(const Matvec& a, int stage) {
    return at_byte((int)((threadIdx.x / 32 * a.stages + stage) * a.stage_bytes));
}

struct Asking {  // what a warp requests next: `left` units of a tile
    const u8* from;
    int left, bytes, piece;
    MEMBER void begin(int i, int unit, int units) {
        const Tile g = tile_of_block(i);
        bytes = g.bytes(), from = g.from + (i64)unit * bytes, left = units;
    }
};
__shared__ Walk asked[BATCH_WARPS];  // the job of that

template <typename Form>
INLINE void ask_for(Asking& next, const Walk& at) {
    int unit = Form::SPAN * at.q;
    next.left = 0;
    if (!at.over()) next.begin(at.tile(), unit, min(Form::SPAN, work.units - unit));
}
INLINE void ask_for_piece(Asking& next) {
    Stretch p = stretch_of(next.piece++);
    next.left = 0;
    if (p.tile >= 0) next.begin(p.tile, p.unit, p.end - p.unit);
}
// A group of copies even where there is nothing more, so that they can be counted.
template <typename Form, bool by_runs>
INLINE void request_next(Asking& next, u8* to, u64* full) {
    int lane = threadIdx.x % 32;
    if (next.left) {
#ifdef HAS_BULK
        if (lane == 0) {
            barrier_expect(full, (u32)next.bytes);
            bulk_copy_once(to, next.from, (u32)next.bytes, full);
        }
#else
        for (int i = 16 * lane; i < next.bytes; i += 512) copy16(to + i, next.from + i);
#endif
        next.from += next.bytes, next.left--;
        if (next.left == 0 && by_runs) {
            ask_for_piece(next);
        } else if (next.left == 0) {
            Walk at = asked[threadIdx.x / 32];
            at.forward(blockDim.x / 32 - 1);
            ask_for<Form>(next, at);
            __syncwarp();
            if (lane == 0) asked[threadIdx.x / 32] = at;
            __syncwarp();
        }
    }
#ifndef HAS_BULK
    copy_commit();
#endif
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

// --- the rows ---
// Full: a slice of the rows is there. Empty: all warps are through with it.
__shared__ u64 rows_full[COPIES], rows_empty[COPIES];

// By a warp.
INLINE void copy_some(u8* to, const u8* from, int bytes) {
    for (int k = 16 * (threadIdx.x % 32); k < bytes; k += 512) copy16(to + k, from + k);
}
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
    copy_commit();
    copy_wait<0>();
    barrier_arrive(full);
#endif
}
// The warp that fetches the rows, a slice at a time.
template <typename Form>
INLINE void fetch_slices(const Matvec& a, const Batch& b, int n) {
    int begin = 0;
#pragma unroll 1
    for (int i = 0; i < b.rounds; i++) {
        if (i >= COPIES) barrier_wait(rows_empty + i % COPIES, (u32)(i / COPIES - 1) & 1);
        __syncwarp();  // all lanes have seen it before it can end again
        fetch_slice<Form>(a, b, n, begin, min(b.slice, b.units - begin), i < b.slices, at_byte(b.rows + i % COPIES * b.step),
                          rows_full + i % COPIES);
        begin += b.slice;
        if (begin >= b.units) begin = 0;
    }
}
// The rows' scales, sixteen of a block side by side. Of rows that are not there something is read too, for nothing.
INLINE void fetch_scales(const float* from, float* to, int blocks, int warps) {
    int r = threadIdx.x % 16;
#pragma unroll 4
    for (int i = threadIdx.x / 16; i < blocks; i += 2 * warps) to[16 * i + r] = from[(i64)r * blocks + i];
}
// A warp goes on to a later fetch: all of them pass all of them, whether they have a job there or not.
INLINE void go_to_round(int& there, int to) {
#pragma unroll 1
    while (there < to) {
        __syncwarp();  // all lanes have seen this round's barrier before another one can end
        if (there >= 0 && threadIdx.x % 32 == 0) barrier_arrive(rows_empty + there % COPIES);
        there++;
        barrier_wait(rows_full + there % COPIES, (u32)(there / COPIES) & 1);
    }
}

// The run of one warp. It is a tile long at least, so the totals that it goes on with at its end are there by then.
template <typename Form>
INLINE void multiply_run(const Matvec& a, Asking& next) {
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 - 1, stage = 0, there = -1, until = 0;
    u64* full = stages_full + warp * BATCH_STAGES;
    u32 phase = 0;
    bool gated = is_gated(a);
    float total[8];
#pragma unroll 1
    for (int i = 0;; i++) {
        Stretch p = stretch_of(i);
        if (p.tile < 0) break;
        const Tile& g = tile_of_block(p.tile);
        int format = g.format();
        auto rows = rows_at(Form(), at_byte(work.rows), work.pitch);
        rows.next(p.unit);
        const float* scales = scales_at<Form>(p.unit);
        if (p.unit) {
            Chain* chain = chain_at(gated ? p.tile : warp - 1);
            count_wait(&chain->done, 1);
            load_chain(chain->totals, total);
        } else {
            for (int k = 0; k < 8; k++) total[k] = 0.0f;
        }
#pragma unroll 1
        for (int unit = p.unit; unit < p.end; unit++) {
            for (; unit >= until; until += work.slice) go_to_round(there, there + 1);
            u8* here = stage_at(a, stage);
            Terms<Form> now;
            await(full + stage, phase, a.stages);
            unit_terms(Form(), format, here, rows, now);
            __syncwarp();
            request_next<Form, true>(next, here, full + stage);
            advance(Form(), scales, now, total);
            rows.next(1), scales += 16 * Form::BLOCKS;
            if (++stage == a.stages) stage = 0, phase ^= 1;
        }
        bool whole = p.end == work.units;
        if (whole && !gated) {
            write_tile<Form>(a, g, total, nullptr);
            continue;
        }
        Chain* chain = chain_at(gated ? p.tile : warp);
        store_chain(chain->totals, total);
        __syncwarp();
        if (!whole && threadIdx.x % 32 == 0) count_set(&chain->done, 1);
    }
    if (gated) {
        named_sync(1, 32 * warps);
        for (int i = 2 * warp; i < work.tiles; i += 2 * warps) {
            load_chain(chain_at(i + 1)->totals, total);
            write_tile<Form>(a, tile_of_block(i + 1), total, chain_at(i)->totals);
        }
    }
#ifndef HAS_BULK
    copy_wait<0>();
#endif
}

// The jobs of one warp.
template <typename Form>
INLINE void multiply(const Matvec& a, Asking& next) {
    int warp = threadIdx.x / 32, stage = 0, there = -1, until = -1;
    u64* full = stages_full + warp * BATCH_STAGES;
    u32 phase = 0;
    int rows_from = 0;  // where unit 0 would be, were it in this slice's place
    Walk at = walk_from(warp);
#pragma unroll 1
    while (!at.over()) {
        int unit = Form::SPAN * at.q;
        if (at.q >= until) {  // another slice
            int slice = 0;
            for (until = work.span; at.q >= until; until += work.span) slice++;
            int round = at.pass * work.again + slice;
            go_to_round(there, round);
            rows_from = work.rows + round % COPIES * work.step - slice * work.slice * Form::NEXT;
        }
        const Tile& g = tile_of_block(at.tile());
        int format = g.format(), count = min(Form::SPAN, work.units - unit);
        auto rows = rows_at(Form(), at_byte(rows_from + unit * Form::NEXT), work.pitch);
        Terms<Form> now;
        float total[8];
        u32 steps[2] = {};
#pragma unroll 1
        for (int k = 0; k < count; k++) {
            if (Form::SPAN > 1 && k) hold(now, total, steps);
            u8* here = stage_at(a, stage);
            await(full + stage, phase, a.stages);
            unit_terms(Form(), format, here, rows, now);
            rows.next(1);
            __syncwarp();
            request_next<Form, false>(next, here, full + stage);
            if (++stage == a.stages) stage = 0, phase ^= 1;
        }
        Terms<Form> before;
        hold(total, steps, before);

        // Of a gate's tile the totals stay, until those of the other tile are written out.
        bool gated = is_gated(a), kept = gated && at.t % 2 == 0, last = at.q + 1 == work.jobs;
        Chain* chain = chain_at(at.t);
        u32 job = (u32)(at.pass * work.jobs + at.q);
        const float* scales = scales_at<Form>(unit);
        count_wait(&chain->done, job);
        if (at.q) {
            load_chain(chain->totals, total);
        } else {
            if (kept) count_wait(&chain[1].done, job);
            for (int k = 0; k < 8; k++) total[k] = 0.0f;
        }
        if (Form::SPAN > 1 && count > 1) advance(Form(), scales, before, total), scales += 16 * Form::BLOCKS;
        advance(Form(), scales, now, total);
        if (last && !kept) {
            if (gated) count_wait(&chain[-1].done, job + 1);
            write_tile<Form>(a, g, total, chain[-1].totals);
        } else {
            store_chain(chain->totals, total);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) count_set(&chain->done, job + 1);
        if (at.forward(blockDim.x / 32 - 1)) until = -1;
    }
    go_to_round(there, work.rounds - 1);
#ifndef HAS_BULK
    copy_wait<0>();
#endif
}

template <typename Form>
INLINE void batch(const Matvec& a) {
    int warp = threadIdx.x / 32, warps = blockDim.x / 32 - 1;
    next_kernel_may_start();
    if (warp == 0) {
        know_work<Form>(a, warps);
    } else if (threadIdx.x % 32 == 0) {
#pragma unroll 1
        for (int i = 0; i < a.stages; i++) barrier_init(stages_full + (warp - 1) * BATCH_STAGES + i, 1);
    }
    if (warp == warps && threadIdx.x % 32 < COPIES) {
        int i = threadIdx.x % 32;
#ifdef HAS_BULK
        barrier_init(rows_full + i, 1);
#else
        barrier_init(rows_full + i, 32);
#endif
        barrier_init(rows_empty + i, warps);
    }
#ifdef HAS_BULK
    barrier_fence();
#endif
    __syncthreads();
    if (warp == warps) {
        int n = min(*a.count, 16);
        touch(a);
        if (threadIdx.x % 32 == 0) work.rows_there = n;
        previous_kernel_done();
        if (blockIdx.x == 0 && threadIdx.x % 32 == 0) *a.made = 0;
        return fetch_slices<Form>(a, work, n);
    }
    Asking next;
    next.piece = 0;
    bool by_runs = work.runs;
    if (by_runs) {
        if (threadIdx.x % 32 == 0) runs[warp] = run_of(warp, warps);
        __syncwarp();
        ask_for_piece(next);
    } else {
        Walk first = walk_from(warp);
        ask_for<Form>(next, first);
        if (threadIdx.x % 32 == 0) asked[warp] = first;
        __syncwarp();
    }
#pragma unroll 1
    for (int i = 0; i < a.stages; i++) {
        u8* here = stage_at(a, i);
        u64* full = stages_full + warp * BATCH_STAGES + i;
        if (by_runs) request_next<Form, true>(next, here, full);
        else request_next<Form, false>(next, here, full);
    }
    touch(a);
    previous_kernel_done();
    if constexpr (!Form::TOGETHER) {  // else they come with the slices
        fetch_scales(a.source.scales, (float*)at_byte(work.scales), work.blocks, warps);
        named_sync(1, 32 * warps);
    }
    if (by_runs) multiply_run<Form>(a, next);
    else multiply<Form>(a, next);
}

#if __CUDA_ARCH__ == 900
constexpr int MOST_THREADS = 512;
#else
constexpr int MOST_THREADS = 384;  // elsewhere the compiler spills below 168 registers
#endif
KERNEL BOUNDS(MOST_THREADS, 1) batch_256(const __grid_constant__ Matvec a) { batch<B256>(a); }
KERNEL BOUNDS(384, 1) batch_32(const __grid_constant__ Matvec a) { batch<B32>(a); }
KERNEL BOUNDS(384, 1) batch_grid(const __grid_constant__ Matvec a) { batch<BGrid>(a); }
