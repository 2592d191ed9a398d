"""The keys of a chunk client, which stand in one configuration with the keys of aiokafka's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from app.config.chunking import CHUNK_KEYS
from app.config.client import LIMIT, coerced, limits_names
from app.config.naming import check_config
from app.kafka.arguments import Arguments
from stores.keys import Key, Value, read, unknown
from transforms.assembly import Limits
from transforms.errors import ConfigurationError

__all__ = ["CONSUMER_KEYS", "PRODUCER_KEYS", "apart", "limits"]

_DEFAULTS = Limits()
# The worker derives these from `in.flight.bytes`, which clients do not have.
_OWN_DEFAULTS: Mapping[str, int] = {
    "chunk.max.message.bytes": _DEFAULTS.message_bytes,
    "max.pending.chunked.bytes": _DEFAULTS.pending_bytes,
}
_KEYS = {key.name: replace(key, default=_OWN_DEFAULTS.get(key.name, key.default)) for key in CHUNK_KEYS}


def _keys(*names: str) -> Sequence[Key]:
    return (*(_KEYS[name] for name in names), LIMIT)


PRODUCER_KEYS = _keys("chunk.max.bytes", "chunk.max.message.bytes")
CONSUMER_KEYS = _keys(
    "chunk.max.message.bytes",
    "max.pending.chunked.message",
    "max.pending.chunked.bytes",
    "expire.time.of.incomplete.chunked.message.ms",
    "auto.ack.oldest.chunked.message.on.queue.full",
)


def apart(
    keys: Sequence[Key], arguments: Arguments, whole: Mapping[str, object]
) -> tuple[dict[str, Value | None], dict[str, Any]]:
    """The values of our keys, and the rest of the configuration, for the client.

    Raises:
        ConfigurationError: a name is over its limit, a key is neither ours nor the client's, or a value is wrong.
    """
    check_config(whole, enabled=limits_names(whole))
    ours = {key.name: key for key in keys}
    for name in whole:
        if name not in ours and not arguments.knows(name):
            raise unknown(name, [*ours, *arguments.keys()])
    return read(keys, coerced(keys, whole)), {name: value for name, value in whole.items() if name not in ours}


def limits(values: Mapping[str, Value | None]) -> Limits:
    """The limits that the keys of a consumer set.

    Raises:
        ConfigurationError: one message may be larger than all pending messages together.
    """
    pending, message = cast("int", values["max.pending.chunked.bytes"]), cast("int", values["chunk.max.message.bytes"])
    if message > pending:
        raise ConfigurationError(
            "chunk.max.message.bytes",
            f"found {message:,}, allowed is no more than max.pending.chunked.bytes, which is {pending:,}",
        )
    return Limits(
        messages=cast("int", values["max.pending.chunked.message"]),
        pending_bytes=pending,
        message_bytes=message,
        expire_ms=cast("int", values["expire.time.of.incomplete.chunked.message.ms"]),
    )
