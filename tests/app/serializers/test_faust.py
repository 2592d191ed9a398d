"""The schema and the topic for Faust, as far as no broker is needed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

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

Headers = list[tuple[str, bytes]]


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


def test_small_values_are_as_faust_makes_them(app: faust.App, config_of: Config) -> None:
    """The same bytes and the same headers, the very object."""
    schema = LargeMessageSchema(config_of(), topic="orders")
    headers = {"a": b"1"}
    value, after = written(schema, app, {"n": 1}, headers)
    assert (value, after) == (b'{"n":1}', {"a": b"1"})
    assert after is headers


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([("a", b"1"), ("a", b"2")], ["a", "a"]),
        ([], []),
        ({"a": b"1"}, ["a"]),
        ({}, []),
    ],
)
def test_headers_of_a_reference_join_a_copy(
    app: faust.App, config_of: Config, given: Headers | dict[str, bytes], names: list[str]
) -> None:
    """List or dict, behind the application's own; what the application gave stays as it was."""
    schema = LargeMessageSchema(config_of(), topic="orders")
    before = given.copy()
    value, after = written(schema, app, LARGE, given)
    assert given == before
    assert type(after) is type(given)
    listed = list(after.items()) if isinstance(after, dict) else after
    assert [name for name, _ in listed] == [*names, "large-message", "large-message.size", "large-message.checksum"]
    assert value.startswith(b"memory://")


def test_a_schema_knows_its_topic(app: faust.App, config_of: Config) -> None:
    """That of the topic which it is the schema of, if no topic was given."""
    schema = LargeMessageSchema(config_of())
    app.topic("orders", schema=schema)
    assert b"/orders/" in written(schema, app, LARGE)[0]
    assert b"/other/" in written(LargeMessageSchema(config_of(), topic="other"), app, LARGE)[0]


def test_a_schema_of_two_topics_says_what_to_do(app: faust.App, config_of: Config) -> None:
    """Faust's own topics do not say which of them is written to, so nothing is stored under a wrong name."""
    schema = LargeMessageSchema(config_of())
    app.topic("orders", schema=schema)
    app.topic("invoices", schema=schema)
    with pytest.raises(SerializationError, match=r"serves invoices, orders.*Topic=LargeMessageTopic"):
        written(schema, app, LARGE)
    with pytest.raises(SerializationError, match=r"serves no topic"):
        written(LargeMessageSchema(config_of()), app, LARGE)


async def test_dumps_runs_the_store_on_a_thread(app: faust.App) -> None:
    """And nothing else: codecs run on the loop, small values need no thread."""
    schema = LargeMessageSchema({"large.message.payload.store.class": ThreadStore}, keys=True, value_serializer="raw")
    big = b"x" * 2_000_000
    key, value, headers = await schema.dumps(app, "orders", b"k", big, {"a": b"1"})
    assert (key, value) == (b"k", b"thread://orders")
    assert isinstance(headers, dict)
    assert list(headers)[:2] == ["a", "large-message"]
    assert ThreadStore.names == ["orders"]
    assert threading.main_thread() not in ThreadStore.threads


class ThreadStore:
    """Writes down what is called, and on which thread."""

    names: ClassVar[list[str]] = []
    threads: ClassVar[list[threading.Thread]] = []

    def configure(self, config: dict[str, object]) -> None:
        """Forgets what was called."""
        self.names.clear()
        self.threads.clear()

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        self.names.append(topic)
        self.threads.append(threading.current_thread())
        return f"thread://{topic}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        self.threads.append(threading.current_thread())
        return LARGE


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
    kinds: tuple[Any, ...] = (None, [], {}, [("a", b"1")])
    for headers in kinds:
        event = await orders.decode(message(b'{"number": 1, "scan": ""}', headers), propagate=True)
        assert event.value == Order(number=1, scan="")
    assert (await orders.decode(message(None, []), propagate=True)).value is None
    with pytest.raises(ValueDecodeError):
        await orders.decode(message(b"{", []), propagate=True)


async def test_a_payload_that_the_codec_refuses_is_fausts_own_error(app: faust.App, config_of: Config) -> None:
    """Behind the download, what is wrong with a value is Faust's to say, as for any value."""
    schema = LargeMessageSchema(config_of())
    orders = app.topic("orders", value_type=Order, schema=schema)
    path, headers = written(schema, app, b"{" * 5_000, [])
    with pytest.raises(ValueDecodeError):
        await orders.decode(message(path, headers), propagate=True)


