// Q(x, 256) of 2.2, one warp a block, in the two forms that the projections read:
// for one row, a block is 272 bytes (256 codes, eight int16 sums of 32 codes);
// for many rows, a tile is 128 rows of one block: two halves of [128 rows][128 codes], the 16-byte
// pieces of a row exchanged by (piece ^ row % 8), then [2 halves][128 rows][8 f16] with the sums of 32
// as 64·high and low, then 128 scales. 37,376 bytes, the order the matrix unit wants them in.
constexpr int TILE_ROWS = 128;
constexpr int TILE_SUMS = 32768, TILE_SCALES = 36864, TILE_BYTES = 37376;

struct Quantised {
    u32 words[2];  // codes 8·lane .. 8·lane+7
    int sum;       // of the 32 codes that four neighbouring lanes hold
    float scale;
};

INLINE Quantised quantise_block(const float* x, int lane) {
    float v[8];
    u32 top = 0;
    for (int i = 0; i < 8; i++) v[i] = x[8 * lane + i], top = max(top, lane_max_abs(v[i]));
    float a = warp_max_bits(top);
    Quantised r = {{0, 0}, 0, 0.0f};
    if (a != 0.0f) {
        float inverse = __fdiv_rn(127.0f, a);
        r.scale = __fdiv_rn(1.0f, inverse);
        for (int i = 0; i < 8; i++) {
            int q = rne(inverse, v[i]);
            r.sum += q;
            r.words[i / 4] |= (u32)(q & 255) << (8 * (i & 3));
        }
    }
    r.sum += __shfl_xor_sync(~0u, r.sum, 1);
    r.sum += __shfl_xor_sync(~0u, r.sum, 2);
    return r;
}

extern "C" __global__ void quantise_row(const float* x, u8* q, float* scales) {
    int b = blockIdx.x, lane = threadIdx.x;
    Quantised r = quantise_block(x + b * 256, lane);
    ((uint2*)(q + b * 272))[lane] = make_uint2(r.words[0], r.words[1]);
    if ((lane & 3) == 0) ((short*)(q + b * 272 + 256))[lane / 4] = (short)r.sum;
    if (lane == 0) scales[b] = r.scale;
}

extern "C" __global__ void quantise_tiles(const float* x, u8* tiles, int blocks) {
    int b = blockIdx.x, token = blockIdx.y, lane = threadIdx.x;
    Quantised r = quantise_block(x + ((size_t)token * blocks + b) * 256, lane);
    u8* tile = tiles + ((size_t)(token / TILE_ROWS) * blocks + b) * TILE_BYTES;
    int row = token % TILE_ROWS, piece = (lane / 2 & 7) ^ (row & 7);
    *(uint2*)(tile + lane / 16 * 16384 + row * 128 + piece * 16 + (lane & 1) * 8) =
        make_uint2(r.words[0], r.words[1]);
    if ((lane & 3) == 0) {
        int high = (r.sum + 32) >> 6, low = r.sum - (high << 6);
        u16* sums = (u16*)(tile + TILE_SUMS + row * 16) + lane / 4;
        sums[0] = (u16)float_to_half((float)(64 * high));
        sums[TILE_ROWS * 8] = (u16)float_to_half((float)low);
    }
    if (lane == 0) ((float*)(tile + TILE_SCALES))[row] = r.scale;
}
