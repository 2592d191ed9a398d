"""What a Faust app writes in place of large keys and values: references and chunks, by `large.message.strategy`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import cast

from faust.types import AppT

from app.chunks.destinations import ESTIMATE_BYTES, described
from app.chunks.keys import CONSUMER_KEYS, STRATEGY
from app.chunks.keys import PRODUCER_KEYS as CHUNK_PRODUCER_KEYS
from app.serializers.faust_app import cluster_arguments
from app.serializers.large_message import LargeMessageSerializer
from app.serializers.options import MAX_BLOCK, PRODUCER_KEYS, STORE_KEY, is_store_key
from app.serializers.strategy import Oversized, strategy_of
from stores.keys import misspelt, unknown
from stores.registry import STORE_CLASS, named_keys, store_keys
from stores.store import COMMON_KEYS
from transforms.chunk import Chunking
from transforms.errors import ConfigurationError, SerializationError
from transforms.record import Header, Record
from transforms.reference import KEY, VALUE, Field
from transforms.wrapper import MessageWrapper

__all__ = ["Writes"]

_NAMES = frozenset({"bootstrap.servers", "max.request.size", "max.poll.interval.ms", MAX_BLOCK.name})
_OF_CLIENTS = ("security.", "sasl.", "ssl.")


class Writes:
    """The serializers of one schema, and what becomes of a record that its topic would refuse.

    Args:
        app: the app.
        config: of the schema, with the keys of the app's own clients.
        parts: what is serialized: keys, values, or both.

    Raises:
        ConfigurationError: a key is unknown or missing, its value is wrong, or the strategy needs a store and there is
            none.
    """

    def __init__(self, app: AppT, config: Mapping[str, object], parts: Collection[Field]) -> None:
        self._strategy = strategy_of(config)
        has_store = config.get(STORE_CLASS) is not None
        names = [*_NAMES, *(key.name for key in CONSUMER_KEYS), *(n for n in config if n.startswith(_OF_CLIENTS))]
        keys = (STRATEGY, STORE_KEY, *PRODUCER_KEYS, *COMMON_KEYS, *CHUNK_PRODUCER_KEYS)
        known = [*names, *(key.name for key in keys)]
        if not has_store and (self._strategy != "chunk" or KEY in parts):
            for name in config:
                if misspelt(name, known) is not None:
                    raise unknown(name, known)  # that something else is missing would be half of the truth
            what = "keys=True" if self._strategy == "chunk" else f"{STRATEGY.name} = {self._strategy!r}"
            raise ConfigurationError(
                STORE_CLASS, f'is missing; {what} needs a store, and only {STRATEGY.name} = "chunk" for values does not'
            )
        stages = {
            f"{part.name}.serializer": LargeMessageSerializer
            for part in parts
            if part is KEY or self._strategy != "chunk"
        }
        if not stages and has_store:
            config = _without_store(config, known)
        self._largest = cast("int", config["max.request.size"]) - ESTIMATE_BYTES
        self._oversized = Oversized(
            {**config, **stages},
            names,
            self._largest,
            app.conf.producer_max_batch_size,
            partial(described, cluster_arguments(app)),
        )
        larges = self._oversized.serializers.larges
        self._serializers = {part: cast("LargeMessageSerializer", stage) for part, stage in larges}

    def close(self) -> None:
        """Closes the stores."""
        self._oversized.serializers.close()

    def wants(self, part: Field, data: object, headers: list[Header]) -> bool:
        """Whether `offloaded` calls the store."""
        serializer = self._serializers.get(part.name)
        return serializer is not None and serializer.wants(data, headers)

    def offloaded(self, part: Field, topic: str, data: object, headers: list[Header]) -> bytes | None:
        """The path of the payload; the reference's headers join `headers`. Blocks.

        Raises:
            SerializationError: the store failed; `__cause__` is its error.
        """
        return self._serializers[part.name].serialize(topic, headers, data)

    def check_null(self, topic: str) -> None:
        """Refuses a wrapped null for a compacted topic. Blocks where the topic was not asked before.

        Raises:
            SerializationError: the topic is compacted.
        """
        self._oversized.check(topic, MessageWrapper({}, None))

    def check_whole(self, topic: str, value: object, headers: list[Header]) -> None:
        """Refuses a value that must go in chunks, for what can send only one record.

        Raises:
            SerializationError: the app's producer would refuse the record.
        """
        if self._strategy == "offload" or not isinstance(value, bytes):
            return
        if Chunking(self._largest).wants(Record(None, value, headers)):
            raise SerializationError(
                topic,
                VALUE.name,
                f"LargeMessageSchema: it is large ({len(value):,} bytes) and must go in chunks, which only `await "
                "topic.send(…)` sends, in an app with Topic=LargeMessageTopic and without stream_publish_on_commit",
            )

    async def sized(
        self, topic: str, key: object, value: object, headers: list[Header], timestamp_s: float | None
    ) -> tuple[object, Iterator[Record] | None]:
        """What is sent in place of a record that its topic would refuse.

        Args:
            topic: the topic.
            key: serialized.
            value: serialized.
            headers: of the record; those of a reference join them.
            timestamp_s: of the record, since the epoch.

        Returns:
            The value, and None; or the value as it was, and its chunks.

        Raises:
            ChunkError: it cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic does not say what it takes; or it takes less
                than `producer_max_batch_size`.
            SerializationError: the store failed.
        """
        if not isinstance(value, bytes) or not isinstance(key, bytes | None):
            return value, None
        if not self._oversized.asks(key, value, headers):
            return value, None
        stamp_ms = int((time.time() if timestamp_s is None else timestamp_s) * 1000)
        record = Record(key, value, headers, stamp_ms)
        if self._oversized.fits(topic, record):
            return value, None
        record, pieces = await asyncio.to_thread(self._oversized.written, topic, record)
        return record.value, pieces

    def refused(self, topic: str) -> None:
        """Takes in that a topic refused a record as too large."""
        self._oversized.destinations.forget(topic)


def _without_store(config: Mapping[str, object], known: Collection[str]) -> Mapping[str, object]:
    """The keys of a schema that only reads references, without those of its store, which only the reader has."""
    store = cast("str | type", config[STORE_CLASS])
    any_key = store_keys(store) is None and not named_keys(store)

    def is_stores(name: str) -> bool:
        foreign = any_key and name not in known and misspelt(name, known) is None
        return name != STRATEGY.name and (foreign or is_store_key(name, store))

    return {name: value for name, value in config.items() if not is_stores(name)}
