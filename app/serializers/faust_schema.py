"""The schema for Faust, since a codec sees no headers: values of any size, whatever form they have in Kafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, cast

import faust
from faust.serializers.schemas import DecodeFunction
from faust.types import AppT, CodecArg, EventT, K, ModelArg, V
from faust.types.core import HeadersArg, OpenHeadersArg
from faust.types.tuples import Message

from app.chunks.discarded import warn
from app.chunks.keys import CONSUMER_KEYS, PRODUCER_KEYS, STRATEGY
from app.config.client import LIMIT, limits_names
from app.serializers.faust_app import check_names, client_keys, keep_membership, outlive_crash
from app.serializers.faust_chunks import Chunks, OnDiscarded, listed
from app.serializers.faust_wrapping import Wrapping, is_wrapper_key
from app.serializers.faust_writes import Writes
from app.serializers.large_message import LargeMessageDeserializer
from app.serializers.options import check_time
from stores.registry import STORE_CLASS
from transforms.errors import (
    PayloadNotFoundError,
    ReferenceRefusedError,
    SerializationError,
    TransformError,
)
from transforms.logger_name import logger_name
from transforms.record import Header, Record
from transforms.reference import KEY, VALUE, Field, is_reference

__all__ = ["LargeMessageSchema", "OnDiscarded", "OnFailure"]

OnFailure = Callable[[SerializationError, Message], "object | Awaitable[object]"]

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
# Errors of the record itself: another try does not help, and the records behind it may be fine.
_OF_THE_RECORD = (PayloadNotFoundError, ReferenceRefusedError, TransformError)

_logger = logging.getLogger(logger_name(__name__))


_NOT_THE_READERS = {STRATEGY.name, *(key.name for key in (*CONSUMER_KEYS, *PRODUCER_KEYS))} - {LIMIT.name}


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a schema works with once it knows its app.

    Attributes:
        writes: what is written.
        readers: of keys and values; none without a store.
        chunks: puts chunks together.
        wrapping: None if values have no wrappers.
    """

    writes: Writes
    readers: Mapping[Field, LargeMessageDeserializer]
    chunks: Chunks
    wrapping: Wrapping | None


