// Attention of many rows on warpgroup matrix units (sm_90a), heads up to 128 elements; the same bits as
// prefill_64 and prefill_128, which serve everything else. Bucket "chunk".
//
// prefill_wide_64, _128: grid (ceil(most rows / queries), units), block 384, shared prefill_wide_*_bytes
//            (101,184 and 199,488); units as in attention_prefill.cuh, queries = 8 · max(1, 16 / ratio).
//            reads q, gate, the cache, v_steps; writes out. A score beyond 2^22 is reported.
//
// Two warpgroups have 64 rows (query × head pairs) each; the first one of the block feeds K and V. The two
// take turns: one uses the matrix unit (P·V of a tile, then q·K of the next) while the other weighs.
#pragma once
#include "attention_many.cuh"

#ifdef HAS_WARPGROUPS
namespace attention {
constexpr int WIDE_WARPS = 8, WIDE_STAGES = 2;
constexpr int WIDE_BOX = 64 * TILE * 2;                // 64 elements of 128 positions, rows of 128 bytes
constexpr int FEEDER_REGISTERS = 24, WORKER_REGISTERS = 240;

template <int HEAD>
struct Wide {
    static constexpr int BOXES = HEAD / 64;
    u8 k[WIDE_STAGES][BOXES * WIDE_BOX], v[WIDE_STAGES][BOXES * WIDE_BOX];
    u8 q[2][2][BOXES][64 * 128];  // [warpgroup][digit]
    i8 steps[WIDE_STAGES][TILE];
    Pair pair[WIDE_WARPS * ROWS];
    float scale[WIDE_WARPS * ROWS];  // c·2^eq
    u64 k_full[WIDE_STAGES], k_free[WIDE_STAGES], v_full[WIDE_STAGES], v_free[WIDE_STAGES];
};

// A warpgroup copies; what a thread has copied is announced when its next part is under way.
template <int HEAD>
INLINE void feed_wide(const Attend& a, Wide<HEAD>& mem, const Share& share, int limit) {
    int count = 0;
    u64* last = nullptr;
    for (int from = first_row(share); from < limit;) {
        Run run = run_at(a, from, limit);
        int plane = (a.step.slots[run.from] * a.kv_heads + share.kv_head) * a.capacity;
        for (int part = 2 * run.first; part < 2 * run.last; part++) {
            int s = count / 2 % WIDE_STAGES, value = part & 1;
            size_t row = (size_t)(plane + part / 2 * TILE % a.capacity);
            barrier_wait((value ? mem.v_free : mem.k_free) + s, (count / 2 / WIDE_STAGES & 1) ^ 1);
            if (!value && threadIdx.x < TILE / 16)
                copy16(mem.steps[s] + threadIdx.x * 16, a.v_steps + row + threadIdx.x * 16);
#pragma unroll 1
            for (int box = 0; box < Wide<HEAD>::BOXES; box++)
                fetch<8, WIDE_BOX / 16, 128>((value ? mem.v[s] : mem.k[s]) + box * WIDE_BOX,
                                             (value ? a.v : a.k) + row * a.dim, box * 8, a.dim);
            copy_commit();
            if (last) {
                copy_wait<1>();
                async_fence();
                barrier_arrive(last);
            }
            last = (value ? mem.v_full : mem.k_full) + s;
            count++;
        }
        from = run.to;
    }
    copy_wait<0>();
    async_fence();
    if (last) barrier_arrive(last);
}

INLINE void turn_wait(int group) { named_sync(group + 3, 256); }
INLINE void turn_give(int group) { named_arrive(group + 3, 256); }

template <int HEAD>
INLINE void scores_wide(float (&y)[64], Wide<HEAD>& mem, int group, int warp, int lane, int stage) {
    constexpr int DIGIT = Wide<HEAD>::BOXES * 64 * 128;
    float low[64];
    u32 q = shared_address(mem.q[group]), k = shared_address(mem.k[stage]);
    matrix_fence();
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        u32 k_at = k + i / 4 * WIDE_BOX + i % 4 * 32, q_at = q + i / 4 * 8192 + i % 4 * 32;
        group_f16(y, exchanged(q_at), exchanged(k_at), i);
        group_f16(low, exchanged(q_at + DIGIT), exchanged(k_at), i);
    }
    matrix_commit();
    matrix_wait<0>();
    const float* scale = mem.scale + warp * ROWS + (lane >> 2);
    float scales[2] = {scale[0], scale[8]};
#pragma unroll
    for (int i = 0; i < 64; i++) y[i] = mul1(join(y[i], low[i]), scales[i >> 1 & 1]);
}

