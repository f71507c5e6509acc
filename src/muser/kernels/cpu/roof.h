/* Reading and nothing else: how fast this pool can have bytes from memory. */
#ifndef ROOF_H
#define ROOF_H

#include "muser.h"

enum { READ_WORDS = 32 };  /* words that are added side by side: four lines of a cache */

/* `row_bytes` bytes of `weight`, a multiple of 256, every worker its part once; the sum of this
 * worker's words goes to out's line of 64 bytes, so that no read can be left out. */
static void read_through(const struct args *a, const struct worker *w) {
    struct span part = share((int32_t)(a->row_bytes / (READ_WORDS * sizeof(uint64_t))), 1, w);
    const uint64_t *words = (const uint64_t *)a->weight + (int64_t)part.begin * READ_WORDS;
    uint64_t sums[READ_WORDS] = {0};
    for (int32_t i = part.begin; i < part.end; i++, words += READ_WORDS) {
        for (int j = 0; j < READ_WORDS; j += 8) __builtin_prefetch((const char *)(words + j) + AHEAD);
        for (int j = 0; j < READ_WORDS; j++) sums[j] += words[j];
    }
    for (int j = 1; j < READ_WORDS; j++) sums[0] += sums[j];
    ((uint64_t *)a->out)[w->index * 8] = sums[0];
}

#endif
