"""The topics that a file names, and the partitions and limits with which missing ones are created."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.cluster.control_topic import CONTROL_CONFIGS, CONTROL_KEY, control_replicas
from app.config.settings import PipelineSettings
from app.kafka.topics import MAX_MESSAGE_BYTES, Topic
from transforms.retention import FOREVER

BROKERS_DEFAULT = -1
"""A number of partitions or replicas that the brokers choose (KIP-464)."""

_KAFKAS_LIMIT = 1_048_588  # Kafka's own default of max.message.bytes
# Brokers cut the connection of a longer request: `socket.request.max.bytes`, 104,857,600 by default.
_MOST_BYTES = 104_000_000
_ROOM_BYTES = 65_536  # for key, headers and batch overhead of a value


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic that the file names.

    Attributes:
        name: of the topic.
        key: the property that names it first.
        uses: how pipelines use it, as text: `source of orders-offload`.
        found: the existing topic; None if it is missing.
        partitions: how many it gets if it is missing.
        replicas: the replication factor it gets.
        configs: the properties it gets; for all others, the brokers' defaults apply.
    """

    name: str
    key: str
    uses: tuple[str, ...]
    found: Topic | None
    partitions: int = BROKERS_DEFAULT
    replicas: int = BROKERS_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


def wanted_topics(
    pipelines: Sequence[PipelineSettings],
    found: Mapping[str, Topic],
    *,
    partitions: int | None = None,
    largest_bytes: int | None = None,
    control_topic: str | None = None,
) -> list[Wanted]:
    """The topics of the pipelines, in the order of the file, sources first, and the one that steers them.

    Args:
        pipelines: of the file.
        found: those of their topics that exist, by name.
        partitions: of sources that no pipeline writes. Default: as many as the output topics have.
        largest_bytes: `max.message.bytes` of topics with full values. Default: the largest value the pipelines accept.
        control_topic: `control.topic`.
    """
    uses: dict[str, list[str]] = {}
    keys: dict[str, str] = {}
    for pipeline in pipelines:
        for name, key, what in _named(pipeline):
            uses.setdefault(name, []).append(f"{what} {pipeline.name}")
            keys.setdefault(name, key)
    counts = _partitions(pipelines, found, partitions)
    limits = _limits(pipelines, found, largest_bytes)
    control = [] if control_topic is None else [_control(control_topic, pipelines, found)]
    return control + [
        Wanted(
            name,
            keys[name],
            tuple(uses[name]),
            found.get(name),
            counts[name],
            max(each.replication_factor for each in pipelines if name in (*each.topics, *_targets(each))),
            _configs(name, pipelines, found, limits.get(name, 0)),
        )
        for name in uses
    ]


def _control(name: str, pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic]) -> Wanted:
    uses = ("control of all pipelines",)
    return Wanted(name, CONTROL_KEY, uses, found.get(name), 1, control_replicas(pipelines), CONTROL_CONFIGS)


def _named(pipeline: PipelineSettings) -> Iterator[tuple[str, str, str]]:
    for topic in pipeline.topics:
        yield topic, "topics", "source of"
    yield pipeline.output_topic, "output.topic", "output of"
    if pipeline.dead_letter_topic is not None:
        yield pipeline.dead_letter_topic, "errors.deadletterqueue.topic.name", "dead letters of"


def _targets(pipeline: PipelineSettings) -> Sequence[str]:
    return [name for name in (pipeline.output_topic, pipeline.dead_letter_topic) if name is not None]


def _roots(pipelines: Sequence[PipelineSettings]) -> Collection[str]:
    """The sources that no pipeline writes."""
    written = {name for each in pipelines for name in _targets(each)}
    return {name for each in pipelines for name in each.topics} - written


def _downstream(pipelines: Sequence[PipelineSettings]) -> Sequence[PipelineSettings]:
    """The pipelines, each after those that write its sources; there is no cycle."""
    left, ordered = list(pipelines), list[PipelineSettings]()
    while left:
        written = {name for each in left for name in _targets(each)}
        first = [each for each in left if written.isdisjoint(each.topics)]
        ordered += first
        left = [each for each in left if each not in first]
    return ordered


