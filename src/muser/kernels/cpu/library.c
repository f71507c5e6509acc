/* The whole library of one instruction set: every pipeline as one exported function.
 *
 * Names are `muser_<pipeline>[_<constant>…]`; kernels/registry.py lists them all. */
#define _GNU_SOURCE 1

#include "attention.h"
#include "cpu.h"
#include "elementwise.h"
#include "gather.h"
#include "guard.h"
#include "norm.h"
#include "pack.h"
#include "pool.h"
#include "primitives.h"
#include "project.h"
#include "roof.h"

#define PIPELINE(name, call)                                                     \
    EXPORT __attribute__((noinline)) void muser_##name(const struct args *a,     \
                                                       const struct worker *w) { \
        call;                                                                    \
    }

/* Row buckets: 1, 2-4, 5-16, a prefill chunk. What is the same machine code is made once: it takes
 * most of the time of a first start. */
#if PACKED || defined(__AVX2__)
#define FEW(name, bucket, call) PIPELINE(name##_##bucket, call)
#else
#define FEW(name, bucket, call) PIPELINE(name##_##bucket, muser_##name##_chunk(a, w))
#endif
#define PROJECT(name, format)                                                    \
    PIPELINE(project_##name##_chunk, project(format, 0, a, w))                   \
    PIPELINE(project_##name##_16, muser_project_##name##_chunk(a, w))            \
    FEW(project_##name, 4, project(format, 4, a, w))                             \
    FEW(project_##name, 1, project(format, 1, a, w))

PROJECT(q8_0, Q8_0)
PROJECT(q4_0, Q4_0)
PROJECT(q4_1, Q4_1)
PROJECT(q5_0, Q5_0)
PROJECT(q5_1, Q5_1)
PROJECT(q4_k, Q4_K)
PROJECT(q5_k, Q5_K)
PROJECT(q6_k, Q6_K)
PROJECT(grid, GRID)

#if PACKED
enum { TOGETHER_ABOVE_4 = TILED };
#define quantise quantise_bytes
#else
enum { TOGETHER_ABOVE_4 = LANED };
#define quantise quantise_rows
#endif

/* Row-major up to 4 rows, then panels or tiles of rows where the instruction set has them. */
#define READY_ROWS(name, call_with_panel)                                        \
    PIPELINE(name##_1, enum { panel = 0 }; call_with_panel)                      \
    PIPELINE(name##_4, muser_##name##_1(a, w))                                   \
    PIPELINE(name##_chunk, enum { panel = TOGETHER_ABOVE_4 }; call_with_panel)   \
    PIPELINE(name##_16, muser_##name##_chunk(a, w))

/* Rows for a projection; the same of a normed row (`normed` gets it), and of a normed sum (`out`). */
#define QUANTISE(name, function, ...)                                            \
    READY_ROWS(name, function(__VA_ARGS__, a, a->x, w))                          \
    READY_ROWS(norm_##name, norm_rows(a, a->x, a->normed, w);                    \
               function(__VA_ARGS__, a, a->normed, w))                           \
    READY_ROWS(add_norm_##name, ask_for_weight(a); add_rows(a, w);               \
               norm_rows(a, a->out, a->normed, w);                               \
               function(__VA_ARGS__, a, a->normed, w))

QUANTISE(quantise_32, quantise, 32, panel)
QUANTISE(quantise_256, quantise, 256, panel)
QUANTISE(grid_rows, grid_rows, panel && !PACKED)

PIPELINE(embed_q8_0, embed_rows(Q8_0, a, w))
PIPELINE(embed_q4_0, embed_rows(Q4_0, a, w))
PIPELINE(embed_q4_1, embed_rows(Q4_1, a, w))
PIPELINE(embed_q5_0, embed_rows(Q5_0, a, w))
PIPELINE(embed_q5_1, embed_rows(Q5_1, a, w))
PIPELINE(embed_q4_k, embed_rows(Q4_K, a, w))
PIPELINE(embed_q5_k, embed_rows(Q5_K, a, w))
PIPELINE(embed_q6_k, embed_rows(Q6_K, a, w))
PIPELINE(embed_f32, embed_rows(F32, a, w))
PIPELINE(embed_f16, embed_rows(F16, a, w))
PIPELINE(embed_bf16, embed_rows(BF16, a, w))

PIPELINE(norm, norm_rows(a, a->x, a->out, w))
PIPELINE(rope_interleaved, rope_rows(0, a, w))
PIPELINE(rope_half_split, rope_rows(1, a, w))
PIPELINE(kv_append, append_rows(a, w))
PIPELINE(attention, attend_rows(a, w))
PIPELINE(sigmoid_gate, sigmoid_gate_rows(a, w))
PIPELINE(silu_gate, silu_gate_rows(a, w))
PIPELINE(gelu_gate, gelu_gate_rows(a, w))
PIPELINE(add, add_rows(a, w))
PIPELINE(scale, scale_rows(a, w))
PIPELINE(softcap, softcap_rows(a, w))
PIPELINE(scale_softcap, scale_softcap_rows(a, w))
PIPELINE(take_rows, take_columns(a, w))
PIPELINE(argmax, argmax_rows(a, w))

/* On no model's tape: what a measurement compares the others with. */
PIPELINE(read_through, read_through(a, w))

/* What the host needs to know of the texts: kernels/constants.py reads it when a library is loaded.
 * An empty name ends the table. */
struct constant {
    char name[28];
    int32_t value;
};

#define CONSTANT(name) {#name, name}
EXPORT const struct constant muser_constants[] = {
    {"STEP_BYTES", sizeof(struct step)},
    {"ARGS_BYTES", sizeof(struct args)},
    {"ENTRY_BYTES", sizeof(struct entry)},
    {"POOL_BYTES", sizeof(struct pool)},
    CONSTANT(PACKED),
    CONSTANT(LANES),
    CONSTANT(Q8_0),
    CONSTANT(Q4_0),
    CONSTANT(Q4_1),
    CONSTANT(Q5_0),
    CONSTANT(Q5_1),
    CONSTANT(Q4_K),
    CONSTANT(Q5_K),
    CONSTANT(Q6_K),
    CONSTANT(GRID),
    CONSTANT(TILE),
    CONSTANT(GRID_BLOCK),
    CONSTANT(CODE_GROUP),
    CONSTANT(SUM_WORDS),
    CONSTANT(ROW_TILE),
    CONSTANT(STRIP),
    CONSTANT(STRIP_HEAD_BYTES),
    CONSTANT(PLANE_LANES),
    CONSTANT(KEY_GROUP),
    CONSTANT(KEY_UNIT),
    CONSTANT(VALUE_GROUP),
    CONSTANT(VALUE_UNIT),
    CONSTANT(ATTEND_BYTES),
    CONSTANT(ATTEND_CODE_BYTES),
    CONSTANT(MIN_HEAD),
    CONSTANT(MAX_HEAD),
    CONSTANT(MAX_THREADS),
    CONSTANT(PLAYED),
    CONSTANT(CANCELLED),
    CONSTANT(FAULTED),
    CONSTANT(FORKED),
    CONSTANT(BUSY),
    CONSTANT(CLOSED),
    {"", 0},
};
