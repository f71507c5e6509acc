/* What the host and the kernels share: one step's data, one entry's arguments, one worker.
 *
 * `struct step`, `struct args` and `struct entry` are mirrored by `kernels/arguments.py`; the
 * library reports their sizes and the constants below (`muser_constants`), and loading compares them.
 */
#ifndef MUSER_H
#define MUSER_H

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights are used in place: a little-endian machine is needed"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "float products must round to float: FLT_EVAL_METHOD 0 is needed"
#endif
#if defined(__AVX2__) && !defined(__FMA__)
#error "AVX2 without FMA is refused"
#endif
/* A flag of ours says so, not the compiler: some take these instructions for granted everywhere. */
#if defined(MUSER_NEON) && !defined(__ARM_FEATURE_DOTPROD)
#error "NEON without its dot products is refused"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Sets whose weights are packed (pack.h) and whose quantised rows are bytes (byte_rows.h). */
#if defined(__AVX512VNNI__) || defined(MUSER_NEON)
#define PACKED 1
#define AVX2_LANES 0
#elif defined(__AVX2__)
#define PACKED 0
#define AVX2_LANES 1
#else
#define PACKED 0
#define AVX2_LANES 0
#endif

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define EXPORT __attribute__((visibility("default")))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    TILE = 128,          /* positions of an attention tile */
    GRID_BLOCK = 128,    /* elements of a float row that share a step */
    CODE_GROUP = 32,     /* elements whose codes are summed */
    PANEL = 8,           /* rows that lie in lanes together */
    ROW_TILE = 2 * PANEL,
#if defined(__AMX_INT8__)
    STRIP = 16,          /* weight rows that a worker unpacks at once */
#else
    STRIP = 4,
#endif
    STRIP_HEAD_BYTES = 8 * sizeof(int16_t) + 2 * sizeof(float), /* eight mins, d and m of a block */
    PLANE_LANES = 16,    /* a stored K or V row takes a multiple of so many codes */
    AHEAD = 4096,        /* bytes that are asked for before they are read: of 0, 1,024, 2,048, 4,096 and
                          * 8,192 this gave most, 14 GB/s on one thread instead of 10 */
    MIN_HEAD = 17,       /* the query codes of a smaller head do not fit int16, see attention.h */
    MAX_HEAD = 512,
};

/* The only thing that changes between two plays of one tape. */
struct step {
    int32_t n;                 /* rows */
    int32_t m;                 /* wanted rows */
    const int32_t *tokens;     /* [n] */
    const int32_t *positions;  /* [n] */
    const int32_t *slots;      /* [n] */
    const int32_t *outputs;    /* [m], ascending */
};

/* One record for every kernel; a kernel reads the fields that its comment names. */
struct args {
    const struct step *step;
    const int32_t *rows;       /* &step->n, or &step->m behind take_rows */
    const float *x;            /* f32 rows [rows][width] */
    const float *y;            /* a second source */
    float *out;                /* f32 rows */
    float *normed;             /* f32 rows between a norm and what follows it in one entry */
    const void *weight;        /* raw blocks, grid codes, an f32 vector or a rotation table */
    const int8_t *steps;       /* of grid weights: [out][blocks], each e stands for 2^e */
    int16_t *codes;            /* quantised rows, see rows.h */
    float *scales;
    int16_t *sums;
    int16_t *key;              /* planes [slot][kv head][capacity][stride], see kv.h */
    int8_t *key_steps;         /* [slot][kv head][capacity] */
    int16_t *value;
    int8_t *value_steps;
    int64_t row_bytes;         /* of one weight row */
    int32_t width;             /* elements of a source row */
    int32_t out_width;         /* elements of a target row */
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t rotated;
    int32_t capacity;          /* rows of one plane, a multiple of TILE */
    int32_t window;            /* 0: every earlier row is visible */
    int32_t striped;           /* elementwise: cut by columns */
    float eps;
    float factor;
    float inverse;
};

struct pool;

struct worker {
    int32_t index;
    int32_t count;
    uint32_t entry;
    uint32_t spare;
    uint8_t *scratch;          /* this worker's own bytes */
    _Atomic uint64_t *fault;   /* smallest (entry << 32 | row) that left the finite numbers */
};

typedef void (*kernel)(const struct args *, const struct worker *);

struct entry {
    kernel run;
    const struct args *args;   /* of worker 0 */
    uint32_t wait;             /* 1: every earlier entry must be done */
    uint32_t own;              /* 1: worker i reads args[i] */
    uint32_t whole;            /* 1: every worker does all of it, as if alone, on rows of its own */
    uint32_t spare;
};

struct span {
    int32_t begin, end;
};

/* This worker's part of `n` things, cut at multiples of `grain`. */
INLINE struct span share(int32_t n, int32_t grain, const struct worker *w) {
    int64_t pieces = ((int64_t)n + grain - 1) / grain;
    int64_t first = (pieces * w->index + w->count - 1) / w->count;
    int64_t last = (pieces * (w->index + 1) + w->count - 1) / w->count;
    struct span s = {(int32_t)(first * grain), (int32_t)(last * grain)};
    if (s.end > n) s.end = n;
    if (s.begin > s.end) s.begin = s.end;
    return s;
}

/* Rows are cut alike by every row-wise kernel, so entries that only follow their own rows need no
 * barrier between them. Whole panels of quantised rows stay with one worker. */
INLINE struct span share_rows(int32_t n, const struct worker *w) {
    return share(n, n > ROW_TILE ? PANEL : 1, w);
}

INLINE void report_fault(const struct worker *w, int32_t row) {
    uint64_t key = (uint64_t)w->entry << 32 | (uint32_t)row;
    uint64_t seen = atomic_load(w->fault);
    while (key < seen && !atomic_compare_exchange_weak(w->fault, &seen, key)) {
    }
}

/* `top` is the largest `bits & 0x7fffffff` that a row wrote. */
INLINE void check_row(uint32_t top, const struct worker *w, int32_t row) {
    if (top >= 0x7f800000u) report_fault(w, row);
}

#endif
