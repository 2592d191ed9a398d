"""Faust topics with values of any size: a schema, since a codec sees no headers.

    app = faust.App("orders", broker=..., Topic=LargeMessageTopic)
    orders = app.topic("orders", value_type=Order, schema=LargeMessageSchema({...}))

Codecs and models work as ever: after the download, before the upload. Tables and their changelogs have schemas of their
own and stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, cast

import faust
from faust.serializers.schemas import DecodeFunction
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import AppT, CodecArg, EventT, K, ModelArg, SchemaT, V
from faust.types.core import HeadersArg, OpenHeadersArg
from faust.types.tuples import Message, RecordMetadata

from app.chunks.discarded import warn
from app.config.client import limits_names
from app.config.naming import check_name, check_topics
from app.kafka.delivering import count_as_poll
from app.serializers.faust_chunks import Chunks, OnDiscarded, listed, without_chunk_keys
from app.serializers.large_message import LargeMessageDeserializer, LargeMessageSerializer
from app.serializers.options import check_time
from transforms.errors import (
    PayloadNotFoundError,
    ReferenceRefusedError,
    SerializationError,
    TransformError,
)
from transforms.record import Header
from transforms.reference import KEY, VALUE, Field

__all__ = ["LargeMessageSchema", "LargeMessageTopic", "OnDiscarded", "OnFailure"]

OnFailure = Callable[[SerializationError, Message], "object | Awaitable[object]"]

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
# Errors of the record itself: another try does not help, and the records behind it may be fine.
_OF_THE_RECORD = (PayloadNotFoundError, ReferenceRefusedError, TransformError)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The serializer and the deserializer for keys, or for values."""

    part: Field
    writer: LargeMessageSerializer
    reader: LargeMessageDeserializer


