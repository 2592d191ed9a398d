"""Work on several threads at once, with results in order and a limit to the bytes that are held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Task", "in_order"]

_MOST_WAITING = 1_000  # items behind one whose work takes long

Item = TypeVar("Item")
Task = tuple[int, Item, Callable[[Item], Item] | None]
"""The bytes that an item holds until it is given out, the item, and its work; None for no work."""


def in_order(tasks: Iterable[Task[Item]], pool: ThreadPoolExecutor, max_bytes: int) -> Iterator[Item]:
    """Every item after its work, in the order of `tasks`. Work goes on while the caller is busy.

    Args:
        tasks: the items, each with its work.
        pool: the threads for the work.
        max_bytes: the most bytes that all items hold, or one item if that alone holds more.

    Raises:
        Exception: what the work of an item raised, when it is the item's turn.
    """
    waiting: deque[tuple[int, Item | Future[Item]]] = deque()
    held = 0
    for size, item, work in tasks:
        while waiting and (held + size > max_bytes or len(waiting) >= _MOST_WAITING):
            held -= waiting[0][0]
            yield _result(waiting.popleft()[1])  # without a name, so that nothing here keeps it
        if work is None and not waiting:
            yield item
            continue
        waiting.append((size, item if work is None else pool.submit(work, item)))
        held += size
    while waiting:
        yield _result(waiting.popleft()[1])


def _result(found: Item | Future[Item]) -> Item:
    return found.result() if isinstance(found, Future) else found
