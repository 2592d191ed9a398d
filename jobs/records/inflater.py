"""Payloads in place of references: several downloads at a time, in order, and no more bytes than are allowed.

This is what runs on executors. A task has one `Restorer`, and so one client of the store. Bytes are counted before a
download: by the size that the reference says. Where it says none (the seed's own format and bakdata's), a download
that proves to be larger than its share is broken off before the body is read, and done again once it is alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from stores.registry import get, open_store
from stores.store import PayloadStore
from transforms.chunk import is_chunk
from transforms.errors import (
    ConfigurationError,
    MalformedWrapperError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    SignatureError,
    TransformError,
)
from transforms.formats import FORMATS, WIDELOAD, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, Reference, is_reference
from transforms.signing import KEY_NAME, Signing
from transforms.wrapper import Unwrap

__all__ = ["DEFAULT_HELD_BYTES", "DEFAULT_THREADS", "Problem", "Restored", "Restorer", "RestorerSettings", "plain"]

DEFAULT_HELD_BYTES = 64 * 2**20
DEFAULT_THREADS = 8

_MOST_WAITING = 1_000  # records behind one whose download takes long

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class RestorerSettings:
    """What a task needs to know; goes to executors.

    Attributes:
        store: what the store is opened with, as `plain` gives it; may hold secrets.
        reference_format: how records refer to payloads.
        held_bytes: the most bytes of payloads that a task holds, or one record where that is larger.
        threads: how many payloads are downloaded at a time.
        unwrap: how wrappers come off before references are looked for; None where values are no wrappers.
    """

    store: Mapping[str, object] = field(repr=False)
    reference_format: FormatName = "wideload"
    held_bytes: int = DEFAULT_HELD_BYTES
    threads: int = DEFAULT_THREADS
    unwrap: Unwrap | None = None

    def check(self) -> None:
        """Makes sure that a store can be opened with this. Makes no request.

        Raises:
            ConfigurationError: a key is missing, unknown or wrong.
        """
        if self.reference_format not in FORMATS:
            raise ConfigurationError("format", f"found {self.reference_format!r}, allowed are {', '.join(FORMATS)}")
        for name, number in (("max_bytes", self.held_bytes), ("threads", self.threads)):
            if number < 1:
                raise ConfigurationError(name, f"found {number}, allowed is 1 or more")
        Signing.of(self.store)
        open_store(self.store).close()

    def check_signatures(self) -> None:
        """Makes sure that references are verified, where there is a key to do it with.

        Raises:
            ConfigurationError: the format has no signatures.
        """
        if self.reference_format != "wideload" and Signing.of(self.store) is not None:
            raise ConfigurationError(
                KEY_NAME, f"stands beside format {self.reference_format!r}, which has no signatures; leave it out"
            )


def plain(config: Mapping[str, object]) -> dict[str, object]:
    """A configuration of a store without classes that executors may lack, as that of a secret string."""
    return {key: str(value) if isinstance(value, str) else value for key, value in config.items()}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reference did not become a value, and never will.

    Attributes:
        which: `value` or `key`.
        state: `malformed`, `refused`, `missing`, `too-large`, or what differs: `size`, `checksum`, `compression`.
        detail: for people.
    """

    which: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Restored(Generic[Place]):
    """What became of a record.

    Attributes:
        place: as it was handed in.
        record: with its payload; where there is a problem without it, and out of its wrapper if it came out.
        problem: None where there is none.
        logged: as it was handed in; None where that is `record`.
    """

    place: Place
    record: RecordLike
    problem: Problem | None = None
    logged: RecordLike | None = None


@dataclass(frozen=True, slots=True)
class _References:
    """What a record refers to, one part of it or both, and its own headers."""

    headers: tuple[Header, ...]
    key: Reference | None
    value: Reference | None


_Outcome = RecordLike | Problem | None  # None: larger than its share


@dataclass(slots=True)
class _Entry(Generic[Place]):
    """A record on its way through the window; `held` is how many bytes of the bound it takes."""

    place: Place
    record: RecordLike
    held: int
    outcome: Future[_Outcome] | RecordLike | Problem
    references: _References | None = None
    logged: RecordLike | None = None


