"""The assembler of a flow: what is committed beside an offset, what holds a commit back, and its clock."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition

from app.config.chunking import ChunkSettings
from app.pipeline.budget import Budget, Share
from app.pipeline.lane import Lane, Letter
from app.pipeline.lane_assembler import LaneAssembler, chunks_of
from app.pipeline.lanes import Lanes
from app.pipeline.runtime import monotonic
from app.pipeline.stats import PipelineStats
from tests.app.pipeline.lanes import lane_of
from tests.app.pipeline.test_termination import Read
from transforms.chunk import Chunking
from transforms.commit_metadata import note
from transforms.record import Record

PARTITION = TopicPartition("chunked", 0)
SETTINGS = ChunkSettings(
    splits=False,
    assembles=True,
    expects_chunks=True,
    strategy="offload",
    max_bytes=None,
    message_bytes=50_000,
    pending_messages=2,
    pending_bytes=100_000,
    expire_ms=1_000,
    drops_oldest=False,
)


def assembling(stats: PipelineStats | None = None, settings: ChunkSettings = SETTINGS, **more: Any) -> LaneAssembler:
    """An assembler, by the clock of the machine if there is no other."""
    return LaneAssembler(settings, stats or PipelineStats(), **{"clock": monotonic, **more})


def chunks(first_offset: int, value: bytes = b"x" * 2_500, uuid: str = "u") -> list[Read]:
    """The chunks of a message, one behind the other."""
    split = Chunking(1_000).split(Record(b"k", value, (("own", b"1"),), 5), uuid)
    return [
        Read(first_offset + n, "chunked", 0, each.key, each.value, tuple(each.headers), 5)
        for n, each in enumerate(split)
    ]


def lane(assembler: LaneAssembler, start: int = 0) -> Lane:
    """A lane that begins at an offset."""
    made = lane_of(0, 0, topic="chunked", assembler=assembler)
    made.tracked(start)
    return made


def commit(lane: Lane) -> tuple[int, str]:
    """What the lane commits, whatever it has committed."""
    lane.noted = "something else"
    found = lane.to_commit()
    assert found is not None
    return found


def test_lane_that_begins_in_another_log() -> None:
    """What was delivered of the former log says nothing of the messages that have its offsets now."""
    assembler = assembling()
    lanes = Lanes(Share(Budget(1_000)), assembler)
    lanes.open(PARTITION, 0)
    (one,) = lanes
    one.resume(5, note(5, 90, ()), "p")
    one.restart_at(5)
    assert (one.committed, one.delivered) == (5, 0)
    events = [assembler.add(one.partition, each)[0] for each in chunks(10)]
    assert events[-1] is not None


def test_rest_of_a_message_that_was_begun_twice_is_known_after_a_restart() -> None:
    """A writer that was taken for dead goes on after the reader has begun again: nothing is discarded."""
    assembler = assembling()
    one = lane(assembler)
    whole = chunks(1)
    tracker = one.tracked(0)
    for record in [chunks(0)[0], *whole]:
        assembler.add(one.partition, record)
        tracker.released = record.offset + 1
    offset, metadata = commit(one)
    assert (offset, metadata.startswith(f"wideload:delivered={offset};torn=")) == (whole[-1].offset + 1, True)
    stats = PipelineStats()
    after = assembling(stats)
    after.resume(PARTITION, metadata, "p")
    assert [after.add(PARTITION, record) for record in chunks(offset - 1)[1:]] == [(None, [])] * (len(whole) - 1)
    assert stats.duplicate_chunks == len(whole) - 1


def test_metadata_fits_the_brokers() -> None:
    """They may take less than Kafka's default; a longer note would end the flow."""
    assembler = assembling(metadata_bytes=40)
    one = lane(assembler)
    tracker = one.tracked(0)
    for record in [chunks(0)[0], *chunks(1)]:
        assembler.add(one.partition, record)
        tracker.released = record.offset + 1
    assert commit(one) == (tracker.released, "")
    assembler.add(one.partition, chunks(tracker.released, uuid="v")[0])
    tracker.released += 1
    assert commit(one) == (tracker.released - 1, f"wideload:delivered={tracker.released}\0")


