"""Checks between the pipelines of a worker: separate groups, no cycle of topics, and a separate control topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError


def group_errors(pipelines: Sequence[PipelineSettings]) -> Iterator[ConfigurationError]:
    """The pipelines without a separate group; two of one group would each miss the partitions of the other.

    Yields an error for each pipeline whose group one before it has.
    """
    groups: dict[str, str] = {}
    for pipeline in pipelines:
        if pipeline.group_id in groups:
            yield ConfigurationError(
                "group.id",
                f"found {pipeline.group_id!r}, which pipeline {groups[pipeline.group_id]} also uses; each "
                "pipeline needs a separate group",
                pipeline=pipeline.name,
            )
        groups.setdefault(pipeline.group_id, pipeline.name)


def circle_errors(pipelines: Sequence[PipelineSettings]) -> Iterator[ConfigurationError]:
    """The paths by which a record, or a dead-letter record, could return to the topic that it was read from.

    Yields an error for each topic that creates a cycle; it names the pipeline, in the order of the file.
    """
    for count, pipeline in enumerate(pipelines, start=1):
        for key, target in _targets(pipeline):
            way = _way_back(target, pipeline, pipelines[:count])
            if way is not None:
                yield ConfigurationError(
                    key,
                    f"found {target!r}, which creates a cycle of topics: {' → '.join([way[-1], *way])}; records would "
                    "circulate forever",
                    pipeline=pipeline.name,
                )


def control_errors(control_topic: str | None, pipelines: Sequence[PipelineSettings]) -> Iterator[ConfigurationError]:
    """The first pipeline that uses the topic of `control.topic`: its records would be treated as requests."""
    for pipeline in pipelines:
        used = {*pipeline.topics, *(name for _, name in _targets(pipeline))}
        if control_topic in used:
            yield ConfigurationError(
                "control.topic",
                f"found {control_topic!r}, which pipeline {pipeline.name} also uses; it needs a separate topic",
            )
            return


def _targets(pipeline: PipelineSettings) -> Iterator[tuple[str, str]]:
    yield "output.topic", pipeline.output_topic
    if pipeline.dead_letter_topic is not None:
        yield "errors.deadletterqueue.topic.name", pipeline.dead_letter_topic


def _way_back(start: str, pipeline: PipelineSettings, pipelines: Sequence[PipelineSettings]) -> list[str] | None:
    """The topics from `start` to a source of `pipeline`; None if there is no way."""
    ways = {start: [start]}
    waiting = [start]
    while waiting:
        topic = waiting.pop(0)
        if topic in pipeline.topics:
            return ways[topic]
        for other in pipelines:
            for _, target in _targets(other) if topic in other.topics else ():
                if target not in ways:
                    ways[target] = [*ways[topic], target]
                    waiting.append(target)
    return None
