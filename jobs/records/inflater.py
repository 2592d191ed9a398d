"""Payloads in place of references: several downloads at a time, in order, within a limit of bytes.

This runs on executors. A task has one `Inflater`, and so one client of the store. Bytes are counted before a download:
the reference says the size. The seed's own format and bakdata's say none; then a download that proves to be larger than
its share is broken off before the body is read, and starts again when no other download runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from jobs.records.problems import Problem
from jobs.records.window import Task, in_order
from stores.encryption import keyring_of
from stores.payload import download
from stores.registry import open_store
from stores.store import PayloadStore
from transforms.chunk import is_chunk
from transforms.errors import (
    ConfigurationError,
    EncryptionError,
    MalformedWrapperError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    SignatureError,
    TransformError,
)
from transforms.formats import FORMATS, WIDELOAD, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate, has_large_key
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, Reference
from transforms.signing import KEY_NAME, Signing
from transforms.wrapper import Unwrap

__all__ = ["DEFAULT_HELD_BYTES", "DEFAULT_THREADS", "Inflated", "Inflater", "InflaterSettings"]

DEFAULT_HELD_BYTES = 64 * 2**20
DEFAULT_THREADS = 8

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class InflaterSettings:
    """What a task needs to know; goes to executors.

    Attributes:
        store: the configuration of the store, as `jobs.driver.store_options.portable` gives it; may hold secrets.
        reference_format: how records refer to payloads.
        held_bytes: the most bytes of payloads that a task holds, or one record if that alone is larger.
        threads: how many payloads are downloaded at a time.
        unwrap: takes values out of their wrappers before references are looked for; None if values have no wrappers.
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
        keyring_of(self.store)
        open_store(self.store).close()

    def check_signatures(self) -> None:
        """Makes sure that references are verified if there is a key for it.

        Raises:
            ConfigurationError: the format has no signatures.
        """
        if self.reference_format != "wideload" and Signing.of(self.store) is not None:
            raise ConfigurationError(
                KEY_NAME, f"stands beside format {self.reference_format!r}, which has no signatures; leave it out"
            )


@dataclass(frozen=True, slots=True)
class Inflated(Generic[Place]):
    """A record that has been through the inflater.

    Attributes:
        place: what the caller handed in with the record.
        record: the record with its payload; if there is a problem, without it, and out of its wrapper if it came out.
        problem: None if there is none.
        logged: the record as it was handed in, if that is not `record`; else None.
    """

    place: Place
    record: RecordLike
    problem: Problem | None = None
    logged: RecordLike | None = None


@dataclass(frozen=True, slots=True)
class _References:
    """The references of a record, one or two, and the record's own headers."""

    headers: tuple[Header, ...]
    key: Reference | None
    value: Reference | None


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Place]):
    """A record on its way through the window.

    Attributes:
        held: how many bytes of the limit it takes.
        outcome: None until the payloads are there, and if one is larger than its share.
    """

    place: Place
    record: RecordLike
    held: int
    outcome: RecordLike | Problem | None = None
    references: _References | None = None
    logged: RecordLike | None = None


