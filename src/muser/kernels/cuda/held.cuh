// A row that is made by 256 threads, which hold it in registers: thread l the elements l, l + 256, …, those of its lane of the
// sums of squares. Rows come into shared memory and leave it in one copy each, and stand there padded with zeros, which
// change no sum: loops over elements have no branch, and offsets are constants. All threads of the block quantise it.
// Functions only: kernels are in quantise.cuh.
#pragma once
#include "source.cuh"

constexpr int LANES = rows::LANES;
static_assert(LANES == GROUP, "a lane has one element of each group");
constexpr int HELD_BYTES = 2592;  // of shared memory for each group of HELD, beside the weights: two rows, and what is spare

// What comes before the row's first norm has a weight of its own.
INLINE bool has_branch_norm(const Source& s) { return s.kind == RESIDUAL && s.branch_norm; }

constexpr int SPARE = 2 * GROUP + 8 * (int)sizeof(float);  // of a quantised group, on its grid or with a scale for each 32
static_assert(2 * (int)sizeof(float) * LANES + SPARE == HELD_BYTES, "what the launch counts");
struct Room {  // of shared memory
    float *x, *other;       // HELD groups each
    float *first, *weight;  // the norms' weights; what is read behind them is multiplied by the zeros behind x, or comes to where nobody reads
    u8* spare;              // HELD·SPARE bytes
    u64 *x_full, *other_full;
};
template <int HELD>
INLINE Room room_of(u8* shared, int width, u64* full) {
    constexpr int ROW = HELD * LANES;
    float* at = (float*)shared;
    return {at + 2 * width, at + 2 * width + ROW, at, at + width, (u8*)(at + 2 * (width + ROW)), full, full + 1};
}

INLINE void bring(float* to, const float* from, int width, int threads) {
#pragma unroll 1
    for (int i = threadIdx.x; i < width / 4; i += threads) copy16(to + 4 * i, from + 4 * i);
}
// What comes before the kernel before has ended: zeros behind the rows, and the norms' weights.
template <int HELD>
INLINE void prepare_room(const Source& s, const Room& room) {
#pragma unroll 1
    for (int i = s.width + (int)threadIdx.x; i < HELD * LANES; i += blockDim.x) room.x[i] = room.other[i] = 0.0f;
    if (has_branch_norm(s)) bring(room.first, s.branch_weight, s.width, blockDim.x);
    bring(room.weight, s.weight, s.width, blockDim.x);
    copy_commit();
#ifdef HAS_BULK
    if (threadIdx.x == 0) barrier_init(room.x_full, 1), barrier_init(room.other_full, 1);
    barrier_fence();
#endif
    copy_wait<0>();
    __syncthreads();
}
INLINE void fetch_row(float* to, const float* from, int width, u64* full) {
#ifdef HAS_BULK
    if (threadIdx.x) return;
    barrier_expect(full, 4 * (u32)width);
    bulk_copy(to, from, 4 * (u32)width, full);
#else
    bring(to, from, width, LANES);
    copy_commit();
#endif
}
// By the first 256 threads.
INLINE void fetch_rows(const Source& s, i64 from, const Room& room) {
    fetch_row(room.x, s.row + from, s.width, room.x_full);
    if (s.kind == RESIDUAL) fetch_row(room.other, s.other + from, s.width, room.other_full);
#ifndef HAS_BULK
    copy_wait<0>();
    named_sync(1, LANES);
#endif
}
INLINE void await_row(u64* full) {
#ifdef HAS_BULK
    barrier_wait(full, 0);
#endif
}

INLINE float normed(float x, float factor, float weight) { return z(mul1(mul1(x, factor), weight)); }
// A sum of squares is lost: which elements were, and where. Sums stand in `room.other`.
INLINE void find_lost(const Source& s, const Room& room, float factor, Marks& bad) {
#pragma unroll 1
    for (int i = threadIdx.x; i < s.width; i += LANES) {
        bad.branch |= s.branch_norm && lost(normed(room.x[i], factor, room.first[i]));
        bad.sum |= lost(room.other[i]);
    }
}

// f(element, where it stands), of each one.
template <int HELD, typename F>
INLINE void each_held(float (&v)[HELD], F f) {
#pragma unroll
    for (int k = 0; k < HELD; k++) f(v[k], LANES * k);
}
// rows::lane_sum among the 256 threads of a half of the block.
INLINE float lane_sum(float s, float* lanes) {
    float mine[8];
    int half = threadIdx.x / LANES;
    lanes[threadIdx.x] = s;
    named_sync(1 + half, LANES);
#pragma unroll
    for (int i = 0; i < 8; i++) mine[i] = lanes[half * LANES + threadIdx.x % 32 + 32 * i];
    return rows::halve(mine);
}
// Row r of a source, see make_row, by 256 threads: it is left in `room.x`, and sums in `room.other`, from where they are on their
// way. Not real: nothing is waited for or written. `lanes`: 1,024 floats.
template <int HELD>
INLINE void make_held(const Source& s, int r, bool is_real, const Room& room, float* lanes, Marks& bad) {
    float v[HELD], w[HELD], factor = 1.0f, squares = 0.0f;
    int at = threadIdx.x % LANES;
    float *x = room.x + at, *other = room.other + at;
    const float *first = room.first + at, *weight = room.weight + at;
    if (is_real) await_row(room.x_full);
    each_held(v, [&](float& e, int k) { e = x[k]; });
    if (s.kind == RESIDUAL) {
        if (s.branch_norm) {
            each_held(v, [&](float& e, int) { squares = fma1(e, e, squares); });
            float total = lane_sum(squares, lanes);
            bad.branch = is_real && lost(total), factor = rows::inverse_root(total, s.inverse, s.branch_eps), squares = 0.0f;
            each_held(v, [&](float& e, int k) { e = normed(e, factor, first[k]); });
        }
        if (is_real) await_row(room.other_full);
        each_held(v, [&](float& e, int k) {
            e = z(add1(e, other[k]));
            if (is_real) other[k] = e;
        });
#ifdef HAS_BULK
        async_fence();
#endif
    }
    each_held(v, [&](float& e, int) { squares = fma1(e, e, squares); });
    float total = lane_sum(squares, lanes + 2 * LANES);
#ifdef HAS_BULK
    if (s.kind == RESIDUAL && threadIdx.x == 0) bulk_store(s.sum + (i64)r * s.width, room.other, 4 * (u32)s.width);
#endif
    if (is_real && lost(total)) {
        bad.norm = true;
        if (s.kind == RESIDUAL) find_lost(s, room, factor, bad);
    }
    factor = rows::inverse_root(total, s.inverse, s.eps);
    // All of the weights before the first store, which might be to the same place for all the compiler knows.
    each_held(w, [&](float& e, int k) { e = weight[k]; });
#pragma unroll
    for (int k = 0; k < HELD; k++) v[k] = normed(v[k], factor, w[k]);
    each_held(v, [&](float& e, int k) {
        if (is_real) x[k] = e;
    });
}
// The sums are in their place when this kernel has ended.
INLINE void finish_sums(const Source& s, int r, const Room& room) {
    if (s.kind != RESIDUAL) return;
#ifdef HAS_BULK
    if (threadIdx.x == 0) bulk_store_wait();
#else
    float4* to = (float4*)(s.sum + (i64)r * s.width);
    for (int i = threadIdx.x; i < s.width / 4; i += blockDim.x) to[i] = ((const float4*)room.other)[i];
#endif
}
