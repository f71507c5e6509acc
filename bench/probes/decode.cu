// 2.6 for one query of each head: decode, split over tiles. Needs attention.cu before it.
// Two teams of 8 warps walk over the tiles of one KV head, ascending. Scores: warp w of a team does
// positions 16w..16w+15; output: dimensions HEAD/8·w and on. K and V of a team's tiles pass through a
// ring of three slots. Each tile leaves N, M, D and f(O) for 'combine', or, where 'done' is given, for
// the 17th warps, which run the chain while later tiles are still being read.
constexpr int Q_BYTES = 2 * GROUP * Q_PITCH, P_BYTES = 2 * GROUP * P_PITCH;
constexpr int SLOT_BYTES = HALVES * BOX_BYTES, SLOTS = 3;

struct Decode {
    u8 ring[2][SLOTS][SLOT_BYTES];
    u8 q[Q_BYTES];
    u8 p[2][P_BYTES];
    u32 n[2][8 * GROUP], m[2][8 * GROUP], d[2][8 * GROUP];
    float4 chain[32];
    float row_scale[GROUP];
    u64 full[2][SLOTS];
};

struct Tiles {  // what stays the same for a launch
    const i8* steps;  // of this KV head
    float* out;
    int4* sums;
    u32 *done, *done_before, *failed;
    int lo, hi, first, count, head;
};

INLINE void team_sync(int team) { asm volatile("bar.sync %0, 256;" ::"r"(team + 1) : "memory"); }

INLINE void load_slot(Decode& mem, const Map& map, int team, int i, int row) {
    u64* b = &mem.full[team][i % SLOTS];
    barrier_expect(b, SLOT_BYTES);
    for (int h = 0; h < HALVES; h++)
        bulk_box(mem.ring[team][i % SLOTS] + h * BOX_BYTES, &map, h * 64, row, b);
}

// Scores of 16 positions; leaves the warp's maxima of N and M in shared memory.
INLINE float tile_scores(float (&y)[2][4], const int (&ev)[2][2], Decode& mem, const Tiles& work,
                         const u8* k, int tile, int team, int warp, int lane) {
    int g = lane >> 2, t = lane & 3, matrix = lane >> 3, r8 = lane & 7;
    u32 q_row = shared_address(mem.q) + (r8 + (matrix & 1) * 8) * Q_PITCH + (matrix >> 1) * 16;
    int key = warp * 16 + (matrix >> 1) * 8 + r8;
    u32 k_row = shared_address(k) + key * 128;
    float high[2][4] = {}, low[2][4] = {}, top = 0.0f;
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        u32 qh[4], ql[4], b[4];
        int piece = 2 * s + (matrix & 1);
        load_matrix4(qh, q_row + s * 32);
        load_matrix4(ql, q_row + GROUP * Q_PITCH + s * 32);
        load_matrix4(b, k_row + (piece >> 3) * BOX_BYTES + (((piece & 7) ^ (key & 7)) << 4));
        for (int n = 0; n < 2; n++) {
            mma_f16(high[n], qh, b[2 * n], b[2 * n + 1]);
            mma_f16(low[n], ql, b[2 * n], b[2 * n + 1]);
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
        if (t == 0) mem.n[team][at] = top_n[r], mem.m[team][at] = top_m[r];
    }
    return top;
}

// Digits of P of the warp's positions, and their part of D, into shared memory.
INLINE void tile_weights(const float (&y)[2][4], const int (&ev)[2][2], Decode& mem, int team, int warp,
                         int lane) {
    int g = lane >> 2, t = lane & 3;
    u32 top_n[2] = {0, 0}, top_m[2] = {0, 0}, sum[2] = {0, 0};
    for (int r = 0; r < 2; r++)
        for (int w = 0; w < 8; w++) {
            top_n[r] = max(top_n[r], mem.n[team][w * GROUP + g + 8 * r]);
            top_m[r] = max(top_m[r], mem.m[team][w * GROUP + g + 8 * r]);
        }
    for (int n = 0; n < 2; n++) {
        float u[2] = {pow2(-15 - ev[n][0]), pow2(-15 - ev[n][1])};
        for (int r = 0; r < 2; r++) {
            float h[2], l[2];
            for (int j = 0; j < 2; j++)
                weigh(y[n][2 * r + j], 147 - (int)top_n[r], 139 + ev[n][j] - (int)top_m[r], h[j], l[j],
                      sum[r]);
            u8* at = mem.p[team] + (g + 8 * r) * P_PITCH + (warp * 16 + n * 8 + 2 * t) * 2;
            *(u32*)at = float_to_half2(mul1(h[0], u[0]), mul1(h[1], u[1]));
            *(u32*)(at + GROUP * P_PITCH) = float_to_half2(mul1(l[0], u[0]), mul1(l[1], u[1]));
        }
    }
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if (t == 0) mem.d[team][warp * GROUP + g + 8 * r] = sum[r];
    }
}

