"""The downloads of the next records in the inbox of an asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any, Generic, TypeVar

from app.chunks.allowance import PARALLEL
from app.chunks.inbox import Entry, Inbox, Place
from app.kafka.shielded import retrieve_exception

R = TypeVar("R")

_LOOK = 100  # how many records of a partition are considered


@dataclass(slots=True)
class Download:
    """The `work` of an entry.

    Attributes:
        future: returns the restored record.
        size: the most bytes that it downloads.
        ahead: whether it was begun when other records came first.
    """

    future: asyncio.Future[Any]
    size: int
    ahead: bool


class Prefetch(Generic[R]):
    """Starts downloads of an inbox, a few at a time, in the order in which the records are delivered.

    Args:
        inbox: has the records.
        size: the most bytes that a record downloads; None if it needs no download.
        restore: downloads one, and returns the restored record.
        max_bytes: how much may be downloaded and not yet delivered, unless one alone is larger.
    """

    def __init__(
        self, inbox: Inbox[R], size: Callable[[R], int | None], restore: Callable[[R], Awaitable[R]], max_bytes: int
    ) -> None:
        self._inbox, self._size, self._restore, self._max_bytes = inbox, size, restore, max_bytes

    def ready(self, entry: Entry[R]) -> bool:
        """Whether nothing has to be awaited before a record can be delivered, or refused.

        At the head of its queue, a download that failed ahead is forgotten, so that it is repeated.
        """
        download: Download | None = entry.work
        if download is None:
            return self._wanted(entry) is None
        if not download.future.done():
            return False
        if download.ahead and (download.future.cancelled() or download.future.exception() is not None):
            entry.work = None
            return False
        return True

    def begin(self, places: Collection[Place], most: int | None = None, parallel: int = PARALLEL) -> set[Any]:
        """Starts downloads of the next records of these partitions.

        Args:
            places: the partitions.
            most: of how many records of each; of those that are near by default.
            parallel: how many may be under way; one may always be.

        Returns:
            Those that are under way in these partitions.
        """
        begun = [
            (place, entry)
            for place in self._inbox.places
            for entry in islice(self._inbox.entries(place), _LOOK)
            if entry.work is not None
        ]
        held = sum(entry.work.size for _, entry in begun)
        running = {entry.work.future for place, entry in begun if place in places and not entry.work.future.done()}
        queues = [list(islice(self._inbox.entries(place), min(most or _LOOK, _LOOK))) for place in places]
        heads = {queue[0] for queue in queues if queue}
        free = all(entry.work is None for entry in heads)
        for entry in chain.from_iterable(zip_longest(*queues)):
            if entry is None or entry.work is not None or (size := self._wanted(entry)) is None:
                continue
            # One must begin, whatever others hold; otherwise nothing would ever be delivered.
            if not (free and entry in heads) and (len(running) >= parallel or (held and held + size > self._max_bytes)):
                break
            future = asyncio.ensure_future(self._restore(entry.record))  # continues if the call is cancelled
            future.add_done_callback(retrieve_exception)
            entry.work = Download(future, size, entry not in heads)
            running.add(future)
            held, free = held + size, False
        return running

    def _wanted(self, entry: Entry[R]) -> int | None:
        return None if self._inbox.is_piece(entry) else self._size(entry.record)
