"""What becomes of records that fail: a dead letter, a drop by a rule, or the end of the flow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.kafka.topics import Topic
from app.pipeline.error_policy import ErrorPolicy
from app.pipeline.termination import RecordError
from tests.app.pipeline.outputs import LETTERS, parts_of
from tests.app.pipeline.runtimes import SHARED
from tests.app.pipeline.test_termination import Read
from transforms.chunked_message import Discarded
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
from transforms.letter import Cause
from transforms.record import RecordLike


class Bench:
    """Verdicts with all that they change."""

    def __init__(self, letters: Topic | None = LETTERS, **keys: Any) -> None:
        parts = parts_of(letters=letters, limit=100_000, **keys)
        self.share, self.stats, self.termination = parts.share, parts.stats, parts.termination
        self.error_policy = ErrorPolicy(parts, None, SHARED)

    def failed(self, error: Exception) -> Sequence[RecordLike]:
        """The letters of a record whose work has raised, at the front of its lane."""
        verdict = self.error_policy.verdict(Read(), error)
        found = self.error_policy.letters([Read()], verdict) if isinstance(verdict, Cause) else verdict
        if found is None and isinstance(verdict, Cause):
            found = asyncio.run(self.error_policy.write_letters([Read()], verdict))
        if isinstance(found, RecordError):
            self.error_policy.end(found)
        return () if found is None or isinstance(found, RecordError) else found


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
    """It becomes a dead letter; the flow goes on."""
    bench = Bench()
    (letter,) = bench.failed(error)
    assert (letter.value, dict(letter.headers)["__connect.errors.offset"]) == (b"v", b"7")
    assert (bench.termination.error, bench.stats.dead_letters, bench.share.used) == (None, 1, 0)


@pytest.mark.parametrize(
    ("letters", "error", "told"),
    [
        (None, ChunkError(5, 3, "so"), r"offset 7: .*; with errors.tolerance = \"all\" and a dead letter queue"),
        (LETTERS, PayloadStoreError("denied", retriable=False), r"offset 7: denied; the store refuses, so no record"),
        (LETTERS, KeyError("defect"), r"offset 7: 'defect'"),
        (replace(LETTERS, max_message_bytes=50), ChunkError(5, 3, "so"), r"offset 7: .*; and it cannot be a dead"),
    ],
)
def test_error_policy_that_ends_the_flow(letters: Topic | None, error: Exception, told: str) -> None:
    """Where no dead letter can be, or the next record would fare no better, the flow ends with the record's place."""
    bench = Bench(letters)
    written = bench.failed(error)
    with pytest.raises(RecordError, match=f"topic raw, partition 3, {told}"):
        bench.termination.raise_error()
    assert (written, bench.stats.dead_letters, bench.share.used) == ((), 0, 0)


def test_error_policy_writes_a_large_letter_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """A letter that its topic does not take goes as chunks, which count as one letter."""
    bench = Bench(replace(LETTERS, max_message_bytes=400))
    with caplog.at_level(logging.WARNING):
        letters = bench.failed(ChunkError(5, 3, "so"))
    assert len(letters) > 1
    assert (bench.stats.dead_letters, bench.stats.failed) == (1, {"chunk": 1})
    assert (bench.share.used, bench.share.budget.peak > 0) == (0, True), "its copies are counted while they are made"
    (told,) = caplog.messages
    assert f"offset 7 goes as {len(letters)} chunks to dlq" in told


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
    bench = Bench()
    for _ in range(6):
        bench.failed(ChunkError(5, 3, "so"))
    assert bench.stats.failed == {"chunk": 1}
    bench.stats.forget_failed()
    bench.failed(ChunkError(5, 3, "so"))
    assert bench.stats.failed == {"chunk": 2}


def test_error_policy_on_discarded_chunks(caplog: pytest.LogCaptureFixture) -> None:
    """Each chunk has a dead letter of its own, in order; the log has one line for the message."""
    bench = Bench()
    chunks = tuple(Read(offset, value=b"%d" % offset) for offset in (3, 5))
    event = Discarded("expired", "u", chunks, "late")
    with caplog.at_level(logging.WARNING):
        cause = bench.error_policy.discarded(event)
        assert isinstance(cause, Cause)
        letters = bench.error_policy.letters(chunks, cause)
    assert [line for _, _, line in caplog.record_tuples] == [
        (
            "pipeline p: topic raw, partition 3, offset 3 and 1 other chunks go to dlq: "
            "the chunked message u is discarded, expired: late"
        )
    ]
    assert letters is not None
    assert not isinstance(letters, RecordError)
    assert ([letter.value for letter in letters], bench.stats.dead_letters) == ([b"3", b"5"], 2)
    assert bench.stats.failed == {"discarded-chunk": 1}


def test_error_policy_counts_a_message_once_whose_letters_cannot_be_written() -> None:
    """Its chunks are counted by the first of them; without a dead-letter topic the flow ends at that one."""
    first = Bench(None).error_policy.discarded(Discarded("expired", "u", (Read(3), Read(5)), "late"))
    assert "partition 3, offset 3: the chunked message u is discarded" in str(first)
    bench = Bench(replace(LETTERS, max_message_bytes=50))
    chunks = (Read(3), Read(5))
    cause = bench.error_policy.discarded(Discarded("expired", "u", chunks, "late"))
    assert isinstance(cause, Cause)
    failure = asyncio.run(bench.error_policy.write_letters(chunks, cause))
    assert isinstance(failure, RecordError)
    bench.error_policy.end(failure)
    assert bench.stats.failed == {"discarded-chunk": 1}


@pytest.mark.parametrize(
    ("rule", "reason", "dropped"), [(True, "evicted", True), (False, "evicted", False), (True, "expired", False)]
)
def test_error_policy_drops_only_by_its_rule(*, rule: bool, reason: Any, dropped: bool) -> None:
    """Chunks are dropped only where the configuration says so, and only those that were evicted."""
    rules: dict[str, Any] = {"auto.ack.oldest.chunked.message.on.queue.full": rule}
    bench = Bench(**rules)
    event = Discarded(reason, "u", (Read(3), Read(5)), "why")
    assert (bench.error_policy.discarded(event) is None, bench.stats.evicted_messages) == (dropped, int(dropped))
