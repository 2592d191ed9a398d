"""The references of a record: the paths of the payloads to which it refers, or why they are not known.

A value may be a wrapper (seed 002) whose headers mark the wrapped value as a reference, as behind `["offload",
"wrap"]`. It is unwrapped here as `unwrap` does; that needs no table, since the headers of references have fixed keys.
A value may also be a dead-letter record that holds a whole record (`transforms/letter.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from transforms import record_format
from transforms.bakdata import FLAG as BAKDATA_FLAG
from transforms.chunk import Chunk, is_chunk
from transforms.claims import CLAIM_PREFIX
from transforms.errors import MalformedChunkError, MalformedError, MalformedReferenceError, SignatureError
from transforms.formats import FORMATS, FormatName
from transforms.keyring import CIPHER
from transforms.letter import MARK, has_backed_value, has_record
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch
from transforms.reference import KEY, MAX_PATH_BYTES, VALUE, Field, Reference, is_reference
from transforms.signing import Signing
from transforms.wrapper import OWN_KEYS, MessageWrapper, Unwrap

HIDDEN = ("is a dead letter", "is a wrapper", "is a chunk of a wrapper", "cannot be read")
"""How the errors begin of records that may contain a valid reference."""

BEGINS = "begins with "
"""How the error begins of an unmarked path of a payload; the directory of its payload comes next, and a `/`."""

OWN_KEY = min(OWN_KEYS).to_bytes(4)[:3]
"""So the int keys of the headers of references begin in a wrapper."""

# Each record with a reference has one of these, or the root, whatever it is wrapped in.
_TRACES = (CLAIM_PREFIX.encode(), BAKDATA_FLAG.encode(), MARK.encode(), OWN_KEY)
_BACKED = b"\x01"
_MOST_BYTES = MAX_PATH_BYTES + 2  # bakdata's flag, and one more byte that shows that a path is too long
_DEEPEST = 8
_HEAD_BYTES = 9  # of a wrapper, without headers and value
_UNWRAP = Unwrap()
_LARGEST = 2**63 - 1  # no payload has a size that is too large for Spark's numbers


class FoundReference(NamedTuple):
    """One reference: to the record's value, or to its key, as `which` says.

    `checksum` is that of the stored bytes if they are encrypted; `encryption` is the cipher. A reference that is
    refused for its signature has both an error and a path; any other one with an error has nothing else.
    """

    which: str
    format: FormatName | None = None
    path: str | None = None
    size: int | None = None
    checksum: str | None = None
    compression: str | None = None
    encryption: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceFinder:
    """Finds the references in the records of a topic.

    Headers mark a reference in every topic, also one of another format than the topic's. Offloaded keys have one
    format, that of the serializers; bakdata's keys are left alone.

    Attributes:
        format: how the topic refers to payloads, as the worker's `reference.format`.
        root: the beginning of all paths in the store. A value or key that begins so, and is not marked as a reference,
            is a reference with an error: it may be one of another format than `format`.
        signing: verifies the references of the project's own format; None for no verification.
    """

    format: FormatName = "wideload"
    root: str | None = None
    signing: Signing | None = None
    _root: bytes | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_root", None if self.root is None else self.root.encode())

    def wants_any(self, batch: RecordBatch) -> bool:
        """False if no record of the batch has a reference; True if one has, or if finding out would be expensive."""
        traces = _TRACES if self._root is None else (*_TRACES, self._root)
        return self.format == "bakdata-flag" or batch.may_hold(*traces)

    def find(self, record: RecordLike) -> Iterator[FoundReference]:
        """Every reference of the record; it may have two.

        These are references with an error, too: a dead-letter record whose record is in the store or in chunks; the
        first chunk of a message that may be a wrapper with a reference.
        """
        for _ in range(_DEEPEST):
            try:
                held = _held(record)
            except MalformedError as exc:
                yield FoundReference("value", error=str(exc))
                return
            if held is None:
                yield from self._in_key(record)
                yield from self._in_value(record)
                return
            record = held
        yield FoundReference("value", error=f"is a wrapper in a wrapper, more than {_DEEPEST} times")

    def _in_key(self, record: RecordLike) -> Iterator[FoundReference]:
        if record.key is None:
            return
        if is_reference(record.headers, KEY):
            try:
                yield self._sound(KEY, "wideload", Reference.read(record.key, record.headers, KEY)[0])
            except MalformedReferenceError as exc:
                yield FoundReference("key", error=str(exc))
        elif (folder := self._folder(record.key)) is not None:
            yield FoundReference("key", error=f"{BEGINS}{folder}/ and is not marked as a reference")

    def _in_value(self, record: RecordLike) -> Iterator[FoundReference]:
        if record.value is None:
            return
        if has_record(record.headers) or has_backed_value(record.headers):
            error = "is a dead letter whose record is elsewhere, and may be a reference: replay or drop it"
            yield FoundReference("value", error=error)
        if _begins_wrapped_reference(record):
            yield FoundReference("value", error="is a chunk of a wrapper that may hold a reference: assemble it")
            return
        # Headers mark a reference in every topic; a flag before the value counts only if the format has it.
        names: dict[FormatName, None] = dict.fromkeys((self.format, "wideload", "bakdata-headers"))
        errors = []
        for name in names:
            form = FORMATS[name]
            if form.refers(record):
                try:
                    reference = form.read_reference(record)[0]
                except MalformedReferenceError as exc:
                    errors.append(str(exc))
                    continue
                if is_chunk(record.headers):
                    yield FoundReference("value", error="is a chunk of a reference: assemble it")
                else:
                    yield self._sound(VALUE, name, reference)
                return
        if errors:
            yield FoundReference("value", error=errors[0])
        elif (folder := self._folder(record.value)) is not None and not FORMATS[self.format].wants(record):
            error = f"{BEGINS}{folder}/ and is not marked as a reference: not {self.format}?"
            yield FoundReference("value", error=error)

    def _sound(self, part: Field, name: FormatName, reference: Reference) -> FoundReference:
        error = None
        if self.signing is not None and name == "wideload":
            try:
                self.signing.verify(reference, part)
            except SignatureError as exc:
                error = str(exc)
        size = None if reference.size is None else min(reference.size, _LARGEST)
        cipher = None if reference.encryption is None else CIPHER
        return FoundReference(part.name, name, reference.path, size, reference.checksum, reference.codec, cipher, error)

    def _folder(self, data: bytes) -> str | None:
        """The directory of a payload of which this is the path, with or without bakdata's flag; None if it is not one.

        Payloads of bakdata's own writers are one directory deeper; nothing here lists or deletes them.
        """
        root = self._root
        if root is None or not data.startswith((root, _BACKED + root)):
            return None
        folder = data[:_MOST_BYTES].removeprefix(_BACKED).rpartition(b"/")[0]
        return folder.decode(errors="replace") if folder.count(b"/") == root.count(b"/") else None


def _held(record: RecordLike) -> Record | None:
    """The record in a dead-letter record or in a wrapper; None if the record is neither.

    Raises:
        MalformedError: the dead-letter record cannot be read.
    """
    # A chunk alone is neither; `_begins_wrapped_reference` looks at the first chunk of a message.
    if record.value is None or is_chunk(record.headers):
        return None
    if has_record(record.headers) and not is_reference(record.headers):
        return record_format.parse(record.value)
    return _UNWRAP.unwrap(record) if MessageWrapper.check(record.value) else None


def _begins_wrapped_reference(record: RecordLike) -> bool:
    """Whether it is the first chunk of a message that may be a wrapper with a value as short as a path."""
    if record.value is None or not record.value.startswith(b"\x00") or not is_chunk(record.headers):
        return False
    try:
        chunk = Chunk.parse(record)[0]
    except MalformedChunkError:
        return False
    rest = chunk.size - _HEAD_BYTES - int.from_bytes(record.value[1:5], signed=True)
    return chunk.id == 0 and 0 <= rest <= _MOST_BYTES
