// Embedding: the file's own values of a token's row, from the layout in which projections read it.
//
//   embed_<quantised type>  grid (ceil(groups / 8), rows), block 256, all buckets: a warp a group of 256 elements,
//       a lane eight of them. weight: the tiles of blocks.cuh; width a multiple of 32.
//   embed_f16, embed_bf16, embed_f32  grid (ceil(width / (4·block)), rows), block 32 to 256, all buckets.
//       weight: the file's rows [outputs][width] as they are, any width.
// out: f32 [rows][width]. No dynamic shared memory. After rows.cuh.
#pragma once

struct Embed {
    const u8* weight;
    float* out;
    Step step;
    Faults faults;
    int width, groups;
};

namespace embed {
INLINE u32 byte_of(u64 w, int i) { return (u32)(w >> 8 * i) & 255; }
INLINE u64 bytes8(const u8* p) { return *(const u64*)p; }
INLINE float half_at(const u8* p, int i) { return half_to_float(((const u16*)p)[i]); }
INLINE float product(float d, int code) { return mul1(d, __int2float_rn(code)); }

// A group of eight blocks of 32: d[8], m[8] where there are any, fifth bits [8], then codes. A lane has elements
// 8·(lane % 4) … + 7 of block lane / 4; nibbles: element i is the low half of byte i, i + 16 the high half.
template <int CENTRE, bool OFFSET, bool FIFTH>
struct Nibbles {
    static constexpr int HIGH = OFFSET ? 32 : 16, CODES = HIGH + (FIFTH ? 32 : 0), BYTES = CODES + 128, APART = 0;
    INLINE void values(const u8* p, float, int lane, float (&v)[8]) {
        int block = lane / 4, first = 8 * (lane % 4);
        u64 w = bytes8(p + CODES + block * 16 + first % 16) >> (first / 16 * 4);
        u32 fifth = FIFTH ? ((const u32*)(p + HIGH))[block] >> first : 0;
        float d = half_at(p, block), m = OFFSET ? half_at(p + 16, block) : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int code = (int)(byte_of(w, i) & 15 | (fifth >> i & 1) << 4) - CENTRE;
            v[i] = OFFSET ? add1(product(d, code), m) : product(d, code);
        }
    }
};
struct Q8_0 {
    static constexpr int BYTES = 272, APART = 0;
    INLINE void values(const u8* p, float, int lane, float (&v)[8]) {
        u64 w = bytes8(p + 16 + lane * 8);
        float d = half_at(p, lane / 4);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = product(d, (i8)byte_of(w, i));
    }
};

// K-quants as in the file: d, dmin, 12 bytes of scales and mins, [32 of fifth bits,] 128 of nibbles.
template <bool FIFTH>
struct K45 {
    static constexpr int CODES = FIFTH ? 48 : 16, BYTES = CODES + 128, APART = 0;
    INLINE void values(const u8* p, float, int lane, float (&v)[8]) {
        int j = lane / 4, l = 8 * (lane % 4);  // of 32 elements each
        const u8* s = p + 4;
        int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int low = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        u64 w = bytes8(p + CODES + j / 2 * 32 + l) >> (j % 2 * 4), fifth = FIFTH ? bytes8(p + 16 + l) >> j : 0;
        float d = half_at(p, 0), m = product(half_at(p, 1), low);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int code = (int)(byte_of(w, i) & 15 | (byte_of(fifth, i) & 1) << 4);
            v[i] = add1(product(d, sc * code), -m);
        }
    }
};
// Q6_K on the card: 16 scales, 128 low nibbles, 64 upper pairs; d apart.
struct Q6_K {
    static constexpr int BYTES = 208, APART = 2;
    INLINE void values(const u8* p, float d, int lane, float (&v)[8]) {
        int half = lane / 16, j = lane / 4 % 4, l = 8 * (lane % 4);  // element 128·half + 32·j + l
        u64 low = bytes8(p + 16 + 64 * half + 32 * (j & 1) + l) >> (j / 2 * 4);
        u64 high = bytes8(p + 144 + 32 * half + l) >> (2 * j);
        int scale = (i8)p[lane / 2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int code = (int)(byte_of(low, i) & 15 | (byte_of(high, i) & 3) << 4) - 32;
            v[i] = product(d, scale * code);
        }
    }
};

template <class TYPE>
INLINE void blocks(const Embed& a) {
    int row = blockIdx.y, group = (int)blockIdx.x * 8 + (int)threadIdx.x / 32, lane = threadIdx.x % 32;
    int k = group * 256 + lane * 8;
    bool inside = row < *a.step.count && k < a.width, bad = false;
    float v[8];
    next_kernel_may_start();
    if (inside) {
        int token = a.step.tokens[row], at = token % 16;
        const u8* tile = a.weight + ((size_t)(token / 16) * a.groups + group) * (16 * (TYPE::BYTES + TYPE::APART));
        float d = TYPE::APART ? half_at(tile + 16 * TYPE::BYTES, at) : 0.0f;
        TYPE().values(tile + at * TYPE::BYTES, d, lane, v);
    }
    previous_kernel_done();
    if (!inside) return;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = rows::kept(v[i], bad);
    float4* to = (float4*)(a.out + (size_t)row * a.width + k);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    if (bad) report(a.faults, row);
}

INLINE float value_of(u16 bits, bool brain) { return brain ? __uint_as_float((u32)bits << 16) : half_to_float(bits); }
template <class T, bool BRAIN>
INLINE void floats(const Embed& a) {
    int row = blockIdx.y, k = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4;
    bool bad = false;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= *a.step.count) return;
    const T* from = (const T*)a.weight + (size_t)a.step.tokens[row] * a.width;
    float* to = a.out + (size_t)row * a.width;
    for (int i = k; i < min(k + 4, a.width); i++) {
        float v;
        if constexpr (sizeof(T) == 4) v = from[i];
        else v = value_of(from[i], BRAIN);
        to[i] = rows::kept(v, bad);
    }
    if (bad) report(a.faults, row);
}
}  // namespace embed

#define EMBED(name, TYPE) \
    KERNEL BOUNDS(256, 2) name(const Embed a) { embed::blocks<TYPE>(a); }
#define COMMA ,
EMBED(embed_q8_0, embed::Q8_0)
EMBED(embed_q4_0, embed::Nibbles<8 COMMA false COMMA false>)
EMBED(embed_q4_1, embed::Nibbles<0 COMMA true COMMA false>)
EMBED(embed_q5_0, embed::Nibbles<16 COMMA false COMMA true>)
EMBED(embed_q5_1, embed::Nibbles<0 COMMA true COMMA true>)
EMBED(embed_q4_k, embed::K45<false>)
EMBED(embed_q5_k, embed::K45<true>)
EMBED(embed_q6_k, embed::Q6_K)
#undef COMMA
#undef EMBED
KERNEL BOUNDS(256, 4) embed_f32(const Embed a) { embed::floats<float, false>(a); }
KERNEL BOUNDS(256, 4) embed_f16(const Embed a) { embed::floats<u16, false>(a); }
KERNEL BOUNDS(256, 4) embed_bf16(const Embed a) { embed::floats<u16, true>(a); }
