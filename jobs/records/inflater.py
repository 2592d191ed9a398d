"""Payloads in place of references: several downloads at a time, in order, within a limit of bytes.

This runs on executors. A task has one `Inflater`, and so one client of the store. Bytes are counted before a download:
the reference says the size. KIP-1159's own format and bakdata's have none; then a download that proves to be larger
than its share is broken off before the body is read, and starts again when no other download runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from jobs.driver.failures import JobFailedError
from jobs.records.problems import RECORD_ERRORS, Problem, require_at_least, require_one_of
from jobs.records.window import Task, Window
from stores.encryption import keyring_of
from stores.payload import download
from stores.registry import open_store
from transforms.chunk import is_chunk
from transforms.errors import ConfigurationError, PayloadStoreError, PayloadTooLargeError
from transforms.formats import FORMATS, FormatName
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate, Referring, has_large_key
from transforms.record import Record, RecordLike
from transforms.reference import Reference
from transforms.signing import KEY_NAME, Signing
from transforms.wrapper import Unwrap

DEFAULT_HELD_BYTES = 64 * 2**20
DEFAULT_THREADS = 8

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class InflaterSettings:
    """What a task needs to know; goes to executors.

    Attributes:
        store: the configuration of the store; may hold secrets.
        reference_format: how records refer to payloads.
        held_bytes: the most bytes of payloads that a task holds, or one record if that alone is larger.
        threads: how many payloads are downloaded at a time.
        unwrap: takes values out of their wrappers before references are looked for; None if values have no wrappers.
        keys: whether keys that are references are restored, too.
    """

    store: Mapping[str, object] = field(repr=False)
    reference_format: FormatName = "wideload"
    held_bytes: int = DEFAULT_HELD_BYTES
    threads: int = DEFAULT_THREADS
    unwrap: Unwrap | None = None
    keys: bool = True

    def check(self) -> None:
        """Makes sure that a store can be opened with this. Makes no request.

        Raises:
            ConfigurationError: a property is missing, unknown or wrong.
        """
        require_one_of("format", self.reference_format, FORMATS)
        require_at_least("max_bytes", self.held_bytes, 1)
        require_at_least("threads", self.threads, 1)
        Signing.of(self.store)
        keyring_of(self.store)
        open_store(self.store).close()

    def check_signatures(self) -> None:
        """Makes sure that references are verified if there is a key for it.

        Raises:
            ConfigurationError: the format has no signatures.
        """
        if Signing.of(self.store) is not None and self.reference_format != "wideload":
            raise ConfigurationError(
                KEY_NAME,
                f"cannot be combined with format {self.reference_format!r}, which has no signatures; leave it out",
            )


@dataclass(frozen=True, slots=True)
class Inflated(Generic[Place]):
    """A record that has been through the inflater.

    Attributes:
        place: what the caller handed in with the record.
        record: the record with its payload; if there is a problem, without it, and out of its wrapper if it came out.
        problem: None if there is none.
    """

    place: Place
    record: RecordLike
    problem: Problem | None = None


_Entry = tuple[Inflated[Place], Referring | None]
"""A record on its way; with its references until their payloads are there."""


class Inflater:
    """Restores the records of one task. Not thread-safe.

    Args:
        settings: what to do.

    Raises:
        ConfigurationError: see `InflaterSettings.check`.
    """

    def __init__(self, settings: InflaterSettings) -> None:
        limit = settings.store.get("large.message.max.bytes", DEFAULT_MAX_BYTES)
        assert isinstance(limit, int)
        share = max(1, settings.held_bytes // (2 * settings.threads))
        # No other format has signatures.
        signing = Signing.of(settings.store) if settings.reference_format == "wideload" else None
        self._settings = settings
        self._inflate = Inflate(limit, FORMATS[settings.reference_format], signing=signing)
        self._probe = replace(self._inflate, max_bytes=min(limit, share))
        self._keyring = keyring_of(settings.store)
        self._store = open_store(settings.store)
        self._window = Window(settings.threads, settings.held_bytes)

    def close(self) -> None:
        """Waits for the downloads that are under way, and closes the store."""
        self._window.close()
        self._store.close()

    def inflated(
        self, records: Iterable[tuple[Place, RecordLike, Problem | None]], where: Callable[[Place], str]
    ) -> Iterator[Inflated[Place]]:
        """Every record, in order. Downloads continue while the caller is at work.

        Args:
            records: each with a place of the caller's. Chunks, and records that have a problem already, are left alone.
            where: a place for people.

        Raises:
            JobFailedError: the store failed, whatever the record; it has tried for as long as it may.
        """
        entries = self._window.in_order(self._task(where, *each) for each in records)
        return map(partial(self._finished, where), entries)  # no name keeps a record that was given out

    def _task(
        self, where: Callable[[Place], str], place: Place, record: RecordLike, problem: Problem | None
    ) -> Task[_Entry[Place]]:
        held, which, unwrap = len(record.value or b""), "value", self._settings.unwrap
        if problem is not None or is_chunk(record.headers):
            return held, (Inflated(place, record, problem), None), None
        try:
            if unwrap is not None and unwrap.wants(record):
                record = unwrap.unwrap(record)
                held += len(record.value or b"")
            which, own, key, value = "key", record, None, None
            if self._settings.keys and has_large_key(record):
                found = self._inflate.read(Record(record.key, None, record.headers))
                key, own = found.key, Record(record.key, record.value, found.record.headers, record.timestamp)
            which = "value"
            if self._inflate.format.refers(own):
                value = self._inflate.begin(own)
                own = Record(own.key, own.value, value.headers, own.timestamp)
            elif self._inflate.format.wants(own):
                own = self._inflate.format.read_inline(own)
        except RECORD_ERRORS as exc:
            return held, (Inflated(place, record, Problem.of(which, exc)), None), None
        if key is None and value is None:
            return held, (Inflated(place, own), None), None
        referring = Referring(own, key, value)
        held += sum(map(self._bytes, referring.references))
        return held, (Inflated(place, record), referring), partial(self._restored, where, self._probe)

    def _bytes(self, reference: Reference) -> int:
        size = self._probe.max_bytes if reference.size is None else reference.size
        return size if reference.codec is None and reference.encryption is None else 2 * size

    def _finished(self, where: Callable[[Place], str], entry: _Entry[Place]) -> Inflated[Place]:
        # All others are within the limit, and this may be the one record that goes beyond it.
        return entry[0] if entry[1] is None else self._restored(where, self._inflate, entry)[0]

    # --- on threads ---------------------------------------------------------------------------------------------------

    def _restored(self, where: Callable[[Place], str], unsized: Inflate, entry: _Entry[Place]) -> _Entry[Place]:
        """The record with its payloads; the entry as it is if a payload is larger than the probe allows."""
        found, referring = entry
        assert referring is not None
        own, which = referring.record, "key"
        key, value = own.key, own.value
        try:
            if referring.key is not None:
                key = self._payload(referring.key, unsized)
            which = "value"
            if referring.value is not None:
                value = self._payload(referring.value.reference, unsized)
        except RECORD_ERRORS as exc:
            if isinstance(exc, PayloadTooLargeError) and unsized is self._probe:
                return entry
            return replace(found, problem=Problem.of(which, exc)), None
        except PayloadStoreError as exc:
            raise JobFailedError(f"{where(found.place)}: the payload store failed: {exc}") from exc
        return replace(found, record=Record(key, value, own.headers, own.timestamp)), None

    def _payload(self, reference: Reference, unsized: Inflate) -> bytes:
        inflate = unsized if reference.size is None else self._inflate
        return inflate.restore(reference, download(self._store, reference, inflate, self._keyring))
