"""Chunks in a Faust app: its agents get whole messages, and acknowledgements wait for incomplete ones.

Faust commits what its agents have acknowledged, and tracks each record before a schema sees it. So this holds one
additional acknowledgement for each record that no commit may pass: that of each chunk, and of the records behind it.
Faust's own gaps are not sufficient: its first commit of a partition ignores what is missing before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from faust.types import TP, AppT, EventT
from faust.types.core import HeadersArg
from faust.types.tuples import ConsumerMessage, Message

from app.chunks.discarded import OnDiscarded, hand_out
from app.chunks.inbox import Inbox
from app.chunks.keys import limits
from app.chunks.range_reader import RangeReader
from app.kafka.source_batch import ReadRecord
from app.serializers.faust_app import consumer_arguments, idle_seconds, keep_membership, outlive_crash
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Discarded
from transforms.read_range import ReadRange
from transforms.record import Header

_LOOK_S = 0.2  # how often it checks which events are done, and which messages have expired


@dataclass(slots=True)
class _Held:
    """A record of which the last acknowledgement is ours.

    Attributes:
        offset: of the record.
        begins: the offset that no commit may pass before the agents have finished the record.
        message: the record; None if no agent has it.
    """

    offset: int
    begins: int
    message: Message | None = None


@dataclass(slots=True)
class _Partition:
    """One partition, in one generation of the group, and until the application seeks back in it.

    Attributes:
        last: the last record that was taken; one that no agent gets is acknowledged.
        held: in the order of their offsets.
    """

    last: Message | None = None
    held: deque[_Held] = field(default_factory=deque)


class Chunks:
    """Reassembles the chunks of an app's topics. Belongs to the app's event loop.

    Args:
        app: the app.
        values: of the properties in `app.chunks.keys.CONSUMER_KEYS`.
        on_discarded: called with each message that cannot be reassembled. If it raises an error, the worker stops, and
            the next one calls it with the message again.

    Raises:
        ConfigurationError: one message may be larger than all pending messages together.
    """

    def __init__(self, app: AppT, values: Mapping[str, Any], on_discarded: OnDiscarded) -> None:
        self._app, self._on_discarded = app, on_discarded
        self._inbox = _Inbox(limits(values), values["chunk.lookback"])
        self._partitions: dict[TP, _Partition] = {}
        self._acting = asyncio.Lock()  # one at a time runs the actions of the inbox: a record, or the watch
        self._watching = False
        self._reader: RangeReader | None = None
        self._downloads_end_s = 0.0  # when the last download ended; infinite while one is under way
        app.on_partitions_revoked.connect(cast("Any", self._revoked))

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._inbox.stats()

    @contextmanager
    def downloading(self) -> Iterator[None]:
        """While the block runs, Faust does not read, so the time of incomplete messages stands still."""
        self._downloads_end_s = math.inf
        try:
            yield
        finally:
            self._downloads_end_s = time.monotonic()

    async def take(self, message: Message) -> bool:
        """Processes a record, in the order of offsets; a last chunk becomes the whole message.

        Returns:
            Whether agents get the record. If not, `skipped` is the event for Faust.
        """
        place, partition = message.tp, self._partitions.get(message.tp)
        last = None if partition is None else partition.last
        if last is message:  # Faust asks once for each agent
            return not message.acked
        if partition is None or last is None or not _follows(message, last):
            self._forget(place)
            self._inbox.begin(place, message.offset)
            partition = self._partitions[place] = _Partition()
        if message.headers and is_chunk(listed(message.headers)):
            async with self._acting:
                await self._take_chunk(partition, message)
        elif partition.held:
            _hold(partition, message, message.offset)
        partition.last = message
        return not message.acked

    def skipped(self, message: Message) -> EventT[Any]:
        """An event that no agent receives: Faust skips those of another generation of the group."""
        of_none = Message.from_message(message, message.tp)
        of_none.value, of_none.headers, of_none.acked = None, {}, True
        return self._app.create_event(None, None, {}, of_none)

    # --- one chunk ----------------------------------------------------------------------------------------------------

    def _forget(self, place: TP) -> None:
        """Forgets what is held of a partition, which is read again, here or elsewhere, from the commit."""
        former = self._partitions.pop(place, None)
        if former is not None:
            self._app.consumer.unacked.difference_update(each.message for each in former.held if each.message)
        self._inbox.clear(place)

    async def _revoked(self, _: AppT, revoked: Iterable[TP], **__: Any) -> None:
        for place in revoked:
            self._forget(place)

    async def _take_chunk(self, partition: _Partition, message: Message) -> None:
        if not self._watching:
            self._watching = True
            cast("Any", self._app).add_future(self._watch())  # it ends with the app
        last = partition.last
        if not partition.held and last is not None and not last.acked:
            # An agent still has an earlier record, and Faust's commits would pass it.
            _hold(partition, last, last.offset)
        self._inbox.put(message.tp, [message])
        self._inbox.head(message.tp)  # reassembles it
        await self._act()
        whole = self._inbox.head(message.tp)  # None, too, if a rebalance has taken the partition
        if whole is None or whole.first is None:
            message.acked = True
            partition.held.append(_Held(message.offset, message.offset))
        else:
            self._inbox.pop(message.tp)
            _hold(partition, message, whole.first)

    async def _act(self) -> None:
        """Passes discarded messages to the application, and re-reads those that exceeded the memory limit, in order."""
        while self._inbox.actions:
            action = self._inbox.actions[0]
            if isinstance(action, Discarded):
                await hand_out(self._inbox, action, self._on_discarded)
            else:
                await self._read_again(action)

    async def _read_again(self, range_: ReadRange) -> None:
        if self._reader is None:
            self._reader = RangeReader(consumer_arguments(self._app))
        task = self._reader.begin(range_)
        while not task.done():
            keep_membership(self._app)
            await asyncio.wait({task}, timeout=1)
        task.result()
        self._inbox.resolve(range_)

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Releases acknowledgements while some are held, and discards messages that have waited too long."""
        try:
            while True:
                since_s = time.monotonic()
                await asyncio.sleep(_LOOK_S)
                # Time spent on downloads, on messages that are re-read, or waiting for slow agents, is not time of
                # reading.
                read_s = max(0.0, time.monotonic() - since_s - idle_seconds(self._app))
                if self._downloads_end_s > since_s or not self._app.flow_control.is_active():
                    read_s = 0.0
                async with self._acting:
                    self._inbox.tick(read_s, [place for place, each in self._partitions.items() if each.held])
                    await self._act()
                    for place, partition in self._partitions.items():
                        self._release(place, partition)
                    if not any(each.held for each in self._partitions.values()):
                        return
        except Exception as exc:  # noqa: BLE001  # the worker stops with it
            outlive_crash(self._app)
            await self._app.crash(exc)
        finally:
            self._watching = False
            reader, self._reader = self._reader, None
            if reader is not None:
                await reader.stop()

    def _release(self, place: TP, partition: _Partition) -> None:
        """Acknowledges what is held back neither by an incomplete message nor by one that agents still have."""
        held, consumer = partition.held, self._app.consumer
        if not held or partition.last is None:
            return
        for each in held:
            if (message := each.message) is not None and message.refcount <= 1:
                # Before it revokes partitions, Faust waits for all records that agents have not finished.
                consumer.unacked.discard(message)
                message.acked, each.message = True, None
                if message.tracked:
                    self._app.sensors.on_message_out(place, each.offset, message)
        safe, _ = self._inbox.commit(place, partition.last.offset + 1)
        limit = min([safe, *(each.begins for each in held if each.message is not None)])
        while held and held[0].offset < limit:
            offset = held.popleft().offset
            consumer.ack(ConsumerMessage(*place, offset, 0.0, 0, None, None, None, None, tp=place))


class _Inbox(Inbox[Message]):
    """An inbox for one record after the other: Faust itself has the queue."""

    def headers(self, record: Message) -> list[Header]:
        return listed(record.headers)

    def logged(self, record: Message) -> ReadRecord:
        place, stamp_ms = (record.topic, record.partition, record.offset), int(record.timestamp * 1000)
        return ReadRecord(*place, stamp_ms, record.key, record.value, listed(record.headers))

    def whole(self, last: Message, message: Assembled) -> Message:
        last.value, last.headers = message.record.value, cast("HeadersArg", list(message.record.headers))
        return last


def _follows(message: Message, last: Message) -> bool:
    """Whether a record follows another in this generation of the group."""
    return message.offset > last.offset and message.generation_id == last.generation_id


def _hold(partition: _Partition, message: Message, begins: int) -> None:
    message.incref()
    partition.held.append(_Held(message.offset, begins, message))


def listed(headers: HeadersArg | None) -> list[Header]:
    """Headers as Faust has them, in either form."""
    if not headers:
        return []
    return list(cast("Any", headers.items() if isinstance(headers, Mapping) else headers))
