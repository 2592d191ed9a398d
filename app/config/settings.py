"""The settings of a configuration file, checked and frozen. Each field carries its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.config.chunking import ChunkSettings
from app.config.fields import keyed, keys_of, mapped
from app.config.guarantee import Guarantee
from app.config.keys import SECURITY_KEYS
from app.config.reference_scope import ReferenceScopeSettings
from app.config.wrapping import WrapperSettings
from stores.keys import REQUIRED, Value
from stores.registry import STORE_CLASS
from transforms.claims import ON_REFERENCE, OnReference
from transforms.compression import CODECS, Codec
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.identifiers import LIMIT_KEY
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.keyring import EncryptionSettings
from transforms.offload import DEFAULT_THRESHOLD_BYTES
from transforms.signing import Signing


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How every client of the worker reaches the cluster.

    Attributes:
        security: the values of `SECURITY_KEYS`, by name.
        shared: what clients share that were made of these values; None if each is made of them again.
    """

    bootstrap_servers: str = keyed(
        "bootstrap.servers",
        "string",
        "Brokers to connect to first: `host:port`, separated by commas.",
        default=REQUIRED,
    )
    client_id: str = keyed(
        "client.id", "string", "The worker's name in the logs and quotas of the brokers.", default="wideload"
    )
    limit_names: bool = keyed(
        LIMIT_KEY,
        "boolean",
        "Whether names must be within the limits of Kafka 5.0 (docs/limits.md). They are checked before a request is "
        "made. `false` allows the longer names that brokers of Kafka 4.x take, as their property of this name does. "
        "Topic names always have their limit.",
        default=True,
    )
    security: Mapping[str, Value | None] = mapped(SECURITY_KEYS)
    shared: Mapping[str, object] | None = field(default=None, repr=False)


