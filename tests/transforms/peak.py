"""How much a piece of code allocates at most."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def allocated_at_most(size: int) -> Iterator[None]:
    """Fails if the block holds more bytes at once than this."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= size, f"{peak:,} bytes were allocated at once"
