// 2.6 for one query of each head: decode, split over tiles. Needs attention.cu before it.
// MERGE = 1 is the rule: every tile leaves its own N, M, f(D), f(O), and 'combine' walks over them.
// MERGE > 1 is a rule that was tried: so many tiles form a group (of absolute positions), merged from
// fresh by the same steps, and the groups are merged ascending by the same steps again.
constexpr int SLOT_BYTES = HALVES * BOX_BYTES, SLOTS = 3;
constexpr int DIGIT_BYTES = 2 * GROUP * (Q_PITCH > P_PITCH ? Q_PITCH : P_PITCH);

struct Decode {
    u8 ring[SLOTS][SLOT_BYTES];  // K, V, K, V, ... of the tiles in turn
    u8 digits[DIGIT_BYTES];      // of q, then of P
    u32 n[8 * GROUP], m[8 * GROUP], d[8 * GROUP];
    float row_scale[GROUP];
    u64 full[SLOTS];
};

struct Tiles {  // what stays the same for a launch
    const i8* steps;  // of this KV head
    float* out;
    int4* sums;
    int lo, hi, first, count, head;
};

struct Merged {  // the state of 2.6 of the thread's two rows; low: least M
    int n[2], m[2], low[2];
    float den[2], acc[HEAD / 64][4];
};

INLINE void load_slot(Decode& mem, const Map& map, int i, int row) {
    u64* b = &mem.full[i % SLOTS];
    barrier_expect(b, SLOT_BYTES);
    for (int h = 0; h < HALVES; h++)
        bulk_box(mem.ring[i % SLOTS] + h * BOX_BYTES, &map, h * 64, row, b);
}

// Scores of 16 positions; leaves the warp's maxima of N and M in shared memory.
INLINE float tile_scores(float (&y)[2][4], const int (&ev)[2][2], const u32 (&qh)[HEAD / 16][4],
                         const u32 (&ql)[HEAD / 16][4], Decode& mem, const Tiles& work, const u8* k,
                         int tile, int warp, int lane) {
    int g = lane >> 2, t = lane & 3, matrix = lane >> 3, r8 = lane & 7;
    int key = warp * 16 + (matrix >> 1) * 8 + r8;
    u32 k_row = shared_address(k) + key * 128;
    float high[2][4] = {}, low[2][4] = {}, top = 0.0f;
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        u32 b[4];
        int piece = 2 * s + (matrix & 1);
        load_matrix4(b, k_row + (piece >> 3) * BOX_BYTES + (((piece & 7) ^ (key & 7)) << 4));
        for (int n = 0; n < 2; n++) {
            mma_f16(high[n], qh[s], b[2 * n], b[2 * n + 1]);
            mma_f16(low[n], ql[s], b[2 * n], b[2 * n + 1]);
        }
    }
    u32 top_n[2] = {0, 0}, top_m[2] = {0, 0};
    for (int n = 0; n < 2; n++)
        for (int j = 0; j < 4; j++) {
            int position = tile * 128 + warp * 16 + n * 8 + 2 * t + (j & 1), r = j >> 1;
            float v = mul1(fma1(high[n][j], 128.0f, low[n][j]), mem.row_scale[g + 8 * r]);
            bool seen = position >= work.lo && position < work.hi;
            if (seen) top = fmaxf(top, fabsf(v));
            y[n][j] = seen ? v : HIDDEN;
            u32 bits = __float_as_uint(__fadd_rd(y[n][j], MAGIC));
            top_n[r] = max(top_n[r], bits);
            top_m[r] = max(top_m[r], bits + ev[n][j & 1]);
        }
    for (int r = 0; r < 2; r++) {
        for (int x = 1; x < 4; x <<= 1) {
            top_n[r] = max(top_n[r], __shfl_xor_sync(~0u, top_n[r], x));
            top_m[r] = max(top_m[r], __shfl_xor_sync(~0u, top_m[r], x));
        }
        int at = warp * GROUP + g + 8 * r;
        if (t == 0) mem.n[at] = top_n[r], mem.m[at] = top_m[r];
    }
    return top;
}

