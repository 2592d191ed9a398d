"""The schema and the topic for Faust, as far as no broker is needed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import faust
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from faust.exceptions import KeyDecodeError, ValueDecodeError
from faust.types.tuples import ConsumerMessage, Message

from app.chunks.destinations import described
from app.chunks.keys import CONSUMER_KEYS
from app.serializers.faust import LargeMessageSchema, LargeMessageTopic
from app.serializers.faust_app import cluster_arguments
from app.serializers.faust_chunks import Chunks
from stores.keys import read
from stores.memory import MemoryStore
from tests.app.serializers.conftest import Config
from tests.integration.client_config import ON_GATE
from tests.integration.client_stores import GatedStore
from transforms.chunk import Chunking
from transforms.chunked_message import Discarded
from transforms.errors import (
    ConfigurationError,
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    SerializationError,
)
from transforms.record import Record

LARGE = b"x" * 5_000

CHUNK = {"large.message.strategy": "chunk"}


@pytest.fixture
def app(tmp_path: Path) -> faust.App:
    """An app that reaches no broker."""
    return faust.App("tests", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), Topic=LargeMessageTopic)


@pytest.fixture
def gate() -> Iterator[type[GatedStore]]:
    """A store that fails as the test wants it."""
    GatedStore.reset()
    yield GatedStore
    GatedStore.reset()


@pytest.fixture
async def thread(app: faust.App) -> AsyncIterator[Any]:
    """The thread of the app's consumer, which is part of the app as in a worker, but was never started."""
    consumer: Any = app.consumer
    app.add_dependency(consumer)
    yield consumer._thread
    consumer._thread.thread_loop.close()


def on_gate(**more: object) -> dict[str, object]:
    """The configuration of that store."""
    return {"large.message.payload.store.class": GatedStore, "large.message.threshold.bytes": 100, **more}


def message(value: bytes | None, headers: Any, key: bytes | None = b"k") -> Message:
    """A record as Faust's consumer gives it."""
    return Message("orders", 3, 42, 0.0, 0, headers, key, value, None)


def written(schema: LargeMessageSchema, app: faust.App, value: object, headers: Any = None) -> tuple[Any, Any]:
    """Value and headers as they go to Kafka; of a schema that serves `orders`."""
    data: tuple[Any, Any] = schema.dumps_value(app, value, headers={} if headers is None else headers)
    return data


class Order(faust.Record):
    """What an application works with."""

    number: int
    scan: str


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_schema_knows_its_topic(app: faust.App, config_of: Config) -> None:
    """The one that it was given, else that of which it is the schema; with two, or none, it says what to do."""
    schema = LargeMessageSchema(config_of())
    app.topic("orders", schema=schema)
    assert b"/orders/" in written(schema, app, LARGE)[0]
    assert b"/other/" in written(LargeMessageSchema(config_of(), topic="other"), app, LARGE)[0]
    app.topic("invoices", schema=schema)
    with pytest.raises(SerializationError, match=r"serves invoices, orders.*Topic=LargeMessageTopic"):
        written(schema, app, LARGE)
    with pytest.raises(SerializationError, match=r"serves no topic"):
        written(LargeMessageSchema(config_of()), app, LARGE)


async def test_dumps_runs_the_store_on_a_thread(app: faust.App) -> None:
    """And nothing else: codecs run on the loop."""
    threads: list[threading.Thread] = []

    class ThreadStore(GatedStore):
        def publish(self, topic: str, data: bytes) -> str:
            threads.append(threading.current_thread())
            return super().publish(topic, data)

    schema = LargeMessageSchema(
        on_gate(**{"large.message.payload.store.class": ThreadStore}), keys=True, value_serializer="raw"
    )
    key, value, headers = await schema.dumps(app, "orders", b"k", LARGE, {"a": b"1"})
    assert isinstance(headers, dict)
    assert (key, value[:15], list(headers)[:2]) == (b"k", b"gated://orders/", ["a", "large-message"])
    assert len(threads) == 1
    assert threading.main_thread() not in threads


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, dict])
async def test_a_reference_is_read_with_headers_of_any_kind(
    app: faust.App, config_of: Config, kind: Callable[[Any], Any]
) -> None:
    """The event has the payload and is without the reference's headers; its message is the record, untouched."""
    schema = LargeMessageSchema(config_of())
    orders = app.topic("orders", value_type=Order, schema=schema)
    order = Order(number=1, scan="x" * 5_000)
    path, headers = written(schema, app, order, [("a", b"1")])
    record = message(path, kind(headers))
    event = await orders.decode(record, propagate=True)
    assert (event.key, event.value, event.headers) == (b"k", order, {"a": b"1"})
    assert event.message is record
    assert (record.value, record.headers) == (path, kind(headers))


