// Rows and ids picked by number.
//
//   take_rows     grid (ceil(width / (4·block))), block 32 to 256, buckets above one row. step.count is m.
//       rows[i] = rows[outputs[i]] in place: outputs ascend, and a thread takes its columns through all rows.
//   argmax_parts  grid (parts, m rows), block 256: parts[row][blockIdx.x] = the first key of a stretch of the row.
//   argmax        grid (m rows), block 32: ids[row] of the first of `count` parts. Parts: 1 to 128, about
//       width / 2,048. All buckets. No dynamic shared memory.
#pragma once

struct TakeRows {
    float* rows;
    Step step;
    int width;
};
struct ArgmaxParts {
    const float* x;
    u64* parts;
    Step step;
    int width;
};
struct Argmax {
    const u64* parts;
    int* ids;
    Step step;
    int count;
};

namespace pick {
constexpr int AHEAD = 8;  // a row's target is never a later row's source: from[i] >= i

template <class T>
INLINE void take(T* column, size_t pitch, const int* from, int count) {
    for (int i = 0; i < count; i += AHEAD) {
        T held[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j < count) held[j] = column[(size_t)from[i + j] * pitch];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j < count) column[(size_t)(i + j) * pitch] = held[j];
    }
}

// Token order: ordered bits of the logit, then the lower id.
INLINE u64 key(float logit, int id) {
    u32 u = __float_as_uint(logit), ordered = u >> 31 ? ~u : u | 0x80000000u;
    return (u64)ordered << 32 | (u32)(~0u - (u32)id);
}
INLINE u64 warp_largest(u64 best) {
#pragma unroll
    for (int x = 16; x; x >>= 1) best = max(best, __shfl_xor_sync(~0u, best, x));
    return best;
}
}  // namespace pick

KERNEL BOUNDS(256, 4) take_rows(const TakeRows a) {
    int k = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4, count = *a.step.count;
    next_kernel_may_start();
    previous_kernel_done();
    if (count == 0 || k >= a.width || a.step.outputs[count - 1] == count - 1) return;  // all rows are wanted
    if (a.width % 4 == 0) {
        pick::take((float4*)(a.rows + k), a.width / 4, a.step.outputs, count);
    } else {
        for (int i = k; i < min(k + 4, a.width); i++) pick::take(a.rows + i, a.width, a.step.outputs, count);
    }
}

KERNEL BOUNDS(256, 4) argmax_parts(const ArgmaxParts a) {
    __shared__ u64 warps[8];
    int row = blockIdx.y, lane = threadIdx.x % 32, count = *a.step.count;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= count) return;
    int each = (a.width + (int)gridDim.x * 4 - 1) / ((int)gridDim.x * 4) * 4;
    int first = (int)blockIdx.x * each, end = min(first + each, a.width);
    const float* x = a.x + (size_t)row * a.width;
    u64 best = 0;
    if (a.width % 4 == 0) {
#pragma unroll 4
        for (int k = first + (int)threadIdx.x * 4; k < end; k += 1024) {
            float4 v = *(const float4*)(x + k);
            best = max(best, max(max(pick::key(v.x, k), pick::key(v.y, k + 1)),
                                 max(pick::key(v.z, k + 2), pick::key(v.w, k + 3))));
        }
    } else {
        for (int k = first + (int)threadIdx.x; k < end; k += 256) best = max(best, pick::key(x[k], k));
    }
    best = pick::warp_largest(best);
    if (lane == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
        best = pick::warp_largest(warps[lane % 8]);
        if (lane == 0) a.parts[(size_t)row * gridDim.x + blockIdx.x] = best;
    }
}

KERNEL BOUNDS(32, 1) argmax(const Argmax a) {
    int row = blockIdx.x, count = *a.step.count;
    next_kernel_may_start();
    previous_kernel_done();
    if (row >= count) return;
    u64 best = 0;
    for (int i = threadIdx.x; i < a.count; i += 32) best = max(best, a.parts[(size_t)row * a.count + i]);
    best = pick::warp_largest(best);
    if (threadIdx.x == 0) a.ids[row] = (int)(~0u - (u32)best);
}
