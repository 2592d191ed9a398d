"""Batches over a partition's log that refuses at will: nothing is lost, doubled or moved, and no number is skipped.

The log is a fake, so that it can refuse what no broker would; tests/integration/test_batches.py has the real one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
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

from app.kafka.batches.batch import Batch, Each
from app.kafka.batches.numbers import BatchNumbers
from app.kafka.batches.outbox import Batches, BatchSettings, RecordRefusedError
from tests.strategies import batches
from transforms.record import Record

CODECS = [(None, 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
NONE, LZ4 = CODECS[0], CODECS[3]
Refusal = type[KafkaError] | None


class Log:
    """The logs of a topic's partitions, behind what `Batches` uses of an aiokafka producer.

    Each batch is sent `tries` times until it is taken or `refuses` gives a reason, after `answer_s` of its partition.
    `outcomes` are, by the number of a record, its offset or its error.
    """

    def __init__(
        self,
        refuses: Callable[[list[Record]], Refusal] = lambda _: None,
        codec: tuple[str | None, int] = NONE,
        *,
        answer_s: Mapping[int, float] | None = None,
        tries: int = 1,
    ) -> None:
        self.partitions: dict[int, list[Record]] = {}
        self.outcomes: dict[int, object] = {}
        self._refuses = refuses
        self._answer_s = answer_s or {}
        self._tries = tries
        self._txn_manager = TransactionManager(None, 1_000)
        self._txn_manager.set_pid_and_epoch(7, 0)
        self._sender = SimpleNamespace(_acks=-1)
        self._message_accumulator = SimpleNamespace(_compression_type=codec[1])
        self._on_its_way: dict[int, int] = {}
        self.peak_bytes = 0

    def batches(self, **arguments: Any) -> Batches:
        """What sends to it."""
        return Batches(self, **arguments)

    def put(self, batches: Batches, number: int, record: Record, partition: int = 0) -> None:
        """Sends one record."""
        outbox = batches.outbox("t", partition, self.load)
        outbox.append(record).entries.append(number)
        outbox.send()

    def load(self) -> Each[int]:
        """The data for a batch: the numbers of its records."""
        return Each(self._delivered, self._failed)

    def _delivered(self, numbers: Sequence[int], metadata: RecordMetadata) -> None:
        for index, number in enumerate(numbers):
            assert number not in self.outcomes
            self.outcomes[number] = metadata.offset + index

    def _failed(self, numbers: Sequence[int], error: BaseException) -> None:
        for number in numbers:
            assert number not in self.outcomes
            self.outcomes[number] = error

    async def send_batch(self, builder: Batch[Any], topic: str, *, partition: int) -> asyncio.Future[RecordMetadata]:
        """As aiokafka's, with the broker's answer."""
        assert partition not in self._on_its_way, "two batches of a partition on their way"
        place = TopicPartition(topic, partition)
        numbers = self._txn_manager
        sequence = numbers.sequence_number(place)
        numbers.increment_sequence_number(place, builder.record_count())
        builder._set_producer_state(numbers.producer_id, numbers.producer_epoch, sequence)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RecordMetadata] = loop.create_future()
        for _ in range(self._tries):
            data = bytes(builder._build())
        self._on_its_way[partition] = len(data)
        self.peak_bytes = max(self.peak_bytes, sum(self._on_its_way.values()))
        loop.call_later(self._answer_s.get(partition, 0), self._answer, answer, place, data)
        return answer

    def _answer(self, answer: asyncio.Future[RecordMetadata], place: TopicPartition, data: bytes) -> None:
        del self._on_its_way[place.partition]
        batch = MemoryRecords(data).next_batch()
        assert batch is not None
        assert batch.validate_crc()
        found = [as_sent(each) for each in batch]
        log = self.partitions.setdefault(place.partition, [])
        if (reason := self._refuses(found)) is not None:
            answer.set_exception(reason())
        elif batch.base_sequence != len(log):
            answer.set_exception(OutOfOrderSequenceNumber())
        else:
            answer.set_result(RecordMetadata(place.topic, place.partition, place, len(log), -1, 0, 0))
            log += found


def as_sent(record: Any) -> Record:
    """A record as the log has it."""
    return Record(record.key, record.value, list(record.headers), record.timestamp)


def of(key: bytes, value: bytes = b"v") -> Record:
    return Record(key, value, (), 5)


def refusing(found: list[Record]) -> Refusal:
    """Refuses batches that begin with a bad record."""
    return MessageSizeTooLargeError if found[0].key == b"bad" else None


async def send_all(
    make_log: Callable[[], Log], sent: list[tuple[int, Record]], batch_bytes: int, *, halts: bool
) -> Log:
    """Sends records to partitions."""
    log = make_log()
    batches = log.batches(settings=BatchSettings(batch_bytes=batch_bytes), halts=halts)
    for number, (partition, record) in enumerate(sent):
        log.put(batches, number, record, partition)
        if number % 7 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await batches.flush()
        await batches.settled()
    return log


PARTITIONS = st.lists(st.integers(0, 2), min_size=40, max_size=40)
Sent = st.builds(lambda partitions, batch: list(zip(partitions, batch, strict=False)), PARTITIONS, batches(1, 40))


@settings(deadline=None)
@given(Sent, st.sampled_from(CODECS), st.sampled_from([100, 2_000, 100_000]), st.integers(0, 99), st.floats(0, 1))
def test_refused_at_will(
    sent: list[tuple[int, Record]], codec: tuple[str | None, int], batch_bytes: int, seed: int, share: float
) -> None:
    """Whatever is refused, however often: each record is in the log once, in its order, or has failed alone."""
    # Not drawn one by one: which partition asks first is the event loop's affair.
    rng = random.Random(seed)
    make_log = partial(Log, lambda _: MessageSizeTooLargeError if rng.random() < share else None, codec)
    log = asyncio.run(send_all(make_log, sent, batch_bytes, halts=False))
    assert set(log.outcomes) == set(range(len(sent)))
    for partition in {partition for partition, _ in sent}:
        numbers = [number for number, (where, _) in enumerate(sent) if where == partition]
        arrived = [number for number in numbers if not isinstance(log.outcomes[number], RecordRefusedError)]
        assert [log.outcomes[number] for number in arrived] == list(range(len(arrived)))
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
    make_log = partial(Log, lambda found: MessageSizeTooLargeError if marked in found else None, codec)
    log = asyncio.run(send_all(make_log, sent, 100_000, halts=True))
    partition = sent[bad][0]
    first = next(number for number, (where, each) in enumerate(sent) if where == partition and as_sent(each) == marked)
    before = [record for where, record in sent[:first] if where == partition]
    assert log.partitions.get(partition, []) == [as_sent(record) for record in before]
    assert isinstance(log.outcomes[first], RecordRefusedError)


async def test_a_refusal_for_a_timestamp_says_nothing_of_sizes() -> None:
    """The batch goes in parts, but is not counted as split for its size, and the estimate stays."""
    reasons: list[Refusal] = []

    def refuses(found: list[Record]) -> Refusal:
        old = len(found) > 1 and any(each.key == b"old" for each in found)
        reasons.append(InvalidTimestampError if old else None)
        return reasons[-1]

    log, numbers, told = Log(refuses, LZ4), BatchNumbers(), list[tuple[str, int]]()
    numbers.estimates.observe("t", "lz4", 0.1)
    batches = log.batches(numbers=numbers, too_large=lambda topic, size: told.append((topic, size)))
    for number in range(8):
        log.put(batches, number, of(b"old" if number == 5 else b"k", b"v" * 100))
    async with asyncio.timeout(10):
        await batches.flush()
    assert log.outcomes == {number: number for number in range(8)}
    assert {*reasons} == {InvalidTimestampError, None}
    assert (numbers.batch_split_total, told) == (0, [])
    assert numbers.estimates.of("t", "lz4") < 0.995


async def test_a_producer_begins_with_the_estimates_of_the_one_before() -> None:
    """Those of a pipeline share its numbers, so the first batch of the second one is as large as it may be."""

    async def first_batch(numbers: BatchNumbers, sent: int) -> int:
        """Its records, where so many are sent, all of which compress well."""
        counts: list[int] = []
        log = Log(lambda found: counts.append(len(found)), LZ4)
        batches = log.batches(settings=BatchSettings(batch_bytes=2_000), numbers=numbers)
        for number in range(sent):
            log.put(batches, number, of(b"k", b"v" * 100))
        async with asyncio.timeout(10):
            await batches.flush()
        return counts[0]

    numbers = BatchNumbers()
    small = await first_batch(numbers, 2_000)
    assert small == await first_batch(BatchNumbers(), 100)
    assert await first_batch(numbers, 100) > 2 * small


async def test_acks_none_is_refused() -> None:
    """A producer that hears no answer hears of no refusal."""
    log = Log()
    log._sender._acks = 0
    with pytest.raises(ValueError, match="acks=0"):
        log.batches()


@pytest.mark.parametrize("linger_s", [0.0, 1.0])
async def test_a_failure_elsewhere(linger_s: float) -> None:
    """What is on its way arrives, and `flush` waits for it; what is appended behind dropped records does not."""
    log = Log(refusing, answer_s={1: 0.1})
    batches = log.batches(settings=BatchSettings(linger_s=linger_s), halts=True)
    log.put(batches, 0, of(b"k"), 1)
    log.put(batches, 1, of(b"bad"), 0)
    batches.outbox("t", 0, log.load).press()
    async with asyncio.timeout(10):
        while batches.failure is None:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)
        if linger_s:
            log.put(batches, 2, of(b"k"), 1)
            await batches.settled()
            assert not log.partitions.get(1)
            return
        await batches.flush()
    assert log.outcomes[0] == 0
    assert isinstance(log.outcomes[1], RecordRefusedError)


async def test_slow_answers_are_answers() -> None:
    """Where each batch is answered in time none is given up, though the last have waited longer for those before."""
    log = Log(answer_s={0: 0.05})
    batches = log.batches(settings=BatchSettings(batch_bytes=1, delivery_timeout_s=0.5))
    for number in range(12):
        log.put(batches, number, of(b"k"))
    async with asyncio.timeout(10):
        await batches.flush()
    assert log.outcomes == {number: number for number in range(12)}


async def test_what_is_on_its_way_fits_in_a_request() -> None:
    """aiokafka puts a batch of each partition into one request, and a broker takes no request over 100 MiB."""
    log = Log(answer_s=dict.fromkeys(range(120), 0.001))
    batches = log.batches()
    for partition in range(120):
        log.put(batches, partition, Record(None, bytes(1_000_000), (), 5), partition)
    async with asyncio.timeout(60):
        await batches.flush()
    assert log.outcomes == dict.fromkeys(range(120), 0)
    assert 32 * 1_048_576 < log.peak_bytes <= 64 * 1_048_576


async def test_record_refused_at_a_second_try_ends_all_sending() -> None:
    """The first may have come through: the broker would take the next record with its number for a duplicate."""
    log = Log(refusing, tries=2)
    batches = log.batches()
    log.put(batches, 0, of(b"bad"))
    log.put(batches, 1, of(b"k"))
    async with asyncio.timeout(10):
        await batches.flush()
    assert isinstance(batches.failure, RecordRefusedError)
    assert all(isinstance(outcome, RecordRefusedError) for outcome in log.outcomes.values())
    assert not log.partitions[0]
