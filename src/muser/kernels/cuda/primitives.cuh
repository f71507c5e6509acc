// The primitives one by one, for the conformance run: arrays in, an array out, one thread an element.
//
//   check_fma, check_rne, check_int32, check_half, check_from_half, check_divide, check_inverse_root, check_exp,
//   check_exp2_fraction(Words)   grid ceil(count / 256), block 256
//       f32 in and out, but: rne to i32, int32 from i32, half to f16, from_half from f16
#pragma once

struct Words {
    const void *a, *b, *c;  // as many as the primitive takes
    void* out;
    int count;
};

#define CHECK(name, From, To, value)                                        \
    KERNEL BOUNDS(256, 4) check_##name(const Words w) {                     \
        previous_kernel_done();                                             \
        int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);               \
        if (i >= w.count) return;                                           \
        const From *a = (const From*)w.a, *b = (const From*)w.b, *c = (const From*)w.c; \
        ((To*)w.out)[i] = (To)(value);                                      \
    }
CHECK(fma, float, float, fma1(a[i], b[i], c[i]))
CHECK(rne, float, int, rne(a[i], b[i]))
CHECK(int32, int, float, __int2float_rn(a[i]))
CHECK(half, float, u16, float_to_half(a[i]))
CHECK(from_half, u16, float, half_to_float(a[i]))
CHECK(divide, float, float, div1(a[i], b[i]))
CHECK(inverse_root, float, float, div1(1.0f, root(a[i])))
CHECK(exp, float, float, exp1(a[i]))
CHECK(exp2_fraction, float, float, exp2_unit(a[i]))
#undef CHECK
