/* Appending to planes laid out for AVX-512 (kv.h). */
#ifndef KV16_H
#define KV16_H

#include "exact16.h"

/* A dword, two elements, goes to each vector of the group's sixteen positions. */
INLINE int append_key(const struct args *a, const float *x, int64_t at) {
    const int32_t n = a->head_dim, stride = plane_stride(a);
    const uint32_t top = top_of16(x, n);
    const struct grid16 g = grid_of16(top, 11, -24);
    int16_t *to = a->key + at / KEY_GROUP * KEY_GROUP * stride + at % KEY_GROUP * KEY_UNIT;
    for (int32_t k = 0; k < stride; k += 16) {
        _Alignas(32) int16_t codes[16];
        _mm256_store_si256((__m256i *)codes, _mm512_cvtepi32_epi16(grid_at16(&g, x, k, n)));
        UNROLL
        for (int32_t i = 0; i < 16; i += KEY_UNIT)
            memcpy(to + (int64_t)(k + i) * KEY_GROUP, codes + i, KEY_UNIT * sizeof *codes);
    }
    a->key_steps[at] = (int8_t)g.e;
    return beyond_half(top, g.e);
}

/* Every second word of a vector, the one of this position. */
INLINE int append_value(const struct args *a, const float *x, int64_t at) {
    const int32_t n = a->head_dim, stride = plane_stride(a), second = (int32_t)(at % VALUE_GROUP);
    const uint32_t top = top_of16(x, n);
    const struct grid16 g = grid_of16(top, 11, -24);
    const __mmask32 own = second ? 0xaaaaaaaau : 0x55555555u;
    const __m128i shift = _mm_cvtsi32_si128(16 * second);
    int16_t *to = a->value + at / VALUE_GROUP * VALUE_GROUP * stride;
    for (int32_t k = 0; k < stride; k += 16) {
        __m512i codes = _mm512_sll_epi32(grid_at16(&g, x, k, n), shift);
        _mm512_mask_storeu_epi16(to + (int64_t)VALUE_GROUP * k, own, codes);
    }
    a->value_steps[at] = (int8_t)g.e;
    return beyond_half(top, g.e);
}

#endif
