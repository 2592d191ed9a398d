from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from app.malloc import keep_freed

kept = {kept} and keep_freed(256 * 2**20)
bytes(8 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    values = [b"." * (8 * 2**20) for _ in range(4)]
    del values
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _run(*, kept: bool, **environ: str) -> tuple[bool, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(kept=kept)],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    said, faults = done.stdout.split()
    return said == "1", int(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc")
def test_keep_freed_saves_page_faults() -> None:
    """Large values reuse mapped memory that earlier values have freed."""
    _, faults = _run(kept=False)
    changed, fewer = _run(kept=True)
    assert changed
    assert fewer < faults / 3


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_keep_freed_leaves_the_environment_alone(name: str) -> None:
    """Settings of the allocator in the environment take precedence."""
    assert _run(kept=True, **{name: "4" if name != "GLIBC_TUNABLES" else "glibc.malloc.arena_max=4"})[0] is False
