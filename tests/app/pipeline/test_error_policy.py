"""What becomes of records that fail: a dead letter, a drop by a rule, or the end of the flow."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.deadletters.writer import LetterWriter
from app.kafka.topics import Topic
from app.pipeline.budget import Budget, Share
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.lane import Slot, held_bytes
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import RecordError, Termination
from tests.app.pipeline.runtimes import SHARED
from tests.app.pipeline.test_termination import Read
from transforms.assembly import Discarded
from transforms.errors import (
    ChunkError,
    MalformedWrapperError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    PayloadUnavailableError,
    PayloadUnfitError,
    ReferenceRefusedError,
)

LETTERS = Topic("dlq", 1, 1_000_000, "delete")


def settings(**keys: Any) -> PipelineSettings:
    """A pipeline that assembles, with these keys beside."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["assemble"]}
    (pipeline,) = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table | keys}}).pipelines
    return pipeline


def fail(error: Exception) -> None:
    """Work that comes to nothing."""
    raise error


class Bench:
    """Verdicts with all that they change."""

    def __init__(self, letters: Topic | None, **keys: Any) -> None:
        self.budget = Budget(100_000)
        self.share = Share(self.budget)
        self.stats = PipelineStats()
        self.termination = Termination("p", lambda: None)
        pipeline = settings(**keys)
        writer = None if letters is None else LetterWriter(pipeline, letters, None)
        self.error_policy = ErrorPolicy(
            pipeline, writer, self.share, runtime=SHARED, stats=self.stats, termination=self.termination
        )

    def slot(self, held: int = 5_000) -> Slot:
        """A slot whose bytes are taken."""
        self.share.take(held)
        return Slot(Read(), held)

    def failed(self, error: Exception) -> Slot:
        """A slot whose work has raised, at the front of its lane."""
        slot = self.slot()
        with self.error_policy.of(slot):
            fail(error)
        if slot.cause is not None:
            asyncio.run(self.error_policy.bury(slot))
        if slot.failure is not None:
            self.error_policy.end(slot)
        return slot


@pytest.mark.parametrize(
    "error",
    [
        ChunkError(5, 3, "so"),
        PayloadNotFoundError("s3://b/t/id"),
        PayloadUnfitError("x"),
        PayloadUnavailableError(3, 9.0, "EIO"),
    ],
)
def test_error_policy_on_a_record_that_can_never_succeed(error: Exception) -> None:
    """It becomes a dead letter, which holds what it is large; the flow goes on."""
    bench = Bench(LETTERS)
    slot = bench.failed(error)
    assert slot.result is not None
    (letter,) = slot.result
    assert (slot.dead, letter.value, dict(letter.headers)["__connect.errors.offset"]) == (True, b"v", b"7")
    assert (bench.termination.error, bench.stats.dead_letters, bench.share.used) == (None, 1, slot.held)
    assert slot.result is not None
    assert slot.held == sum(map(held_bytes, slot.result))


@pytest.mark.parametrize(
    ("letters", "error", "told"),
    [
        (None, ChunkError(5, 3, "so"), r"offset 7: .*; errors.tolerance = \"all\" and a dead-letter topic would let"),
        (LETTERS, PayloadStoreError("denied", retriable=False), r"offset 7: denied; the store refuses, so no record"),
        (LETTERS, KeyError("defect"), r"offset 7: 'defect'"),
        (replace(LETTERS, max_message_bytes=50), ChunkError(5, 3, "so"), r"offset 7: .*; and it cannot be a dead"),
    ],
)
def test_error_policy_that_ends_the_flow(letters: Topic | None, error: Exception, told: str) -> None:
    """Where no dead letter can be, or the next record would fare no better, the flow ends with the record's place."""
    bench = Bench(letters)
    slot = bench.failed(error)
    with pytest.raises(RecordError, match=f"topic raw, partition 3, {told}"):
        bench.termination.raise_error()
    assert (slot.result, bench.stats.dead_letters, bench.share.used) == (None, 0, 5_000)


