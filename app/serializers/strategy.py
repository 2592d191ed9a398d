"""What `large.message.strategy` asks of a producer: which stages it needs, and what becomes of a record too large."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from app.chunks.keys import PRODUCER_KEYS, STRATEGY
from app.chunks.topic_limits import Ask, TopicLimits, check_splits
from app.config.chunking import Strategy
from app.config.client import coerced
from app.kafka.topics import Topic
from app.serializers import config as taken
from app.serializers.composable import ComposableSerializer
from app.serializers.large_message import LargeMessageSerializer
from app.serializers.wrapper import TypedWrapper
from stores.keys import read
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError, SerializationError
from transforms.keyring import TYPE_NAME
from transforms.logger_name import logger_name
from transforms.record import Header, Record
from transforms.reference import VALUE, is_reference
from transforms.wrapper import MessageWrapper

__all__ = [
    "ASK_AGAIN_S",
    "Oversized",
    "check_wrapper",
    "is_plain",
    "large_serializer",
    "plain_bytes",
    "strategy_of",
    "told_unknown",
]

_logger = logging.getLogger(logger_name(__name__))

ASK_AGAIN_S = 60.0
"""After this time a topic that did not say what it takes is asked again."""

# Each topic takes records of this length. To ask the cluster for each topic would make the first record late.
_ANY_TOPIC_BYTES = 1_024


def strategy_of(config: Mapping[str, object]) -> Strategy:
    """The value of `large.message.strategy`.

    Raises:
        ConfigurationError: it is none of the three; or it is `chunk`, and payloads are to be encrypted.
    """
    strategy = cast("Strategy", read([STRATEGY], coerced([STRATEGY], config))[STRATEGY.name])
    if strategy == "chunk" and config.get(TYPE_NAME) not in (None, "none"):
        raise ConfigurationError(
            TYPE_NAME,
            f"found {config[TYPE_NAME]!r} beside {STRATEGY.name} = 'chunk': chunks stay in Kafka, and are not "
            "encrypted; leave one of the two out",
        )
    return strategy


def large_serializer(
    strategy: Strategy, serializers: taken.ClientConfig[ComposableSerializer]
) -> LargeMessageSerializer | None:
    """The stage that offloads values, if there is one.

    Raises:
        ConfigurationError: the strategy does not fit the stages.
    """
    values = (stage for part, stage in serializers.larges if part == "value")
    large = next((stage for stage in values if isinstance(stage, LargeMessageSerializer)), None)
    if (strategy, large is None) in {("chunk", False), ("auto", True)}:
        stages = "without" if large is None else "beside"
        raise ConfigurationError(
            STRATEGY.name,
            f"found {strategy!r} {stages} a LargeMessageSerializer for values; allowed are offload and auto "
            "with one, and chunk without",
        )
    return large


def plain_bytes(serializers: taken.ClientConfig[ComposableSerializer]) -> int:
    """The most bytes of key and value that no stage changes and each topic takes; -1 if a stage may change any.

    For bytes of a record without headers.
    """
    stages = [each.target for part in serializers.parts.values() for each in part.stages]
    if not stages:
        return _ANY_TOPIC_BYTES
    large = stages[0]
    if list(serializers.parts) != ["value"] or len(stages) > 1 or type(large) is not LargeMessageSerializer:
        return -1
    return min(_ANY_TOPIC_BYTES, large.small_bytes)


def is_plain(most: int, key: object, value: object) -> bool:
    """Whether key and value are bytes, of `plain_bytes` at most."""
    if type(value) is not bytes:
        return False
    if key is None:
        return len(value) <= most
    return type(key) is bytes and len(key) + len(value) <= most


def check_wrapper(topic: str, value: object, described: Topic | None) -> None:
    """Refuses a wrapped null for a compacted topic.

    Raises:
        SerializationError: it is one.
    """
    if _is_wrapped_null(value) and described and "compact" in described.cleanup_policy:
        raise SerializationError(
            topic,
            "value",
            f"found a wrapper without a value, and the topic has cleanup.policy={described.cleanup_policy}: compaction "
            "would keep it as any other value; send None, which deletes the key",
        )


def told_unknown(topic: str, error: ConfigurationError) -> None:
    """Warns that a topic does not say what it takes."""
    _logger.warning(
        "the max.message.bytes of topic %s is not known, so it may refuse records that are not over "
        "large.message.threshold.bytes: %s",
        topic,
        error.__cause__ or error.reason,
    )


class Oversized:
    """What a producer without an event loop does with records that their topics would refuse.

    Args:
        whole: the configuration of the client.
        names: the keys that the client knows.
        largest: the most bytes of a record that the client itself takes, of its configuration.
        batch: the most bytes of a batch of several records, of the configuration; None if the client sends a refused
            batch again in parts.
        cluster: the configuration with the names that `embedded_client_settings` knows; None if it has these.
        ask: see `TopicLimits`.

    Attributes:
        serializers: of keys and values.
        client: the client's own keys.
        limits: what the topics take.

    Raises:
        ConfigurationError: a key is unknown or missing, its value is wrong, or the strategy does not fit the stages.
    """

    def __init__(
        self,
        whole: Mapping[str, object],
        names: Collection[str],
        largest: Callable[[Mapping[str, object]], int],
        batch: Callable[[Mapping[str, object]], int] | None = None,
        cluster: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self._strategy = strategy_of(whole)
        config = {name: value for name, value in whole.items() if name != STRATEGY.name}
        # The strategy may have been meant by a misspelt key.
        self.serializers = taken.producer(config, [*names, STRATEGY.name], PRODUCER_KEYS)
        self.limits = TopicLimits(config if cluster is None else cluster(config), ask)
        self._unknown_until: dict[str, float] = {}
        self._locks = defaultdict[str, threading.Lock](threading.Lock)
        with self.serializers.closed_on_error():
            self._large = large_serializer(self._strategy, self.serializers)
            values, self.client = self.serializers.values, self.serializers.client
            self._message_bytes: int = values["chunk.max.message.bytes"]
            self._chunk_bytes: int | None = values["chunk.max.bytes"]
            self._largest = largest(config)
            self._batch_bytes = 0 if batch is None else batch(config)
            if self._strategy == "auto" and self._large is not None:
                self._large.fall_back(self._message_bytes)

    def check(self, topic: str, value: object) -> None:
        """Refuses what the application must not write.

        Raises:
            SerializationError: a wrapped null would go to a compacted topic.
        """
        if _is_wrapped_null(value):
            check_wrapper(topic, value, self._described(topic))

    def asks(self, key: object, value: object, headers: Sequence[Header]) -> bool:
        """Whether what the topic takes may matter for this record, whose key and value are serialized."""
        if self._large is None and self._strategy == "offload":
            return False
        size = len(value) if isinstance(value, bytes | bytearray) else 0
        if isinstance(key, bytes | bytearray):
            size += len(key)
        for name, data in headers:
            size += len(name if name.isascii() else name.encode()) + len(data or b"")
        return size > _ANY_TOPIC_BYTES

    def fits(self, topic: str, record: Record) -> bool:
        """Whether it is known already that the topic takes the record; asks nobody."""
        known = self.limits.known(topic)
        return known is not None and not Chunking(self._limit_bytes(known)).wants(record)

    def written(self, topic: str, record: Record, headers: list[Header]) -> tuple[Record, Iterator[Record] | None]:
        """What is to be sent in place of a record for which `asks` is true: a record, or the chunks of one.

        Args:
            topic: the topic.
            record: with key and value serialized.
            headers: of the record; those of a reference are added.

        Raises:
            ChunkError: it cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic does not say what it takes; or it takes less
                than a batch of the client.
            SerializationError: the payload store failed.
        """
        described = self._described(topic)
        chunking = Chunking(self._limit_bytes(described))
        if not chunking.wants(record):
            return record, None
        if self._large is not None and not is_reference(headers, VALUE):
            assert record.value is not None
            value = self._large.offload(topic, headers, record.value)
            record = Record(record.key, value, headers, record.timestamp)
        chunks = self._strategy == "chunk" or (self._strategy == "auto" and described is not None)
        if not chunks or not chunking.wants(record):
            return record, None
        check_splits(topic, described, len(record.value or b""), chunking.limit_bytes, self._message_bytes)
        if described is not None and self._batch_bytes > described.max_message_bytes:
            raise ConfigurationError(
                "batch.size",
                f"found {self._batch_bytes:,}, and topic {topic} takes batches of {described.max_message_bytes:,} "
                "bytes: it would refuse several chunks in one batch; allowed is that or less",
            )
        return record, chunking.split(record, str(uuid.uuid4()))

    def refused(self, topic: str) -> None:
        """Takes in that a topic refused a record as too large: it takes less now than it did."""
        self._unknown_until.pop(topic, None)
        self.limits.forget(topic)

    def _limit_bytes(self, topic: Topic | None) -> int:
        limits = (self._largest, self._chunk_bytes, None if topic is None else topic.max_message_bytes)
        return min(limit for limit in limits if limit is not None)

    def _described(self, topic: str) -> Topic | None:
        """None if the cluster does not describe the topic, and the record can do without."""
        if (known := self.limits.known(topic)) is not None:
            return known
        with self._locks[topic]:  # one question for all threads that wait
            if self._unknown_until.get(topic, 0.0) > time.monotonic():
                return None
            try:
                return self.limits.of(topic)
            except ConfigurationError as exc:
                if self._strategy == "chunk" and self._chunk_bytes is None:
                    raise
                if topic not in self._unknown_until and self._chunk_bytes is None:
                    told_unknown(topic, exc)
                self._unknown_until[topic] = time.monotonic() + ASK_AGAIN_S
                return None


def _is_wrapped_null(value: Any) -> bool:
    return isinstance(value, MessageWrapper | TypedWrapper) and value.value is None
