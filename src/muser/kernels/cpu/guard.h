/* Last words of a process whose mapped weights lose their bytes: the file was shortened, or its disk
 * failed. The system answers a read there with SIGBUS, which nothing can repair; without a handler
 * the process ends without a word. Only who owns the process's signals may ask for this. */
#ifndef GUARD_H
#define GUARD_H

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "muser.h"

enum { MAX_GUARDED = 64 };

struct guarded {
    uintptr_t begin;
    _Atomic uintptr_t end; /* written last; 0: free */
    const char *words;     /* never given back: a handler may be speaking them */
    size_t length;
    int32_t status;
};

static struct guarded guarded[MAX_GUARDED];
static _Atomic int32_t guarded_count; /* entries that were ever taken, the first ones */
static atomic_flag spoken = ATOMIC_FLAG_INIT;
static struct sigaction unguarded; /* what stood there before */

/* Calls nothing but what POSIX allows in a signal handler. */
static void speak(const char *words, size_t length) {
    while (length) {
        ssize_t done = write(2, words, length);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;
        words += done;
        length -= (size_t)done;
    }
}

static void on_lost_bytes(int number, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    int32_t count = info->si_code > 0 ? atomic_load(&guarded_count) : 0; /* else another process sent it */
    for (int32_t i = 0; i < count; i++) {
        uintptr_t end = atomic_load(&guarded[i].end);
        if (at >= end || at < guarded[i].begin) continue;
        while (atomic_flag_test_and_set(&spoken)) pause(); /* another thread speaks, and ends all */
        speak(guarded[i].words, guarded[i].length);
        _exit(guarded[i].status);
    }
    /* Not ours: a fault comes again as soon as this returns, a signal that was sent is sent again. */
    sigaction(number, &unguarded, NULL);
    if (info->si_code <= 0) raise(number);
}

/* From now on a read in these `size` bytes that the system cannot serve writes `words` to standard
 * error and ends the process with `status`. The number of the entry for `muser_unguard`, or minus an
 * error number. Not for two threads at once. */
EXPORT int32_t muser_guard(const void *begin, int64_t size, const char *words, int64_t length,
                           int32_t status) {
    int32_t count = atomic_load(&guarded_count), i = 0;
    while (i < count && atomic_load(&guarded[i].end)) i++;
    if (i == MAX_GUARDED) return -ENOSPC;
    char *copy = malloc((size_t)length);
    if (!copy) return -ENOMEM;
    memcpy(copy, words, (size_t)length);
    guarded[i].begin = (uintptr_t)begin;
    guarded[i].words = copy;
    guarded[i].length = (size_t)length;
    guarded[i].status = status;
    atomic_store(&guarded[i].end, (uintptr_t)begin + (uintptr_t)size);
    if (i < count) return i;
    atomic_store(&guarded_count, count + 1);
    if (count) return i;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_lost_bytes;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &unguarded) ? -errno : i;
}

/* The bytes of entry `i` are no longer mapped: others may lie there. Not beside `muser_guard`. */
EXPORT void muser_unguard(int32_t i) { atomic_store(&guarded[i].end, 0); }

#endif