class LargeMessageSchema(faust.Schema[Any, Any]):
    """A schema that offloads large values to the payload store, and gives whole values, from references and chunks.

    Reading. A thread downloads a payload before the agents get the event. Faust hands on records one by one, so the
    records behind it wait, those of other topics too. While the store is down or throttles, the download is tried
    again. If the store refuses for good (access denied, no such bucket), the worker stops with a `SerializationError`.
    It also stops if the record cannot be restored (payload missing or corrupt), unless `on_failure` is given. No offset
    is committed past such a record. `event.headers` lacks the reference's headers; `event.message` is the record as
    Kafka has it, so `event.forward` forwards the reference.

    Chunks. A value in chunks is the event of its last chunk; its `event.message` is whole, too. No commit passes the
    first chunk of a message that is incomplete, or that an agent has not done with. So a restart may give again what is
    behind that chunk. What memory does not hold is read again from the log, by a second consumer that is no member of
    the group. All topics that one schema reads share its limits. A topic with chunks has one schema.

    Writing. With a `LargeMessageTopic`, a thread uploads payloads; with Faust's own topic, `send` blocks the event loop
    for the upload, and the schema serves one topic.

    Args:
        config: keys as for the other clients: the store's, `large.message.threshold.bytes`, those of
            `app.chunks.keys.CONSUMER_KEYS` and so on. The app sets `max.request.size`, `max.poll.interval.ms` and
            `bootstrap.servers` by default.
        topic: the topic to write to; by default the topic that has this schema.
        keys: whether keys are offloaded and restored too.
        on_failure: called with the error (with topic, partition, offset, and the reason as `__cause__`) and the record
            that cannot be restored; may be a coroutine function. Its result becomes the value of the record's event,
            which agents acknowledge as any other. An error that it raises stops the worker.
        on_discarded: called with each message of chunks that is not whole; may be a coroutine function. An error that
            it raises stops the worker, and no commit passes the message. By default a warning is logged.
        key_type: this and all arguments below are as with `faust.Schema`.
        value_type: as there.
        key_serializer: as there.
        value_serializer: as there.
        allow_empty: as there.

    Raises:
        ConfigurationError: the first use raises it, as a rule `app.topic`: a key of `config` is missing or wrong, the
            store may take longer than `broker_max_poll_interval`, or the app's id is over the limit of a group id.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        topic: str | None = None,
        keys: bool = False,
        on_failure: OnFailure | None = None,
        on_discarded: OnDiscarded = warn,
        key_type: ModelArg | None = None,
        value_type: ModelArg | None = None,
        key_serializer: CodecArg = None,
        value_serializer: CodecArg = None,
        allow_empty: bool | None = None,
    ) -> None:
        super().__init__(
            key_type=key_type,
            value_type=value_type,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            allow_empty=allow_empty,
        )
        self._config = config
        self._parts = (KEY, VALUE) if keys else (VALUE,)
        self._on_failure = on_failure
        self._on_discarded = on_discarded
        self._chunks: Chunks | None = None
        self._topics = set() if topic is None else {topic}
        self._is_named = topic is not None
        self._pairs: dict[Field, _Pair] | None = None
        self._stores = ExitStack()

    def stats(self) -> dict[str, int]:
        """The incomplete messages, as the other clients tell them; nothing before the first use."""
        return {} if self._chunks is None else self._chunks.stats()

    def close(self) -> None:
        """Closes the stores; the next use opens them again."""
        self._pairs = self._chunks = None
        self._stores.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def dumps_key(
        self, app: AppT, key: K, *, serializer: CodecArg = None, headers: OpenHeadersArg
    ) -> tuple[Any, OpenHeadersArg]:
        """As `faust.Schema.dumps_key`; uploads a large key on the calling thread.

        Raises:
            SerializationError: the store failed; `__cause__` is its error.
        """
        data, headers = super().dumps_key(app, key, serializer=serializer, headers=headers)
        return self._offloaded(self._opened(app).get(KEY), None, data, headers)

    def dumps_value(
        self, app: AppT, value: V, *, serializer: CodecArg = None, headers: OpenHeadersArg
    ) -> tuple[Any, OpenHeadersArg]:
        """As `dumps_key`, for the value."""
        data, headers = super().dumps_value(app, value, serializer=serializer, headers=headers)
        return self._offloaded(self._opened(app)[VALUE], None, data, headers)

    async def dumps(
        self,
        app: AppT,
        topic: str,
        key: K,
        value: V,
        headers: OpenHeadersArg,
        *,
        key_serializer: CodecArg = None,
        value_serializer: CodecArg = None,
    ) -> tuple[Any, Any, OpenHeadersArg]:
        """Key, value and headers for Kafka; a thread uploads large ones.

        Raises:
            SerializationError: the store failed; `__cause__` is its error.
        """
        if key is not None:
            key, headers = super().dumps_key(app, key, serializer=key_serializer, headers=headers)
            key, headers = await self._offloaded_on_thread(self._opened(app).get(KEY), topic, key, headers)
        value, headers = super().dumps_value(app, value, serializer=value_serializer, headers=headers)
        value, headers = await self._offloaded_on_thread(self._opened(app)[VALUE], topic, value, headers)
        return key, value, headers

    def _offloaded(
        self, pair: _Pair | None, topic: str | None, data: object, headers: OpenHeadersArg
    ) -> tuple[object, OpenHeadersArg]:
        before = listed(headers)
        if pair is None or not pair.writer.wants(data, before):
            return data, headers
        after = list(before)  # the caller may use its list again
        path = pair.writer.serialize(topic or self._only_topic(pair.part), after, data)
        if isinstance(headers, Mapping):
            return path, {**headers, **cast("dict[str, bytes]", dict(after[len(before) :]))}
        return path, cast("list[tuple[str, bytes]]", after)

    async def _offloaded_on_thread(
        self, pair: _Pair | None, topic: str, data: object, headers: OpenHeadersArg
    ) -> tuple[object, OpenHeadersArg]:
        if pair is None or not pair.writer.wants(data, listed(headers)):
            return data, headers
        return await asyncio.to_thread(self._offloaded, pair, topic, data, headers)

    def _only_topic(self, part: Field) -> str:
        if len(self._topics) != 1:
            names = ", ".join(sorted(self._topics)) or "no topic"
            raise SerializationError(
                names,
                part.name,
                f"LargeMessageSchema: it serves {names}, and payloads are stored by topic; give each topic a schema of "
                "its own, or the app Topic=LargeMessageTopic",
            )
        return next(iter(self._topics))

    # --- reading ------------------------------------------------------------------------------------------------------

    def compile(self, app: AppT, **more: Any) -> DecodeFunction:
        """As `faust.Schema.compile`."""
        bound = getattr(more.get("on_value_decode_error"), "__self__", None)
        if isinstance(bound, faust.Topic) and not self._is_named:
            self._topics.update(bound.topics)
        decode = super().compile(app, **more)
        self._opened(app)  # raises an error in the configuration now, not at the first record

        async def restore(message: Message, **how: bool) -> Any:
            pairs, chunks = self._opened(app), self._chunks
            if chunks is not None and not await chunks.take(message):
                return chunks.skipped(message)
            headers = listed(message.headers)
            if not any(pair.reader.wants(headers) for pair in pairs.values()):
                return await decode(message, **how)
            whole = _copy(message, headers)
            try:
                with nullcontext() if chunks is None else chunks.downloading():
                    for pair in pairs.values():
                        await self._download(app, pair, message, whole, headers)
            except SerializationError as exc:
                return await self._replacement(app, exc, message, whole)
            event = await decode(whole, **how)
            if event is not None:
                # Faust tracks offsets by the message that came from the consumer.
                event.message = message
            return event

        return cast("DecodeFunction", restore)

    async def _download(self, app: AppT, pair: _Pair, message: Message, whole: Message, headers: list[Header]) -> None:
        """Puts the payload into `whole`, and removes the reference from `headers`, if there is one."""
        data = getattr(message, pair.part.name)
        # Each attempt is shorter than the interval (see `_opened`), and so is each pause.
        longest_wait_s = min(_LONGEST_WAIT_S, app.conf.broker_max_poll_interval / 2)
        wait_s = _FIRST_WAIT_S
        while data is not None and pair.reader.wants(headers):
            _keep_membership(app)
            try:
                restored = await asyncio.to_thread(pair.reader.deserialize, message.topic, headers, data)
            except SerializationError as exc:
                error = exc.at(message.partition, message.offset)
                if not exc.retriable:
                    raise error from exc.__cause__
            else:
                setattr(whole, pair.part.name, restored)
                return
            if wait_s == _FIRST_WAIT_S:
                _logger.warning("%s; it is tried again until it succeeds, and the records behind it wait", error)
            _keep_membership(app)
            await asyncio.sleep(min(wait_s, longest_wait_s))
            wait_s *= 2

    async def _replacement(self, app: AppT, error: SerializationError, message: Message, whole: Message) -> EventT[Any]:
        """The event with the result of `on_failure`, for a record that cannot be restored."""
        if self._on_failure is None or not isinstance(error.__cause__, _OF_THE_RECORD):
            raise error
        value = self._on_failure(error, message)
        value = await value if isawaitable(value) else value
        key = None if error.field == KEY.name else self.loads_key(app, whole)
        return app.create_event(key, value, whole.headers, message)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _opened(self, app: AppT) -> dict[Field, _Pair]:
        if self._pairs is None:
            _check_names(app, enabled=limits_names(self._config))
            whole = {**_of_app(app), **self._config}
            chunks = Chunks(app, whole, self._on_discarded, lambda: _keep_membership(app))
            config = without_chunk_keys(whole)
            pairs = {}
            with ExitStack() as opened:
                for part in self._parts:
                    writer = opened.enter_context(closing(LargeMessageSerializer(config, is_key=part is KEY)))
                    reader = opened.enter_context(closing(LargeMessageDeserializer(config, is_key=part is KEY)))
                    pairs[part] = _Pair(part, writer, reader)
                interval_ms = int(app.conf.broker_max_poll_interval * 1000)
                store_ms = sum(pair.reader.store_timeout_ms for pair in pairs.values())
                check_time(store_ms, "max.poll.interval.ms", interval_ms, " (broker_max_poll_interval of the app)")
                self._stores = opened.pop_all()  # no error: they stay open
            self._pairs, self._chunks = pairs, chunks
        return self._pairs


class _Bytes(faust.Schema[Any, Any]):
    """For keys and values that are bytes already."""

    def dumps_key(self, app: AppT, key: K, *, headers: OpenHeadersArg, **_: Any) -> tuple[Any, OpenHeadersArg]:  # noqa: ARG002
        return key, headers

    def dumps_value(self, app: AppT, value: V, *, headers: OpenHeadersArg, **_: Any) -> tuple[Any, OpenHeadersArg]:  # noqa: ARG002
        return value, headers


_BYTES = _Bytes()


class LargeMessageTopic(faust.Topic):
    """A topic that uploads payloads off the event loop; for the app's setting `Topic`.

    Without a `LargeMessageSchema` it works as Faust's own, so the whole app may use it.

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
        headers: HeadersArg | None = None,
        schema: SchemaT[Any, Any] | None = None,
        key_serializer: CodecArg | None = None,
        value_serializer: CodecArg | None = None,
        **more: Any,
    ) -> Awaitable[RecordMetadata]:
        """As `faust.Topic.send`. Sends of one task leave in order.

        Raises:
            SerializationError: the store failed, and nothing is sent; `__cause__` is its error.
        """
        used = schema or self.schema
        if isinstance(used, LargeMessageSchema):
            key, value, headers = await used.dumps(
                self.app,
                self.get_topic_name(),
                key,
                value,
                self.prepare_headers(headers),
                key_serializer=key_serializer,
                value_serializer=value_serializer,
            )
            schema, key_serializer, value_serializer = _BYTES, None, None
        return await super().send(
            key=key,
            value=value,
            headers=headers,
            schema=schema,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            **more,
        )