// Digits of P of the warp's positions, and their part of D, into shared memory; N and M of the rows.
INLINE void tile_weights(const float (&y)[2][4], const int (&ev)[2][2], Decode& mem, u32 (&top_n)[2],
                         u32 (&top_m)[2], int warp, int lane) {
    int g = lane >> 2, t = lane & 3;
    u32 sum[2] = {0, 0};
    for (int r = 0; r < 2; r++)
        for (int w = 0; w < 8; w++) {
            top_n[r] = max(top_n[r], mem.n[w * GROUP + g + 8 * r]);
            top_m[r] = max(top_m[r], mem.m[w * GROUP + g + 8 * r]);
        }
    for (int n = 0; n < 2; n++) {
        float u[2] = {pow2(-15 - ev[n][0]), pow2(-15 - ev[n][1])};
        for (int r = 0; r < 2; r++) {
            float h[2], l[2];
            for (int j = 0; j < 2; j++)
                weigh(y[n][2 * r + j], 147 - (int)top_n[r], 139 + ev[n][j] - (int)top_m[r], h[j], l[j],
                      sum[r]);
            u8* at = mem.digits + (g + 8 * r) * P_PITCH + (warp * 16 + n * 8 + 2 * t) * 2;
            *(u32*)at = float_to_half2(mul1(h[0], u[0]), mul1(h[1], u[1]));
            *(u32*)(at + GROUP * P_PITCH) = float_to_half2(mul1(l[0], u[0]), mul1(l[1], u[1]));
        }
    }
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if (t == 0) mem.d[warp * GROUP + g + 8 * r] = sum[r];
    }
}

INLINE void tile_output(float (&o)[HEAD / 64][4], Decode& mem, const u8* v, int warp, int lane) {
    constexpr int N_TILES = HEAD / 64;  // of 8 dimensions a warp
    int matrix = lane >> 3, r8 = lane & 7;
    u32 p_row = shared_address(mem.digits) + (r8 + (matrix & 1) * 8) * P_PITCH + (matrix >> 1) * 16;
    float oh[N_TILES][4] = {}, ol[N_TILES][4] = {};
    int piece = N_TILES * warp + (N_TILES == 2 ? matrix >> 1 : 0);
    u32 v_rows = shared_address(v) + (piece >> 3) * BOX_BYTES;
#pragma unroll
    for (int s = 0; s < 8; s++) {
        u32 ah[4], al[4], b[4];
        int row = 16 * s + (matrix & 1) * 8 + r8;
        load_matrix4(ah, p_row + s * 32);
        load_matrix4(al, p_row + GROUP * P_PITCH + s * 32);
        load_matrix4_turned(b, v_rows + row * 128 + (((piece & 7) ^ (row & 7)) << 4));
        for (int n = 0; n < N_TILES; n++) {
            mma_f16(oh[n], ah, b[2 * n], b[2 * n + 1]);
            mma_f16(ol[n], al, b[2 * n], b[2 * n + 1]);
        }
    }
    for (int n = 0; n < N_TILES; n++)
        for (int j = 0; j < 4; j++) o[n][j] = mul1(fma1(oh[n][j], 128.0f, ol[n][j]), 0x1p15f);
}

// One step of 2.6 for the two rows of a thread; 'fresh' starts a group.
INLINE void merge(Merged& s, const u32 (&top_n)[2], const u32 (&top_m)[2], const float (&o)[HEAD / 64][4],
                  const Decode& mem, bool fresh, int g) {
    for (int r = 0; r < 2; r++) {
        int n = (int)(top_n[r] - MAGIC_BITS), m = (int)(top_m[r] - MAGIC_BITS);
        u32 d = 0;
        for (int w = 0; w < 8; w++) d += mem.d[w * GROUP + g + 8 * r];
        float den = __int2float_rn((int)d);
        if (fresh) {
            s.n[r] = n, s.m[r] = s.low[r] = m, s.den[r] = den;
            for (int k = 0; k < HEAD / 64; k++)
                for (int j = 0; j < 2; j++) s.acc[k][2 * r + j] = o[k][2 * r + j];
            continue;
        }
        int n2 = max(s.n[r], n), m2 = max(s.m[r], m);
        s.den[r] = fma1(s.den[r], pow2(max(s.n[r] - n2, -100)), mul1(den, pow2(max(n - n2, -100))));
        float kept = pow2(max(s.m[r] - m2, -100)), added = pow2(max(m - m2, -100));
        s.low[r] = min(s.low[r], m);
        bool plain = s.low[r] - m2 >= -40;
        for (int k = 0; k < HEAD / 64; k++)
            for (int j = 0; j < 2; j++) {
                float &a = s.acc[k][2 * r + j], b = mul1(o[k][2 * r + j], added);
                a = plain ? fma1(a, kept, b) : add1(z(mul1(a, kept)), z(b));
            }
        s.n[r] = n2, s.m[r] = m2;
    }
}