@pytest.mark.parametrize("metadata", ["wideload:delivered=", "wideload:delivered=-1", "x", "wideload:delivered=1 "])
def test_metadata_of_others_is_ignored(metadata: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and nothing is passed over because of it."""
    assembler = assembling()
    one = lane(assembler)
    with caplog.at_level(logging.WARNING):
        one.resume(5, metadata, "p")
    assert one.delivered == 0
    assert "is not ours and is ignored" in caplog.text


def test_commit_waits_for_what_is_pending_and_for_what_is_not_durable() -> None:
    """The offset stays at the first chunk until the message is durable; what passed meanwhile is noted beside it."""
    assembler = assembling()
    one = lane(assembler, 3)
    first, *middle, last = chunks(3)
    tracker = one.tracked(3)
    for record in (first, *middle):
        assert assembler.add(one.partition, record) == (None, [])
        tracker.released = record.offset + 1
    assert commit(one) == (3, f"wideload:delivered={last.offset}\0")
    whole, _ = assembler.add(one.partition, last)
    assert whole is not None
    assert (whole.topic, whole.partition, whole.offset) == ("chunked", 0, last.offset)
    assert (whole.value, whole.headers, whole.timestamp) == (b"x" * 2_500, (("own", b"1"),), 5)
    assert commit(one) == (3, f"wideload:delivered={last.offset}\0")
    span = tracker.span(last.offset)
    tracker.released = last.offset + 1
    assert commit(one) == (3, f"wideload:delivered={last.offset}\0")
    span.durable = True
    assert commit(one) == (last.offset + 1, "")


def test_commit_waits_for_dead_letters() -> None:
    """What was discarded holds the commit at its first chunk until its letters are written and durable."""
    assembler = assembling()
    one = lane(assembler)
    tracker = one.tracked(0)
    tracker.released = 10
    letter = Letter(Read(9), first=9, commit_limit=4)
    one.blocking.append(letter)
    assert commit(one) == (4, "wideload:delivered=10\0")
    letter.written = 9
    span = tracker.span(9)
    assert commit(one) == (4, "wideload:delivered=9\0")
    span.durable = True
    assert commit(one) == (10, "")
    assert one.blocking == []


def test_clock_stands_while_nothing_is_read() -> None:
    """A message expires after time in which its partition was read, not in which the pipeline had to wait."""
    now_s = 100.0
    stats = PipelineStats()
    assembler = assembling(stats, clock=lambda: now_s)
    one = lane(assembler)
    now_s += 5  # the time begins when the first chunk is read, not with the turn that read it
    (first, *_) = chunks(0)
    assembler.add(one.partition, first)
    assembler.tick(reading=True)
    assert assembler.expire() == []
    now_s += 3_600
    assembler.tick(reading=False)
    assert assembler.expire() == []
    now_s += 0.999
    assembler.tick(reading=True)
    assert assembler.expire() == []
    now_s += 0.001
    assembler.tick(reading=True)
    (expired,) = assembler.expire()
    assert [chunk.offset for chunk in chunks_of(expired)] == [0]
    assert (stats.discarded, assembler.pending, assembler.pending_bytes) == ({"expired": 1}, 0, 0)


def test_reserve_is_the_message_with_its_last_chunk() -> None:
    """Chunks that are pending are counted elsewhere; the last one brings the whole, where that is not too large."""
    assembler = assembling()
    *before, last = chunks(0)
    assert [assembler.reserve_bytes(record) for record in before] == [0] * len(before)
    assert assembler.reserve_bytes(last) == 2_500
    tight = assembling(settings=replace(SETTINGS, message_bytes=2_499))
    assert tight.reserve_bytes(last) == 0
    assert assembler.reserve_bytes(Read(0)) == 0
    assert assembler.reserve_bytes(Read(0, headers=(("large-message.chunk.uuid", b"?"),))) == 0


def test_counts_are_those_of_the_pipeline() -> None:
    """Messages, duplicates, late chunks and reasons are counted beyond the life of one flow."""
    stats = PipelineStats()
    for number in (0, 1):
        assembler = assembling(stats)
        good, gap = chunks(0, uuid=f"good{number}"), chunks(10, b"y" * 5_000, uuid=f"gap{number}")
        for record in (good[0], replace(good[0], offset=1), *good[1:], gap[0], gap[2], *gap[3:]):
            assembler.add(PARTITION, record)
        assembler.clear(PARTITION)
        assert assembler.pending == 0
    assert (stats.assembled_messages, stats.duplicate_chunks, stats.discarded) == (2, 2, {"out-of-order": 2})
    assert stats.late_chunks == 2 * (len(gap) - 3)
    assert stats.consumed_rate.per_second() > 0
