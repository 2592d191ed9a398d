"""Which offsets a task reads."""

from __future__ import annotations

import pytest

from jobs.driver.failures import JobFailedError
from jobs.reading.ranges import (
    Bounds,
    OffsetRange,
    advanced,
    between,
    check_forward,
    ids_of,
    noted,
    position,
    positions_json,
    positions_of,
    recreated,
    tasks,
    without,
)
from transforms.errors import ConfigurationError

FOUND = {("t", 0): Bounds(5, 105), ("t", 1): Bounds(0, 10), ("t", 2): Bounds(7, 7)}


def test_position_by_name_and_by_number() -> None:
    """Offsets are given as Kafka's own source takes them, −2 and −1 included."""
    assert position("o", "earliest", FOUND) == {("t", 0): 5, ("t", 1): 0, ("t", 2): 7}
    assert position("o", "latest", FOUND) == {("t", 0): 105, ("t", 1): 10, ("t", 2): 7}
    assert position("o", {"t": {"0": 50, "1": -2, "2": -1}}, FOUND) == {("t", 0): 50, ("t", 1): 0, ("t", 2): 7}
    with pytest.raises(
        ConfigurationError, match="o: must name each partition of the topics and no other; wrong are: t 2"
    ):
        position("o", {"t": {"0": 50, "1": 3}}, FOUND)


def test_noted_offsets_have_the_ids_of_topics() -> None:
    """A checkpoint has them by topic and partition, and the ids; one of an older release or old brokers has none."""
    positions = {("t", 10): 3, ("a", 0): 1, ("t", 2): 0}
    found = noted(positions, {"t": "2", "a": "1"})
    assert found == {"a": {"0": 1}, "t": {"2": 0, "10": 3}, "topic ids": {"a": "1", "t": "2"}}
    assert positions_of(found) == positions
    assert ids_of(found) == {"a": "1", "t": "2"}
    assert noted(positions, {}) == positions_json(positions)
    assert ids_of(positions_json(positions)) == {}


def test_recreated_topics() -> None:
    """A topic with another id was created again; one whose id is not known, then or now, was not."""
    assert recreated({"t": "1", "a": "1", "gone": "1"}, {"t": "2", "a": "1", "new": "3"}) == ["t"]
    assert without({("t", 0): 3, ("t", 1): 4, ("a", 0): 1}, ["t"]) == {("a", 0): 1}


def test_advanced_shares_the_limit() -> None:
    """A limit is shared by what waits; a partition with little in it goes on too, and in the end all is read."""
    at = position("o", "earliest", FOUND)
    assert advanced(at, FOUND, None) == position("o", "latest", FOUND)
    first = advanced(at, FOUND, 22)
    assert first == {("t", 0): 25, ("t", 1): 2, ("t", 2): 7}
    steps = 0
    while at != position("o", "latest", FOUND):
        at = advanced(at, FOUND, 2)
        steps += 1
        assert steps < 110


def test_advanced_new_and_remade_partitions() -> None:
    """A new partition begins at its first record; so does one that was made anew, which is a failure where it is."""
    end = advanced({("t", 0): 20, ("t", 1): 500}, FOUND, None)
    assert end == {("t", 0): 105, ("t", 1): 10, ("t", 2): 7}
    first = {place: bounds.first for place, bounds in FOUND.items()}
    assert between({("t", 0): 20, ("t", 1): 500}, end, first) == [
        OffsetRange("t", 0, 20, 105),
        OffsetRange("t", 1, 0, 10),
    ]
    with pytest.raises(JobFailedError, match="topic t partition 1 ends at offset 10, and was read up to 500 before"):
        check_forward({("t", 1): 500}, FOUND)
    check_forward({("t", 1): 10}, FOUND)


def test_tasks_cover_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However ranges are cut and joined, each offset is in one task, and none has more than allowed."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    ranges = [OffsetRange("t", 0, 5, 105, "id"), *(OffsetRange("t", n, 0, 10, "id") for n in range(1, 9))]
    for most, least in ((None, None), (7, None), (None, 9), (None, 3), (30, 2), (1, 500)):
        found = tasks(ranges, most, least)
        offsets = [(each.partition, n) for task in found for each in task for n in range(each.start, each.end)]
        assert offsets == [(r.partition, n) for r in ranges for n in range(r.start, r.end)]
        assert all(each.topic_id == "id" for task in found for each in task)
        assert all(sum(each.end - each.start for each in task) <= (most or 180) for task in found)
        assert len(found) >= (least or 0) or len(found) == 180
    assert tasks([], None, 4) == []


def test_partitions_of_few_offsets_share_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of nearly empty partitions are as many tasks as there are cores; large ones keep a task each."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    small = [OffsetRange("t", number, 0, 5) for number in range(200)]
    assert [len(task) for task in tasks(small, None, None)] == [50] * 4
    assert [len(task) for task in tasks(small, None, 100)] == [2] * 100
    assert [len(task) for task in tasks(small, 10, None)] == [2] * 100
    large = [OffsetRange("t", number, 0, 1_000) for number in range(20)]
    assert [len(task) for task in tasks(large, None, None)] == [1] * 20
