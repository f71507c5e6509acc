// Fibers, barriers, copies and matrix units behind shim.h. One OS thread; a launch walks through its
// thread blocks in order. A fiber runs until it waits; who runs next is the oldest that can, or, with
// a seed, any of them (odd) or one warp before another (even). Every wrong use ends the launch with one sentence.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#include "shim_calls.h"

extern "C" void shim_switch(void** from, void* to) __asm__("shim_switch");
#if defined(__x86_64__)
__asm__(
    ".text\n.globl shim_switch\nshim_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
constexpr int SAVED = 6, RETURN_AT = 6, FRAME = 8;  // words; after `ret` the stack is 8 below 16
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl shim_switch\nshim_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
    "stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
    "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
constexpr int SAVED = 20, RETURN_AT = 11, FRAME = 20;
#else
#error "the shim switches fibers on x86-64 and aarch64 only"
#endif

struct Entry {
    const char* name;
    void (*call)(const void*);
    u64 size;
};

namespace shim {
constexpr int MOST_THREADS = 1024, STACK = 256 << 10, SHARED = 232448, GUARD = 4096;
constexpr u8 GUARD_BYTE = 0xa7;
Index thread, block, block_size, grid_size;
alignas(1024) u8 dynamic[SHARED + GUARD];

enum State { READY, WAITING, ENDED };
typedef void (*Work)(void** arguments, u32 mask);

struct Copy {
    void* to;
    const void* from;
    int bytes;
};
struct Wait {  // for what: a format of two numbers after the name
    const char *format, *name;
    u32 first, second;
};
struct Fiber {
    void* sp;
    Index thread;
    int index, lane, warp;
    State state;
    Wait wait;
    const u64* barrier;      // where that is one, the mbarrier
    bool previous_done;
    bool naps;  // it polls: others go on before it
    int vote;
    std::deque<std::vector<Copy>> copies;  // groups; the last is open
    std::deque<std::vector<GroupProduct>> products;
};
struct Meeting {  // of lanes of one warp at one collective
    u32 mask, here;
    Work work;
    const char* what;
    void* arguments[32];
};
struct Named {
    int arrived, count;
    std::vector<int> waiting;
};
struct Bulk {  // one copy under way, or copies of one thread behind which it arrives
    u64* barrier;
    u8* to;
    const u8* from;
    u32 bytes;
    std::vector<Copy> copies;
};

static Fiber fibers[MOST_THREADS];
static u8* stacks;
static Fiber* me;
static void* scheduler;
static std::deque<int> ready;
static std::vector<Meeting> meetings[32];
static Named named[16];
static std::vector<Bulk> bulks;
static int threads, live, vote_result;
static u32 dynamic_bytes;
static u8 *statics, *statics_end;  // static __shared__ variables of the library
static u64 seed, inexact;
static std::string message;
static const Entry* entry;
static const void* argument;
static sigjmp_buf escape;

// --- fibers ---
static u32 chance() {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (u32)(seed >> 32);
}
static void fail_words(const char* format, va_list list) {
    char text[512];
    vsnprintf(text, sizeof text, format, list);
    char where[160];
    snprintf(where, sizeof where, " (block %u,%u,%u", block.x, block.y, block.z);
    message = std::string(text) + where;
    if (me) {
        snprintf(where, sizeof where, ", thread %u,%u,%u", me->thread.x, me->thread.y, me->thread.z);
        message += where;
    }
    message += ")";
}
void fail(const char* format, ...) {
    va_list list;
    va_start(list, format);
    fail_words(format, list);
    va_end(list);
    siglongjmp(escape, 1);
}
static void leave() { shim_switch(&me->sp, scheduler); }
static void wake(int index) {
    fibers[index].state = READY;
    fibers[index].barrier = nullptr;
    ready.push_back(index);
}
static void wait_for(const char* format, const char* name, u32 first, u32 second = 0) {
    me->wait = {format, name, first, second};
    me->state = WAITING;
    leave();
}
constexpr int MOST_IN_VAIN = 1 << 20;
static void yield() {
    wake(me->index);
    leave();
}
void nap() {
    me->naps = true;
    yield();
    me->naps = false;
}
static void maybe_yield() {  // with a seed, one that need not wait may still have to
    if (seed && (chance() & 1)) yield();
}
static void check_all();
static void fiber_main() {
    entry->call(argument);
    if (!me->previous_done) fail("%s: a thread ended without previous_kernel_done()", entry->name);
    me->state = ENDED;
    live--;
    check_all();
    leave();
    __builtin_trap();
}
static void begin(int i) {
    Fiber& f = fibers[i];
    u8* top = stacks + (size_t)(i + 1) * STACK;
    void** frame = (void**)(top - 64) - FRAME;
    memset(frame, 0, FRAME * 8 + 64);
    frame[RETURN_AT] = (void*)fiber_main;
    f.sp = frame;
    u32 x = block_size.x, y = block_size.y;
    f.thread = {(u32)i % x, (u32)i / x % y, (u32)i / x / y};
    f.index = i, f.lane = i % 32, f.warp = i / 32;
    f.previous_done = f.naps = false;
    f.copies.clear(), f.copies.emplace_back();
    f.products.clear(), f.products.emplace_back();
    wake(i);
}

// --- barriers of the block ---
static void open_barrier(Named& b) {
    for (int i : b.waiting) wake(i);
    b.waiting.clear();
    b.arrived = b.count = 0;
}
static void check_all() {  // those that have ended count no more where all are waited for
    Named& b = named[0];
    if (b.arrived && b.count == 0 && b.arrived == live) open_barrier(b);
}
void block_barrier(int name, int count, bool wait, const char* what) {
    if (name < 0 || name > 15) fail("%s: there is no barrier %d", what, name);
    if (count % 32 || count < 0 || count > threads) fail("%s: barrier %d of %d threads", what, name, count);
    if (name == 0 && count == threads) count = 0;
    Named& b = named[name];
    if (b.arrived && b.count != count) fail("%s: barrier %d is of %d threads, and of %d", what, name, b.count, count);
    b.count = count;
    b.arrived++;
    bool last = b.arrived == (count ? count : live);
    if (last) {
        open_barrier(b);
        if (wait) maybe_yield();
    } else if (wait) {
        b.waiting.push_back(me->index);
        wait_for("%s %d", what, name);
    }
}
int block_vote(int value, int mode) {
    me->vote = value != 0;
    Named& b = named[0];
    if (b.arrived + 1 == live) {
        int sum = me->vote;
        for (int i : b.waiting) sum += fibers[i].vote;
        vote_result = mode == 0 ? sum != 0 : mode == 1 ? sum == live : sum;
    }
    block_barrier(0, 0, true, "__syncthreads_vote");
    int result = vote_result;
    block_barrier(0, 0, true, "__syncthreads_vote");
    return result;
}

// --- collectives of a warp ---
u32 present(u32 mask) {
    int in_warp = threads - me->warp * 32;
    return in_warp >= 32 ? mask : mask & ((1u << in_warp) - 1);
}
static void meet(u32 mask, Work work, void* arguments, const char* what) {
    u32 bit = 1u << me->lane;
    mask = present(mask);
    if (!(mask & bit)) fail("%s: lane %d is not in its own mask %08x", what, me->lane, mask);
    std::vector<Meeting>& all = meetings[me->warp];
    size_t at = 0;
    for (; at < all.size(); at++) {
        Meeting& m = all[at];
        if (!(m.mask & mask)) continue;
        if (m.mask == mask && m.work == work) break;
        fail("divergence in warp %d: lanes %08x wait at %s (mask %08x), lane %d is at %s (mask %08x)",
             me->warp, m.here, m.what, m.mask, me->lane, what, mask);
    }
    if (at == all.size()) all.push_back({mask, 0, work, what, {}});
    Meeting& m = all[at];
    m.here |= bit;
    m.arguments[me->lane] = arguments;
    if (m.here != mask) {
        wait_for("%s (mask %08x)", what, mask);
        return;
    }
    Meeting done = m;
    all.erase(all.begin() + (long)at);
    done.work(done.arguments, mask);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && i != me->lane) wake(me->warp * 32 + i);
    maybe_yield();
}
static void no_work(void**, u32) {}
void warp_barrier(u32 mask) { meet(mask, no_work, nullptr, "__syncwarp"); }

struct Ballot {
    int value;
    u32 out;
};
static void do_ballot(void** a, u32 mask) {
    u32 all = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && ((Ballot*)a[i])->value) all |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ((Ballot*)a[i])->out = all;
}
u32 ballot(u32 mask, int value, const char* what) {
    Ballot b = {value, 0};
    meet(mask, do_ballot, &b, what);
    return b.out;
}