INLINE void tile_totals(Decode& mem, const Tiles& work, int index, int team, int row) {
    u32 d = 0, n = 0, m = 0;
    for (int w = 0; w < 8; w++) {
        d += mem.d[team][w * GROUP + row];
        n = max(n, mem.n[team][w * GROUP + row]);
        m = max(m, mem.m[team][w * GROUP + row]);
    }
    work.sums[(size_t)(work.head * GROUP + row) * work.count + index] =
        make_int4((int)(n - MAGIC_BITS), (int)(m - MAGIC_BITS), (int)d, 0);
}

INLINE void tile_output(Decode& mem, const Tiles& work, const u8* v, int index, int team, int warp,
                        int lane) {
    constexpr int N_TILES = HEAD / 64;  // of 8 dimensions a warp
    int g = lane >> 2, t = lane & 3, matrix = lane >> 3, r8 = lane & 7;
    u32 p_row = shared_address(mem.p[team]) + (r8 + (matrix & 1) * 8) * P_PITCH + (matrix >> 1) * 16;
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
        for (int r = 0; r < 2; r++) {
            size_t row = (size_t)(work.head * GROUP + g + 8 * r) * work.count + index;
            float2 o = make_float2(mul1(fma1(oh[n][2 * r], 128.0f, ol[n][2 * r]), 0x1p15f),
                                   mul1(fma1(oh[n][2 * r + 1], 128.0f, ol[n][2 * r + 1]), 0x1p15f));
            *(float2*)(work.out + row * HEAD + (N_TILES * warp + n) * 8 + 2 * t) = o;
        }
}

INLINE void walk(Decode& mem, const Map& k_map, const Map& v_map, const Tiles& work, int padded,
                 const float* q, int team, int warp, int lane) {
    int start = 2 * blockIdx.x + team, stride = 2 * gridDim.x, base = work.head * padded;
    int loads = start < work.count ? 2 * ((work.count - start + stride - 1) / stride) : 0;
    bool leader = warp == 0 && lane == 0;
    auto load = [&](int i) {  // i even: K of the (i/2)-th tile of this team, odd: V
        load_slot(mem, i & 1 ? v_map : k_map, team, i,
                  base + (work.first + start + i / 2 * stride) * 128);
    };
    if (leader)
        for (int i = 0; i < SLOTS && i < loads; i++) load(i);
    previous_kernel_done();
    int r = team * 8 + warp;
    float scale = place_row(mem.q + r * Q_PITCH, mem.q + (GROUP + r) * Q_PITCH,
                            q + (size_t)(work.head * GROUP + r) * HEAD, lane);
    if (lane == 0) mem.row_scale[r] = scale;
    asm volatile("bar.sync 3, 512;" ::: "memory");
    float top = 0.0f;
    for (int i = 0; i < loads; i += 2) {
        int index = start + i / 2 * stride, tile = work.first + index, ev[2][2];
        for (int n = 0; n < 2; n++)
            for (int j = 0; j < 2; j++)
                ev[n][j] = work.steps[tile * 128 + warp * 16 + n * 8 + 2 * (lane & 3) + j];
        float y[2][4];
        barrier_wait(&mem.full[team][i % SLOTS], i / SLOTS & 1);
        const u8* k = mem.ring[team][i % SLOTS];
        top = fmaxf(top, tile_scores(y, ev, mem, work, k, tile, team, warp, lane));
        team_sync(team);  // K is read
        if (leader && i + SLOTS < loads) load(i + SLOTS);
        tile_weights(y, ev, mem, team, warp, lane);
        team_sync(team);
        if (warp == 0 && lane < GROUP) tile_totals(mem, work, index, team, lane);
        barrier_wait(&mem.full[team][(i + 1) % SLOTS], (i + 1) / SLOTS & 1);
        tile_output(mem, work, mem.ring[team][(i + 1) % SLOTS], index, team, warp, lane);
        team_sync(team);  // V, the digits and the maxima are read, the results are written
        if (leader && i + 1 + SLOTS < loads) load(i + 1 + SLOTS);
        if (leader && work.done) {
            size_t at = (size_t)work.head * work.count + index;
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(work.done + at) : "memory");
            work.done_before[at] = 0;
        }
    }
    if (!(top < 0x1p22f)) atomicOr(work.failed, 4u);
}

