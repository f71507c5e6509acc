/* One output element from the same element of one or two rows.
 *
 * All read x (and y), width, `factor` and `inverse` where the operator has constants, and write
 * out. `striped` 1: every worker takes a stripe of columns of each row (wide rows); 0: whole rows.
 */
#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H

#include "exact.h"

#define ELEMENTWISE(name, expression)                                                    \
    INLINE void name##_run(const struct args *a, const float *xs, const float *ys,       \
                           int32_t n, float *out, uint32_t *top) {                       \
        const float factor = a->factor, inverse = a->inverse;                            \
        float run[RUN];                                                                  \
        (void)factor, (void)inverse;                                                     \
        for (int32_t i = 0; i < n; i++) {                                                \
            const float x = xs[i], y = ys[i];                                            \
            (void)y;                                                                     \
            run[i] = kept(expression, top);                                              \
        }                                                                                \
        memcpy(out, run, (size_t)n * sizeof *run);                                       \
    }                                                                                    \
    INLINE void name##_rows(const struct args *a, const struct worker *w) {              \
        struct span rows = {0, *a->rows}, part = {0, a->width};                          \
        if (a->striped) part = share(a->width, 16, w);                                   \
        else rows = share_rows(*a->rows, w);                                             \
        for (int32_t r = rows.begin; r < rows.end; r++) {                                \
            const int64_t at = (int64_t)r * a->width;                                    \
            const float *xs = a->x + at, *ys = a->y + at;                                \
            uint32_t top = 0;                                                            \
            int32_t k = part.begin;                                                      \
            for (; k + RUN <= part.end; k += RUN)                                        \
                name##_run(a, xs + k, ys + k, RUN, a->out + at + k, &top);               \
            if (k < part.end)                                                            \
                name##_run(a, xs + k, ys + k, part.end - k, a->out + at + k, &top);      \
            check_row(top, w, r);                                                        \
        }                                                                                \
    }

/* Softcap of a scaled row: the scaled value is stored by no one, but tested all the same. */
INLINE float capped(float x, float scale, float cap, float inverse, uint32_t *top) {
    return cap * tanh_of(kept(x * scale, top) * inverse);
}

ELEMENTWISE(sigmoid_gate, x * sigmoid_of(y))
ELEMENTWISE(silu_gate, silu_of(x) * y)
ELEMENTWISE(gelu_gate, gelu_of(x) * y)
ELEMENTWISE(add, x + y)
ELEMENTWISE(scale, x * factor)
ELEMENTWISE(softcap, factor * tanh_of(x * inverse))
ELEMENTWISE(scale_softcap, capped(x, a->eps, factor, inverse, top))

#endif
