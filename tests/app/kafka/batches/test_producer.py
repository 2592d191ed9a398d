"""Batches over a partition's log that refuses at will: nothing is lost, doubled or moved, and no number is skipped.

The log is a fake, so that it can refuse what no broker would; tests/integration/test_batches.py has the real one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, OutOfOrderSequenceNumber
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import RecordMetadata
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kafka.batches.batch import Batch
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Batches, BatchSettings, RecordRefusedError
from tests.strategies import batches
from transforms.record import Record

CODECS = [(None, 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]


class Log:
    """The logs of a topic's partitions, behind what `Batches` uses of an aiokafka producer.

    Args:
        codec: name and number.
        refuses: asked of each batch, by its records.
        answer_s: how long each partition takes to answer; others answer at once.
        tries: how often a batch is sent until an answer comes.
    """

    def __init__(
        self,
        codec: tuple[str | None, int],
        refuses: Callable[[list[Record]], bool],
        *,
        answer_s: Mapping[int, float] | None = None,
        tries: int = 1,
    ) -> None:
        self.partitions: dict[int, list[Record]] = {}
        self._refuses = refuses
        self._answer_s = answer_s or {}
        self._tries = tries
        self._txn_manager = TransactionManager(None, 1_000)
        self._txn_manager.set_pid_and_epoch(7, 0)
        self._sender = SimpleNamespace(_acks=-1)
        self._message_accumulator = SimpleNamespace(_compression_type=codec[1])
        self._compression_type = codec[0]
        self._max_request_size = 2**31 - 1
        self._on_its_way: set[int] = set()
        self._bytes_on_their_way = 0
        self.peak_bytes = 0

    async def send_batch(self, builder: Batch[Any], topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """As aiokafka's, with the broker's answer."""
        assert partition not in self._on_its_way, "two batches of a partition on their way"
        self._on_its_way.add(partition)
        place = TopicPartition(topic, partition)
        numbers = self._txn_manager
        sequence = numbers.sequence_number(place)
        numbers.increment_sequence_number(place, builder.record_count())
        builder._set_producer_state(numbers.producer_id, numbers.producer_epoch, sequence)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RecordMetadata] = loop.create_future()
        for _ in range(self._tries):
            data = bytes(builder._build())
        self._bytes_on_their_way += len(data)
        self.peak_bytes = max(self.peak_bytes, self._bytes_on_their_way)
        loop.call_later(self._answer_s.get(partition, 0), self._answer, answer, place, data)
        return answer

    def _answer(self, answer: asyncio.Future[RecordMetadata], place: TopicPartition, data: bytes) -> None:
        self._on_its_way.remove(place.partition)
        self._bytes_on_their_way -= len(data)
        batch = MemoryRecords(data).next_batch()
        assert batch is not None
        assert batch.validate_crc()
        found = [Record(each.key, each.value, list(each.headers), each.timestamp) for each in batch]
        log = self.partitions.setdefault(place.partition, [])
        if self._refuses(found):
            answer.set_exception(MessageSizeTooLargeError())
        elif batch.base_sequence != len(log):
            answer.set_exception(OutOfOrderSequenceNumber())
        else:
            answer.set_result(RecordMetadata(place.topic, place.partition, place, len(log), -1, 0, 0))
            log += found


class Tally:
    """A load: the numbers of its records, and the outcome of each."""

    def __init__(self, outcomes: dict[int, object]) -> None:
        self.numbers: list[int] = []
        self._outcomes = outcomes

    def split(self, count: int) -> Tally:
        """See `Load`."""
        rest = Tally(self._outcomes)
        rest.numbers, self.numbers = self.numbers[count:], self.numbers[:count]
        return rest

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:
        """See `Load`."""
        assert records == len(self.numbers)
        assert size > 0
        for index, number in enumerate(self.numbers):
            assert number not in self._outcomes
            self._outcomes[number] = metadata.offset + index

    def failed(self, error: BaseException) -> None:
        """See `Load`."""
        for number in self.numbers:
            assert number not in self._outcomes
            self._outcomes[number] = error


class Tallied(Tally):
    """As `Tally`, for records in whose place others go: their outcome is that of the last."""

    def split(self, count: int) -> Tallied:
        """See `Load`."""
        rest = Tallied(self._outcomes)
        rest.numbers, self.numbers = self.numbers[count:], self.numbers[:count]
        return rest

    def delivered(self, metadata: RecordMetadata, records: int, size: int) -> None:
        """See `Load`."""
        assert (records, size > 0) == (len(self.numbers), True)
        self._outcomes |= {number: metadata.offset + index for index, number in enumerate(self.numbers)}


async def sent_to(
    make_log: Callable[[], Log], sent: list[tuple[int, Record]], batch_bytes: int, *, halts: bool
) -> tuple[dict[int, object], Log]:
    """Sends records to partitions, and returns the outcome of each by its number."""
    outcomes: dict[int, object] = {}
    log = make_log()
    batches = Batches(log, BatchSettings(batch_bytes=batch_bytes), halts=halts)
    for number, (partition, record) in enumerate(sent):
        outbox = batches.outbox("t", partition, lambda: Tally(outcomes))
        outbox.append(record).numbers.append(number)
        outbox.send()
        if number % 7 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await batches.flush()
        await batches.settled()
    return outcomes, log


PARTITIONS = st.lists(st.integers(0, 2), min_size=40, max_size=40)
Sent = st.builds(lambda partitions, batch: list(zip(partitions, batch, strict=False)), PARTITIONS, batches(1, 40))


def as_sent(record: Record) -> Record:
    """A record as the log has it."""
    return Record(record.key, record.value, list(record.headers), record.timestamp)


@settings(deadline=None)
@given(Sent, st.sampled_from(CODECS), st.sampled_from([100, 2_000, 100_000]), st.integers(0, 99), st.floats(0, 1))
def test_refused_at_will(
    sent: list[tuple[int, Record]], codec: tuple[str | None, int], batch_bytes: int, seed: int, share: float
) -> None:
    """Whatever is refused, however often: each record is in the log once, in its order, or has failed alone."""
    # Not drawn one by one: which partition asks first is the event loop's affair.
    rng = random.Random(seed)
    make_log = partial(Log, codec, lambda found: rng.random() < share)
    outcomes, log = asyncio.run(sent_to(make_log, sent, batch_bytes, halts=False))
    assert set(outcomes) == set(range(len(sent)))
    for partition in {partition for partition, _ in sent}:
        numbers = [number for number, (where, _) in enumerate(sent) if where == partition]
        arrived = [number for number in numbers if not isinstance(outcomes[number], RecordRefusedError)]
        assert [outcomes[number] for number in arrived] == list(range(len(arrived)))
        assert log.partitions.get(partition, []) == [as_sent(sent[number][1]) for number in arrived]


@settings(deadline=None)
@given(Sent, st.sampled_from(CODECS), st.integers(0, 39))
def test_nothing_passes_a_refused_record_that_halts(
    sent: list[tuple[int, Record]], codec: tuple[str | None, int], bad: int
) -> None:
    """With `halts`: what is before a refused record in its partition is there, and nothing behind it, whole or not."""
    bad %= len(sent)
    marked = Record(b"bad", b"bad", [("bad", b"bad")], 5)
    sent[bad] = (sent[bad][0], marked)
    make_log = partial(Log, codec, lambda found: as_sent(marked) in found)
    outcomes, log = asyncio.run(sent_to(make_log, sent, 100_000, halts=True))
    partition = sent[bad][0]
    found = [number for number, each in enumerate(sent) if (each[0], as_sent(each[1])) == (partition, as_sent(marked))]
    first = found[0]
    before = [record for where, record in sent[:first] if where == partition]
    assert log.partitions.get(partition, []) == [as_sent(record) for record in before]
    assert isinstance(outcomes[first], RecordRefusedError)


class LoweredLog(Log):
    """Takes no batch over a limit of bytes, which may change; counts those it refuses, for whatever reason."""

    def __init__(self, codec: tuple[str | None, int], limits: dict[str, int]) -> None:
        super().__init__(codec, accepting)
        self.limits = limits
        self.reasons: list[type[KafkaError]] = []

    def _answer(self, answer: asyncio.Future[RecordMetadata], place: TopicPartition, data: bytes) -> None:
        batch = MemoryRecords(data).next_batch()
        assert batch is not None
        reason: type[KafkaError] | None = None
        if len(data) > self.limits["t"]:
            reason = MessageSizeTooLargeError
        elif (records := list(batch)) and len(records) > 1 and any(each.key == b"old" for each in records):
            reason = InvalidTimestampError
        if reason is None:
            super()._answer(answer, place, data)
        else:
            self.reasons.append(reason)
            self._on_its_way.remove(place.partition)
            self._bytes_on_their_way -= len(data)
            answer.set_exception(reason())


async def test_a_refusal_for_a_timestamp_says_nothing_of_sizes() -> None:
    """The batch goes in parts, but is not counted as split for its size, and the estimate stays."""
    log, outcomes, numbers = LoweredLog(("lz4", 3), {"t": 10**6}), dict[int, object](), BatchNumbers()
    numbers.estimates.observe("t", "lz4", 0.1)
    told: list[tuple[str, int]] = []
    batches = Batches(
        log,
        BatchSettings(batch_bytes=50_000),
        numbers=numbers,
        too_large=lambda topic, size: told.append((topic, size)),
    )
    outbox = batches.outbox("t", 0, lambda: Tally(outcomes))
    for number in range(8):
        outbox.append(Record(b"old" if number == 5 else b"k", b"v" * 100, (), 1)).numbers.append(number)
    outbox.send()
    async with asyncio.timeout(10):
        await batches.flush()
    assert outcomes == {number: number for number in range(8)}
    assert log.reasons
    assert set(log.reasons) == {InvalidTimestampError}
    assert (numbers.batch_split_total, told) == (0, [])
    assert numbers.estimates.of("t", "lz4") < 0.995


async def first_batch(numbers: BatchNumbers, sent: int) -> int:
    """The records in the first batch of a producer that sends so many, all of which compress well."""
    counts: list[int] = []

    def noting(found: list[Record]) -> bool:
        counts.append(len(found))
        return False

    batches = Batches(Log(("lz4", 3), noting), BatchSettings(batch_bytes=2_000), numbers=numbers)
    outbox = batches.outbox("t", 0, lambda: Tally({}))
    for number in range(sent):
        outbox.append(Record(b"k", b"v" * 100, (), 1)).numbers.append(number)
    outbox.send()
    async with asyncio.timeout(10):
        await batches.flush()
    return counts[0]


async def test_a_producer_begins_with_the_estimates_of_the_one_before() -> None:
    """Those of a pipeline share its numbers, so the first batch of the second one is as large as it may be."""
    numbers = BatchNumbers()
    small = await first_batch(numbers, 2_000)
    assert small == await first_batch(BatchNumbers(), 100)
    assert await first_batch(numbers, 100) > 2 * small


async def test_acks_none_is_refused() -> None:
    """A producer that hears no answer hears of no refusal."""
    log = Log((None, 0), lambda found: False)
    log._sender._acks = 0
    with pytest.raises(ValueError, match="acks=0"):
        Batches(log)


def accepting(_found: list[Record]) -> bool:
    """Refuses nothing."""
    return False


def put(batches: Batches, outcomes: dict[int, object], partition: int, number: int, key: bytes = b"k") -> None:
    """Sends one record."""
    outbox = batches.outbox("t", partition, lambda: Tally(outcomes))
    outbox.append(Record(key, b"v", (), 5)).numbers.append(number)
    outbox.send()


async def test_nothing_that_lingers_passes_a_failure() -> None:
    """What is appended behind records that a failure elsewhere has dropped does not go without them."""
    outcomes: dict[int, object] = {}
    log = Log((None, 0), lambda found: found[0].key == b"bad")
    batches = Batches(log, BatchSettings(linger_s=1.0), halts=True)
    put(batches, outcomes, 1, 0)
    put(batches, outcomes, 0, 1, b"bad")
    batches.outbox("t", 0, lambda: Tally(outcomes)).press()
    async with asyncio.timeout(10):
        while batches.failure is None:  # noqa: ASYNC110  # at once after it, while the other still lingers
            await asyncio.sleep(0)
        put(batches, outcomes, 1, 2)
        await batches.settled()
    assert not log.partitions.get(1)


async def test_slow_answers_are_answers() -> None:
    """Where each batch is answered in time none is given up, though the last have waited longer for those before."""
    outcomes: dict[int, object] = {}
    log = Log((None, 0), accepting, answer_s={0: 0.1})
    batches = Batches(log, BatchSettings(batch_bytes=1, delivery_timeout_s=1.0))
    for number in range(12):
        put(batches, outcomes, 0, number)
    async with asyncio.timeout(10):
        await batches.flush()
    assert outcomes == {number: number for number in range(12)}


async def test_flush_waits_for_what_is_on_its_way_when_another_fails() -> None:
    """`flush` returns when each record is delivered or has failed, also where one has ended all sending."""
    outcomes: dict[int, object] = {}
    log = Log((None, 0), lambda found: found[0].key == b"bad", answer_s={1: 0.1})
    batches = Batches(log, halts=True)
    put(batches, outcomes, 1, 0)
    put(batches, outcomes, 0, 1, b"bad")
    async with asyncio.timeout(10):
        while batches.failure is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)
        await batches.flush()
    assert outcomes[0] == 0
    assert isinstance(outcomes[1], RecordRefusedError)


async def test_what_is_on_its_way_fits_in_a_request() -> None:
    """aiokafka puts a batch of each partition into one request, and a broker takes no request over 100 MiB."""
    outcomes: dict[int, object] = {}
    log = Log((None, 0), accepting, answer_s=dict.fromkeys(range(120), 0.001))
    batches = Batches(log)
    for partition in range(120):
        outbox = batches.outbox("t", partition, lambda: Tally(outcomes))
        outbox.append(Record(None, bytes(1_000_000), (), 5)).numbers.append(partition)
        outbox.send()
    async with asyncio.timeout(60):
        await batches.flush()
    assert outcomes == dict.fromkeys(range(120), 0)
    assert 32 * 1_048_576 < log.peak_bytes <= 64 * 1_048_576


async def test_record_refused_at_a_second_try_ends_all_sending() -> None:
    """The first may have come through: the broker would take the next record with its number for a duplicate."""
    outcomes: dict[int, object] = {}
    log = Log((None, 0), lambda found: found[0].key == b"bad", tries=2)
    batches = Batches(log)
    put(batches, outcomes, 0, 0, b"bad")
    put(batches, outcomes, 0, 1)
    async with asyncio.timeout(10):
        await batches.flush()
    assert isinstance(batches.failure, RecordRefusedError)
    assert all(isinstance(outcome, RecordRefusedError) for outcome in outcomes.values())
    assert not log.partitions[0]