class LargeMessageSchema(faust.Schema[Any, Any]):
    """A schema that gives whole values, whatever form they came in, and writes large ones as references or chunks.

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

    Writing. `large.message.strategy` is `offload` (the default), `chunk` or `auto`, as with the other clients. Only
    `chunk` needs no store. With a `LargeMessageTopic`, a thread uploads payloads, the topic is asked what it takes, and
    chunks are sent. With Faust's own topic, `send` blocks the event loop for the upload, sends no chunks, and the
    schema serves one topic.

    Args:
        config: keys as for the other clients: the store's, `large.message.threshold.bytes`, those of
            `app.chunks.keys.CONSUMER_KEYS` and `PRODUCER_KEYS`, and with `wrapped` those of the worker's `wrap` and
            `unwrap`. The app sets `max.request.size`, `max.poll.interval.ms` and `bootstrap.servers` by default.
        topic: the topic to write to; by default the topic that has this schema.
        keys: whether keys are offloaded and restored too.
        wrapped: whether values are message wrappers (seed 002). Codecs, models and `event.headers` then have what is in
            the wrapper, and what is sent is wrapped, headers and all. Not beside `keys`.
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
        ConfigurationError: the first use raises it, as a rule `app.topic`: a key of `config` is missing, unknown or
            wrong, the store may take longer than `broker_max_poll_interval`, or the app's id is over the limit of a
            group id.
        ValueError: `wrapped` beside `keys`.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        topic: str | None = None,
        keys: bool = False,
        wrapped: bool = False,
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
        if keys and wrapped:
            raise ValueError("LargeMessageSchema: found keys=True beside wrapped=True, allowed is one of the two")
        self._config = config
        self._parts = (KEY, VALUE) if keys else (VALUE,)
        self._is_wrapped = wrapped
        self._on_failure = on_failure
        self._on_discarded = on_discarded
        self._topics = set() if topic is None else {topic}
        self._is_named = topic is not None
        self._known: _Opened | None = None
        self._stores = ExitStack()

    def stats(self) -> dict[str, int]:
        """The incomplete messages, as the other clients tell them; nothing before the first use."""
        return {} if self._known is None else self._known.chunks.stats()

    def close(self) -> None:
        """Closes the stores; the next use opens them again."""
        self._known = None
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
        own = listed(headers)
        if KEY not in self._parts or not self._opened(app).writes.wants(KEY, data, own):
            return data, headers
        return self._offloaded(app, KEY, None, data, own), _as_given(headers, own)

    def dumps_value(
        self, app: AppT, value: V, *, serializer: CodecArg = None, headers: OpenHeadersArg
    ) -> tuple[Any, OpenHeadersArg]:
        """As `dumps_key`, for the value.

        Raises:
            SerializationError: the store failed; a header does not fit into a wrapper; a wrapped null would go to a
                compacted topic; or the value must go in chunks.
        """
        data, headers = super().dumps_value(app, value, serializer=serializer, headers=headers)
        opened = self._opened(app)
        own = listed(headers)
        if opened.wrapping is not None:
            data, own = self._wrapped(app, self._only_topic(VALUE), data, own)
        if opened.writes.wants(VALUE, data, own):
            data = self._offloaded(app, VALUE, None, data, own)
        opened.writes.check_whole(",".join(sorted(self._topics)), data, own)
        return data, _as_given(headers, own)

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
            SerializationError: as `dumps_value`, but for chunks.
        """
        opened, own = self._opened(app), listed(headers)
        if key is not None:
            key, _ = super().dumps_key(app, key, serializer=key_serializer, headers=headers)
            if KEY in self._parts and opened.writes.wants(KEY, key, own):
                key = await asyncio.to_thread(self._offloaded, app, KEY, topic, key, own)
        value, _ = super().dumps_value(app, value, serializer=value_serializer, headers=headers)
        if opened.wrapping is not None:
            if value is None:
                value, own = await asyncio.to_thread(self._wrapped, app, topic, value, own)
            else:
                value, own = self._wrapped(app, topic, value, own)
        if opened.writes.wants(VALUE, value, own):
            value = await asyncio.to_thread(self._offloaded, app, VALUE, topic, value, own)
        return key, value, _as_given(headers, own)

    async def sized(
        self, app: AppT, topic: str, key: object, value: object, headers: OpenHeadersArg, timestamp: float | None
    ) -> tuple[Any, OpenHeadersArg, Iterator[Record] | None]:
        """Value, headers and chunks in place of a record that its topic would refuse; see `Writes.sized`."""
        own = listed(headers)
        value, pieces = await self._opened(app).writes.sized(topic, key, value, own, timestamp)
        return value, _as_given(headers, own), pieces

    def refused(self, topic: str) -> None:
        """Takes in that a topic refused a record as too large: it is asked again for what it takes."""
        if self._known is not None:
            self._known.writes.refused(topic)

    def _offloaded(self, app: AppT, part: Field, topic: str | None, data: object, headers: list[Header]) -> Any:
        return self._opened(app).writes.offloaded(part, topic or self._only_topic(part), data, headers)

    def _wrapped(self, app: AppT, topic: str, data: Any, headers: list[Header]) -> tuple[Any, list[Header]]:
        opened = self._opened(app)
        assert opened.wrapping is not None
        if data is None and opened.wrapping.wraps_null():
            opened.writes.check_null(topic)
        return opened.wrapping.wrapped(topic, data, headers)

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
            try:
                return await event_of(message, **how)
            except Exception:
                outlive_crash(app)  # Faust crashes with it, but for a decode error of its own
                raise

        async def event_of(message: Message, **how: bool) -> Any:
            opened = self._opened(app)
            if not await opened.chunks.take(message):
                return opened.chunks.skipped(message)
            headers = listed(message.headers)
            if opened.wrapping is None and not _is_referenced(headers):
                return await decode(message, **how)
            whole = _copy(message, headers)
            try:
                await self._restored(app, opened, message, whole)
            except SerializationError as exc:
                return await self._replacement(app, exc, message, whole)
            event = await decode(whole, **how)
            if event is not None:
                # Faust tracks offsets by the message that came from the consumer.
                event.message = message
            return event

        return cast("DecodeFunction", restore)

    async def _restored(self, app: AppT, opened: _Opened, message: Message, whole: Message) -> None:
        """Puts key, value and headers into `whole`, as they were before a writer made references or wrappers of them.

        A wrapper may hold a reference, as the worker writes it, and a payload may be a wrapper, as clients write it.
        """
        wrapping, is_wrapped = opened.wrapping, False
        if wrapping is not None and (wrapping.is_wrapper(whole.value) or not _is_referenced(listed(whole.headers))):
            self._unwrap(wrapping, message, whole)
            is_wrapped = True
        with opened.chunks.downloading():
            for part in self._parts:
                await self._download(app, opened.readers.get(part), part, message, whole)
        if wrapping is not None and not is_wrapped:
            self._unwrap(wrapping, message, whole)

    @staticmethod
    def _unwrap(wrapping: Wrapping, message: Message, whole: Message) -> None:
        try:
            whole.value, headers = wrapping.unwrapped(message.topic, whole.value, listed(whole.headers))
        except SerializationError as exc:
            raise exc.at(message.partition, message.offset) from exc.__cause__
        whole.headers = cast("HeadersArg", headers)

    @staticmethod
    async def _download(
        app: AppT, reader: LargeMessageDeserializer | None, part: Field, message: Message, whole: Message
    ) -> None:
        """Puts the payload into `whole`, and removes the reference from its headers, if there is one."""
        data, headers = getattr(whole, part.name), cast("list[Header]", whole.headers)
        if data is None or not is_reference(headers, part):
            return
        if reader is None:
            reason = f"LargeMessageSchema: it is a reference to a payload, and {STORE_CLASS} is missing"
            error = SerializationError(message.topic, part.name, reason, deserializing=True)
            raise error.at(message.partition, message.offset)
        # Each attempt is shorter than the interval (see `_opened`), and so is each pause.
        longest_wait_s = min(_LONGEST_WAIT_S, app.conf.broker_max_poll_interval / 2)
        wait_s = _FIRST_WAIT_S
        while reader.wants(data, headers):
            keep_membership(app)
            try:
                restored = await asyncio.to_thread(reader.deserialize, message.topic, headers, data)
            except SerializationError as exc:
                error = exc.at(message.partition, message.offset)
                if not exc.retriable:
                    raise error from exc.__cause__
            else:
                setattr(whole, part.name, restored)
                return
            if wait_s == _FIRST_WAIT_S:
                _logger.warning("%s; it is tried again until it succeeds, and the records behind it wait", error)
            keep_membership(app)
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

    def _opened(self, app: AppT) -> _Opened:
        if self._known is None:
            check_names(app, enabled=limits_names(self._config))
            whole = {**client_keys(app), **self._config}
            wrapping = Wrapping(whole) if self._is_wrapped else None
            if wrapping is not None:
                whole = {name: value for name, value in whole.items() if not is_wrapper_key(name)}
            chunks = Chunks(app, whole, self._on_discarded)
            with ExitStack() as opened:
                writes = opened.enter_context(closing(Writes(app, whole, self._parts)))
                readers = {}
                if self._config.get(STORE_CLASS) is not None:
                    config = {name: value for name, value in whole.items() if name not in _NOT_THE_READERS}
                    for part in self._parts:
                        reader = LargeMessageDeserializer(config, is_key=part is KEY)
                        readers[part] = opened.enter_context(closing(reader))
                interval_ms = int(app.conf.broker_max_poll_interval * 1000)
                store_ms = sum(reader.store_timeout_ms for reader in readers.values())
                check_time(store_ms, "max.poll.interval.ms", interval_ms, " (broker_max_poll_interval of the app)")
                self._stores = opened.pop_all()  # no error: they stay open
            self._known = _Opened(writes, readers, chunks, wrapping)
        return self._known


def _is_referenced(headers: list[Header]) -> bool:
    """Whether the key or the value is a reference."""
    return bool(headers) and (is_reference(headers, VALUE) or is_reference(headers, KEY))


def _as_given(given: OpenHeadersArg, headers: list[Header]) -> OpenHeadersArg:
    """Headers in the form in which the application gave its own; the very same where none was added."""
    if headers == listed(given):
        return given
    return cast("OpenHeadersArg", dict(headers) if isinstance(given, Mapping) else headers)


def _copy(message: Message, headers: list[Header]) -> Message:
    """A message to decode; it shares `headers`, from which a download removes the reference's."""
    copied = Message.from_message(message, message.tp)
    copied.headers = cast("HeadersArg", headers)
    return copied