async def test_keys_are_left_alone_unless_asked_for(app: faust.App, config_of: Config) -> None:
    """With `keys=True` they come back whole; without, the path passes, and its headers stay."""
    both = LargeMessageSchema(config_of(), keys=True, key_type=bytes, value_serializer="raw")
    headers: Any
    path, headers = both.dumps_key(app_topic(app, both), LARGE, headers=[])
    assert path.startswith(b"memory://")
    event = await both.decode(app, message(b"small", headers, path), propagate=True)
    assert (event.key, event.value, event.headers) == (LARGE, b"small", {})
    values = LargeMessageSchema(config_of(), key_type=bytes, value_serializer="raw")
    event = await values.decode(app, message(b"small", headers, path), propagate=True)
    assert (event.key, event.value) == (path, b"small")
    assert "large-message-key" in event.headers


def app_topic(app: faust.App, schema: LargeMessageSchema) -> faust.App:
    """The app, with a topic that has this schema."""
    app.topic("orders", schema=schema)
    return app


# --- failures ---------------------------------------------------------------------------------------------------------


def refuse(error: SerializationError, record: Message) -> object:
    """An `on_failure` that has no value for a record."""
    raise error


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
    """An error of ours, with coordinates and cause: Faust acknowledges a record with a decode error of its own.

    The app that stops then commits by the thread of its consumer; if it had ended, the worker would wait for ever.
    """
    schema = LargeMessageSchema(on_gate(), on_failure=on_failure)
    orders = app.topic("orders", value_serializer="raw", schema=schema)
    path, headers = written(schema, app, LARGE, [])
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

    schema = LargeMessageSchema(on_gate(), on_failure=stand_in_async if asynchronous else stand_in)
    orders = app.topic("orders", value_type=Order, schema=schema)
    path, headers = written(schema, app, LARGE, [("a", b"1")])
    gate.fails = cause
    record = message(path, headers)
    event = await orders.decode(record, propagate=True)
    assert (event.key, event.value) == (b"k", Order(number=-1, scan=""))
    assert event.message is record
    assert event.headers == dict(headers)
    ((error, given),) = seen
    assert (error.offset, error.field, error.__cause__, given) == (42, "value", cause, record)


async def test_a_plain_value_where_wrappers_are(app: faust.App) -> None:
    """`on_failure` gets a value that is no wrapper; with `unwrap.on.plain.value` = `pass` the agent does."""
    for more, found in (({}, "MalformedWrapperError"), ({"unwrap.on.plain.value": "pass"}, b"plain")):
        own: Any = {"wrapped": True, "on_failure": lambda error, _: type(error.__cause__).__name__}
        schema = LargeMessageSchema({"large.message.strategy": "chunk", **more}, value_serializer="raw", **own)
        event = await schema.decode(app, message(b"plain", [("a", b"1")]), propagate=True)
        assert (event.value, event.headers) == (found, {"a": b"1"})


async def test_a_key_that_cannot_be_had_is_null(app: faust.App, config_of: Config) -> None:
    """The event of `on_failure` has no key then."""
    schema = LargeMessageSchema(config_of(), keys=True, value_serializer="raw", on_failure=lambda error, _: error.field)
    headers: Any
    path, headers = schema.dumps_key(app_topic(app, schema), LARGE, headers=[])
    MemoryStore.clear()
    event = await schema.decode(app, message(b"v", headers, path), propagate=True)
    assert (event.key, event.value) == (None, "key")


async def test_a_store_that_is_down_is_asked_again(
    app: faust.App, gate: type[GatedStore], caplog: pytest.LogCaptureFixture
) -> None:
    """Until it answers; the loop runs on, and one line of the log says what is waited for."""
    schema = LargeMessageSchema(on_gate(), on_failure=lambda *_: None)
    orders = app.topic("orders", value_serializer="raw", schema=schema)
    path, headers = written(schema, app, LARGE, [])
    gate.fails = PayloadStoreError("503", retriable=True)
    reading = asyncio.create_task(orders.decode(message(path, headers), propagate=True))
    async with asyncio.timeout(30):
        while gate.begun < 2:  # noqa: ASYNC110  # counted by threads
            await asyncio.sleep(0.01)
        assert not reading.done()
        gate.fails = None
        assert (await reading).value == LARGE
    (line,) = [record.getMessage() for record in caplog.records if "tried again" in record.getMessage()]
    assert "topic orders partition 3 offset 42" in line