def _partitions(
    pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic], given: int | None
) -> Mapping[str, int]:
    """The partitions of each topic: a target has as many as its sources, so that a record keeps its partition."""
    counts = {name: topic.partitions for name, topic in found.items()}
    for name in _roots(pipelines):
        readers = [each for each in pipelines if name in each.topics]
        sinks = [found[each.output_topic].partitions for each in readers if each.output_topic in found]
        counts.setdefault(name, given or max(sinks, default=BROKERS_DEFAULT))
    made: dict[str, int] = {}
    for pipeline in _downstream(pipelines):
        for name in _targets(pipeline):
            if name not in found:
                made[name] = max(made.get(name, BROKERS_DEFAULT), *(counts[source] for source in pipeline.topics))
                counts[name] = made[name]
    return counts


def _limits(
    pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic], largest: int | None
) -> Mapping[str, int]:
    """The least `max.message.bytes` of each topic that is missing; 0 if any will do."""
    limits = {name: topic.max_message_bytes for name, topic in found.items()}
    roots = _roots(pipelines)
    for pipeline in _downstream(pipelines):
        needs = {name: _source_bytes(pipeline, largest) for name in pipeline.topics if name in roots}
        for name, size in needs.items():
            if name not in found:
                limits[name] = max(limits.get(name, 0), min(size, _MOST_BYTES))
        sink = pipeline.output_topic
        if sink not in found:
            sources = max(limits.get(name, 0) for name in pipeline.topics)
            limits[sink] = max(limits.get(sink, 0), min(_sink_bytes(pipeline, sources, largest), _MOST_BYTES))
    return limits


def _source_bytes(pipeline: PipelineSettings, largest: int | None) -> int:
    """The most that a producer may send to a source, which has values that are not offloaded or split yet."""
    if pipeline.offloads:
        return (largest or pipeline.max_bytes) + _ROOM_BYTES
    return (largest or pipeline.chunks.message_bytes) + _ROOM_BYTES if pipeline.chunks.splits else 0


def _sink_bytes(pipeline: PipelineSettings, source_bytes: int, largest: int | None) -> int:
    """The most that the pipeline may write, from sources that take so much."""
    chunks = pipeline.chunks
    batch = pipeline.producer["producer.batch.size"]
    assert isinstance(batch, int)
    if pipeline.offloads or chunks.splits:  # what is larger is offloaded, or split
        return max(batch, pipeline.threshold_bytes if pipeline.offloads else 0, chunks.max_bytes or 0)
    passed = source_bytes + _ROOM_BYTES if source_bytes > _KAFKAS_LIMIT else 0  # a wrapper, or another codec
    inflated = pipeline.max_bytes if "inflate" in pipeline.transforms else 0
    assembled = chunks.message_bytes if chunks.expects_chunks else 0
    whole = max(inflated, assembled)
    return max(batch, passed, (largest or whole) + _ROOM_BYTES if whole else 0)


def _configs(
    name: str, pipelines: Sequence[PipelineSettings], found: Mapping[str, Topic], limit: int
) -> Mapping[str, str]:
    configs = {MAX_MESSAGE_BYTES: str(limit)} if limit > _KAFKAS_LIMIT else {}
    has_chunks = any(
        (each.chunks.splits and each.output_topic == name) or (each.chunks.expects_chunks and name in each.topics)
        for each in pipelines
    )
    letters = [each for each in pipelines if each.dead_letter_topic == name]
    if letters or has_chunks:
        configs["cleanup.policy"] = "delete"  # compaction would delete chunks and dead-letter records
    kept = [found[source].retention_ms for each in letters for source in each.topics if source in found]
    if kept:
        # A dead-letter record has the timestamp of the original: with less time it could be deleted immediately.
        configs["retention.ms"] = str(FOREVER if FOREVER in kept else max(kept))
    return configs
