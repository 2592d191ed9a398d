"""Records that fail before they are sent: by which clock their timestamps are judged."""

from __future__ import annotations

import pytest

from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.pipeline.stages import UnfitStage
from tests.built_batches import built
from transforms.errors import RecordUnfitError
from transforms.record_batch import RecordBatch


def test_timestamps_are_judged_by_the_clock_that_is_given() -> None:
    """A record that the sink will take later is refused now, alone as in a batch."""
    now_s = 1_700_000_000.0
    sink = Topic("orders", 1, 1_000_000, "delete", newest_ms=3_600_000)
    stage = UnfitStage({}, sink, lambda: now_s)
    record = ReadRecord("raw", 0, 7, 1_700_000_000_000 + 7_200_000, b"k", b"v")
    batch = RecordBatch.read(memoryview(built(0, [record])))
    with pytest.raises(RecordUnfitError):
        stage.plan(record, record, 0)
    assert stage.wants_any(batch, whole=True)
    now_s += 7_200.0
    assert stage.plan(record, record, 0) is None
    assert not stage.wants_any(batch, whole=True)
