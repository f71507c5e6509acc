/* What this processor and its system can run, from CPUID and XGETBV bits, never from its name. */
#ifndef CPU_H
#define CPU_H

#include "muser.h"

#if defined(__x86_64__)
#include <cpuid.h>

static int has_avx2(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    unsigned fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!(fma && osxsave && avx && f16c)) return 0;
    unsigned low, high; /* XCR0: the system saves xmm (bit 1) and ymm (bit 2) */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return b >> 5 & 1;
}

/* Vendor (12 letters as ebx, edx, ecx of leaf 0) and the signature: family, model, stepping. */
static void identify(uint32_t out[4]) {
    uint32_t most;
    if (__get_cpuid(0, &most, &out[0], &out[2], &out[1])) {
        uint32_t b, c, d;
        __get_cpuid(1, &out[3], &b, &c, &d);
    }
}
#else
static int has_avx2(void) { return 0; }
static void identify(uint32_t out[4]) { (void)out; }
#endif

/* Which processor this is; all zero where no instruction tells. */
EXPORT void muser_processor(uint32_t out[4]) {
    memset(out, 0, 4 * sizeof *out);
    identify(out);
}

/* Bit 0: plain C. Bit 1: AVX2 with FMA and F16C. */
EXPORT uint32_t muser_instruction_sets(void) { return 1u | (has_avx2() ? 2u : 0u); }

#endif
