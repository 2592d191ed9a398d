"""`wideload check`: the configuration with all defaults, and a table of the preflight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from app.cluster.preflight import Plan
from app.config.chunking import ChunkSettings
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.secret import Secret
from app.config.settings import PipelineSettings, Settings
from app.config.wrapping import WrapperSettings
from app.kafka.topics import Topic
from stores.keys import read
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import COMMON_KEYS, Store
from transforms.identifiers import LIMIT_KEY
from transforms.text import bytes_text
from transforms.wrapper import UNMAPPED_PREFIX

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["effective", "plan_table", "store_text"]

_HIDDEN = "***"


def effective(settings: Settings) -> str:
    """The configuration with all defaults, as TOML; secrets, and values from `${…}`, are `***`.

    All strings of a user's own store are `***` too, as it is not known which of them are secret.
    """
    client = settings.client
    worker: dict[str, object] = {
        "bootstrap.servers": client.bootstrap_servers,
        "client.id": client.client_id,
        LIMIT_KEY: client.limit_names,
        **client.security,
        "in.flight.bytes": settings.in_flight_bytes,
        "store.threads": settings.store_threads,
        "web.bind": settings.web_bind,
        "web.port": settings.web_port,
        "task.shutdown.graceful.timeout.ms": settings.graceful_timeout_ms,
    }
    lines = list(_toml(worker))
    for pipeline in settings.pipelines:
        name = pipeline.name if re.fullmatch(r"[A-Za-z0-9_-]+", pipeline.name) else json.dumps(pipeline.name)
        lines += ["", f"[pipeline.{name}]", *_toml(_pipeline(pipeline))]
    return "\n".join(lines) + "\n"


def _pipeline(pipeline: PipelineSettings) -> dict[str, object]:
    clients = {**pipeline.consumer, **pipeline.producer}
    return {
        "topics": list(pipeline.topics),
        "output.topic": pipeline.output_topic,
        "transforms": list(pipeline.transforms),
        "group.id": pipeline.group_id,
        "large.message.threshold.bytes": pipeline.threshold_bytes if pipeline.store else None,
        "large.message.compression.type": pipeline.codec or "none",
        "reference.format": pipeline.reference_format,
        "large.message.root": ("topic" if pipeline.reference_scope.by_topic else "store") if pipeline.store else None,
        "large.message.root.topics": list(pipeline.reference_scope.topics) or None,
        **pipeline.guarantee.values(),
        **_chunks(pipeline.chunks),
        **_wrapper(pipeline.wrapper),
        **(_store(pipeline.store) if pipeline.store else {}),
        "errors.tolerance": pipeline.errors_tolerance,
        "errors.deadletterqueue.topic.name": pipeline.dead_letter_topic,
        "errors.deadletterqueue.context.headers.enable": pipeline.dead_letter_context,
        "errors.retry.delay.max.ms": pipeline.retry_delay_max_ms,
        "offset.flush.interval.ms": pipeline.flush_interval_ms,
        "topic.creation.enable": pipeline.topic_creation,
        "topic.creation.default.replication.factor": pipeline.replication_factor,
        **{key.name: clients[key.name] for key in (*CONSUMER_KEYS, *PRODUCER_KEYS)},
    }


def _chunks(chunks: ChunkSettings) -> dict[str, object]:
    return {
        "large.message.strategy": chunks.strategy,
        "chunk.max.bytes": chunks.max_bytes,
        "chunk.max.message.bytes": chunks.limits.message_bytes,
        "max.pending.chunked.message": chunks.limits.messages,
        "max.pending.chunked.bytes": chunks.limits.pending_bytes,
        "expire.time.of.incomplete.chunked.message.ms": chunks.limits.expire_ms,
        "auto.ack.oldest.chunked.message.on.queue.full": chunks.drops_oldest,
    }


def _wrapper(wrapper: WrapperSettings) -> dict[str, object]:
    return {
        "unwrap.on.plain.value": wrapper.unwrap.plain,
        "wrap.on.unmapped.header": wrapper.wrap.unmapped,
        "wrap.on.null.value": wrapper.wrap.null,
        **{f"{UNMAPPED_PREFIX}{number}": name for number, name in wrapper.wrap.table.names.items()},
    }


def _store(config: Mapping[str, object]) -> dict[str, object]:
    known = (*COMMON_KEYS, *(store_keys(str(config[STORE_CLASS])) or ()))
    return {**config, **read([key for key in known if key.name not in config], {})}


def _is_hidden(value: object) -> bool:
    return isinstance(value, Secret) or (isinstance(value, list) and any(isinstance(item, Secret) for item in value))


def _toml(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if value is not None:
            shown = _HIDDEN if _is_hidden(value) else value
            yield f"{name} = {json.dumps(shown, ensure_ascii=False)}"


def store_text(pipeline: PipelineSettings) -> str:
    """The location of a pipeline's payloads; `-` if it has no store."""
    if not pipeline.store:
        return "-"
    store = open_store(pipeline.store)
    try:
        return store.root.uri if isinstance(store, Store) else str(pipeline.store[STORE_CLASS])
    finally:
        store.close()


def plan_table(settings: Settings, plans: Sequence[Plan]) -> Table:
    """One row for each pipeline: its topics, transforms, limits and store."""
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for title in ("pipeline", "sources", "sink", "dead letters", "transforms", "threshold", "store"):
        table.add_column(title, overflow="fold")
    for pipeline, plan in zip(settings.pipelines, plans, strict=True):
        threshold = bytes_text(pipeline.threshold_bytes) if pipeline.offloads else "-"
        cells = (
            pipeline.name,
            "\n".join(_topic(source) for source in plan.sources),
            _topic(plan.sink),
            "-" if plan.dead_letters is None else _topic(plan.dead_letters),
            ", ".join(pipeline.transforms),
            threshold,
            store_text(pipeline),
        )
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _topic(topic: Topic) -> str:
    partitions = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
    return f"{topic.name}: {partitions}, up to {bytes_text(topic.max_message_bytes)}"