INLINE void write_state(const Merged& s, const Tiles& work, int place, int places, int warp, int lane) {
    int g = lane >> 2, t = lane & 3;
    for (int r = 0; r < 2; r++) {
        size_t row = (size_t)(work.head * GROUP + g + 8 * r) * places + place;
        for (int k = 0; k < HEAD / 64; k++)
            *(float2*)(work.out + row * HEAD + (HEAD / 64 * warp + k) * 8 + 2 * t) =
                make_float2(s.acc[k][2 * r], s.acc[k][2 * r + 1]);
        if (warp == 0 && t == 0)
            work.sums[row] = make_int4(s.n[r], s.m[r], (int)__float_as_uint(s.den[r]), s.low[r]);
    }
}

// 8 warps walk over runs of MERGE tiles of one KV head. Scores: warp w does positions 16w..16w+15;
// output: dimensions HEAD/8·w and on.
extern "C" __global__ void __launch_bounds__(256, 2)
    decode_tiles(const __grid_constant__ Map k_map, const __grid_constant__ Map v_map, const i8* steps,
                 const float* q, float* tile_out, int4* tile_sums, u32* failed, int lo, int hi,
                 int padded) {
    extern __shared__ __align__(1024) u8 shared[];
    Decode& mem = *(Decode*)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, head = blockIdx.y;
    int first = lo / 128 / MERGE, last = (hi + 127) / 128, places = (last + MERGE - 1) / MERGE - first;
    Tiles work = {steps + (size_t)head * padded, tile_out, tile_sums, lo, hi, lo / 128, last, head};

    // The i-th tile of this block, and whether there is one.
    auto tile_at = [&](int i) {
        return (first + (int)blockIdx.x + i / MERGE * (int)gridDim.x) * MERGE + i % MERGE;
    };
    auto tile_from = [&](int i) {  // next one that has visible rows
        while (tile_at(i) < work.first) i++;
        return i;
    };
    auto load = [&](int use, int i) {  // use even: K, odd: V; slots are taken in turn
        load_slot(mem, use & 1 ? v_map : k_map, use, head * padded + tile_at(i) * 128);
    };
    int begin = tile_from(0);
    next_kernel_may_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) barrier_init(mem.full + i, 1);
        barrier_fence();
        for (int u = 0; u < SLOTS && tile_at(begin + u / 2) < last; u++) load(u, begin + u / 2);
    }
    previous_kernel_done();
    for (int r = warp * 2; r < warp * 2 + 2; r++) {
        float scale = place_row(mem.digits + r * Q_PITCH, mem.digits + (GROUP + r) * Q_PITCH,
                                q + (size_t)(head * GROUP + r) * HEAD, lane);
        if (lane == 0) mem.row_scale[r] = scale;
    }
    __syncthreads();
    u32 qh[HEAD / 16][4], ql[HEAD / 16][4];
    u32 q_row = shared_address(mem.digits) + ((lane & 7) + (lane >> 3 & 1) * 8) * Q_PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        load_matrix4(qh[s], q_row + s * 32);
        load_matrix4(ql[s], q_row + GROUP * Q_PITCH + s * 32);
    }
    float top = 0.0f;
    Merged state;
    bool fresh = true;
    for (int i = begin, use = 0; tile_at(i) < last; i++, use += 2) {
        int tile = tile_at(i), ev[2][2];
        for (int n = 0; n < 2; n++)
            for (int j = 0; j < 2; j++)
                ev[n][j] = work.steps[tile * 128 + warp * 16 + n * 8 + 2 * (lane & 3) + j];
        float y[2][4], o[HEAD / 64][4];
        u32 top_n[2] = {0, 0}, top_m[2] = {0, 0};
        barrier_wait(mem.full + use % SLOTS, use / SLOTS & 1);
        const u8* k = mem.ring[use % SLOTS];
        top = fmaxf(top, tile_scores(y, ev, qh, ql, mem, work, k, tile, warp, lane));
        __syncthreads();  // K is read
        if (threadIdx.x == 0 && tile_at(i + 1) < last) load(use + SLOTS, i + 1);
        tile_weights(y, ev, mem, top_n, top_m, warp, lane);
        __syncthreads();
        barrier_wait(mem.full + (use + 1) % SLOTS, (use + 1) / SLOTS & 1);
        tile_output(o, mem, mem.ring[(use + 1) % SLOTS], warp, lane);
        merge(state, top_n, top_m, o, mem, fresh, g);
        fresh = (i + 1) % MERGE == 0 || tile_at(i + 1) >= last;
        if (fresh) write_state(state, work, tile / MERGE - first, places, warp, lane);
        __syncthreads();  // V, the digits and the maxima are read
        if (threadIdx.x == 0 && tile_at(i + 2) < last) load(use + 1 + SLOTS, i + 2);
    }
    if (!(top < 0x1p22f)) atomicOr(failed, 4u);
}

