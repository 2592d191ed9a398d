"""Chunks in a Faust app: whole messages for its agents, and acknowledgements that wait for incomplete ones.

Faust commits behind what its agents have acknowledged, and each record is in its hands before a schema sees it. So this
holds one acknowledgement more for each record that no commit may pass: that of each chunk, and of the records behind
it. Faust's own gaps would not do: its first commit of a partition takes no account of what is missing before.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from aiokafka import TopicPartition
from faust.types import TP, AppT, EventT
from faust.types.core import HeadersArg
from faust.types.tuples import ConsumerMessage, Message

from app.chunks.keys import CONSUMER_KEYS, limits
from app.chunks.polled import Polled
from app.chunks.rereader import Again, Rereader
from app.config.client import LIMIT, coerced
from app.kafka.source_batch import ReadRecord
from app.serializers.faust_app import consumer_arguments, idle_seconds, outlive_crash
from stores.keys import read
from transforms.assembly import Assembled, Discarded, Reread
from transforms.chunk import is_chunk
from transforms.record import Header

__all__ = ["CHUNK_NAMES", "Chunks", "OnDiscarded", "listed"]

OnDiscarded = Callable[[Discarded], "Awaitable[None] | None"]

_LOOK_S = 0.2  # how often it looks which events are done, and which messages have expired

CHUNK_NAMES = frozenset(key.name for key in CONSUMER_KEYS) - {LIMIT.name}
"""The keys of `Chunks` in the configuration of a schema, which the serializers do not have."""


@dataclass(slots=True)
class _Held:
    """A record of which one acknowledgement is ours.

    Attributes:
        message: the record.
        first: the offset of the first chunk, if the record stands for a whole message; None if not.
        is_piece: whether no agent gets it.
        is_slim: whether `message` is a copy without its value.
    """

    message: Message
    first: int | None = None
    is_piece: bool = False
    is_slim: bool = False

    @property
    def is_done(self) -> bool:
        """Whether only our acknowledgement is missing."""
        return self.message.refcount <= 1

    @property
    def begins(self) -> int:
        """The offset that no commit may pass before the agents have done with it."""
        return self.message.offset if self.first is None else self.first

    def slim(self) -> None:
        """Keeps a copy without the value; the agents' own stays as it is, and may still be forwarded."""
        copy = ConsumerMessage.from_message(self.message, self.message.tp)
        copy.key = copy.value = None
        copy.headers, copy.tracked, copy.refcount = None, True, 1
        self.message, self.is_slim = copy, True


@dataclass(slots=True)
class _Partition:
    """One partition, in one generation of the group, and until the application goes back in it.

    Attributes:
        generation: the app's number of it.
        last: the last record that was taken. Faust asks once for each agent.
        is_piece: whether no agent gets that one.
        position: the offset behind it.
        held: in the order of their offsets.
    """

    generation: int | None
    last: Message | None = None
    is_piece: bool = False
    position: int = 0
    held: deque[_Held] = field(default_factory=deque)


