// Attention of many rows (docs/arithmetic.md 7), bucket "chunk". Tiles go by in ascending order, so den
// and acc are the very chain that decode_combine walks.
//
// prefill_64, _128, _256 (the least that holds dim): any card. Grid (ceil(most rows / queries), units,
//            HEAD / 128 or 1), block 128, shared prefill_*_bytes (84,224, 100,608 and
//            100,608); units = kv_heads · ceil(ratio / 16), ratio = heads / kv_heads; queries = 4 ·
//            max(1, 16 / ratio) in whole numbers.
//            reads q, gate, the cache, v_steps; writes out. A score beyond 2^22 is reported.
#pragma once
#include "attention_many.cuh"

namespace attention {
constexpr int PREFILL_WARPS = 4, PREFILL_THREADS = PREFILL_WARPS * 32, STEP_SLOTS = 4;

// Ring slots of 16 KiB: K in KEYS positions of whole rows, V in 64 dims of all positions.
template <int HEAD>
struct Prefill {
    static constexpr int SLOT = 16384, SLOTS = HEAD == 256 ? 2 : 4;
    static constexpr int KEYS = SLOT / (2 * HEAD), K_USES = TILE / KEYS;
    static constexpr int OUT = HEAD < 128 ? HEAD : 128, V_USES = OUT / 64;  // dims of a block
    static constexpr int Q_BYTES = PREFILL_WARPS * ROWS * HEAD * 2;         // of one digit