// The chain of 'combine' by one warp for 32 dimensions of one query head, 32 tiles at a time, each
// batch as soon as its tiles are done.
INLINE void follow(Decode& mem, const Tiles& work, float* out, int lane) {
    int head = work.head * GROUP + blockIdx.x / (HEAD / 32), part = blockIdx.x % (HEAD / 32) * 32;
    const u32* done = work.done + (size_t)work.head * work.count;
    int carry_n = -0x40000000, carry_m = carry_n, low = 0x40000000;
    float acc = 0.0f, den = 0.0f;
    previous_kernel_done();
    for (int from = 0; from < work.count; from += 32) {
        int tiles = min(32, work.count - from);
        u32 ready = lane >= tiles;
        while (!ready)
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(done + from + lane) : "memory");
        __syncwarp();
        size_t row = (size_t)head * work.count + from;
        int4 s = make_int4(-0x40000000, -0x40000000, 0, 0);
        if (lane < tiles) s = __ldcg(work.sums + row + lane);
        float o[32];
#pragma unroll
        for (int j = 0; j < 32; j++)
            o[j] = j < tiles ? __ldcg(work.out + (row + j) * HEAD + part + lane) : 0.0f;
        int run_n = max(s.x, carry_n), run_m = max(s.y, carry_m);
        for (int x = 1; x < 32; x <<= 1) {
            run_n = max(run_n, __shfl_up_sync(~0u, run_n, x));
            run_m = max(run_m, __shfl_up_sync(~0u, run_m, x));
        }
        int n = __shfl_up_sync(~0u, run_n, 1), m = __shfl_up_sync(~0u, run_m, 1);
        if (lane == 0) n = carry_n, m = carry_m;
        low = min(low, __reduce_min_sync(~0u, lane < tiles ? s.y : 0x40000000));
        carry_n = __shfl_sync(~0u, run_n, 31), carry_m = __shfl_sync(~0u, run_m, 31);
        mem.chain[lane] = lane < tiles
            ? make_float4(pow2(max(m - run_m, -100)), pow2(max(s.y - run_m, -100)), pow2(max(n - run_n, -100)),
                          mul1(__int2float_rn(s.z), pow2(max(s.x - run_n, -100))))
            : make_float4(1.0f, 0.0f, 1.0f, 0.0f);
        __syncwarp();
        bool plain = low - carry_m >= -40;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            float4 c = mem.chain[j];
            float part_o = mul1(o[j], c.y);
            acc = plain ? fma1(acc, c.x, part_o) : j < tiles ? add1(z(mul1(acc, c.x)), z(part_o)) : acc;
            den = fma1(den, c.z, c.w);
        }
        __syncwarp();
    }
    float v = mul1(__fdiv_rn(acc, den), pow2(carry_m - carry_n + 8));
    if (lost(acc) || lost(den) || lost(v)) atomicOr(work.failed, 8u);
    out[(size_t)head * HEAD + part + lane] = z(v);
}

extern "C" __global__ void __launch_bounds__(544, 1)
    decode_tiles(const __grid_constant__ Map k_map, const __grid_constant__ Map v_map, const i8* steps,
                 const float* q, float* tile_out, int4* tile_sums, float* out, u32* done,
                 u32* done_before, u32* failed, int lo, int hi, int padded) {
    extern __shared__ __align__(1024) u8 shared[];
    Decode& mem = *(Decode*)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = lo / 128, head = blockIdx.y;
    Tiles work = {steps + (size_t)head * padded, tile_out, tile_sums, done, done_before, failed, lo, hi,
                  first, (hi + 127) / 128 - first, head};
    next_kernel_may_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) barrier_init(&mem.full[0][i], 1), barrier_init(&mem.full[1][i], 1);
        barrier_fence();
    }
    __syncthreads();
    if (warp < 16)
        walk(mem, k_map, v_map, work, padded, q, warp / 8, warp % 8, lane);
    else if (done && blockIdx.x < GROUP * (HEAD / 32))
        follow(mem, work, out, lane);
}

