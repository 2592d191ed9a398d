"""How far a micro-batch reads that is bounded in bytes: pure planning."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingesting.micro_batches import Measured, OffsetLog, limited
from transforms.errors import ConfigurationError

A, B = ("t", 0), ("t", 1)


def test_portion_takes_all_that_fits() -> None:
    """What fits is taken, with the offsets behind it that hold no record."""
    assert limited({A: Measured(9, [3, 5], [40, 60])}, [A], 100) == {A: 9}


def test_portion_ends_before_what_is_too_much() -> None:
    """The first record that would go over the bound is the next batch's, whatever the other partition has left."""
    ahead = {A: Measured(4, [1, 2, 3], [60, 41, 1]), B: Measured(8, [7], [30])}
    assert limited(ahead, [A, B], 100) == {A: 2, B: 8}


def test_portion_takes_one_that_is_too_large_alone() -> None:
    """A record that is larger than the bound is a batch by itself, lest it is never read."""
    ahead = {A: Measured(3, [1, 2], [101, 1]), B: Measured(8, [7], [1])}
    assert limited(ahead, [A, B], 100) == {A: 2, B: 7}


def test_ahead_drops_what_was_read() -> None:
    """What a batch has read is forgotten; an end behind all that was measured moves on."""
    known = Measured(4, [1, 2, 3], [10, 20, 30])
    known.drop(3)
    assert known == Measured(4, [3], [30])
    known.drop(7)
    assert known == Measured(7, [], [])


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4), st.integers(1, 60))
def test_portion_property(partitions: list[list[int]], limit: int) -> None:
    """Batch after batch reads every record once, in order, and none has more than the bound or than one record."""
    ahead = {("t", n): Measured(len(sizes), list(range(len(sizes))), list(sizes)) for n, sizes in enumerate(partitions)}
    position = dict.fromkeys(ahead, 0)
    left = sum(map(len, partitions))
    while left:
        ends = limited(ahead, sorted(ahead), limit)
        taken = [size for (_, n), end in ends.items() for size in partitions[n][position["t", n] : end]]
        assert taken
        assert sum(taken) <= limit or sum(1 for size in taken if size) == 1
        left -= len(taken)
        for place, end in ends.items():
            assert end >= position[place]
            ahead[place].drop(end)
            position[place] = end


def test_a_batch_that_another_run_has_planned_is_told() -> None:
    """Two runs with one checkpoint: the second one to plan a batch gets the sentence that Spark's own logs lead to."""
    spark = MagicMock()  # Java's log says that it has the batch
    log = spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.OffsetSeqLog.return_value
    log.getLatestBatchId.return_value.isEmpty.return_value = False
    log.getLatestBatchId.return_value.get.return_value = 3
    log.add.return_value = False
    with pytest.raises(ConfigurationError, match="--checkpoint: another run works with it at the same time; run this"):
        OffsetLog(spark, "c").plan({A: 5}, 0)
    assert log.add.call_args.args[0] == 4
