// A weight's file bytes into its place: the layouts of blocks.cuh. Inside library.cu, after blocks.cuh.
//
// place_q4_0 … place_q6_k   one thread a word of the layout: grid ceil(rows·groups·group_bytes/4 / 256), block 256
// place_f32, place_f16, place_bf16   one warp a block of 128: grid ceil(rows·ceil(K/128) / 8), block 256
// No dynamic shared memory. `from` holds the file's rows of `outputs` outputs from `first` on; `rows` ≥
// outputs counts the outputs to write, those beyond `outputs` as zeros. A scale or float weight that is
// not finite reports its output. Bytes to write must stay below 2^33 a launch (words are counted in 32
// bits).
#pragma once

struct Place {
    const u8* from;  // staging, at an address that 16 divides
    u8* to;          // the weight's first tile
    Faults faults;
    i64 first;
    int outputs, rows, width;
};

INLINE u32 pair_at(const u8* p) { return *(const u16*)p; }
INLINE u32 word_at(const u8* p) { return pair_at(p) | pair_at(p + 2) << 16; }
INLINE bool lost_half(u32 h) { return (h & 0x7c00) == 0x7c00; }

struct Spot {  // a word of the layout
    int row, group, word;
    bool inside, present;
};
INLINE Spot spot_of(const Place& a, int words) {
    previous_kernel_done();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x, groups = (u32)(a.width + GROUP - 1) / GROUP;
    Spot s;
    s.row = (int)(i / (groups * words));
    s.group = (int)(i / words % groups), s.word = (int)(i % words);
    s.inside = s.row < a.rows, s.present = s.row < a.outputs;
    return s;
}
template <int FORMAT>
INLINE u8* target_tile(const Place& a, int row, int units, int unit) {
    return a.to + tile_at(FORMAT, units, (int)a.first + row, unit);
}
template <int FORMAT>
INLINE u32* target_of(const Place& a, const Spot& s) {
    u8* tile = target_tile<FORMAT>(a, s.row, (a.width + GROUP - 1) / GROUP, s.group);
    return (u32*)(tile + (a.first + s.row) % TILE_OUTPUTS * group_bytes(FORMAT)) + s.word;
}
// Of an output, behind the tile's.
template <int FORMAT>
INLINE void* target_apart(const Place& a, int row, int units, int unit) {
    int at = (int)((a.first + row) % TILE_OUTPUTS);
    return target_tile<FORMAT>(a, row, units, unit) + TILE_OUTPUTS * group_bytes(FORMAT) + at * apart_bytes(FORMAT);
}
INLINE u32 checked_halves(const Place& a, const Spot& s, u32 w) {
    if (lost_half(w) || lost_half(w >> 16)) report(a.faults, (int)(a.first + s.row));
    return w;
}

template <int FORMAT>
INLINE void place_k(const Place& a) {
    constexpr int BYTES = FORMAT == Q4_K ? 144 : 176;
    Spot s = spot_of(a, BYTES / 4);
    if (!s.inside) return;
    u32 w = 0;
    if (s.present)
        w = ((const u32*)a.from)[((i64)s.row * (a.width / GROUP) + s.group) * (BYTES / 4) + s.word];
    if (s.word == 0) checked_halves(a, s, w);
    *target_of<FORMAT>(a, s) = w;
}
KERNEL place_q4_k(Place a) { place_k<Q4_K>(a); }
KERNEL place_q5_k(Place a) { place_k<Q5_K>(a); }

KERNEL place_q6_k(Place a) {  // 210 bytes: 0 low[128], 128 high[64], 192 scales[16], 208 d
    Spot s = spot_of(a, 52);
    if (!s.inside) return;
    int groups = a.width / GROUP;
    const u8* block = a.from + ((i64)s.row * groups + s.group) * 210;
    int at = s.word < 4 ? 192 + 4 * s.word : 4 * s.word - 16;
    *target_of<Q6_K>(a, s) = s.present ? word_at(block + at) : 0;
    if (s.word == 0)
        *(u16*)target_apart<Q6_K>(a, s.row, groups, s.group) =
            (u16)checked_halves(a, s, s.present ? pair_at(block + 208) : 0);
}