class Inflater:
    """Restores the records of one task. Not for several threads at once.

    Args:
        settings: what to do.

    Raises:
        ConfigurationError: see `InflaterSettings.check`.
    """

    def __init__(self, settings: InflaterSettings) -> None:
        self._format = FORMATS[settings.reference_format]
        self._unwrap = settings.unwrap
        self._held_bytes = settings.held_bytes
        self._store: PayloadStore = open_store(settings.store)
        self._keyring = keyring_of(settings.store)
        limit = settings.store.get("large.message.max.bytes", DEFAULT_MAX_BYTES)
        assert isinstance(limit, int)
        share = max(1, settings.held_bytes // (2 * settings.threads))
        # No other format has signatures.
        signing = Signing.of(settings.store) if self._format is WIDELOAD else None
        self._inflate = Inflate(limit, self._format, signing=signing)
        self._probe = Inflate(min(limit, share), self._format)
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="wideload-inflater")

    def close(self) -> None:
        """Waits for the downloads that are under way, and closes the store."""
        self._pool.shutdown(cancel_futures=True)
        self._store.close()

    def inflated(self, records: Iterable[tuple[Place, RecordLike]]) -> Iterator[Inflated[Place]]:
        """Every record, in order. Chunks are left alone. Downloads go on while the caller is at work.

        Raises:
            PayloadStoreError: the store failed, whatever the record; it has tried for as long as it may.
        """
        return map(self._finished, in_order(self._entries(records), self._pool, self._held_bytes))

    def _entries(self, records: Iterable[tuple[Place, RecordLike]]) -> Iterator[Task[_Entry[Place]]]:
        for place, record in records:
            entry = self._entry(place, record)
            yield entry.held, entry, self._downloaded if entry.references is not None else None

    def _entry(self, place: Place, record: RecordLike) -> _Entry[Place]:
        if self._unwrap is None or is_chunk(record.headers) or not self._unwrap.wants(record):
            return self._unwrapped_entry(place, record)
        length = len(record.value or b"")
        try:
            unwrapped = self._unwrap.unwrap(record)
        except MalformedWrapperError as exc:
            return _Entry(place, record, length, Problem("value", "malformed", str(exc)))
        entry = self._unwrapped_entry(place, unwrapped)
        return replace(entry, logged=record, held=entry.held + length)

    def _unwrapped_entry(self, place: Place, record: RecordLike) -> _Entry[Place]:
        length = len(record.value or b"")
        if is_chunk(record.headers) or not (self._format.wants(record) or has_large_key(record)):
            return _Entry(place, record, length, record)
        try:
            references, inline = self._read(record)
        except _PartError as exc:
            return _Entry(place, record, length, exc.problem)
        if references.key is None and references.value is None:
            return _Entry(place, record, length, inline)
        held = sum(self._bytes(part) for part in (references.key, references.value) if part is not None)
        return _Entry(place, record, length + held, None, references)

    def _read(self, record: RecordLike) -> tuple[_References, Record]:
        """The references of a record; and the record without the headers of the references."""
        key = value = None
        own = Record(record.key, record.value, tuple(record.headers), record.timestamp)
        if has_large_key(record):
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
        return size if reference.codec is None and reference.encryption is None else 2 * size

    def _finished(self, entry: _Entry[Place]) -> Inflated[Place]:
        outcome = entry.outcome
        if outcome is None:
            # All others are within the limit, and this is the one record that may go beyond it.
            assert entry.references is not None
            outcome = self._restored(entry.record, entry.references, self._inflate)
        assert outcome is not None
        if isinstance(outcome, Problem):
            return Inflated(entry.place, entry.record, outcome, entry.logged)
        return Inflated(entry.place, outcome, None, entry.logged)

    # --- on threads ---------------------------------------------------------------------------------------------------

    def _downloaded(self, entry: _Entry[Place]) -> _Entry[Place]:
        assert entry.references is not None
        return replace(entry, outcome=self._restored(entry.record, entry.references, self._probe))

    def _restored(self, record: RecordLike, references: _References, unsized: Inflate) -> RecordLike | Problem | None:
        """The record with its payloads; None if a payload of unknown size is larger than `unsized` allows."""
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
        inflate = self._inflate if reference.size is not None else unsized
        try:
            return inflate.restore(reference, download(self._store, reference, inflate, self._keyring))
        except PayloadTooLargeError as exc:
            if inflate.max_bytes < self._inflate.max_bytes:
                raise _ShareError from exc
            raise


class _ShareError(Exception):
    """A payload of unknown size is larger than its share."""


class _PartError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


@contextmanager
def _part(which: str) -> Iterator[None]:
    """Makes a problem of an error that is the record's own, and says which part of the record has it."""
    try:
        yield
    except PayloadNotFoundError as exc:
        raise _PartError(Problem(which, "missing", str(exc))) from exc
    except (EncryptionError, ReferenceRefusedError, SignatureError) as exc:
        raise _PartError(Problem(which, "refused", str(exc))) from exc
    except PayloadCorruptError as exc:
        raise _PartError(Problem(which, exc.what, str(exc))) from exc
    except PayloadTooLargeError as exc:
        raise _PartError(Problem(which, "too-large", str(exc))) from exc
    except TransformError as exc:
        raise _PartError(Problem(which, "malformed", str(exc))) from exc
