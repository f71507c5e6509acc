// 2.5 and 2.6 for HEAD = 64 or 128 (given on the command line), 16 query heads a KV head.
// Cache: K and V as f16 [position][kv head][HEAD], read through tensor maps whose box is 64 elements
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
                                      i8* steps, int positions, int padded, u32* failed) {
    int row = blockIdx.x, head = blockIdx.y, heads = gridDim.y, lane = threadIdx.x;
    size_t at = ((size_t)row * heads + head) * HEAD;
    store_row(k + at, k_cache + at, lane, failed);
    int e = store_row(v + at, v_cache + at, lane, failed);
    if (lane == 0) steps[(size_t)head * padded + row] = (i8)e;
}

// n·128 + low = n with |low| <= 64, two at once as f16.
INLINE void digits2(int a, int b, u32& high, u32& low) {
    int ha = (a + 64) >> 7, hb = (b + 64) >> 7;
    high = float_to_half2((float)ha, (float)hb);
    low = float_to_half2((float)(a - (ha << 7)), (float)(b - (hb << 7)));
}

// One tile of one KV head, 8 warps. Scores: warp w does positions 16w..16w+15; output: dimensions
// HEAD/8·w and on. Leaves N, M, D and f(O) of the tile for 'combine'.
constexpr int Q_PITCH = HEAD * 2 + 16, P_PITCH = 128 * 2 + 16;
constexpr int DIGIT_BYTES = 2 * GROUP * (Q_PITCH > P_PITCH ? Q_PITCH : P_PITCH);
extern "C" __global__ void __launch_bounds__(256)
    decode_tiles(const __grid_constant__ Map k_map, const __grid_constant__ Map v_map, const i8* steps,
                 const float* q, float* tile_out, int4* tile_sums, u32* failed, int lo, int hi,
                 int padded) {
    extern __shared__ __align__(1024) u8 shared[];
    u8 *ks = shared, *vs = shared + HALVES * BOX_BYTES, *digits = vs + HALVES * BOX_BYTES;
    u32* red_n = (u32*)(digits + DIGIT_BYTES);
    u32* red_m = red_n + 8 * GROUP;
    u32* red_d = red_m + 8 * GROUP;
    float* row_scale = (float*)(red_d + 8 * GROUP);
    u64* full = (u64*)(row_scale + GROUP);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    int tile = lo / 128 + blockIdx.x, head = blockIdx.y;

    next_kernel_may_start();
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barrier_init(full + 1, 1);
        barrier_fence();
        for (int v = 0; v < 2; v++) {
            barrier_expect(full + v, HALVES * BOX_BYTES);
            for (int h = 0; h < HALVES; h++)
                bulk_box((v ? vs : ks) + h * BOX_BYTES, v ? &v_map : &k_map, head * HEAD + h * 64,
                         tile * 128, full + v);
        }
    }
    int ev[2][2];
    for (int n = 0; n < 2; n++)
        for (int j = 0; j < 2; j++)
            ev[n][j] = steps[(size_t)head * padded + tile * 128 + warp * 16 + n * 8 + 2 * t + j];
    previous_kernel_done();
    for (int r = warp * 2; r < warp * 2 + 2; r++) {
        const float* x = q + (size_t)(head * GROUP + r) * HEAD;
        float v[HEAD / 32];
        u32 top = 0;
        for (int i = 0; i < HEAD / 64; i++) {
            float2 p = ((const float2*)x)[lane + 32 * i];
            v[2 * i] = p.x, v[2 * i + 1] = p.y;
            top = max(top, max(lane_max_abs(p.x), lane_max_abs(p.y)));
        }
        float a = warp_max_bits(top);
        int e = grid_step(a, Q_BITS, -60);
        for (int i = 0; i < HEAD / 64; i++) {
            u32 high = 0, low = 0;
            if (a != 0.0f)
                digits2(grid_code(v[2 * i], e, Q_BITS), grid_code(v[2 * i + 1], e, Q_BITS), high, low);
            ((u32*)(digits + r * Q_PITCH))[lane + 32 * i] = high;
            ((u32*)(digits + (GROUP + r) * Q_PITCH))[lane + 32 * i] = low;
        }
        if (lane == 0) row_scale[r] = mul1(TO_BASE_2, pow2(e));
    }
    __syncthreads();

    float high[2][4] = {}, low[2][4] = {};
    int matrix = lane >> 3, r8 = lane & 7;
    u32 a_row = shared_address(digits) + (r8 + (matrix & 1) * 8) * Q_PITCH + (matrix >> 1) * 16;
    int key = warp * 16 + (matrix >> 1) * 8 + r8;
    u32 k_row = shared_address(ks) + key * 128;
    barrier_wait(full, 0);
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        u32 ah[4], al[4], b[4];
        int piece = 2 * s + (matrix & 1);
        load_matrix4(ah, a_row + s * 32);
        load_matrix4(al, a_row + GROUP * Q_PITCH + s * 32);
        load_matrix4(b, k_row + (piece >> 3) * BOX_BYTES + (((piece & 7) ^ (key & 7)) << 4));
        for (int n = 0; n < 2; n++) {
            mma_f16(high[n], ah, b[2 * n], b[2 * n + 1]);
            mma_f16(low[n], al, b[2 * n], b[2 * n + 1]);
        }
    }
    float y[2][4], top = 0.0f;
    u32 top_n[2] = {0, 0}, top_m[2] = {0, 0};
    for (int n = 0; n < 2; n++)
        for (int j = 0; j < 4; j++) {
            int position = tile * 128 + warp * 16 + n * 8 + 2 * t + (j & 1);
            float v = mul1(fma1(high[n][j], 128.0f, low[n][j]), row_scale[g + (j >> 1) * 8]);
            bool seen = position >= lo && position < hi;
            if (seen) top = fmaxf(top, fabsf(v));
            y[n][j] = seen ? v : HIDDEN;
            u32 bits = __float_as_uint(__fadd_rd(y[n][j], MAGIC));
            top_n[j >> 1] = max(top_n[j >> 1], bits);
            if (seen) top_m[j >> 1] = max(top_m[j >> 1], bits + ev[n][j & 1]);
        }
    if (!(top < 0x1p22f)) atomicOr(failed, 4u);
    for (int r = 0; r < 2; r++) {
        for (int x = 1; x < 4; x <<= 1) {
            top_n[r] = max(top_n[r], __shfl_xor_sync(~0u, top_n[r], x));
            top_m[r] = max(top_m[r], __shfl_xor_sync(~0u, top_m[r], x));
        }
        if (t == 0) red_n[warp * GROUP + g + 8 * r] = top_n[r], red_m[warp * GROUP + g + 8 * r] = top_m[r];
    }
    __syncthreads();  // also: nobody reads the digits of q any more
    u32 sum[2] = {0, 0};
    for (int r = 0; r < 2; r++)
        for (int w = 0; w < 8; w++) {
            top_n[r] = max(top_n[r], red_n[w * GROUP + g + 8 * r]);
            top_m[r] = max(top_m[r], red_m[w * GROUP + g + 8 * r]);
        }
    for (int n = 0; n < 2; n++)
        for (int r = 0; r < 2; r++) {
            float p[2], u[2];
            for (int j = 0; j < 2; j++) {
                float v = y[n][2 * r + j], f = __fadd_rd(v, MAGIC);
                float e = exp2_unit(add1(v, -add1(f, -MAGIC)));
                int bits = (int)__float_as_uint(f);
                int d_shift = max(20 + bits - (int)top_n[r], -40);
                int p_shift = max(12 + bits + ev[n][j] - (int)top_m[r], -40);
                sum[r] += __float_as_uint(fma1(e, pow2(d_shift), MAGIC)) - MAGIC_BITS;
                p[j] = add1(fma1(e, pow2(p_shift), MAGIC), -MAGIC);
                u[j] = pow2(-15 - ev[n][j]);
            }
            float h0 = add1(fma1(p[0], 0x1p-7f, MAGIC), -MAGIC);
            float h1 = add1(fma1(p[1], 0x1p-7f, MAGIC), -MAGIC);
            float l0 = fma1(h0, -128.0f, p[0]), l1 = fma1(h1, -128.0f, p[1]);
            int at = (g + 8 * r) * P_PITCH + (warp * 16 + n * 8 + 2 * t) * 2;
            *(u32*)(digits + at) = float_to_half2(mul1(h0, u[0]), mul1(h1, u[1]));
            *(u32*)(digits + GROUP * P_PITCH + at) = float_to_half2(mul1(l0, u[0]), mul1(l1, u[1]));
        }
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if (t == 0) red_d[warp * GROUP + g + 8 * r] = sum[r];
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        u32 d = 0, n = 0, m = 0;
        for (int w = 0; w < 8; w++) {
            d += red_d[w * GROUP + threadIdx.x];
            n = max(n, red_n[w * GROUP + threadIdx.x]);
            m = max(m, red_m[w * GROUP + threadIdx.x]);
        }
        tile_sums[(size_t)(head * GROUP + threadIdx.x) * gridDim.x + blockIdx.x] =
            make_int4((int)(n - MAGIC_BITS), (int)(m - MAGIC_BITS), (int)d, 0);
    }
    constexpr int N_TILES = HEAD / 64;  // of 8 dimensions a warp
    float oh[N_TILES][4] = {}, ol[N_TILES][4] = {};
    u32 p_row = shared_address(digits) + (r8 + (matrix & 1) * 8) * P_PITCH + (matrix >> 1) * 16;
    barrier_wait(full + 1, 0);
