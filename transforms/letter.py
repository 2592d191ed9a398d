"""Dead-letter records: a failed record, complete, with its error in headers. How they are written and read.

    whole    the record as it was read; its headers are followed by those of Kafka Connect, `__connect.errors.*`
    value    like `whole`, but its value is in the store, or in chunks
    record   the value is the whole dead-letter record in the format of `transforms.record_format`; it is in this
             record, in the store or in chunks; the headers are the count of replays, and again those of Connect, as
             far as there is room
    batch    the value is a Kafka batch (`transforms/record_batch.py`) with records that would have filled the memory;
             they are neither read nor replayed

The header `wideload.dead-letter`, after those of Connect, has the form if that is not `whole`. After it are the headers
of the reference or of the chunk. If dead-letter records have no headers of Connect, the header states this, too
(`bare-value`). The form `whole` has the header as well if it could be mistaken for another form. Therefore the last
headers of a dead-letter record are always ours, and the headers of the record are restored exactly, whatever they are.

Source of Connect's headers: KIP-298 "Error Handling in Connect", `errors.deadletterqueue.context.headers`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from transforms import record_format
from transforms.bakdata import FLAG
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, is_chunk
from transforms.errors import MalformedError
from transforms.formats import FORMATS, FormatName
from transforms.masking import masked
from transforms.record import Header, Record, RecordLike, SourceRecord
from transforms.reference import MAX_PATH_BYTES, VALUE
from transforms.wrapper import MessageWrapper

PREFIX = "__connect.errors."
MARK = "wideload.dead-letter"
"""The header with the form of a dead-letter record."""
RECORD_FORMS = (b"record", b"bare-record")
"""The values of this header for a dead-letter record whose value is a whole record."""
VALUE_FORMS = (b"value", b"bare-value")
"""The values for a dead-letter record whose value is that of the failed record."""
REPLAYS = "wideload.replays"
"""The first header of a replayed record: how often it was replayed."""

BATCH_FORMS = (b"batch", b"bare-batch")
"""The values for a dead-letter record whose value is a batch."""

Form = Literal["whole", "value", "record", "batch"]

_FORMS: Sequence[Form] = ("whole", "value", "record")  # that are opened
_BARE = "bare-"
_CHUNK_PREFIX = "large-message.chunk."
_REFERENCE = frozenset({VALUE.flag, *VALUE.details})
_WRAPPER_BYTES = 1_048_576  # enough for a path in a wrapper with any realistic headers
_MAX_MESSAGE_BYTES = 2_048
_BEFORE_OURS = __name__.removesuffix("transforms.letter")  # the prefix in an installed package, which is not written
_MAX_TRACE_BYTES = 8_192
_MAX_REPLAYS_DIGITS = 6
_INT32 = re.compile(r"[0-9]{1,10}", re.ASCII)
_INT64 = re.compile(r"[0-9]{1,19}", re.ASCII)


class Cause:
    """Why records can never succeed. The headers that all their dead-letter records share are built once.

    Args:
        error: what was raised.
        pipeline: the pipeline's name.
        stage: the transforms of the pipeline, for Connect's header `class.name`.
        context: whether dead-letter records have the headers `__connect.errors.*`.
        mask: hides the secrets in a text. The stack trace of an error has the texts of all its causes.
    """

    def __init__(
        self,
        error: BaseException,
        *,
        pipeline: str,
        stage: str,
        context: bool,
        mask: Callable[[str], str] = masked,
    ) -> None:
        self.error = error
        module = type(error).__module__.removeprefix(_BEFORE_OURS)
        self._context = context
        trace = mask("".join(traceback.format_exception(error))) if context else ""
        self._shared: tuple[Header, ...] = (
            (PREFIX + "connector.name", pipeline.encode()),
            (PREFIX + "task.id", b"0"),
            (PREFIX + "stage", b"TRANSFORMATION"),
            (PREFIX + "class.name", stage.encode()),
            (PREFIX + "exception.class.name", f"{module}.{type(error).__qualname__}".encode()),
            (PREFIX + "exception.message", _shortened(mask(str(error)), _MAX_MESSAGE_BYTES)),
            (PREFIX + "exception.stacktrace", _shortened(trace, _MAX_TRACE_BYTES)),
        )

    def headers(self, source: SourceRecord) -> tuple[Header, ...]:
        """Connect's headers of a dead-letter record; none if they are disabled."""
        if not self._context:
            return ()
        return (
            (PREFIX + "topic", source.topic.encode()),
            (PREFIX + "partition", b"%d" % source.partition),
            (PREFIX + "offset", b"%d" % source.offset),
            *self._shared,
        )


def dead_letter(source: SourceRecord, context: Sequence[Header]) -> Record:
    """The record for the dead letter queue: key, value, headers and timestamp as they were read.

    Args:
        source: the record as it was read.
        context: of the `Cause`.
    """
    return Record(source.key, source.value, (*source.headers, *context), source.timestamp)


def is_ambiguous(record: RecordLike) -> bool:
    """Whether the form `whole` of the record, without Connect's headers, would look like another form."""
    return any(name in (MARK, VALUE.flag) or name.startswith((_CHUNK_PREFIX, PREFIX)) for name, _ in record.headers)