template <int HEAD>
INLINE void outputs_wide(float (&acc)[HEAD / 2], const Weights& w, const u8* v, const Merge& step) {
    u32 values = shared_address(v);
#pragma unroll
    for (int half = 0; half < HEAD / 64; half++) {
        float high[32], low[32];
        matrix_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u64 b = exchanged(values + half * WIDE_BOX + i * 2048);
            const u32 *h = w.high + 4 * i, *l = w.low + 4 * i;
            group_f16_turned(high, h[0], h[1], h[2], h[3], b, i);
            group_f16_turned(low, l[0], l[1], l[2], l[3], b, i);
        }
        matrix_commit();
        matrix_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++) merge_value(acc[32 * half + i], high[i], low[i], step, i >> 1 & 1);
    }
}

// `count`: tiles that the block has done before this run.
template <int HEAD>
INLINE void run_wide(const Attend& a, Wide<HEAD>& mem, const Share& share, const Run& run, int group, int& count) {
    int warp = group * 4 + threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    auto put = [&](int row, int x, u16 high, u16 low) {
        int at = swizzled<8>(row % 64, x / 8 % 8) + x % 8 * 2;
        *(u16*)(mem.q[group][0][x / 64] + at) = high;
        *(u16*)(mem.q[group][1][x / 64] + at) = low;
    };
    named_sync(group + 1, 128);
    place_rows<HEAD>(a, mem, share, run, warp, lane, put);
    async_fence();
    named_sync(group + 1, 128);
    const Pair* rows = mem.pair + warp * ROWS + g;
    State state[2] = {{NEVER, NEVER, -NEVER, 0.0f}, {NEVER, NEVER, -NEVER, 0.0f}};
    float acc[HEAD / 2];
#pragma unroll
    for (int i = 0; i < HEAD / 2; i++) acc[i] = 0.0f;
    if (group == 1) turn_give(0);
    turn_wait(group);
    for (int tile = run.first; tile < run.last; tile++, count++) {
        int s = count % WIDE_STAGES;
        u32 phase = count / WIDE_STAGES & 1;
        float y[64], top[2] = {0.0f, 0.0f};
        Weights w;
        u32 top_n[2], top_m[2], sum[2];
        barrier_wait(&mem.k_full[s], phase);
        scores_wide(y, mem, group, warp, lane, s);
        turn_give(group ^ 1);
        hide(y, top, rows, tile, t);
        for (int r = 0; r < 2; r++)
            if (!(top[r] < 0x1p22f)) report(a.faults, rows[8 * r].row);
        weigh_tile(y, mem.steps[s], w, top_n, top_m, sum, t);
        __syncwarp();
        if (lane == 0) barrier_arrive(&mem.k_free[s]);
        barrier_wait(&mem.v_full[s], phase);
        turn_wait(group);
        Merge step = merge_sums(state, rows, top_n, top_m, sum, tile);  // earlier it makes ptxas spill
        outputs_wide<HEAD>(acc, w, mem.v[s], step);
        __syncwarp();
        if (lane == 0) barrier_arrive(&mem.v_free[s]);
    }
    if (group == 0) turn_give(1);
    write_rows(a, acc, state, rows, 0, t);
}

template <int HEAD>
INLINE void prefill_wide(const Attend& a, u8* shared) {
    Wide<HEAD>& mem = *(Wide<HEAD>*)shared;
    Share share = share_of(a, blockIdx.y, WIDE_WARPS);
    next_kernel_may_start();
    if (threadIdx.x == 0) {
        for (int s = 0; s < WIDE_STAGES; s++) {
            barrier_init(&mem.k_full[s], 128), barrier_init(&mem.v_full[s], 128);
            barrier_init(&mem.k_free[s], WIDE_WARPS), barrier_init(&mem.v_free[s], WIDE_WARPS);
        }
        barrier_fence();
    }
    __syncthreads();
    previous_kernel_done();
    int limit = min(*a.step.count, first_row(share) + share.warps * share.each);
    if (threadIdx.x < 128) {
        registers_shrink<FEEDER_REGISTERS>();
        feed_wide(a, mem, share, limit);
    } else {
        registers_grow<WORKER_REGISTERS>();
        int group = threadIdx.x / 128 - 1, count = 0;
        for (int from = first_row(share); from < limit;) {
            Run run = run_at(a, from, limit);
            run_wide(a, mem, share, run, group, count);
            from = run.to;
        }
    }
}
}  // namespace attention

SIZE(prefill_wide_64_bytes, sizeof(attention::Wide<64>));
SIZE(prefill_wide_128_bytes, sizeof(attention::Wide<128>));
KERNEL BOUNDS(384, 1) prefill_wide_64(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::prefill_wide<64>(a, shared);
}
KERNEL BOUNDS(384, 1) prefill_wide_128(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::prefill_wide<128>(a, shared);
}
#endif