async def test_what_is_no_reference_is_read_as_ever(app: faust.App, config_of: Config) -> None:
    """Codec, model, null with `allow_empty`, and Faust's own errors."""
    orders = app.topic("orders", value_type=Order, allow_empty=True, schema=LargeMessageSchema(config_of()))
    schema: Any = orders.schema
    path, own = written(schema, app, b"{" * 5_000, [])
    for value, given in ((path, own), (b"{", [])):
        with pytest.raises(ValueDecodeError):
            await orders.decode(message(value, given), propagate=True)
    kinds: tuple[Any, ...] = (None, [], {}, [("a", b"1")])
    for headers in kinds:
        event = await orders.decode(message(b'{"number": 1, "scan": ""}', headers), propagate=True)
        assert event.value == Order(number=1, scan="")
    assert (await orders.decode(message(None, []), propagate=True)).value is None


async def test_keys_are_left_alone_unless_asked_for(app: faust.App, config_of: Config) -> None:
    """With `keys=True` they come back whole, or null behind `on_failure`; without, the path and its headers stay."""
    raw: Any = {"key_type": bytes, "value_serializer": "raw"}
    both = LargeMessageSchema(config_of(), keys=True, on_failure=lambda error, _: error.field, **raw)
    app.topic("orders", schema=both)
    headers: Any
    path, headers = both.dumps_key(app, LARGE, headers=[])
    assert path.startswith(b"memory://")
    event = await both.decode(app, message(b"small", headers, path), propagate=True)
    assert (event.key, event.value, event.headers) == (LARGE, b"small", {})
    event = await LargeMessageSchema(config_of(), **raw).decode(app, message(b"v", headers, path), propagate=True)
    assert (event.key, event.value, "large-message-key" in event.headers) == (path, b"v", True)
    MemoryStore.clear()
    event = await both.decode(app, message(b"v", headers, path), propagate=True)
    assert (event.key, event.value) == (None, "key")


# --- failures ---------------------------------------------------------------------------------------------------------


def refuse(error: SerializationError, record: Message) -> object:
    """An `on_failure` that has no value for a record."""
    raise error


def stored(app: faust.App, **options: Any) -> tuple[Any, bytes, Any]:
    """A topic that has the store with a gate, and value and headers of a reference."""
    schema = LargeMessageSchema(on_gate(), **options)
    return app.topic("orders", value_serializer="raw", schema=schema), *written(schema, app, LARGE, [("a", b"1")])


async def begun(gate: type[GatedStore], calls: int) -> None:
    """Waits until so many downloads have begun."""
    async with asyncio.timeout(30):
        while gate.begun < calls:  # noqa: ASYNC110  # counted by threads
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("cause", "on_failure"),
    [
        (PayloadNotFoundError("gated://orders/0"), None),
        (PayloadNotFoundError("gated://orders/0"), refuse),
        # It says nothing of the record, so `on_failure` is not asked: each record would be passed over.
        (PayloadStoreError("access denied", retriable=False), lambda *_: None),
    ],
)
async def test_what_stops_the_worker(
    app: faust.App, gate: type[GatedStore], thread: Any, cause: Exception, on_failure: Any
) -> None:
    """An error of ours, with coordinates and cause: Faust acknowledges a record with a decode error of its own."""
    orders, path, headers = stored(app, on_failure=on_failure)
    gate.fails = cause
    with pytest.raises(SerializationError, match=r"topic orders partition 3 offset 42") as caught:
        await orders.decode(message(path, headers), propagate=True)
    assert caught.value.__cause__ is cause
    assert not isinstance(caught.value, KeyDecodeError | ValueDecodeError)
    await app.crash(caught.value)  # as Faust does
    assert (app.consumer.should_stop, thread.should_stop) == (True, False)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "cause",
    [
        PayloadNotFoundError("gated://orders/0"),
        PayloadCorruptError("gated://orders/0", "size", expected="1", found="2"),
        MalformedReferenceError("value", "-", "a path"),
    ],
)
async def test_on_failure_stands_for_a_record_that_cannot_be_had(
    app: faust.App, gate: type[GatedStore], cause: Exception, *, asynchronous: bool
) -> None:
    """It is given the error and the record, and gives the value, which passes no codec."""
    seen: list[tuple[SerializationError, Message]] = []

    def stand_in(error: SerializationError, record: Message) -> object:
        seen.append((error, record))
        return Order(number=-1, scan="")

    async def stand_in_async(error: SerializationError, record: Message) -> object:
        await asyncio.sleep(0)
        return stand_in(error, record)

    orders, path, headers = stored(app, on_failure=stand_in_async if asynchronous else stand_in)
    gate.fails = cause
    record = message(path, headers)
    event = await orders.decode(record, propagate=True)
    assert (event.key, event.value, event.headers) == (b"k", Order(number=-1, scan=""), dict(headers))
    ((error, given),) = seen
    assert (error.offset, error.field, error.__cause__, given, event.message) == (42, "value", cause, record, record)


