"""Settings: what the configuration file says, checked and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.config.chunking import ChunkSettings
from app.config.guarantee import Guarantee
from app.config.keys import SECURITY_KEYS
from app.config.reference_scope import ReferenceScopeSettings
from app.config.wrapping import WrapperSettings
from stores.keys import Value, read
from transforms.compression import Codec
from transforms.formats import FormatName
from transforms.signing import Signing

__all__ = ["ClientSettings", "PipelineSettings", "Settings"]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How every client of the worker reaches the cluster.

    Attributes:
        bootstrap_servers: `host:port`, separated by commas.
        client_id: the name that brokers see.
        security: the values of `SECURITY_KEYS`, by name.
        limit_names: `resource.identifier.limit.enable`.
    """

    bootstrap_servers: str
    client_id: str = "wideload"
    security: Mapping[str, Value | None] = field(default_factory=lambda: read(SECURITY_KEYS, {}))
    limit_names: bool = True


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """One `[pipeline.NAME]` of the file; the fields are the keys of `PIPELINE_KEYS`.

    Attributes:
        codec: `large.message.compression.type`; None for `none`.
        guarantee: how often a record comes out.
        chunks: what it does with chunks.
        wrapper: what it does with wrappers.
        store: what the store is opened with, its class included; empty where the pipeline asks none.
        max_bytes: `large.message.max.bytes`.
        reach: where references may lead.
        signing: of references; None where they are not signed.
        store_timeout_ms: `large.message.store.timeout.ms`.
        consumer: the values of `CONSUMER_KEYS`, by name.
        producer: the values of `PRODUCER_KEYS`, by name.
    """

    name: str
    topics: tuple[str, ...]
    output_topic: str
    transforms: tuple[str, ...]
    group_id: str
    threshold_bytes: int
    codec: Codec | None
    reference_format: FormatName
    guarantee: Guarantee
    chunks: ChunkSettings
    wrapper: WrapperSettings
    store: Mapping[str, object]
    max_bytes: int
    reference_scope: ReferenceScopeSettings
    signing: Signing | None
    store_timeout_ms: int
    errors_tolerance: Literal["none", "all"]
    dead_letter_topic: str | None
    dead_letter_context: bool
    retry_delay_max_ms: int
    flush_interval_ms: int
    topic_creation: bool
    replication_factor: int
    consumer: Mapping[str, Value | None]
    producer: Mapping[str, Value | None]

    @property
    def offloads(self) -> bool:
        """True where large values go to the store."""
        return "offload" in self.transforms and self.chunks.strategy != "chunk"


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole file; the fields are the keys of `WORKER_KEYS`."""

    client: ClientSettings
    in_flight_bytes: int
    store_threads: int
    web_bind: str
    web_port: int
    graceful_timeout_ms: int
    pipelines: tuple[PipelineSettings, ...]