struct Shuffle {
    u64 value, out;
    int by, width;
};
template <int MODE>
static void do_shuffle(void** a, u32 mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        Shuffle& s = *(Shuffle*)a[i];
        int first = i & ~(s.width - 1), from = i;
        if (MODE == 0) from = first | (s.by & (s.width - 1));
        if (MODE == 1) from = i - s.by < first ? i : i - s.by;
        if (MODE == 2) from = i + s.by >= first + s.width ? i : i + s.by;
        if (MODE == 3) from = (i ^ s.by) >= first + s.width ? i : i ^ s.by;
        s.out = from >= 0 && from < 32 && mask >> from & 1 ? ((Shuffle*)a[from])->value : ~0ull;
    }
}
u64 shuffle(u32 mask, int mode, u64 value, int by, int width) {
    static const Work works[4] = {do_shuffle<0>, do_shuffle<1>, do_shuffle<2>, do_shuffle<3>};
    static const char* const names[4] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
    if (width < 1 || width > 32 || width & (width - 1)) fail("%s: width %d", names[mode], width);
    Shuffle s = {value, 0, by, width};
    meet(mask, works[mode], &s, names[mode]);
    return s.out;
}

static u32 reduced(int mode, u32 a, u32 b) {
    switch (mode) {
        case 0: return a > b ? a : b;
        case 1: return (int)a > (int)b ? a : b;
        case 2: return a < b ? a : b;
        case 3: return (int)a < (int)b ? a : b;
        case 4: return a + b;
        case 5: return a | b;
        case 6: return a & b;
        default: return a ^ b;
    }
}
template <int MODE>
static void do_reduce(void** a, u32 mask) {
    bool first = true;
    u32 all = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) all = first ? *(u32*)a[i] : reduced(MODE, all, *(u32*)a[i]), first = false;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) *(u32*)a[i] = all;
}
u32 reduce(u32 mask, int mode, u32 value) {
    static const Work works[8] = {do_reduce<0>, do_reduce<1>, do_reduce<2>, do_reduce<3>,
                                  do_reduce<4>, do_reduce<5>, do_reduce<6>, do_reduce<7>};
    meet(mask, works[mode], &value, "__reduce_sync");
    return value;
}

