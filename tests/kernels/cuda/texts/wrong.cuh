// One misuse a mode; 0 is right.
struct Wrong { const float* x; float* y; int mode, zero; };
SHARED_BYTES(dynamic);
KERNEL wrong(const Wrong a) {
    __shared__ float lanes[64];
    __shared__ u64 bar;
    int i = threadIdx.x, mode = a.mode;
    if (mode != 1) previous_kernel_done();
    if (mode == 11) {
        if (i == 0) barrier_init(&bar, 1);
        __syncthreads();
        if (i == 0) bulk_copy(lanes, a.x, 64, &bar);
    }
    lanes[i] = a.x[i];
    if (mode != 2) __syncthreads();
    a.y[i] = lanes[63 - i];
    if (mode == 3 && i == 3) return;
    if (mode == 4 && i < 7) __syncwarp();
    u32 top = __reduce_max_sync(~0u, (u32)i);
    if (mode == 5) ((float*)dynamic)[i] = 0;
    if (mode == 6) *(float*)(16 + (size_t)a.zero) = 1;
    if (mode == 7) *(float4*)(a.y + 1 + a.zero) = float4{};
    if (mode == 8) lanes[i + top] = 4;
    if (mode == 9) named_sync(1, 96 - 64 * a.zero);
    if (mode == 10) barrier_wait(&bar, 0);
    if (mode == 12) {
        if (i < 32) named_sync(2, 64);
        else named_sync(3, 64);
    }
    if (mode == 13) {
        lanes[i] = 0;
        __syncthreads();
        copy16(lanes + 4 * (i % 16), a.x + 4 * (i % 16));
        copy_commit();
        __syncthreads();
        a.y[i] = lanes[i];
    }
    if (mode == 14) a.y[i + 1] = 0;
    if (mode == 15) {
        __shared__ u32 count;
        if (i == 0) count = 0;
        __syncthreads();
        if (i == 1) count_add(&count, 1);
        count_wait(&count, 2);
    }
}

// Two sums of all threads, one after another: through one array, or (zero: 0) each through its own.
KERNEL twice(const Wrong a) {
    __shared__ float lanes[2][64];
    float total = 0;
    previous_kernel_done();
    for (int turn = 0; turn < 2; turn++) {
        float* mine = lanes[a.zero ? 0 : turn];
        mine[threadIdx.x] = a.x[threadIdx.x] + turn;
        __syncthreads();
        for (int i = 0; i < 64; i += 32) total += mine[threadIdx.x % 32 + i];
        __syncwarp();
    }
    a.y[threadIdx.x] = total;
}
