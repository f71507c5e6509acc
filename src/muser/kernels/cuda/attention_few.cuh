// The chain over the tiles of a step whose rows all see few of them, and the quantised row that the next projection reads:
// what decode_combine and quantise_256 do, by one launch. Inside library.cu, after attention_decode.cuh and source.cuh.
//
// combine_256, combine_more_256(Combine): grid (groups of 256 elements of a row, most rows of the bucket), block 256; 32
//     divides dim, and 256 is heads' elements on end. A warp has 32 elements of a head. Of the first, every row sees at most
//     FEW_TILES tiles, all of which a warp has at once; of the second any number, RUN at a time.
//     write out f32, and codes and scales as quantise_256 does
#pragma once

namespace attention {
constexpr int FEW_TILES = 8;

struct Combine {
    Attend a;
    u8* codes;
    float* scales;
    u32* made;  // as in Quantise
};

template <int N>
INLINE float chain_of(const Attend& a, Scales<N>& own, int row, int head, int x, int tiles, bool is_there,
                      float& aside) {
    int lane = threadIdx.x % 32, parts = (a.dim + 31) / 32;
    size_t at = (size_t)row * a.heads + head, element = at * a.dim + x;
    const int4* sums = a.tile_sums + at * a.places + lane;
    const float *out = a.tile_out + (at * parts + x / 32) * a.places * 32 + lane, *gate = a.gate + element;
    Stretch<N> run;
    run.count = N == FEW_TILES ? tiles : min(tiles, N);
    if (is_there) {
        if (lane < run.count) will_read(sums);
        will_read(out);
        if (a.gate) will_read(gate);
    }
    previous_kernel_done();
    if (!is_there) return 0.0f;
    float open = a.gate ? *gate : 1.0f, acc = 0.0f, den = 0.0f;
    load_run(run, sums, out, lane);
    if (a.gate) open = sigmoid1(open);
    Powers all = {NEVER, NEVER, -NEVER};
    if constexpr (N == FEW_TILES) {
        Powers none = all;
        all = scan_run(run, lane);
        scale_run(own, run, none, lane);
        walk(own, run, all, acc, den);
    } else {
        aside = open;  // registers are few
#pragma unroll 1
        for (int first = N;; first += N) {
            Powers before = all;
            all = join(before, scan_run(run, lane));
            scale_run(own, run, before, lane);
            walk(own, run, all, acc, den);
            if (first >= tiles) break;
            run.count = min(tiles - first, N);
            load_run(run, sums + first, out + first * 32, lane);
            __syncwarp();  // the scales are not read any more
        }
        open = aside;
        element = (size_t)unknown(row) * (a.heads * a.dim) + unknown(head) * a.dim + unknown(x);
    }
    return finish(a, acc, den, all.x - all.r + 8, open, element, row);
}

template <int N>
INLINE void combine_and_quantise(const Combine& c) {
    __shared__ Scales<N> scales[GROUP / 32];
    __shared__ __align__(16) float made[GROUP];
    const Attend& a = c.a;
    next_kernel_may_start();
    touch(c);
    int row = unknown(blockIdx.y), group = blockIdx.x, groups = gridDim.x, width = a.heads * a.dim;
    int i = group * GROUP + (int)threadIdx.x;
    Span seen = visible(a, row);  // also of a row beyond them: the loads go together
    bool is_there = row < *a.step.count;
    int tiles = last_tile(seen) - first_tile(seen), head = min(i, width - 1) / a.dim;
    float v = chain_of(a, scales[threadIdx.x / 32], row, head, i - head * a.dim, tiles, is_there && i < width,
                       made[threadIdx.x]);
    if (threadIdx.x == 0) atomicAdd(c.made, 1u);
    made[threadIdx.x] = v;
    __syncthreads();
    if (!is_there || threadIdx.x >= 32) return;
    float w[8];
    load8(made, 8 * (int)threadIdx.x, GROUP, w);
    quantise_group<256>(w, top_of(w), group, c.codes + (size_t)row * groups * CODES_PITCH, c.scales + (size_t)row * groups);
}
}  // namespace attention

KERNEL BOUNDS(256, 3) combine_256(const __grid_constant__ attention::Combine c) {
    attention::combine_and_quantise<attention::FEW_TILES>(c);
}
KERNEL BOUNDS(256, 4) combine_more_256(const __grid_constant__ attention::Combine c) {
    attention::combine_and_quantise<attention::RUN>(c);
}