// --- shared memory ---
static u32 static_bytes() { return (u32)(statics_end - statics); }
static u8* static_base() { return (u8*)((uintptr_t)statics / 1024 * 1024); }  // address 0 modulo 1,024
static u32 static_at() { return (dynamic_bytes + 1023) / 1024 * 1024; }
u32 address_of(const void* p) {
    const u8* b = (const u8*)p;
    if (b >= dynamic && b <= dynamic + dynamic_bytes) return (u32)(b - dynamic);
    if (b >= statics && b <= statics_end)
        return static_at() + (u32)(b - static_base());
    fail("shared_address: not an address of shared memory");
}
u8* at(u32 address, u32 bytes, u32 alignment, const char* what) {
    if (address % alignment) fail("%s: shared address %#x is no multiple of %u", what, address, alignment);
    if ((u64)address + bytes <= dynamic_bytes) return dynamic + address;
    u8* p = static_base() + (address - static_at());
    if (address >= static_at() && p >= statics && p + bytes <= statics_end) return p;
    fail("%s: %u bytes at shared address %#x lie outside the block's %u", what, bytes, address, dynamic_bytes);
}
static void fill_shared() {
    memset(dynamic, 0xff, dynamic_bytes);
    memset(dynamic + dynamic_bytes, GUARD_BYTE, GUARD);
    if (static_bytes()) memset(statics, 0xff, static_bytes());
}
static void check_guard() {
    for (int i = 0; i < GUARD; i++)
        if (dynamic[dynamic_bytes + i] != GUARD_BYTE)
            fail("%s wrote byte %d beyond its %u bytes of dynamic shared memory", entry->name, i, dynamic_bytes);
}

