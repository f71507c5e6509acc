// The instructions of a card that C++ has no word for. Inside muser.cuh; the shim of the tests has
// the same functions. What an architecture lacks is not declared there.
#define ASM asm volatile
#if __CUDA_ARCH__ >= 900
#define HAS_BULK 1  // bulk copies into shared memory, and kernels that begin early
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WARPGROUPS 1
#endif

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
INLINE u32 fma_halves(u32 a, u32 b, u32 c) {  // two f16 in each word
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// Byte i of a word, with its sign.
INLINE u32 signed_byte(u32 w, int i) {
    u32 r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(w), "r"(0x8880 + 0x1111 * i));
    return r;
}

// c + Σ of four products: bytes of a without sign, those of b with.
INLINE int dot4_u8(u32 a, u32 b, int c) {
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// --- one kernel after another: a kernel may begin before the one before it has ended ---
INLINE void previous_kernel_done() {
#ifdef HAS_BULK
    ASM("griddepcontrol.wait;" ::: "memory");
#endif
}
// Of a thread block that has nothing to do and ends before the kernel before it has. Others of its launch wait for that.
INLINE void leave_early() {}
INLINE void next_kernel_may_start() {
#ifdef HAS_BULK
    ASM("griddepcontrol.launch_dependents;");
#endif
}

// Reads a word of every 64 bytes of a launch's parameters. They are not in the constant cache when a kernel begins: what is
// first read once the kernel before has ended is waited for then. The pause, of nothing, is there so that they are read.
template <typename S>
INLINE void touch(const S& parameters) {
    const u32* words = (const u32*)&parameters;
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < (int)sizeof(S); i += 64) all |= words[i / 4];
    all |= words[sizeof(S) / 4 - 1];
    ASM("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0;\n@p nanosleep.u32 0;\n}" ::"r"(all));
}

