// Inside machine.cuh.
// Warpgroup matrix instructions (sm_90a): D[64][n] += A[64][k] · B[n][k], D in registers like the
// accumulators of mma.sync, B in shared memory. A descriptor counts in 16 bytes; with the 128-byte
// exchange rows are 128 bytes and eight of them (1,024 bytes) make one atom.
INLINE u64 descriptor(u32 address, u32 lead, u32 stride, u64 exchange) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 |
           exchange << 62;
}
INLINE u64 exchanged(u32 address) { return descriptor(address, 16, 1024, 1); }
INLINE void matrix_fence() { ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void matrix_commit() { ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
INLINE void matrix_wait() {
    ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N>
INLINE void registers_grow() {
    ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
INLINE void registers_shrink() {
    ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#define FOUR(c, x, i) c(x[i]), c(x[i + 1]), c(x[i + 2]), c(x[i + 3])
#define SIXTEEN(c, x, i) FOUR(c, x, i), FOUR(c, x, i + 4), FOUR(c, x, i + 8), FOUR(c, x, i + 12)
#define THIRTY_TWO(c, x) SIXTEEN(c, x, 0), SIXTEEN(c, x, 16)
#define SIXTY_FOUR(c, x) THIRTY_TWO(c, x), SIXTEEN(c, x, 32), SIXTEEN(c, x, 48)
#define D32 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define D64 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// f16, A and B in shared memory, n = 128, k = 16.
INLINE void group_f16(float (&d)[64], u64 a, u64 b, int add) {
    ASM("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " D64 ", %64, %65, p, 1, 1, 0, 0;}"
                 : SIXTY_FOUR("+f", d)
                 : "l"(a), "l"(b), "r"(add));
}
// f16, A in registers, B in shared memory, n = 128, k = 16, D overwritten.
INLINE void group_f16_first(float (&d)[64], const u32 (&a)[4], u64 b) {
    ASM("{.reg .pred p; setp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " D64
                 ", {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
                 : SIXTY_FOUR("+f", d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// f16, A in registers, B in shared memory with n (64) contiguous, k = 16.
INLINE void group_f16_turned(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    ASM("{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " D32
                 ", {%32,%33,%34,%35}, %36, p, 1, 1, 1;}"
                 : THIRTY_TWO("+f", d)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}
// 8 bit, A in registers, B in shared memory, n = 128, k = 32.
#define GROUP_8(NAME, TYPE)                                                                     \
    INLINE void NAME(int (&d)[64], const u32 (&a)[4], u64 b, int add) {                         \
        ASM("{.reg .pred p; setp.ne.b32 p, %69, 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n128k32.s32." TYPE ".s8 " D64             \
                     ", {%64,%65,%66,%67}, %68, p;}"                                            \
                     : SIXTY_FOUR("+r", d)                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));           \
    }
GROUP_8(group_s8, "s8")
GROUP_8(group_u8, "u8")
