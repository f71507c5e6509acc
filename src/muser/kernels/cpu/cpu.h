/* What this processor and its system can run, never from its name: CPUID and XGETBV bits, on ARM the
 * bits that Linux hands every process, or what macOS answers by the feature's name. */
#ifndef CPU_H
#define CPU_H

#include "muser.h"

/* `muser_instruction_sets` answers with these. */
enum { HAS_C = 1, HAS_AVX2 = 2, HAS_AVX512 = 4, HAS_AMX = 8, HAS_NEON = 16, HAS_NEON_I8MM = 32 };

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

struct cpuid {
    unsigned a, b, c, d;
};

static struct cpuid ask(unsigned leaf) {
    struct cpuid x = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaf, 0, &x.a, &x.b, &x.c, &x.d)) memset(&x, 0, sizeof x);
    return x;
}

static int all_of(unsigned word, unsigned bits) { return (word & bits) == bits; }

/* Linux hands out the 8 KB of tile state only to a process that asks, once; other systems say by
 * XCR0 alone. Asking again is harmless: the answer stays. */
static int may_use_tiles(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return 1;
#endif
}

static uint32_t sets_beyond_c(void) {
    struct cpuid one = ask(1), seven = ask(7);
    if (!all_of(one.c, 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29)) return 0; /* FMA OSXSAVE AVX F16C */
    unsigned saved, high; /* XCR0: what the system keeps of a thread */
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!all_of(saved, 0x6) || !all_of(seven.b, 1u << 5)) return 0; /* xmm and ymm; AVX2 */
    uint32_t sets = HAS_AVX2;
    /* opmask and zmm; F DQ BW VL; VNNI */
    if (!all_of(saved, 0xe6) || !all_of(seven.b, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31)) return sets;
    if (!all_of(seven.c, 1u << 11)) return sets;
    sets |= HAS_AVX512;
    /* tile configuration and data; TILE INT8 */
    if (all_of(saved, 0x60000) && all_of(seven.d, 1u << 24 | 1u << 25) && may_use_tiles()) sets |= HAS_AMX;
    return sets;
}

/* Vendor (12 letters as ebx, edx, ecx of leaf 0) and the signature: family, model, stepping. */
static void identify(uint32_t out[4]) {
    struct cpuid zero = ask(0), one = ask(1);
    out[0] = zero.b, out[1] = zero.d, out[2] = zero.c, out[3] = one.a;
}
#else
static void identify(uint32_t out[4]) { (void)out; }

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* `neon` is Advanced SIMD, which every such processor has, with SDOT. */
static uint32_t sets_beyond_c(void) {
    enum { ASIMDDP = 1 << 20, I8MM = 1 << 13 }; /* of AT_HWCAP and AT_HWCAP2 */
    if (!(getauxval(AT_HWCAP) & ASIMDDP)) return 0;
    return getauxval(AT_HWCAP2) & I8MM ? HAS_NEON | HAS_NEON_I8MM : HAS_NEON;
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static int answers_yes(const char *feature) {
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value == 1;
}

static uint32_t sets_beyond_c(void) {
    if (!answers_yes("hw.optional.arm.FEAT_DotProd")) return 0;
    return answers_yes("hw.optional.arm.FEAT_I8MM") ? HAS_NEON | HAS_NEON_I8MM : HAS_NEON;
}
#else
static uint32_t sets_beyond_c(void) { return 0; }
#endif
#endif

/* Which processor this is; all zero where no instruction tells. */
EXPORT void muser_processor(uint32_t out[4]) {
    memset(out, 0, 4 * sizeof *out);
    identify(out);
}

/* HAS_… bits of what this process may run. Where tiles are, it asks the system for them. */
EXPORT uint32_t muser_instruction_sets(void) { return HAS_C | sets_beyond_c(); }

#endif
