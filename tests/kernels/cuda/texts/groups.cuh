// One warpgroup: products of matrices whose rows of 128 bytes lie as the matrix units exchange them.
struct Groups { const u8 *a, *b; u8* out; };
SHARED_BYTES(shared);
INLINE u32 word(const u8* p, int row, int k) {
    return *(const u32*)(p + row * 128 + (k / 16 ^ row & 7) * 16 + k % 16);
}
// A [64][64] and B [128][64] of f16, or B [64][64] with n contiguous.
template <int KIND>
INLINE void run(const Groups& u) {
    __shared__ u64 full;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    next_kernel_may_start();
    if (threadIdx.x == 0) barrier_init(&full, 1), barrier_fence();
    __syncthreads();
    previous_kernel_done();
    if (threadIdx.x == 0) {
        barrier_expect(&full, 64 * 128 + 128 * 128);
        bulk_copy(shared, u.a, 64 * 128, &full);
        bulk_copy(shared + 8192, u.b, 128 * 128, &full);
    }
    barrier_wait(&full, 0);
    u32 at = shared_address(shared);
    constexpr int N = KIND == 1 ? 32 : 64;
    float d[N];
    int n[64];
    matrix_fence();
    for (int k = 0; k < 4; k++) {
        u32 a[4];
        for (int r = 0; r < 4; r++) a[r] = word(shared, warp * 16 + g + 8 * (r & 1), k * 32 + (r >> 1) * 16 + 4 * t);
        u64 b = exchanged(at + 8192 + k * 32);
        if constexpr (KIND == 0) group_f16(d, exchanged(at + k * 32), b, k);
        if constexpr (KIND == 1) group_f16_turned(d, a[0], a[1], a[2], a[3], exchanged(at + 8192 + k * 2048), k);
        if constexpr (KIND == 2) group_s8(n, a, b, k);
        if constexpr (KIND == 3) group_u8(n, a, b, k);
    }
    matrix_commit();
    matrix_wait<0>();
    for (int i = 0; i < N; i++) {
        int where = (warp * 16 + g + 8 * (i >> 1 & 1)) * 2 * N + i / 4 * 8 + 2 * t + (i & 1);
        if constexpr (KIND < 2) ((float*)u.out)[where] = d[i];
        else ((int*)u.out)[where] = n[i];
    }
}
KERNEL halves(const __grid_constant__ Groups u) { run<0>(u); }
KERNEL turned(const __grid_constant__ Groups u) { run<1>(u); }
KERNEL bytes(const __grid_constant__ Groups u) { run<2>(u); }
KERNEL unsigned_bytes(const __grid_constant__ Groups u) { run<3>(u); }
