"""Records of a command, restored one by one; no broker, and a store in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aiokafka import TopicPartition

from app.commands.restorer import Restored, Restorer
from app.pipeline.stages import InflateStage
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.pipeline.chains import settings_of
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.record import Header, Record

PLACE = TopicPartition("orders", 0)
START = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Read:
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int = START
    topic: str = "orders"
    partition: int = 0


def restorer() -> Restorer:
    """One whose messages expire after a minute."""
    store = open_store({"large.message.payload.store.class": "memory"})
    settings = settings_of(["inflate"], large_message_max_bytes=10_000)
    return Restorer(InflateStage(settings, store, PipelineStats()), Limits(100, 1_000_000, 100_000, 60_000))


def chunks(uuid: str, first: int) -> list[Read]:
    """The chunks of a message, from an offset on."""
    split = Chunking(1_000).split(Record(b"k", b"v" * 5_000, (), START), uuid)
    return [Read(first + n, each.key, each.value, tuple(each.headers)) for n, each in enumerate(split)]


async def of(made: Restorer, *records: Read) -> list[Restored]:
    """What comes of records."""
    return [found for record in records for found in await made.restore(record)]


async def test_a_message_of_a_dead_writer_does_not_hold_commits_for_ever() -> None:
    """It is given up, once and with its reason, when the log of its partition is so much later."""
    made, begun = restorer(), chunks("begun", 5)[:2]
    assert await of(made, *begun, Read(7, b"k", b"v", (), START + 59_999)) == [
        Restored(record := Read(7, b"k", b"v", (), START + 59_999), record)
    ]
    assert (made.pending, made.safe_offset(PLACE, 8)) == (1, 5)
    elsewhere = Read(0, b"k", b"v", (), START + 10_000_000, "orders", 1)
    assert [found.error for found in await of(made, elsewhere)] == [None], "another log has another time"
    gone, after = await of(made, Read(8, b"k", b"v", (), START + 60_000))
    assert (gone.source, after.error, made.pending, made.safe_offset(PLACE, 9)) == (begun[0], None, 0, 9)
    assert "2 chunks do not form a message: expired" in str(gone.error)


async def test_times_of_the_future_let_nothing_expire() -> None:
    """Timestamps are the producers' word: the clock of this machine bounds them."""
    made = restorer()
    times = [2**61, 2**62, 2**62, 2**61, 2**62, 2**62, 2**62, 2**62]
    message = [dataclasses.replace(each, timestamp=time) for each, time in zip(chunks("whole", 0), times, strict=False)]
    (found,) = await of(made, *message)
    assert (found.assembled, found.record.value) == (True, b"v" * 5_000)


async def test_a_message_is_told_once() -> None:
    """However many of its chunks come without the first."""
    (found,) = await of(restorer(), *chunks("torn", 0)[1:])
    assert "missing-first" in str(found.error)


async def test_a_partition_that_goes_takes_its_chunks_along() -> None:
    """Another consumer reads them again; a position of this one is safe again."""
    made = restorer()
    await of(made, chunks("begun", 5)[0])
    assert made.safe_offset(PLACE, 9) == 5
    made.release(PLACE)
    assert (made.pending, made.safe_offset(PLACE, 9)) == (0, 9)