def _check_names(app: AppT, *, enabled: bool) -> None:
    """Checks the app's names in Kafka; its id is its consumer group."""
    check_name("group-id", app.conf.id, "id", enabled=enabled)
    check_name("client-id", app.conf.broker_client_id, "broker_client_id", enabled=enabled)
    instance = app.conf.consumer_group_instance_id or ""
    check_name("group-instance-id", instance, "consumer_group_instance_id", enabled=enabled)


def _of_app(app: AppT) -> dict[str, object]:
    """The keys of the app's own clients that the serializers read."""
    conf = app.conf
    known: dict[str, object] = {
        "max.request.size": conf.producer_max_request_size,
        "max.poll.interval.ms": int(conf.broker_max_poll_interval * 1000),
    }
    if conf.broker_credentials is None:
        known["bootstrap.servers"] = ",".join(f"{url.host}:{url.port or 9092}" for url in conf.broker)
    return known


def _keep_membership(app: AppT) -> None:
    """Counts as a poll of Faust's consumer, which does not poll during a download.

    A consumer that does not poll for `broker_max_poll_interval` leaves its group. Then aiokafka waits for a poll before
    it joins again, and Faust waits for the group before it polls: for ever (tried).
    """
    thread = getattr(app.consumer, "_thread", None) if app.started else None
    if isinstance(thread, AIOKafkaConsumerThread) and thread._consumer is not None:  # noqa: SLF001  # nothing public does
        count_as_poll(thread._consumer)  # noqa: SLF001  # the same


def _copy(message: Message, headers: list[Header]) -> Message:
    """A message to decode; it shares `headers`, from which a download removes the reference's."""
    copied = Message.from_message(message, message.tp)
    copied.headers = cast("HeadersArg", headers)
    return copied
