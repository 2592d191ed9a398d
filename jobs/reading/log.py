"""What the source reads: which topics, where their partitions begin and end now, and the records of a range."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aiokafka import TopicPartition

from app.config.settings import ClientSettings
from app.kafka.admin import AdminClient
from app.kafka.range_reader import RangeReader, opened
from app.kafka.source_batch import UnreadBatch
from app.kafka.spans import asked, listed, required, spans
from jobs.reading.messages import TopicRecord
from jobs.reading.ranges import Bounds, OffsetRange, Place
from jobs.records.problems import Problem
from transforms.errors import ConfigurationError, HeaderNameError
from transforms.record_format import check_names, name_bytes


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics are read.

    Attributes:
        option: which names them.
        names: of the topics, if there is no pattern.
        pattern: matches the whole names; topics that are created later count, too, but not those of Kafka.
        partitions: only these; None for all.
    """

    option: str
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[Place] | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Topics at a moment.

    Attributes:
        bounds: each partition; if only committed records are read, it ends at the first open transaction.
        ids: by topic, its id; see `app.kafka.topics.Identity`. Topics of old brokers are left out.
    """

    bounds: Mapping[Place, Bounds]
    ids: Mapping[str, str]


def look(client: ClientSettings, topics: Topics, *, committed: bool = True) -> Look:
    """The topics as they are now. Creates none.

    Raises:
        ConfigurationError: a topic or a partition is not there, or no broker answers.
        ClusterError: the cluster fails.
    """
    if topics.pattern is None:
        found = required(client, {topics.option: topics.names})
    else:
        wanted = topics.pattern.fullmatch
        found = {name: each for name, each in listed(client).items() if wanted(name) and not name.startswith("__")}
    bounds = {
        (name, number): Bounds(span.start, span.stable if committed else span.end)
        for name, numbers in spans(client, found).items()
        for number, span in numbers.items()
        if topics.partitions is None or (name, number) in topics.partitions
    }
    for name, number in sorted((topics.partitions or bounds.keys()) - bounds.keys()):
        raise ConfigurationError(topics.option, f"topic {name} has no partition {number}")
    return Look(bounds, {name: topic.id for name, topic in found.items() if topic.id is not None})


def offsets_at(client: ClientSettings, times: Mapping[Place, int]) -> dict[Place, int]:
    """By partition, the first offset whose record has this time, in milliseconds, or a later one; −1 if there is none.

    Raises:
        ConfigurationError: no broker answers.
        ClusterError: the cluster fails.
    """

    async def ask(connection: AdminClient) -> dict[Place, int]:
        found: dict[Place, int] = {}
        for when in {*times.values()}:
            found |= await connection.offsets([TopicPartition(*place) for place in times if times[place] == when], when)
        return found

    return asked(client, ask, "offsets cannot be looked up")


class Log:
    """The partition of a range, as `Messages` reads it. Its methods raise what those of `RangeReader` do."""

    def __init__(self, reader: RangeReader, range_: OffsetRange) -> None:
        self._reader = reader
        self._place = TopicPartition(range_.topic, range_.partition)

    def first(self) -> int:
        """The offset of the first record in the partition."""
        return self._reader.first(self._place)

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[TopicRecord]:
        """The records from offset `start` up to `end`; one that cannot be had as it is has a problem."""
        for batch in self._reader.batches(self._place, start, end, fail_on_loss=fail_on_loss):
            kind = batch.timestamp_type
            for record in opened(batch, end):
                headers, problem = record.headers, None
                if isinstance(record, UnreadBatch):
                    problem = Problem("value", "malformed", str(record.error))
                elif not all(name.isascii() for name, _ in headers):
                    try:
                        check_names(record)
                    except HeaderNameError as exc:
                        # As Java reads them: neither Arrow nor a producer can have such a name.
                        headers = [(name_bytes(name).decode(errors="replace"), content) for name, content in headers]
                        problem = Problem("value", "malformed", str(exc))
                yield TopicRecord(record.offset, record.timestamp, kind, record.key, record.value, headers, problem)