class Restorer:
    """Restores the records of one task. Not for several threads at once.

    Args:
        settings: what to do.

    Raises:
        ConfigurationError: see `RestorerSettings.check`.
    """

    def __init__(self, settings: RestorerSettings) -> None:
        self._format = FORMATS[settings.reference_format]
        self._unwrap = settings.unwrap
        self._held_bytes = settings.held_bytes
        self._store: PayloadStore = open_store(settings.store)
        limit = settings.store.get("large.message.max.bytes", DEFAULT_MAX_BYTES)
        assert isinstance(limit, int)
        share = max(1, settings.held_bytes // (2 * settings.threads))
        # No other format has signatures.
        signing = Signing.of(settings.store) if self._format is WIDELOAD else None
        self._inflate = Inflate(limit, self._format, signing=signing)
        self._probe = Inflate(min(limit, share), self._format)
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="wideload-restorer")

    def close(self) -> None:
        """Waits for the downloads that are under way, and gives back what the store holds."""
        self._pool.shutdown(cancel_futures=True)
        self._store.close()

    def wants(self, record: RecordLike) -> bool:
        """Whether a record out of its wrapper is not as it was: a reference, or marked as none.

        A chunk is left alone; it is not whole.
        """
        if record.headers and is_chunk(record.headers):
            return False
        return self._format.wants(record) or _has_key(record)

    def restored(self, records: Iterable[tuple[Place, RecordLike]]) -> Iterator[Restored[Place]]:
        """Every record, in order. Downloads go on while the caller is at work.

        Raises:
            PayloadStoreError: the store failed, whatever the record; it has tried for as long as it may.
        """
        waiting: deque[_Entry[Place]] = deque()
        held = 0
        for place, record in records:
            entry = self._entry(place, record)
            while waiting and (held + entry.held > self._held_bytes or len(waiting) >= _MOST_WAITING):
                held -= waiting[0].held
                yield self._finished(waiting.popleft())  # without a name, so that nothing here keeps it
            if entry.references is not None:
                entry.outcome = self._pool.submit(self._restore, entry.record, entry.references, self._probe)
            elif not waiting:
                yield self._finished(entry)
                continue
            waiting.append(entry)
            held += entry.held
        while waiting:
            yield self._finished(waiting.popleft())

    def _entry(self, place: Place, record: RecordLike) -> _Entry[Place]:
        if self._unwrap is None or is_chunk(record.headers) or not self._unwrap.wants(record):
            return self._unwrapped_entry(place, record)
        try:
            unwrapped = self._unwrap.unwrap(record)
        except MalformedWrapperError as exc:
            return _Entry(place, record, len(record.value or b""), Problem("value", "malformed", str(exc)))
        entry = self._unwrapped_entry(place, unwrapped)
        entry.logged = record
        entry.held += len(record.value or b"")
        return entry

    def _unwrapped_entry(self, place: Place, record: RecordLike) -> _Entry[Place]:
        length = len(record.value or b"")
        if not self.wants(record):
            return _Entry(place, record, length, record)
        try:
            references, inline = self._read(record)
        except _PartError as exc:
            return _Entry(place, record, length, exc.problem)
        if references.key is None and references.value is None:
            return _Entry(place, record, length, inline)
        held = sum(self._bytes(part) for part in (references.key, references.value) if part is not None)
        return _Entry(place, record, length + held, record, references)

    def _read(self, record: RecordLike) -> tuple[_References, Record]:
        """What a record refers to; and the record without what is not its own."""
        key = value = None
        own = Record(record.key, record.value, tuple(record.headers), record.timestamp)
        if _has_key(record):
            with _part("key"):
                key, headers = Reference.read(record.key, own.headers, KEY)
                self._inflate.verify(key, KEY)
                self._inflate.stored_limit_bytes(key)
                own = replace(own, headers=headers)
        if self._format.wants(own):
            with _part("value"):
                if self._format.refers(own):
                    value, headers = self._format.read_reference(own)
                    self._inflate.verify(value)
                    self._inflate.stored_limit_bytes(value)
                    own = replace(own, headers=headers)
                else:
                    own = self._format.read_inline(own)
        return _References(tuple(own.headers), key, value), own

    def _bytes(self, reference: Reference) -> int:
        size = self._probe.max_bytes if reference.size is None else reference.size
        return size if reference.codec is None else 2 * size

    def _finished(self, entry: _Entry[Place]) -> Restored[Place]:
        outcome = entry.outcome.result() if isinstance(entry.outcome, Future) else entry.outcome
        if outcome is None:
            # The others are within the bound, and this is the one record that there may be more.
            assert entry.references is not None
            outcome = self._restore(entry.record, entry.references, self._inflate)
        assert outcome is not None
        if isinstance(outcome, Problem):
            return Restored(entry.place, entry.record, outcome, entry.logged)
        return Restored(entry.place, outcome, None, entry.logged)

    # --- on threads ---------------------------------------------------------------------------------------------------

    def _restore(self, record: RecordLike, references: _References, unsized: Inflate) -> _Outcome:
        """The record with its payloads; `unsized` has the bound for those of which no size is known."""
        key, value = record.key, record.value
        try:
            if references.key is not None:
                with _part("key"):
                    key = self._download(references.key, unsized)
            if references.value is not None:
                with _part("value"):
                    value = self._download(references.value, unsized)
        except _PartError as exc:
            return exc.problem
        except _ShareError:
            return None
        return Record(key, value, references.headers, record.timestamp)

    def _download(self, reference: Reference, unsized: Inflate) -> bytes:
        inflate = unsized if reference.size is None else self._inflate
        limit = inflate.stored_limit_bytes(reference)
        try:
            return inflate.restore(reference, get(self._store, reference.path, limit))
        except PayloadTooLargeError as exc:
            if inflate is not self._inflate and inflate.max_bytes < self._inflate.max_bytes:
                raise _ShareError from exc
            if reference.size is None or limit == inflate.max_bytes:
                raise
            # The bound was the reference's own size, so it is the reference that is wrong, not the limit.
            found = "more" if exc.size is None else f"{exc.size:,} bytes"
            expected = f"at most {reference.size:,} bytes"
            raise PayloadCorruptError(reference.path, "size", expected=expected, found=found) from exc


class _ShareError(Exception):
    """A payload of unknown size is larger than its share."""


class _PartError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


@contextmanager
def _part(which: str) -> Iterator[None]:
    """Says of which part of the record an error is that is the record's own."""
    try:
        yield
    except PayloadNotFoundError as exc:
        raise _PartError(Problem(which, "missing", str(exc))) from exc
    except (ReferenceRefusedError, SignatureError) as exc:
        raise _PartError(Problem(which, "refused", str(exc))) from exc
    except PayloadCorruptError as exc:
        raise _PartError(Problem(which, exc.what, str(exc))) from exc
    except PayloadTooLargeError as exc:
        raise _PartError(Problem(which, "too-large", str(exc))) from exc
    except TransformError as exc:
        raise _PartError(Problem(which, "malformed", str(exc))) from exc


def _has_key(record: RecordLike) -> bool:
    return record.key is not None and bool(record.headers) and is_reference(record.headers, KEY)
