"""The epochs of what was read of a partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transforms.commit_metadata import note
from transforms.epoch_history import NO_EPOCH, Cut, EpochHistory, PartitionEpochs, Reading


def history(*read: tuple[int, int]) -> EpochHistory:
    """After these batches: first offset and epoch of each."""
    made = EpochHistory()
    for offset, epoch in read:
        made.read(offset, epoch)
    return made


def test_epoch_of_the_last_record_before_an_offset() -> None:
    """It is that of the last batch that begins before it; before the first one nothing is known."""
    made = history((10, 3), (20, 3), (30, 5))
    assert [made.before(offset) for offset in (0, 10, 11, 29, 30, 31, 99)] == [-1, -1, 3, 3, 3, 5, 5]
    assert EpochHistory().before(5) == NO_EPOCH


def test_batches_without_an_epoch_say_nothing() -> None:
    """Those of old formats have none."""
    made = history((0, 4), (10, NO_EPOCH))
    made.reached(20, NO_EPOCH)
    assert made.before(99) == 4


def test_committed_offset_and_what_is_read_from_there() -> None:
    """The commit says the epoch of the record before its offset; it may become known after records were read."""
    made = EpochHistory()
    made.reached(50, 3)
    assert (made.before(50), made.before(49)) == (3, NO_EPOCH)
    made = history((50, 3), (60, 4))
    made.reached(50, 2)
    assert [made.before(offset) for offset in (49, 50, 51, 61)] == [NO_EPOCH, 2, 3, 4]


def test_what_is_read_again_replaces_what_was_read() -> None:
    """Records that lie behind those that were read last may be others now."""
    made = history((0, 3), (10, 4), (20, 5), (5, 3))
    assert made.before(99) == 3
    made = history((0, 3), (10, 4), (5, 6))
    assert [made.before(offset) for offset in (5, 6, 99)] == [3, 6, 6]


def test_greater_epochs_before_lower_ones_do_not_stay() -> None:
    """Where reading began, the epoch of the leader is a bound; records of former leaders may follow."""
    made = EpochHistory()
    made.reached(0, 7)
    made.read(0, 2)
    made.read(10, 5)
    assert [made.before(offset) for offset in (0, 1, 11)] == [NO_EPOCH, 2, 5]


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 1)), min_size=1, max_size=30), st.data())
def test_committed_records_are_forgotten(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """What is asked of the offsets from a commit on is answered as before, and the memory is that of what follows."""
    offset, epoch, read = 0, 0, []
    for length, elections in steps:
        epoch += elections
        read.append((offset, epoch))
        offset += length
    whole, settled = history(*read), history(*read)
    commit = data.draw(st.integers(0, offset))
    settled.settle(commit)
    assert [settled.before(each) for each in range(commit, offset + 2)] == [
        whole.before(each) for each in range(commit, offset + 2)
    ]
    later = {each for first, each in read if first >= commit}
    assert len(settled._offsets) <= len(later) + 1


def test_epoch_that_goes_with_a_commit() -> None:
    """That of the last record that was delivered; of the assignment's own offset, that of the commit it came with."""
    made = PartitionEpochs()
    made.committed(10, 3, note(10, 15, ()))
    made.read(15, 7)
    made.read(17, 8)
    assert made.epoch_to_commit(12, note(12, 15, ())) == 3
    assert [made.epoch_to_commit(offset, "") for offset in (16, 17, 18)] == [7, 8, 8]
    assert made.epoch_to_commit(17, note(17, 18, ())) == 8
    made.restart(None)
    made.read(0, 5)
    assert [made.epoch_to_commit(offset, "") for offset in (0, 1)] == [NO_EPOCH, 5]


def test_an_answer_about_a_former_commit_says_nothing_of_a_later_one() -> None:
    """A leader that has the log up to the offset that was asked for may lack the records up to the next commit."""
    made = PartitionEpochs()
    made.committed(3, 0, "")
    former = made.reading(3, 1, 0.0)
    made.committed(8, 0, "")
    assert made.is_same(former, 0, 4)
    assert made.reading(8, 1, 0.0).compares


