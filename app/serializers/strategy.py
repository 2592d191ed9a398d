"""What `large.message.strategy` requires: the serializers of a producer, and what is sent in place of a record."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from app.chunks.destinations import ANY_TOPIC_BYTES, Destination, Destinations
from app.chunks.keys import PRODUCER_KEYS, STRATEGY
from app.config.chunking import Strategy
from app.config.client import coerced
from app.kafka.topics import Topic, topic_of
from app.serializers import config as client_config
from app.serializers.large_message import LargeMessageSerializer
from app.serializers.wrapper import TypedWrapper
from stores.keys import read
from transforms.batch_size import HEADERLESS_OVERHEAD_BYTES, is_within
from transforms.errors import ConfigurationError, SerializationError
from transforms.keyring import TYPE_NAME
from transforms.outgoing import Plan, plan
from transforms.record import Header, Record
from transforms.wrapper import MessageWrapper


def strategy_of(config: Mapping[str, object]) -> Strategy:
    """The value of `large.message.strategy`.

    Raises:
        ConfigurationError: it is none of the three; or it is `chunk`, and payloads are to be encrypted.
    """
    strategy = cast("Strategy", read([STRATEGY], coerced([STRATEGY], config))[STRATEGY.name])
    if strategy == "chunk" and config.get(TYPE_NAME) not in (None, "none"):
        raise ConfigurationError(
            TYPE_NAME,
            f"found {config[TYPE_NAME]!r} with {STRATEGY.name} = 'chunk': chunks stay in Kafka, and are not "
            "encrypted; leave one of the two out",
        )
    return strategy


def check_wrapper(destination: Destination, value: object) -> None:
    """Refuses a wrapped null for a compacted topic.

    Raises:
        SerializationError: it is one.
    """
    topic = destination.topic
    if is_wrapped_null(value) and topic is not None and "compact" in topic.cleanup_policy:
        raise SerializationError(
            topic.name,
            "value",
            f"found a wrapper without a value, and the topic has cleanup.policy={topic.cleanup_policy}: compaction "
            "would keep it like any other value; send None, which deletes the key",
        )


def is_wrapped_null(value: Any) -> bool:
    """Whether a value that is not serialized yet is a wrapper around a null."""
    return isinstance(value, MessageWrapper | TypedWrapper) and value.value is None


class Outgoing:
    """The serializers of a producer, and how it sends records that their topics would refuse.

    The methods are for threads that have no event loop.

    Args:
        whole: the configuration of the client.
        names: the properties that the client knows.
        largest_bytes: the most bytes of a record that the client itself accepts.
        batch_bytes: the most bytes of a batch of several records; 0 if the client splits a refused batch.
        ask: looks up a topic; None to use the cluster of the configuration.

    Attributes:
        serializers: of keys and values, and the client's own properties.
        large: the serializer that offloads values; None if there is none.
        destinations: the topics.
        plain_bytes: the most bytes of key and value, without headers, that no serializer changes; -1 if one may change
            any.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong, or the strategy does not fit the serializers.
    """

    def __init__(
        self,
        whole: Mapping[str, object],
        names: Collection[str],
        largest_bytes: int,
        batch_bytes: int = 0,
        ask: Callable[[str], Awaitable[Topic]] | None = None,
    ) -> None:
        strategy = strategy_of(whole)
        config = {name: value for name, value in whole.items() if name != STRATEGY.name}
        # A misspelled property may have been meant as the strategy.
        self.serializers = client_config.producer(config, [*names, STRATEGY.name], PRODUCER_KEYS)
        with self.serializers.closed_on_error():
            larges = [each for part, each in self.serializers.larges if part == "value"]
            self.large = large = next((each for each in larges if isinstance(each, LargeMessageSerializer)), None)
            if (strategy, large is None) in {("chunk", False), ("auto", True)}:
                raise ConfigurationError(
                    STRATEGY.name,
                    f"found {strategy!r} {'without' if large is None else 'with'} a LargeMessageSerializer for values; "
                    "auto needs one; for chunk, remove it and the properties of its store",
                )
            values = self.serializers.values
            if strategy == "auto" and large is not None:
                large.fall_back(values["chunk.max.message.bytes"])
            ask, stores = ask or partial(topic_of, config), large is not None
            self.destinations = Destinations(values, strategy, ask, largest_bytes, batch_bytes, stores=stores)
            self._acts = stores or strategy == "chunk"
            stages = [stage.target for composable in self.serializers.parts.values() for stage in composable.stages]
            self.plain_bytes = -1 if stages else sys.maxsize
            if large is not None and stages == [large] and type(large) is LargeMessageSerializer:
                self.plain_bytes = large.small_bytes

    def check(self, topic: str, value: object) -> None:
        """Refuses values that the application must not write.

        Raises:
            SerializationError: a wrapped null would be written to a compacted topic.
        """
        if is_wrapped_null(value):
            check_wrapper(self.destinations.wait_for(topic), value)

    def asks(self, key: object, value: object, headers: Sequence[Header]) -> bool:
        """Whether the topic's limit may matter for a record of these bytes."""
        if not self._acts or not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
            return False
        return not is_within(Record(key, value, headers), ANY_TOPIC_BYTES + HEADERLESS_OVERHEAD_BYTES)

    def fits(self, topic: str, record: Record) -> bool:
        """Whether the topic is already known to accept the record; makes no request."""
        known = self.destinations.known(topic)
        return known is not None and plan(record, known.limit_bytes) is Plan.WHOLE

    def written(self, topic: str, record: Record) -> tuple[Record, Iterator[Record] | None]:
        """What is sent in place of a record for which `asks` is true, or the chunks of that.

        The headers of a reference are added to those of the record, which are a list.

        Raises:
            ChunkError: it cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic's limit is unknown, or below a batch of the
                client.
            SerializationError: the payload store failed.
        """
        destination = self.destinations.wait_for(topic)
        if destination.stores(record):
            assert self.large is not None
            value = self.large.offload(topic, cast("list[Header]", record.headers), record.value or b"")
            record = replace(record, value=value)
        return record, destination.pieces(record)


def byte_count(config: Mapping[str, object], name: str, default: object) -> int:
    """The number of bytes that a property of a client has.

    Raises:
        ConfigurationError: it is not a number.
    """
    given = config.get(name, default)
    try:
        return int(str(given))
    except ValueError:
        raise ConfigurationError(name, f"found {given!r}, allowed is a number of bytes") from None
