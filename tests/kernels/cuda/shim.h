// CUDA texts as C++ on a CPU: one CUDA thread is one fiber, thread blocks run one after another.
// muser.cuh includes this in place of machine.cuh. No system header is included, so that a text may
// use any name that NVRTC lets it use; shim.cpp holds what needs them.
#pragma once
#define INLINE static inline
#define KERNEL extern "C" __attribute__((visibility("default"), used)) void
#define BOUNDS(threads, blocks)
#define SIZE(name, value) extern "C" __attribute__((visibility("default"), used)) const int name = (int)(value)
#define SHARED_BYTES(name) u8* const name = shim::dynamic
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __restrict__
#define __constant__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((used))  // without a value: all that is in .bss
#define threadIdx shim::thread
#define blockIdx shim::block
#define blockDim shim::block_size
#define gridDim shim::grid_size
#if __CUDA_ARCH__ >= 900
#define HAS_BULK 1
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WARPGROUPS 1
#endif

typedef decltype(sizeof(0)) size_t;

#include "shim_calls.h"

// --- vector types ---
#define VECTORS(T, name)                                                        \
    struct __align__(2 * sizeof(T)) name##2 { T x, y; };                        \
    struct name##3 { T x, y, z; };                                              \
    struct __align__(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };  \
    INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }                  \
    INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }          \
    INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(u32, uint)
VECTORS(i16, short)
VECTORS(u16, ushort)
VECTORS(i8, char)
VECTORS(u8, uchar)
VECTORS(i64, longlong)
VECTORS(u64, ulonglong)
#undef VECTORS

// --- plain functions ---
#define EXTREMES(T)                                        \
    INLINE T min(T a, T b) { return b < a ? b : a; }       \
    INLINE T max(T a, T b) { return a < b ? b : a; }
EXTREMES(int)
EXTREMES(u32)
EXTREMES(i64)
EXTREMES(u64)
EXTREMES(long)
EXTREMES(unsigned long)
#undef EXTREMES
INLINE u32 min(int a, u32 b) { return min((u32)a, b); }
INLINE u32 min(u32 a, int b) { return min(a, (u32)b); }
INLINE u32 max(int a, u32 b) { return max((u32)a, b); }
INLINE u32 max(u32 a, int b) { return max(a, (u32)b); }
INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
INLINE int abs(int a) { return a < 0 ? -a : a; }
INLINE i64 abs(i64 a) { return a < 0 ? -a : a; }
INLINE float abs(float a) { return __builtin_fabsf(a); }
INLINE float fabsf(float a) { return __builtin_fabsf(a); }
INLINE float fminf(float a, float b) { return __builtin_fminf(a, b); }
INLINE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
INLINE float floorf(float a) { return __builtin_floorf(a); }
INLINE float rintf(float a) { return __builtin_rintf(a); }
INLINE float copysignf(float a, float b) { return __builtin_copysignf(a, b); }

