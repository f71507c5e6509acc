// K-quant blocks as matrix fragments of 8 bits. With p = scale·code (signed for Q6_K) the planes are the
// high byte of p (signed) and the low byte (without sign): Σ p·q = 256·Σ high·q + Σ low·q. Q4_K takes 16 times
// that, which spares shifts: UNIT is what d is multiplied by.
//   largest p: Q4_K 16·63·15 = 15,120, Q5_K 63·31 = 1,953, Q6_K |p| <= 128·32 = 4,096
//   largest |Σ p·q| of 256: Q4_K 491.6 M, Q5_K 63.5 M, Q6_K 133.2 M
//
// A step is 32 elements, four make a half of a block. Register r of a fragment holds row r & 1 of this lane's
// two rows and elements 16·(r >> 1) + 4t … + 3 of the step, t = lane % 4. The steps of a half come in two pairs
// that share words of codes: load(pair 0), its two steps, load(pair 1), its two.
// Blocks: muser.formats.blocks_k, but Q6_K is 16 scales, 128 ql, 64 qh, its d stands apart.
#pragma once
typedef const u8* Rows[2];  // the blocks of this lane's two rows

INLINE u32 word_at(const u8* p) { return *(const u32*)p; }

// Two even and two odd products of 16 bits: bytes of the high and of the low plane.
INLINE void plane_bytes(u32 even, u32 odd, u32& high, u32& low) {
    high = __byte_perm(even, odd, 0x7351);
    low = __byte_perm(even, odd, 0x6240);
}
INLINE u32 even_codes(u32 codes) { return codes & 0x00ff00ffu; }
INLINE u32 odd_codes(u32 codes) { return codes >> 8 & 0x00ff00ffu; }

// What Q4_K and Q5_K share: d, dmin, eight scales and mins of 6 bits.
struct SixBits {
    static constexpr bool MINS = true;
    u32 scale[2];  // of each row, a byte a step of the half

    MEMBER void load_scales(const Rows& rows, int half) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 w0 = word_at(rows[i] + 4), w2 = word_at(rows[i] + 12);
            scale[i] = half ? (w2 & 0x0f0f0f0fu) | (w0 >> 2 & 0x30303030u) : w0 & 0x3f3f3f3fu;
        }
    }
    static MEMBER int step(int pair, int s) { return 2 * pair + s; }
    MEMBER u32 scale_of(int step, int row) const { return scale[row] >> (8 * step) & 255; }
};

// Mins 2t and 2t + 1 of a block, as f16.
INLINE u32 min_halves(const u8* block, int t) {
    u32 w1 = word_at(block + 8), w2 = word_at(block + 12);
    u32 mins = t < 2 ? w1 & 0x3f3f3f3fu : (w2 >> 4 & 0x0f0f0f0fu) | (w1 >> 2 & 0x30303030u);
    u32 two = mins >> (16 * (t & 1));
    return float_to_half2((float)(two & 255), (float)(two >> 8 & 255));
}

struct PlanesQ4K : SixBits {
    static constexpr int BYTES = 144;
    static constexpr float UNIT = 0x1p-4f;
    u32 x[4];

    MEMBER void load(const Rows& rows, int half, int pair, int t) {
        if (pair == 0) load_scales(rows, half);
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[r] = word_at(rows[r & 1] + 16 + 64 * half + 32 * pair + 16 * (r >> 1) + 4 * t);
    }
    MEMBER u32 codes(int, int s, int r) const { return x[r] >> (4 * s) & 0x0f0f0f0fu; }
    MEMBER void planes(int pair, int s, int r, u32& high, u32& low) const {
        u32 by = scale_of(step(pair, s), r & 1) * (s ? 1 : 16), mask = s ? 0x00f000f0u : 0x000f000fu;
        plane_bytes((x[r] & mask) * by, (x[r] >> 8 & mask) * by, high, low);
    }
};

struct PlanesQ5K : SixBits {
    static constexpr int BYTES = 176;
    static constexpr float UNIT = 1.0f;
    u32 x[4], fifth[4];  // bit k of a byte of `fifth`: step k of the half

    MEMBER void load(const Rows& rows, int half, int pair, int t) {
        if (pair == 0) load_scales(rows, half);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u8* at = rows[r & 1] + 16 * (r >> 1) + 4 * t;
            if (pair == 0) fifth[r] = word_at(at + 16) >> (4 * half);
            x[r] = word_at(at + 48 + 64 * half + 32 * pair);
        }
    }
    MEMBER u32 codes(int pair, int s, int r) const {
        return (x[r] >> (4 * s) & 0x0f0f0f0fu) | (fifth[r] << (4 - step(pair, s)) & 0x10101010u);
    }
    MEMBER void planes(int pair, int s, int r, u32& high, u32& low) const {
        u32 c = codes(pair, s, r), by = scale_of(step(pair, s), r & 1);
        plane_bytes(even_codes(c) * by, odd_codes(c) * by, high, low);
    }
};

struct PlanesQ6K {
    static constexpr bool MINS = false;
    static constexpr int BYTES = 208;
    static constexpr float UNIT = 1.0f;
    u32 scale[2][2], x[4], upper[4];  // of the half: two words of scales a row, a byte a half step

    static MEMBER int step(int pair, int s) { return pair + 2 * s; }
    MEMBER void load(const Rows& rows, int half, int pair, int t) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u8* at = rows[r & 1] + 16 * (r >> 1) + 4 * t;
            if (pair == 0) upper[r] = word_at(at + 144 + 32 * half);
            if (pair == 0) scale[r & 1][r >> 1] = word_at(rows[r & 1] + 8 * half + 4 * (r >> 1));
            x[r] = word_at(at + 16 + 64 * half + 32 * pair);
        }
    }
    // c·s + 0x8000 − 32·s = p + 0x8000 in each half of a word: no borrow, the high byte off by 128.
    MEMBER void planes(int pair, int s, int r, u32& high, u32& low) const {
        int k = step(pair, s), at = 16 * (k & 1) + 8 * (r >> 1);
        u32 two = k < 2 ? upper[r] << (4 - 2 * k) : upper[r] >> (2 * k - 4);
        u32 codes = (x[r] >> (4 * s) & 0x0f0f0f0fu) | (two & 0x30303030u);
        u32 by = (u32)((int)(scale[r & 1][k >> 1] << (24 - at)) >> 24);
        u32 bias = 0x80008000u - by * 0x00200020u;
        plane_bytes(even_codes(codes) * by + bias, odd_codes(codes) * by + bias, high, low);
        high ^= 0x80808080u;
    }
};
