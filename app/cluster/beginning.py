"""Where a pipeline starts: at the committed offsets of its group, or, if there are none, where the configuration says.

A group without committed offsets may belong to a new pipeline, or to one that was renamed and would write all of its
records again. If the output topic has records, only the user knows which.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetFetchRequest

from app.config.settings import PipelineSettings, Settings
from app.kafka.admin import AdminClient
from app.kafka.clients import describe
from app.kafka.queries import ListGroups
from app.kafka.structs import by_topic
from app.kafka.topics import Topic, identities
from transforms.errors import ConfigurationError

RESET = "consumer.auto.offset.reset"

_PATIENCE_S, _LEAST_PATIENCE_S = 5.0, 0.5
_OURS = "wideload-"  # the prefix of groups that the configuration does not name
_CONCURRENT = 50  # groups
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the group of a pipeline starts.

    Attributes:
        group: its id.
        reset: the `consumer.auto.offset.reset` of the configuration; None if it is not set.
        left: how many records are behind the committed offsets, and in how many partitions.
        fresh: how many are in partitions without a committed offset, and in how many.
        written: whether the output topic was written to.
    """

    group: str
    reset: str | None
    left: tuple[int, int]
    fresh: tuple[int, int]
    written: bool

    def __str__(self) -> str:
        known = f"{_counted(*self.left)} {'is' if self.left[0] == 1 else 'are'} left"
        known = f"group {self.group} resumes at its committed offsets: {known}"
        if not self.fresh[1]:
            return known
        if self.left[1]:
            return f"{known}; {_partitions(self.fresh[1])} without a committed offset: {self._begins}"
        return f"group {self.group} has committed nothing: {self._begins}"

    @property
    def _begins(self) -> str:
        if self.reset == "none":
            return f"the pipeline stops, because {RESET} is none"
        if not self.fresh[0]:
            return "there are no records yet"
        return f"starts {'after the last' if self.reset == 'latest' else 'at the first'} of {_counted(*self.fresh)}"

    @property
    def doubtful(self) -> bool:
        """True if records may be written again, and the configuration does not say where to start."""
        return not self.left[1] and self.reset is None and self.fresh[0] > 0 and self.written


def _counted(records: int, partitions: int) -> str:
    return f"{records:,} record{'' if records == 1 else 's'} in {_partitions(partitions)}"


def _partitions(count: int) -> str:
    return f"{count:,} partition{'' if count == 1 else 's'}"


class Beginnings:
    """Finds where the groups of pipelines start; for all of them together this takes some seconds at most.

    Args:
        settings: of the file.
    """

    # State that changes: `_left_s`, by each look.

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._left_s = _PATIENCE_S

    async def find(
        self, connection: AdminClient, pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic
    ) -> str:
        """Describes where the group of a pipeline starts, or why that is not known.

        Raises:
            ConfigurationError: it has committed nothing, the output topic was written to, and the configuration does
                not say where to start.
        """
        began_s, patience_s = time.monotonic(), max(_LEAST_PATIENCE_S, self._left_s)
        try:
            async with asyncio.timeout(patience_s + _LEAST_PATIENCE_S):
                found = await _look(connection, pipeline, sources, sink, patience_s)
        except (KafkaError, OSError, TimeoutError) as exc:
            reason = describe(exc) if isinstance(exc, KafkaError) else "no response in time"
            return f"where group {pipeline.group_id} starts is not known: {reason}"
        finally:
            self._left_s -= time.monotonic() - began_s
        if not found.doubtful:
            return str(found)
        former: Sequence[str] | None = None
        shared = False
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                former = await _groups_of(
                    connection, _places(sources), {each.group_id for each in self._settings.pipelines}
                )
                shared = not former and await self._is_written_by_others(connection, pipeline)
        if shared:
            return str(found)  # the records of the output topic are those of the other pipelines
        raise ConfigurationError(RESET, _doubt(found, sink, former or ()))

    async def _is_written_by_others(self, connection: AdminClient, pipeline: PipelineSettings) -> bool:
        """Whether another pipeline of the file writes the same output topic, and has committed offsets."""
        for other in self._settings.pipelines:
            if other is not pipeline and other.output_topic == pipeline.output_topic:
                found = await identities(connection.send, other.topics)
                counts = [(name, topic.partitions) for name, topic in found.items() if topic is not None]
                places = [TopicPartition(name, number) for name, count in counts for number in range(count)]
                if await connection.committed_offsets(other.group_id, places, _LEAST_PATIENCE_S):
                    return True
        return False


def _doubt(found: Beginning, sink: Topic, former: Sequence[str]) -> str:
    more = f" and {len(former) - _MOST_NAMED:,} more" if len(former) > _MOST_NAMED else ""
    known = f"groups with committed offsets of these topics: {', '.join(former[:_MOST_NAMED])}{more}"
    return (
        f"is not set; {found}, and output topic {sink.name} was written to before, so records may be written a second "
        "time; if the pipeline was renamed, set group.id to its former group "
        f"({known if former else 'by default wideload- and the former name'}); if not, or if its topics were recreated "
        f'or its offsets have expired, set {RESET} to "earliest" to read all records, or to "latest" to read only new '
        "ones"
    )


async def _look(
    connection: AdminClient, pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic, within_s: float
) -> Beginning:
    places, written = _places(sources), _places([sink])
    committed = await connection.committed_offsets(pipeline.group_id, places, within_s)
    bounds = await connection.log_bounds([*places, *written])
    reset = pipeline.consumer[RESET]

    def records(those: Sequence[TopicPartition]) -> tuple[int, int]:
        behind = (max(0, bounds[each][1] - max(bounds[each][0], committed.get(each, 0))) for each in those)
        return sum(behind), len(those)

    return Beginning(
        group=pipeline.group_id,
        reset=None if reset is None else str(reset),
        left=records([each for each in places if each in committed]),
        fresh=records([each for each in places if each not in committed]),
        written=any(bounds[each][1] > 0 for each in written),
    )


def _places(topics: Sequence[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]


async def _groups_of(connection: AdminClient, places: Sequence[TopicPartition], but: Collection[str]) -> Sequence[str]:
    """The other groups with committed offsets of these partitions, as far as the user is authorized to see them."""
    wanted = by_topic(places)

    async def has_committed(group: str, node: int) -> bool:
        response = await connection.send(OffsetFetchRequest(group, wanted), node)
        return any(offset >= 0 for _, partitions in response.topics for _, offset, *_ in partitions)

    found: list[str] = []
    for broker in (await connection.describe_cluster())["brokers"]:
        node = broker["node_id"]
        ids = [name for name, *_ in (await connection.send(ListGroups(), node)).groups if name not in but]
        for start in range(0, len(ids), _CONCURRENT):
            some = ids[start : start + _CONCURRENT]
            committed = await asyncio.gather(*(has_committed(each, node) for each in some))
            found += [each for each, has in zip(some, committed, strict=True) if has]
    return sorted(found, key=lambda group: (not group.startswith(_OURS), group))  # a few of them are named
