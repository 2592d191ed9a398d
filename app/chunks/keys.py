"""The properties of a chunk client, in one configuration with those of aiokafka's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.config.chunking import CHUNK_KEYS
from app.config.client import LIMIT, coerced, limits_names
from app.config.naming import check_config
from app.kafka.arguments import Arguments
from stores.keys import Key, Value, read, unknown
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError

_DEFAULTS = Limits()
# Differences from the worker, which derives its defaults from `in.flight.bytes`.
_OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "chunk.max.message.bytes": {
        "doc": "The maximum size in bytes of a value that is split, and of a message that is assembled.",
        "default": _DEFAULTS.message_bytes,
    },
    "max.pending.chunked.message": {
        "doc": "The maximum number of incomplete messages that are held in memory. The chunks of further messages are "
        "read from the log again."
    },
    "max.pending.chunked.bytes": {
        "doc": "The maximum total size in bytes of the chunks of incomplete messages in memory. Further chunks are "
        "read from the log again.",
        "default": _DEFAULTS.pending_bytes,
    },
    "expire.time.of.incomplete.chunked.message.ms": {
        "doc": "The maximum time in milliseconds that a message waits for its last chunk before it is discarded. "
        "`0` waits forever. Only the time counts in which a call reads its partition."
    },
    "auto.ack.oldest.chunked.message.on.queue.full": {
        "doc": "Whether the oldest incomplete message is dropped and only counted if there are too many. If `false`, "
        "the chunks of one of them are read from the log again."
    },
    "large.message.strategy": {
        "doc": "What a producer does with a large value. `offload`: it stores the value as a payload. `chunk`: it "
        "sends the value as chunks if its topic would refuse it, and needs no store. `auto`: it stores the value as a "
        "payload, and sends it as chunks while the store is unavailable, up to `chunk.max.message.bytes`."
    },
}
STRATEGY, _CHUNK_BYTES, _MESSAGE_BYTES, *_PENDING = (replace(key, **_OTHERWISE.get(key.name, {})) for key in CHUNK_KEYS)
_LOOKBACK = Key(
    "chunk.lookback",
    "int",
    "How many offsets before the start position a message's first chunk may be.",
    default=10_000,
    minimum=0,
)

PRODUCER_KEYS: Sequence[Key] = (_CHUNK_BYTES, _MESSAGE_BYTES, LIMIT)
CONSUMER_KEYS: Sequence[Key] = (_MESSAGE_BYTES, *_PENDING, _LOOKBACK, LIMIT)


def apart(
    keys: Sequence[Key], arguments: Arguments, whole: Mapping[str, object]
) -> tuple[dict[str, Value | None], dict[str, Any]]:
    """The values of our keys, and the rest of the configuration, for the client.

    Raises:
        ConfigurationError: a name is over its limit, a property is neither ours nor the client's, or a value is wrong.
    """
    check_config(whole, enabled=limits_names(whole))
    names = [*(key.name for key in keys), *arguments.keys()]
    for name in whole:
        if name not in names:
            raise unknown(name, names)
    ours = {key.name for key in keys}
    return read(keys, coerced(keys, whole)), {name: value for name, value in whole.items() if name not in ours}


def limits(values: Mapping[str, Any]) -> Limits:
    """The limits that the properties of a consumer set.

    Raises:
        ConfigurationError: one message may be larger than all pending messages together.
    """
    pending, message = values["max.pending.chunked.bytes"], values[_MESSAGE_BYTES.name]
    if message > pending:
        raise ConfigurationError(
            _MESSAGE_BYTES.name,
            f"found {message:,}, allowed is no more than max.pending.chunked.bytes, which is {pending:,}",
        )
    return Limits(
        messages=values["max.pending.chunked.message"],
        pending_bytes=pending,
        message_bytes=message,
        expire_ms=values["expire.time.of.incomplete.chunked.message.ms"],
        drops_oldest=values["auto.ack.oldest.chunked.message.on.queue.full"],
    )