// --- copies ---
void copy_async(void* to, const void* from, int bytes) {
    if (bytes != 0 && bytes != 16) fail("copy16: %d bytes, not 0 or 16", bytes);
    if ((uintptr_t)from % 16) fail("copy16: the source is no multiple of 16");
    at(address_of(to), 16, 16, "copy16");
    me->copies.back().push_back({to, from, bytes});
}
void copy_commit() { me->copies.emplace_back(); }
static void land(const std::vector<Copy>& copies) {
    for (const Copy& c : copies) {
        if (c.bytes) memcpy(c.to, c.from, 16);
        else memset(c.to, 0, 16);
    }
}
void copy_wait(int pending) {
    while ((int)me->copies.size() - 1 > pending) {
        land(me->copies.front());
        me->copies.pop_front();
    }
}

// An mbarrier: 8 bits of mark, phase, 11 expected, 11 still to arrive, 33 of bytes under way.
constexpr u64 MARK = 0xa5;
struct Words {
    u32 phase, expected, pending;
    i64 bytes;
};
static Words read(const u64* b, const char* what) {
    u64 w = *b;
    if ((uintptr_t)b % 8 || w >> 56 != MARK) fail("%s: no barrier was made at shared address %#x", what, address_of(b));
    return {(u32)(w >> 55 & 1), (u32)(w >> 44 & 2047), (u32)(w >> 33 & 2047), (i64)(w << 31) >> 31};
}
static void write(u64* b, Words w) {
    if (w.pending == 0 && w.bytes == 0) {
        w.phase ^= 1, w.pending = w.expected;
        for (int i = 0; i < threads; i++)
            if (fibers[i].state == WAITING && fibers[i].barrier == b) wake(i);
    }
    *b = MARK << 56 | (u64)w.phase << 55 | (u64)w.expected << 44 | (u64)w.pending << 33 |
         ((u64)w.bytes & 0x1ffffffffull);
}
void barrier_init(u64* b, int count) {
    at(address_of(b), 8, 8, "barrier_init");
    if (count < 1 || count > 2047) fail("barrier_init: %d arrivals", count);
    write(b, {0, (u32)count, (u32)count, 0});
}
static void arrive(u64* b, u32 bytes, const char* what) {
    Words w = read(b, what);
    if (w.pending == 0) fail("%s: more arrivals than the %u expected at shared address %#x", what, w.expected, address_of(b));
    w.bytes += bytes;
    w.pending--;
    write(b, w);
}
void barrier_expect(u64* b, u32 bytes) { arrive(b, bytes, "barrier_expect"); }
void barrier_arrive(u64* b) { arrive(b, 0, "barrier_arrive"); }
void barrier_wait(u64* b, u32 phase) {
    if (phase > 1) fail("barrier_wait: phase %u", phase);
    while (read(b, "barrier_wait").phase == phase) {
        me->barrier = b;
        wait_for("%s of shared address %#x, phase %u", "barrier_wait", address_of(b), phase);
    }
    maybe_yield();
}
void copy_arrive(u64* b) {
    read(b, "copy_arrive");
    std::vector<Copy> all;
    for (const std::vector<Copy>& group : me->copies) all.insert(all.end(), group.begin(), group.end());
    me->copies.assign(1, {});
    bulks.push_back({b, nullptr, nullptr, 0, all});
}
void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {
    if ((uintptr_t)from % 16 || bytes % 16 || !bytes) fail("bulk_copy: source and size are multiples of 16");
    read(b, "bulk_copy");
    bulks.push_back({b, at(address_of(to), bytes, 16, "bulk_copy"), (const u8*)from, bytes, {}});
}
static u32 exchange(u32 address) { return address ^ (address >> 7 & 7) << 4; }
static bool land_one() {
    if (bulks.empty()) return false;
    size_t i = seed ? chance() % bulks.size() : 0;
    Bulk k = bulks[i];
    bulks.erase(bulks.begin() + (long)i);
    if (!k.to) {
        land(k.copies);
        arrive(k.barrier, 0, "copy_arrive");
        return true;
    }
    memcpy(k.to, k.from, k.bytes);
    Words w = read(k.barrier, "bulk copy");
    w.bytes -= k.bytes;
    write(k.barrier, w);
    return true;
}
void previous_kernel_done() { me->previous_done = true; }

