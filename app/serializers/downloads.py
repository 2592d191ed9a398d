"""Downloads that outlive the call that began them, so that a call with a short time-out gets on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Downloads"]

Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Download:
    record: Any
    size: int
    task: asyncio.Task[Any]

    @property
    def failed(self) -> bool:
        """Known to have failed, so that the next reader is to try again."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class Downloads:
    """Records that are being restored, by their place: a record that is read again finds its download begun.

    Args:
        restore: gives the record of the application for one of Kafka.
        max_bytes: the most bytes that are kept for calls to come, beside those of the call that is under way.
    """

    def __init__(self, restore: Callable[[Any], Awaitable[Any]], max_bytes: int) -> None:
        self._restore = restore
        self._max_bytes = max_bytes
        self._begun: dict[Place, _Download] = {}

    def has(self, record: Any) -> bool:
        """Whether this record's download is begun, or done."""
        found = self._begun.get(_place(record))
        return found is not None and found.record == record

    def begin(self, record: Any, size: int) -> asyncio.Task[Any]:
        """The download of a record, begun now if it is not yet.

        Args:
            record: as Kafka has it.
            size: the most bytes that it is going to give.
        """
        if not self.has(record):
            self._begun[_place(record)] = _Download(record, size, asyncio.create_task(self._run(record)))
        task = self._begun[_place(record)].task
        task.add_done_callback(_retrieve)
        return task

    def forget(self, record: Any) -> None:
        """Of a record that is delivered, or failed."""
        self._begun.pop(_place(record), None)

    def trim(self, is_to_come: Callable[[str, int, int], bool]) -> None:
        """At the end of a call, of what it did not deliver: keeps the newest, as `max_bytes` allows, at least one.

        Args:
            is_to_come: whether the record at topic, partition and offset is still going to be read.
        """
        kept_bytes = 0
        for place, download in reversed(list(self._begun.items())):
            fits = not kept_bytes or kept_bytes + download.size <= self._max_bytes
            if fits and is_to_come(*place) and not download.failed:
                kept_bytes += download.size
            else:
                # Not cancelled: a thread goes on all the same, and another call may wait for it.
                del self._begun[place]

    def clear(self) -> None:
        """Lets go of all."""
        for download in self._begun.values():
            download.task.cancel()
        self._begun.clear()

    async def _run(self, record: Any) -> Any:
        return await self._restore(record)


def _place(record: Any) -> Place:
    return record.topic, record.partition, record.offset


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # that of a record which nobody asks for any more is no news