// --- words ---
template <class To, class From>
INLINE To shim_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To r;
    __builtin_memcpy(&r, &x, sizeof r);
    return r;
}
INLINE u32 __float_as_uint(float x) { return shim_bits<u32>(x); }
INLINE int __float_as_int(float x) { return shim_bits<int>(x); }
INLINE float __uint_as_float(u32 x) { return shim_bits<float>(x); }
INLINE float __int_as_float(int x) { return shim_bits<float>(x); }
INLINE i64 __double_as_longlong(double x) { return shim_bits<i64>(x); }
INLINE double __longlong_as_double(i64 x) { return shim_bits<double>(x); }
INLINE int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
INLINE int __clzll(i64 x) { return x ? __builtin_clzll((u64)x) : 64; }
INLINE int __ffs(int x) { return __builtin_ffs(x); }
INLINE int __ffsll(i64 x) { return __builtin_ffsll(x); }
INLINE int __popc(u32 x) { return __builtin_popcount(x); }
INLINE int __popcll(u64 x) { return __builtin_popcountll(x); }
INLINE u32 __brev(u32 x) {
    u32 r = 0;
    for (int i = 0; i < 32; i++) r = r << 1 | (x >> i & 1);
    return r;
}
INLINE u32 __funnelshift_l(u32 low, u32 high, u32 s) { return (u32)(((u64)high << 32 | low) << (s & 31) >> 32); }
INLINE u32 __funnelshift_r(u32 low, u32 high, u32 s) { return (u32)(((u64)high << 32 | low) >> (s & 31)); }
INLINE int __mulhi(int a, int b) { return (int)((i64)a * b >> 32); }
INLINE u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
INLINE u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
INLINE u32 __byte_perm(u32 a, u32 b, u32 s) {
    u64 both = (u64)b << 32 | a;
    u32 r = 0;
    if (s & 0x8888) shim::fail("__byte_perm: a selector with bit 3 set has no meaning in CUDA C++");
    for (int i = 0; i < 4; i++) r |= (u32)(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

// --- sums and extremes of parts of words ---
INLINE int __dp4a(int a, int b, int c) {
    u32 r = (u32)c;
    for (int i = 0; i < 32; i += 8) r += (u32)((int)(i8)(a >> i) * (int)(i8)(b >> i));
    return (int)r;
}
INLINE u32 __dp4a(u32 a, u32 b, u32 c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
// a: two 16-bit numbers; b: four bytes, of which the lower or upper two are used.
INLINE int __dp2a_lo(int a, int b, int c) {
    return (int)((u32)c + (u32)((int)(i16)a * (i8)b) + (u32)((a >> 16) * (int)(i8)(b >> 8)));
}
INLINE int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
INLINE u32 __dp2a_lo(u32 a, u32 b, u32 c) { return c + (a & 0xffff) * (b & 255) + (a >> 16) * (b >> 8 & 255); }
INLINE u32 __dp2a_hi(u32 a, u32 b, u32 c) { return __dp2a_lo(a, b >> 16, c); }
#define PARTS(name, T, expression)                                        \
    INLINE u32 name(u32 a, u32 b) {                                       \
        u32 r = 0;                                                        \
        for (int i = 0; i < 32; i += 8 * (int)sizeof(T)) {                \
            T x = (T)(a >> i), y = (T)(b >> i);                           \
            r |= (u32)((u64)(T)(expression) & ((1ull << 8 * sizeof(T)) - 1)) << i; \
        }                                                                 \
        return r;                                                         \
    }
PARTS(__vadd4, u8, x + y)
PARTS(__vsub4, u8, x - y)
PARTS(__vadd2, u16, x + y)
PARTS(__vsub2, u16, x - y)
PARTS(__vmaxs4, i8, x < y ? y : x)
PARTS(__vmaxu4, u8, x < y ? y : x)
PARTS(__vmins4, i8, x < y ? x : y)
PARTS(__vmaxs2, i16, x < y ? y : x)
PARTS(__vmins2, i16, x < y ? x : y)
PARTS(__vmaxu2, u16, x < y ? y : x)
PARTS(__vminu2, u16, x < y ? x : y)
#undef PARTS
INLINE int __vimax3_s32(int a, int b, int c) { return max(max(a, b), c); }
INLINE int __vimin3_s32(int a, int b, int c) { return min(min(a, b), c); }
INLINE u32 __vimax3_u32(u32 a, u32 b, u32 c) { return max(max(a, b), c); }
INLINE u32 __vimin3_u32(u32 a, u32 b, u32 c) { return min(min(a, b), c); }
INLINE int __vimax_s32_relu(int a, int b) { return max(max(a, b), 0); }
INLINE int __vimin_s32_relu(int a, int b) { return max(min(a, b), 0); }
INLINE int __viaddmax_s32(int a, int b, int c) { return max((int)((u32)a + (u32)b), c); }
INLINE int __viaddmin_s32(int a, int b, int c) { return min((int)((u32)a + (u32)b), c); }
INLINE u32 __viaddmax_u32(u32 a, u32 b, u32 c) { return max(a + b, c); }
INLINE u32 __viaddmin_u32(u32 a, u32 b, u32 c) { return min(a + b, c); }

// --- float arithmetic, each rounding spelled out ---
INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE float __fmul_rn(float a, float b) { return a * b; }
INLINE float __fadd_rn(float a, float b) { return a + b; }
INLINE float __fsub_rn(float a, float b) { return a - b; }
INLINE float __fdiv_rn(float a, float b) { return a / b; }
INLINE float __frcp_rn(float a) { return 1.0f / a; }
INLINE float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
INLINE float __fadd_rd(float a, float b) {  // towards minus infinity, by the error of the sum
    float s = a + b, part = s - a, error = (a - (s - part)) + (b - part);
    if (error < 0.0f) return __builtin_nextafterf(s, -__builtin_inff());
    return s == 0.0f && (__builtin_signbit(a) || __builtin_signbit(b)) ? -0.0f : s;
}
INLINE float __int2float_rn(int a) { return (float)a; }
INLINE float __uint2float_rn(u32 a) { return (float)a; }
INLINE float __ll2float_rn(i64 a) { return (float)a; }
INLINE float __ull2float_rn(u64 a) { return (float)a; }
INLINE int __float2int_rn(float a) { return (int)__builtin_rintf(a); }
INLINE int __float2int_rd(float a) { return (int)__builtin_floorf(a); }
INLINE int __float2int_rz(float a) { return (int)a; }
INLINE u32 __float2uint_rn(float a) { return (u32)__builtin_rintf(a); }
INLINE double __dmul_rn(double a, double b) { return a * b; }
INLINE double __dadd_rn(double a, double b) { return a + b; }
INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
INLINE float __double2float_rn(double a) { return (float)a; }

// --- loads and stores with a hint ---
#define HINTED_LOAD(name) \
    template <class T>    \
    INLINE T name(const T* p) { return *p; }
#define HINTED_STORE(name) \
    template <class T>     \
    INLINE void name(T* p, T v) { *p = v; }
HINTED_LOAD(__ldg)
HINTED_LOAD(__ldca)
HINTED_LOAD(__ldcg)
HINTED_LOAD(__ldcs)
HINTED_LOAD(__ldlu)
HINTED_LOAD(__ldcv)
HINTED_STORE(__stwb)
HINTED_STORE(__stcg)
HINTED_STORE(__stcs)
HINTED_STORE(__stwt)

// --- atomics: fibers change hands only where they wait. None on floats: their order is nobody's. ---
#define ATOMIC(name, expression)              \
    template <class T, class U>               \
    INLINE T name(T* p, U value) {            \
        static_assert(T(1) / T(2) == T(0), "atomics on floats have no order"); \
        T old = *p, v = (T)value;             \
        *p = (expression);                    \
        return old;                           \
    }
ATOMIC(atomicMin, v < old ? v : old)
ATOMIC(atomicMax, v > old ? v : old)
ATOMIC(atomicAdd, (T)(old + v))
ATOMIC(atomicSub, (T)(old - v))
ATOMIC(atomicOr, (T)(old | v))
ATOMIC(atomicAnd, (T)(old & v))
ATOMIC(atomicXor, (T)(old ^ v))
ATOMIC(atomicExch, v)
ATOMIC(atomicInc, (T)(old >= v ? 0 : old + 1))
#undef ATOMIC
template <class T>
INLINE T atomicCAS(T* p, T expected, T value) {
    T old = *p;
    if (old == expected) *p = value;
    return old;
}
INLINE void __threadfence() {}
INLINE void __threadfence_block() {}
INLINE void __threadfence_system() {}
INLINE void __nanosleep(u32) { shim::nap(); }
INLINE void __trap() { shim::fail("__trap"); }

// --- threads of a block and lanes of a warp ---
INLINE void __syncthreads() { shim::block_barrier(0, 0, true, "__syncthreads"); }
INLINE int __syncthreads_or(int p) { return shim::block_vote(p, 0); }
INLINE int __syncthreads_and(int p) { return shim::block_vote(p, 1); }
INLINE int __syncthreads_count(int p) { return shim::block_vote(p, 2); }
INLINE void named_sync(int name, int count) { shim::block_barrier(name, count, true, "named_sync"); }
INLINE void named_arrive(int name, int count) { shim::block_barrier(name, count, false, "named_arrive"); }
INLINE void __syncwarp(u32 mask = ~0u) { shim::warp_barrier(mask); }
INLINE int __all_sync(u32 mask, int p) { return shim::ballot(mask, p, "__all_sync") == shim::present(mask); }
INLINE int __any_sync(u32 mask, int p) { return shim::ballot(mask, p, "__any_sync") != 0; }
INLINE u32 __ballot_sync(u32 mask, int p) { return shim::ballot(mask, p, "__ballot_sync"); }
INLINE u32 __activemask() {
    shim::fail("__activemask has no fixed meaning; name the lanes in a mask");
    return 0;
}

#define SHUFFLE(name, mode, U)                                                        \
    template <class T>                                                                \
    INLINE T name(u32 mask, T v, U by, int width = 32) {                              \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes"); \
        u64 word = 0;                                                                 \
        __builtin_memcpy(&word, &v, sizeof v);                                        \
        word = shim::shuffle(mask, mode, word, (int)by, width);                       \
        __builtin_memcpy(&v, &word, sizeof v);                                        \
        return v;                                                                     \
    }
SHUFFLE(__shfl_sync, 0, int)
SHUFFLE(__shfl_up_sync, 1, u32)
SHUFFLE(__shfl_down_sync, 2, u32)
SHUFFLE(__shfl_xor_sync, 3, int)
#undef SHUFFLE
#define REDUCE(name, T, mode) \
    INLINE T name(u32 mask, T v) { return (T)shim::reduce(mask, mode, (u32)v); }
REDUCE(__reduce_max_sync, u32, 0)
REDUCE(__reduce_max_sync, int, 1)
REDUCE(__reduce_min_sync, u32, 2)
REDUCE(__reduce_min_sync, int, 3)
REDUCE(__reduce_add_sync, u32, 4)
REDUCE(__reduce_add_sync, int, 4)
REDUCE(__reduce_or_sync, u32, 5)
REDUCE(__reduce_and_sync, u32, 6)
REDUCE(__reduce_xor_sync, u32, 7)
#undef REDUCE

#include "shim_machine.h"