#pragma unroll
    for (int s = 0; s < 8; s++) {
        u32 ah[4], al[4], b[4];
        int row = 16 * s + (matrix & 1) * 8 + r8;
        int piece = N_TILES * warp + (N_TILES == 2 ? matrix >> 1 : 0);
        load_matrix4(ah, p_row + s * 32);
        load_matrix4(al, p_row + GROUP * P_PITCH + s * 32);
        load_matrix4_turned(b, shared_address(vs) + (piece >> 3) * BOX_BYTES + row * 128 +
                                   (((piece & 7) ^ (row & 7)) << 4));
        for (int n = 0; n < N_TILES; n++) {
            mma_f16(oh[n], ah, b[2 * n], b[2 * n + 1]);
            mma_f16(ol[n], al, b[2 * n], b[2 * n + 1]);
        }
    }
    for (int n = 0; n < N_TILES; n++)
        for (int r = 0; r < 2; r++) {
            size_t row = (size_t)(head * GROUP + g + 8 * r) * gridDim.x + blockIdx.x;
            float2 o = make_float2(mul1(fma1(oh[n][2 * r], 128.0f, ol[n][2 * r]), 0x1p15f),
                                   mul1(fma1(oh[n][2 * r + 1], 128.0f, ol[n][2 * r + 1]), 0x1p15f));
            *(float2*)(tile_out + row * HEAD + (N_TILES * warp + n) * 8 + 2 * t) = o;
        }
}