// In the file: d, then m, then the fifth bits, then the codes of one block.
template <int FORMAT>
INLINE void place_32(const Place& a) {
    using Form = Form32<FORMAT>;
    constexpr int CODES = FORMAT == Q8_0 ? 32 : 16, M = 2, FIFTHS = 2 + 2 * Form::OFFSET;
    constexpr int BLOCK = FIFTHS + 4 * Form::FIFTHS, BYTES = BLOCK + CODES,
                  WORDS = 4 * Form::HEAD + 2 * CODES;
    Spot s = spot_of(a, WORDS);
    if (!s.inside) return;
    int blocks = s.present ? a.width / 32 : 0;
    const u8* row = a.from + (i64)s.row * blocks * BYTES;
    int w = s.word, j = 8 * s.group;
    u32 value = 0;
    if (w < 4 + 4 * Form::OFFSET) {
        int at = w < 4 ? 0 : M;
        j += 2 * (w & 3);
        if (j < blocks) value = pair_at(row + (i64)j * BYTES + at);
        if (j + 1 < blocks) value |= pair_at(row + (i64)(j + 1) * BYTES + at) << 16;
        checked_halves(a, s, value);
    } else if (w < 4 * Form::HEAD) {
        j += w - 4 - 4 * Form::OFFSET;
        if (j < blocks) value = word_at(row + (i64)j * BYTES + FIFTHS);
    } else {
        w -= 4 * Form::HEAD, j += w / (CODES / 4);
        if (j < blocks) value = word_at(row + (i64)j * BYTES + BLOCK + 4 * (w % (CODES / 4)));
    }
    *target_of<FORMAT>(a, s) = value;
}
KERNEL place_q8_0(Place a) { place_32<Q8_0>(a); }
KERNEL place_q4_0(Place a) { place_32<Q4_0>(a); }
KERNEL place_q4_1(Place a) { place_32<Q4_1>(a); }
KERNEL place_q5_0(Place a) { place_32<Q5_0>(a); }
KERNEL place_q5_1(Place a) { place_32<Q5_1>(a); }

template <int FORMAT>
INLINE float weight_at(const u8* from, i64 i) {
    if (FORMAT == F32) return ((const float*)from)[i];
    u32 bits = ((const u16*)from)[i];
    return FORMAT == F16 ? half_to_float(bits) : __uint_as_float(bits << 16);
}

template <int FORMAT>
INLINE void place_grid(const Place& a) {
    previous_kernel_done();
    int blocks = (a.width + GRID_BLOCK - 1) / GRID_BLOCK, lane = threadIdx.x % 32;
    u32 i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int row = (int)(i / blocks), b = (int)(i % blocks), at = b * GRID_BLOCK + 4 * lane;
    if (row >= a.rows) return;
    float v[4];
    u32 top = 0;
    for (int k = 0; k < 4; k++) {
        bool present = row < a.outputs && at + k < a.width;
        v[k] = present ? z(weight_at<FORMAT>(a.from, (i64)row * a.width + at + k)) : 0.0f;
        if (lost(v[k])) report(a.faults, (int)(a.first + row));
        top = max(top, bits_abs(v[k]));
    }
    int e = grid_step(warp_max(top), 11, -60), n[4];
    for (int k = 0; k < 4; k++) n[k] = grid_code(v[k], e, 11);
    uint2* to = (uint2*)(target_tile<FORMAT>(a, row, blocks, b) + (a.first + row) % TILE_OUTPUTS * GRID_UNIT);
    to[lane] = make_uint2((u32)(n[0] & 0xffff) | (u32)n[1] << 16, (u32)(n[2] & 0xffff) | (u32)n[3] << 16);
    if (lane == 0) *(float*)target_apart<FORMAT>(a, row, blocks, b) = pow2(e);
}
KERNEL place_f32(Place a) { place_grid<F32>(a); }
KERNEL place_f16(Place a) { place_grid<F16>(a); }
KERNEL place_bf16(Place a) { place_grid<BF16>(a); }
