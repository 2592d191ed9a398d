"""Dead letters: the record whole, and Connect's headers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transforms.errors import MalformedError, PayloadCorruptError
from transforms.letter import (
    MARK,
    REPLAYS,
    Cause,
    Letter,
    batch_letter,
    dead_letter,
    is_bare,
    may_refer,
    open_letter,
)
from transforms.record import Header, Record
from transforms.reference import MAX_PATH_BYTES
from transforms.wrapper import MessageWrapper


@dataclass(frozen=True)
class Source:
    """A record as it was read."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = (("h", b"1"), ("h", None))
    timestamp: int = 1_700_000_000_123
    topic: str = "raw"
    partition: int = 3
    offset: int = 2**40


def letter_of(error: BaseException, source: Source | None = None, *, context: bool = True) -> Record:
    """The dead letter for `error`."""
    source = source or Source()
    cause = Cause(error, pipeline="orders", stage="offload,inflate", context=context)
    return dead_letter(source, cause.headers(source))


def fail(error: Exception) -> None:
    """Raises `error`."""
    raise error


def raised(error: Exception) -> Exception:
    """`error` with a traceback."""
    try:
        fail(error)
    except type(error) as exc:
        return exc
    return error


def test_dead_letter_has_the_headers_of_connect() -> None:
    """Names, order and forms are those of Kafka Connect's dead-letter reporter."""
    error = raised(PayloadCorruptError("memory://x/orders/1", "size", expected="9 bytes", found="8 bytes"))
    letter = letter_of(error)
    *own, trace = letter.headers
    prefix = "__connect.errors."
    assert own == [
        ("h", b"1"),
        ("h", None),
        (prefix + "topic", b"raw"),
        (prefix + "partition", b"3"),
        (prefix + "offset", b"1099511627776"),
        (prefix + "connector.name", b"orders"),
        (prefix + "task.id", b"0"),
        (prefix + "stage", b"TRANSFORMATION"),
        (prefix + "class.name", b"offload,inflate"),
        (prefix + "exception.class.name", b"transforms.errors.PayloadCorruptError"),
        (prefix + "exception.message", str(error).encode()),
    ]
    assert trace[0] == prefix + "exception.stacktrace"
    assert (trace[1] or b"").startswith(b"Traceback (most recent call last):")
    assert (trace[1] or b"").rstrip().endswith(str(error).encode())


@pytest.mark.parametrize(
    "source", [Source(), Source(key=None), Source(value=None), Source(value=b"", headers=()), Source(timestamp=-1)]
)
def test_dead_letter_is_the_record_whole(source: Source) -> None:
    """Without context headers it is the record, and nothing else."""
    letter = letter_of(ValueError("no"), source, context=False)
    assert letter == Record(source.key, source.value, source.headers, source.timestamp)
    with_context = letter_of(ValueError("no"), source)
    assert with_context.headers[: len(source.headers)] == source.headers
    assert (with_context.key, with_context.value) == (source.key, source.value)


def nested(depth: int) -> Exception:
    """An error with a long chain of causes."""
    error: Exception = ValueError("the root")
    for number in range(depth):
        step = RuntimeError(f"step {number}")
        step.__cause__ = error
        error = raised(step)
    return error


@given(st.text(st.characters(), max_size=50), st.integers(0, 4_000))
@example("\udcff", 1)  # a byte of a file name that is not UTF-8
@example("\udcff", 4_000)
def test_headers_are_bounded_and_utf8(text: str, times: int) -> None:
    """Whatever an error says, its headers are UTF-8 of a bounded size: a letter must not grow past its topic."""
    letter = letter_of(raised(ValueError(text * times)), Source(headers=()))
    assert sum(len(name) + len((value or b"").decode().encode()) for name, value in letter.headers) < 12_000


def test_long_trace_keeps_its_end() -> None:
    """The last lines of a trace say what happened; they survive the cut."""
    trace = (dict(letter_of(nested(100)).headers)["__connect.errors.exception.stacktrace"] or b"").decode()
    assert trace.startswith("…")
    assert trace.rstrip().endswith("RuntimeError: step 99")
    assert len(trace.encode()) <= 8_192


def test_trace_shows_no_values() -> None:
    """A trace has lines of code, not what stood in variables."""
    secret = "hunter2"

    def fails(password: str) -> None:
        raise ValueError(f"of {len(password)} characters")

    try:
        fails(secret)
    except ValueError as exc:
        letter = letter_of(exc)
    assert all(b"hunter2" not in (value or b"") for _, value in letter.headers)


