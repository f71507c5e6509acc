// out[r] = projection of one quantised row by a Q4_K matrix, blocks as they lie in the file.
// A thread block owns neighbouring rows, which are one span of bytes. Each warp streams 32 blocks at
// a time into shared memory (bulk copies, its own ring), and a lane does a whole block: the pitches
// 144 and 272 are odd multiples of 16 bytes, so reads of 16 bytes meet no bank twice. The t_b go
// to shared memory; one thread a row then walks the chain.
constexpr int CHUNK = 32;
constexpr int Q_PITCH = 272;  // 256 codes, eight int16 sums
constexpr int TERM_PITCH = BLOCKS | 1;  // BLOCKS = K / 256, given on the command line

extern "C" __global__ void __launch_bounds__(512)
    matvec(const u8* weights, const u8* q, const float* scales, float* out, u32* failed, int rows,
           int stages) {
    extern __shared__ __align__(128) u8 shared[];
    int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = (int)((long long)rows * blockIdx.x / gridDim.x);
    int last = (int)((long long)rows * (blockIdx.x + 1) / gridDim.x);
    int blocks = (last - first) * BLOCKS, chunks = (blocks + CHUNK - 1) / CHUNK;
    const u8* span = weights + (size_t)first * BLOCKS * BLOCK_BYTES;

    u8* ring = shared + warp * stages * CHUNK * BLOCK_BYTES;
    u8* row = shared + warps * stages * CHUNK * BLOCK_BYTES;
    float* row_scales = (float*)(row + BLOCKS * Q_PITCH);
    u64* full = (u64*)(row_scales + (BLOCKS + 1) / 2 * 2) + warp * stages;
    float* terms = (float*)(full - warp * stages + warps * stages);

    next_kernel_may_start();
    if (lane == 0) {
        for (int i = 0; i < stages; i++) barrier_init(full + i, 1);
        barrier_fence();
        for (int i = 0; i < stages; i++) {
            int c = warp + i * warps;
            if (c >= chunks) break;
            u32 bytes = (u32)min(CHUNK, blocks - c * CHUNK) * BLOCK_BYTES;
            barrier_expect(full + i, bytes);
            bulk_copy(ring + i * CHUNK * BLOCK_BYTES, span + (size_t)c * CHUNK * BLOCK_BYTES, bytes,
                      full + i);
        }
    }
    previous_kernel_done();
    for (int i = threadIdx.x; i < BLOCKS * Q_PITCH / 16; i += blockDim.x)
        ((uint4*)row)[i] = ((const uint4*)q)[i];
    for (int i = threadIdx.x; i < BLOCKS; i += blockDim.x) row_scales[i] = scales[i];
    __syncthreads();

    int stage = 0;
    u32 phase = 0;
    for (int c = warp; c < chunks; c += warps) {
        u8* here = ring + stage * CHUNK * BLOCK_BYTES;
        barrier_wait(full + stage, phase);
        int flat = c * CHUNK + lane;
        if (flat < blocks) {
            int r = flat / BLOCKS, b = flat - r * BLOCKS;
            terms[r * TERM_PITCH + b] = block_term((const uint4*)(here + lane * BLOCK_BYTES),
                                                   (const uint4*)(row + b * Q_PITCH));
        }
        __syncwarp();
        int next = c + stages * warps;
        if (lane == 0 && next < chunks) {
            u32 bytes = (u32)min(CHUNK, blocks - next * CHUNK) * BLOCK_BYTES;
            barrier_expect(full + stage, bytes);
            bulk_copy(here, span + (size_t)next * CHUNK * BLOCK_BYTES, bytes, full + stage);
        }
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < last - first; r += blockDim.x) {
        float total = 0.0f;
#pragma unroll 8
        for (int b = 0; b < BLOCKS; b++) total = fma1(row_scales[b], terms[r * TERM_PITCH + b], total);
        if (lost(total)) atomicOr(failed, 1u);
        out[first + r] = z(total);
    }
}
