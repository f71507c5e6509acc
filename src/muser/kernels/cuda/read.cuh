// Reading and nothing else: how fast the card can have bytes from its memory.
//
//   read_through  grid (any), block 256. Every 16 bytes once; the sum of a thread's 8-byte words goes to `sums`,
//       u64 [grid · 256], so that no read can be left out. `from` lies at a multiple of 16, `count` counts 16 bytes.
//       With none to read it writes nothing: what a launch takes that does nothing.
#pragma once

struct ReadThrough {
    const uint4* from;
    u64* sums;
    i64 count;
};

namespace reading {
constexpr int THREADS = 256;
constexpr int AHEAD = 8;  // loads of a thread that are under way at once

INLINE u64 word_sum(uint4 v) { return ((u64)v.y << 32 | v.x) + ((u64)v.w << 32 | v.z); }
}  // namespace reading

KERNEL BOUNDS(reading::THREADS, 4) read_through(const ReadThrough a) {
    using namespace reading;
    next_kernel_may_start();
    previous_kernel_done();
    if (a.count == 0) return;
    i64 pitch = (i64)gridDim.x * THREADS, mine = (i64)blockIdx.x * THREADS + threadIdx.x;
    u64 sum = 0;
    i64 i = mine;
    for (; i + (AHEAD - 1) * pitch < a.count; i += AHEAD * pitch) {
        uint4 v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) v[j] = a.from[i + j * pitch];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) sum += word_sum(v[j]);
    }
    for (; i < a.count; i += pitch) sum += word_sum(a.from[i]);
    a.sums[mine] = sum;
}
