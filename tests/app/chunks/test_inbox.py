"""The inbox of a client: what is delivered, in which order, and what may be committed; without a client."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from app.chunks.inbox import Place
from app.kafka.source_batch import ReadRecord
from tests.app.chunks.records import Records
from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.commit_metadata import note
from transforms.read_range import ReadRange

PLACE: Place = ("t", 3)


def letter(offset: int, uuid: str, text: str, number: int, place: Place = PLACE) -> ReadRecord:
    """One chunk of a message of one byte a chunk."""
    headers = Chunk(uuid, number, len(text), len(text)).headers()
    return ReadRecord(*place, offset, 7, b"k", text[number].encode(), headers)


def plain(offset: int, value: bytes = b"v") -> ReadRecord:
    """An ordinary record."""
    return ReadRecord(*PLACE, offset, 7, b"k", value, ())


def opened(*log: ReadRecord, limits: Limits | None = None, at: int = 3, metadata: str = "") -> Records:
    """An inbox whose partition begins at an offset, and has these records."""
    inbox = Records(limits or Limits(), 10)
    inbox.begin(PLACE, at, metadata)
    inbox.put(PLACE, list(log))
    return inbox


def again(inbox: Records, offset: int, metadata: str = "") -> None:
    """Reading goes on from another offset."""
    inbox.move(PLACE, offset)
    inbox.begin(PLACE, offset, metadata)


def offsets(inbox: Records, end: int) -> tuple[int, int]:
    """The position, and the offset that may be committed, where the client's position is the end."""
    return inbox.position(PLACE, end), inbox.commit(PLACE, end)[0]


def pop(inbox: Records) -> bytes | None:
    """Delivers the next record."""
    entry = inbox.head(PLACE)
    assert entry is not None
    inbox.pop(PLACE)
    return entry.record.value


def given(inbox: Records, log: Sequence[ReadRecord]) -> list[bytes | Discarded | None]:
    """All that can be delivered of a partition; what is to be read again is read from the log."""
    found: list[bytes | Discarded | None] = []
    while True:
        while inbox.actions:
            action = inbox.actions[0]
            if isinstance(action, ReadRange):
                read(action, log)
                inbox.resolve(action)
            else:
                found.append(action)
                inbox.done(action)
        if inbox.head(PLACE) is not None:
            found.append(pop(inbox))
        elif not inbox.actions:
            return found


def read(range_: ReadRange, log: Sequence[ReadRecord]) -> None:
    """Reads a range to its end."""
    while True:
        for record in log:
            if range_.start <= record.offset < range_.end:
                range_.take(record)
        if range_.finish(min((each.offset for each in log), default=0)):
            return


def test_records_and_messages_come_in_order() -> None:
    """A message is in the place of its last chunk; the head is the position, and the first chunk the safe offset."""
    log = [plain(3, b"a"), letter(4, "u", "xy", 0), plain(5, b"b"), letter(6, "u", "xy", 1), plain(7, b"c")]
    inbox = opened()
    assert inbox.quiet
    inbox.put(PLACE, log[:2])
    assert (pop(inbox), inbox.head(PLACE), inbox.empty, inbox.quiet) == (b"a", None, True, False)
    assert offsets(inbox, 5) == (5, 4)
    inbox.put(PLACE, log[2:])
    for value, position, safe in ((b"b", 5, 4), (b"xy", 6, 4), (b"c", 7, 7)):
        assert inbox.head(PLACE) is not None
        assert (offsets(inbox, 8), pop(inbox)) == ((position, safe), value)
    assert (inbox.position(PLACE, 8), inbox.commit(PLACE, 8), inbox.quiet) == (8, (8, ""), True)


def test_what_was_popped_may_be_put_back() -> None:
    """The application has not got it: no commit passes it, and it comes again, in order."""
    inbox, popped = opened(plain(3, b"a"), letter(4, "u", "x", 0), plain(5, b"c")), []
    while (entry := inbox.head(PLACE)) is not None:
        popped.append((PLACE, entry))
        inbox.pop(PLACE)
    assert (inbox.empty, offsets(inbox, 6)) == (True, (6, 6))
    inbox.put_back(popped)
    assert (inbox.empty, offsets(inbox, 6)) == (False, (3, 3))
    assert given(inbox, []) == [b"a", b"x", b"c"]


