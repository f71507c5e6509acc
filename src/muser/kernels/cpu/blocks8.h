/* Sixteen folded codes of a block at a time; `fold_block` in blocks.h is the plain form. */
#ifndef BLOCKS8_H
#define BLOCKS8_H

#include "blocks.h"
#include "exact8.h"

/* The K-quants' group factors, widened: up to sixteen scales and eight mins. */
struct folds {
    int16_t scale[16];
    int16_t min[8];
};

INLINE void read_folds(enum format f, const uint8_t *p, struct folds *to) {
    if (f == Q6_K)
        _mm256_storeu_si256((__m256i *)to->scale, _mm256_cvtepi8_epi16(load_bytes(p + 192)));
    if (has_mins(f)) {
        uint8_t scale[8], min[8];
        scales_and_mins(p + 4, scale, min);
        __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)scale));
        _mm_storeu_si128((__m128i *)to->scale, wide);
        wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)min));
        _mm_storeu_si128((__m128i *)to->min, wide);
    }
}

INLINE __m128i nibbles16(const uint8_t *p, int high) {
    __m128i b = load_bytes(p);
    if (high) b = _mm_srli_epi16(b, 4);
    return _mm_and_si128(b, _mm_set1_epi8(15));
}

/* Sixteen in each byte whose bit is set in the two bytes at p. */
INLINE __m128i fifths16(const uint8_t *p) {
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201ull);
    __m128i b = _mm_shuffle_epi8(_mm_cvtsi32_si128(load_u16(p)), spread);
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(b, bit), bit), _mm_set1_epi8(16));
}

/* Two bits of each byte at `shift`, moved to bits 4 and 5. */
INLINE __m128i pair_to_4(__m128i h, int shift) {
    h = _mm_and_si128(h, _mm_set1_epi8((char)(3 << shift)));
    switch (shift) {
    case 0: return _mm_slli_epi16(h, 4);
    case 2: return _mm_slli_epi16(h, 2);
    case 4: return h;
    default: return _mm_srli_epi16(h, 2);
    }
}

/* Codes 16i … 16i+15 of the block at p; i is a constant where this is unrolled. */
INLINE __m256i codes16(enum format f, const uint8_t *p, const struct folds *k, int i) {
    __m128i low;
    switch (f) {
    case Q8_0: return _mm256_cvtepi8_epi16(load_bytes(p + 2 + 16 * i));
    case Q4_0:
        return _mm256_sub_epi16(_mm256_cvtepu8_epi16(nibbles16(p + 2, i)), _mm256_set1_epi16(8));
    case Q4_1: return _mm256_cvtepu8_epi16(nibbles16(p + 4, i));
    case Q5_0:
        low = _mm_or_si128(nibbles16(p + 6, i), fifths16(p + 2 + 2 * i));
        return _mm256_sub_epi16(_mm256_cvtepu8_epi16(low), _mm256_set1_epi16(16));
    case Q5_1:
        return _mm256_cvtepu8_epi16(_mm_or_si128(nibbles16(p + 8, i), fifths16(p + 4 + 2 * i)));
    case Q4_K:
        low = nibbles16(p + 16 + 32 * (i >> 2) + 16 * (i & 1), i >> 1 & 1);
        break;
    case Q5_K: {
        __m128i bit = _mm_set1_epi8((char)(1 << (i >> 1)));
        __m128i set = _mm_cmpeq_epi8(_mm_and_si128(load_bytes(p + 16 + 16 * (i & 1)), bit), bit);
        low = nibbles16(p + 48 + 32 * (i >> 2) + 16 * (i & 1), i >> 1 & 1);
        low = _mm_or_si128(low, _mm_and_si128(set, _mm_set1_epi8(16)));
        break;
    }
    default: { /* Q6_K: half i/8, quarter j, sixteen of 32 */
        int j = i >> 1 & 3;
        low = nibbles16(p + 64 * (i >> 3) + 32 * (j & 1) + 16 * (i & 1), j >> 1);
        __m128i high = load_bytes(p + 128 + 32 * (i >> 3) + 16 * (i & 1));
        low = _mm_or_si128(low, pair_to_4(high, 2 * j));
        low = _mm_sub_epi8(low, _mm_set1_epi8(32));
        __m256i scale = _mm256_set1_epi16(k->scale[8 * (i >> 3) + 2 * j + (i & 1)]);
        return _mm256_mullo_epi16(_mm256_cvtepi8_epi16(low), scale);
    }
    }
    return _mm256_mullo_epi16(_mm256_cvtepu8_epi16(low), _mm256_set1_epi16(k->scale[i >> 1]));
}

#endif
