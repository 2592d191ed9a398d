"""Faust topics with values of any size.

    app = faust.App("orders", broker=..., Topic=LargeMessageTopic)
    orders = app.topic("orders", value_type=Order, schema=LargeMessageSchema({...}))

Codecs and models work after the download and before the upload. Tables and their changelogs have separate schemas and
are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, cast

import faust
from aiokafka.errors import MessageSizeTooLargeError
from faust.streams import current_event
from faust.types import AppT, CodecArg, K, SchemaT, V
from faust.types.core import HeadersArg
from faust.types.tuples import MessageSentCallback, RecordMetadata

from app.chunks.discarded import OnDiscarded
from app.chunks.producer import metadata_of
from app.config.naming import check_topics
from app.serializers.faust_app import partition_of
from app.serializers.faust_chunks import listed
from app.serializers.faust_schema import LargeMessageSchema, OnFailure
from app.serializers.faust_writes import Writes
from transforms.errors import SerializationError
from transforms.record import Record
from transforms.reference import VALUE

__all__ = ["LargeMessageSchema", "LargeMessageTopic", "OnDiscarded", "OnFailure"]


# For keys and values that are serialized already.
_BYTES: faust.Schema[Any, Any] = faust.Schema(key_serializer="raw", value_serializer="raw")


class LargeMessageTopic(faust.Topic):
    """A topic that uploads payloads off the event loop, and sends chunks; for the app's setting `Topic`.

    Without a `LargeMessageSchema` it works like Faust's own, so the whole app may use it.

    Raises:
        ConfigurationError: a topic's name is over its limit.
    """

    def __init__(self, app: AppT, *, topics: Sequence[str] | None = None, **more: Any) -> None:
        check_topics(topics or ())
        super().__init__(app, topics=topics, **more)

    async def send(
        self,
        *,
        key: K | None = None,
        value: V | None = None,
        partition: int | None = None,
        timestamp: float | None = None,
        headers: HeadersArg | None = None,
        schema: SchemaT[Any, Any] | None = None,
        key_serializer: CodecArg | None = None,
        value_serializer: CodecArg | None = None,
        callback: MessageSentCallback | None = None,
        force: bool = False,
    ) -> Awaitable[RecordMetadata]:
        """As `faust.Topic.send`. Sends of one task are sent in order.

        A value in chunks is sent when its last chunk is queued. The result is a `ChunkedRecordMetadata`, and `callback`
        receives the message of the last chunk. If a chunk fails, the result fails, and no chunk is sent after it.

        Raises:
            ChunkError: the record cannot be split, or its topic is compacted.
            ConfigurationError: the strategy is `chunk`, and the topic's limit is unknown; or it is below
                `producer_max_batch_size`.
            SerializationError: the store failed, and nothing is sent; `__cause__` is its error.
        """
        used, name = schema or self.schema, self.get_topic_name()
        how: dict[str, Any] = {"partition": partition, "callback": callback, "force": force}
        if not isinstance(used, LargeMessageSchema):
            codecs: dict[str, Any] = {"key_serializer": key_serializer, "value_serializer": value_serializer}
            return await super().send(
                key=key, value=value, timestamp=timestamp, headers=headers, schema=schema, **codecs, **how
            )
        writes, prepared = used.writes(self.app), self.prepare_headers(headers)
        key, value, prepared = await used.dumps(
            self.app, name, key, value, prepared, key_serializer=key_serializer, value_serializer=value_serializer
        )
        given = listed(prepared)
        value, pieces = await writes.sized(name, key, value, given, timestamp)
        if pieces is None:
            return await self._sent(writes, name, key=key, value=value, timestamp=timestamp, headers=given, **how)
        if not force and self.app.conf.stream_publish_on_commit and current_event() is not None:
            raise SerializationError(
                name,
                VALUE.name,
                "LargeMessageTopic: it must be sent in chunks, and with stream_publish_on_commit Faust does not "
                "preserve the order of what it sends for one event; call send with force=True, or disable this setting",
            )
        piece: Record | None = await asyncio.to_thread(next, pieces)  # hashes the value
        assert piece is not None
        stamp_ms, how["force"] = piece.timestamp, True
        if partition is None:
            how["partition"] = await self._partition(name, piece.key)
        sent: list[asyncio.Future[Any]] = []
        while piece is not None and not any(future.done() and future.exception() is not None for future in sent):
            following = next(pieces, None)
            how["callback"] = callback if following is None else None
            seconds, headers = piece.timestamp / 1000, cast("HeadersArg", list(piece.headers))
            sent.append(
                await self._sent(
                    writes, name, key=piece.key, value=piece.value, timestamp=seconds, headers=headers, **how
                )
            )
            piece = following
        return cast("Awaitable[RecordMetadata]", asyncio.ensure_future(metadata_of(sent, stamp_ms)))

    async def _sent(self, writes: Writes, name: str, **record: Any) -> asyncio.Future[Any]:
        """As Faust's own `send` of bytes; if the topic refuses the record, its limit is looked up again."""

        def look(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and isinstance(future.exception(), MessageSizeTooLargeError):
                writes.refused(name)

        sent = cast("asyncio.Future[Any]", await super().send(schema=_BYTES, **record))
        sent.add_done_callback(look)
        return sent

    async def _partition(self, name: str, key: bytes | None) -> int | None:
        """The partition of all chunks, as the app's producer chooses it; None where the key alone decides."""
        await self.app.maybe_start_producer()
        if not self.app.in_transaction:
            return await partition_of(self.app, name, key)
        chosen = self.app.consumer.key_partition(name, key)
        if chosen is None and key is None:
            raise SerializationError(
                name,
                VALUE.name,
                "LargeMessageTopic: it must be sent in chunks to one partition, and with exactly_once Faust "
                "accepts no partition for a topic that the app does not read; send the record with a key",
            )
        return chosen
