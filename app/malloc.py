"""The memory allocator of the C library: freed memory of large values is kept for the next values."""

from __future__ import annotations

import ctypes
import os

# Parameters of glibc's `mallopt`, from its malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MOST_MMAP_THRESHOLD = 32 * 2**20  # the maximum of glibc on 64-bit machines
_INT_MAX = 2**31 - 1


def keep_freed(most_bytes: int) -> bool:
    """Lets the process keep up to `most_bytes` of freed memory, for values up to 32 MiB.

    By default glibc returns the memory of a value of some MiB to the kernel at each free. It then clears and maps
    each page again for the next value, which takes a fifth of the CPU time of large values (`make bench`, chunks). The
    peak of memory stays the same, but memory is returned later. Each arena would keep `most_bytes`, so there is only
    one arena; threads that copy hold Python's lock anyway.

    Call it before the process has many threads. If `MALLOC_…` or `GLIBC_TUNABLES` is set, nothing changes.

    Returns:
        False if nothing was changed: the C library is not glibc, or the environment has settings for it.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    # All three: each one turns off glibc's own adjustment of both thresholds, and alone makes performance worse.
    return all(
        [
            mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD),
            mallopt(_M_TRIM_THRESHOLD, min(most_bytes, _INT_MAX)),
            mallopt(_M_ARENA_MAX, 1),
        ]
    )