def test_letter_of_a_batch() -> None:
    """It has the time of its record and, if it is not bare, what Connect's headers say; others are none."""
    headers: tuple[Header, ...] = (("__connect.errors.topic", b"raw"), ("__connect.errors.offset", b"7"))
    said = {"topic": "raw", "offset": "7"}
    for mark, context in ((b"batch", said), (b"bare-batch", {})):
        assert batch_letter(Record(b"k", b"v", (*headers, (MARK, mark)), 5)) == Letter(
            Record(None, None, (), 5), context
        )
    assert batch_letter(Record(b"k", b"v", (*headers, (MARK, b"record")), 5)) is None
    assert [is_bare((MARK, mark)) for mark in (b"bare-record", b"record", b"", None)] == [True, False, False, False]


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "1e3", "", "٣", "9" * 11])
def test_place_that_is_none(number: str) -> None:
    """What Connect's headers say of a place is anybody's: a number that Kafka cannot have is no place, and no error."""
    letter = Letter(Record(None, b""), {"topic": "raw", "partition": number, "offset": "7"})
    assert letter.origin is None


def test_a_replay_is_the_record_with_its_count_in_front() -> None:
    """The count takes the place of that of the replay before; all else stays."""
    own = (("a", b"1"), ("b", None))
    first = Letter(Record(b"k", b"v", own, 7), {}).replayed()
    assert first == Record(b"k", b"v", ((REPLAYS, b"1"), *own), 7)
    assert Letter(first, {}, 1).replayed() == Record(b"k", b"v", ((REPLAYS, b"2"), *own), 7)


def opened(value: bytes | None, *headers: Header) -> Letter:
    """What is read of a dead-letter record."""
    return open_letter(Record(b"k", value, headers, 7))


def test_own_headers_and_those_of_connect() -> None:
    """Connect's begin at the last topic and go on to the end; one in front of them is the record's own."""
    topic, stage = ("__connect.errors.topic", b"raw\xff"), ("__connect.errors.stage", None)
    own: tuple[Header, ...] = (("a", b"1"), stage, ("b", None))
    letter = opened(b"v", *own, topic, stage)
    assert letter == Letter(Record(b"k", b"v", own, 7), {"topic": "raw\ufffd", "stage": ""})
    assert opened(b"v", *own, topic, ("c", b"")).context == {}
    assert opened(None, *own, stage) == Letter(Record(b"k", None, (*own, stage), 7), {})
    assert opened(b"v", topic, (MARK, b"bare-value")) == Letter(Record(b"k", b"v", (topic,), 7), {})


@pytest.mark.parametrize(
    ("header", "count"),
    [
        ((REPLAYS, b"3"), 3),
        ((REPLAYS, b"999999"), 999_999),
        ((REPLAYS, b"1000000"), 0),
        ((REPLAYS, b"-1"), 0),
        ((REPLAYS, b""), 0),
        ((REPLAYS, None), 0),
        (("a", b"3"), 0),
    ],
)
def test_replays_are_counted_in_the_first_header(header: Header, count: int) -> None:
    """What is no count is none; and one that stands behind is the record's own."""
    assert opened(b"v", header, ("a", REPLAYS.encode())).replays == count
    assert opened(b"v", ("a", b""), header).replays == 0


@pytest.mark.parametrize("mark", [b"whol", b"bare-whol", b"", None])
def test_mark_of_another_kind_is_refused(mark: bytes | None) -> None:
    """The kinds that there are stand in the sentence."""
    with pytest.raises(MalformedError) as caught:
        opened(b"v", (MARK, mark))
    found = (mark or b"").decode()
    assert (caught.value.field, caught.value.found, caught.value.allowed) == (MARK, found, "whole, value or record")


def test_record_that_is_missing_is_refused() -> None:
    """A value that should be a whole record is null."""
    with pytest.raises(MalformedError) as caught:
        opened(None, (MARK, b"record"))
    assert (caught.value.field, caught.value.found) == ("value", "null")


def test_values_that_may_refer() -> None:
    """A reference in the format of the topic or in bakdata's, if it is short enough for a path; or a wrapper."""
    flagged: tuple[Header, ...] = (("__large.message.backed.value", b"\x01"),)
    longest = MAX_PATH_BYTES + 1
    for value, refers in (
        (b"", False),
        (None, False),
        (b"x", True),
        (b"x" * longest, True),
        (b"x" * (longest + 1), False),
    ):
        assert may_refer(Record(None, value, flagged), "wideload") is refers
    most = 1_048_576
    bare = len(MessageWrapper({}, b"").serialize())
    for size, refers in ((most, True), (most + 1, False)):
        assert may_refer(Record(None, MessageWrapper({}, bytes(size - bare)).serialize()), "wideload") is refers
    assert not may_refer(Record(None, b"plain"), "wideload")
