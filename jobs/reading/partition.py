"""One partition of a topic as a task reads it, and what the cluster says of topics; with aiokafka, as in the worker.

For what cannot go by Spark's own Kafka source: a Python data source has no way to it. Calls block; a task has an event
loop of its own, which stands still while Spark takes what was read.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from jobs.driver.failures import JobFailedError
from jobs.reading.ranges import Bounds, Place
from transforms.errors import ConfigurationError

__all__ = ["Client", "Log", "bounds"]

_POLL_MS = 1_000
_POLL_RECORDS = 500
_SILENCE_S = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Client:
    """How the brokers are reached; goes to executors.

    Attributes:
        servers: the bootstrap servers.
        arguments: of aiokafka's clients, all but the context of TLS; may hold a password.
        consumer: further ones, of its consumer.
        tls: files of certificates and keys; None where there is no TLS. May hold a password.
    """

    servers: str
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    consumer: Mapping[str, Any] = field(default_factory=dict)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)

    def connection(self) -> dict[str, Any]:
        """What every client of aiokafka takes.

        Raises:
            ConfigurationError: a certificate or a key cannot be used.
        """
        arguments = {"bootstrap_servers": self.servers, **self.arguments}
        return arguments if self.tls is None else arguments | {"ssl_context": _context(self.tls)}

    def open(self) -> AIOKafkaConsumer:
        """A consumer without a group, not started."""
        return AIOKafkaConsumer(
            **self.connection(), **self.consumer, group_id=None, enable_auto_commit=False, auto_offset_reset="none"
        )


def _context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.get("ca"))
        if tls.get("certificate") is not None:
            context.load_cert_chain(tls["certificate"], tls.get("key"), tls.get("password") or "")
    except (ssl.SSLError, OSError) as exc:
        raise ConfigurationError("kafka.ssl", f"the files of certificates or the key cannot be used: {exc}") from exc
    context.check_hostname = bool(tls.get("check_hostname", True))
    return context


def bounds(client: Client, topics: Sequence[str]) -> dict[Place, Bounds]:
    """Each partition of the topics as it is now; with `read_committed`, up to the first open transaction.

    Raises:
        ConfigurationError: a topic is not there, or no broker answers.
    """
    return asyncio.run(_explained(client, _bounds(client, topics)))


async def _bounds(client: Client, topics: Sequence[str]) -> dict[Place, Bounds]:
    async with AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(**client.connection())
        stack.push_async_callback(admin.close)
        await admin.start()
        places = []
        for topic in await admin.describe_topics(list(topics)):
            if topic["error_code"]:
                reason = kafka_errors.for_code(topic["error_code"]).__name__
                raise ConfigurationError("subscribe", f"topic {topic['topic']} cannot be read: {reason}")
            places += [TopicPartition(topic["topic"], each["partition"]) for each in topic["partitions"]]
        consumer = client.open()
        consumer.assign(places)
        stack.push_async_callback(consumer.stop)
        await consumer.start()
        first = await consumer.beginning_offsets(places)
        end = await consumer.end_offsets(places)
        return {(each.topic, each.partition): Bounds(first[each], max(first[each], end[each])) for each in places}


async def _explained(client: Client, work: Awaitable[Answer]) -> Answer:
    try:
        return await work
    except kafka_errors.OffsetOutOfRangeError:
        raise
    except (kafka_errors.KafkaConnectionError, OSError, TimeoutError) as exc:
        raise ConfigurationError("kafka.bootstrap.servers", f"no broker answers at {client.servers}: {exc}") from exc
    except kafka_errors.KafkaError as exc:
        raise JobFailedError(f"Kafka at {client.servers} fails: {type(exc).__name__}: {exc}") from exc


class Log:
    """One partition, read in ranges of offsets; a range may be read while another is being read.

    Args:
        client: how to reach it.
        topic: its topic.
        partition: its number.

    Raises:
        ConfigurationError: no broker answers.
    """

    def __init__(self, client: Client, topic: str, partition: int) -> None:
        self._client = client
        self._place = TopicPartition(topic, partition)
        self._reader: object = None
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer | None = None
        try:
            self._run(self._start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connections."""
        if self._consumer is not None:
            self._runner.run(self._consumer.stop())
        self._runner.close()

    def first(self) -> int:
        """The offset of the first record that is there."""
        assert self._consumer is not None
        found = self._run(self._consumer.beginning_offsets([self._place]))
        return int(found[self._place])

    def records(self, start: int, end: int, *, fail_on_loss: bool = True) -> Iterator[ConsumerRecord[Any, Any]]:
        """What is in the log from `start` up to `end`, in order.

        Args:
            start: the first offset.
            end: the one behind the last.
            fail_on_loss: whether records that Kafka has deleted are a failure; else they are left out.

        Raises:
            JobFailedError: records are gone, none come, or one cannot be read.
        """
        assert self._consumer is not None
        reader, position, heard = object(), start, time.monotonic()
        while position < end:
            if self._reader is not reader:
                self._reader = reader
                self._consumer.seek(self._place, position)
            try:
                polled = self._run(self._poll())
            except kafka_errors.OffsetOutOfRangeError as exc:
                first = self.first()
                if fail_on_loss or first <= position:
                    raise self._lost(position, first) from exc
                position, self._reader = first, None
                continue
            except UnicodeDecodeError as exc:
                raise JobFailedError(
                    f"{self._name}: at offset {position} or soon behind it is a record with a header name that is not "
                    "UTF-8, as Kafka wants it; no client of Python reads it, but for the worker: take it out there, "
                    "by errors.tolerance = all, and read what comes of it"
                ) from exc
            for record in polled:
                if record.offset >= end:
                    return
                position, heard = record.offset + 1, time.monotonic()
                yield record
            if (
                self._reader is reader
            ):  # what is no record takes offsets, too: marks of transactions, what compaction left
                position = max(position, self._run(self._consumer.position(self._place)))
            if time.monotonic() - heard > _SILENCE_S:
                raise JobFailedError(f"{self._name} has no record at offset {position} for {_SILENCE_S:g} s")

    @property
    def _name(self) -> str:
        return f"topic {self._place.topic} partition {self._place.partition}"

    def _lost(self, position: int, first: int) -> JobFailedError:
        return JobFailedError(
            f"{self._name}: offset {position} is not there, the first one is {first}: records were deleted by Kafka, "
            "or the topic was made anew; failOnDataLoss=false goes on without them"
        )

    def _run(self, work: Awaitable[Answer]) -> Answer:
        return self._runner.run(_explained(self._client, work))

    async def _start(self) -> None:
        self._consumer = self._client.open()  # takes the loop that runs
        self._consumer.assign([self._place])
        await self._consumer.start()

    async def _poll(self) -> Sequence[ConsumerRecord[Any, Any]]:
        assert self._consumer is not None
        polled = await self._consumer.getmany(self._place, timeout_ms=_POLL_MS, max_records=_POLL_RECORDS)
        found: Sequence[ConsumerRecord[Any, Any]] = polled.get(self._place, [])
        return found