    u8 ring[SLOTS][SLOT];
    u8 q[2][Q_BYTES];
    i8 steps[STEP_SLOTS][TILE];
    Pair pair[PREFILL_WARPS * ROWS];
    int next[PREFILL_THREADS];  // first row of the next run: a register less
    float scale[PREFILL_WARPS * ROWS];  // c·2^eq
};

struct PrefillFeed {
    int tile, last, part;
    int plane;  // first cache row of the slot and KV head
};
template <int HEAD>
INLINE void feed(const Attend& a, Prefill<HEAD>& mem, PrefillFeed& f, int slot) {
    using P = Prefill<HEAD>;
    if (f.tile < f.last) {
        size_t row = (size_t)(f.plane + f.tile * TILE % a.capacity);
        if (f.part == 0 && threadIdx.x < TILE / 16)
            copy16(mem.steps[f.tile % STEP_SLOTS] + threadIdx.x * 16, a.v_steps + row + threadIdx.x * 16);
        if (f.part < P::K_USES) {
            fetch<HEAD / 8, P::SLOT / 16, PREFILL_THREADS>(
                mem.ring[slot], a.k + (row + f.part * P::KEYS) * a.dim, 0, a.dim);
        } else {
            int x = (int)blockIdx.z * P::OUT + (f.part - P::K_USES) * 64;
            fetch<8, P::SLOT / 16, PREFILL_THREADS>(mem.ring[slot], a.v + row * a.dim, x / 8, a.dim);
        }
    }
    copy_commit();
    f.part++;
    if (f.part == P::K_USES + P::V_USES) f.part = 0, f.tile++;
}
template <int HEAD>
INLINE const u8* take(const Attend& a, Prefill<HEAD>& mem, PrefillFeed& f, int& use) {
    copy_wait<Prefill<HEAD>::SLOTS - 2>();
    __syncthreads();
    constexpr int SLOTS = Prefill<HEAD>::SLOTS;
    int now = use;
    use = use + 1 == SLOTS ? 0 : use + 1;
    feed(a, mem, f, now == 0 ? SLOTS - 1 : now - 1);
    return mem.ring[now];
}

// y of 32 positions, from row `key` of the slot on: blocks of 8 positions × {row g: 2, row g + 8: 2}.
template <int HEAD>
INLINE void scores(float* y, const Prefill<HEAD>& mem, const u8* k, int key, int warp, int lane) {
    constexpr int LOWS = HEAD == 256 ? 2 : 1;
    // A step of 16 elements is two pieces: it flips bits of the address from 5 on.
    u32 q_at = unknown(shared_address(mem.q[0])) + swizzled<HEAD / 8>(warp * ROWS + (lane & 15), lane >> 4);
    u32 k_at = unknown(shared_address(k)) +
               swizzled<HEAD / 8>(key + (lane >> 4) * 8 + (lane & 7), lane >> 3 & 1);
    float high[4][4] = {}, low[LOWS][4][4] = {};
    const float* scale = mem.scale + warp * ROWS + (lane >> 2);
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        u32 ah[4], al[4];
        load_matrix4(ah, q_at ^ s << 5);
        load_matrix4(al, (q_at ^ s << 5) + Prefill<HEAD>::Q_BYTES);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            u32 b[4];
            load_matrix4(b, (k_at ^ s << 5) + n * 8 * HEAD * 2);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma_f16(high[n + j], ah, b[2 * j], b[2 * j + 1]);
                mma_f16(low[s * 16 / 128][n + j], al, b[2 * j], b[2 * j + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float t;
        if constexpr (LOWS == 2) {
            t = join(high[i / 4][i % 4], low[0][i / 4][i % 4], low[1][i / 4][i % 4]);
        } else {
            t = join(high[i / 4][i % 4], low[0][i / 4][i % 4]);
        }
        y[i] = mul1(t, scale[8 * (i >> 1 & 1)]);
    }
}

// 64 output dims: acc[8 blocks of 8 dims × {row g: 2, row g + 8: 2}].
INLINE void outputs(float* acc, const Weights& w, const u8* v, const Merge& step, int lane) {
    u32 v_at = unknown(shared_address(v)) + swizzled<8>(lane & 15, lane >> 4);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        float high[2][4] = {}, low[2][4] = {};
#pragma unroll
        for (int s = 0; s < TILE / 16; s++) {
            u32 b[4];
            u32 ah[4] = {w.high[4 * s], w.high[4 * s + 1], w.high[4 * s + 2], w.high[4 * s + 3]};
            u32 al[4] = {w.low[4 * s], w.low[4 * s + 1], w.low[4 * s + 2], w.low[4 * s + 3]};
            load_matrix4_turned(b, (v_at ^ n << 4) + s * 16 * 128);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma_f16(high[j], ah, b[2 * j], b[2 * j + 1]);
                mma_f16(low[j], al, b[2 * j], b[2 * j + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            merge_value(acc[n * 4 + i], high[i / 4][i % 4], low[i / 4][i % 4], step, i >> 1 & 1);
    }
}

template <int HEAD>
INLINE int prefill_run(const Attend& a, Prefill<HEAD>& mem, const Share& share, const Run& run) {
    using P = Prefill<HEAD>;
    mem.next[threadIdx.x] = run.to;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, use = 0;
    int plane = (a.step.slots[run.from] * a.kv_heads + share.kv_head) * a.capacity;
    PrefillFeed next = {run.first, run.last, 0, plane};
#pragma unroll
    for (int i = 0; i < P::SLOTS - 1; i++) feed(a, mem, next, i);
    const Pair* rows = mem.pair + warp * ROWS + g;
    State state[2] = {{NEVER, NEVER, -NEVER, 0.0f}, {NEVER, NEVER, -NEVER, 0.0f}};
    float acc[P::OUT / 2];
    auto put = [&](int row, int x, u16 high, u16 low) {
        int at = swizzled<HEAD / 8>(row, x / 8) + x % 8 * 2;
        *(u16*)(mem.q[0] + at) = high;
        *(u16*)(mem.q[1] + at) = low;
    };
    place_rows<HEAD>(a, mem, share, run, warp, lane, put);
#pragma unroll
    for (int i = 0; i < P::OUT / 2; i++) acc[i] = 0.0f;
    for (int tile = run.first; tile < run.last; tile++) {
        float y[64];
        Weights w;
        u32 top_n[2], top_m[2], sum[2];
#pragma unroll
        for (int u = 0; u < P::K_USES; u++) {
            const u8* k = take(a, mem, next, use);
#pragma unroll
            for (int key = 0; key < P::KEYS; key += 32)
                scores(y + (u * P::KEYS + key) / 2, mem, k, key, warp, lane);
        }
        float top[2] = {0.0f, 0.0f};
        hide(y, top, rows, tile, t);
        for (int r = 0; r < 2; r++)
            if (!(top[r] < 0x1p22f)) report(a.faults, rows[8 * r].row);
        weigh_tile(y, mem.steps[tile % STEP_SLOTS], w, top_n, top_m, sum, t);
        Merge step = merge_sums(state, rows, top_n, top_m, sum, tile);
#pragma unroll
        for (int u = 0; u < P::V_USES; u++) outputs(acc + 32 * u, w, take(a, mem, next, use), step, lane);
    }
    write_rows(a, acc, state, rows, (int)blockIdx.z * P::OUT, t);
    copy_wait<0>();
    __syncthreads();  // the ring is free for the next run
    return mem.next[threadIdx.x];
}

template <int HEAD>
INLINE void prefill(const Attend& a, u8* shared) {
    Prefill<HEAD>& mem = *(Prefill<HEAD>*)shared;
    Share share = share_of(a, blockIdx.y, PREFILL_WARPS);
    next_kernel_may_start();
    previous_kernel_done();
    int limit = min(*a.step.count, first_row(share) + share.warps * share.each);
    for (int from = first_row(share); from < limit;) {
        from = prefill_run(a, mem, share, run_at(a, from, limit));
    }
}
}  // namespace attention

SIZE(prefill_64_bytes, sizeof(attention::Prefill<64>));
SIZE(prefill_128_bytes, sizeof(attention::Prefill<128>));
SIZE(prefill_256_bytes, sizeof(attention::Prefill<256>));
KERNEL BOUNDS(128, 2) prefill_64(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::prefill<64>(a, shared);
}
KERNEL BOUNDS(128, 2) prefill_128(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::prefill<128>(a, shared);
}
KERNEL BOUNDS(128, 2) prefill_256(attention::Attend a) {
    SHARED_BYTES(shared);
    attention::prefill<256>(a, shared);
}
