"""`wideload check`: the configuration with all defaults, and a table of the preflight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from app.cluster.preflight import Plan
from app.config.effective import pipeline_values, shown_value
from app.config.fields import values_of
from app.config.settings import PipelineSettings, Settings
from app.kafka.topics import Topic
from stores.registry import STORE_CLASS, open_store
from stores.store import Store
from transforms.text import bytes_text

TITLES = ("pipeline", "topics", "output topic", "dead letter queue", "transforms", "threshold", "store")


def effective(settings: Settings) -> str:
    """The configuration with all defaults, as TOML; secrets, and values from `${…}`, are `***`.

    All strings of a custom store are `***` too, as it is not known which of them are secret.
    """
    lines = list(_toml(values_of(settings)))
    for pipeline in settings.pipelines:
        name = pipeline.name if re.fullmatch(r"[A-Za-z0-9_-]+", pipeline.name) else json.dumps(pipeline.name)
        lines += ["", f"[pipeline.{name}]", *_toml(pipeline_values(pipeline))]
    return "\n".join(lines) + "\n"


def _toml(values: Mapping[str, object]) -> Iterator[str]:
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    for name, value in given.items():
        # In TOML `a = 1` and `a.b = 2` exclude each other; a quoted "a" is a separate name.
        written = json.dumps(name) if any(other.startswith(f"{name}.") for other in given) else name
        yield f"{written} = {json.dumps(shown_value(value), ensure_ascii=False)}"


def store_text(pipeline: PipelineSettings) -> str:
    """The location of a pipeline's payloads; `-` if it has no store."""
    if not pipeline.store:
        return "-"
    store = open_store(pipeline.store)
    try:
        return store.root.uri if isinstance(store, Store) else str(pipeline.store[STORE_CLASS])
    finally:
        store.close()


def plan_rows(settings: Settings, plans: Sequence[Plan]) -> Iterator[Sequence[str]]:
    """The cells of a row for each pipeline, under `TITLES`."""
    for pipeline, plan in zip(settings.pipelines, plans, strict=True):
        yield (
            pipeline.name,
            "\n".join(_topic(source) for source in plan.sources),
            _topic(plan.sink),
            "-" if plan.dead_letters is None else _topic(plan.dead_letters),
            ", ".join(pipeline.transforms),
            bytes_text(pipeline.threshold_bytes) if pipeline.offloads else "-",
            store_text(pipeline),
        )


def _topic(topic: Topic) -> str:
    partitions = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
    return f"{topic.name}: {partitions}, up to {bytes_text(topic.max_message_bytes)}"
