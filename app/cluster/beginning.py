"""The beginning of a pipeline: where its group goes on, or where it begins if it has committed nothing.

A group that has committed nothing may be that of a new pipeline; or of one that was renamed, and would write all that
it has written before once more. If the output topic was written to, nobody but the user knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.commit import OffsetFetchRequest

from app.config.settings import PipelineSettings, Settings
from app.kafka.admin import AdminClient
from app.kafka.clients import describe
from app.kafka.group_offsets import by_topic, committed_offsets, log_bounds
from app.kafka.group_queries import ListGroups
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError

__all__ = ["RESET", "Beginning", "find_beginning"]

RESET = "consumer.auto.offset.reset"

_PATIENCE_S = 5.0
_AT_ONCE = 50  # groups
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the group of a pipeline begins.

    Attributes:
        group: its id.
        reset: what the configuration says of a group that has committed nothing; None if it says nothing.
        known: whether the group has committed an offset.
        records: how many there are from there to the end; of a group that has committed nothing, all.
        partitions: how many it reads.
        written: whether the output topic was written to.
    """

    group: str
    reset: str | None
    known: bool
    records: int
    partitions: int
    written: bool

    def __str__(self) -> str:
        within = f"{self.records:,} record{'' if self.records == 1 else 's'} in {self.partitions:,} partition"
        within += "" if self.partitions == 1 else "s"
        if self.known:
            return f"group {self.group} goes on at its committed offsets: {within} are left"
        told = f"group {self.group} has committed nothing: "
        if self.reset == "none":
            return f"{told}the pipeline stops, as {RESET} is none"
        return f"{told}begins {'behind the last' if self.reset == 'latest' else 'at the first'} of {within}"

    @property
    def doubtful(self) -> bool:
        """True if records may be written again, and nobody has said that they are to be read."""
        return not self.known and self.reset is None and self.records > 0 and self.written


async def find_beginning(
    connection: AdminClient, settings: Settings, pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic
) -> str:
    """Says where the group of a pipeline begins; also if that cannot be found out.

    Raises:
        ConfigurationError: it has committed nothing, the output topic was written to, and the configuration does not
            say where to begin.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await _look(connection, pipeline, sources, sink)
    except (KafkaError, OSError, TimeoutError) as exc:
        reason = describe(exc) if isinstance(exc, KafkaError) else f"no answer in {_PATIENCE_S:.0f} s"
        return f"where group {pipeline.group_id} begins is not known: {reason}"
    if not found.doubtful:
        return str(found)
    in_use = {each.group_id for each in settings.pipelines}
    former: Sequence[str] | None = None
    with contextlib.suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            former = await _groups_of(connection, _places(sources), in_use)
    shared = any(each.output_topic == pipeline.output_topic for each in settings.pipelines if each is not pipeline)
    if shared and former is not None and not former:
        return str(found)  # the records of the output topic are those of the other pipelines
    raise ConfigurationError(RESET, _doubt(found, sink, former or ()))


def _doubt(found: Beginning, sink: Topic, former: Sequence[str]) -> str:
    more = f" and {len(former) - _MOST_NAMED:,} more" if len(former) > _MOST_NAMED else ""
    known = f"offsets of these topics are committed by {', '.join(former[:_MOST_NAMED])}{more}"
    return (
        f"is not set; {found}, and output topic {sink.name} was written to before, so records may be written a second "
        "time; if the pipeline was renamed, set group.id to its former group "
        f"({known if former else 'by default wideload- and the former name'}); if not, set {RESET} to "
        '"earliest" to read all records, or to "latest" to read only new ones'
    )


async def _look(
    connection: AdminClient, pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic
) -> Beginning:
    places, written = _places(sources), _places([sink])
    committed = await committed_offsets(connection, pipeline.group_id, places)
    bounds = await log_bounds(connection, [*places, *written])
    reset = pipeline.consumer[RESET]
    return Beginning(
        group=pipeline.group_id,
        reset=None if reset is None else str(reset),
        known=bool(committed),
        records=sum(max(0, bounds[each][1] - max(bounds[each][0], committed.get(each, 0))) for each in places),
        partitions=len(places),
        written=any(bounds[each][1] > 0 for each in written),
    )


def _places(topics: Sequence[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]


async def _groups_of(connection: AdminClient, places: Sequence[TopicPartition], but: Collection[str]) -> Sequence[str]:
    """The other groups that have committed offsets of these partitions, as far as the user may see them."""
    wanted = by_topic(places)

    async def has_committed(group: str, node: int) -> bool:
        response = await connection.send(OffsetFetchRequest(group, wanted), node)
        return any(offset >= 0 for _, partitions in response.topics for _, offset, *_ in partitions)

    found: list[str] = []
    for broker in (await connection.describe_cluster())["brokers"]:
        node = broker["node_id"]
        ids = [name for name, *_ in (await connection.send(ListGroups(), node)).groups if name not in but]
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            committed = await asyncio.gather(*(has_committed(each, node) for each in some))
            found += [each for each, has in zip(some, committed, strict=True) if has]
    return sorted(found)
