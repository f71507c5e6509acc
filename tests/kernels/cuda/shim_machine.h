// The functions of machine.cuh and warpgroup.cuh on fibers. Inside shim.h.
INLINE float half_to_float(u32 h) { return shim::half_to_float(h & 0xffff); }
INLINE u32 float_to_half(float x) { return shim::float_to_half(x); }
INLINE int dot4_u8(u32 a, u32 b, int c) {
    u32 r = (u32)c;
    for (int i = 0; i < 32; i += 8) r += (a >> i & 255) * (u32)(int)(i8)(b >> i);
    return (int)r;
}
INLINE u32 float_to_half2(float low, float high) {
    return shim::float_to_half(high) << 16 | shim::float_to_half(low);
}
INLINE u32 fma_halves(u32 a, u32 b, u32 c) {
    float low = __builtin_fmaf(half_to_float(a), half_to_float(b), half_to_float(c));
    return float_to_half2(low, __builtin_fmaf(half_to_float(a >> 16), half_to_float(b >> 16), half_to_float(c >> 16)));
}
INLINE u32 signed_byte(u32 w, int i) { return (u32)(int)(i8)(w >> 8 * i); }
INLINE void previous_kernel_done() { shim::previous_kernel_done(); }
INLINE void leave_early() { shim::previous_kernel_done(); }
INLINE void next_kernel_may_start() {}
template <typename S>
INLINE void touch(const S&) {}

INLINE int uniform(int x) { return __shfl_sync(~0u, x, 0); }
INLINE u32 shared_address(const void* p) { return shim::address_of(p); }
INLINE u32 __cvta_generic_to_shared(const void* p) { return shim::address_of(p); }
INLINE void copy16(void* to, const void* from, int bytes = 16) { shim::copy_async(to, from, bytes); }
INLINE u32 unknown(u32 x) { return x; }
INLINE void copy_commit() { shim::copy_commit(); }
template <int N>
INLINE void copy_wait() {
    shim::copy_wait(N);
}

INLINE void hand_on(u32* to, float x) { *to = ~__float_as_uint(x); }
INLINE float taken(u32* from) {  // blocks run one after another
    u32 word = *from;
    if (word == 0) shim::fail("taken: no block before this one has handed it on");
    *from = 0;
    return __uint_as_float(~word);
}
INLINE void taken8(u32* from, float (&x)[8]) {
    for (int i = 0; i < 8; i++) x[i] = taken(from + i);
}
INLINE void flag_set(u32* flag) { *flag = 1; }
INLINE void flag_wait(u32* flag) {  // blocks run one after another
    if (*flag == 0) shim::fail("flag_wait: no block before this one has set it");
}

INLINE void load_pair_if(u32& a, u32& b, u32 address, bool wanted) {
    if (!wanted) return;
    const u32* from = (const u32*)shim::at(address, 8, 8, "load_pair_if");
    a = from[0], b = from[1];
}
INLINE void load_quad_if(u32 (&r)[4], u32 address, bool wanted) {
    if (!wanted) return;
    const u32* from = (const u32*)shim::at(address, 16, 16, "load_quad_if");
    for (int i = 0; i < 4; i++) r[i] = from[i];
}
INLINE void count_set(u32* count, u32 to) { *count = to; }
INLINE void count_add(u32* count, u32 more) { *count += more; }
INLINE void count_wait(const u32* count, u32 least) {
    while ((int)(*(const volatile u32*)count - least) < 0) shim::nap();
}

INLINE void barrier_init(u64* b, int count) { shim::barrier_init(b, count); }
INLINE void barrier_arrive(u64* b) { shim::barrier_arrive(b); }
INLINE void barrier_wait(u64* b, u32 phase) { shim::barrier_wait(b, phase); }
INLINE u64* barrier_at(u32 address) { return (u64*)shim::at(address, 8, 8, "a barrier"); }
INLINE void barrier_wait(u32 address, u32 phase) { shim::barrier_wait(barrier_at(address), phase); }
INLINE void copy_arrive(u64* b) { shim::copy_arrive(b); }
INLINE void copy_arrive(u32 address) { shim::copy_arrive(barrier_at(address)); }
INLINE u32 cycles() {  // time goes by wherever somebody asks
    static u32 now;
    shim::nap();
    return now += 100;
}
INLINE void will_read(const void* p) { (void)*(const volatile u8*)p; }