// The float steps of 2.6 over the tiles, ascending: one block does 32 dimensions of one query head.
// acc is a multiple of 2^(least M so far - X): while the M of a head span at most 40 binades z
// cannot act, acc·2^k is exact, and a step is one fma. Otherwise z is applied as written. den never
// falls below 2^20, so its steps are one fma always.
INLINE void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
extern "C" __global__ void __launch_bounds__(128)
    combine(const float* tile_out, const int4* tile_sums, float* out, u32* failed, int tiles) {
    extern __shared__ __align__(1024) u8 shared[];
    float* parts = (float*)shared;             // f(O), [tiles][32]
    int4* sums = (int4*)(parts + tiles * 32);   // N, M, D
    int padded = (tiles + 7) / 8 * 8;
    float* acc_scale = (float*)(sums + tiles);  // 2^(X-X')
    float* out_scale = acc_scale + padded;      // 2^(M-X')
    float* den_scale = out_scale + padded;      // 2^(R-R')
    float* den_term = den_scale + padded;       // f(D)·2^(N-R')
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
        copy16(parts + i * 4, source + (size_t)(i / 8) * HEAD + i % 8 * 4);
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    int each = (tiles + 127) / 128, from = min(thread * each, tiles), to = min(from + each, tiles);
    int run_n = -0x40000000, run_m = run_n, low_m = 0x40000000;
    for (int i = from; i < to; i++) {
        int4 s = sums[i];
        run_n = max(run_n, s.x), run_m = max(run_m, s.y), low_m = min(low_m, s.y);
    }
    low_m = __reduce_min_sync(~0u, low_m);
    for (int x = 1; x < 32; x <<= 1) {
        int n = __shfl_up_sync(~0u, run_n, x), m = __shfl_up_sync(~0u, run_m, x);
        if (lane >= x) run_n = max(run_n, n), run_m = max(run_m, m);
    }
    if (lane == 31) warp_n[warp] = run_n, warp_m[warp] = run_m, warp_low[warp] = low_m;
    __syncthreads();
    int n = __shfl_up_sync(~0u, run_n, 1), m = __shfl_up_sync(~0u, run_m, 1);
    if (lane == 0) n = m = -0x40000000;
    for (int w = 0; w < warp; w++) n = max(n, warp_n[w]), m = max(m, warp_m[w]);
    for (int i = from; i < to; i++) {
        int4 s = sums[i];
        int n2 = max(n, s.x), m2 = max(m, s.y);
        acc_scale[i] = i ? pow2(max(m - m2, -100)) : 1.0f;
        out_scale[i] = pow2(max(s.y - m2, -100));
        den_scale[i] = i ? pow2(max(n - n2, -100)) : 1.0f;
        den_term[i] = mul1(__int2float_rn(s.z), pow2(max(s.x - n2, -100)));
        n = n2, m = m2;
        if (i == tiles - 1) last[0] = n, last[1] = m;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    int low = min(min(warp_low[0], warp_low[1]), min(warp_low[2], warp_low[3]));
    float acc = 0.0f;
    if (warp == 0 && low - last[1] >= -40) {
        int i = 0;
#pragma unroll 2
        for (; i + 8 <= tiles; i += 8) {
            float o[8];
#pragma unroll
            for (int j = 0; j < 8; j++) o[j] = parts[(i + j) * 32 + lane];
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                float4 k = *(const float4*)(out_scale + i + j), s = *(const float4*)(acc_scale + i + j);
                acc = fma1(acc, s.x, mul1(o[j], k.x));
                acc = fma1(acc, s.y, mul1(o[j + 1], k.y));
                acc = fma1(acc, s.z, mul1(o[j + 2], k.z));
                acc = fma1(acc, s.w, mul1(o[j + 3], k.w));
            }
        }
        for (; i < tiles; i++) acc = fma1(acc, acc_scale[i], mul1(parts[i * 32 + lane], out_scale[i]));
    } else if (warp == 0) {
        for (int i = 0; i < tiles; i++)
            acc = add1(z(mul1(acc, acc_scale[i])), z(mul1(parts[i * 32 + lane], out_scale[i])));
    } else if (warp == 1 && lane == 0) {
        float den = 0.0f;
#pragma unroll 16
        for (int i = 0; i < tiles; i++) den = fma1(den, den_scale[i], den_term[i]);
        den_out = den;
    }
    __syncthreads();
    if (warp == 0) {
        float v = mul1(__fdiv_rn(acc, den_out), pow2(last[1] - last[0] + 8));
        if (lost(acc) || lost(den_out) || lost(v)) atomicOr(failed, 8u);
        out[(size_t)head * HEAD + part + lane] = z(v);
    }
}
