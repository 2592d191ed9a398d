"""Chunks in the configuration: the settings of a pipeline that splits values or assembles them, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.config.fields import keyed, keys_of, settings_of
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError

Strategy = Literal["offload", "chunk", "auto"]

_MAX_BYTES = "chunk.max.bytes"
_MESSAGE_BYTES = "chunk.max.message.bytes"
_PENDING_BYTES = "max.pending.chunked.bytes"
_STRATEGY = "large.message.strategy"
_THRESHOLD = "large.message.threshold.bytes"
_FORMAT = "reference.format"
_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """What a pipeline does with chunks.

    Attributes:
        splits: whether large values are split: all of them, or (`strategy` is `auto`) while the store is down.
        assembles: whether chunks are assembled.
        expects_chunks: whether the configuration says that the source has chunks. `inflate` also assembles
            unexpected chunks, since forwarding them as values would be silent corruption.
        max_bytes: None for the limit of the output topic.
    """

    splits: bool
    assembles: bool
    expects_chunks: bool
    strategy: Strategy = keyed(
        "large.message.strategy",
        "string",
        "What `offload` does with large values. `offload`: it stores them as payloads. `chunk`: it splits them into "
        "chunks, as the transform `chunk` does, and needs no store. `auto`: it stores them, and splits them into "
        "chunks while the store is unavailable, up to `chunk.max.message.bytes`. `inflate` reads references and "
        "chunks in any case; with `chunk` or `auto`, the topics are checked for it.",
        default="offload",
        allowed=("offload", "chunk", "auto"),
    )
    max_bytes: int | None = keyed(
        "chunk.max.bytes",
        "bytes",
        "The maximum size in bytes of a chunk, including key, headers and batch overhead. Larger records are split. "
        "Default: the output topic's `max.message.bytes`.",
        minimum=1,
    )
    message_bytes: int = keyed(
        "chunk.max.message.bytes",
        "bytes",
        "The maximum size in bytes of a value that is split, and of a message that is assembled. Default: 67,108,864, "
        "or a quarter of `in.flight.bytes` if that is less.",
        minimum=1,
    )
    pending_messages: int = keyed(
        "max.pending.chunked.message",
        "int",
        "The maximum number of incomplete messages that `assemble` and `inflate` hold in memory. If it is exceeded, "
        "the oldest message is discarded.",
        default=_LIMITS.messages,
        minimum=1,
    )
    pending_bytes: int = keyed(
        "max.pending.chunked.bytes",
        "bytes",
        "The maximum total size in bytes of the chunks of incomplete messages, which are not counted in "
        "`in.flight.bytes`. If it is exceeded, the oldest message is discarded. Default: half of `in.flight.bytes`.",
        minimum=1,
    )
    expire_ms: int = keyed(
        "expire.time.of.incomplete.chunked.message.ms",
        "int",
        "The maximum time in milliseconds that a message waits for its last chunk before it is discarded. `0` waits "
        "forever. Time in which the pipeline does not read, for instance because its store is unavailable, does not "
        "count.",
        default=_LIMITS.expire_ms,
        minimum=0,
    )
    drops_oldest: bool = keyed(
        "auto.ack.oldest.chunked.message.on.queue.full",
        "boolean",
        "Whether the oldest incomplete message, if there are too many, is discarded with a warning. If `false`, "
        "`errors.tolerance` applies to its chunks, as to those of any other discarded message.",
        default=False,
    )

    @property
    def limits(self) -> Limits:
        """The limits of the assembler."""
        return Limits(self.pending_messages, self.pending_bytes, self.message_bytes, self.expire_ms)

    def limit_bytes(self, topic_limit_bytes: int) -> int:
        """The most bytes of a chunk, alone in a batch, for an output topic with this `max.message.bytes`."""
        return min(topic_limit_bytes, self.max_bytes or topic_limit_bytes)


CHUNK_KEYS = keys_of(ChunkSettings)


def chunk_settings(
    values: Mapping[str, Any], given: Mapping[str, object], transforms: Sequence[str], in_flight_bytes: int
) -> ChunkSettings:
    """The settings of a pipeline whose transforms have passed `check_order`.

    Args:
        values: of the pipeline's properties, with defaults.
        given: the values in the file.
        transforms: in order.
        in_flight_bytes: the defaults are parts of it.

    Raises:
        ConfigurationError: some values contradict each other.
    """
    strategy: Strategy = values[_STRATEGY]
    _check_strategy(strategy, values[_FORMAT], transforms)
    splits = "chunk" in transforms or ("offload" in transforms and strategy != "offload")
    expects_chunks = "assemble" in transforms or ("inflate" in transforms and strategy != "offload")
    assembles = expects_chunks or "inflate" in transforms
    if splits and _THRESHOLD in given and (strategy == "chunk" or "offload" not in transforms):
        raise ConfigurationError(
            _THRESHOLD,
            f"has no effect, as nothing is offloaded; {_MAX_BYTES}, or else the limit of the output topic, determines "
            "which values are split",
        )
    pending = values[_PENDING_BYTES] or max(1, in_flight_bytes // 2)
    message = values[_MESSAGE_BYTES] or max(1, min(_LIMITS.message_bytes, in_flight_bytes // 4))
    if pending > in_flight_bytes:
        raise ConfigurationError(
            _PENDING_BYTES, f"found {pending:,}, allowed is no more than in.flight.bytes, which is {in_flight_bytes:,}"
        )
    if expects_chunks and message > pending:
        raise ConfigurationError(
            _MESSAGE_BYTES, f"found {message:,}, allowed is no more than {_PENDING_BYTES}, which is {pending:,}"
        )
    return settings_of(
        ChunkSettings,
        values,
        splits=splits,
        assembles=assembles,
        expects_chunks=expects_chunks,
        message_bytes=message,
        pending_bytes=pending,
    )


def _check_strategy(strategy: Strategy, form: str, transforms: Sequence[str]) -> None:
    if strategy == "offload":
        return
    if "offload" not in transforms and "inflate" not in transforms:
        raise ConfigurationError(
            _STRATEGY, f"found {strategy!r}, which requires offload or inflate; transforms are {list(transforms)}"
        )
    if "chunk" in transforms:
        raise ConfigurationError(_STRATEGY, f"found {strategy!r}, which cannot be used with 'chunk' in transforms")
    if form != "wideload":
        raise ConfigurationError(_STRATEGY, f"found {strategy!r}; readers of {_FORMAT} {form!r} do not support chunks")


def check_order(transforms: Sequence[str]) -> None:
    """Refuses an order of transforms that does not work with chunks.

    Raises:
        ConfigurationError: `assemble` is not the first, or `chunk` not the last.
    """
    if "assemble" in transforms[1:]:
        raise ConfigurationError(
            "transforms",
            f"found {list(transforms)}; assemble must be first, as it assembles the chunks of the source topic",
        )
    if "chunk" in transforms[:-1]:
        raise ConfigurationError(
            "transforms",
            f"found {list(transforms)}; chunk must be last, as a transform after it would receive pieces of values",
        )