class Chunks:
    """Puts the chunks of an app's topics together. Belongs to the app's event loop.

    Args:
        app: the app.
        config: with the keys of `app.chunks.keys.CONSUMER_KEYS`.
        on_discarded: called with each message that is not whole. If it raises, the worker stops, and the next one calls
            it with the message again.
        keep_membership: called while a message is read again, and Faust does not poll.

    Raises:
        ConfigurationError: a key's value is wrong.
    """

    def __init__(
        self,
        app: AppT,
        config: Mapping[str, object],
        on_discarded: OnDiscarded,
        keep_membership: Callable[[], None],
    ) -> None:
        values = read(CONSUMER_KEYS, coerced(CONSUMER_KEYS, config))
        self._app = app
        self._limits = limits(values)
        self._lookback = cast("int", values["chunk.lookback"])
        self._polled = Polled(self._limits, self._lookback)
        self._on_discarded = on_discarded
        self._keep_membership = keep_membership
        self._partitions: dict[TP, _Partition] = {}
        self._lock = asyncio.Lock()  # between a record that is taken, and the watch
        self._watching = False
        self._rereader: Rereader | None = None
        self._downloads = 0
        self._has_waited = False  # for a download, since the watch looked last
        app.on_partitions_revoked.connect(cast("Any", self._revoked))

    def stats(self) -> dict[str, int]:
        """The incomplete messages."""
        return self._polled.stats()

    @contextmanager
    def downloading(self) -> Iterator[None]:
        """While the block runs, Faust reads no further: the time of incomplete messages stands still."""
        self._downloads += 1
        self._has_waited = True
        try:
            yield
        finally:
            self._downloads -= 1

    async def take(self, message: Message) -> bool:
        """Takes a record, in the order of offsets; a last chunk becomes the whole message.

        Returns:
            Whether agents get the record. If not, `skipped` is the event for Faust.
        """
        partition = self._partitions.get(message.tp)
        if partition is not None and partition.last is message:
            return not partition.is_piece
        went_back = partition is not None and message.offset < partition.position
        if partition is None or went_back or partition.generation != message.generation_id:
            async with self._lock:
                partition = self._begin(message)
        if is_chunk(listed(message.headers)):
            async with self._lock:
                await self._take_chunk(partition, message)
        else:
            if partition.held:
                message.incref()
                partition.held.append(_Held(message))
            partition.is_piece = False
        partition.last, partition.position = message, message.offset + 1
        return not partition.is_piece

    def skipped(self, message: Message) -> EventT[Any]:
        """An event that no agent gets: Faust passes over those of another generation of the group."""
        of_none = Message.from_message(message, message.tp)
        of_none.value, of_none.headers, of_none.acked = None, {}, True
        return self._app.create_event(None, None, {}, of_none)

    # --- one chunk ----------------------------------------------------------------------------------------------------

    def _begin(self, message: Message) -> _Partition:
        """A partition whose first record this is, in this generation of the group."""
        self._forget(message.tp)
        self._polled.begin(message.tp, message.offset)
        begun = self._partitions[message.tp] = _Partition(message.generation_id)
        return begun

    def _forget(self, place: TP) -> None:
        """Forgets what is held of a partition. It comes again, here or elsewhere, from the commit on."""
        former = self._partitions.pop(place, None)
        if former is not None:
            self._app.consumer.unacked.difference_update(each.message for each in former.held)
        self._polled.clear(place)

    async def _revoked(self, _: AppT, revoked: Iterable[TP], **__: Any) -> None:
        for place in revoked:
            self._forget(place)

    async def _take_chunk(self, partition: _Partition, message: Message) -> None:
        if not self._watching:
            self._watching = True
            cast("Any", self._app).add_future(self._watch())  # it ends with the app
        last = partition.last
        if not partition.held and last is not None and not last.acked:
            # An agent still has a record in front, and Faust's commits would pass it.
            last.incref()
            partition.held.append(_Held(last))
        whole = self._polled.take(_record(message))
        again = self._polled.again
        if again is not None and again.partition == message.tp:  # else a rebalance has ended its call
            whole = await self._read_again(again)
        if whole is None:
            # Faust has counted one acknowledgement for each agent, and none of them gets it.
            message.tracked, message.refcount = True, 1
            partition.held.append(_Held(message, is_piece=True))
            message.value = None
        else:
            message.incref()
            partition.held.append(_Held(message, whole.id.first))
            message.value, message.headers = whole.record.value, cast("HeadersArg", list(whole.record.headers))
        partition.is_piece = whole is None
        await self._settle()

    async def _read_again(self, reread: Reread) -> Assembled | None:
        """Reads a message again that did not fit into memory; the message, or what is discarded joins the others."""
        if self._rereader is None:
            self._rereader = Rereader(consumer_arguments(self._app), self._limits, self._lookback)
        place = cast("TP", reread.partition)
        task = self._rereader.begin(Again(TopicPartition(*place), reread))
        while not task.done():
            self._keep_membership()
            await asyncio.wait({task}, timeout=1)
        found = task.result()
        if reread is not self._polled.again and not self._is_first(reread):
            return None  # a rebalance has taken the partition meanwhile
        self._polled.resolve(reread, found.outcome, found.beginning)
        return found.outcome if isinstance(found.outcome, Assembled) else None

    def _is_first(self, discarded: Discarded | Reread) -> bool:
        return bool(self._polled.discarded) and self._polled.discarded.head[1] is discarded

    async def _settle(self) -> None:
        """Gives what is discarded to the application, in order."""
        while self._polled.discarded:
            _, first = self._polled.discarded.head
            if isinstance(first, Reread):
                await self._read_again(first)
                continue
            done = self._on_discarded(first)
            if inspect.isawaitable(done):
                await done
            if self._is_first(first):
                self._polled.discarded.drop_head()

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Gives acknowledgements back while some are held, and discards messages that have waited too long."""
        try:
            while True:
                since_s = time.monotonic()
                await asyncio.sleep(_LOOK_S)
                # Neither is time of reading: what is spent on downloads and on messages that are read again, nor what
                # Faust waits for agents that are slow.
                read_s = max(0.0, time.monotonic() - since_s - idle_seconds(self._app))
                read_s = 0.0 if self._has_waited else read_s
                self._has_waited = self._downloads > 0
                async with self._lock:
                    self._polled.count(list(self._read()), read_s)
                    await self._settle()
                    for place, partition in self._partitions.items():
                        self._release(place, partition)
                    if not any(each.held for each in self._partitions.values()):
                        return
        except Exception as exc:  # noqa: BLE001  # the worker stops with it
            outlive_crash(self._app)
            await self._app.crash(exc)
        finally:
            self._watching = False
            rereader, self._rereader = self._rereader, None
            if rereader is not None:
                await rereader.stop()

    def _read(self) -> Iterator[TP]:
        """The partitions that Faust reads, and that have something to wait for."""
        if self._app.flow_control.is_active():
            yield from (place for place, partition in self._partitions.items() if partition.held)

    def _release(self, place: TP, partition: _Partition) -> None:
        """Gives back what no incomplete message, and none that agents still have, keeps."""
        held, consumer = partition.held, self._app.consumer
        if not held:
            return
        safe, _ = self._polled.safe(place, partition.position)
        limit = min([safe, *(each.begins for each in held if not each.is_piece and not each.is_done)])
        while held and held[0].message.offset < limit:
            each = held.popleft()
            if each.message.ack(consumer) and not each.is_piece:
                self._app.sensors.on_message_out(place, each.message.offset, each.message)
        for each in held:
            if each.is_done and not each.is_slim:
                # Faust waits, before it gives partitions away, for all records whose agents have not done with them.
                consumer.unacked.discard(each.message)
                each.slim()


def listed(headers: HeadersArg | None) -> list[Header]:
    """Headers as Faust has them, in either form."""
    if not headers:
        return []
    return list(cast("Any", headers.items() if isinstance(headers, Mapping) else headers))


def _record(message: Message) -> ReadRecord:
    stamp_ms = int(message.timestamp * 1000)
    place = message.topic, message.partition, message.offset
    return ReadRecord(*place, stamp_ms, message.key, message.value, listed(message.headers))
