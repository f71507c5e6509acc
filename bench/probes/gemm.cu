// out[token][row]: many quantised rows by a Q4_K matrix as it lies in the file. Two warpgroups do 64
// rows × 128 tokens each, a third feeds. Weights go from shared memory to registers as two 8-bit
// planes: with p = 4·scale·code (at most 3,780) the high byte a and the low byte b of p, so that
// 4·Σ scale·code·q = 256·Σ a·q + Σ b·q; floats are touched once per 256 columns.
constexpr int GEMM_STAGES = 4;
constexpr int WEIGHT_BYTES = 128 * BLOCK_BYTES;
constexpr int STAGE_BYTES = (TILE_BYTES + WEIGHT_BYTES + 1023) / 1024 * 1024;
constexpr int GEMM_FEEDERS = 24, GEMM_WORKERS = 240;

struct Gemm {
    u8 stage[GEMM_STAGES][STAGE_BYTES];  // a tile of 'quantise_tiles', then 128 blocks
    u64 full[GEMM_STAGES], free[GEMM_STAGES];
};

INLINE void feed_gemm(Gemm& m, const Map& weights, const u8* tiles, int blocks, int token_tiles,
                      int work) {
    int i = 0;
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
        const u8* tokens = tiles + (size_t)(w % token_tiles) * blocks * TILE_BYTES;
        for (int b = 0; b < blocks; b++, i++) {
            int s = i % GEMM_STAGES;
            barrier_wait(&m.free[s], (i / GEMM_STAGES & 1) ^ 1);
            barrier_expect(&m.full[s], TILE_BYTES + WEIGHT_BYTES);
            bulk_copy(m.stage[s], tokens + (size_t)b * TILE_BYTES, TILE_BYTES, &m.full[s]);
            bulk_box(m.stage[s] + TILE_BYTES, &weights, b * BLOCK_BYTES, w / token_tiles * 128,
                     &m.full[s]);
        }
    }
}

// Four codes, one in each byte of w, times 4·scale: bytes of a and of b.
INLINE void planes(u32 even, u32 odd, u32 scale4, u32& a, u32& b) {
    u32 p = even * scale4, q = odd * scale4;
    a = __byte_perm(p, q, 0x7351);
    b = __byte_perm(p, q, 0x6240);
}

INLINE u32 min_pair(const Scales& s, int t) {  // mins 2t and 2t+1 as f16
    u32 m = s.min[t >> 1] >> (16 * (t & 1)), r;
    m = __byte_perm(m, 0, 0x4140) | 0x64006400u;  // 1024 + m
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(m), "r"(0x64006400u));
    return r;
}

extern "C" __global__ void __launch_bounds__(384, 1)
    gemm(const __grid_constant__ Map weights, const u8* tiles, float* out, u32* failed, int rows, int tokens, int blocks) {
    extern __shared__ __align__(1024) u8 shared[];
    Gemm& mem = *(Gemm*)shared;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    int token_tiles = tokens / 128, work = rows / 128 * token_tiles;
    if (threadIdx.x == 0) {
        for (int s = 0; s < GEMM_STAGES; s++) barrier_init(&mem.full[s], 1), barrier_init(&mem.free[s], 8);
        barrier_fence();
    }
    __syncthreads();
    if (group == 2) {
        registers_shrink<GEMM_FEEDERS>();
        if (warp == 0 && lane == 0) feed_gemm(mem, weights, tiles, blocks, token_tiles, work);
        return;
    }
    registers_grow<GEMM_WORKERS>();
    int g = lane >> 2, t = lane & 3, first = group * 64 + warp * 16 + g;
    int i = 0;
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
        float total[64];
#pragma unroll
        for (int k = 0; k < 64; k++) total[k] = 0.0f;
        for (int b = 0; b < blocks; b++, i++) {
            int s = i % GEMM_STAGES;
            barrier_wait(&mem.full[s], i / GEMM_STAGES & 1);
            const u8* here = mem.stage[s];
            const u8* block[2] = {here + TILE_BYTES + first * BLOCK_BYTES,
                                  here + TILE_BYTES + (first + 8) * BLOCK_BYTES};
            Scales scales[2];
            float d[2], dmin[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint4 head = *(const uint4*)block[r];
                d[r] = mul1(half_to_float(head.x), 0.25f);
                dmin[r] = half_to_float(head.x >> 16);
                scales[r] = read_scales(head.y, head.z, head.w);
            }
            int ia[64], ib[64];
            u32 at = shared_address(here);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 x[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[k] = *(const u32*)(block[k & 1] + 16 + 32 * j + (k >> 1) * 16 + 4 * t);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    u32 a[4], c[4];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        u32 scale = scales[k & 1].scale[j >> 1] >> (16 * (j & 1) + 8 * h) & 63;
                        planes(x[k] >> (4 * h) & 0x000f000fu, x[k] >> (8 + 4 * h) & 0x000f000fu,
                               scale * 4, a[k], c[k]);
                    }
                    int k = 2 * j + h;
                    u64 tokens_k = exchanged(at + k / 4 * 16384 + k % 4 * 32);
                    matrix_fence();
                    group_s8(ia, a, tokens_k, k);
                    group_u8(ib, c, tokens_k, k);
                    matrix_commit();
                    matrix_wait<1>();  // the planes before these may be overwritten
                }
            }
            matrix_wait<0>();
            float f[64], mins[64];
#pragma unroll
            for (int k = 0; k < 64; k++) f[k] = __int2float_rn(ia[k] * 256 + ib[k]);
            u32 m[4] = {min_pair(scales[0], t), min_pair(scales[1], t), 0, 0};
            m[2] = m[0], m[3] = m[1];
            matrix_fence();
            group_f16_first(mins, m, descriptor(at + TILE_SUMS, 2048, 128, 0));
            matrix_commit();
            matrix_wait<0>();
            const float2* scale = (const float2*)(here + TILE_SCALES);
#pragma unroll
            for (int k = 0; k < 64; k += 2) {
                float2 c = scale[k / 4 * 4 + t];
                int r = k >> 1 & 1;
                float t0 = fma1(d[r], f[k], -mul1(dmin[r], mins[k]));
                float t1 = fma1(d[r], f[k + 1], -mul1(dmin[r], mins[k + 1]));
                total[k] = fma1(c.x, t0, total[k]);
                total[k + 1] = fma1(c.y, t1, total[k + 1]);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(&mem.free[s]);
        }
        int row = w / token_tiles * 128 + first, token = w % token_tiles * 128 + 2 * t;
        bool bad = false;
#pragma unroll
        for (int k = 0; k < 64; k++) {
            bad |= lost(total[k]);
            out[(size_t)(token + k / 4 * 8 + (k & 1)) * rows + row + (k >> 1 & 1) * 8] = z(total[k]);
        }
        if (bad) atomicOr(failed, 1u);
    }
}

// The formula of 2.4 word by word, a thread an output: what 'gemm' is compared with in every output.
extern "C" __global__ void plain(const u8* weights, const u8* q, const float* scales, float* out, int rows,
                                 int blocks) {
    int row = blockIdx.y, token = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0.0f;
    for (int b = 0; b < blocks; b++) {
        const u8* block = weights + ((size_t)row * blocks + b) * BLOCK_BYTES;
        float t = block_term((const uint4*)block, (const uint4*)(q + ((size_t)token * blocks + b) * 272));
        total = fma1(scales[(size_t)token * blocks + b], t, total);
    }
    out[(size_t)token * rows + row] = z(total);
}