def may_refer(record: RecordLike, name: FormatName) -> bool:
    """Whether the value may lead to a payload, or hold a value that does, without the headers of this project.

    Such a value must not be the payload of a dead-letter record: a sweep reads the record's headers, but no payloads.

    Args:
        record: the failed record.
        name: the format of references in its topic.
    """
    value = record.value
    if not value or len(value) > _WRAPPER_BYTES:
        return False
    is_short = len(value) <= MAX_PATH_BYTES + 1  # bakdata's flag
    refers = is_short and any(FORMATS[each].refers(record) for each in (name, "bakdata-headers"))
    return refers or MessageWrapper.check(value)


def has_backed_value(headers: Sequence[Header]) -> bool:
    """Whether by these headers the value of a dead-letter record is elsewhere, and is a reference of bakdata's."""
    names = {name: value for name, value in headers if name in (MARK, FLAG)}
    return names.get(MARK) in VALUE_FORMS and names.get(FLAG) == b"\x01"


def mark_of(form: Form, context: Sequence[Header] = ()) -> Header:
    """The header with the form of a dead-letter record, and whether that has Connect's headers."""
    return MARK, (form if context else _BARE + form).encode()


def is_bare(mark: Header) -> bool:
    """Whether the dead-letter record has no headers of Connect: headers with these names are the record's own."""
    return (mark[1] or b"").startswith(_BARE.encode())


def _shortened(text: str, limit: int) -> bytes:
    """UTF-8 of at most `limit` bytes, for any text. The end of a long text is kept, as a trace has the reason there."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= limit:
        return encoded
    mark = "…".encode()
    return mark + encoded[len(mark) - limit :].decode(errors="ignore").encode()


# --- read again ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead-letter record, decoded.

    Attributes:
        record: the failed record, as it was read.
        context: Connect's headers, by their names without `__connect.errors.`; empty if there are none.
        replays: how often the record had been replayed before it failed.
    """

    record: Record
    context: Mapping[str, str]
    replays: int = 0

    def replayed(self) -> Record:
        """The record as a replay writes it: the count of replays precedes its own headers."""
        own = self.record.headers[1:] if self.replays else self.record.headers
        count = (REPLAYS, b"%d" % (self.replays + 1))
        return Record(self.record.key, self.record.value, (count, *own), self.record.timestamp)

    @property
    def origin(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the record; None if the dead-letter record does not have them."""
        topic, partition, offset = (self.context.get(name) for name in ("topic", "partition", "offset"))
        if topic is None or partition is None or offset is None:
            return None
        # The headers may be forged: Python refuses to parse a number of 5,000 digits.
        if not (_INT32.fullmatch(partition) and _INT64.fullmatch(offset)):
            return None
        return topic, int(partition), int(offset)


def is_letter_chunk(record: RecordLike) -> bool:
    """Whether this is a chunk of a dead-letter record, not the dead-letter record of a chunk, by its last header."""
    headers = record.headers
    return bool(headers) and headers[-1][0].startswith(_CHUNK_PREFIX) and is_chunk(headers)


def is_letter_reference(record: RecordLike) -> bool:
    """Whether the dead-letter record is in the store, and not the dead-letter record of a reference."""
    names = [name for name, _ in record.headers]
    while names and names[-1] in _REFERENCE:
        if names.pop() == VALUE.flag:
            return bool(names) and names[-1] == MARK
    return False


def batch_letter(record: RecordLike) -> Letter | None:
    """What the headers contain, if the value is a batch, in the record, in the store or in chunks; otherwise None."""
    headers = tuple(record.headers)
    at = next((n for n, (name, value) in enumerate(headers) if name == MARK and value in BATCH_FORMS), None)
    if at is None:
        return None
    context = {} if is_bare(headers[at]) else context_of(headers[:at])[1]
    return Letter(Record(None, None, (), record.timestamp), context)


def has_record(headers: Sequence[Header]) -> bool:
    """Whether by these headers the value is a whole record, in the dead-letter record, in the store or in chunks."""
    return any(name == MARK and value in RECORD_FORMS for name, value in headers)


def open_letter(record: RecordLike) -> Letter:
    """Decodes a record of a dead letter queue. Its value was downloaded, or assembled from chunks, before.

    Raises:
        MalformedError: the value should be a whole record, and is not; or it is a batch.
    """
    headers = tuple(record.headers)
    form, bare = "whole", False
    if headers and headers[-1][0] == MARK:
        text = (headers[-1][1] or b"").decode(errors="replace")
        form, bare, headers = text.removeprefix(_BARE), text.startswith(_BARE), headers[:-1]
        if form == "batch":
            found = "batch: its records are too large to decompress, have too many headers, or are malformed"
            raise MalformedError(MARK, found, "whole, value or record")
        if form not in _FORMS:
            raise MalformedError(MARK, text, "whole, value or record")
    letter = Record(record.key, record.value, headers, record.timestamp)
    if form == "record":
        if record.value is None:
            raise MalformedError("value", "null", "a record")
        letter = record_format.parse(record.value)
    own, context = (tuple(letter.headers), {}) if bare else context_of(letter.headers)
    return Letter(Record(letter.key, letter.value, own, letter.timestamp), context, replays_of(own))


def context_of(headers: Sequence[Header]) -> tuple[tuple[Header, ...], dict[str, str]]:
    """Splits headers into the record's own and Connect's, which are those from the last `topic` to the end."""
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
    Record(None, b"v", (mark_of("record"), *Chunk("0" * 36, 2**31 - 2, 2**31 - 1, 2**31 - 1, "0" * 64).headers()))
)
"""The least `max.message.bytes` of a dead letter queue: the smallest chunk of a record, with the longest numbers."""
