// 2.6 for many queries, HEAD = 128, causal. Rows of the matrix unit are 4 queries × 16 heads for each
// of two warpgroups; a third one feeds K and V. Tiles come in ascending order, so den and acc are the
// very chains of 'combine'. The two take turns: one uses the matrix unit (P·V of a tile, then q·K of
// the next) while the other works out its weights.
constexpr int TILE_BYTES_KV = 2 * BOX_BYTES;           // K or V of one tile
constexpr int QUERY_BYTES = 4 * 64 * 128;              // 2 digits × 2 halves × [64 rows][128 bytes]
constexpr int PREFILL_STAGES = 2;
constexpr int FEEDERS = 24, WORKERS = 240;             // registers a thread

struct Prefill {
    u8 k[PREFILL_STAGES][TILE_BYTES_KV];
    u8 v[PREFILL_STAGES][TILE_BYTES_KV];
    u8 q[2][QUERY_BYTES];
    i8 steps[PREFILL_STAGES][128];
    u64 k_full[PREFILL_STAGES], k_free[PREFILL_STAGES], v_full[PREFILL_STAGES], v_free[PREFILL_STAGES];
};

INLINE void feed(Prefill& m, const Map& k_map, const Map& v_map, const i8* steps, int first, int tiles) {
    for (int t = 0; t < tiles; t++) {
        int s = t % PREFILL_STAGES;
        u32 free = (t / PREFILL_STAGES & 1) ^ 1;
        barrier_wait(&m.k_free[s], free);
        barrier_expect(&m.k_full[s], TILE_BYTES_KV + 128);
        bulk_copy(m.steps[s], steps + t * 128, 128, &m.k_full[s]);
        for (int h = 0; h < 2; h++)
            bulk_box(m.k[s] + h * BOX_BYTES, &k_map, h * 64, first + t * 128, &m.k_full[s]);
        barrier_wait(&m.v_free[s], free);
        barrier_expect(&m.v_full[s], TILE_BYTES_KV);
        for (int h = 0; h < 2; h++)
            bulk_box(m.v[s] + h * BOX_BYTES, &v_map, h * 64, first + t * 128, &m.v_full[s]);
    }
}

// The digits of 16 rows (one query) into the exchanged layout; returns c·2^eq of row lane % 16.
INLINE float place_query(u8* to, const float* q, int first_row, int lane) {
    float mine = 0.0f;
    for (int r = 0; r < GROUP; r++) {
        float4 v = ((const float4*)(q + r * HEAD))[lane];
        float a = warp_max_bits(max(max(lane_max_abs(v.x), lane_max_abs(v.y)),
                                    max(lane_max_abs(v.z), lane_max_abs(v.w))));
        int e = grid_step(a, Q_BITS, -60), row = first_row + r;
        uint2 high = make_uint2(0, 0), low = high;
        if (a != 0.0f) {
            digits2(grid_code(v.x, e, Q_BITS), grid_code(v.y, e, Q_BITS), high.x, low.x);
            digits2(grid_code(v.z, e, Q_BITS), grid_code(v.w, e, Q_BITS), high.y, low.y);
        }
        u8* at = to + lane / 16 * 8192 + row * 128 + ((lane / 2 & 7) ^ (row & 7)) * 16 + (lane & 1) * 8;
        *(uint2*)at = high;
        *(uint2*)(at + 16384) = low;
        if (lane % 16 == r) mine = mul1(TO_BASE_2, pow2(e));
    }
    return mine;
}

struct Row {  // the running state of one row of the matrix unit; low: least M so far
    int n, m, low;
    float den;
};

