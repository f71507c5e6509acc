// The terms t_b of sixteen outputs and up to sixteen rows, a unit of 256 elements (floats: 128) at a time, on 8-bit matrix
// units: what `batch.cuh` makes its chains of. Inside library.cu, after matvec.cuh. The order of k within a block of 32 is
// free, as long as weights and rows have the same.
#pragma once

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