// --- halves ---
static float half_values[65536];
static void make_halves() {
    for (u32 h = 0; h < 65536; h++) {
        int e = (int)(h >> 10 & 31);
        float m = (float)(h & 1023), v = e == 0 ? ldexpf(m, -24) : ldexpf(m + 1024, e - 25);
        if (e == 31) v = h & 1023 ? NAN : INFINITY;
        half_values[h] = h >> 15 ? -v : v;
    }
}
float half_to_float(u32 h) { return half_values[h & 0xffff]; }
u32 float_to_half(float x) {
    if (x != x) return 0x7fff;
    u32 sign = std::signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);
    if (a >= 65520.0f) return sign | 0x7c00;
    int e;
    frexpf(a, &e);  // a = f·2^e, f in [0.5, 1)
    int step = a == 0 || e < -13 ? -24 : e - 11;
    u32 n = (u32)rintf(ldexpf(a, -step));
    return sign | (step == -24 ? n : ((u32)(step + 25) << 10) + n - 1024);
}

// --- matrix units; fragments as in the PTX ISA: g = lane / 4, t = lane % 4 ---
struct Address {
    u32 address;
    u32* r;
};
template <bool TURNED>
static void do_load_matrix(void** a, u32 mask) {
    if (mask != ~0u) fail("load_matrix4: all 32 lanes take part");
    for (int m = 0; m < 4; m++) {
        u16 rows[8][8];
        for (int i = 0; i < 8; i++)
            memcpy(rows[i], at(((Address*)a[8 * m + i])->address, 16, 16, "load_matrix4"), 16);
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, t = lane % 4;
            u32 low = TURNED ? rows[2 * t][g] : rows[g][2 * t], high = TURNED ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
            ((Address*)a[lane])->r[m] = high << 16 | low;
        }
    }
}
void load_matrix4(u32* r, u32 address, bool turned) {
    u32 out[4];
    Address a = {address, out};
    meet(~0u, turned ? do_load_matrix<true> : do_load_matrix<false>, &a, "load_matrix4");
    memcpy(r, out, sizeof out);
}

// The sum in a double; one that is not an f32 would depend on the order of the unit.
static float rounded(double sum) {
    float f = (float)sum;
    if ((double)f != sum && std::isfinite(sum)) inexact++;
    return f;
}
static float half_of(u32 pair, int i) { return half_values[pair >> 16 * i & 0xffff]; }
static int byte_of(u32 word, int i, bool is_signed) {
    u32 b = word >> 8 * i & 255;
    return is_signed ? (int)(i8)b : (int)b;
}
struct Product {
    void* c;
    const u32* a;
    u32 b[2];
};
// A[16][columns of a fragment] of a warp, from four registers a lane; `per` elements in a register.
template <class T, class Read>
static void spread_a(T* to, int per, int lane, const u32* a, Read read_one) {
    int g = lane / 4, t = lane % 4, width = per * 8;
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < per; i++)
            to[(g + 8 * (r & 1)) * width + per * t + (r >> 1) * per * 4 + i] = read_one(a[r], i);
}
// sums[16][N] += A[16][K] · B[K][N]; columns innermost, so that they share an instruction.
template <int N, int K, class T>
static void multiply(T* sums, const T* a, const T* b) {
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int n = 0; n < N; n++) sums[row * N + n] += a[row * K + k] * b[k * N + n];
}
static void do_mma_f16(void** p, u32 mask) {
    if (mask != ~0u) fail("mma_f16: all 32 lanes take part");
    double a[16 * 16], b[16 * 8], sums[16 * 8] = {0};
    for (int lane = 0; lane < 32; lane++) {
        Product& q = *(Product*)p[lane];
        int g = lane / 4, t = lane % 4;
        spread_a(a, 2, lane, q.a, half_of);
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 2; i++) b[(2 * t + 8 * r + i) * 8 + g] = half_of(q.b[r], i);
    }
    multiply<8, 16>(sums, a, b);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            float* c = (float*)((Product*)p[lane])->c + i;
            *c = rounded(*c + sums[(lane / 4 + 8 * (i >> 1)) * 8 + 2 * (lane % 4) + (i & 1)]);
        }
}
void mma_f16(float* c, const u32* a, u32 b0, u32 b1) {
    Product p = {c, a, {b0, b1}};
    meet(~0u, do_mma_f16, &p, "mma_f16");
}
template <bool SIGNED>
static void do_mma_8(void** p, u32 mask) {
    if (mask != ~0u) fail("mma_8: all 32 lanes take part");
    int a[16 * 32], b[32 * 8], sums[16 * 8] = {0};
    for (int lane = 0; lane < 32; lane++) {
        Product& q = *(Product*)p[lane];
        int g = lane / 4, t = lane % 4;
        spread_a(a, 4, lane, q.a, [](u32 w, int i) { return byte_of(w, i, SIGNED); });
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < 4; i++) b[(4 * t + 16 * r + i) * 8 + g] = byte_of(q.b[r], i, true);
    }
    multiply<8, 32>(sums, a, b);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((int*)((Product*)p[lane])->c)[i] += sums[(lane / 4 + 8 * (i >> 1)) * 8 + 2 * (lane % 4) + (i & 1)];
}
void mma_8(int* c, const u32* a, u32 b0, u32 b1, bool is_signed) {
    Product p = {c, a, {b0, b1}};
    if (is_signed) meet(~0u, do_mma_8<true>, &p, "mma_s8");
    else meet(~0u, do_mma_8<false>, &p, "mma_u8");
}