CONNECTION_KEYS = keys_of(ClientSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """One `[pipeline.NAME]` of the file.

    Attributes:
        group_id: the consumer group; its default is made of the pipeline's name.
        store: the configuration of the store, with its class; empty if the pipeline needs no store.
        dead_letter_topic: None if `errors.tolerance` is `none`.
        max_bytes: `large.message.max.bytes`.
        store_timeout_ms: `large.message.store.timeout.ms`.
        signing: how references are signed; None if they are not.
        encryption: the keys of encrypted payloads; None if there is none.
        consumer: the values of `CONSUMER_KEYS`, by name.
        producer: the values of `PRODUCER_KEYS`, by name.
    """

    name: str
    topics: tuple[str, ...] = keyed("topics", "list", "The topics to read.", default=REQUIRED)
    output_topic: str = keyed("output.topic", "string", "The topic to write to (the sink).", default=REQUIRED)
    transforms: tuple[str, ...] = keyed(
        "transforms",
        "list",
        "The transforms of a record, in this order: `assemble` (always first), `unwrap`, `inflate`, `offload`, "
        "`wrap`, `chunk` (always last).",
        default=REQUIRED,
    )
    group_id: str = keyed(
        "group.id",
        "string",
        "The consumer group; each pipeline needs its own. Default: `wideload-` and the pipeline's name.",
    )
    threshold_bytes: int = keyed(
        "large.message.threshold.bytes",
        "bytes",
        "A value longer than this is offloaded. So is a record whose batch, compressed as it is sent, would be over "
        "the sink topic's `max.message.bytes`.",
        default=DEFAULT_THRESHOLD_BYTES,
        minimum=0,
    )
    compression: Literal["none"] | Codec = keyed(
        "large.message.compression.type",
        "string",
        "How payloads are compressed in the store.",
        default="none",
        allowed=("none", *CODECS),
    )
    on_reference: OnReference = keyed(
        "offload.on.reference",
        "string",
        "What `offload` does with a record that has the headers of a reference already. `offload`: it is offloaded, "
        "whatever its size, so that readers get it as it was written, and do not follow it. `fail`: it is an error "
        "of the record. `pass`: it goes on, and readers follow it: for topics whose writers make references "
        "themselves. A chunk, or a reference in place of the key, is an error unless this is `pass`. So is each "
        "reference where large values are split and never stored: with the transform `chunk`, or with "
        "`large.message.strategy` = `chunk`.",
        default="offload",
        allowed=ON_REFERENCE,
    )
    reference_format: FormatName = keyed(
        "reference.format",
        "string",
        "The format of the records that `inflate` reads and `offload` writes. `bakdata-headers` and `bakdata-flag` "
        "are the formats of bakdata's kafka-large-message-serde, with and without its `large.message.use.headers`.",
        default="wideload",
        allowed=tuple(FORMATS),
    )
    store: Mapping[str, object] = keyed(
        STORE_CLASS,
        "string",
        "The payload store: `s3`, `gcs`, `azure`, `filesystem`, `memory`, or a class of your own as "
        "`package.module.Class`. `offload` and `inflate` need one. The store gets all keys that are not listed here.",
    )
    reference_scope: ReferenceScopeSettings
    guarantee: Guarantee
    chunks: ChunkSettings
    wrapper: WrapperSettings
    errors_tolerance: Literal["none", "all"] = keyed(
        "errors.tolerance",
        "string",
        "What happens to a record that can never succeed. `none`: it stops the pipeline. `all`: it goes to the "
        "dead-letter topic, and the records behind it pass.",
        default="none",
        allowed=("none", "all"),
    )
    dead_letter_topic: str | None = keyed(
        "errors.deadletterqueue.topic.name",
        "string",
        "The dead-letter topic. Required if `errors.tolerance` is `all`, not used if it is `none`.",
    )
    dead_letter_context: bool = keyed(
        "errors.deadletterqueue.context.headers.enable",
        "boolean",
        "Whether dead letters have the headers `__connect.errors.*`. Connect's default is no, but without them a dead "
        "letter does not say what is wrong.",
        default=True,
    )
    retry_delay_max_ms: int = keyed(
        "errors.retry.delay.max.ms",
        "int",
        "The longest wait between two attempts of a store call, or of a connection to the brokers.",
        default=60_000,
        minimum=1,
    )
    retry_timeout_ms: int = keyed(
        "errors.retry.timeout",
        "int",
        "How long, in milliseconds, the store is asked again for one record for which it fails though it is up. Then "
        "`errors.tolerance` decides. -1: without end. While the store is down, no record is given up. A call that "
        "never ends is not bounded by this. Connect's default is 0.",
        default=-1,
        minimum=-1,
    )
    flush_interval_ms: int = keyed(
        "offset.flush.interval.ms",
        "int",
        "How often offsets are committed. After `kill -9` the work of this time at most is repeated, so it is shorter "
        "than Connect's 60,000.",
        default=1_000,
        minimum=1,
    )
    topic_creation: bool = keyed(
        "topic.creation.enable",
        "boolean",
        "Whether a missing sink or dead-letter topic is created, with as many partitions as the source has. Connect's "
        "default is yes; here a misspelt name shall not become a topic.",
        default=False,
    )
    replication_factor: int = keyed(
        "topic.creation.default.replication.factor",
        "int",
        "The replication factor of topics that are created; -1 is the cluster's default.",
        default=-1,
        minimum=-1,
        maximum=32_767,
    )
    max_bytes: int
    store_timeout_ms: int
    signing: Signing | None
    encryption: EncryptionSettings | None
    consumer: Mapping[str, Value | None]
    producer: Mapping[str, Value | None]

    @property
    def codec(self) -> Codec | None:
        """How payloads are compressed; None if they are not."""
        return None if self.compression == "none" else self.compression

    @property
    def offloads(self) -> bool:
        """Whether large values go to the store."""
        return "offload" in self.transforms and self.chunks.strategy != "chunk"

    @property
    def payload_topic(self) -> str:
        """A topic whose payloads it writes, or reads."""
        return self.output_topic if self.offloads else self.topics[0]


PIPELINE_KEYS = keys_of(PipelineSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole file."""

    client: ClientSettings
    in_flight_bytes: int = keyed(
        "in.flight.bytes",
        "bytes",
        "The most bytes of records that all pipelines together hold; one record of each pipeline may exceed it. When "
        "it is used up, pipelines stop reading until there is room. What was fetched and waits counts too while "
        "records that pass are on their way. What was read ahead of records that wait for the store takes up to a "
        "quarter of this, or 64 MiB, in addition. A compressed batch that holds more than this, and more than 64 MiB, "
        "is an error of its records.",
        default=DEFAULT_MAX_BYTES,
        minimum=1,
    )
    store_threads: int = keyed(
        "store.threads", "int", "How many store calls each pipeline may make at the same time.", default=8, minimum=1
    )
    log_format: Literal["text", "json"] = keyed(
        "log.format",
        "string",
        "The form of log lines. `json`: one object a line, with `time`, `level`, `logger`, `message`, and with "
        "`pipeline`, `topic`, `partition`, `offset` and `exception` where there are such. What ends the worker before "
        "it starts is one line of text in any case.",
        default="text",
        allowed=("text", "json"),
    )
    web_bind: str = keyed("web.bind", "string", "The address on which the pages are served.", default="127.0.0.1")
    web_port: int = keyed(
        "web.port",
        "int",
        "The port of the pages: /health, /pipelines, /metrics.",
        default=6066,
        minimum=1,
        maximum=65_535,
    )
    web_hosts: tuple[str, ...] | None = keyed(
        "web.hosts",
        "list",
        "More names that the pages answer to, such as that of a proxy; `*` for any. Addresses, names without a dot, "
        "and names in `.local`, `.internal` or `.svc` always work. Other names are refused (421): a page of another "
        "host in a browser could read the pages by a name of its own that leads here.",
    )
    web_control: bool = keyed(
        "web.control.enable",
        "boolean",
        "Whether requests may pause, resume, stop and restart pipelines, and set the levels of loggers "
        "([rest.md](rest.md)). They need `web.control.token`.",
        default=False,
    )
    web_control_token: str | None = keyed(
        "web.control.token",
        "string",
        "Clients that send this, as `Authorization: Bearer TOKEN` or as the password of HTTP Basic, may steer the "
        "pipelines: 16 characters or more at random, such as `openssl rand -hex 32` gives.",
        secret=True,
    )
    control_topic: str | None = keyed(
        "control.topic",
        "string",
        "The topic by which pause, resume, stop and restart reach all workers of a group, and outlive them "
        "([rest.md](rest.md#all-workers-of-a-group)). It has one partition and is compacted; it is made where it is "
        "missing. Without it, what a request asks for is done by the worker that gets it, until that ends.",
    )
    graceful_timeout_ms: int = keyed(
        "task.shutdown.graceful.timeout.ms",
        "int",
        "How long a pipeline that stops, or loses partitions, may take to finish its records. Records that are not "
        "finished then are read again later. Connect's default, 5,000, is short for large payloads; 25,000 leaves a "
        "container five of its 30 seconds to stop.",
        default=25_000,
        minimum=0,
    )
    startup_wait_ms: int = keyed(
        "startup.wait.ms",
        "int",
        "How long a worker that starts waits for brokers and stores that do not answer yet, and for as many brokers as "
        "new topics and transactions need. Then, and at once if anything else is wrong, it ends with status 2. For "
        "those who have nobody to start it again.",
        default=0,
        minimum=0,
    )
    pipelines: tuple[PipelineSettings, ...]
    order: tuple[tuple[str | None, str], ...] = field(default=(), compare=False, repr=False)
    """The keys as they stand in the file, each with its pipeline; an empty name stands behind those of a table."""

    def place(self, error: ConfigurationError) -> int:
        """The place of an error in the file: by table, and in a table by key; keys that are not there come last."""
        for name in ((error.pipeline, error.key), (error.pipeline, "")):
            if name in self.order:
                return self.order.index(name)
        return len(self.order)


WORKER_KEYS = keys_of(Settings)
