/* The tape player: a persistent pool of threads that go through one array of entries together.
 *
 * The caller is worker 0. Between dependent entries stands a barrier; its last arriver decides for
 * all whether the rest is skipped (cancelled, or a row has left the finite numbers), so the workers
 * never part. A wait spins briefly, then yields, then sleeps: threads that spin on busy cores lose
 * most of their time, and a hypervisor takes the processor from who pauses for long (measured in a
 * virtual machine with other work, decode at two threads: 2,000 pauses and 50 yields 43 tokens/s,
 * 300 and 4 from 95 to 226).
 */
#ifndef POOL_H
#define POOL_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "muser.h"

enum { SPINS = 300, YIELDS = 4, MAX_THREADS = 256 };
enum { PLAYED, CANCELLED, FAULTED, FORKED, BUSY, CLOSED };
enum { STOPPED = 1, TURN = 2 };
enum { CANCEL = 1, CLOSE = 2 }; /* bits of `halt`; a cancel stays until it is forgotten */

struct pool;

struct seat {
    struct pool *pool;
    int32_t index;
};

/* Lies in memory of the caller, who keeps it until `muser_pool_close` has returned and no thread can
 * call anything here any more: what is closed is never freed under a player. */
struct pool {
    int32_t count;
    pid_t owner;
    uint8_t *scratch;
    int64_t scratch_bytes;             /* one worker's part */
    pthread_t threads[MAX_THREADS];
    struct seat seats[MAX_THREADS];
    const struct entry *entries;
    int32_t length;
    int32_t quit;
    int64_t *stamps;                   /* of a timed play; NULL otherwise */
    /* Lines that all read and hardly anyone writes, then one for each word that wanders. */
    _Alignas(64) _Atomic int32_t halt;
    _Atomic int32_t cut;               /* this play met a halt, even if it was forgotten meanwhile */
    _Atomic uint64_t fault;
    _Atomic int32_t sleepers;
    _Alignas(64) _Atomic uint32_t round;    /* plays begun */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t turn;     /* barriers passed, times TURN, and STOPPED */
    _Alignas(64) int32_t playing;
    int32_t closed;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_mutex_t stage;             /* guards `playing` and `closed` */
    pthread_cond_t empty;              /* a play has ended, or the pool is closed */
};

