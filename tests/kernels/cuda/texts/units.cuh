// One warp: fragments of the matrix units.
struct Units { const u8 *a, *b; u8* out; };
INLINE int lane() { return threadIdx.x % 32; }
template <class T>
INLINE void put(const Units& u, const T (&c)[4]) {
    int g = lane() / 4, t = lane() % 4;
    for (int i = 0; i < 4; i++) ((T*)u.out)[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = c[i];
}
KERNEL f16(Units u) {  // A [16][16] through ldmatrix; B [16][8] turned by it
    __shared__ __align__(16) u16 a[16 * 16], b[16 * 8];
    previous_kernel_done();
    for (int i = lane(); i < 256; i += 32) a[i] = ((const u16*)u.a)[i];
    for (int i = lane(); i < 128; i += 32) b[i] = ((const u16*)u.b)[i];
    __syncwarp();
    u32 x[4], y[4];
    load_matrix4(x, shared_address(a + (lane() & 15) * 16 + lane() / 16 * 8));
    load_matrix4_turned(y, shared_address(b + (lane() & 15) * 8));
    float c[4] = {1, 2, 3, 4};
    mma_f16(c, x, y[0], y[1]);
    put(u, c);
}
template <bool SIGNED>
INLINE void eight(Units u) {  // A [16][32] and B [8][32], as fragments lie
    previous_kernel_done();
    int g = lane() / 4, t = lane() % 4;
    const u32 *a = (const u32*)u.a, *b = (const u32*)u.b;
    u32 x[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    int c[4] = {0, 0, 0, 0};
    if (SIGNED) mma_s8(c, x, b[g * 8 + t], b[g * 8 + t + 4]);
    else mma_u8(c, x, b[g * 8 + t], b[g * 8 + t + 4]);
    put(u, c);
}
KERNEL s8(Units u) { eight<true>(u); }
KERNEL u8s8(Units u) { eight<false>(u); }
