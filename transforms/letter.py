"""Dead letters: a record that can never succeed, whole, with what went wrong in its headers; written, and read again.

    whole    the record as it was read; behind its headers those of Kafka Connect, `__connect.errors.*`
    value    the same, but its value is elsewhere: in the store, or in chunks
    record   the value is the letter itself, as `transforms.record_format` has it, here or elsewhere; its headers are
             the count of replays, and Connect's again, as far as there is room

A letter that is not whole says so in the header `wideload.dead-letter`, behind those of Connect, and behind that follow
the headers of the reference or of the chunk. Where letters have no headers of Connect, the header says that too
(`bare-value`), and a whole letter has it where it could be taken for another. So the last headers of a letter are
always ours, and whatever the record's own headers are, they come back as they were.

Source of Connect's headers: KIP-298 "Error Handling in Connect", `errors.deadletterqueue.context.headers`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from transforms import record_format
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, is_chunk
from transforms.errors import MalformedError
from transforms.record import Header, Record, RecordLike, SourceRecord
from transforms.reference import VALUE

__all__ = [
    "LEAST_BYTES",
    "MARK",
    "PREFIX",
    "REPLAYS",
    "Cause",
    "Form",
    "Letter",
    "context_of",
    "dead_letter",
    "is_bare",
    "is_letter_chunk",
    "is_letter_reference",
    "marked",
    "open_letter",
    "replays_of",
    "resembles",
]

PREFIX = "__connect.errors."
MARK = "wideload.dead-letter"
REPLAYS = "wideload.replays"
"""The first header of a record that was replayed, and how often it was."""

Form = Literal["whole", "value", "record"]

_FORMS: Sequence[Form] = ("whole", "value", "record")
_BARE = "bare-"
_CHUNK_PREFIX = "large-message.chunk."
_REFERENCE = frozenset({VALUE.flag, *VALUE.details})
_MAX_MESSAGE_BYTES = 2_048
_MAX_TRACE_BYTES = 8_192
_MAX_REPLAYS_DIGITS = 6
_INT32 = re.compile(r"[0-9]{1,10}", re.ASCII)
_INT64 = re.compile(r"[0-9]{1,19}", re.ASCII)


class Cause:
    """Why records can never succeed; what is the same for each of them is written down once.

    Args:
        error: what was raised.
        pipeline: the pipeline's name.
        stage: the transforms of the pipeline, as Connect names the stage.
        context: whether letters carry the headers `__connect.errors.*`.
    """

    def __init__(self, error: BaseException, *, pipeline: str, stage: str, context: bool) -> None:
        self.error = error
        self._context = context
        trace = "".join(traceback.format_exception(error)) if context else ""
        self._same: tuple[Header, ...] = (
            (PREFIX + "connector.name", pipeline.encode()),
            (PREFIX + "task.id", b"0"),
            (PREFIX + "stage", b"TRANSFORMATION"),
            (PREFIX + "class.name", stage.encode()),
            (PREFIX + "exception.class.name", f"{type(error).__module__}.{type(error).__qualname__}".encode()),
            (PREFIX + "exception.message", _bounded(str(error), _MAX_MESSAGE_BYTES)),
            (PREFIX + "exception.stacktrace", _bounded(trace, _MAX_TRACE_BYTES)),
        )

    def headers(self, source: SourceRecord) -> tuple[Header, ...]:
        """Connect's headers of a letter; none where it shall have none."""
        if not self._context:
            return ()
        return (
            (PREFIX + "topic", source.topic.encode()),
            (PREFIX + "partition", b"%d" % source.partition),
            (PREFIX + "offset", b"%d" % source.offset),
            *self._same,
        )


def dead_letter(source: SourceRecord, context: Sequence[Header]) -> Record:
    """The record for the dead-letter topic: key, value, headers and timestamp as they were read.

    Args:
        source: the record as it was read.
        context: of the `Cause`.
    """
    return Record(source.key, source.value, (*source.headers, *context), source.timestamp)


def resembles(record: RecordLike) -> bool:
    """True where a letter without Connect's headers would look like one that is not whole."""
    return any(name in (MARK, VALUE.flag) or name.startswith((_CHUNK_PREFIX, PREFIX)) for name, _ in record.headers)


def marked(form: Form, context: Sequence[Header] = ()) -> Header:
    """The header that says how a letter is written, and whether it has Connect's headers."""
    return MARK, (form if context else _BARE + form).encode()