// The float steps of 2.6 over the tiles, ascending: one block does 32 dimensions of one query head.
// Everything but the two chains is parallel; a chain step is one product and one sum, since z is
// only needed where |acc·2^k| < 2^-40: eight steps are tried without it and repeated if it mattered.
extern "C" __global__ void __launch_bounds__(128)
    combine(const float* tile_out, const int4* tile_sums, float* out, u32* failed, int tiles) {
    extern __shared__ __align__(1024) u8 shared[];
    int padded = (tiles + 7) / 8 * 8;
    float* terms = (float*)shared;          // [tiles][32]
    float* acc_scale = terms + padded * 32;  // 2^(X-X')
    float* out_scale = acc_scale + padded;   // 2^(M-X')
    float* den_scale = out_scale + padded;   // 2^(R-R')
    float* den_term = den_scale + padded;
    __shared__ int warp_n[4], warp_m[4], last[2];
    __shared__ float den_out;
    int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
    int head = blockIdx.x, part = blockIdx.y * 32;
    const int4* sums = tile_sums + (size_t)head * tiles;

    next_kernel_may_start();
    previous_kernel_done();
    int each = (tiles + 127) / 128, from = min(thread * each, tiles), to = min(from + each, tiles);
    int top_n = -0x40000000, top_m = -0x40000000;
    for (int i = from; i < to; i++) top_n = max(top_n, sums[i].x), top_m = max(top_m, sums[i].y);
    int run_n = top_n, run_m = top_m;
    for (int x = 1; x < 32; x <<= 1) {
        int n = __shfl_up_sync(~0u, run_n, x), m = __shfl_up_sync(~0u, run_m, x);
        if (lane >= x) run_n = max(run_n, n), run_m = max(run_m, m);
    }
    if (lane == 31) warp_n[warp] = run_n, warp_m[warp] = run_m;
    __syncthreads();
    int n = __shfl_up_sync(~0u, run_n, 1), m = __shfl_up_sync(~0u, run_m, 1);
    if (lane == 0) n = m = -0x40000000;
    for (int w = 0; w < warp; w++) n = max(n, warp_n[w]), m = max(m, warp_m[w]);
    for (int i = from; i < to; i++) {
        int4 s = sums[i];
        int n2 = max(n, s.x), m2 = max(m, s.y);
        den_scale[i] = i ? pow2(max(n - n2, -100)) : 1.0f;
        acc_scale[i] = i ? pow2(max(m - m2, -100)) : 1.0f;
        den_term[i] = mul1(__int2float_rn(s.z), pow2(max(s.x - n2, -100)));
        out_scale[i] = pow2(max(s.y - m2, -100));
        n = n2, m = m2;
        if (i == tiles - 1) last[0] = n, last[1] = m;
    }
    for (int i = tiles + thread; i < padded; i += 128)
        den_scale[i] = acc_scale[i] = 1.0f, den_term[i] = out_scale[i] = 0.0f;
    __syncthreads();
    const float* source = tile_out + (size_t)head * tiles * HEAD + part;
#pragma unroll 8
    for (int i = thread; i < padded * 8; i += 128) {
        int tile = i / 8, four = i % 8 * 4;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (tile < tiles) v = *(const float4*)(source + (size_t)tile * HEAD + four);
        float k = out_scale[tile];
        *(float4*)(terms + tile * 32 + four) =
            make_float4(z(mul1(v.x, k)), z(mul1(v.y, k)), z(mul1(v.z, k)), z(mul1(v.w, k)));
    }
    __syncthreads();
    float acc = 0.0f;
    if (warp == 0) {
        for (int i = 0; i < tiles; i += 8) {
            float before = acc;
            bool small = false;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float kept = mul1(acc, acc_scale[i + j]);
                small |= fabsf(kept) < 0x1p-40f;
                acc = add1(kept, terms[(i + j) * 32 + lane]);
            }
            if (!small) continue;
            acc = before;
            for (int j = i; j < min(i + 8, tiles); j++)
                acc = add1(z(mul1(acc, acc_scale[j])), terms[j * 32 + lane]);
        }
    } else if (warp == 1 && lane == 0) {
        float den = 0.0f;
#pragma unroll 8
        for (int i = 0; i < tiles; i++) den = add1(mul1(den, den_scale[i]), den_term[i]);
        den_out = den;
    }
    __syncthreads();
    if (warp == 0) {
        float v = mul1(__fdiv_rn(acc, den_out), pow2(last[1] - last[0] + 8));
        if (lost(acc) || lost(den_out) || lost(v)) atomicOr(failed, 8u);
        out[(size_t)head * HEAD + part + lane] = z(v);
    }
}
