"""The settings of a configuration file, checked and frozen. Each field has its property."""

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
    """The connection of every client of the worker to the cluster.

    Attributes:
        security: the values of `SECURITY_KEYS`, by name.
        shared: objects that clients with these values share; None if each client creates its own.
    """

    bootstrap_servers: str = keyed(
        "bootstrap.servers",
        "string",
        "The brokers for the initial connection to the cluster, as a comma-separated list of `host:port`. The list "
        "need not contain all brokers.",
        default=REQUIRED,
    )
    client_id: str = keyed(
        "client.id",
        "string",
        "The client id that is sent to the brokers, which use it in logs, metrics and quotas. The clients of a "
        "pipeline append the pipeline's name.",
        default="wideload",
    )
    limit_names: bool = keyed(
        LIMIT_KEY,
        "boolean",
        "Whether names must comply with the maximum lengths that are proposed for Kafka 5.0 ([limits](limits.md)). "
        "If true, names are checked before a request is sent. If false, longer names are permitted, which brokers of "
        "Kafka 4.x accept. The limit of topic names always applies.",
        default=True,
    )
    security: Mapping[str, Value | None] = mapped(SECURITY_KEYS)
    shared: Mapping[str, object] | None = field(default=None, repr=False)


CONNECTION_KEYS = keys_of(ClientSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """One `[pipeline.NAME]` of the file.

    Attributes:
        group_id: the consumer group; its default is derived from the pipeline's name.
        store: the configuration of the store, with its class; empty if the pipeline needs no store.
        dead_letter_topic: the dead letter queue; None if `errors.tolerance` is `none`.
        max_bytes: `large.message.max.bytes`.
        store_timeout_ms: `large.message.store.timeout.ms`.
        signing: how references are signed; None if they are not.
        encryption: the keys of encrypted payloads; None if there is none.
        consumer: the values of `CONSUMER_KEYS`, by name.
        producer: the values of `PRODUCER_KEYS`, by name.
    """

    name: str
    topics: tuple[str, ...] = keyed("topics", "list", "The topics to read.", default=REQUIRED)
    output_topic: str = keyed("output.topic", "string", "The topic to which the pipeline writes.", default=REQUIRED)
    transforms: tuple[str, ...] = keyed(
        "transforms",
        "list",
        "The transforms that are applied to each record, in the order of the list: `assemble` (must be first), "
        "`unwrap`, `inflate`, `offload`, `wrap`, `chunk` (must be last).",
        default=REQUIRED,
    )
    group_id: str = keyed(
        "group.id",
        "string",
        "The consumer group of the pipeline. Each pipeline needs a separate group. Default: `wideload-` followed by "
        "the name of the pipeline.",
    )
    threshold_bytes: int = keyed(
        "large.message.threshold.bytes",
        "bytes",
        "The size in bytes above which `offload` stores a value as a payload. A record is also offloaded if its "
        "batch, compressed as it is sent, would exceed the output topic's `max.message.bytes`.",
        default=DEFAULT_THRESHOLD_BYTES,
        minimum=0,
    )
    compression: Literal["none"] | Codec = keyed(
        "large.message.compression.type",
        "string",
        "The compression codec of payloads in the store.",
        default="none",
        allowed=("none", *CODECS),
    )
    on_reference: OnReference = keyed(
        "offload.on.reference",
        "string",
        "What `offload` does with a record that already has the headers of a reference. `offload`: the record is "
        "offloaded regardless of its size, so that consumers receive it as it was written and do not follow the "
        "reference. `fail`: the record fails, and `errors.tolerance` applies. `pass`: the record is forwarded, and "
        "consumers follow the reference; for topics whose producers write references themselves. Unless the value is "
        "`pass`, a chunk, or a reference instead of a key, fails too, and so does every reference where large values "
        "are split but not stored: with the transform `chunk`, or with `large.message.strategy` = `chunk`.",
        default="offload",
        allowed=ON_REFERENCE,
    )
    reference_format: FormatName = keyed(
        "reference.format",
        "string",
        "The format of the references that `inflate` reads and `offload` writes. `bakdata-headers` and `bakdata-flag` "
        "are the formats of bakdata's kafka-large-message-serde, with and without its `large.message.use.headers`.",
        default="wideload",
        allowed=tuple(FORMATS),
    )
    store: Mapping[str, object] = keyed(
        STORE_CLASS,
        "string",
        "The payload store: `s3`, `gcs`, `azure`, `filesystem`, `memory`, or a custom class as "
        "`package.module.Class`. Required by `offload` and `inflate`. A custom class also receives all properties "
        "that are not listed on this page.",
    )
    reference_scope: ReferenceScopeSettings
    guarantee: Guarantee
    chunks: ChunkSettings
    wrapper: WrapperSettings
    errors_tolerance: Literal["none", "all"] = keyed(
        "errors.tolerance",
        "string",
        "What happens to a record that fails and cannot succeed by a retry. `none`: the pipeline stops. `all`: the "
        "record is written to the dead letter queue, and processing continues.",
        default="none",
        allowed=("none", "all"),
    )
    dead_letter_topic: str | None = keyed(
        "errors.deadletterqueue.topic.name",
        "string",
        "The topic that is used as the dead letter queue. Required if `errors.tolerance` is `all`, ignored if it is "
        "`none`.",
    )
    dead_letter_context: bool = keyed(
        "errors.deadletterqueue.context.headers.enable",
        "boolean",
        "Whether dead-letter records have the `__connect.errors.*` headers, which describe the error. Connect's "
        "default is `false`, with which a dead-letter record does not show what failed.",
        default=True,
    )
    retry_delay_max_ms: int = keyed(
        "errors.retry.delay.max.ms",
        "int",
        "The maximum time in milliseconds between two attempts of a store call, or of a connection to the brokers.",
        default=60_000,
        minimum=1,
    )
    retry_timeout_ms: int = keyed(
        "errors.retry.timeout",
        "int",
        "The maximum time in milliseconds to retry store calls for a record while the store is otherwise available. "
        "After that, `errors.tolerance` applies. `-1` retries forever. While the store is unavailable, no record "
        "fails because of this limit. It does not interrupt a call that hangs. Connect's default is 0.",
        default=-1,
        minimum=-1,
    )
    flush_interval_ms: int = keyed(
        "offset.flush.interval.ms",
        "int",
        "The interval in milliseconds at which offsets are committed. After a crash, at most the work of one interval "
        "is repeated, so the default is lower than Connect's 60,000.",
        default=1_000,
        minimum=1,
    )
    topic_creation: bool = keyed(
        "topic.creation.enable",
        "boolean",
        "Whether the output topic and the dead letter queue are created if they do not exist, with as many partitions "
        "as the source topic. Connect's default is `true`; with `false`, a misspelt name is an error and does not "
        "create a topic.",
        default=False,
    )
    replication_factor: int = keyed(
        "topic.creation.default.replication.factor",
        "int",
        "The replication factor of topics that are created. `-1` uses the cluster's default.",
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
        """The compression codec of payloads; None for none."""
        return None if self.compression == "none" else self.compression

    @property
    def offloads(self) -> bool:
        """Whether large values are stored as payloads."""
        return "offload" in self.transforms and self.chunks.strategy != "chunk"

    @property
    def payload_topic(self) -> str:
        """A topic whose payloads it writes or reads."""
        return self.output_topic if self.offloads else self.topics[0]


PIPELINE_KEYS = keys_of(PipelineSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole file."""

    client: ClientSettings
    in_flight_bytes: int = keyed(
        "in.flight.bytes",
        "bytes",
        "The maximum total size in bytes of the records that all pipelines hold in memory. Each pipeline may exceed "
        "it by one record. When the limit is reached, pipelines stop fetching until memory is released. While "
        "forwarded records are being written, records that were fetched and wait behind them count too. Records that "
        "were read ahead behind those that wait for the store may use an additional quarter of this value, or 64 MiB "
        "if that is more. If a compressed batch decompresses to more than this value and to more than 64 MiB, all its "
        "records fail.",
        default=DEFAULT_MAX_BYTES,
        minimum=1,
    )
    store_threads: int = keyed(
        "store.threads", "int", "The maximum number of concurrent store calls of each pipeline.", default=8, minimum=1
    )
    log_format: Literal["text", "json"] = keyed(
        "log.format",
        "string",
        "The format of log lines. With `json`, each line is a JSON object with `time`, `level`, `logger` and "
        "`message`, and with `pipeline`, `topic`, `partition`, `offset` and `exception` where they apply. In both "
        "formats, an error that prevents the worker from starting is printed as one line of text.",
        default="text",
        allowed=("text", "json"),
    )
    web_bind: str = keyed("web.bind", "string", "The address on which the web server listens.", default="127.0.0.1")
    web_port: int = keyed(
        "web.port",
        "int",
        "The port of the web server, which serves the web UI and endpoints such as `/health`, `/pipelines` and "
        "`/metrics`.",
        default=6066,
        minimum=1,
        maximum=65_535,
    )
    web_hosts: tuple[str, ...] | None = keyed(
        "web.hosts",
        "list",
        "Additional host names under which the web server may be accessed, such as that of a proxy; `*` permits any. "
        "IP addresses, names without a dot, and names that end with `.local`, `.internal` or `.svc` are always "
        "permitted. Other requests are refused with status 421. This protects against DNS rebinding.",
    )
    web_control: bool = keyed(
        "web.control.enable",
        "boolean",
        "Whether requests may pause, resume, stop and restart pipelines, and set the levels of loggers ([REST "
        "API](rest.md)). Such requests require `web.control.token`.",
        default=False,
    )
    web_control_token: str | None = keyed(
        "web.control.token",
        "string",
        "The token that authorizes requests to control the worker, sent as `Authorization: Bearer TOKEN` or as the "
        "password of HTTP Basic: at least 16 random ASCII characters, for example from `openssl rand -hex 32`.",
        secret=True,
    )
    control_topic: str | None = keyed(
        "control.topic",
        "string",
        "The topic through which requests to pause, resume, stop and restart reach all workers of a group, and stay "
        "in effect after a restart ([REST API](rest.md#all-workers-of-a-group)). It has one partition and is "
        "compacted, and is created if it does not exist. If this property is not set, a request affects only the "
        "worker that receives it, until that worker exits.",
    )
    graceful_timeout_ms: int = keyed(
        "task.shutdown.graceful.timeout.ms",
        "int",
        "The maximum time in milliseconds for a pipeline to finish its records when it stops or loses partitions. "
        "Records that are not finished by then are read again later. Connect's default of 5,000 is too short for large "
        "payloads. Of the 30 seconds that a container usually has to stop, the default of 25,000 leaves 5.",
        default=25_000,
        minimum=0,
    )
    startup_wait_ms: int = keyed(
        "startup.wait.ms",
        "int",
        "The maximum time in milliseconds that a starting worker waits for brokers and stores that do not respond, "
        "and for as many brokers as new topics and transactions require. When this time has passed, or immediately on "
        "any other error, the worker exits with status 2. Set this property if no supervisor restarts the worker.",
        default=0,
        minimum=0,
    )
    pipelines: tuple[PipelineSettings, ...]
    order: tuple[tuple[str | None, str], ...] = field(default=(), compare=False, repr=False)
    """The properties in the order of the file, each with its pipeline; an empty name follows those of a table."""

    def place(self, error: ConfigurationError) -> int:
        """The place of an error in the file: by table, and in a table by property; others come last."""
        for name in ((error.pipeline, error.key), (error.pipeline, "")):
            if name in self.order:
                return self.order.index(name)
        return len(self.order)


WORKER_KEYS = keys_of(Settings)
