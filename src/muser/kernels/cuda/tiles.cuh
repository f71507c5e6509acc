// Rows of the chunk bucket (17 rows and more) as the matrix units read them. A tile is 128 rows of one
// group: 256 elements, or 128 where the weights are on a grid. Tiles lie as [ceil(n / 128)][groups];
// groups = ceil(width / 256) or ceil(width / 128). Rows beyond n and elements beyond the width are zeros.
//
// Both layouts begin with codes i8 [2][128 rows][128], the 16-byte pieces of a row exchanged: piece p of
// row r stands at p ^ (r % 8).
//   K-quants   37,376 bytes  codes [half of the group]; sums f16 [2][128][8]: the eight sums of 32 codes as
//                            64·high, then low; scales f32 [128]
//   32-blocks  40,960 bytes  codes [half of the group]; scales f32 [8 blocks][128]; sums of a block's codes
//                            f32 [8][128]
//   grid       33,280 bytes  codes [digit: n = 128·high + low, |low| <= 64]; steps f32 [128] = 2^e
constexpr int TILE_ROWS = 128, TILE_CODES = 2 * TILE_ROWS * 128;
constexpr int TILE_SUMS = TILE_CODES, TILE_SCALES = TILE_SUMS + 4096, TILE_K = TILE_SCALES + 512;
constexpr int TILE_32_SUMS = TILE_CODES + 4096, TILE_32 = TILE_32_SUMS + 4096;
constexpr int TILE_GRID = TILE_CODES + 512;

// What the projections of gemm.cuh and gemm90.cuh share.
struct ChunkPart {
    const u8* weights;  // the tiles of blocks.cuh
    float* out;         // [rows][outputs]
    u64 entry;          // of faults
    int outputs, format;  // gemm90.cuh: 0 Q4_K, 1 Q5_K, 2 Q6_K
};
static_assert(sizeof(ChunkPart) == 32, "as devices write it");
constexpr int WEIGHT_OUTPUTS = 16;  // of a tile of weights

// x·0 added to a zero: no number any more once an x was lost.
INLINE float probe_of(float x, float probe) { return fma1(x, 0.0f, probe); }
