"""What becomes of records that fail: a dead letter, a drop by a rule, or the end of the flow."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from app.budget import Budget, Share
from app.ending import Ending, RecordError
from app.lane import Slot, held_bytes
from app.preflight import Plan, Topic
from app.settings import PipelineSettings, parse
from app.stats import PipelineStats
from app.verdicts import Verdicts
from tests.app.test_ending import Read
from transforms.assembly import Discarded
from transforms.errors import ChunkError, PayloadNotFoundError, PayloadStoreError

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
        self.ending = Ending("p", lambda: None)
        plan = Plan("p", (), Topic("orders", 1, 1_000_000, "delete"), letters)
        self.verdicts = Verdicts(settings(**keys), plan, self.share, stats=self.stats, ending=self.ending)

    def slot(self, held: int = 5_000) -> Slot:
        """A slot whose bytes are taken."""
        self.share.take(held)
        return Slot(Read(), held)

    def failed(self, error: Exception) -> Slot:
        """A slot whose work has raised."""
        slot = self.slot()
        with self.verdicts.of(slot):
            fail(error)
        return slot


@pytest.mark.parametrize("error", [ChunkError(5, 3, "so"), PayloadNotFoundError("s3://b/t/id")])
def test_verdict_on_a_record_that_can_never_succeed(error: Exception) -> None:
    """It becomes a dead letter, which holds what it is large; the flow goes on."""
    bench = Bench(LETTERS)
    slot = bench.failed(error)
    assert slot.result is not None
    (letter,) = slot.result
    assert (slot.dead, letter.value, dict(letter.headers)["__connect.errors.offset"]) == (True, b"v", b"7")
    assert (bench.ending.error, bench.stats.dead_letters, bench.share.used) == (None, 1, slot.held)
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
def test_verdict_that_ends_the_flow(letters: Topic | None, error: Exception, told: str) -> None:
    """Where no dead letter can be, or the next record would fare no better, the flow ends with the record's place."""
    bench = Bench(letters)
    slot = bench.failed(error)
    with pytest.raises(RecordError, match=f"topic raw, partition 3, {told}"):
        bench.ending.raise_error()
    assert (slot.result, bench.stats.dead_letters, bench.share.used) == (None, 0, 5_000)


def test_verdict_leaves_the_context_where_it_does_not_fit() -> None:
    """A letter too large with Connect's headers goes without them, rather than not at all."""
    slot = Bench(replace(LETTERS, max_message_bytes=100)).failed(ChunkError(5, 3, "so"))
    assert slot.result is not None
    assert [list(letter.headers) for letter in slot.result] == [[]]


def test_verdict_on_discarded_chunks(caplog: pytest.LogCaptureFixture) -> None:
    """Each chunk has a dead letter of its own, in order, in one slot; the log has one line for the message."""
    bench = Bench(LETTERS)
    slot = bench.slot(0)
    event = Discarded("expired", "u", tuple(Read(offset, value=b"%d" % offset) for offset in (3, 5)), "late")
    dropped = bench.verdicts.drops(event)
    with caplog.at_level(logging.WARNING):
        bench.verdicts.discard(event, slot)
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


@pytest.mark.parametrize(
    ("rule", "reason", "dropped"), [(True, "evicted", True), (False, "evicted", False), (True, "expired", False)]
)
def test_verdict_drops_only_by_its_rule(rule: bool, reason: Any, dropped: bool) -> None:  # noqa: FBT001
    """Chunks are dropped only where the configuration says so, and only those that were evicted."""
    bench = Bench(LETTERS, **{"auto.ack.oldest.chunked.message.on.queue.full": rule})
    event = Discarded(reason, "u", (Read(3), Read(5)), "why")
    assert (bench.verdicts.drops(event), bench.stats.evicted_messages) == (dropped, int(dropped))
