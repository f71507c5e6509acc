// What shim.cpp does for shim.h and shim_machine.h. Inside shim.h and shim.cpp.
#pragma once
namespace shim {
struct Index {
    u32 x, y, z;
};
extern Index thread, block, block_size, grid_size;
extern u8 dynamic[];

[[noreturn]] void fail(const char* format, ...);
void nap();  // of who polls

// Barriers of a block; count 0: all threads that have not ended.
void block_barrier(int name, int count, bool wait, const char* what);
int block_vote(int value, int mode);  // 0 or, 1 and, 2 count

// Collectives of the lanes in `mask`.
u32 present(u32 mask);  // those lanes of it that this block has
void warp_barrier(u32 mask);
u32 ballot(u32 mask, int value, const char* what);
u64 shuffle(u32 mask, int mode, u64 value, int by, int width);
u32 reduce(u32 mask, int mode, u32 value);

// Shared memory by 32-bit addresses: the launch's dynamic bytes first, then static variables.
u32 address_of(const void* p);
u8* at(u32 address, u32 bytes, u32 alignment, const char* what);

// Copies that land only where they are waited for.
void copy_async(void* to, const void* from, int bytes);
void copy_commit();
void copy_wait(int pending);

void barrier_init(u64* b, int count);
void barrier_expect(u64* b, u32 bytes);
void barrier_arrive(u64* b);
void barrier_wait(u64* b, u32 phase);
void copy_arrive(u64* b);
void bulk_copy(void* to, const void* from, u32 bytes, u64* b);

void previous_kernel_done();

// Matrix units of a warp.
float half_to_float(u32 h);
u32 float_to_half(float x);
void load_matrix4(u32* r, u32 address, bool turned);
void mma_f16(float* c, const u32* a, u32 b0, u32 b1);
void mma_8(int* c, const u32* a, u32 b0, u32 b1, bool is_signed);

// Matrix units of a warpgroup: done where they are waited for. `a_address`: A in shared memory.
struct GroupProduct {
    int kind;  // 0 f16, 1 s8·s8, 2 u8·s8
    int columns, turned, in_shared, add;
    u32 a[4];
    u64 a_descriptor, b_descriptor;
    void* d;
};
void group_product(const GroupProduct& product);
void group_commit();
void group_wait(int pending);
}  // namespace shim
