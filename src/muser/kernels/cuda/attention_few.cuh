// The chain over the tiles of a step's rows, and the quantised row that the next projection reads: what decode_combine and
// quantise_256 do, by one launch. Inside library.cu, after attention_decode.cuh and source.cuh.
//
// combine_256, combine_more_256, combine_most_256(Combine): grid (groups of 256 elements of a row, most rows of the bucket),
//     block 256; 32 divides dim, and 256 is heads' elements on end. A warp has 32 elements of a head. Every row sees at most
//     FEW_TILES, MORE_TILES or MOST_TILES tiles, all of which a warp has at once.
//     write out f32, and codes and scales as quantise_256 does
// combine_turns_256(Combine): grid (spans of 32 elements of a row, most rows of the bucket), block 256, which walks in turns
//     over any number of tiles, as decode_combine does; the last block of 256 elements quantises them. 32 divides dim.
#pragma once

namespace attention {
constexpr int FEW_TILES = 8, MORE_TILES = 24, MOST_TILES = 72;

struct Combine {
    Attend a;
    u8* codes;
    float* scales;
    u32* made;     // this and the next as in Quantise
    int together;
    u32* handed;   // combine_turns_256: a word an element, zeros between launches
};

INLINE Made quantised_row(const Combine& c, int row, int groups) {
    size_t first = (size_t)row * (c.together == 1 ? groups : 1);
    return {c.codes + first * CODES_PITCH, c.scales + first, c.together};
}

// Element i of a row, by the thread whose `aside` is a word of shared memory.
template <int N>
INLINE float chain_of(const Attend& a, Scales<N>& own, int row, int i, bool is_there, float& aside) {
    int lane = threadIdx.x % 32, parts = (a.dim + 31) / 32, width = a.heads * a.dim, head = min(i, width - 1) / a.dim;
    Span seen = visible(a, row);  // also of a row beyond them: the loads go together
    Stretch<N> run;
    run.count = last_tile(seen) - first_tile(seen);
    size_t at = (size_t)row * a.heads + head, part = at * parts + (i - head * a.dim) / 32;
    const int4* sums = a.tile_sums + at * a.places + lane * Stretch<N>::EACH;
    const float *out = a.tile_out + part * a.places * 32 + lane, *gate = a.gate + (size_t)row * width + i;
    if (is_there) {
        if (lane * Stretch<N>::EACH < run.count) will_read(sums);
        will_read(out);
        if (a.gate) will_read(gate);
    }
    previous_kernel_done();
    if (!is_there) return 0.0f;
    float open = a.gate ? *gate : 1.0f, acc = 0.0f, den = 0.0f;
    load_run(run, sums, out, lane);
    if (a.gate) open = sigmoid1(open);
    if (N == MOST_TILES) aside = open;  // registers are few
    Powers all = scan_run(run, lane);
    scale_run(own, run, {NEVER, NEVER, -NEVER}, lane);
    walk(own, run, all, acc, den);
    if (N == MOST_TILES) open = aside, row = unknown(row), i = unknown(i);
    return finish(a, acc, den, all.x - all.r + 8, open, (size_t)row * (a.heads * a.dim) + i, row);
}

template <int N>
INLINE void combine_and_quantise(const Combine& c) {
    __shared__ Scales<N> scales[GROUP / 32];
    __shared__ __align__(16) float made[GROUP];
    const Attend& a = c.a;
    next_kernel_may_start();
    touch(c);
    int row = unknown(blockIdx.y), group = blockIdx.x, groups = gridDim.x, i = group * GROUP + (int)threadIdx.x;
    bool is_there = row < *a.step.count;
    float& own = made[threadIdx.x];
    float v = chain_of(a, scales[threadIdx.x / 32], row, i, is_there && i < a.heads * a.dim, own);
    if (threadIdx.x == 0) atomicAdd(c.made, 1u);
    own = v;
    __syncthreads();
    if (!is_there || threadIdx.x >= 32) return;
    float w[8];
    load8(made, 8 * (int)threadIdx.x, GROUP, w);
    quantise_group<256>(w, top_of(w), group, quantised_row(c, row, groups));
}

// 32 elements that a warp has made, to the one that has the last 32 of 256; it is of the last of their blocks to begin, so all
// others are under way. That one quantises what they come to.
INLINE void hand_to_last(const Combine& c, int row, int i, float v) {
    int lane = threadIdx.x % 32, width = c.a.heads * c.a.dim, groups = (width + GROUP - 1) / GROUP, group = i / GROUP;
    u32* words = c.handed + (size_t)row * width;
    hand_on(words + i, v);
    __syncwarp();
    if (lane == 0) atomicAdd(c.made, 1u);
    if ((i | 31) + 1 != min(width, (group + 1) * GROUP)) return;
    float w[8] = {};
    if (group * GROUP + 8 * lane < width) taken8(words + group * GROUP + 8 * lane, w);
    __syncwarp();
    quantise_group<256>(w, top_of(w), group, quantised_row(c, row, groups));
}

INLINE void combine_in_turns(const Combine& c) {
    __shared__ Chain chain;
    const Attend& a = c.a;
    next_kernel_may_start();
    touch(c);
    int row = blockIdx.y, parts = a.dim / 32, head = blockIdx.x / parts, rows = *a.step.count;
    Span seen = visible(a, row);  // also of a row beyond them: the loads go together
    bool is_there = row < rows;
    Walk w = {row, head, (int)blockIdx.x - head * parts, last_tile(seen) - first_tile(seen), is_there, false};
    walk_in_turns(a, chain, w, [&](int i, float v) { hand_to_last(c, row, i, v); });
    if (!is_there && threadIdx.x == 0) atomicAdd(c.made, 1u);
}
}  // namespace attention

KERNEL BOUNDS(256, 3) combine_256(const __grid_constant__ attention::Combine c) {
    attention::combine_and_quantise<attention::FEW_TILES>(c);
}
KERNEL BOUNDS(256, 2) combine_more_256(const __grid_constant__ attention::Combine c) {
    attention::combine_and_quantise<attention::MORE_TILES>(c);
}
KERNEL BOUNDS(256, 2) combine_most_256(const __grid_constant__ attention::Combine c) {
    attention::combine_and_quantise<attention::MOST_TILES>(c);
}
KERNEL BOUNDS(640, 1) combine_turns_256(const __grid_constant__ attention::Combine c) { attention::combine_in_turns(c); }
