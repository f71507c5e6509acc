// Put before every other text of this folder. No header is needed, so NVRTC needs no include path.
// Rules: docs/arithmetic.md. Everything float is written as a rounding intrinsic or as inline PTX
// with .rn, so no compiler flag can fuse or split it.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE __device__ __forceinline__

constexpr float MAGIC = 0x1.8p23f;
[[maybe_unused]] constexpr u32 MAGIC_BITS = 0x4b400000u;

INLINE float fma1(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INLINE float mul1(float a, float b) { return __fmul_rn(a, b); }
INLINE float add1(float a, float b) { return __fadd_rn(a, b); }

INLINE float z(float x) { return fabsf(x) < 0x1p-40f ? 0.0f : x; }
INLINE bool lost(float x) { return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u; }
INLINE int whole(float x) { return (int)(__float_as_uint(x) & 0x7fffffu) - 0x400000; }
INLINE int rne(float a, float b) { return whole(fma1(a, b, MAGIC)); }
INLINE float pow2(int k) { return __uint_as_float((u32)(k + 127) << 23); }  // -126 <= k <= 127
INLINE int exponent(float a) { return (int)(__float_as_uint(a) >> 23 & 255) - 127; }

INLINE float half_to_float(u32 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)h));
    return f;
}
INLINE u32 float_to_half(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
INLINE u32 float_to_half2(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

INLINE float exp2_unit(float f) {  // E of 2.6, 0 <= f <= 1
    float r = 0x1.cacdf6p-13f;
    r = fma1(r, f, 0x1.44bd44p-10f);
    r = fma1(r, f, 0x1.3d5826p-7f);
    r = fma1(r, f, 0x1.c67ee4p-5f);
    r = fma1(r, f, 0x1.ebfdf8p-3f);
    r = fma1(r, f, 0x1.62e428p-1f);
    return fma1(r, f, 1.0f);
}

INLINE int grid_step(float a, int p, int lo) {  // e of G, a = max |x|
    int e = exponent(a) + 1 - p;
    return a == 0.0f || e < lo ? lo : e;
}
INLINE int grid_code(float x, int e, int p) {
    int top = (1 << p) - 1, n = rne(x, pow2(-e));
    return n > top ? top : n < -top ? -top : n;
}

INLINE u32 lane_max_abs(float x) { return __float_as_uint(x) & 0x7fffffffu; }
INLINE float warp_max_bits(u32 bits) { return __uint_as_float(__reduce_max_sync(~0u, bits)); }

// --- shared memory, barriers, bulk copies (sm_90) ---
INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
INLINE void barrier_init(u64* b, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
INLINE void barrier_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void barrier_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
INLINE void barrier_arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
INLINE void barrier_wait(u64* b, u32 phase) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n}" ::"r"(shared_address(b)),
        "r"(phase)
        : "memory");
}
INLINE void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(b))
        : "memory");
}
// A box of a two-dimensional tensor map; x counts elements, y rows.
INLINE void bulk_box(void* to, const void* map, int x, int y, u64* b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(b))
        : "memory");
}
INLINE void previous_kernel_done() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
INLINE void next_kernel_may_start() { asm volatile("griddepcontrol.launch_dependents;"); }

// --- matrix fragments ---
INLINE void load_matrix4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
INLINE void load_matrix4_turned(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
INLINE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
        " {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
        " {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct __align__(64) Map {  // a tensor map of the driver
    u64 words[16];
};
