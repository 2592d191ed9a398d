"""The schema for Faust, since a codec sees no headers: values of any size, whatever form they have in Kafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, cast

import faust
from faust.serializers.schemas import DecodeFunction
from faust.types import AppT, CodecArg, EventT, K, ModelArg, V
from faust.types.core import HeadersArg, OpenHeadersArg
from faust.types.tuples import Message

from app.chunks.discarded import OnDiscarded, warn
from app.chunks.keys import CONSUMER_KEYS, STRATEGY
from app.config.client import coerced, limits_names
from app.config.wrapping import HEADER_KEY, WRAPPER_KEYS, is_header_key, wrapper_settings
from app.serializers import config as client_config
from app.serializers.composable import ComposableDeserializer
from app.serializers.faust_app import check_names, client_keys, keep_membership, outlive_crash
from app.serializers.faust_chunks import Chunks, listed
from app.serializers.faust_writes import Writes
from app.serializers.large_message import LargeMessageDeserializer
from app.serializers.options import check_time
from app.serializers.stage import close_all
from stores.keys import read
from stores.registry import STORE_CLASS
from transforms.errors import (
    MalformedWrapperError,
    PayloadNotFoundError,
    ReferenceRefusedError,
    SerializationError,
    TransformError,
)
from transforms.logger_name import logger_name
from transforms.record import Header, Record
from transforms.reference import KEY, VALUE, Field, is_reference
from transforms.wrapper import MessageWrapper, Unwrap

OnFailure = Callable[[SerializationError, Message], "object | Awaitable[object]"]

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
# Errors of the record itself: retrying does not help, and the records behind it may be fine.
_OF_THE_RECORD = (PayloadNotFoundError, ReferenceRefusedError, TransformError)

_logger = logging.getLogger(logger_name(__name__))


@dataclass(frozen=True, slots=True)
class _Opened:
    """The parts of a schema once it knows its app.

    Attributes:
        writes: what is written.
        reads: the deserializers of keys and values; none without a store.
        chunks: reassembles chunks.
        unwrap: unwraps values; None if they are not wrapped.
    """

    writes: Writes
    reads: client_config.ClientConfig[ComposableDeserializer]
    chunks: Chunks
    unwrap: Unwrap | None


class LargeMessageSchema(faust.Schema[Any, Any]):
    """A schema that reads whole values, in whatever form they were sent, and writes large ones as references or chunks.

    Reading. A thread downloads a payload before the agents receive the event. Faust delivers records one by one, so the
    records behind it wait, those of other topics too. While the store is down or throttles, the download is retried.
    If the store refuses permanently (access denied, no such bucket), the worker stops with a `SerializationError`. It
    also stops if the record cannot be restored (payload missing or corrupt), unless `on_failure` is given. No offset
    is committed past such a record. `event.headers` lacks the reference's headers; `event.message` is the record as
    Kafka has it, so `event.forward` forwards the reference.

    Chunks. A value in chunks is the event of its last chunk; its `event.message` is whole, too. No commit passes the
    first chunk of a message that is incomplete, or that an agent has not finished, so records behind that chunk may be
    delivered again after a restart. Chunks that exceed the memory limit are re-read from the log, by a second consumer
    outside the group. All topics that one schema reads share its limits. A topic with chunks needs a single schema.

    Writing. `large.message.strategy` is `offload` (the default), `chunk` or `auto`, as with the other clients. Only
    `chunk` needs no store. With a `LargeMessageTopic`, a thread uploads payloads, the topic's limit is looked up, and
    chunks are sent. With Faust's own topic, `send` blocks the event loop for the upload, sends no chunks, and the
    schema serves one topic.

    Args:
        config: properties as for the other clients: those of the store, `large.message.threshold.bytes`, those of
            chunks, and with `wrapped` those of the worker's `wrap` and `unwrap`. The app sets `max.request.size`,
            `max.poll.interval.ms` and `bootstrap.servers` by default.
        topic: the topic to write to; by default the topic that has this schema.
        keys: whether keys are offloaded and restored too.
        wrapped: whether values are message wrappers. Codecs, models and `event.headers` then see the content of the
            wrapper, and what is sent is wrapped, including headers. Not together with `keys`.
        on_failure: called with the error (with topic, partition, offset, and the reason as `__cause__`) and the record
            that cannot be restored; may be a coroutine function. Its result becomes the value of the record's event,
            which agents acknowledge like any other. An error that it raises stops the worker.
        on_discarded: called with each message that cannot be reassembled; may be a coroutine function. An error that
            it raises stops the worker, and no commit passes the message. By default a warning is logged.
        key_type: this and all arguments below are as with `faust.Schema`.
        value_type: as there.
        key_serializer: as there.
        value_serializer: as there.
        allow_empty: as there.

    Raises:
        ConfigurationError: raised on first use, usually by `app.topic`: a property of `config` is missing, unknown or
            wrong, the store may take longer than `broker_max_poll_interval`, or the app's id is over the limit of a
            group id.
        ValueError: `wrapped` together with `keys`.
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
            raise ValueError("LargeMessageSchema: keys=True cannot be combined with wrapped=True")
        self._config = config
        self._parts = (KEY, VALUE) if keys else (VALUE,)
        self._is_wrapped = wrapped
        self._on_failure = on_failure
        self._on_discarded = on_discarded
        self._topics = set() if topic is None else {topic}
        self._is_named = topic is not None
        self._known: _Opened | None = None

    def stats(self) -> dict[str, int]:
        """The incomplete messages, as the other clients report them; nothing before the first use."""
        return {} if self._known is None else self._known.chunks.stats()

    def close(self) -> None:
        """Closes the stores; the next use opens them again."""
        known, self._known = self._known, None
        if known is not None:
            close_all([known.writes, known.reads])

    # --- writing ------------------------------------------------------------------------------------------------------

    def writes(self, app: AppT) -> Writes:
        """What is written by this schema."""
        return self._opened(app).writes

    def dumps_key(
        self, app: AppT, key: K, *, serializer: CodecArg = None, headers: OpenHeadersArg
    ) -> tuple[Any, OpenHeadersArg]:
        """As `faust.Schema.dumps_key`; uploads a large key on the calling thread.

        Raises:
            SerializationError: the store failed; `__cause__` is its error.
        """
        data, headers = super().dumps_key(app, key, serializer=serializer, headers=headers)
        writes, own = self.writes(app), listed(headers)
        if writes.wants(KEY, data, own):
            data = writes.offloaded(KEY, self._only_topic(KEY), data, own)
        return data, _as_given(headers, own)

    def dumps_value(
        self, app: AppT, value: V, *, serializer: CodecArg = None, headers: OpenHeadersArg
    ) -> tuple[Any, OpenHeadersArg]:
        """As `dumps_key`, for the value.

        Raises:
            SerializationError: the store failed; a header does not fit into a wrapper; a wrapped null would be written
                to a compacted topic; or the value must be sent in chunks.
        """
        data, headers = super().dumps_value(app, value, serializer=serializer, headers=headers)
        writes, own = self.writes(app), listed(headers)
        if writes.wraps(data):
            data = writes.wrapped(self._only_topic(VALUE), data, own)
        if writes.wants(VALUE, data, own):
            data = writes.offloaded(VALUE, self._only_topic(VALUE), data, own)
        writes.check_whole(",".join(sorted(self._topics)), data, own)
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
        writes, own = self.writes(app), listed(headers)
        if key is not None:
            key, _ = super().dumps_key(app, key, serializer=key_serializer, headers=headers)
            if writes.wants(KEY, key, own):
                key = await asyncio.to_thread(writes.offloaded, KEY, topic, key, own)
        value, _ = super().dumps_value(app, value, serializer=value_serializer, headers=headers)
        if writes.wraps(value):
            wrapped = partial(writes.wrapped, topic, value, own)
            value = wrapped() if value is not None else await asyncio.to_thread(wrapped)  # which looks up the topic
        if writes.wants(VALUE, value, own):
            value = await asyncio.to_thread(writes.offloaded, VALUE, topic, value, own)
        return key, value, _as_given(headers, own)

    def _only_topic(self, part: Field) -> str:
        if len(self._topics) != 1:
            names = ", ".join(sorted(self._topics)) or "no topic"
            raise SerializationError(
                names,
                part.name,
                f"LargeMessageSchema: it serves {names}, and payloads are stored by topic; use a separate schema "
                "for each topic, or set Topic=LargeMessageTopic on the app",
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
                opened = self._known or self._opened(app)
                if not await opened.chunks.take(message):
                    return opened.chunks.skipped(message)
                if opened.unwrap is None and not (
                    message.headers and any(_is_referenced(message, part) for part in self._parts)
                ):
                    return await decode(message, **how)
                whole = Message.from_message(message, message.tp)
                whole.headers = cast("HeadersArg", listed(message.headers))
                try:
                    await self._restore(app, opened, whole)
                except SerializationError as exc:
                    return await self._replacement(app, exc, message, whole)
                if (event := await decode(whole, **how)) is not None:
                    event.message = message  # by which Faust tracks offsets
                return event
            except Exception:
                outlive_crash(app)  # Faust crashes with it, unless it is one of Faust's decode errors
                raise

        return cast("DecodeFunction", restore)

    async def _restore(self, app: AppT, opened: _Opened, whole: Message) -> None:
        """Restores key, value and headers from references and wrappers.

        A wrapper may hold a reference, as the worker writes it, and a payload may be a wrapper, as clients write it.
        """
        unwrap = opened.unwrap
        is_inside = whole.value is not None and not MessageWrapper.check(whole.value) and _is_referenced(whole, VALUE)
        if unwrap is not None and not is_inside:
            _unwrap(unwrap, whole)
        with opened.chunks.downloading():
            for part in self._parts:
                if getattr(whole, part.name) is not None and _is_referenced(whole, part):
                    await _download(app, opened.reads.parts.get(part.name), part, whole)
        if unwrap is not None and is_inside:
            _unwrap(unwrap, whole)

    async def _replacement(self, app: AppT, error: SerializationError, message: Message, whole: Message) -> EventT[Any]:
        """The event with the result of `on_failure`, for a record that cannot be restored."""
        located = error.at(message.partition, message.offset)
        if self._on_failure is None or not isinstance(error.__cause__, _OF_THE_RECORD):
            raise located from error.__cause__
        located.__cause__ = error.__cause__
        value = self._on_failure(located, message)
        value = await value if isawaitable(value) else value
        key = None if error.field == KEY.name else self.loads_key(app, whole)
        return app.create_event(key, value, whole.headers, message)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _opened(self, app: AppT) -> _Opened:
        if self._known is None:
            check_names(app, enabled=limits_names(self._config))
            whole, wrap, unwrap = {**client_keys(app), **self._config}, None, None
            if self._is_wrapped:
                # The properties are those of the worker's `wrap` and `unwrap`, and so is what they do.
                settings = wrapper_settings(read(WRAPPER_KEYS, coerced(WRAPPER_KEYS, whole)), whole, ("unwrap", "wrap"))
                wrap, unwrap = settings.wrap, settings.unwrap
                own = {key.name for key in (*WRAPPER_KEYS, HEADER_KEY)}
                whole = {name: value for name, value in whole.items() if not (name in own or is_header_key(name))}
            stages = {f"{part.name}.deserializer": LargeMessageDeserializer for part in self._parts}
            config = {**whole, **(stages if whole.get(STORE_CLASS) is not None else {})}
            config.pop(STRATEGY.name, None)
            writes = Writes(app, whole, self._parts, wrap)  # refuses what is unknown to both
            with writes.closed_on_error():
                reads = client_config.consumer(config, list(whole), CONSUMER_KEYS)
                with reads.closed_on_error():
                    interval_ms = int(app.conf.broker_max_poll_interval * 1000)
                    of_app = " (broker_max_poll_interval of the app)"
                    check_time(reads.store_timeout_ms, "max.poll.interval.ms", interval_ms, of_app)
                    chunks = Chunks(app, reads.values, self._on_discarded)
            self._known = _Opened(writes, reads, chunks, unwrap)
        return self._known


def _is_referenced(message: Message, part: Field) -> bool:
    return is_reference(listed(message.headers), part)


def _unwrap(unwrap: Unwrap, whole: Message) -> None:
    record = Record(None, whole.value, cast("list[Header]", whole.headers))
    if unwrap.wants(record):
        try:
            found = unwrap.unwrap(record)
        except MalformedWrapperError as exc:
            reason = f"LargeMessageSchema: {exc}"
            raise SerializationError(whole.topic, VALUE.name, reason, deserializing=True) from exc
        whole.value, whole.headers = found.value, cast("HeadersArg", list(found.headers))


async def _download(app: AppT, reader: ComposableDeserializer | None, part: Field, whole: Message) -> None:
    """Replaces a reference with its payload, and removes the reference's headers."""
    if reader is None:
        reason = f"LargeMessageSchema: it is a reference to a payload, and {STORE_CLASS} is missing"
        raise SerializationError(whole.topic, part.name, reason, deserializing=True)
    # Each attempt is shorter than the interval (see `_opened`), and so is each pause.
    longest_wait_s = min(_LONGEST_WAIT_S, app.conf.broker_max_poll_interval / 2)
    wait_s, headers = _FIRST_WAIT_S, cast("list[Header]", whole.headers)
    while True:
        keep_membership(app)
        try:
            data = await asyncio.to_thread(reader.deserialize, whole.topic, headers, getattr(whole, part.name))
        except SerializationError as exc:
            if not exc.retriable:
                raise
            if wait_s == _FIRST_WAIT_S:
                located = exc.at(whole.partition, whole.offset)
                _logger.warning("%s; it is retried until it succeeds, and records after it wait", located)
        else:
            setattr(whole, part.name, data)
            return
        keep_membership(app)
        await asyncio.sleep(min(wait_s, longest_wait_s))
        wait_s *= 2


def _as_given(given: OpenHeadersArg, headers: list[Header]) -> OpenHeadersArg:
    """Headers in the form in which the application passed them; the same object if none was added."""
    if headers == listed(given):
        return given
    return cast("OpenHeadersArg", dict(headers) if isinstance(given, Mapping) else headers)
