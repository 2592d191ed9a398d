"""Checks between the pipelines of a worker: groups of their own, and no circle of topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError

__all__ = ["check_groups", "check_no_circle"]


def check_groups(pipelines: Sequence[PipelineSettings]) -> None:
    """Checks that each pipeline has its own group; two of one group would each miss the partitions of the other.

    Raises:
        ConfigurationError: two pipelines have the same group.
    """
    groups: dict[str, str] = {}
    for pipeline in pipelines:
        if pipeline.group_id in groups:
            raise ConfigurationError(
                "group.id",
                f"found {pipeline.group_id!r}, which pipeline {groups[pipeline.group_id]} has too; each pipeline "
                "needs a group of its own",
                pipeline=pipeline.name,
            )
        groups[pipeline.group_id] = pipeline.name


def check_no_circle(pipelines: Sequence[PipelineSettings]) -> None:
    """Checks that no record, and no dead letter, can come back to a topic that it was read from.

    Raises:
        ConfigurationError: a record could. The error names the pipeline, in the order of the file, that closes the
            circle.
    """
    for count, pipeline in enumerate(pipelines, start=1):
        for key, target in _targets(pipeline):
            way = _way_back(target, pipeline, pipelines[:count])
            if way is not None:
                raise ConfigurationError(
                    key,
                    f"found {target!r}, which closes a circle of topics: {' → '.join([way[-1], *way])}; records would "
                    "go round for ever",
                    pipeline=pipeline.name,
                )


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
