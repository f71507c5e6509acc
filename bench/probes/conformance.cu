// The primitives of docs/arithmetic.md, one thread a value: bits in, bits out.
extern "C" __global__ void primitives(const u32* a, const u32* b, const u32* c, u32* out, int rule,
                                      int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = __uint_as_float(a[i]), y = __uint_as_float(b[i]), w = __uint_as_float(c[i]);
    u32 r = 0;
    switch (rule) {
        case 0: r = __float_as_uint(fma1(x, y, w)); break;
        case 1: r = (u32)rne(x, y); break;
        case 2: r = __float_as_uint(__int2float_rn((int)a[i])); break;
        case 3: r = __float_as_uint(__ll2float_rn((long long)((u64)b[i] << 32 | a[i]))); break;
        case 4: r = float_to_half(x); break;
        case 5: r = __float_as_uint(half_to_float(a[i] & 0xffff)); break;
        case 6: r = __float_as_uint(__fdiv_rn(x, y)); break;
        case 7: r = __float_as_uint(__fdiv_rn(1.0f, __fsqrt_rn(x))); break;
        case 8: r = __float_as_uint(z(x)); break;
        case 9: r = __float_as_uint(exp2_unit(x)); break;
        case 10: r = __float_as_uint(add1(x, y)); break;
        case 11: r = __float_as_uint(mul1(x, y)); break;
        case 12: r = (u32)whole(__fadd_rd(x, MAGIC)); break;  // floor, |x| < 2^22
    }
    out[i] = r;
}

// One block: G(x, p, lo) of n values; codes, then e in the last word.
extern "C" __global__ void grid_row(const float* x, int* out, int n, int p, int lo) {
    __shared__ u32 top;
    if (threadIdx.x == 0) top = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicMax(&top, lane_max_abs(x[i]));
    __syncthreads();
    int e = grid_step(__uint_as_float(top), p, lo);
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = top ? grid_code(x[i], e, p) : 0;
    if (threadIdx.x == 0) out[n] = e;
}

// 256 threads, thread i is lane i of the float sum.
extern "C" __global__ void norm_row(const float* x, const float* w, float* out, int n, float inverse_n,
                                    float eps) {
    __shared__ float lanes[256];
    int t = threadIdx.x;
    float s = 0.0f;
    for (int i = t; i < n; i += 256) s = fma1(x[i], x[i], s);
    lanes[t] = s;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (t < half) lanes[t] = add1(lanes[t], lanes[t + half]);
        __syncthreads();
    }
    float r = __fdiv_rn(1.0f, __fsqrt_rn(fma1(lanes[0], inverse_n, eps)));
    for (int i = t; i < n; i += 256) out[i] = z(mul1(mul1(x[i], r), w[i]));
}

// One warp: sum over k of a[16][k] * b[8][k] in f16 matrix units, and the same integers in int32.
extern "C" __global__ void matrix_unit(const short* a, const short* b, float* got, int* want,
                                       int depth, int shift) {
    int lane = threadIdx.x, g = lane >> 2, t = lane & 3;
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float down = pow2(-shift), up = pow2(shift);
    for (int k = 0; k < depth; k += 16) {
        u32 fa[4], fb[2];
        for (int r = 0; r < 4; r++) {
            const short* p = a + (g + (r & 1) * 8) * depth + k + (r >> 1) * 8 + 2 * t;
            fa[r] = float_to_half2(p[0] * up, p[1] * up);
        }
        for (int r = 0; r < 2; r++) {
            const short* p = b + g * depth + k + r * 8 + 2 * t;
            fb[r] = float_to_half2(p[0] * down, p[1] * down);
        }
        mma_f16(acc, fa, fb[0], fb[1]);
    }
    for (int j = 0; j < 4; j++) {
        int row = g + (j >> 1) * 8, column = 2 * t + (j & 1), s = 0;
        for (int k = 0; k < depth; k++) s += a[row * depth + k] * b[column * depth + k];
        got[row * 8 + column] = acc[j];
        want[row * 8 + column] = s;
    }
}