def test_action_comes_before_the_records_behind_it() -> None:
    """A discarded message holds position and commit until the application has it."""
    inbox = opened(letter(3, "u", "xyz", 0), letter(4, "u", "xyz", 2), plain(5))
    assert inbox.head(PLACE) is None
    (discarded,) = inbox.actions
    assert isinstance(discarded, Discarded)
    assert offsets(inbox, 6) == (4, 3)
    inbox.done(discarded)
    assert offsets(inbox, 6) == (5, 5)
    assert given(inbox, []) == [b"v"]
    inbox.put(PLACE, [letter(6, "w", "xyz", 0), letter(7, "w", "xyz", 2)])
    assert inbox.head(PLACE) is None
    inbox.done(discarded)  # as if the partition had gone, and come again, meanwhile
    assert len(inbox.actions) == 1


@pytest.mark.parametrize("ends", ["whole", "expired"])
def test_message_that_has_left_the_log(ends: str) -> None:
    """A message that was set aside, and of which nothing is left to read again, is discarded like any other."""
    inbox = opened(letter(3, "u", "ab", 0), letter(4, "v", "ab", 0), limits=Limits(messages=1, expire_ms=1_000))
    assert inbox.head(PLACE) is None
    if ends == "whole":
        inbox.put(PLACE, [letter(5, "v", "ab", 1)])
        assert inbox.head(PLACE) is None
    else:
        inbox.tick(1.0, [PLACE])
    (event,) = [each for each in given(inbox, []) if isinstance(each, Discarded) and each.uuid == "v"]
    last, reason = (5, "missing-first") if ends == "whole" else (4, "expired")
    assert (event.reason, event.records, event.first, event.last) == (reason, (), 4, last)
    assert event.gone is not None
    assert event.gone.partition == PLACE
    assert inbox.commit(PLACE, 6)[0] == (3 if ends == "whole" else 6)


@pytest.mark.parametrize("target", [100, 101])
def test_seek_keeps_what_goes_on_behind_it(target: int) -> None:
    """No commit passes a message that began before a retry or a skip, and it comes whole, however far back it began."""
    log = [letter(3, "u", "abc", 0), letter(4, "v", "ab", 0), letter(5, "v", "ab", 1), letter(100, "u", "abc", 1)]
    log.append(letter(120, "u", "abc", 2))
    inbox = opened(*log[:4])
    assert given(inbox, log) == [b"ab"]
    assert inbox.commit(PLACE, 101)[0] == 3
    again(inbox, target)
    assert offsets(inbox, target) == (3, 3)
    inbox.put(PLACE, log[-2 if target == 100 else -1 :])
    assert given(inbox, log) == [b"abc"]
    assert inbox.commit(PLACE, 121) == (121, "")


@pytest.mark.parametrize("messages", [1, 2])
def test_seek_to_the_last_chunk_gives_the_message_again(messages: int) -> None:
    """A message that could not be restored is read again from its first chunk, however far back it began."""
    log = [letter(3, "u", "ab", 0), letter(4, "v", "ab", 0), letter(100, "v", "ab", 1)]
    inbox = opened(*log, limits=Limits(messages=messages))
    assert inbox.head(PLACE) is not None or inbox.actions
    for _ in range(2):
        again(inbox, 100)
        assert inbox.commit(PLACE, 100)[0] == 3
        inbox.put(PLACE, log[-1:])
        assert given(inbox, log) == [b"ab"]


