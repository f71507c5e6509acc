// 2.5 and 2.6 for HEAD = 64 or 128 (given on the command line), 16 query heads a KV head.
// Cache: K and V as f16 [kv head][position][HEAD], read through tensor maps whose box is 64 elements
// by 128 positions with the 128-byte exchange: a tile is HALVES boxes of 16 KiB. The steps e of the
// V rows are kept beside the cache as int8 [kv head][positions], made when a row is stored.
constexpr int GROUP = 16;
constexpr int HALVES = HEAD / 64;
constexpr int Q_BITS = HEAD == 64 ? 14 : 13;
constexpr float TO_BASE_2 = HEAD == 64 ? 0x1.715476p-3f : 0x1.0527dcp-3f;  // c of 2.6
constexpr float HIDDEN = -8.0e6f;  // score of an invisible row: its weight rounds to 0
constexpr int BOX_BYTES = 64 * 128 * 2;

// One warp a row and KV head: G(row, 11, -24), stored as n·2^e.
INLINE int store_row(const float* x, u16* to, int lane, u32* failed) {
    float v[HEAD / 32];
    u32 top = 0;
    for (int i = 0; i < HEAD / 32; i++) v[i] = x[lane + 32 * i], top = max(top, lane_max_abs(v[i]));
    float a = warp_max_bits(top);
    int e = grid_step(a, 11, -24);
    for (int i = 0; i < HEAD / 32; i++) {
        float snapped = a == 0.0f ? 0.0f : mul1(__int2float_rn(grid_code(v[i], e, 11)), pow2(e));
        if (fabsf(snapped) > 65504.0f) atomicOr(failed, 2u);
        to[lane + 32 * i] = (u16)float_to_half(snapped);
    }
    return e;
}
extern "C" __global__ void store_rows(const float* k, const float* v, u16* k_cache, u16* v_cache,
                                      i8* steps, int padded, u32* failed) {
    int row = blockIdx.x, head = blockIdx.y, heads = gridDim.y, lane = threadIdx.x;
    size_t at = ((size_t)row * heads + head) * HEAD, to = ((size_t)head * padded + row) * HEAD;
    store_row(k + at, k_cache + to, lane, failed);
    int e = store_row(v + at, v_cache + to, lane, failed);
    if (lane == 0) steps[(size_t)head * padded + row] = (i8)e;
}

// n·128 + low = n with |low| <= 64, two at once as f16.
INLINE void digits2(int a, int b, u32& high, u32& low) {
    int ha = (a + 64) >> 7, hb = (b + 64) >> 7;
    high = float_to_half2((float)ha, (float)hb);
    low = float_to_half2((float)(a - (ha << 7)), (float)(b - (hb << 7)));
}

// Digits of q of one row, two neighbouring dimensions a lane and turn; returns c·2^eq.
constexpr int Q_PITCH = HEAD * 2 + 16, P_PITCH = 128 * 2 + 16;
INLINE float place_row(u8* high_row, u8* low_row, const float* x, int lane) {
    float2 v[HEAD / 64];
    u32 top = 0;
    for (int i = 0; i < HEAD / 64; i++) {
        v[i] = ((const float2*)x)[lane + 32 * i];
        top = max(top, max(lane_max_abs(v[i].x), lane_max_abs(v[i].y)));
    }
    float a = warp_max_bits(top);
    int e = grid_step(a, Q_BITS, -60);
    for (int i = 0; i < HEAD / 64; i++) {
        u32 high = 0, low = 0;
        if (a != 0.0f) digits2(grid_code(v[i].x, e, Q_BITS), grid_code(v[i].y, e, Q_BITS), high, low);
        ((u32*)high_row)[lane + 32 * i] = high;
        ((u32*)low_row)[lane + 32 * i] = low;
    }
    return mul1(TO_BASE_2, pow2(e));
}

// What one score needs of its own: the digits of P, and its part of D. n_base = 147 - N and
// m_base = 139 + ev - M, so that exponents come out biased; 87 is 2^-40.
INLINE void weigh(float y, int n_base, int m_base, float& high, float& low, u32& sum) {
    float t = __fadd_rd(y, MAGIC);  // floor(y) in the low bits
    float e = exp2_unit(add1(y, -add1(t, -MAGIC)));
    int bits = (int)__float_as_uint(t);
    float d_scale = __uint_as_float((u32)__viaddmax_s32(bits, n_base, 87) << 23);
    float p_scale = __uint_as_float((u32)__viaddmax_s32(bits, m_base, 87) << 23);
    sum += __float_as_uint(fma1(e, d_scale, MAGIC)) - MAGIC_BITS;
    float p = add1(fma1(e, p_scale, MAGIC), -MAGIC);
    high = add1(fma1(p, 0x1p-7f, MAGIC), -MAGIC);
    low = fma1(high, -128.0f, p);
}