def test_error_policy_writes_a_large_letter_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """A letter that its topic does not take goes as chunks, which count as one letter and hold what they are large."""
    bench = Bench(replace(LETTERS, max_message_bytes=400))
    with caplog.at_level(logging.WARNING):
        slot = bench.failed(ChunkError(5, 3, "so"))
    assert slot.result is not None
    assert len(slot.result) > 1
    assert (slot.dead, bench.stats.dead_letters, bench.stats.failed) == (True, 1, {"chunk": 1})
    assert bench.share.used == slot.held == sum(map(held_bytes, slot.result))
    (told,) = caplog.messages
    assert f"offset 7 goes as {len(slot.result)} chunks to dlq" in told


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ReferenceRefusedError("x", "y"), "reference-refused"),
        (MalformedWrapperError("value", "x", "y"), "malformed-wrapper"),
        (PayloadTooLargeError("x", None, 1), "payload-too-large"),
    ],
)
def test_error_policy_is_counted_by_reason(error: Exception, reason: str) -> None:
    """What is wrong with records is counted, where the flow ends too."""
    for letters in (LETTERS, None):
        bench = Bench(letters)
        bench.failed(error)
        assert bench.stats.failed == {reason: 1}


def test_error_policy_counts_a_record_once() -> None:
    """A record that is read again after a restart is the same one."""
    bench = Bench(LETTERS)
    for _ in range(6):
        bench.failed(ChunkError(5, 3, "so"))
    assert bench.stats.failed == {"chunk": 1}
    bench.stats.forget_failed()
    bench.failed(ChunkError(5, 3, "so"))
    assert bench.stats.failed == {"chunk": 2}


def test_error_policy_on_discarded_chunks(caplog: pytest.LogCaptureFixture) -> None:
    """Each chunk has a dead letter of its own, in order, in one slot; the log has one line for the message."""
    bench = Bench(LETTERS)
    slot = bench.slot(0)
    chunks = tuple(Read(offset, value=b"%d" % offset) for offset in (3, 5))
    event = Discarded("expired", "u", chunks, "late")
    dropped = bench.error_policy.drops(event)
    with caplog.at_level(logging.WARNING):
        cause = bench.error_policy.condemn(event, [slot])
        assert cause is not None
        assert bench.error_policy.discard(slot, chunks, cause)
    assert [line for _, _, line in caplog.record_tuples] == [
        (
            "pipeline p: topic raw, partition 3, offset 3 and 1 other chunks go to dlq: "
            "the chunked message u is discarded, expired: late"
        )
    ]
    assert slot.result is not None
    assert ([letter.value for letter in slot.result], slot.dead, dropped) == ([b"3", b"5"], True, False)
    held = sum(map(held_bytes, slot.result))
    assert (bench.stats.dead_letters, bench.share.used, slot.held) == (2, held, held)
    assert bench.stats.failed == {"discarded-chunk": 1}


def test_error_policy_on_discarded_chunks_without_letters() -> None:
    """Where there is no dead-letter topic the flow ends at the first of them."""
    bench = Bench(None)
    event = Discarded("expired", "u", (Read(3), Read(5)), "late")
    slot = bench.slot(0)
    assert bench.error_policy.condemn(event, [slot]) is None
    assert slot.failure is not None
    with pytest.raises(RecordError, match=r"partition 3, offset 3: the chunked message u is discarded"):
        raise slot.failure


def test_error_policy_counts_a_message_once_whose_letters_cannot_be_written() -> None:
    """Its chunks are counted by the first of them; the failure that ends the flow is that of another slot."""
    bench = Bench(replace(LETTERS, max_message_bytes=50))
    chunks = (Read(3), Read(5))
    slot = Slot(chunks[-1], 0)
    cause = bench.error_policy.condemn(Discarded("expired", "u", chunks, "late"), [slot])
    assert cause is not None
    asyncio.run(bench.error_policy.bury_chunks(slot, chunks, cause))
    bench.error_policy.end(slot)
    assert bench.stats.failed == {"discarded-chunk": 1}


@pytest.mark.parametrize(
    ("rule", "reason", "dropped"), [(True, "evicted", True), (False, "evicted", False), (True, "expired", False)]
)
def test_error_policy_drops_only_by_its_rule(rule: bool, reason: Any, dropped: bool) -> None:  # noqa: FBT001
    """Chunks are dropped only where the configuration says so, and only those that were evicted."""
    bench = Bench(LETTERS, **{"auto.ack.oldest.chunked.message.on.queue.full": rule})
    event = Discarded(reason, "u", (Read(3), Read(5)), "why")
    assert (bench.error_policy.drops(event), bench.stats.evicted_messages) == (dropped, int(dropped))
