// Quantised rows for buckets 1, 4 and 16: grid (most rows of the bucket, blocks a row).
//
// quantise_256, quantise_32, grid_rows(Quantise)               kind PLAIN; any number of blocks a row, of 256 to 512 threads;
//     no dynamic shared memory
// norm_quantise_256, norm_quantise_32, norm_grid_rows(Quantise)  kinds NORM and RESIDUAL; one block of 256 threads a row;
//     2,560·ceil(K/256) bytes of it
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
};

template <int B>  // 256, 32, or 0: the grid
INLINE void quantise_made(const float* x, const Quantise& a, int r) {
    int width = a.source.width, each = blockDim.x / 32, warp = blockIdx.y * each + threadIdx.x / 32, warps = gridDim.y * each;
    i64 groups = (width + GROUP - 1) / GROUP, blocks = (width + GRID_BLOCK - 1) / GRID_BLOCK;
    if constexpr (B == 0) grid_row(x, width, a.codes + r * blocks * GRID_UNIT, a.scales + r * blocks, warp, warps);
    else quantise_row<B>(x, width, a.codes + r * groups * CODES_PITCH, a.scales + r * groups * (GROUP / B), warp, warps);
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
template <int B>
INLINE void norm_quantise_rows(const Quantise& a) {
    SHARED_BYTES(shared);
    __shared__ float lanes[2 * LANES];
    const Source& s = a.source;
    next_kernel_may_start();
    touch(a);
    int r = blockIdx.x, n = *a.count;
    bool held = is_held(s);
    if (held) stage_weights(s, (float*)shared);
    previous_kernel_done();
    if (r >= n) {
        tell_made(a);
        copy_wait<0>();
    } else if (held) {
        Held own;
        Marks bad = {false, false, false};
        make_held(s, r, own, (float*)shared, lanes, bad);
        tell_made(a);
        u8* made = shared + 8 * s.width;
        i64 groups = s.width / GROUP, blocks = s.width / GRID_BLOCK;
        if constexpr (B == 0)
            bad.norm |= grid_held(own, s.width, a.codes + r * blocks * GRID_UNIT, a.scales + r * blocks, made, (u32*)lanes);
        else
            bad.norm |= quantise_held<B>(own, s.width, a.codes + r * groups * CODES_PITCH, a.scales + r * groups * (GROUP / B),
                                         made, (u32*)lanes);
        tell(bad, s, a.faults, r);
    } else {
        make_row(s, r, a.faults, (float*)shared, lanes);
        tell_made(a);
        quantise_made<B>((const float*)shared, a, r);
    }
}
KERNEL BOUNDS(512, 1) quantise_256(const __grid_constant__ Quantise a) { quantise_rows<256>(a); }
KERNEL BOUNDS(512, 1) quantise_32(const __grid_constant__ Quantise a) { quantise_rows<32>(a); }
KERNEL BOUNDS(512, 1) grid_rows(const __grid_constant__ Quantise a) { quantise_rows<0>(a); }
KERNEL BOUNDS(256, 1) norm_quantise_256(const __grid_constant__ Quantise a) { norm_quantise_rows<256>(a); }
KERNEL BOUNDS(256, 1) norm_quantise_32(const __grid_constant__ Quantise a) { norm_quantise_rows<32>(a); }
KERNEL BOUNDS(256, 1) norm_grid_rows(const __grid_constant__ Quantise a) { norm_quantise_rows<0>(a); }
