// Rows into the tiles of tiles.cuh, which stands before it.
//
// quantise_tiles_k, quantise_tiles_32, quantise_tiles_grid: rows → tiles; chunk bucket.
//   grid (groups, ceil(chunk / 128) · 16), block 256, no shared memory. Reads x and *count, writes tiles.
struct TileRows {
    const float* x;    // [rows][width]
    u8* tiles;
    const int* count;  // n
    int width, groups;
};
static_assert(sizeof(TileRows) == 32, "as devices write it");

// Where a warp's row and group stand. Eight warps take eight neighbouring rows of one group.
struct TilePlace {
    const float* x;  // of the group's first element
    u8* tile;
    int row, left;  // in the tile; elements of the group inside the width, 0 in rows beyond n
};

INLINE bool tile_place(const TileRows& a, int elements, int bytes, TilePlace& p) {
    int n = *a.count, row = blockIdx.y * 8 + threadIdx.x / 32, group = blockIdx.x;
    next_kernel_may_start();
    previous_kernel_done();
    if ((int)(blockIdx.y * 8 / TILE_ROWS * TILE_ROWS) >= n) return false;
    p.x = a.x + (size_t)row * a.width + group * elements;
    p.tile = a.tiles + ((size_t)(row / TILE_ROWS) * a.groups + group) * bytes;
    p.row = row % TILE_ROWS;
    p.left = row < n ? a.width - group * elements : 0;
    return true;
}

struct Eight {
    float v[8];  // elements 8·lane …
    u32 words[2];
    int sum;
};

INLINE u32 tile_read(Eight& e, const TilePlace& p, int lane) {
    u32 top = 0;
    float4 zero = {0.0f, 0.0f, 0.0f, 0.0f}, low = zero, high = zero;
    if (8 * lane < p.left) low = ((const float4*)p.x)[2 * lane], high = ((const float4*)p.x)[2 * lane + 1];
    e.v[0] = low.x, e.v[1] = low.y, e.v[2] = low.z, e.v[3] = low.w;
    e.v[4] = high.x, e.v[5] = high.y, e.v[6] = high.z, e.v[7] = high.w;
#pragma unroll
    for (int i = 0; i < 8; i++) top = max(top, bits_abs(e.v[i]));
    return top;
}

// The codes of a block with maximum a, and its scale; eight elements of it are this lane's.
INLINE float tile_codes(Eight& e, float a) {
    e.words[0] = e.words[1] = 0, e.sum = 0;
    if (a == 0.0f) return 0.0f;
    float inverse = div1(127.0f, a);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int q = rne(inverse, e.v[i]);
        e.sum += q;
        e.words[i / 4] |= (u32)(q & 255) << (8 * (i & 3));
    }
    return div1(1.0f, inverse);
}

INLINE void tile_write(const Eight& e, const TilePlace& p, int lane) {
    int piece = (lane / 2 & 7) ^ (p.row & 7);
    u32* to = (u32*)(p.tile + lane / 16 * (TILE_CODES / 2) + p.row * 128 + piece * 16 + (lane & 1) * 8);
    *(uint2*)to = make_uint2(e.words[0], e.words[1]);
}

INLINE int sum_of_four_lanes(int x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

KERNEL BOUNDS(256, 4) quantise_tiles_k(TileRows a) {
    TilePlace p;
    if (!tile_place(a, GROUP, TILE_K, p)) return;
    int lane = threadIdx.x % 32;
    Eight e;
    float scale = tile_codes(e, warp_max(tile_read(e, p, lane)));
    tile_write(e, p, lane);
    int sum = sum_of_four_lanes(e.sum), high = (sum + 32) >> 6;
    if ((lane & 3) == 0) {
        u16* sums = (u16*)(p.tile + TILE_SUMS + p.row * 16) + lane / 4;
        sums[0] = (u16)float_to_half((float)(64 * high));
        sums[TILE_ROWS * 8] = (u16)float_to_half((float)(sum - 64 * high));
    }
    if (lane == 0) ((float*)(p.tile + TILE_SCALES))[p.row] = scale;
}

KERNEL BOUNDS(256, 4) quantise_tiles_32(TileRows a) {
    TilePlace p;
    if (!tile_place(a, GROUP, TILE_32, p)) return;
    int lane = threadIdx.x % 32;
    Eight e;
    u32 top = tile_read(e, p, lane);
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    top = max(top, __shfl_xor_sync(~0u, top, 2));
    float scale = tile_codes(e, __uint_as_float(top));
    tile_write(e, p, lane);
    int sum = sum_of_four_lanes(e.sum), at = lane / 4 * TILE_ROWS + p.row;
    if ((lane & 3) == 0) {
        ((float*)(p.tile + TILE_CODES))[at] = scale;
        ((float*)(p.tile + TILE_32_SUMS))[at] = (float)sum;
    }
}

// Widths need not be even here, so elements are read one by one.
KERNEL BOUNDS(256, 4) quantise_tiles_grid(TileRows a) {
    TilePlace p;
    if (!tile_place(a, GRID_BLOCK, TILE_GRID, p)) return;
    int lane = threadIdx.x % 32;
    float v[4];
    u32 top = 0, high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = 4 * lane + i < p.left ? p.x[4 * lane + i] : 0.0f;
        top = max(top, bits_abs(v[i]));
    }
    int e = grid_step(warp_max(top), 13, -60);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = grid_code(v[i], e, 13), upper = (n + 64) >> 7;
        high |= (u32)(upper & 255) << (8 * i);
        low |= (u32)((n - 128 * upper) & 255) << (8 * i);
    }
    u32* to = (u32*)(p.tile + p.row * 128 + (lane / 4 ^ (p.row & 7)) * 16 + (lane & 3) * 4);
    to[0] = high;
    to[TILE_CODES / 8] = low;
    if (lane == 0) ((float*)(p.tile + TILE_CODES))[p.row] = pow2(e);
}
