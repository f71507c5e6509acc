// Rows into the tiles of tiles.cuh, which stands before it.
//
// quantise_tiles_k, quantise_tiles_32, quantise_tiles_grid: rows → tiles; chunk bucket.
// gated_tiles_k, gated_tiles_32, gated_tiles_grid: act(x) · up → tiles; act 1 silu, 2 gelu.
//   both: grid (groups, ceil(chunk / 128) · 16), block 256, no shared memory. Read x, up and *count, write tiles.
struct TileRows {
    const float* x;    // [rows][width]
    u8* tiles;
    const int* count;  // n
    int width, groups;
};
static_assert(sizeof(TileRows) == 32, "as devices write it");
struct GatedTiles {
    TileRows rows;
    const float* up;
    Faults faults;
    int act;
};
static_assert(sizeof(GatedTiles) == 64, "as devices write it");

// Where a row of a tile stands.
struct TilePlace {
    u8* tile;
    int row;  // in the tile
};
template <class Form>
INLINE TilePlace tile_place(u8* tiles, int groups, int row, int group) {
    return {tiles + ((size_t)(row / TILE_ROWS) * groups + group) * Form::BYTES, row % TILE_ROWS};
}

template <int COUNT>
INLINE u32 tile_top(const float (&v)[COUNT]) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) top = max(top, bits_abs(v[i]));
    return top;
}
INLINE int sum_of_four_lanes(int x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Eight elements of a block with maximum a: their codes and the sum of these, and the block's scale.
struct Eight {
    u32 words[2];
    int sum;
    float scale;
};
INLINE Eight tile_codes(const float (&v)[8], float a) {
    Eight e = {{0, 0}, 0, 0.0f};
    if (a == 0.0f) return e;
    float inverse = div1(127.0f, a);
    e.words[0] = rne4(inverse, v[0], v[1], v[2], v[3], e.sum);
    e.words[1] = rne4(inverse, v[4], v[5], v[6], v[7], e.sum);
    e.scale = div1(1.0f, inverse);
    return e;
}
INLINE void tile_write(const Eight& e, const TilePlace& p, int lane) {
    int piece = (lane / 2 & 7) ^ (p.row & 7);
    u32* to = (u32*)(p.tile + lane / 16 * (TILE_CODES / 2) + p.row * 128 + piece * 16 + (lane & 1) * 8);
    *(uint2*)to = make_uint2(e.words[0], e.words[1]);
}

// A form's `put`: a group of a row into its tile, of which this lane has the elements from COUNT·lane on; `top` is
// the largest of these, as bits.
struct FormK {
    static constexpr int COUNT = 8, BYTES = TILE_K;
    static MEMBER void put(const float (&v)[8], u32 top, const TilePlace& p, int lane) {
        Eight e = tile_codes(v, warp_max(top));
        tile_write(e, p, lane);
        int sum = sum_of_four_lanes(e.sum), high = (sum + 32) >> 6;
        if ((lane & 3) == 0) {
            u16* sums = (u16*)(p.tile + TILE_SUMS + p.row * 16) + lane / 4;
            sums[0] = (u16)float_to_half((float)(64 * high));
            sums[TILE_ROWS * 8] = (u16)float_to_half((float)(sum - 64 * high));
        }
        if (lane == 0) ((float*)(p.tile + TILE_SCALES))[p.row] = e.scale;
    }
};

struct Form32 {
    static constexpr int COUNT = 8, BYTES = TILE_32;
    static MEMBER void put(const float (&v)[8], u32 top, const TilePlace& p, int lane) {
        top = max(top, __shfl_xor_sync(~0u, top, 1));
        top = max(top, __shfl_xor_sync(~0u, top, 2));
        Eight e = tile_codes(v, __uint_as_float(top));
        tile_write(e, p, lane);
        int sum = sum_of_four_lanes(e.sum), at = lane / 4 * TILE_ROWS + p.row;
        if ((lane & 3) == 0) {
            ((float*)(p.tile + TILE_CODES))[at] = e.scale;
            ((float*)(p.tile + TILE_32_SUMS))[at] = (float)sum;
        }
    }
};

struct FormGrid {
    static constexpr int COUNT = 4, BYTES = TILE_GRID;
    static MEMBER void put(const float (&v)[4], u32 top, const TilePlace& p, int lane) {
        u32 high = 0, low = 0;
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
};

// This lane's elements of a group, `left` of which are inside the width; zeros beyond.
template <int COUNT>
INLINE void tile_read(float (&v)[COUNT], const float* from, int left, int lane) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = 0.0f;
    if (COUNT == 4) {  // widths need not be even here
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (4 * lane + i < left) v[i] = from[4 * lane + i];
    } else if (8 * lane < left) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            float4 four = *(const float4*)(from + COUNT * lane + i);
            v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
        }
    }
}

