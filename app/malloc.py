"""Memory of the C library: what large values have freed is kept for the next ones, not given back each time."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed"]

# Parameters of glibc's `mallopt`, from its malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MOST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more where pointers have 64 bits
_INT_MAX = 2**31 - 1


def keep_freed(most_bytes: int) -> bool:
    """Lets the process keep up to `most_bytes` of what it frees, for values up to 32 MiB.

    By default glibc gives the memory of values of some MiB back to the kernel as soon as they are gone. Then each page
    of the next value has to be cleared and mapped again, which is a fifth of the CPU that large values cost (`make
    bench`, chunks). What is kept was in use before, so the peak is no higher; it does not go down so soon. As each
    arena would keep as much, there is only one; threads that copy hold Python's lock anyway.

    To be called before the process has many threads. Whoever has set `MALLOC_…` or `GLIBC_TUNABLES` is left alone.

    Returns:
        False where nothing was changed: the C library is not glibc, or the environment says how it is to be.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    # Each of these alone would end glibc's own adjustment of both thresholds, and make it worse.
    return all(
        [
            mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD),
            mallopt(_M_TRIM_THRESHOLD, min(most_bytes, _INT_MAX)),
            mallopt(_M_ARENA_MAX, 1),
        ]
    )