// Warpgroups: each warp does its own 16 rows of the 64 when it waits.
void group_product(const GroupProduct& product) { me->products.back().push_back(product); }
void group_commit() { me->products.emplace_back(); }

struct Matrix {  // a descriptor taken apart
    u32 start, lead, stride, exchanged;
};
static Matrix matrix_of(u64 d) {
    return {(u32)(d & 0x3fff) << 4, (u32)(d >> 16 & 0x3fff) << 4, (u32)(d >> 32 & 0x3fff) << 4, (u32)(d >> 62)};
}
// Address of byte k of row n, K contiguous (or, turned, of byte n of row k).
static u32 element_at(const Matrix& m, u32 n, u32 k, bool turned) {
    if (m.exchanged > 1) fail("a descriptor with an exchange that the shim does not have");
    if (turned) return exchange(m.start + k / 8 * m.stride + k % 8 * 128 + n);
    if (m.exchanged) return exchange(m.start + n / 8 * m.stride + n % 8 * 128 + k);
    return m.start + n / 8 * m.stride + k / 16 * m.lead + n % 8 * 16 + k % 16;
}
// Hands D's sums[16][N] of a warp to its lanes.
template <int N, class T, class D, class Round>
static void spread_d(GroupProduct* const* p, const T* sums, Round round) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < N / 2; i++) {
            D* d = (D*)p[lane]->d + i;
            T sum = sums[(lane / 4 + 8 * (i >> 1 & 1)) * N + i / 4 * 8 + 2 * (lane % 4) + (i & 1)];
            *d = round(p[0]->add ? *d + sum : sum);
        }
}
template <int N>
static void group_f16_rows(GroupProduct* const* p, int warp_row) {
    const GroupProduct& one = *p[0];
    double a[16 * 16], b[16 * N], sums[16 * N] = {0};
    Matrix am = matrix_of(one.a_descriptor), bm = matrix_of(one.b_descriptor);
    for (u32 n = 0; n < N; n++)
        for (u32 k = 0; k < 16; k++) {
            u32 where = one.turned ? element_at(bm, n * 2, k, true) : element_at(bm, n, k * 2, false);
            b[k * N + n] = half_values[*(u16*)at(where, 2, 2, "group_f16 (B)")];
        }
    for (u32 row = 0; row < 16; row++)
        for (u32 k = 0; k < 16 && one.in_shared; k++)
            a[row * 16 + k] = half_values[*(u16*)at(element_at(am, (u32)warp_row + row, k * 2, false), 2, 2, "group_f16 (A)")];
    for (int lane = 0; lane < 32 && !one.in_shared; lane++) spread_a(a, 2, lane, p[lane]->a, half_of);
    multiply<N, 16>(sums, a, b);
    spread_d<N, double, float>(p, sums, rounded);
}
template <int N>
static void group_8_rows(GroupProduct* const* p) {
    const GroupProduct& one = *p[0];
    int a[16 * 32], b[32 * N], sums[16 * N] = {0};
    Matrix bm = matrix_of(one.b_descriptor);
    for (u32 n = 0; n < N; n++)
        for (u32 k = 0; k < 32; k++) b[k * N + n] = (i8)*at(element_at(bm, n, k, false), 1, 1, "group_8 (B)");
    bool is_signed = one.kind == 1;
    for (int lane = 0; lane < 32; lane++)
        spread_a(a, 4, lane, p[lane]->a, [=](u32 w, int i) { return byte_of(w, i, is_signed); });
    multiply<N, 32>(sums, a, b);
    spread_d<N, int, int>(p, sums, [](int sum) { return sum; });
}
static void do_group_wait(void** a, u32 mask) {
    if (mask != ~0u) fail("matrix_wait: all 32 lanes take part");
    int pending = *(int*)a[0], warp = me->warp;
    Fiber* lanes = fibers + warp * 32;
    while ((int)lanes[0].products.size() - 1 > pending) {
        size_t count = lanes[0].products.front().size();
        for (int i = 0; i < 32; i++)
            if (lanes[i].products.front().size() != count) fail("the lanes of warp %d issued different products", warp);
        for (size_t j = 0; j < count; j++) {
            GroupProduct* p[32];
            for (int i = 0; i < 32; i++) p[i] = &lanes[i].products.front()[j];
            for (int i = 0; i < 32; i++)
                if (p[i]->b_descriptor != p[0]->b_descriptor || p[i]->kind != p[0]->kind || p[i]->add != p[0]->add)
                    fail("the lanes of warp %d issued different products", warp);
            if (p[0]->columns != (p[0]->turned ? 64 : 128)) fail("a product that the shim does not have");
            if (p[0]->kind) group_8_rows<128>(p);
            else if (p[0]->turned) group_f16_rows<64>(p, warp % 4 * 16);
            else group_f16_rows<128>(p, warp % 4 * 16);
        }
        for (int i = 0; i < 32; i++) lanes[i].products.pop_front();
    }
}
void group_wait(int pending) { meet(~0u, do_group_wait, &pending, "matrix_wait"); }

