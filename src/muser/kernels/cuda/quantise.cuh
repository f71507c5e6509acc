// Quantised rows for buckets 1, 4 and 16: grid (most rows of the bucket, blocks a row).
//
// quantise_256, quantise_32, grid_rows(Quantise)               kind PLAIN; any number of blocks a row, of 256 to 512 threads;
//     no dynamic shared memory
// norm_quantise_256, norm_quantise_32, norm_grid_rows(Quantise)  kinds NORM and RESIDUAL; one block of 512 threads a row.
//     held = 16, 32: 256 divides K, which is 4,096 or 8,192 at most, and all norms have weights; 8·K + 2,048·held bytes of
//     shared memory. Else 1,024·ceil(K/256)
//     write codes u8 [row][ceil(K/256)][272] and scales f32 [row][round_up(K,256)/B]; the grid ones write
//     digits u8 [row][ceil(K/128)][256] and steps f32 [row][ceil(K/128)]; for kind RESIDUAL also `sum`
#pragma once
#include "held.cuh"

struct Quantise {
    Source source;
    u8* codes;
    float* scales;
    const int* count;
    u64* faults;
    u32* made;  // each thread block adds one when it is about to be done
    int held;   // kinds NORM and RESIDUAL: 16 or 32 groups of a row as held.cuh does; 0: as make_row does
};

template <int B>  // 256, 32, or 0: the grid
INLINE bool quantise_made(const float* x, const Quantise& a, int r) {
    int width = a.source.width, each = blockDim.x / 32, warp = blockIdx.y * each + threadIdx.x / 32, warps = gridDim.y * each;
    i64 groups = (width + GROUP - 1) / GROUP, blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    if constexpr (B == 0) return grid_row(x, width, a.codes + r * blocks * GRID_UNIT, a.scales + r * blocks, warp, warps);
    else return quantise_row<B>(x, width, a.codes + r * groups * CODES_PITCH, a.scales + r * groups * (GROUP / B), warp, warps);
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
    if (r < n) quantise_made<B>(a.source.row + (i64)r * a.source.width, a, r);
}
template <int B, int HELD>
INLINE void held_rows(const Quantise& a, u8* shared, float* lanes) {
    __shared__ u64 full[2];
    const Source& s = a.source;
    Room room = room_of<HELD>(shared, s.width, full);
    int r = blockIdx.x, n = *a.count;
    prepare_room<HELD>(s, room);
    previous_kernel_done();
    if (r >= n) return tell_made(a);
    Marks bad = {false, false, false};
    fetch_rows(s, (i64)(s.take ? s.take[r] : r) * s.width, room);
    if (threadIdx.x < LANES) {
        make_held<HELD>(s, r, room, lanes, bad);
    } else {
#pragma unroll 1
        for (int i = 0; i < barriers_of(s); i++) __syncthreads();
    }
    __syncthreads();
    tell_made(a);
    bad.norm |= quantise_made<B>(room.x, a, r);
    tell(bad, s, a.faults, r);
    finish_sums(s, r, room);
}
template <int B>
INLINE void norm_quantise_rows(const Quantise& a) {
    SHARED_BYTES(shared);
    __shared__ float lanes[2 * LANES];
    next_kernel_may_start();
    touch(a);
    if (a.held == 16) return held_rows<B, 16>(a, shared, lanes);
    if (a.held == 32) return held_rows<B, 32>(a, shared, lanes);
    int r = blockIdx.x, n = *a.count;
    previous_kernel_done();
    if (r < n) make_row(a.source, r, a.faults, (float*)shared, lanes);
    tell_made(a);
    if (r < n) quantise_made<B>((const float*)shared, a, r);
}
KERNEL BOUNDS(512, 1) quantise_256(const __grid_constant__ Quantise a) { quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) quantise_32(const __grid_constant__ Quantise a) { quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) grid_rows(const __grid_constant__ Quantise a) { quantise_rows<0>(a); }
KERNEL BOUNDS(512, 1) norm_quantise_256(const __grid_constant__ Quantise a) { norm_quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) norm_quantise_32(const __grid_constant__ Quantise a) { norm_quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) norm_grid_rows(const __grid_constant__ Quantise a) { norm_quantise_rows<0>(a); }
