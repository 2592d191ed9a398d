"""Topics that nobody has named, and whose records refer to payloads: the referencing topics that were forgotten.

Only the newest records of each partition are read, and for a limited time. A topic that is not found here may still
refer to a payload; one that is found does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from app.kafka.admin import EARLIEST, LATEST, AdminClient
from app.kafka.clients import ClusterError, admin, sharing_context, translated
from app.kafka.consumer_controls import ConsumerControls
from app.kafka.source_batch import SourceBatch, UnreadBatch
from app.kafka.spans import blocking, listed
from app.kafka.topic_reader import reading, topic_consumer
from app.kafka.topics import Operation
from app.payloads.sweep_settings import SweepSettings
from transforms.found_references import BEGINS, FoundReference, ReferenceFinder

_CLIENTS = 3  # while one waits for brokers, another one looks into its batches
_PARTITIONS = 250  # of one client at a time
_FIRST = 20  # the newest offsets, which come before all others: they mostly show whether a topic has references
_SILENCE_S = 15.0
_POLL_MS = 500
_WAIT_MS = 20  # at the end of a log; the fetch of older records waits behind the one that was sent ahead
_MOST_BYTES = 268_435_456  # of a batch before compression
_ALLOWED = "256 MiB, where other topics are searched"
_SHOWN = 10


@dataclass(slots=True)
class Place:
    """A record, and how many there are of its kind."""

    partition: int
    offset: int
    error: str | None = None
    records: int = 1


@dataclass(slots=True)
class Search:
    """The result.

    Attributes:
        found: the topics whose records refer to the payloads, each with one such record.
        unclear: by topic, the records that say that they are references and do not say where they lead, with the first.
        unread: the topics that were not searched, with the reason.
        searched: how many topics were searched, those with references too.
    """

    found: dict[str, Place] = field(default_factory=dict)
    unclear: dict[str, Place] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    searched: int = 0

    @property
    def refusals(self) -> list[str]:
        """Why it is not known what is live, in sentences; none if nothing was found and all was searched."""
        end = "specify each with --carrier, or with --ignore-topic if the payloads that it refers to may be deleted"
        places = [f"{name} (partition {at.partition} offset {at.offset})" for name, at in sorted(self.found.items())]
        unread = [f"{name} ({reason})" for name, reason in sorted(self.unread.items())]
        given = (
            ("records of topics that were not specified refer to these payloads", places),
            ("it is not known whether records of these topics refer to them", unread),
        )
        return [f"{what}: {_some(which)}; {end}" for what, which in given if which]

    @property
    def warnings(self) -> list[str]:
        """What was found that does not say where it leads, a sentence for each topic."""
        return [
            f"topic {name}, which was not specified, has {each.records:,} records that are marked as references "
            f"but do not contain a readable path, one of them in partition {each.partition} at offset "
            f"{each.offset}: {each.error}"
            for name, each in sorted(self.unclear.items())
            if name not in self.found
        ]


def search(settings: SweepSettings, root: str | None) -> Search:
    """Looks for references in the newest records of each topic that is neither read anyway nor ignored.

    `root` is the beginning of all paths in the store; None if a path does not show its topic.

    Raises:
        ConfigurationError: the cluster cannot be reached.
        ClusterError: the cluster does not answer.
    """
    search = _Searching(settings, root)
    topics = {}
    for name, identity in listed(settings.client).items():
        if (
            identity.internal
            or name in settings.read_topics
            or any(fnmatchcase(name, pattern) for pattern in settings.ignored)
        ):
            continue
        if identity.operations is None or Operation.READ in identity.operations:
            topics[name] = identity.partitions
        else:
            search.result.unread[name] = "may not be read"
    blocking(search.run(topics))
    search.result.searched = sum(name not in search.result.unread for name in topics)
    return search.result


class _Searching:
    """One search, on a separate event loop."""

    def __init__(self, settings: SweepSettings, root: str | None) -> None:
        self.result = Search()
        self._client = sharing_context(settings.client)
        self._settings = settings
        self._root = root
        self._finder = ReferenceFinder(root=root)  # topics of other formats are found by their headers too
        self._until_s = time.monotonic() + settings.search_time.total_seconds()

    async def run(self, topics: Mapping[str, int]) -> None:
        """Searches topics, given with their numbers of partitions."""
        waiting: list[dict[str, int]] = [{}]
        for name, partitions in topics.items():
            if waiting[-1] and sum(waiting[-1].values()) + partitions > _PARTITIONS:
                waiting.append({})
            waiting[-1][name] = partitions

        async def work() -> None:
            while waiting:
                await self._some(connection, waiting.pop(0))

        async with admin(self._client) as connection:
            await asyncio.gather(*(work() for _ in range(_CLIENTS)))

    async def _some(self, connection: AdminClient, topics: Mapping[str, int]) -> None:
        """Searches some topics with one client; if that fails, each half of them, down to the one that is the cause."""
        try:
            async with asyncio.timeout(self._until_s - time.monotonic()) as limit:
                await self._read(connection, topics)
        except (TimeoutError, KafkaError, ClusterError) as exc:
            names = [name for name in topics if name not in self.result.found]
            if limit.expired():
                self.result.unread |= dict.fromkeys(names, "the time limit was reached; raise --search-time")
            elif isinstance(exc, KafkaConnectionError | NodeNotReadyError):
                raise translated(exc, "other topics cannot be searched") from exc
            elif len(names) > 1:
                for half in (names[::2], names[1::2]):
                    for name in half:
                        self.result.unclear.pop(name, None)  # it is read again
                    await self._some(connection, {name: topics[name] for name in half})
            elif names and not isinstance(exc, UnknownTopicOrPartitionError):  # or it was deleted since
                refused = isinstance(exc, TopicAuthorizationFailedError) or getattr(exc, "forbidden", False)
                self.result.unread[names[0]] = "may not be read" if refused else f"cannot be read: {exc}"

    async def _read(self, connection: AdminClient, topics: Mapping[str, int]) -> None:
        places = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
        start, end = [await connection.offsets(places, which) for which in (EARLIEST, LATEST)]
        if not (places := [place for place in places if start[place] < end[place]]):
            return
        consumer = topic_consumer(self._client, isolation_level="read_uncommitted", fetch_max_wait_ms=_WAIT_MS)
        consumer.assign(places)
        async with reading(consumer, f"{places[0].topic} and others") as reader:
            high = end
            for newest in sorted({min(_FIRST, self._settings.search_records), self._settings.search_records}):
                low = {place: max(start[place], end[place] - newest) for place in places}
                await self._pass(reader.controls, {at: (low[at], high[at]) for at in places if low[at] < high[at]})
                high = low

    async def _pass(self, controls: ConsumerControls, left: dict[TopicPartition, tuple[int, int]]) -> None:
        """Reads these offsets of each partition; of a topic with a hit, no more."""
        consumer, heard = controls.consumer, time.monotonic()
        for place, (low, _) in left.items():
            consumer.seek(place, low)
        consumer.resume(*left)
        while left:
            polled = await consumer.getmany(timeout_ms=_POLL_MS)
            for place, batches in polled.items():
                for batch in batches:
                    if place in left and place.topic not in self.result.found:
                        self._look(batch, left[place][1])
                        await asyncio.sleep(0)  # the time may be over, and another client may have an answer
            for place, (_, high) in tuple(left.items()):
                if place.topic in self.result.found or (controls.position(place) or 0) >= high:
                    del left[place]
                    consumer.pause(place)
            if polled:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise KafkaTimeoutError(f"no record came for {_SILENCE_S:g} s")

    def _look(self, batch: SourceBatch, high: int) -> None:
        if batch.batch is not None and not self._finder.wants_any(batch.batch):
            return
        topic, partition = batch.partition
        for record in batch.opened(_MOST_BYTES, _ALLOWED):
            if isinstance(record, UnreadBatch):
                self._unclear(topic, Place(partition, record.first, str(record.error), record.count))
                continue
            if record.offset >= high:
                return
            for each in self._finder.find(record):
                leads = refers(self._settings, self._root, each)
                if leads:
                    self.result.found[topic] = Place(partition, record.offset)
                    return
                if leads is None:
                    self._unclear(topic, Place(partition, record.offset, each.error))

    def _unclear(self, topic: str, at: Place) -> None:
        self.result.unclear.setdefault(topic, replace(at, records=0)).records += at.records


def refers(settings: SweepSettings, root: str | None, each: FoundReference) -> bool | None:
    """Whether a reference leads to a payload that is looked for; None if it does not say where it leads."""
    if each.path is None:
        error = each.error or ""
        if not error.startswith(BEGINS):
            return None
        return any(error.startswith(f"{BEGINS}{root}{folder}/") for folder in settings.swept_topics)
    if each.path.startswith(tuple(settings.other_roots)):
        return False
    if root is None:
        return True
    # Whatever the root before the topic: it may be another name of this store. bakdata's payloads are one directory
    # deeper, in `values` and `keys`, which may be names of topics too.
    *_, above, folder, _ = ("", "", *each.path.split("/"))
    return folder in settings.swept_topics or (folder in ("values", "keys") and above in settings.swept_topics)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