// Eight warps take eight neighbouring rows of one group: this warp's. False: no row of the tile is there.
struct TileWarp {
    int row, group, lane;
    int left;   // elements of the group inside the width; 0 in rows beyond n
    size_t at;  // of its first element
};
template <class Form>
INLINE bool tile_warp(const TileRows& a, TileWarp& w) {
    int n = *a.count, first = blockIdx.x * 32 * Form::COUNT;
    w.row = blockIdx.y * 8 + threadIdx.x / 32, w.group = blockIdx.x, w.lane = threadIdx.x % 32;
    w.left = w.row < n ? a.width - first : 0, w.at = (size_t)w.row * a.width + first;
    next_kernel_may_start();
    previous_kernel_done();
    return (int)(blockIdx.y * 8 / TILE_ROWS * TILE_ROWS) < n;
}

template <class Form>
INLINE void quantise_tiles(const TileRows& a) {
    TileWarp w;
    float v[Form::COUNT];
    if (!tile_warp<Form>(a, w)) return;
    tile_read(v, a.x + w.at, w.left, w.lane);
    Form::put(v, tile_top(v), tile_place<Form>(a.tiles, a.groups, w.row, w.group), w.lane);
}
KERNEL BOUNDS(256, 4) quantise_tiles_k(TileRows a) { quantise_tiles<FormK>(a); }
KERNEL BOUNDS(256, 4) quantise_tiles_32(TileRows a) { quantise_tiles<Form32>(a); }
KERNEL BOUNDS(256, 4) quantise_tiles_grid(TileRows a) { quantise_tiles<FormGrid>(a); }

// act(x) · up, of which nobody else reads anything. An element that was lost shows in the largest.
template <class Form>
INLINE void gated_tiles(const GatedTiles& a) {
    TileWarp w;
    float v[Form::COUNT], up[Form::COUNT];
    if (!tile_warp<Form>(a.rows, w)) return;
    tile_read(v, a.rows.x + w.at, w.left, w.lane);
    tile_read(up, a.up + w.at, w.left, w.lane);
    if (a.act == 1) {
#pragma unroll
        for (int i = 0; i < Form::COUNT; i++) v[i] = z(mul1(silu1(v[i]), up[i]));
    } else {
#pragma unroll
        for (int i = 0; i < Form::COUNT; i++) v[i] = z(mul1(gelu1(v[i]), up[i]));
    }
    u32 top = tile_top(v);
    if (lost(__uint_as_float(top))) report(a.faults, w.row);
    Form::put(v, top, tile_place<Form>(a.rows.tiles, a.rows.groups, w.row, w.group), w.lane);
}
KERNEL BOUNDS(256, 4) gated_tiles_k(const GatedTiles a) { gated_tiles<FormK>(a); }
KERNEL BOUNDS(256, 4) gated_tiles_32(const GatedTiles a) { gated_tiles<Form32>(a); }
KERNEL BOUNDS(256, 4) gated_tiles_grid(const GatedTiles a) { gated_tiles<FormGrid>(a); }