// A number that is the same in all lanes, so that the compiler knows: what follows from it is worked out once a warp.
INLINE int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// --- shared memory ---
INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes from global memory, without a register between; of `bytes` (0 or 16), the rest zeros.
INLINE void copy16(void* to, const void* from, int bytes = 16) {
    ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
INLINE void copy_commit() { ASM("cp.async.commit_group;" ::: "memory"); }
template <int N>
INLINE void copy_wait() {  // until at most N groups of this thread are under way
    ASM("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 16 or 8 bytes of shared memory, or what was there before.
INLINE void load_quad_if(u32 (&r)[4], u32 address, bool wanted) {
    ASM("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "r"(address), "r"((u32)wanted)
        : "memory");
}
INLINE void load_pair_if(u32& a, u32& b, u32 address, bool wanted) {
    ASM("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.shared.v2.u32 {%0,%1}, [%2];\n}"
        : "+r"(a), "+r"(b)
        : "r"(address), "r"((u32)wanted)
        : "memory");
}

// The same number, of which the compiler knows nothing: what follows from it is not kept in registers.
INLINE u32 unknown(u32 x) {
    ASM("" : "+r"(x));
    return x;
}

// Of this multiprocessor's clock; differences are right.
INLINE u32 cycles() {
    u32 x;
    ASM("mov.u32 %0, %%clock;" : "=r"(x));
    return x;
}

// Barriers among some warps of a block; `count` threads in all.
INLINE void named_sync(int name, int count) { ASM("bar.sync %0, %1;" ::"r"(name), "r"(count) : "memory"); }
INLINE void named_arrive(int name, int count) { ASM("bar.arrive %0, %1;" ::"r"(name), "r"(count) : "memory"); }

// A word of global memory by which one block tells another that what it wrote before can be read.
INLINE void flag_set(u32* flag) { ASM("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory"); }
INLINE void flag_wait(u32* flag) {
    u32 set = 0;
    while (set == 0) ASM("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
}

// A float that one thread hands to a thread of a later block by a word that is 0 before and 0 again behind. No float that an
// operation makes is all ones.
INLINE void hand_on(u32* to, float x) {
    ASM("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(~__float_as_uint(x)) : "memory");
}
INLINE float taken(u32* from) {
    u32 word = 0;
    while (word == 0) ASM("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    *from = 0;
    return __uint_as_float(~word);
}

// Eight of them, side by side, that are looked at together.
INLINE void taken8(u32* from, float (&x)[8]) {
    u32 words[8], all;
    do {
        all = ~0u;
#pragma unroll
        for (int i = 0; i < 8; i++) ASM("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(words[i]) : "l"(from + i) : "memory");
#pragma unroll
        for (int i = 0; i < 8; i++) all = min(all, words[i]);
    } while (all == 0);
#pragma unroll
    for (int i = 0; i < 8; i++) from[i] = 0, x[i] = __uint_as_float(~words[i]);
}

// A count in shared memory by which warps of a block tell others how far they are.
INLINE void count_set(u32* count, u32 to) {
    ASM("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(count)), "r"(to) : "memory");
}
INLINE void count_add(u32* count, u32 more) {
    ASM("red.release.cta.shared.add.u32 [%0], %1;" ::"r"(shared_address(count)), "r"(more) : "memory");
}
INLINE void count_wait(const u32* count, u32 least) {
    u32 now;
    do ASM("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(now) : "r"(shared_address(count)) : "memory");
    while ((int)(now - least) < 0);
}

// Barriers in shared memory: a phase ends when `count` arrivals (and the bytes expected) have come.
INLINE void barrier_init(u64* b, int count) {
    ASM("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
INLINE void barrier_arrive(u64* b) {
    ASM("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(b)) : "memory");
}
INLINE void barrier_wait(u32 b, u32 phase) {  // its address
    ASM("{\n.reg .pred p;\nagain:\n"
#ifdef HAS_BULK
        "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n"
#endif
        "@!p bra again;\n}" ::"r"(b),
        "r"(phase)
        : "memory");
}
INLINE void barrier_wait(u64* b, u32 phase) { barrier_wait(shared_address(b), phase); }
// An arrival once all copies of this thread (copy16) up to here have come.
INLINE void copy_arrive(u32 b) { ASM("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(b) : "memory"); }
INLINE void copy_arrive(u64* b) { copy_arrive(shared_address(b)); }
// What will be read there once the kernel before has ended: the address is worked out and looked up before.
INLINE void will_read(const void* p) { ASM("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }

#ifdef HAS_BULK
// One lane of a warp, all of which are here. Of any other condition the compiler does not know that it holds for one lane, and
// makes a loop over lanes of each bulk copy.
INLINE bool elected() {
    u32 is;
    ASM("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}
INLINE void barrier_fence() {
    ASM("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void async_fence() { ASM("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void barrier_expect(u32 b, u32 bytes) {
    ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
INLINE void barrier_expect(u64* b, u32 bytes) { barrier_expect(shared_address(b), bytes); }
// Of what is read once: it goes first when the second-level cache needs room.
INLINE u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
INLINE void bulk_copy_once(u32 to, const void* from, u32 bytes, u32 b) {
    ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(b), "l"(read_once())
        : "memory");
}
INLINE void bulk_copy_once(void* to, const void* from, u32 bytes, u64* b) {
    bulk_copy_once(shared_address(to), from, bytes, shared_address(b));
}
// From shared memory; what was written there must be fenced (async_fence), and stay until all such stores are waited for.
INLINE void bulk_store(void* to, const void* from, u32 bytes) {
    ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\tcp.async.bulk.commit_group;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}
INLINE void bulk_store_wait() { ASM("cp.async.bulk.wait_group 0;" ::: "memory"); }
INLINE void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {  // all of them multiples of 16
    ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(b))
        : "memory");
}
#endif

// --- matrix fragments of a warp (sm_80 on) ---
INLINE void load_matrix4(u32 (&r)[4], u32 address) {
    ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(address)
        : "memory");
}
INLINE void load_matrix4_turned(u32 (&r)[4], u32 address) {
    ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(address)
        : "memory");
}
INLINE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {  // 16×8 += 16×16 · 16×8
    ASM("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
        " {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#define MMA_8(NAME, TYPE)                                                                          \
    INLINE void NAME(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { /* 16×8 += 16×32 · 32×8 */ \
        ASM("mma.sync.aligned.m16n8k32.row.col.s32." TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7},"  \
            " {%8,%9}, {%0,%1,%2,%3};"                                                             \
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                       \
    }
// The same with every accumulator starting at `start`.
INLINE void mma_s8_from(int start, int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    ASM("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9},"
        " {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
MMA_8(mma_s8, "s8")
MMA_8(mma_u8, "u8")  // A without sign
#undef MMA_8
INLINE void mma_s8_16(int (&c)[4], u32 a0, u32 a1, u32 b) {  // 16×8 += 16×16 · 16×8
    ASM("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

#ifdef HAS_WARPGROUPS
#include "warpgroup.cuh"
#endif