def test_work_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is read again from where nothing is lost, with the note of what was delivered."""
    log = [letter(3, "u", "ab", 0), plain(4), letter(5, "u", "ab", 1)]
    inbox = opened(*log[:2])
    assert given(inbox, log) == [b"v"]

    def fails(last: ReadRecord, message: Assembled) -> ReadRecord:
        raise MemoryError

    inbox.put(PLACE, log[2:])
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "whole", fails)
        with pytest.raises(MemoryError):
            inbox.head(PLACE)
    assert inbox.interrupted == {PLACE: (3, note(3, 5, ()))}
    again(inbox, *inbox.interrupted[PLACE])
    inbox.put(PLACE, log)
    assert given(inbox, log) == [b"ab"]


def test_records_that_are_ready() -> None:
    """What was popped and not given yet holds position and commit, though the records behind it are put together."""
    log = [letter(3, "u", "ab", 0), letter(4, "v", "a", 0), plain(5), letter(6, "u", "ab", 1), plain(7)]
    inbox = opened(*log)
    inbox.ready[PLACE] = deque()
    while (entry := inbox.head(PLACE)) is not None:
        inbox.ready[PLACE].append(entry.record)
        inbox.pop(PLACE)
        assert offsets(inbox, 8) == (4, 3)
    seen = []
    while inbox.ready[PLACE]:
        inbox.ready[PLACE].popleft()
        seen.append(offsets(inbox, 8))
    assert seen == [(5, 3), (6, 3), (7, 7), (8, 8)]
    inbox.ready[PLACE].append(log[-1])
    inbox.clear(PLACE)
    assert not inbox.ready


def test_offset_that_the_application_states() -> None:
    """It may pass ordinary records that were not delivered, and no piece of a message."""
    inbox = opened(plain(3), plain(4), letter(5, "u", "ab", 0), plain(6))
    assert [inbox.commit(PLACE, offset, stated=True)[0] for offset in (3, 5, 6, 7)] == [3, 5, 5, 5]
    assert inbox.commit(PLACE, 7)[0] == 3
    assert inbox.commit(PLACE, 5, "mine", stated=True) == (5, "mine")


def test_partition_that_goes_takes_its_actions_with_it() -> None:
    """What a rebalance takes is neither discarded nor delivered here, and the other partitions go on."""
    other: Place = ("t", 4)
    inbox = opened(letter(0, "u", "ab", 0), letter(1, "u", "ab", 1), at=0, limits=Limits(messages=1))
    inbox.begin(other, 0)
    inbox.put(other, [letter(0, "u", "ab", 0, other), letter(1, "u", "ab", 1, other)])
    assert inbox.head(other) is not None
    assert inbox.head(PLACE) is not None
    again(inbox, 1)
    inbox.put(PLACE, [letter(1, "u", "ab", 1)])
    assert inbox.head(PLACE) is None
    (range_,) = inbox.actions
    inbox.clear(PLACE)
    assert not inbox.actions
    assert isinstance(range_, ReadRange)
    inbox.resolve(range_)
    assert inbox.head(other) is not None


@pytest.mark.parametrize("chunk", ["last", "first"])
def test_time_counts_behind_what_has_come(chunk: str) -> None:
    """A message does not expire while its last chunk waits to be put together, nor by the time before its first one."""
    inbox = opened(letter(3, "u", "ab", 0), limits=Limits(expire_ms=1_000))
    if chunk == "last":
        assert inbox.head(PLACE) is None
        inbox.put(PLACE, [letter(4, "u", "ab", 1)])
        inbox.tick(1.0, [PLACE])
        assert given(inbox, []) == [b"ab"]
    else:
        inbox.tick(0.9, [PLACE])
        assert inbox.head(PLACE) is None
        for time_s, actions in ((0.9, 0), (0.1, 1)):
            inbox.tick(time_s, [PLACE])
            assert len(inbox.actions) == actions


@pytest.mark.parametrize("fetched", [True, False])
def test_client_that_resets_its_position(*, fetched: bool) -> None:
    """What was fetched is delivered, as it is not read again; then incomplete messages are forgotten."""
    inbox = opened(letter(3, "u", "ab", 0))
    assert inbox.head(PLACE) is None
    inbox.put(PLACE, [letter(4, "v", "ab", 0), letter(5, "v", "ab", 1)] if fetched else [])
    inbox.begin(PLACE, 500)
    assert inbox.position(PLACE, 500) == (4 if fetched else 500)
    inbox.put(PLACE, [plain(500)])
    if fetched:
        assert inbox.head(PLACE) is not None
        assert (inbox.commit(PLACE, 501)[0], pop(inbox)) == (3, b"ab")
    assert inbox.commit(PLACE, 501) == (500, "")
    assert given(inbox, []) == [b"v"]
    assert inbox.commit(PLACE, 501) == (501, "")


def test_log_that_was_made_again_while_records_wait() -> None:
    """What was fetched of the former log is delivered; no commit passes a record of the new one behind it."""
    inbox = opened(plain(50, b"former"), at=50)
    inbox.begin(PLACE, 0)
    inbox.put(PLACE, [plain(0, b"new"), plain(1)])
    for value, safe in ((b"former", 0), (b"new", 0), (b"v", 1)):
        assert inbox.commit(PLACE, 2)[0] == safe
        assert pop(inbox) == value


def test_note_of_a_commit_is_kept_to() -> None:
    """What was delivered before the restart is not delivered again, record or message, and then all is quiet."""
    log = [letter(3, "u", "xy", 0), plain(4), letter(5, "v", "z", 0), letter(6, "u", "xy", 1), plain(7, b"new")]
    inbox = opened(*log, metadata=note(3, 6, ()))
    assert given(inbox, log) == [b"xy", b"new"]
    assert inbox.quiet
