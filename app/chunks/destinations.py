"""Destinations: the limits of an application's topics, and what its producer sends in place of larger records.

A topic is looked up once, again when it has refused a record, and a minute after a look-up that failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import KafkaError

from app.config.chunking import Strategy
from app.kafka.admin import ADMIN_ARGUMENTS, AdminClient
from app.kafka.clients import describe
from app.kafka.topics import Topic, topics
from transforms.batch_size import HEADER_OVERHEAD_BYTES, HEADERLESS_OVERHEAD_BYTES
from transforms.chunk import Chunking
from transforms.errors import ChunkError, ConfigurationError
from transforms.logger_name import logger_name
from transforms.outgoing import Plan, plan
from transforms.record import Record
from transforms.reference import VALUE, is_reference

_logger = logging.getLogger(logger_name(__name__))
_LOOKUP_S = 30.0
_ASK_AGAIN_S = 60.0

ANY_TOPIC_BYTES = 1_024
"""Each topic accepts a key and a value of this many bytes together; looking it up would delay the first record."""

ESTIMATE_BYTES = 21
"""aiokafka and kafka-python compare their own estimate with `max_request_size`, with room for the longest varints."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic, and how records that it would refuse are sent.

    Attributes:
        name: of the topic.
        topic: its description by the cluster; None if there is none.
        limit_bytes: the most bytes of a record, alone in a batch.
        threshold_bytes: as `transforms.outgoing.plan` has it.
        message_bytes: the longest value that is split; None if none is.
        batch_bytes: the most bytes of a batch, if the client never splits a refused batch; 0 if it does.
    """

    name: str
    topic: Topic | None
    limit_bytes: int
    threshold_bytes: float | None
    message_bytes: int | None
    batch_bytes: int

    @property
    def plain_bytes(self) -> int:
        """The most bytes of key and value up to which a record without headers is always sent unchanged."""
        most = self.limit_bytes - HEADERLESS_OVERHEAD_BYTES
        return most if self.topic else min(most, ANY_TOPIC_BYTES)

    def stores(self, record: Record) -> bool:
        """Whether the value of a record is stored."""
        planned = plan(record, self.limit_bytes, threshold_bytes=self.threshold_bytes)
        return planned is Plan.OFFLOAD and not is_reference(record.headers, VALUE)

    def pieces(self, record: Record) -> Iterator[Record] | None:
        """The chunks of a record whose value is not stored; None if it is sent unchanged.

        A record that is too large and cannot be reduced here is sent unchanged too: its client may still compress it.

        Raises:
            ChunkError: it would be split, and cannot be, or its topic is compacted.
            ConfigurationError: several of its chunks in one batch would be refused.
        """
        limit, size = self.limit_bytes, len(record.value or b"")
        planned = plan(record, limit, message_bytes=self.message_bytes)
        if planned is Plan.WHOLE or self.message_bytes is None or not size:
            return None
        if planned is Plan.REFUSED:
            raise ChunkError(size, limit, f"chunk.max.message.bytes is {self.message_bytes:,}")
        if self.topic is not None and "compact" in self.topic.cleanup_policy:
            what = f"topic {self.name} has cleanup.policy={self.topic.cleanup_policy}"
            raise ChunkError(size, limit, f"{what}, and a chunk would be compacted away by the next one of its key")
        if self.topic is not None and self.batch_bytes > self.topic.max_message_bytes:
            raise ConfigurationError(
                "batch.size",
                f"found {self.batch_bytes:,}, but topic {self.name} accepts batches of at most "
                f"{self.topic.max_message_bytes:,} bytes, and would refuse several chunks in one batch; set it to at "
                "most this limit",
            )
        return Chunking(limit).split(record, str(uuid.uuid4()))


class Destinations:
    """The topics of one producer. Several threads may use it.

    Args:
        values: of `app.chunks.keys.PRODUCER_KEYS`.
        strategy: of large values.
        ask: looks up a topic; raises a KeyError if it does not exist.
        largest_bytes: the most bytes of a record that the client itself accepts.
        batch_bytes: see `Destination`.
        stores: whether there is a store.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        strategy: Strategy,
        ask: Callable[[str], Awaitable[Topic]],
        largest_bytes: int,
        batch_bytes: int = 0,
        *,
        stores: bool = False,
    ) -> None:
        self._chunk_bytes: int | None = values["chunk.max.bytes"]
        self._message_bytes: int = values["chunk.max.message.bytes"]
        self._strategy = strategy
        self._ask = ask
        self._largest_bytes = min(largest_bytes, self._chunk_bytes or largest_bytes)
        self._batch_bytes = batch_bytes
        self._threshold_bytes = math.inf if stores else None
        self._found: dict[str, tuple[Destination, float]] = {}
        self._locks = defaultdict[str, threading.Lock](threading.Lock)

    def known(self, name: str) -> Destination | None:
        """A topic that need not be looked up now."""
        found = self._found.get(name)
        return found[0] if found is not None and time.monotonic() < found[1] else None

    async def of(self, name: str) -> Destination:
        """A topic, which is looked up if it is not known.

        Raises:
            ConfigurationError: the topic could not be looked up, and no size of chunks is configured.
        """
        if (known := self.known(name)) is not None:
            return known
        topic, until_s = None, math.inf
        try:
            topic = await asyncio.wait_for(self._ask(name), _LOOKUP_S)
        except Exception as exc:  # a client that cannot be created from these properties may raise any
            reason = describe(exc) if isinstance(exc, KafkaError) else str(exc) or type(exc).__name__
            if isinstance(exc, KeyError):
                reason = f"topic {name} does not exist"
            if self._chunk_bytes is None and self._strategy == "chunk":
                raise ConfigurationError(
                    "chunk.max.bytes", f"is not set, and topic {name} does not report its limit: {reason}"
                ) from exc
            if self._chunk_bytes is None and name not in self._found:
                _logger.warning(
                    "the max.message.bytes of topic %s is unknown, so the topic may refuse records within "
                    "large.message.threshold.bytes: %s",
                    name,
                    reason,
                )
            until_s = time.monotonic() + _ASK_AGAIN_S
        splits = self._strategy == "chunk" or (self._strategy == "auto" and topic is not None)
        limit = self._largest_bytes if topic is None else min(self._largest_bytes, topic.max_message_bytes)
        message_bytes = self._message_bytes if splits else None
        found = Destination(name, topic, limit, self._threshold_bytes, message_bytes, self._batch_bytes)
        self._found[name] = found, until_s
        return found

    def wait_for(self, name: str) -> Destination:
        """As `of`, for threads without an event loop."""
        found = self.known(name)
        if found is None:
            # One request for all threads that wait; on another one, since this one may have a running event loop.
            with self._locks[name], ThreadPoolExecutor(1, "topic-limits") as pool:
                found = pool.submit(asyncio.run, self.of(name)).result()
        return found

    def forget(self, name: str) -> None:
        """Has a topic looked up again that has refused a record, because its limit was lowered."""
        self._found.pop(name, None)


