"""A clock that can be set for one process and its children: a library before libc, and a file of seconds.

What reads the time of day asks libc, which asks us first; what measures durations is left alone.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void find(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *seen = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (seen != MAP_FAILED) shift = seen;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* As below; those who wait by the time since boot are known by the small numbers they give. */
int pthread_cond_timedwait(pthread_cond_t *held, pthread_mutex_t *lock, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec at = *until;
    /* Asked for by name alone, libc gives the one of twenty years ago, which takes another structure. */
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (shift && at.tv_sec > 1000000000) at.tv_sec -= *shift;
    return real(held, lock, &at);
}

/* The kernel's clock is not shifted, and this one is told when to wake up, not after how long. */
int sem_timedwait(sem_t *held, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec at = *until;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    if (shift) at.tv_sec -= *shift;
    return real(held, &at);
}
"""


class ShiftedClock:
    """Compiles the library; `environment` goes to the process whose clock is to be set."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        source, library, self._file = folder / "clock.c", folder / "clock.so", folder / "shift"
        source.write_text(SOURCE)
        self._file.write_bytes(struct.pack("=q", 0))
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def set(self, hours: float) -> None:
        """Set the clock so far from the real one, at once."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", round(hours * 3600)))