async def test_a_plain_value_where_wrappers_are(app: faust.App) -> None:
    """`on_failure` gets a value that is no wrapper; with `unwrap.on.plain.value` = `pass` the agent does."""
    for more, found in (({}, "MalformedWrapperError"), ({"unwrap.on.plain.value": "pass"}, b"plain")):
        own: Any = {"wrapped": True, "on_failure": lambda error, _: type(error.__cause__).__name__}
        schema = LargeMessageSchema({**CHUNK, **more}, value_serializer="raw", **own)
        event = await schema.decode(app, message(b"plain", [("a", b"1")]), propagate=True)
        assert (event.value, event.headers) == (found, {"a": b"1"})


async def test_a_store_that_is_down_is_asked_again(
    app: faust.App, gate: type[GatedStore], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it answers; the loop runs on, and one line of the log says what is waited for."""
    monkeypatch.setattr("app.serializers.faust_schema._FIRST_WAIT_S", 0.05)
    orders, path, headers = stored(app, on_failure=lambda *_: None)
    gate.fails = PayloadStoreError("503", retriable=True)
    reading = asyncio.create_task(orders.decode(message(path, headers), propagate=True))
    await begun(gate, 2)
    assert not reading.done()
    gate.fails = None
    assert (await asyncio.wait_for(reading, 30)).value == LARGE
    (line,) = [record.getMessage() for record in caplog.records if "is retried" in record.getMessage()]
    assert "topic orders partition 3 offset 42" in line


async def test_waiting_for_a_store_can_be_cancelled(app: faust.App, gate: type[GatedStore]) -> None:
    """As Faust does when partitions go, and when it stops."""
    orders, path, headers = stored(app)
    gate.open.clear()
    reading = asyncio.create_task(orders.decode(message(path, headers), propagate=True))
    await begun(gate, 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 30)
    gate.open.set()


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "large.message.payload.store.class: is missing"),
        ({"large.mesage.strategy": "chunk"}, "large.mesage.strategy: .*did you mean large.message.strategy"),
        ({"large.message.max.bytes": 5}, "large.message.payload.store.class: is missing"),
        ({"large.message.strategy": "auto"}, "large.message.payload.store.class: is missing; large.message.strategy"),
        ({**CHUNK, "chunk.max.byte": 5}, "chunk.max.byte: .*did you mean chunk.max.bytes"),
        ({**ON_GATE, "value.serializer": json.dumps}, "value.serializer: is not supported with Faust: codecs"),
        ({**ON_GATE, "value.deserializers": [json.loads]}, "value.deserializers: is not supported with Faust"),
        ({**ON_GATE, **CHUNK, "large.message.treshold.bytes": 5}, "large.message.treshold.bytes: .*threshold.bytes"),
        ({**ON_GATE, **CHUNK, "chunk.max.mesage.bytes": 5}, "chunk.max.mesage.bytes: .*mean chunk.max.message.bytes"),
    ],
)
def test_a_wrong_configuration(app: faust.App, given: dict[str, Any], found: str) -> None:
    """It is reported where the topic is made, a misspelt key before what is missing."""
    with pytest.raises(ConfigurationError, match=f"^{found}"):
        app.topic("orders", schema=LargeMessageSchema(given))


def test_a_store_of_the_users_has_keys_of_its_own(app: faust.App) -> None:
    """A class without a list of its keys may have any."""
    app.topic("orders", schema=LargeMessageSchema({**ON_GATE, **CHUNK, "own.key": 5}))


@pytest.mark.parametrize(("keys", "timeout_ms"), [(False, 50_001), (True, 25_001)])
def test_store_time_is_checked_against_the_apps(
    tmp_path: Path, config_of: Config, timeout_ms: int, *, keys: bool
) -> None:
    """No longer than `broker_max_poll_interval`, of keys and values together."""
    app = faust.App("tests", broker="kafka://h", datadir=str(tmp_path), broker_max_poll_interval=50.0)
    slow = config_of(**{"large.message.store.timeout.ms": timeout_ms})
    with pytest.raises(ConfigurationError, match=r"max\.poll\.interval\.ms.*50,000"):
        app.topic("orders", schema=LargeMessageSchema(slow, keys=keys))
    app.topic("orders", schema=LargeMessageSchema(config_of(**{"large.message.store.timeout.ms": 25_000}), keys=keys))


def test_the_apps_own_limit_counts(tmp_path: Path, config_of: Config) -> None:
    """What the producer would refuse is offloaded below the threshold, unless the configuration says otherwise."""
    app = faust.App("tests", broker="kafka://h", datadir=str(tmp_path), producer_max_request_size=50_000)
    for more, stays in (({}, False), ({"max.request.size": "60000"}, True)):
        given = config_of(**{"large.message.threshold.bytes": 10**9}, **more)
        schema = LargeMessageSchema(given, topic="orders", value_serializer="raw")
        assert (written(schema, app, b"x" * 50_000)[0] == b"x" * 50_000) is stays


async def test_a_closed_schema_opens_again(app: faust.App, config_of: Config) -> None:
    """So an app that is stopped may be started again, with the topics that it has."""
    schema = LargeMessageSchema(config_of())
    orders = app.topic("orders", value_serializer="raw", schema=schema)
    path, headers = written(schema, app, LARGE, [])
    schema.close()
    schema.close()
    assert (await orders.decode(message(path, headers), propagate=True)).value == LARGE
    schema.close()
    assert written(schema, app, LARGE)[0].startswith(b"memory://")


# --- chunks -----------------------------------------------------------------------------------------------------------


def values() -> dict[str, Any]:
    """Those of a schema that says nothing of chunks."""
    return read(CONSUMER_KEYS, {})


def given(offset: int, record: Record) -> ConsumerMessage:
    """A record that one agent gets."""
    headers = cast("Any", list(record.headers))
    made = ConsumerMessage("orders", 0, offset, 0.0, 0, headers, b"k", record.value, None, generation_id=1)
    made.incref()
    return made


def pieces(uuid: str = "uuid") -> list[Record]:
    """The chunks of a value of 3,000 bytes."""
    return list(Chunking(1_000).split(Record(b"k", bytes(3_000)), uuid))


async def test_records_behind_an_incomplete_message_leave_memory(app: faust.App, thread: Any) -> None:
    """What waits to be committed keeps its offset alone, once its agent has done with it."""
    chunks = Chunks(app, values(), lambda _: None)
    piece = given(0, pieces()[0])
    behind = [given(n, Record(b"k", b"v" * 100)) for n in range(1, 4)]
    assert [await chunks.take(each) for each in (piece, *behind)] == [False, True, True, True]
    app.consumer.unacked.update(behind)
    for each in behind[:2]:
        each.ack(app.consumer)
    partition = chunks._partitions[piece.tp]
    chunks._release(piece.tp, partition)
    assert [each.offset for each in partition.held] == [0, 1, 2, 3]
    assert [each.message for each in partition.held] == [None, None, None, behind[2]]
    assert set(app.consumer.unacked) == {behind[2]}
    assert [each.value for each in behind] == [b"v" * 100] * 3  # those of the agents stay
    assert chunks.stats()["pendingChunkedMessages"] == 1


async def test_a_crash_by_what_is_discarded_does_not_end_the_consumers_thread(app: faust.App, thread: Any) -> None:
    """Nor does the error of `on_discarded`, when a message has waited too long."""

    def refuse(discarded: Discarded) -> None:
        raise ValueError(discarded.reason)

    chunks = Chunks(app, values() | {"expire.time.of.incomplete.chunked.message.ms": 1}, refuse)
    app.flow_control.resume()
    await chunks.take(given(0, pieces()[0]))
    async with asyncio.timeout(30):
        await app.wait_until_stopped()
    assert isinstance(app.crash_reason, ValueError)
    assert app.consumer.should_stop
    assert not thread.should_stop


async def test_the_question_for_a_topic_is_for_several_addresses(
    app: faust.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never answers leaves time to the others: of the time of the question, as Faust's own is longer."""
    times_ms: list[int] = []

    async def bootstrap(client: AIOKafkaClient) -> None:
        times_ms.append(client._request_timeout_ms)
        raise KafkaConnectionError("nobody")

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    own = {**cluster_arguments(app), "bootstrap_servers": "a:1,b:1,c:1"}
    for cluster in (own, {**own, "request_timeout_ms": 12_000}):
        with pytest.raises(KafkaConnectionError):
            await described(cluster, "orders")
    assert times_ms == [10_000, 4_000]