static inline void breathe(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* What `word` is when it is no longer `old`. */
static uint32_t await_change(struct pool *p, _Atomic uint32_t *word, uint32_t old) {
    uint32_t now;
    for (int i = 0; i < SPINS; i++) {
        if ((now = atomic_load_explicit(word, memory_order_acquire)) != old) return now;
        breathe();
    }
    for (int i = 0; i < YIELDS; i++) {
        if ((now = atomic_load_explicit(word, memory_order_acquire)) != old) return now;
        sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while ((now = atomic_load(word)) == old) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
    return now;
}

/* Either the sleeper sees the new word or the waker sees the sleeper: both write before they read, and
 * both write by a read-modify-write. A sequentially consistent store would do by the language, and
 * qemu 7.2 lets the load after an ARM one overtake it (258 of 300,000 tries; none with an exchange):
 * the waker then saw no sleeper, and all slept. On x86 both are the same instruction. */
static void announce(struct pool *p, _Atomic uint32_t *word, uint32_t now) {
    atomic_exchange(word, now);
    if (atomic_load(&p->sleepers) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* The last to arrive decides whether the rest is skipped, and says so in the word that lets the others
 * go: they need to fetch no second line. */
static int barrier(struct pool *p) {
    uint32_t turn = atomic_load_explicit(&p->turn, memory_order_relaxed);
    if (atomic_fetch_add(&p->arrived, 1) + 1 < (uint32_t)p->count)
        return await_change(p, &p->turn, turn) & STOPPED;
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    if (atomic_load(&p->halt)) atomic_store(&p->cut, 1);
    int stop = atomic_load(&p->cut) || atomic_load(&p->fault) != UINT64_MAX;
    announce(p, &p->turn, ((turn + TURN) & ~(uint32_t)STOPPED) | (stop ? STOPPED : 0));
    return stop;
}

#if defined(__x86_64__)
typedef uint32_t float_mode;
static float_mode enter_float_mode(void) {
    float_mode old = _mm_getcsr();
    _mm_setcsr(0x1f80); /* nearest even, subnormals kept, all exceptions masked */
    return old;
}
static void leave_float_mode(float_mode old) { _mm_setcsr(old); }
#elif defined(__aarch64__)
typedef uint64_t float_mode;
static float_mode enter_float_mode(void) {
    float_mode old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}
static void leave_float_mode(float_mode old) { __asm__ volatile("msr fpcr, %0" : : "r"(old)); }
#else
#error "the float modes of this processor are unknown"
#endif

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The weights of a token push all else out of the caches: what a later entry reads first is asked for
 * while this one works. Two entries ahead give a little more than one; code, asked for likewise, gave
 * nothing. */
INLINE void expect(const struct pool *p, int32_t i, int32_t index) {
    if (i + 4 < p->length) __builtin_prefetch(&p->entries[i + 4]);
    if (i + 2 >= p->length) return;
    const struct entry *e = &p->entries[i + 2];
    const char *args = (const char *)(e->args + (e->own ? index : 0));
    for (size_t at = 0; at < sizeof(struct args); at += 64) __builtin_prefetch(args + at);
}

/* `stamps`: begin and end of each entry on this worker, or NULL, which costs nothing. */
INLINE void walk(struct pool *p, int32_t index, int64_t *stamps) {
    struct worker w = {index, p->count, 0, 0, p->scratch + p->scratch_bytes * index, &p->fault};
    float_mode old = enter_float_mode();
    int stop = 0;
    for (int32_t i = 0; i < p->length; i++) {
        if (p->entries[i].wait && i > 0) {
            stop = barrier(p);
        }
        if (atomic_load_explicit(&p->halt, memory_order_relaxed)) {
            atomic_store(&p->cut, 1);
            stop = 1;
        }
        if (stop) continue;
        const struct entry *e = &p->entries[i];
        w.entry = (uint32_t)i;
        w.index = e->whole ? 0 : index;
        w.count = e->whole ? 1 : p->count;
        expect(p, i, index);
        if (stamps) stamps[2 * i] = nanoseconds();
        e->run(e->args + (e->own ? index : 0), &w);
        if (stamps) stamps[2 * i + 1] = nanoseconds();
    }
    barrier(p);
    leave_float_mode(old);
}

static void go(struct pool *p, int32_t index) {
    if (p->stamps) walk(p, index, p->stamps + (size_t)2 * p->length * index);
    else walk(p, index, NULL);
}

static void *live(void *argument) {
    const struct seat *seat = argument;
    struct pool *p = seat->pool;
    for (uint32_t seen = 0;; seen++) {
        await_change(p, &p->round, seen);
        if (p->quit) return NULL;
        go(p, seat->index);
    }
}

static void dismiss(struct pool *p, int32_t started) {
    p->quit = 1;
    announce(p, &p->round, atomic_load(&p->round) + 1);
    for (int32_t i = 1; i < started; i++) pthread_join(p->threads[i], NULL);
}

/* A pool of `count` workers, the caller among them, in `muser_constants`' POOL_BYTES at a multiple of
 * 64. 0, or the error number with which the system refuses a thread. */
EXPORT int32_t muser_pool_open(struct pool *p, int32_t count, uint8_t *scratch,
                               int64_t scratch_bytes) {
    if (count < 1 || count > MAX_THREADS) return EINVAL;
    memset(p, 0, sizeof *p);
    p->count = count;
    p->owner = getpid();
    p->scratch = scratch;
    p->scratch_bytes = scratch_bytes;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_mutex_init(&p->stage, NULL);
    pthread_cond_init(&p->empty, NULL);
    for (int32_t i = 1; i < count; i++) {
        p->seats[i] = (struct seat){p, i};
        int error = pthread_create(&p->threads[i], NULL, live, &p->seats[i]);
        if (error) {
            dismiss(p, i);
            return error;
        }
    }
    return 0;
}

EXPORT void muser_pool_cancel(struct pool *p) { atomic_fetch_or(&p->halt, CANCEL); }

EXPORT void muser_pool_resume(struct pool *p) { atomic_fetch_and(&p->halt, ~CANCEL); }

/* Stops a play, waits until its caller has left, and ends the threads. Later plays are answered
 * CLOSED. In a forked child the threads do not exist: nothing is joined there. */
EXPORT void muser_pool_close(struct pool *p) {
    if (p->owner != getpid()) return;
    atomic_fetch_or(&p->halt, CLOSE);
    pthread_mutex_lock(&p->stage);
    while (p->playing) pthread_cond_wait(&p->empty, &p->stage);
    if (!p->closed) dismiss(p, p->count);
    p->closed = 1;
    pthread_mutex_unlock(&p->stage);
}

/* PLAYED if this caller may play now. */
static int32_t enter(struct pool *p) {
    int32_t answer = PLAYED;
    pthread_mutex_lock(&p->stage);
    int32_t halt = atomic_load(&p->halt);
    if (halt & CLOSE) answer = CLOSED;
    else if (p->playing) answer = BUSY;
    else if (halt & CANCEL) answer = CANCELLED;
    else p->playing = 1;
    pthread_mutex_unlock(&p->stage);
    return answer;
}

static void leave(struct pool *p) {
    pthread_mutex_lock(&p->stage);
    p->playing = 0;
    pthread_cond_broadcast(&p->empty);
    pthread_mutex_unlock(&p->stage);
}

static int32_t play(struct pool *p, const struct entry *entries, int32_t length, int64_t *stamps,
                    uint64_t *fault) {
    if (p->owner != getpid()) return FORKED;
    int32_t refused = enter(p);
    if (refused != PLAYED) return refused;
    p->entries = entries;
    p->length = length;
    p->stamps = stamps;
    atomic_store(&p->cut, 0);
    atomic_store(&p->fault, UINT64_MAX);
    if (p->count > 1) announce(p, &p->round, atomic_load(&p->round) + 1);
    go(p, 0);
    *fault = atomic_load(&p->fault);
    int32_t cut = atomic_load(&p->cut);
    leave(p);
    /* A play that was cut leaves half-written rows behind, so its faults mean nothing. */
    if (cut) return CANCELLED;
    return *fault != UINT64_MAX ? FAULTED : PLAYED;
}

/* Plays the entries once. `fault` gets entry << 32 | row where FAULTED is returned. */
EXPORT int32_t muser_pool_play(struct pool *p, const struct entry *entries, int32_t length,
                               uint64_t *fault) {
    return play(p, entries, length, NULL, fault);
}

/* The same with the clock read around every entry: `stamps` [count][length][2], nanoseconds, written
 * in full where PLAYED is returned; `around` [2]: before the first worker was woken, after the last
 * barrier. */
EXPORT int32_t muser_pool_play_timed(struct pool *p, const struct entry *entries, int32_t length,
                                     int64_t *stamps, int64_t *around, uint64_t *fault) {
    around[0] = nanoseconds();
    int32_t outcome = play(p, entries, length, stamps, fault);
    around[1] = nanoseconds();
    return outcome;
}

#endif
