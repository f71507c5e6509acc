// Quantised rows for buckets 1, 4 and 16: grid (most rows of the bucket, blocks a row).
//
// quantise_256, quantise_32, grid_rows(Quantise)               kind PLAIN; any number of blocks a row, of 256 to 512 threads;
//     no dynamic shared memory
// norm_quantise_256, norm_quantise_32, norm_grid_rows(Quantise)  kinds NORM and RESIDUAL; one block of 512 threads a row.
//     held = 16, 32: 256 divides K, which is 4,096 or 8,192 at most, and all norms have weights; 8·K + 2,592·held bytes of
//     shared memory. Else 1,024·ceil(K/256)
//     write codes u8 [row][ceil(K/256)][272] and scales f32 [row][round_up(K,256)/B]; the grid ones write
//     digits u8 [row][ceil(K/128)][256] and steps f32 [row][ceil(K/128)]; for kind RESIDUAL also `sum`
//     together = 16: as batch.cuh reads them, the same group of all rows side by side: [group][row][272], [block][row] …
#pragma once
#include "held.cuh"

struct Quantise {
    Source source;
    u8* codes;
    float* scales;
    const int* count;
    u64* faults;
    u32* made;     // each thread block adds one when it is about to be done
    int together;  // rows that lie side by side, group by group: 1 or 16
    int held;      // kinds NORM and RESIDUAL: 16 or 32 groups of a row as held.cuh does; 0: as make_row does
};

template <int B>  // 256, 32, or 0: the grid
INLINE Made made_of(const Quantise& a, int r) {
    constexpr int UNIT = B ? GROUP : GRID_BLOCK, BYTES = B ? CODES_PITCH : GRID_UNIT, SCALES = B ? GROUP / B : 1;
    i64 units = a.together == 1 ? (a.source.width + UNIT - 1) / UNIT : 1;  // of this row, before the next one begins
    return {a.codes + r * units * BYTES, a.scales + r * (a.together == 1 ? units * SCALES : 1), a.together};
}
template <int B>
INLINE bool quantise_made(const float* x, int width, const Made& to) {
    int each = blockDim.x / 32, warp = blockIdx.y * each + threadIdx.x / 32, warps = gridDim.y * each;
    if constexpr (B == 0) return grid_row(x, width, to, warp, warps);
    else return quantise_row<B>(x, width, to, warp, warps);
}
// Not behind a fence: it tells a projection in which order to fetch, and nothing more.
INLINE void tell_made(const Quantise& a) {
    if (threadIdx.x == 0) atomicAdd(a.made, 1u);
}
template <int B>
INLINE void quantise_rows(const Quantise& a) {
    next_kernel_may_start();
    touch(a);
    int r = blockIdx.x, n = *a.count;
    previous_kernel_done();
    tell_made(a);
    if (r < n) quantise_made<B>(a.source.row + (i64)r * a.source.width, a.source.width, made_of<B>(a, r));
}
// By 512 threads. While the lower half waits for the row, the upper one goes through the same code, on what happens to be
// there and to no effect, so that the code is there when the lower half needs it. Both quantise.
template <int B, int HELD>
INLINE void held_rows(const Quantise& a, u8* shared, float* lanes, u64* full) {
    const Source& s = a.source;
    Room room = room_of<HELD>(shared, s.width, full);
    int r = blockIdx.x;
    bool is_there = r < *a.count, is_real = threadIdx.x < LANES;
    if (is_there) prepare_room<HELD>(s, room);
    if (is_real || !is_there) previous_kernel_done();
    if (!is_there) return tell_made(a);
    if (is_real) fetch_rows(s, (i64)(s.take ? s.take[r] : r) * s.width, room);
    Marks bad = {false, false, false};
    make_held<HELD>(s, r, is_real, room, lanes, bad);
#pragma unroll 1
    for (u32 turn = is_real; turn < unknown(2); turn++) {
        Made to = made_of<B>(a, r);
        const float* from = room.x;
        if (turn) {
            if (!is_real) previous_kernel_done();
            __syncthreads();
            tell_made(a);
        } else {
            to = {room.spare, (float*)room.spare + HELD * GROUP / 2, 1}, from = room.weight;
        }
        bool was_lost = quantise_made<B>(from, s.width, to);
        if (turn) bad.norm |= was_lost;
    }
    tell(bad, s, a.faults, r);
    finish_sums(s, r, room);
}
template <int B>
INLINE void norm_quantise_rows(const Quantise& a) {
    SHARED_BYTES(shared);
    __shared__ float lanes[4 * LANES];
    __shared__ u64 full[2];
    next_kernel_may_start();
    touch(a);
    if (a.held == 16) return held_rows<B, 16>(a, shared, lanes, full);
    if (a.held == 32) return held_rows<B, 32>(a, shared, lanes, full);
    int r = blockIdx.x, n = *a.count;
    previous_kernel_done();
    if (r < n) make_row(a.source, r, a.faults, (float*)shared, lanes);
    tell_made(a);
    if (r < n) quantise_made<B>((const float*)shared, a.source.width, made_of<B>(a, r));
}
KERNEL BOUNDS(512, 1) quantise_256(const __grid_constant__ Quantise a) { quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) quantise_32(const __grid_constant__ Quantise a) { quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) grid_rows(const __grid_constant__ Quantise a) { quantise_rows<0>(a); }
KERNEL BOUNDS(512, 1) norm_quantise_256(const __grid_constant__ Quantise a) { norm_quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) norm_quantise_32(const __grid_constant__ Quantise a) { norm_quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) norm_grid_rows(const __grid_constant__ Quantise a) { norm_quantise_rows<0>(a); }
