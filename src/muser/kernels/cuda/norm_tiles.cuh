// A norm, and the sum in front of it, whose rows go straight into the tiles of tiles.cuh: nobody else reads them.
//
// norm_tiles_k, norm_tiles_32, norm_tiles_grid: kind ALONE, ADDED or NORMED of norms.cuh; chunk bucket.
//   grid (ceil(chunk / 128) · 128 / R), block 256·R of R = 1 or 2 rows, width a multiple of four, shared memory
//   4·width·R bytes, 8·width·R for ADDED and NORMED. Writes tiles and `norm.sum` (may be norm.other), not `norm.out`.
// After tile_rows.cuh.
#include "norms.cuh"

struct NormTiles {
    rows::Norm norm;
    u8* tiles;
    int kind, groups;
};
static_assert(sizeof(NormTiles) == 144, "as devices write it");

// The eight warps of a row take its groups in turn. An element that was lost shows in the largest of its group.
template <class Form>
INLINE void tile_norm(const float* made, const float* weight, float factor, int left, const TilePlace& p, bool& bad) {
    constexpr int COUNT = Form::COUNT;
    int lane = threadIdx.x % 32;
    float v[COUNT], w[COUNT];
    tile_read(v, made, left, lane);
    if (weight) tile_read(w, weight, left, lane);
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = rows::scaled(v[i], factor, weight ? w[i] : 1.0f);
    u32 top = tile_top(v);
    bad |= lost(__uint_as_float(top));
    Form::put(v, top, p, lane);
}

template <class Form>
INLINE void norm_tiles(const NormTiles& a) {
    SHARED_BYTES(shared);
    __shared__ rows::Lanes lanes;
    int row = rows::own_row(), count = *a.norm.step.count, first = row - (int)threadIdx.x / rows::LANES;
    bool bad = false, real = row < count;
    next_kernel_may_start();
    previous_kernel_done();
    if (first / TILE_ROWS * TILE_ROWS >= count) return;
    rows::Row held = rows::hold(a.norm, a.kind, row, real, (float*)shared);
    float factor = rows::make<true>(a.norm, a.kind, held, lanes, bad);
    int width = real ? a.norm.width : 0;
    if (!real) factor = 0.0f;
#pragma unroll 1
    for (int group = threadIdx.x % rows::LANES / 32; group < a.groups; group += rows::LANES / 32) {
        int at = group * 32 * Form::COUNT;
        const float* weight = a.norm.weight ? a.norm.weight + at : nullptr;
        tile_norm<Form>(held.made + at, weight, factor, width - at, tile_place<Form>(a.tiles, a.groups, row, group), bad);
    }
    if (bad && real) report(a.norm.faults, row);
}
KERNEL BOUNDS(512, 2) norm_tiles_k(const NormTiles a) { norm_tiles<FormK>(a); }
KERNEL BOUNDS(512, 2) norm_tiles_32(const NormTiles a) { norm_tiles<Form32>(a); }
KERNEL BOUNDS(512, 2) norm_tiles_grid(const NormTiles a) { norm_tiles<FormGrid>(a); }
