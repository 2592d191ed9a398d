"""How the pipelines of a worker stand to one another: groups apart, and no circle of topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError

__all__ = ["check_groups", "check_no_circle"]


def check_groups(pipelines: Sequence[PipelineSettings]) -> None:
    """Two pipelines of one group would share partitions, and each would lose what the other one got.

    Raises:
        ConfigurationError: two pipelines have one group.
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
    """A record that comes back to a topic it has left would go round for ever, and so would its dead letter.

    Raises:
        ConfigurationError: a pipeline writes to a topic from which records lead back to one of its sources. The error
            is said of the pipeline, in the order of the file, that closes the circle.
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
    """The topics from `start` to a source of `pipeline`; None where no way leads there."""
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