#ifdef HAS_BULK
INLINE bool elected() { return __ffs((int)shim::ballot(~0u, 1, "elected")) - 1 == (int)(threadIdx.x % 32); }
INLINE void barrier_fence() {}
INLINE void async_fence() {}
INLINE void barrier_expect(u64* b, u32 bytes) { shim::barrier_expect(b, bytes); }
INLINE void barrier_expect(u32 address, u32 bytes) { shim::barrier_expect(barrier_at(address), bytes); }
INLINE void bulk_copy(void* to, const void* from, u32 bytes, u64* b) { shim::bulk_copy(to, from, bytes, b); }
INLINE void bulk_store(void* to, const void* from, u32 bytes) {
    for (u32 i = 0; i < bytes; i++) ((u8*)to)[i] = ((const u8*)from)[i];
}
INLINE void bulk_store_wait() {}
INLINE void bulk_copy_once(void* to, const void* from, u32 bytes, u64* b) { shim::bulk_copy(to, from, bytes, b); }
INLINE void bulk_copy_once(u32 to, const void* from, u32 bytes, u32 address) {
    shim::bulk_copy(shim::at(to, bytes, 16, "bulk_copy"), from, bytes, barrier_at(address));
}
#endif

INLINE void load_matrix4(u32 (&r)[4], u32 address) { shim::load_matrix4(r, address, false); }
INLINE void load_matrix4_turned(u32 (&r)[4], u32 address) { shim::load_matrix4(r, address, true); }
INLINE void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { shim::mma_f16(c, a, b0, b1); }
INLINE void mma_s8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { shim::mma_8(c, a, b0, b1, true); }
INLINE void mma_s8_from(int start, int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    for (int i = 0; i < 4; i++) c[i] = start;
    shim::mma_8(c, a, b0, b1, true);
}
INLINE void mma_s8_16(int (&c)[4], u32 a0, u32 a1, u32 b) {
    u32 a[4] = {a0, a1, 0, 0};
    shim::mma_8(c, a, b, 0, true);
}
INLINE void mma_u8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { shim::mma_8(c, a, b0, b1, false); }

#ifdef HAS_WARPGROUPS
INLINE u64 descriptor(u32 address, u32 lead, u32 stride, u64 exchange) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 |
           exchange << 62;
}
INLINE u64 exchanged(u32 address) { return descriptor(address, 16, 1024, 1); }
INLINE void matrix_fence() {}
INLINE void matrix_commit() { shim::group_commit(); }
template <int N>
INLINE void matrix_wait() {
    shim::group_wait(N);
}
template <int N>
INLINE void registers_grow() {}
template <int N>
INLINE void registers_shrink() {}
INLINE void group_f16(float (&d)[64], u64 a, u64 b, int add) {
    shim::group_product({0, 128, 0, 1, add, {0, 0, 0, 0}, a, b, d});
}
INLINE void group_f16_first(float (&d)[64], const u32 (&a)[4], u64 b) {
    shim::group_product({0, 128, 0, 0, 0, {a[0], a[1], a[2], a[3]}, 0, b, d});
}
INLINE void group_f16_turned(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    shim::group_product({0, 64, 1, 0, add, {a0, a1, a2, a3}, 0, b, d});
}
INLINE void group_s8(int (&d)[64], const u32 (&a)[4], u64 b, int add) {
    shim::group_product({1, 128, 0, 0, add, {a[0], a[1], a[2], a[3]}, 0, b, d});
}
INLINE void group_u8(int (&d)[64], const u32 (&a)[4], u64 b, int add) {
    shim::group_product({2, 128, 0, 0, add, {a[0], a[1], a[2], a[3]}, 0, b, d});
}
#endif
