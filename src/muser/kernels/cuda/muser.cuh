// What every CUDA text shares: words, step data, faults, and the arithmetic of docs/arithmetic.md.
// No header of CUDA is included, so NVRTC needs no include path. Everything float is written as a
// rounding intrinsic or as inline PTX with .rn, so that no flag can fuse or split it. Inline PTX
// stands in machine.cuh alone: the same texts run on a CPU with another machine below them.
#pragma once
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef MUSER_SHIM
#include "shim.h"  // of the tests: one CUDA thread is a fiber
#else
#define INLINE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define SHARED_BYTES(name) extern __shared__ __align__(1024) u8 name[]  // the launch gives the size
#define SIZE(name, value) extern "C" __device__ int name = (int)(value)  // what the host asks a library for
#include "machine.cuh"
#endif
#define MEMBER __device__ __forceinline__  // a function of a struct

constexpr int TILE = 128;         // positions of attention
constexpr int GROUP = 256;        // elements of a row that one lane takes at a time
constexpr int GRID_BLOCK = 128;   // elements that share a step where float weights are on a grid
constexpr int GRID_UNIT = 2 * GRID_BLOCK;  // bytes of 128 codes of a weight, or of a row's digits
constexpr int CODES_PITCH = 272;  // bytes of a group of a quantised row: 256 codes, 8 sums of 32 (i16)

// One forward pass, in device memory: `count` points to n (all rows) or m (the wanted ones).
struct Step {
    const int *count, *tokens, *positions, *slots, *outputs;
};

// Where faults go: the least (entry << 32 | row) wins. All ones: none.
struct Faults {
    u64* word;
    u64 entry;
};

constexpr float MAGIC = 0x1.8p23f;
constexpr u32 MAGIC_BITS = 0x4b400000u;

INLINE float fma1(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INLINE float mul1(float a, float b) { return __fmul_rn(a, b); }
INLINE float add1(float a, float b) { return __fadd_rn(a, b); }
INLINE float div1(float a, float b) { return __fdiv_rn(a, b); }
INLINE float root(float a) { return __fsqrt_rn(a); }

INLINE float z(float x) { return fabsf(x) < 0x1p-40f ? 0.0f : x; }
INLINE bool lost(float x) { return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u; }
INLINE int whole(float x) { return (int)(__float_as_uint(x) & 0x7fffffu) - 0x400000; }
INLINE int rne(float a, float b) { return whole(fma1(a, b, MAGIC)); }
// rne(a, b) of four b as signed bytes, the first one lowest, and the sum of them and `sum`; each |rne(a, b)| < 128.
INLINE u32 rne4(float a, float b0, float b1, float b2, float b3, int& sum) {
    u32 n0 = __float_as_uint(fma1(a, b0, MAGIC)), n1 = __float_as_uint(fma1(a, b1, MAGIC));
    u32 n2 = __float_as_uint(fma1(a, b2, MAGIC)), n3 = __float_as_uint(fma1(a, b3, MAGIC));
    u32 codes = __byte_perm(__byte_perm(n0, n1, 0x0040), __byte_perm(n2, n3, 0x0040), 0x5410);
    sum = __dp4a((int)codes, 0x01010101, sum);
    return codes;
}
INLINE float pow2(int k) { return __uint_as_float((u32)(k + 127) << 23); }  // -126 <= k <= 127
INLINE int exponent(float a) { return (int)(__float_as_uint(a) >> 23 & 255) - 127; }
INLINE u32 bits_abs(float x) { return __float_as_uint(x) & 0x7fffffffu; }
INLINE float warp_max(u32 bits) { return __uint_as_float(__reduce_max_sync(~0u, bits)); }

INLINE void report(const Faults& faults, int row) { atomicMin(faults.word, faults.entry << 32 | (u64)row); }

// E of attention, 0 <= f <= 1.
INLINE float exp2_unit(float f) {
    float r = 0x1.cacdf6p-13f;
    r = fma1(r, f, 0x1.44bd44p-10f);
    r = fma1(r, f, 0x1.3d5826p-7f);
    r = fma1(r, f, 0x1.c67ee4p-5f);
    r = fma1(r, f, 0x1.ebfdf8p-3f);
    r = fma1(r, f, 0x1.62e428p-1f);
    return fma1(r, f, 1.0f);
}

INLINE float exp1(float x) {
    float v = fminf(x, 80.0f), u = fma1(v, 0x1.715476p+0f, MAGIC), n = add1(u, -MAGIC);
    float r = fma1(-n, 0x1.7f7d1cp-20f, fma1(-n, 0x1.62e4p-1f, v));
    float scale = __uint_as_float((__float_as_uint(u) << 23) + 0x3f800000u), square = mul1(r, r);
    float p = fma1(fma1(0x1.0e4020p-7f, r, 0x1.573e2ep-5f), square, fma1(0x1.555e66p-3f, r, 0x1.fffdb6p-2f));
    float e = fma1(fma1(p, square, mul1(0x1.ffffecp-1f, r)), scale, scale);
    return x < -80.0f ? 0.0f : e;
}
INLINE float sigmoid1(float x) {
    float e = exp1(-fabsf(x));
    return div1(x >= 0.0f ? 1.0f : e, add1(1.0f, e));
}
INLINE float tanh1(float x) {
    float e = exp1(mul1(-2.0f, fabsf(x))), t = div1(add1(1.0f, -e), add1(1.0f, e));
    return x < 0.0f ? -t : t;
}
INLINE float silu1(float x) { return mul1(x, sigmoid1(x)); }
INLINE float gelu1(float x) {
    float inner = mul1(0x1.988454p-1f, fma1(mul1(mul1(0x1.6e4e26p-5f, x), x), x, x));
    return mul1(mul1(0.5f, x), add1(1.0f, tanh1(inner)));
}

// G(x, p, lo): the step of a block with maximum a, and the code of one element.
INLINE int grid_step(float a, int p, int lo) {
    int e = exponent(a) + 1 - p;
    return a == 0.0f || e < lo ? lo : e;
}
INLINE int grid_code(float x, int e, int p) {
    int top = (1 << p) - 1, n = rne(x, pow2(-e));
    return n > top ? top : n < -top ? -top : n;
}