def is_plain(most: int, key: object, value: object, headers: object) -> bool:
    """Whether key, value and headers are bytes, at most this many; for headers an upper bound is enough."""
    if type(value) is not bytes:
        return False
    if key is not None:
        if type(key) is not bytes:
            return False
        most -= len(key)
    if headers:
        if type(headers) is not list:
            return False
        for name, data in headers:
            if type(data) is not bytes:
                return False
            most -= HEADER_OVERHEAD_BYTES + 4 * len(name) + len(data)  # a character takes up to four bytes
    return len(value) <= most


async def described(arguments: Mapping[str, Any], topic: str) -> Topic:
    """The cluster's description of a topic, for a client of aiokafka with these arguments.

    Raises:
        ClusterError: the cluster did not answer.
        ConfigurationError: the user may not describe the topic.
        KafkaError: the cluster cannot be reached.
        KeyError: it does not exist.
    """
    given = {name: value for name, value in arguments.items() if name in ADMIN_ARGUMENTS}
    # The addresses share it (`Gate`). All of our own time would leave none for the second one.
    given["request_timeout_ms"] = min(given["request_timeout_ms"], int(_LOOKUP_S * 1000))
    connection = AdminClient(**given)
    try:
        await connection.start()
        return (await topics(connection, [topic]))[topic]
    finally:
        await connection.close()