// --- a launch ---
static std::string waits_for(int i) {
    const Wait& w = fibers[i].wait;
    char text[100];
    snprintf(text, sizeof text, w.format, w.name, w.first, w.second);
    return text;
}
static void explain_deadlock() {
    std::string text = "deadlock: no thread can go on";
    for (int i = 0; i < threads;) {
        if (fibers[i].state == ENDED) {
            i++;
            continue;
        }
        int j = i;
        while (j + 1 < threads && fibers[j + 1].state != ENDED && waits_for(j + 1) == waits_for(i)) j++;
        char part[200];
        snprintf(part, sizeof part, "; threads %d to %d wait at %s", i, j, waits_for(i).c_str());
        if (text.size() < 380) text += part;
        i = j + 1;
    }
    if (live < threads) text += "; " + std::to_string(threads - live) + " have ended";
    fail("%s", text.c_str());
}
// Half of the seeds let one warp run ahead of another as far as it can; the ranks are drawn for each block.
static bool by_warps;
static u32 rank[32];
static bool is_before(int a, int b) {
    return fibers[a].naps != fibers[b].naps ? fibers[b].naps : rank[a / 32] < rank[b / 32];
}
static size_t next_by_warps() {
    size_t i = (size_t)(std::min_element(ready.begin(), ready.end(), is_before) - ready.begin());
    return fibers[ready[i]].naps ? chance() % ready.size() : i;  // all of them poll: each gets its turn
}
static void run_block() {
    for (u32& r : rank) r = chance();
    fill_shared();
    ready.clear(), bulks.clear();
    for (auto& m : meetings) m.clear();
    for (auto& b : named) b.arrived = b.count = 0, b.waiting.clear();
    live = threads;
    for (int i = 0; i < threads; i++) begin(i);
    int in_vain = 0;  // turns of those that poll, since another's
    while (live) {
        me = nullptr;
        bool polled = !ready.empty() && fibers[ready.front()].naps;
        if (!bulks.empty() && (polled || (seed && chance() % 8 == 0))) land_one();
        if (ready.empty()) {
            if (!land_one()) explain_deadlock();
            continue;
        }
        if (by_warps) std::swap(ready.front(), ready[next_by_warps()]);
        else if (seed) std::swap(ready.front(), ready[chance() % ready.size()]);
        in_vain = fibers[ready.front()].naps ? in_vain + 1 : 0;
        if (in_vain > MOST_IN_VAIN) fail("deadlock: all threads that go on poll for what nobody writes");
        me = &fibers[ready.front()];
        ready.pop_front();
        thread = me->thread;
        shim_switch(&scheduler, me->sp);
    }
    me = nullptr;
    if (!bulks.empty()) fail("%zu bulk copies were under way when the last thread ended", bulks.size());
    check_guard();
}