def after(offset: int, epoch: int) -> PartitionEpochs:
    """Of a partition that is assigned with this commit."""
    made = PartitionEpochs()
    made.committed(offset, epoch, "")
    return made


def test_a_leader_compares_once() -> None:
    """One with a newer epoch has to say where its log parts, until it has said that it does not."""
    made = after(5, 2)
    reading = made.reading(5, 3, 0.0)
    assert reading == Reading(5, 2, 3, compares=True, older=False)
    assert not made.is_compared(5, 3)
    assert not made.reading(5, 2, 0.0).compares, "it wrote the last record itself"
    assert made.is_same(reading, 2, 5)
    assert (made.cut, made.is_compared(5, 3), made.reading(5, 3, 0.0).compares) == (None, True, False)
    assert made.reading(5, 4, 0.0).compares, "another leader"
    made.committed(5, 2, "")
    assert made.reading(5, 3, 0.0).compares, "another assignment"


def test_a_log_that_ends_before_what_was_read_is_cut() -> None:
    """Not if it has no record of that epoch, or none of any: its format may be too old for epochs."""
    made = after(5, 2)
    reading = made.reading(5, 3, 0.0)
    for epoch, end, same in ((NO_EPOCH, 4, True), (2, -1, True), (2, 5, True), (2, 6, True), (1, 4, False)):
        assert made.is_same(reading, epoch, end) is same
    assert (made.cut, made.is_compared(5, 9)) == (Cut(4, 1, 5), True)
    made.restart(made.cut)
    assert (made.cut, made.reading(4, 3, 0.0)) == (None, Reading(4, 1, 3, compares=True, older=False))


def test_a_cut_leader_is_not_the_one_that_was_read() -> None:
    """Its epoch is asked for again."""
    made = after(5, 2)
    reading = made.reading(5, 3, 0.0)
    assert not made.is_same(reading, 2, 4)
    assert made.reading(5, 3, 0.0).compares


def test_what_was_read_is_newer_than_the_leader() -> None:
    """Newer metadata is waited for, ten seconds long; then any leader may answer."""
    made = after(5, 4)
    assert made.reading(5, NO_EPOCH, 0.5) == Reading(5, 4, NO_EPOCH, compares=False, older=False)
    found = [made.reading(5, 3, now) for now in (1.0, 10.9, 11.0)]
    assert found == [Reading(5, 4, NO_EPOCH, compares=False, older=older) for older in (True, True, False)]
    assert made.reading(5, 4, 11.0) == Reading(5, 4, 4, compares=False, older=False)
    assert made.reading(5, 3, 12.0).older, "it is another time"


def test_reading_begins_behind_what_was_delivered() -> None:
    """The commit is before a message whose chunks are not all there; from there on what is read counts."""
    made = PartitionEpochs()
    made.committed(5, 2, note(5, 9, ()))
    assert [made.reading(offset, 2, 0.0).offset for offset in (5, 8, 9, 10)] == [9, 9, 9, 10]
    made.read(8, 3)
    assert [made.reading(offset, 3, 0.0).epoch for offset in (8, 9)] == [2, 3]


def test_a_leader_that_answers_has_the_record() -> None:
    """If no epoch is known, its own is a bound; one that is known stays."""
    made = after(5, NO_EPOCH)
    reading = made.reading(5, 3, 0.0)
    assert reading == Reading(5, NO_EPOCH, 3, compares=False, older=False)
    made.fetched(reading)
    assert made.reading(5, 4, 0.0) == Reading(5, 3, 4, compares=True, older=False)
    known = after(5, 2)
    known.fetched(known.reading(5, 3, 0.0))
    assert known.reading(5, 4, 0.0).epoch == 2
