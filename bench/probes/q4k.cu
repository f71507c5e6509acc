// A Q4_K block is 144 bytes: d f16, dmin f16, 12 bytes of 6-bit scales and mins, 128 bytes of codes.
// Codes: byte i of the j-th 32 bytes holds element 64j+i (low half) and 64j+32+i (high half).
constexpr int BLOCK_BYTES = 144;

struct Scales {
    u32 scale[2], min[2];  // groups 0-3 and 4-7, one byte each
};

INLINE Scales read_scales(u32 w0, u32 w1, u32 w2) {
    Scales s;
    s.scale[0] = w0 & 0x3f3f3f3fu;
    s.min[0] = w1 & 0x3f3f3f3fu;
    s.scale[1] = (w2 & 0x0f0f0f0fu) | (w0 >> 2 & 0x30303030u);
    s.min[1] = (w2 >> 4 & 0x0f0f0f0fu) | (w1 >> 2 & 0x30303030u);
    return s;
}

INLINE int dot4(u32 a, u32 b, int c) { return __dp4a((int)a, (int)b, c); }

// t_b of 2.4 for one block; q is 256 codes, then the eight sums of 32 codes as int16.
template <typename Words>
INLINE float block_term(const Words* block, const Words* q) {
    uint4 head = block[0];
    Scales s = read_scales(head.y, head.z, head.w);
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int low = 0, high = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 w = block[1 + 2 * j + i], a = q[4 * j + i], b = q[4 * j + 2 + i];
            low = dot4(w.x & 0x0f0f0f0fu, a.x, low);
            low = dot4(w.y & 0x0f0f0f0fu, a.y, low);
            low = dot4(w.z & 0x0f0f0f0fu, a.z, low);
            low = dot4(w.w & 0x0f0f0f0fu, a.w, low);
            high = dot4(w.x >> 4 & 0x0f0f0f0fu, b.x, high);
            high = dot4(w.y >> 4 & 0x0f0f0f0fu, b.y, high);
            high = dot4(w.z >> 4 & 0x0f0f0f0fu, b.z, high);
            high = dot4(w.w >> 4 & 0x0f0f0f0fu, b.w, high);
        }
        u32 pair = s.scale[j >> 1] >> (16 * (j & 1));
        sum += (int)(pair & 255) * low + (int)(pair >> 8 & 255) * high;
    }
    uint4 sums = q[16];
    int mins = __dp2a_lo((int)sums.x, (int)s.min[0], 0);
    mins = __dp2a_hi((int)sums.y, (int)s.min[0], mins);
    mins = __dp2a_lo((int)sums.z, (int)s.min[1], mins);
    mins = __dp2a_hi((int)sums.w, (int)s.min[1], mins);
    float d = half_to_float(head.x), dmin = half_to_float(head.x >> 16);
    return fma1(d, __int2float_rn(sum), -mul1(dmin, __int2float_rn(mins)));
}
