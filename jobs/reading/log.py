"""What the source reads: which topics, where their partitions begin and end now, and the records of a range."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aiokafka import TopicPartition

from app.config.settings import ClientSettings
from app.kafka.admin import EARLIEST, LATEST, AdminClient
from app.kafka.range_reader import RangeReader, opened
from app.kafka.source_batch import UnreadBatch
from app.kafka.spans import asked
from app.kafka.topics import identities
from jobs.reading.messages import TopicRecord
from jobs.reading.ranges import Bounds, OffsetRange, Place
from jobs.records.problems import Problem
from transforms.errors import ConfigurationError, HeaderNameError
from transforms.record_format import check_names, name_bytes
from transforms.text import did_you_mean


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics are read.

    Attributes:
        option: which names them.
        names: of the topics, if there is no pattern.
        pattern: matches the whole names; topics that are created later count, too, but not Kafka's own.
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

    async def ask(connection: AdminClient) -> Look:
        names = topics.names
        if topics.pattern is not None:
            known = [each["topic"] for each in await connection.describe_topics() if not each["is_internal"]]
            names = tuple(name for name in sorted(known) if topics.pattern.fullmatch(name))
        found = await identities(connection.send, names)
        places = []
        for name in names:
            topic = found.get(name)
            if topic is not None:
                places += [TopicPartition(name, number) for number in range(topic.partitions)]
            elif name not in found and topics.pattern is None:
                reason = "is not described by the brokers; the user needs Describe, and Kafka must allow the name"
                raise ConfigurationError(topics.option, f"{name} {reason}")
            elif topics.pattern is None:
                near = did_you_mean(name, await connection.list_topics())
                reason = f"is not on the broker at {client.bootstrap_servers}; create it, or check its name{near}"
                raise ConfigurationError(topics.option, f"{name} {reason}")
        if topics.partitions is not None:
            if unknown := sorted(topics.partitions.difference(places)):
                raise ConfigurationError(topics.option, "topic {} has no partition {}".format(*unknown[0]))
            places = [place for place in places if place in topics.partitions]
        first = await connection.offsets(places, EARLIEST)
        end = await connection.offsets(places, LATEST, committed=committed)
        return Look(
            {place: Bounds(first[place], max(first[place], end[place])) for place in places},
            {name: topic.id for name, topic in found.items() if topic is not None and topic.id is not None},
        )

    return asked(client, ask, "topics cannot be looked up")


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
