// Quantised rows for buckets 1, 4 and 16: grid (most rows of the bucket, blocks a row), block 256 to 512.
//
// quantise_256, quantise_32, grid_rows(Quantise)               kind PLAIN; any number of blocks a row; no dynamic shared
//     memory
// norm_quantise_256, norm_quantise_32, norm_grid_rows(Quantise)  kinds NORM and RESIDUAL; one block a row; 4·width bytes
//     of it. With 448 threads one of them has room beside a projection of one row, so it begins while that one ends.
//     write codes u8 [row][ceil(K/256)][272] and scales f32 [row][round_up(K,256)/B]; the grid ones write
//     digits u8 [row][ceil(K/128)][256] and steps f32 [row][ceil(K/128)]; for kind RESIDUAL also `sum`
#pragma once
#include "source.cuh"

struct Quantise {
    Source source;
    u8* codes;
    float* scales;
    const int* count;
    u64* faults;
};

template <int B>  // 256, 32, or 0: the grid
INLINE void quantise_made(const float* x, const Quantise& a, int r) {
    int width = a.source.width, each = blockDim.x / 32, warp = blockIdx.y * each + threadIdx.x / 32, warps = gridDim.y * each;
    i64 groups = (width + GROUP - 1) / GROUP, blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    if constexpr (B == 0) grid_row(x, width, a.codes + r * blocks * GRID_UNIT, a.scales + r * blocks, warp, warps);
    else quantise_row<B>(x, width, a.codes + r * groups * CODES_PITCH, a.scales + r * groups * (GROUP / B), warp, warps);
}
template <int B, bool MADE>
INLINE void quantise_rows(const Quantise& a) {
    SHARED_BYTES(shared);
    __shared__ float lanes[512];
    next_kernel_may_start();
    if (MADE) ask_for_weights(a.source);
    previous_kernel_done();
    int r = blockIdx.x, n = *a.count;
    if (r >= n) return;
    if (MADE) make_row(a.source, r, n, true, a.faults, (float*)shared, lanes);
    quantise_made<B>(MADE ? (const float*)shared : a.source.row + (i64)r * a.source.width, a, r);
}
KERNEL BOUNDS(512, 1) quantise_256(Quantise a) { quantise_rows<256, false>(a); }
KERNEL BOUNDS(512, 1) quantise_32(Quantise a) { quantise_rows<32, false>(a); }
KERNEL BOUNDS(512, 1) grid_rows(Quantise a) { quantise_rows<0, false>(a); }
KERNEL BOUNDS(512, 2) norm_quantise_256(Quantise a) { quantise_rows<256, true>(a); }
KERNEL BOUNDS(512, 2) norm_quantise_32(Quantise a) { quantise_rows<32, true>(a); }
KERNEL BOUNDS(512, 2) norm_grid_rows(Quantise a) { quantise_rows<0, true>(a); }
