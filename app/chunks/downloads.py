"""The downloads of a blocking client: those of the next records are under way while it restores one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from app.chunks.allowance import PARALLEL
from app.chunks.inbox import Entry
from transforms.errors import SerializationError

R = TypeVar("R")
Restoring = Generator[Callable[[], Any], Callable[[], Any], R]
"""Restores a record: yields each call of a store, and is sent what gives the result of that call."""


class Downloads(Generic[R]):
    """Store calls run on a few threads; everything else on the thread of the caller.

    Args:
        size: the most bytes that a record downloads; None if it downloads nothing, or is a chunk.
        restoring: restores a record.
    """

    def __init__(self, size: Callable[[R], int | None], restoring: Callable[[R], Restoring[R]]) -> None:
        self._size, self._restoring = size, restoring
        self._threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix="wideload-store")

    def restore(self, entries: Iterable[Entry[R]], takes: Callable[[int], bool]) -> R | None:
        """Starts the downloads of the next entries, and returns the first one, restored.

        Args:
            entries: a record that downloads something, and those that will be delivered behind it.
            takes: whether one more download, of at most this many bytes, may start.

        Returns:
            None if the download of the first entry may not begin.

        Raises:
            SerializationError: the first entry cannot be restored; the next call tries again.
        """
        first: Entry[R] | None = None
        begun = 0
        for entry in entries:
            first = first or entry
            if entry.work is None and entry.error is None:
                size = self._size(entry.record)
                if size is None:
                    continue
                if not takes(size):
                    break
                self._begin(entry)
            begun += 1
            if begun == PARALLEL:
                break
        if first is None or first.work is None:
            return None
        work, first.work = first.work, None
        restored: R = work()
        return restored

    def close(self) -> None:
        """Waits for the downloads that are under way."""
        self._threads.shutdown(cancel_futures=True)

    def _begin(self, entry: Entry[R]) -> None:
        steps = self._restoring(entry.record)
        try:
            entry.work = partial(_finish, steps, self._threads.submit(next(steps)).result)
        except StopIteration as end:  # a deserializer before the store left nothing to download
            value: R = end.value
            entry.work = lambda: value
        except SerializationError as exc:
            entry.work = partial(_raise, exc)


def _finish(steps: Restoring[R], result: Callable[[], Any]) -> R:
    """The rest of the work; a second call of the store is made here."""
    try:
        while True:
            result = steps.send(result)
    except StopIteration as end:
        restored: R = end.value
        return restored


def _raise(error: SerializationError) -> Any:
    raise error
