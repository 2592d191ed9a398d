"""A queue that knows the lowest offsets of what waits in it, without a look at each."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["BoundedQueue"]


T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """What waits, in order, with its first and last offsets in a partition."""

    def __init__(self) -> None:
        self._items: deque[tuple[Hashable, T, int, int]] = deque()
        # By partition: of the first offsets, and of the last ones, those that nothing behind them is below.
        self._lowest: dict[Hashable, tuple[deque[int], deque[int]]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for _, item, _, _ in self._items)

    @property
    def head(self) -> T:
        """What waits longest."""
        return self._items[0][1]

    def lowest(self, partition: Hashable) -> tuple[int, int] | None:
        """The lowest first and the lowest last offset of what waits in a partition."""
        found = self._lowest.get(partition)
        return None if found is None else (found[0][0], found[1][0])

    def append(self, partition: Hashable, item: T, first: int, last: int) -> None:
        """Adds one."""
        self._items.append((partition, item, first, last))
        for rising, offset in zip(self._lowest.setdefault(partition, (deque(), deque())), (first, last), strict=True):
            while rising and rising[-1] > offset:
                rising.pop()
            rising.append(offset)

    def replace_head(self, item: T) -> None:
        """Puts another one in the place of the head, with its partition and its offsets."""
        partition, _, first, last = self._items[0]
        self._items[0] = partition, item, first, last

    def drop_head(self) -> None:
        """Drops the head."""
        partition, _, *offsets = self._items.popleft()
        found = self._lowest[partition]
        for rising, offset in zip(found, offsets, strict=True):
            if rising[0] == offset:
                rising.popleft()
        if not found[0]:
            del self._lowest[partition]

    def forget(self, partition: Hashable) -> None:
        """Drops what waits in a partition."""
        if self._lowest.pop(partition, None) is not None:
            self._items = deque(each for each in self._items if each[0] != partition)