// The float steps of 2.6 over the tiles, ascending: one block does 32 dimensions of one query head.
// acc is a multiple of 2^(least M so far - X): while the M of a head span at most 40 binades z
// cannot act, acc·2^k is exact, and a step is one fma. Otherwise z is applied as written. den never
// falls below 2^20, so its steps are one fma always.
constexpr int AHEAD = 8;

struct Chain {  // 'tiles' rounded up to AHEAD, and AHEAD more; beyond the tiles a step changes nothing
    float *parts, *acc_scale, *out_scale, *den_scale, *den_term;
};

INLINE void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}

INLINE float walk_plain(const Chain& c, int tiles, int lane) {
    float acc = 0.0f, o[AHEAD];
    const float4 *kept = (const float4*)c.acc_scale, *added = (const float4*)c.out_scale;
    float4 s[2] = {kept[0], kept[1]}, k[2] = {added[0], added[1]};
#pragma unroll
    for (int j = 0; j < AHEAD; j++) o[j] = c.parts[j * 32 + lane];
    for (int i = 0; i < tiles; i += AHEAD) {
        float now[AHEAD] = {mul1(o[0], k[0].x), mul1(o[1], k[0].y), mul1(o[2], k[0].z), mul1(o[3], k[0].w),
                            mul1(o[4], k[1].x), mul1(o[5], k[1].y), mul1(o[6], k[1].z), mul1(o[7], k[1].w)};
        float4 a = s[0], b = s[1];
        int next = i + AHEAD;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) o[j] = c.parts[(next + j) * 32 + lane];
        s[0] = kept[next / 4], s[1] = kept[next / 4 + 1];
        k[0] = added[next / 4], k[1] = added[next / 4 + 1];
        acc = fma1(acc, a.x, now[0]), acc = fma1(acc, a.y, now[1]);
        acc = fma1(acc, a.z, now[2]), acc = fma1(acc, a.w, now[3]);
        acc = fma1(acc, b.x, now[4]), acc = fma1(acc, b.y, now[5]);
        acc = fma1(acc, b.z, now[6]), acc = fma1(acc, b.w, now[7]);
    }
    return acc;
}

INLINE float walk_careful(const Chain& c, int tiles, int lane) {
    float acc = 0.0f;
    for (int i = 0; i < tiles; i++)
        acc = add1(z(mul1(acc, c.acc_scale[i])), z(mul1(c.parts[i * 32 + lane], c.out_scale[i])));
    return acc;
}

