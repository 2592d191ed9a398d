"""What a Faust app writes in place of large keys and values: references and chunks, by `large.message.strategy`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, cast

from faust.types import AppT

from app.chunks.destinations import ESTIMATE_BYTES, described
from app.chunks.keys import CONSUMER_KEYS, STRATEGY
from app.chunks.keys import PRODUCER_KEYS as CHUNK_PRODUCER_KEYS
from app.serializers.faust_app import cluster_arguments
from app.serializers.large_message import LargeMessageSerializer
from app.serializers.options import MAX_BLOCK, PRODUCER_KEYS, STORE_KEY, is_store_key, own_names
from app.serializers.strategy import Outgoing, byte_count, strategy_of
from stores.keys import misspelt, unknown
from stores.registry import STORE_CLASS
from stores.store import COMMON_KEYS
from transforms.batch_size import is_within
from transforms.errors import ConfigurationError, SerializationError, WrapError
from transforms.record import Header, Record
from transforms.reference import KEY, VALUE, Field
from transforms.wrapper import MessageWrapper, Wrap

_NAMES = ("bootstrap.servers", "max.request.size", "max.poll.interval.ms", MAX_BLOCK.name)
_KEYS = (STRATEGY, STORE_KEY, *PRODUCER_KEYS, *COMMON_KEYS, *CHUNK_PRODUCER_KEYS, *CONSUMER_KEYS)
_OF_CLIENTS = ("security.", "sasl.", "ssl.")
_STAGES = tuple(f"{part}.{kind}" for part in ("key", "value") for kind in ("serializer", "deserializer"))


class Writes:
    """The serializers of one schema, and how a record that its topic would refuse is sent.

    Args:
        app: the app.
        config: of the schema, with the properties of the app's own clients.
        parts: what is serialized: keys, values, or both.
        wrap: puts values into wrappers; None if they are not wrapped.

    Raises:
        ConfigurationError: a property is unknown or missing, its value is wrong, or the strategy needs a store and
            there is none.
    """

    def __init__(self, app: AppT, config: Mapping[str, object], parts: Collection[Field], wrap: Wrap | None) -> None:
        self._wrap = wrap
        self._strategy = strategy_of(config)
        for name in config:
            if name.removesuffix("s") in _STAGES:
                raise ConfigurationError(name, "is not supported with Faust: codecs and models replace it; remove it")
        stages = {
            f"{part.name}.serializer": LargeMessageSerializer
            for part in parts
            if part is KEY or self._strategy != "chunk"
        }
        names = [*_NAMES, *(key.name for key in CONSUMER_KEYS), *(n for n in config if n.startswith(_OF_CLIENTS))]
        known = [*names, *(key.name for key in _KEYS)]
        store = cast("str | type | None", config.get(STORE_CLASS))
        if stages and store is None:
            for name in config:
                if misspelt(name, known) is not None:
                    raise unknown(name, known)  # a misspelled property is the better message than a missing one
            what = "keys=True" if self._strategy == "chunk" else f"{STRATEGY.name} = {self._strategy!r}"
            raise ConfigurationError(
                STORE_CLASS, f'is missing; {what} needs a store (only {STRATEGY.name} = "chunk" for values does not)'
            )
        if store is not None and not stages:  # which only the reader has, and checks
            any_name = own_names(store) is None
            names += [n for n in config if is_store_key(n, store) or (any_name and misspelt(n, known) is None)]
        self._largest = byte_count(config, "max.request.size", None) - ESTIMATE_BYTES
        ask = partial(described, cluster_arguments(app))
        self._outgoing = Outgoing({**config, **stages}, names, self._largest, app.conf.producer_max_batch_size, ask)
        larges = self._outgoing.serializers.larges
        self._serializers = {part: cast("LargeMessageSerializer", stage) for part, stage in larges}
        self.refused = self._outgoing.destinations.forget
        self.close = self._outgoing.serializers.close
        self.closed_on_error = self._outgoing.serializers.closed_on_error

    def wraps(self, value: bytes | None) -> bool:
        """Whether `wrapped` does anything."""
        return self._wrap is not None and self._wrap.wants(Record(None, value))

    def wrapped(self, topic: str, value: bytes | None, headers: list[Header]) -> bytes | None:
        """The wrapper, with the headers in it. Blocks for a null, if the topic was not looked up before.

        Raises:
            SerializationError: the wrapper cannot hold a header; or a wrapped null, which deletes nothing, would be
                written to a compacted topic.
        """
        assert self._wrap is not None
        if value is None:
            self._outgoing.check(topic, MessageWrapper({}, None))
        try:
            wrapped = self._wrap.wrap(Record(None, value, headers)).value
        except WrapError as exc:
            raise SerializationError(topic, VALUE.name, f"LargeMessageSchema: {exc}") from exc
        headers.clear()
        return wrapped

    def wants(self, part: Field, data: object, headers: list[Header]) -> bool:
        """Whether `offloaded` calls the store."""
        serializer = self._serializers.get(part.name)
        return serializer is not None and serializer.wants(data, headers)

    def offloaded(self, part: Field, topic: str, data: object, headers: list[Header]) -> bytes | None:
        """The path of the payload; the reference's headers are added to `headers`. Blocks.

        Raises:
            SerializationError: the store failed; `__cause__` is its error.
        """
        return self._serializers[part.name].serialize(topic, headers, data)

    def check_whole(self, topic: str, value: object, headers: list[Header]) -> None:
        """Refuses a value that must be sent in chunks, for methods that can send only one record.

        Raises:
            SerializationError: the app's producer would refuse the record.
        """
        if self._strategy == "offload" or not isinstance(value, bytes):
            return
        if not is_within(Record(None, value, headers), self._largest):
            raise SerializationError(
                topic,
                VALUE.name,
                f"LargeMessageSchema: it is large ({len(value):,} bytes) and must be sent in chunks, which requires "
                "`await topic.send(…)` in an app with Topic=LargeMessageTopic and without stream_publish_on_commit",
            )

    async def sized(
        self, topic: str, key: Any, value: Any, headers: list[Header], timestamp_s: float | None
    ) -> tuple[Any, Iterator[Record] | None]:
        """The value to send, and None; or the unchanged value, and its chunks.

        The headers of a reference are added to `headers`.

        Raises:
            ChunkError: it cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic's limit is unknown, or below
                `producer_max_batch_size`.
            SerializationError: the store failed.
        """
        if not self._outgoing.asks(key, value, headers):
            return value, None
        record = Record(key, value, headers, int((time.time() if timestamp_s is None else timestamp_s) * 1000))
        if self._outgoing.fits(topic, record):
            return value, None
        record, pieces = await asyncio.to_thread(self._outgoing.written, topic, record)
        return record.value, pieces
