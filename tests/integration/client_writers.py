"""Our producers behind one interface, and what they have written as a bare client reads it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import aiokafka.errors
import faust
import kafka.errors
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import SerializingProducer as ConfluentsProducer
from confluent_kafka.error import ValueSerializationError

from app.chunks import ChunkingProducer
from app.serializers import aiokafka as by_aiokafka
from app.serializers import confluent as by_confluent
from app.serializers import kafka_python as by_kafka_python
from app.serializers.faust import LargeMessageSchema, LargeMessageTopic
from tests.integration.client_config import ON_GATE, Config, producing
from tests.integration.client_stores import GatedStore
from tests.integration.limits import alter_configs
from tests.integration.topics import Found, read_all
from tests.s3_server import S3Server

_LONG_S = 60.0
_STAGE = "value.serializer"


class RefusedError(Exception):
    """The topic refused the record as too large."""


class Outcome(NamedTuple):
    """Where the producer says that a record is: its last chunk, if it went in chunks."""

    partition: int
    offset: int
    timestamp: int


class Writer:
    """A producer, by a configuration with Kafka's names."""

    limit: ClassVar[str] = "max.request.size"  # the key of the most bytes of a record that the client takes
    null_headers: ClassVar[bool] = True  # whether the value of a header may be null
    closed: ClassVar[type[Exception]]  # what `start` raises after `close`; of a Faust app, nothing is promised
    outside: ClassVar[type[Exception]]  # what `start` raises outside of a transaction, if there are any
    own: Any

    def __init__(self, config: Config) -> None:
        self._transactional = "transactional.id" in config

    async def __aenter__(self) -> Self:
        if self._transactional:
            await self.call("init_transactions")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, name: str, *args: Any) -> None:
        await asyncio.to_thread(getattr(self.own, name), *args)

    async def close(self) -> None:
        await self.call("close")

    async def flush(self) -> None:
        await self.call("flush", _LONG_S)

    async def send(self, topic: str, value: Any, key: Any = b"k", **more: Any) -> Outcome:
        return await (await self.start(topic, value, key, **more))()

    async def start(
        self,
        topic: str,
        value: Any,
        key: Any = b"k",
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Callable[[], Awaitable[Outcome]]:
        reported = await self._start(topic, value, key, headers, partition, timestamp)

        async def outcome() -> Outcome:
            try:
                found = await reported()
            except (aiokafka.errors.MessageSizeTooLargeError, kafka.errors.MessageSizeTooLargeError):
                raise RefusedError from None
            return Outcome(-1, -1, -1) if found is None else Outcome(found.partition, found.offset, found.timestamp)

        return outcome

    async def _start(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None, timestamp: int | None
    ) -> Callable[[], Awaitable[Any]]:
        raise NotImplementedError


class Aiokafka(Writer):
    """aiokafka's."""

    closed = aiokafka.errors.ProducerClosed
    outside = aiokafka.errors.IllegalOperation

    def __init__(self, config: Config) -> None:
        super().__init__({})
        self.own = by_aiokafka.SerializingProducer(config)

    async def __aenter__(self) -> Self:
        await self.own.start()
        return self

    async def call(self, name: str, *args: Any) -> None:
        await getattr(self.own, name)(*args)

    async def close(self) -> None:
        await self.own.stop()

    async def flush(self) -> None:
        await self.own.flush()

    async def _start(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> Any:
        future = await self.own.send(topic, value, key, partition, timestamp, headers)
        return lambda: future


class Chunking(Aiokafka):
    """aiokafka's, which knows chunks alone."""

    def __init__(self, config: Config) -> None:
        own = {name: value for name, value in config.items() if name not in ("large.message.strategy", _STAGE)}
        Writer.__init__(self, {})
        stage = config.get(_STAGE, bytes)  # as aiokafka's own, it sees a null, too
        self.own = ChunkingProducer(own, value_serializer=lambda value: None if value is None else stage(value))


class Confluent(Writer):
    """confluent-kafka's."""

    limit = "message.max.bytes"
    closed = RuntimeError
    outside = KafkaException

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Several chunks must fit into the smallest topic here, or be refused together.
        self.own = self._made({"batch.size": 5_000, "linger.ms": 0, **config})

    def _made(self, config: Config) -> Any:
        return by_confluent.SerializingProducer(config)

    async def _start(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> Any:
        reported = Future[Outcome]()

        def done(error: KafkaError | None, message: Any) -> None:
            if error is None:
                reported.set_result(Outcome(message.partition(), message.offset(), message.timestamp()[1]))
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                reported.set_exception(RefusedError())
            else:
                reported.set_exception(KafkaException(error))

        place = -1 if partition is None else partition
        try:
            await asyncio.to_thread(self.own.produce, topic, key, value, place, done, timestamp or 0, headers)
        except ValueSerializationError as error:
            reason: Any = error.exception
            raise reason from reason.__cause__

        async def outcome() -> Outcome:
            await self.flush()
            return await asyncio.wait_for(asyncio.wrap_future(reported), _LONG_S)

        return outcome


class ConfluentsOwn(Confluent):
    """confluent-kafka's own class, with our configuration: it needs headers, and knows no chunks."""

    def _made(self, config: Config) -> Any:
        self._config = by_confluent.producer_config(config)
        return ConfluentsProducer(self._config)

    async def close(self) -> None:
        await self.flush()
        for side in {"key.serializer", "value.serializer"} & set(self._config):
            self._config[side].close()

    async def _start(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> Any:
        return await super()._start(topic, value, key, headers or [], partition, timestamp)


class KafkaPython(Writer):
    """kafka-python's."""

    null_headers = False
    closed = kafka.errors.IllegalStateError
    outside = kafka.errors.IllegalStateError

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.own = by_kafka_python.SerializingProducer(config)

    async def _start(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> Any:
        future = await asyncio.to_thread(self.own.send, topic, value, key, headers, partition, timestamp)
        return lambda: asyncio.to_thread(future.get, _LONG_S)


class Faust(Writer):
    """A Faust app that only sends. Codecs serialize there; here it is done before."""

    def __init__(self, config: Config) -> None:
        super().__init__({})
        own = dict(config)
        stages = [*own.pop("value.serializers", ()), own.pop(_STAGE, None)]
        self._stage = stages[0] if callable(stages[0]) and not isinstance(stages[0], type) else bytes
        keys = own.pop("key.serializers", None) is not None
        sizes: Config = {"producer_max_batch_size": 5_000}  # as confluent-kafka's above
        if self.limit in own:
            sizes["producer_max_request_size"] = own.pop(self.limit)
        self.own = faust.App(
            "writer", broker=f"kafka://{own.pop('bootstrap.servers')}", Topic=LargeMessageTopic, **sizes
        )
        self._schema = LargeMessageSchema(own, keys=keys)

    def channel(self, topic: str, **more: Any) -> Any:
        raw = {"key_serializer": "raw", "value_serializer": "raw", "schema": self._schema}
        return self.own.topic(topic, **{**raw, **more})

    async def close(self) -> None:
        await self.own.producer.stop()
        self._schema.close()

    async def flush(self) -> None:
        await self.own.producer.flush()

    async def _start(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> Any:
        reported = await self.channel(topic).send(
            key=key,
            value=None if value is None else self._stage(value),
            partition=partition,
            timestamp=None if timestamp is None else timestamp / 1000,
            headers=headers,
        )
        return lambda: reported


BOTH = [Aiokafka, Confluent, KafkaPython, Faust]
"""Those that send chunks and references."""

CHUNKS = [*BOTH, Chunking]
"""Those that send chunks."""

STORES = [*BOTH, ConfluentsOwn]
"""Those that send references."""

STAGED = [Aiokafka, Confluent, KafkaPython]
"""Those whose stages stand in their configuration; those of Faust are the app's."""

TRANSACTIONAL = [*STAGED, Chunking]
"""Those whose transactions the application begins and ends."""


# --- the log ----------------------------------------------------------------------------------------------------------

_UUID = "large-message.chunk.uuid"


@dataclass(frozen=True)
class Written:
    """A record as the application gave it, and the records of the log in which it stands, one or all its chunks.

    The formats are read as docs/reference-messages.md and docs/chunk-format.md say.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    records: tuple[Found, ...]

    @property
    def form(self) -> str:
        names = [name for name, _ in self.records[0].headers]
        return "chunks" if _UUID in names else "reference" if "large-message" in names else "plain"

    @property
    def outcome(self) -> Outcome:
        last = self.records[-1]
        return Outcome(last.partition, last.offset, last.timestamp)


class Log:
    """A topic of one test, and the configurations of producers that write to it."""

    def __init__(self, broker: str, topic: str, server: S3Server) -> None:
        self.broker = broker
        self.topic = topic
        self._server = server

    def close(self) -> None:
        if "_client" in vars(self):
            self._client.close()

    def chunking(self, **more: object) -> Config:
        return {"bootstrap.servers": self.broker, "large.message.strategy": "chunk", **more}

    def storing(self, store: Config = ON_GATE, /, **more: object) -> Config:
        return producing(self.broker, store, **more)

    async def lower_limit(self, size: int) -> None:
        await alter_configs(self.broker, self.topic, {"max.message.bytes": str(size)})

    async def written(self, isolation: str = "read_uncommitted") -> list[Written]:
        found = []
        for records in (await asyncio.to_thread(read_all, self.broker, self.topic, isolation)).values():
            messages: dict[bytes | None, list[Found]] = {}
            for record in records:
                own = dict(record.headers)
                parts = messages.setdefault(own[_UUID], []) if _UUID in own else []
                parts.append(record)
                number, place = int(own.get("large-message.chunk.id") or 0), (record.partition, record.offset)
                assert number == len(parts) - 1, f"chunk {number} at {place} stands behind {len(parts) - 1} others"
                if len(parts) == int(own.get("large-message.chunk.count") or 1):
                    found.append(self._whole(tuple(parts)))
        return found

    def _whole(self, records: tuple[Found, ...]) -> Written:
        first, own = records[0], dict(records[0].headers)
        key, value = first.key, first.value
        if _UUID in own:
            value = b"".join(record.value or b"" for record in records)
            assert own["large-message.chunk.checksum"] == b"sha256:" + hashlib.sha256(value).hexdigest().encode()
            assert {record.key for record in records} == {key}
        if "large-message" in own:
            value = self._payload(value)
            assert own["large-message.size"] == b"%d" % len(value)
        if "large-message-key" in own:
            key = self._payload(key)
        return Written(key, value, [each for each in first.headers if not each[0].startswith("large-message")], records)

    def _payload(self, data: bytes | None) -> bytes:
        path = (data or b"").decode()
        if not path.startswith("s3://"):
            return GatedStore.payloads[path]
        bucket, _, key = path.removeprefix("s3://").partition("/")
        found: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return found

    @cached_property
    def _client(self) -> Any:
        return self._server.client()


MakeLog = Callable[..., Log]