INLINE void turn_wait(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + 3) : "memory");
}
INLINE void turn_give(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(group + 3) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1)
    prefill(const __grid_constant__ Map k_map, const __grid_constant__ Map v_map, const i8* steps,
            const float* q, float* out, u32* failed, int first_position, int padded) {
    extern __shared__ __align__(1024) u8 shared[];
    Prefill& mem = *(Prefill*)shared;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int chunk = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, heads = gridDim.y;  // longest first
    int last = first_position + chunk * 8 + 7, tiles = last / 128 + 1;
    if (threadIdx.x == 0) {
        for (int s = 0; s < PREFILL_STAGES; s++) {
            barrier_init(&mem.k_full[s], 1), barrier_init(&mem.v_full[s], 1);
            barrier_init(&mem.k_free[s], 8), barrier_init(&mem.v_free[s], 8);  // a warp each
        }
        barrier_fence();
    }
    __syncthreads();
    if (group == 2) {
        registers_shrink<FEEDERS>();
        if (warp == 0 && lane == 0) feed(mem, k_map, v_map, steps + (size_t)head * padded, head * padded, tiles);
        return;
    }
    registers_grow<WORKERS>();
    int g = lane >> 2, t = lane & 3, query = chunk * 8 + group * 4 + warp;
    int position = first_position + query;
    size_t q_at = ((size_t)query * heads + head) * GROUP * HEAD;
    float scale = place_query(mem.q[group], q + q_at, warp * 16, lane);
    float y_scale[2] = {__shfl_sync(~0u, scale, g), __shfl_sync(~0u, scale, g + 8)};
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");

    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = 0.0f;
    Row row[2] = {{0, 0, 0, 0.0f}, {0, 0, 0, 0.0f}};
    float top = 0.0f;
    u32 q_address = shared_address(mem.q[group]);
    if (group == 1) turn_give(0);
    turn_wait(group);
    for (int tile = 0; tile < tiles; tile++) {
        int s = tile % PREFILL_STAGES;
        u32 phase = tile / PREFILL_STAGES & 1;
        float y[64], low[64];
        barrier_wait(&mem.k_full[s], phase);
        u32 k_address = shared_address(mem.k[s]);
        matrix_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 at = i / 4 * BOX_BYTES + i % 4 * 32, qa = q_address + i / 4 * 8192 + i % 4 * 32;
            group_f16(y, exchanged(qa), exchanged(k_address + at), i);
            group_f16(low, exchanged(qa + 16384), exchanged(k_address + at), i);
        }
        matrix_commit();
        matrix_wait<0>();

        turn_give(group ^ 1);

        u32 top_n[2] = {0, 0}, top_m[2] = {0, 0};
        const u16* pairs = (const u16*)mem.steps[s];
#pragma unroll
        for (int i = 0; i < 64; i++) {
            y[i] = mul1(fma1(y[i], 128.0f, low[i]), y_scale[i >> 1 & 1]);
            top = fmaxf(top, fabsf(y[i]));
        }
        if (tile * 128 + 127 > position)
#pragma unroll
            for (int i = 0; i < 64; i++)
                if (tile * 128 + i / 4 * 8 + 2 * t + (i & 1) > position) y[i] = HIDDEN;
#pragma unroll
        for (int i = 0; i < 64; i++) {
            u32 pair = pairs[i / 4 * 4 + t];
            int ev = (int)(i & 1 ? pair << 16 : pair << 24) >> 24;
            u32 bits = __float_as_uint(__fadd_rd(y[i], MAGIC));
            top_n[i >> 1 & 1] = max(top_n[i >> 1 & 1], bits);
            top_m[i >> 1 & 1] = max(top_m[i >> 1 & 1], bits + ev);
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int x = 1; x < 4; x <<= 1) {
                top_n[r] = max(top_n[r], __shfl_xor_sync(~0u, top_n[r], x));
                top_m[r] = max(top_m[r], __shfl_xor_sync(~0u, top_m[r], x));
            }
        u32 sum[2] = {0, 0}, ph[32], pl[32];
#pragma unroll
        for (int i = 0; i < 64; i += 2) {
            int r = i >> 1 & 1;
            u32 pair = pairs[i / 4 * 4 + t];
            float h[2], l[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int ev = (int)(j ? pair << 16 : pair << 24) >> 24;
                float u = pow2(-15 - ev);
                weigh(y[i + j], 147 - (int)top_n[r], 139 + ev - (int)top_m[r], h[j], l[j], sum[r]);
                h[j] = mul1(h[j], u);
                l[j] = mul1(l[j], u);
            }
            ph[i / 2] = float_to_half2(h[0], h[1]);
            pl[i / 2] = float_to_half2(l[0], l[1]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&mem.k_free[s]);
        float acc_scale[2], out_scale[2];
        bool plain = true;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
            int n = (int)(top_n[r] - MAGIC_BITS), m = (int)(top_m[r] - MAGIC_BITS);
            int n2 = tile ? max(row[r].n, n) : n, m2 = tile ? max(row[r].m, m) : m;
            row[r].den = fma1(row[r].den, pow2(max(tile ? row[r].n - n2 : 0, -100)),
                              mul1(__int2float_rn((int)sum[r]), pow2(max(n - n2, -100))));
            acc_scale[r] = pow2(max(tile ? row[r].m - m2 : 0, -100));
            out_scale[r] = pow2(15 + max(m - m2, -100));  // the digits were scaled by 2^-15
            row[r].low = tile ? min(row[r].low, m) : m;
            row[r].n = n2, row[r].m = m2;
            plain &= row[r].low - m2 >= -40;
        }
        plain = __all_sync(~0u, plain);  // z cannot act: see 'combine'
        turn_wait(group);
        barrier_wait(&mem.v_full[s], phase);
        u32 v_address = shared_address(mem.v[s]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float oh[32], ol[32];
            matrix_fence();
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u64 b = exchanged(v_address + half * BOX_BYTES + i * 2048);
                group_f16_turned(oh, ph[4 * i], ph[4 * i + 1], ph[4 * i + 2], ph[4 * i + 3], b, i);
                group_f16_turned(ol, pl[4 * i], pl[4 * i + 1], pl[4 * i + 2], pl[4 * i + 3], b, i);
            }
            matrix_commit();
            matrix_wait<0>();
            if (plain) {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    int r = i >> 1 & 1, at = 32 * half + i;
                    acc[at] = fma1(acc[at], acc_scale[r], mul1(fma1(oh[i], 128.0f, ol[i]), out_scale[r]));
                }
            } else {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    int r = i >> 1 & 1, at = 32 * half + i;
                    float o = z(mul1(fma1(oh[i], 128.0f, ol[i]), out_scale[r]));
                    acc[at] = add1(z(mul1(acc[at], acc_scale[r])), o);
                }
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&mem.v_free[s]);
    }
    if (group == 0) turn_give(1);
    if (!(top < 0x1p22f)) atomicOr(failed, 4u);
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        int r = i >> 1 & 1;
        float up = pow2(row[r].m - row[r].n + 8);
        float a = mul1(__fdiv_rn(acc[i], row[r].den), up);
        float b = mul1(__fdiv_rn(acc[i + 1], row[r].den), up);
        if (lost(a) || lost(b) || lost(row[r].den)) atomicOr(failed, 8u);
        *(float2*)(out + q_at + (g + 8 * r) * HEAD + i / 4 * 8 + 2 * t) = make_float2(z(a), z(b));
    }
}
