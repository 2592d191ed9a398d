"""Work of one task on several threads, with results in order and a limit to the bytes that are held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_MOST_WAITING = 1_000  # items behind one whose work takes long

Item = TypeVar("Item")
Task = tuple[int, Item, Callable[[Item], Item] | None]
"""The bytes that an item holds until it is given out, the item, and its work; None for no work."""


class Window:
    """Runs the work of items.

    Args:
        threads: how many of them.
        max_bytes: the most bytes that all items hold, or one item if that alone holds more.
    """

    def __init__(self, threads: int, max_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="wideload-store")
        self._max_bytes = max_bytes

    def close(self) -> None:
        """Waits for the work that is under way."""
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, tasks: Iterable[Task[Item]]) -> Iterator[Item]:
        """Every item after its work, in the order of `tasks`. Work continues while the caller is busy.

        Raises:
            Exception: what the work of an item raised, when it is the item's turn.
        """
        waiting: deque[tuple[int, Item | Future[Item]]] = deque()
        held = 0
        for size, item, work in tasks:
            while waiting and (held + size > self._max_bytes or len(waiting) >= _MOST_WAITING):
                held -= waiting[0][0]
                yield _result(waiting.popleft()[1])  # without a name, so that nothing here keeps it
            if work is None and not waiting:
                yield item
                continue
            waiting.append((size, item if work is None else self._pool.submit(work, item)))
            held += size
        while waiting:
            yield _result(waiting.popleft()[1])


def _result(found: Item | Future[Item]) -> Item:
    return found.result() if isinstance(found, Future) else found