extern "C" __global__ void __launch_bounds__(128)
    combine(const float* tile_out, const int4* tile_sums, float* out, u32* failed, int tiles) {
    extern __shared__ __align__(1024) u8 shared[];
    int padded = (tiles + AHEAD - 1) / AHEAD * AHEAD + AHEAD;
    Chain c;
    c.parts = (float*)shared;                           // f(O), [padded][32]
    int4* sums = (int4*)(c.parts + padded * 32);         // N, M, f(D), least M
    c.acc_scale = (float*)(sums + padded);               // 2^(X-X')
    c.out_scale = c.acc_scale + padded;                  // 2^(M-X')
    c.den_scale = c.out_scale + padded;                  // 2^(R-R')
    c.den_term = c.den_scale + padded;                   // f(D)·2^(N-R')
    __shared__ int warp_n[4], warp_m[4], warp_low[4], last[2];
    __shared__ float den_out;
    int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
    int head = blockIdx.x, part = blockIdx.y * 32;

    next_kernel_may_start();
    previous_kernel_done();
    for (int i = thread; i < tiles; i += 128) copy16(sums + i, tile_sums + (size_t)head * tiles + i);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float* source = tile_out + (size_t)head * tiles * HEAD + part;
    for (int i = thread; i < tiles * 8; i += 128)
        copy16(c.parts + i * 4, source + (size_t)(i / 8) * HEAD + i % 8 * 4);
    for (int i = tiles * 32 + thread; i < padded * 32; i += 128) c.parts[i] = 0.0f;
    for (int i = tiles + thread; i < padded; i += 128)
        c.acc_scale[i] = c.den_scale[i] = 1.0f, c.out_scale[i] = c.den_term[i] = 0.0f;
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    int each = (tiles + 127) / 128, from = min(thread * each, tiles), to = min(from + each, tiles);
    int run_n = -0x40000000, run_m = run_n, low = 0x40000000;
    for (int i = from; i < to; i++) {
        int4 s = sums[i];
        run_n = max(run_n, s.x), run_m = max(run_m, s.y), low = min(low, s.w);
    }
    low = __reduce_min_sync(~0u, low);
    for (int x = 1; x < 32; x <<= 1) {
        run_n = max(run_n, __shfl_up_sync(~0u, run_n, x));
        run_m = max(run_m, __shfl_up_sync(~0u, run_m, x));
    }
    if (lane == 31) warp_n[warp] = run_n, warp_m[warp] = run_m, warp_low[warp] = low;
    __syncthreads();
    int n = __shfl_up_sync(~0u, run_n, 1), m = __shfl_up_sync(~0u, run_m, 1);
    if (lane == 0) n = m = -0x40000000;
    for (int w = 0; w < warp; w++) n = max(n, warp_n[w]), m = max(m, warp_m[w]);
    for (int i = from; i < to; i++) {
        int4 s = sums[i];
        int n2 = max(n, s.x), m2 = max(m, s.y);
        c.acc_scale[i] = pow2(max(m - m2, -100));  // before the first tile den and acc are 0
        c.out_scale[i] = pow2(max(s.y - m2, -100));
        c.den_scale[i] = pow2(max(n - n2, -100));
        c.den_term[i] = mul1(__uint_as_float((u32)s.z), pow2(max(s.x - n2, -100)));
        n = n2, m = m2;
        if (i == tiles - 1) last[0] = n, last[1] = m;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    low = min(min(warp_low[0], warp_low[1]), min(warp_low[2], warp_low[3]));
    float acc = 0.0f;
    if (warp == 0) {
        acc = low - last[1] >= -40 ? walk_plain(c, tiles, lane) : walk_careful(c, tiles, lane);
    } else if (warp == 1 && lane == 0) {
        float den = 0.0f;
#pragma unroll 16
        for (int i = 0; i < tiles; i++) den = fma1(den, c.den_scale[i], c.den_term[i]);
        den_out = den;
    }
    __syncthreads();
    if (warp == 0) {
        float v = mul1(__fdiv_rn(acc, den_out), pow2(last[1] - last[0] + 8));
        if (lost(acc) || lost(den_out) || lost(v)) atomicOr(failed, 8u);
        out[(size_t)head * HEAD + part + lane] = z(v);
    }
}
