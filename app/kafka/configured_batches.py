"""A KIP-126 producer from Kafka's properties: aiokafka's producer, the batches, the buffer, and the topics' limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from app.config.client import LIMIT, coerced, limits_names
from app.config.idempotence import idempotent
from app.config.naming import check_config
from app.kafka.arguments import Arguments
from app.kafka.batches.client import BatchingProducer
from app.kafka.batches.outbox import BatchSettings
from app.kafka.clients import ClusterError, describe
from app.kafka.shielded import shielded
from app.kafka.topics import topic_of
from stores.keys import Key, read, unknown
from transforms.errors import ConfigurationError
from transforms.logger_name import logger_name

_logger = logging.getLogger(logger_name(__name__))

_DEFAULTS = BatchSettings()
_BUFFER = Key(
    "buffer.memory",
    "bytes",
    "The maximum size of the undelivered records; at this limit `send` waits. A single record may exceed it.",
    default=33_554_432,
    minimum=1,
)
_BLOCK = Key("max.block.ms", "int", "How long `send` waits for the buffer.", default=60_000, minimum=0)
_BATCH = Key(
    "batch.size",
    "bytes",
    "A batch is closed when its estimated compressed size reaches this, or the limit of its topic.",
    default=_DEFAULTS.batch_bytes,
    minimum=1,
)
_LINGER = Key("linger.ms", "int", "How long a batch that is not full waits for more records.", default=0, minimum=0)
_DELIVERY = Key(
    "delivery.timeout.ms",
    "int",
    "The time from the first record of a batch until it is acknowledged.",
    default=int(_DEFAULTS.delivery_timeout_s * 1000),
    minimum=1,
)
KEYS: Sequence[Key] = (_BATCH, _LINGER, _BUFFER, _BLOCK, _DELIVERY, LIMIT)
"""The properties that are not aiokafka's."""

_NAMES = frozenset(key.name for key in KEYS)
_ARGUMENTS = Arguments.of(AIOKafkaProducer).without("serializer")
# Replaced by properties of ours.
_REPLACED = ("linger_ms", "max_batch_size", "max_request_size")
_REQUEST_BYTES = 2**31 - 1


class ConfiguredBatchingProducer(BatchingProducer):
    """A `BatchingProducer` from Kafka's properties, which owns its aiokafka producer; for `async with`.

    It looks up the limit of each topic with the first record for it, so that no batch is built which the topic refuses.
    If the topic refuses a batch within this limit, the limit is looked up again with the next record.

    Args:
        config: properties with Kafka's names: `KEYS`, and the arguments of `AIOKafkaProducer` with dots.
            `enable.idempotence` is true by default.
        options: arguments in place of properties, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a property is unknown, a value is wrong, or a name is over its limit.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _ARGUMENTS.merged(config, options)
        check_config(whole, enabled=limits_names(whole))
        names = _ARGUMENTS.keys()
        known = [*_NAMES, *(key for key in names if key.replace(".", "_") not in _REPLACED)]
        for name in whole:
            if name not in known:
                raise unknown(name, known)
        values = cast("Mapping[str, Any]", read(KEYS, coerced(KEYS, whole)))
        client = {name: value for name, value in whole.items() if name not in _NAMES}
        arguments = {**_ARGUMENTS.defaults, **_ARGUMENTS.read(idempotent(client)), "max_request_size": _REQUEST_BYTES}
        if arguments["acks"] == 0:
            raise ConfigurationError("acks", "found 0, allowed are 1 and all: with 0, brokers do not report refusals")
        settings = BatchSettings(
            batch_bytes=values[_BATCH.name],
            linger_s=values[_LINGER.name] / 1000,
            delivery_timeout_s=values[_DELIVERY.name] / 1000,
        )
        super().__init__(
            AIOKafkaProducer(**arguments),
            settings,
            buffer_bytes=values[_BUFFER.name],
            max_block_s=values[_BLOCK.name] / 1000,
        )
        self._config = whole
        self._limits: dict[str, asyncio.Task[int | None]] = {}

    async def __aenter__(self) -> Self:
        """Starts the aiokafka producer."""
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it, and stops the aiokafka producer."""
        try:
            await self.close()
        finally:
            await self._producer.stop()

    async def _limit(self, topic: str) -> int | None:
        if topic not in self._limits:
            self._limits[topic] = asyncio.create_task(_limit_bytes(self._config, topic))
        # A cancelled send does not cancel the request that others wait for.
        return await shielded(self._limits[topic])

    def _too_large(self, topic: str, size: int) -> None:
        # A batch over the limit was estimated wrongly. If a batch within it is refused, the limit was lowered.
        found = self._limits.get(topic)
        if found is not None and found.done() and size <= (found.result() or 0):
            del self._limits[topic]


async def _limit_bytes(config: Mapping[str, object], topic: str) -> int | None:
    """The size of the largest batch that a topic accepts; None, with a warning, if the cluster does not report it."""
    try:
        return (await topic_of(config, topic)).max_message_bytes
    except (ConfigurationError, ClusterError, KafkaError, KeyError) as exc:
        reason = describe(exc) if isinstance(exc, KafkaError) else str(exc)
        _logger.warning("the limit of topic %s is not known; batches that it refuses are split: %s", topic, reason)
        return None
