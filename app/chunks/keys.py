"""The keys of a client of chunks, which stand in one configuration with those of the client itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from app.serializers.arguments import Arguments
from app.serializers.options import coerced
from stores.keys import Key, Value, read, unknown
from transforms.assembly import Limits

__all__ = ["CONSUMER_KEYS", "PRODUCER_KEYS", "apart", "arguments_of", "limits"]

_DEFAULTS = Limits()

_MESSAGE_BYTES = Key(
    "chunk.max.message.bytes",
    "int",
    "The largest value that travels as chunks.",
    default=_DEFAULTS.message_bytes,
    minimum=1,
)

PRODUCER_KEYS: Sequence[Key] = (
    Key(
        "chunk.max.bytes",
        "int",
        "The most bytes of a chunk as a batch of one; by default `max.message.bytes` of the topic.",
        minimum=1,
    ),
    _MESSAGE_BYTES,
)

CONSUMER_KEYS: Sequence[Key] = (
    _MESSAGE_BYTES,
    Key(
        "max.pending.chunked.message",
        "int",
        "How many messages may be incomplete; where there are more, the oldest is discarded.",
        default=_DEFAULTS.messages,
        minimum=1,
    ),
    Key(
        "max.pending.chunked.bytes",
        "int",
        "How many bytes their chunks may hold; where there are more, the oldest is discarded.",
        default=_DEFAULTS.pending_bytes,
        minimum=1,
    ),
    Key(
        "expire.time.of.incomplete.chunked.message.ms",
        "int",
        "How long a message may be incomplete while its partition is read; 0 for ever.",
        default=_DEFAULTS.expire_ms,
        minimum=0,
    ),
    Key(
        "auto.ack.oldest.chunked.message.on.queue.full",
        "boolean",
        "Whether the oldest message is given up without a word where there are too many, and only counted.",
        default=False,
    ),
)


def arguments_of(client: type) -> Arguments:
    """What a client of aiokafka's takes, its serializers included: they are plain functions here."""
    parameters = inspect.signature(client).parameters.values()
    return Arguments({each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY})


def apart(
    keys: Sequence[Key], arguments: Arguments, whole: Mapping[str, object]
) -> tuple[dict[str, Value | None], dict[str, Any]]:
    """The values of our keys, and what is left for the client.

    Raises:
        ConfigurationError: a key is neither ours nor the client's, or a value may not stand under ours.
    """
    ours = {key.name: key for key in keys}
    for name in whole:
        if name not in ours and not arguments.knows(name):
            raise unknown(name, [*ours, *arguments.keys()])
    given = {name: coerced(key, whole[name]) for name, key in ours.items() if whole.get(name) is not None}
    return read(keys, given), {name: value for name, value in whole.items() if name not in ours}


def limits(values: Mapping[str, Value | None]) -> Limits:
    """What the keys of a consumer allow."""
    return Limits(
        messages=cast("int", values["max.pending.chunked.message"]),
        pending_bytes=cast("int", values["max.pending.chunked.bytes"]),
        message_bytes=cast("int", values["chunk.max.message.bytes"]),
        expire_ms=cast("int", values["expire.time.of.incomplete.chunked.message.ms"]),
    )