async def test_waiting_for_a_store_can_be_cancelled(app: faust.App, gate: type[GatedStore]) -> None:
    """As Faust does when partitions go, and when it stops."""
    schema = LargeMessageSchema(on_gate())
    orders = app.topic("orders", value_serializer="raw", schema=schema)
    path, headers = written(schema, app, LARGE, [])
    gate.open.clear()
    reading = asyncio.create_task(orders.decode(message(path, headers), propagate=True))
    async with asyncio.timeout(30):
        while gate.begun < 1:  # noqa: ASYNC110  # counted by a thread
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    gate.open.set()


# --- configuration ----------------------------------------------------------------------------------------------------


def test_a_wrong_configuration_is_reported_where_the_topic_is_made(app: faust.App, config_of: Config) -> None:
    """Before a worker starts."""
    with pytest.raises(ConfigurationError, match=r"^large\.message\.payload\.store\.class: is missing"):
        app.topic("orders", schema=LargeMessageSchema({}))
    with pytest.raises(ConfigurationError, match=r"^large\.message\.treshold\.bytes: .*threshold"):
        app.topic("orders", schema=LargeMessageSchema(config_of(**{"large.message.treshold.bytes": 1})))


def test_a_misspelt_key_is_reported_before_what_is_missing(app: faust.App) -> None:
    """A strategy that is misspelt needs no store; and a class without a list of its keys hides none of ours."""
    for given, found in (
        ({"large.mesage.strategy": "chunk"}, "large.mesage.strategy: .*did you mean large.message.strategy"),
        ({"large.message.max.bytes": 5}, "large.message.payload.store.class: is missing"),
        ({"large.message.strategy": "auto"}, "large.message.payload.store.class: is missing; large.message.strategy"),
        ({"large.message.strategy": "chunk", "chunk.max.byte": 5}, "chunk.max.byte: .*did you mean chunk.max.bytes"),
        ({**ON_GATE, "value.serializer": json.dumps}, "value.serializer: is not for Faust: codecs"),
        ({**ON_GATE, "value.deserializers": [json.loads]}, "value.deserializers: is not for Faust"),
        (
            {**ON_GATE, "large.message.strategy": "chunk", "large.message.treshold.bytes": 5},
            "large.message.treshold.bytes: .*did you mean large.message.threshold.bytes",
        ),
        (
            {**ON_GATE, "large.message.strategy": "chunk", "chunk.max.mesage.bytes": 5},
            "chunk.max.mesage.bytes: .*did you mean chunk.max.message.bytes",
        ),
    ):
        with pytest.raises(ConfigurationError, match=f"^{found}"):
            app.topic("orders", schema=LargeMessageSchema(given))
    app.topic("orders", schema=LargeMessageSchema({**ON_GATE, "large.message.strategy": "chunk", "own.key": 5}))


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
    threshold = {"large.message.threshold.bytes": 10**9}
    schema = LargeMessageSchema(config_of(**threshold), topic="orders", value_serializer="raw")
    assert written(schema, app, b"x" * 50_000)[0].startswith(b"memory://")
    schema = LargeMessageSchema(
        config_of(**threshold, **{"max.request.size": "60000"}), topic="orders", value_serializer="raw"
    )
    assert written(schema, app, b"x" * 50_000)[0] == b"x" * 50_000


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


async def test_what_is_done_holds_back_no_later_message(
    app: faust.App, thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record behind a message is acknowledged once, and not held again when the next message begins behind it."""
    chunks, acked = Chunks(app, values(), lambda _: None), list[int]()
    monkeypatch.setattr(app.consumer, "ack", lambda message: acked.append(message.offset))
    records = [*pieces("a"), Record(b"k", b"behind"), *pieces("b")]
    taken = [given(offset, record) for offset, record in enumerate(records)]
    behind = len(pieces())
    for record in taken[: behind + 1]:
        await chunks.take(record)
    for done in (taken[behind], taken[behind - 1]):
        done.ack(app.consumer)
        chunks._release(done.tp, chunks._partitions[done.tp])
    for record in taken[behind + 1 :]:
        await chunks.take(record)
    taken[-1].ack(app.consumer)
    chunks._release(taken[-1].tp, chunks._partitions[taken[-1].tp])
    assert acked == list(range(len(records)))


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