def is_bare(mark: Header) -> bool:
    """True where it says that the letter has no headers of Connect, but for the record's own."""
    return (mark[1] or b"").startswith(_BARE.encode())


def _bounded(text: str, limit: int) -> bytes:
    """UTF-8 of no more than `limit` bytes, whatever stands in `text`; its end, where a trace says why."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= limit:
        return encoded
    mark = "…".encode()
    return mark + encoded[len(mark) - limit :].decode(errors="ignore").encode()


# --- read again ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter that is whole again.

    Attributes:
        record: as it was read when it failed.
        context: Connect's headers by their names behind `__connect.errors.`; empty where there are none.
        replays: how often the record had been replayed before it failed.
    """

    record: Record
    context: Mapping[str, str]
    replays: int = 0

    def replayed(self) -> Record:
        """The record as a replay writes it: with the count of replays before its own headers."""
        own = self.record.headers[1:] if self.replays else self.record.headers
        count = (REPLAYS, b"%d" % (self.replays + 1))
        return Record(self.record.key, self.record.value, (count, *own), self.record.timestamp)

    @property
    def place(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the record; None where the letter does not say."""
        topic, partition, offset = (self.context.get(name) for name in ("topic", "partition", "offset"))
        if topic is None or partition is None or offset is None:
            return None
        # Anyone may have written them: Python refuses to read a number of 5,000 digits.
        if not (_INT32.fullmatch(partition) and _INT64.fullmatch(offset)):
            return None
        return topic, int(partition), int(offset)


def is_letter_chunk(record: RecordLike) -> bool:
    """True where the record is a chunk of a letter, not a whole letter of a chunk: its last header is a chunk's."""
    headers = record.headers
    return bool(headers) and headers[-1][0].startswith(_CHUNK_PREFIX) and is_chunk(headers)


def is_letter_reference(record: RecordLike) -> bool:
    """True where the letter is in the store, not a whole letter of a reference."""
    names = [name for name, _ in record.headers]
    while names and names[-1] in _REFERENCE:
        if names.pop() == VALUE.flag:
            return bool(names) and names[-1] == MARK
    return False


def open_letter(record: RecordLike) -> Letter:
    """What a record of a dead-letter topic says, once its value has come from the store or out of its chunks.

    Raises:
        MalformedError: it says that its value is a letter, and that is none.
    """
    headers = tuple(record.headers)
    form, bare = "whole", False
    if headers and headers[-1][0] == MARK:
        text = (headers[-1][1] or b"").decode(errors="replace")
        form, bare, headers = text.removeprefix(_BARE), text.startswith(_BARE), headers[:-1]
        if form not in _FORMS:
            raise MalformedError(MARK, text, "whole, value or record")
    letter = Record(record.key, record.value, headers, record.timestamp)
    if form == "record":
        if record.value is None:
            raise MalformedError("value", "null", "a letter")
        letter = record_format.parse(record.value)
    own, context = (tuple(letter.headers), {}) if bare else context_of(letter.headers)
    return Letter(Record(letter.key, letter.value, own, letter.timestamp), context, replays_of(own))


def context_of(headers: Sequence[Header]) -> tuple[tuple[Header, ...], dict[str, str]]:
    """The record's own headers, and Connect's behind them: all from the last `topic` on, and no others between."""
    start = len(headers)
    for i in reversed(range(len(headers))):
        if not headers[i][0].startswith(PREFIX):
            break
        if headers[i][0] == PREFIX + "topic":
            start = i
            break
    found = {name.removeprefix(PREFIX): (value or b"").decode(errors="replace") for name, value in headers[start:]}
    return tuple(headers[:start]), found


def replays_of(headers: Sequence[Header]) -> int:
    """How often a record with these headers was replayed."""
    if not headers or headers[0][0] != REPLAYS:
        return 0
    value = headers[0][1] or b""
    return int(value) if value.isdigit() and len(value) <= _MAX_REPLAYS_DIGITS else 0


LEAST_BYTES = batch_of_one_bytes(
    Record(None, b"v", (marked("record"), *Chunk("0" * 36, 2**31 - 2, 2**31 - 1, 2**31 - 1, "0" * 64).headers()))
)
"""The least `max.message.bytes` of a dead-letter topic: the smallest chunk of a letter, as long as its numbers get."""