static void* fault_at;
static void* fault_pc;
static void on_signal(int number, siginfo_t* info, void* context) {
    fault_at = info->si_addr;
#if defined(__x86_64__) && defined(__linux__)
    fault_pc = (void*)((ucontext_t*)context)->uc_mcontext.gregs[16];
#elif defined(__aarch64__) && defined(__linux__)
    fault_pc = (void*)((ucontext_t*)context)->uc_mcontext.pc;
#endif
    siglongjmp(escape, number + 1);
}
static void say_signal(int number) {
    char text[200];
    const u8* p = (const u8*)fault_at;
    bool in_stack = p >= stacks && p < stacks + (size_t)MOST_THREADS * STACK;
    const char* what = number == SIGILL || number == SIGTRAP ? "a misaligned access or an index out of bounds"
                       : in_stack                            ? "a thread needs more stack than it has"
                                                             : "an address that is nobody's";
    snprintf(text, sizeof text, "%s: %s, accessing %p at pc %p (block %u,%u,%u, thread %u,%u,%u)", entry->name, what,
             fault_at, fault_pc, block.x, block.y, block.z, thread.x, thread.y, thread.z);
    message = text;
}
static void make_stacks() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    stacks = (u8*)mmap(nullptr, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    for (int i = 0; i < MOST_THREADS; i++) mprotect(stacks + (size_t)i * STACK, 16384, PROT_NONE);
    make_halves();
}
static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};

static void run_grid() {
    Index& b = block;
    for (b.z = 0; b.z < grid_size.z; b.z++)
        for (b.y = 0; b.y < grid_size.y; b.y++)
            for (b.x = 0; b.x < grid_size.x; b.x++) run_block();
}
}  // namespace shim

// Returns 0, or 1 with a sentence in `said`. `sums`: how many matrix sums had no f32 so far.
extern "C" int shim_launch(const Entry* kernel, u8* const* bounds, const u32* grid, const u32* threads,
                           const void* argument, u32 shared, u64 seed, u64* sums, void** pc, char* said, u64 room) {
    using namespace shim;
    static u8 alternate[65536];
    if (!stacks) make_stacks();
    entry = kernel;
    statics = bounds[0], statics_end = bounds[1];
    shim::argument = argument;
    grid_size = {grid[0], grid[1], grid[2]};
    block_size = {threads[0], threads[1], threads[2]};
    shim::threads = (int)(threads[0] * threads[1] * threads[2]);
    dynamic_bytes = shared;
    shim::seed = seed ? seed * 0x9e3779b97f4a7c15ull | 1 : 0;
    by_warps = seed && seed % 2 == 0;
    inexact = 0;
    message.clear();
    block = {0, 0, 0};
    fault_pc = nullptr;
    me = nullptr;
    stack_t mine = {}, before = {};
    mine.ss_sp = alternate, mine.ss_size = sizeof alternate;
    struct sigaction action = {}, old[5];
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaltstack(&mine, &before);
    for (int i = 0; i < 5; i++) sigaction(SIGNALS[i], &action, &old[i]);
    volatile int failed = 0;
    int number = sigsetjmp(escape, 1);
    if (number > 1) say_signal(number - 1);
    if (number) failed = 1;
    else if (shared > SHARED) failed = 1, message = "more than 232,448 bytes of shared memory";
    else if (!grid[0] || !grid[1] || !grid[2]) failed = 1, message = "a grid of no blocks";
    else if (grid[1] > 65535 || grid[2] > 65535) failed = 1, message = "more than 65,535 blocks in y or z";
    else if (shim::threads < 1 || shim::threads > MOST_THREADS) failed = 1, message = "not 1 to 1,024 threads";
    else run_grid();
    for (int i = 0; i < 5; i++) sigaction(SIGNALS[i], &old[i], nullptr);
    sigaltstack(&before, nullptr);
    snprintf(said, room, "%s", message.c_str());
    *sums = inexact;
    *pc = fault_pc;
    return failed;
}
