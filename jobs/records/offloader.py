"""References in place of values: several uploads at a time, in order, within a limit of bytes.

This runs on executors. The SHA-256 of a payload is its name. If Spark runs a task again, or twice at a time, it
writes the same objects and makes the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from jobs.driver.failures import JobFailedError
from jobs.records.inflater import DEFAULT_HELD_BYTES, DEFAULT_THREADS
from jobs.records.problems import require_at_least
from jobs.records.window import Task, Window
from stores.encryption import keyring_of
from stores.payload import publish
from stores.registry import open_store
from stores.store import check_topic
from transforms.errors import (
    ConfigurationError,
    MalformedReferenceError,
    PayloadStoreError,
    ReferenceClaimedError,
)
from transforms.offload import Offload
from transforms.record import RecordLike

_GENERATOR = "large.message.id.generator"

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class OffloaderSettings:
    """What a task needs to know; goes to executors.

    Attributes:
        store: the configuration of the store; may hold secrets.
        work: which values become references, and how.
        held_bytes: the most bytes of values that a task holds, or one record if that alone is larger.
        threads: how many payloads are uploaded at a time.
    """

    store: Mapping[str, object] = field(repr=False)
    work: Offload
    held_bytes: int = DEFAULT_HELD_BYTES
    threads: int = DEFAULT_THREADS

    def check(self) -> None:
        """Makes sure that a store can be opened with this. Makes no request.

        Raises:
            ConfigurationError: a property is missing, unknown or wrong.
        """
        require_at_least("threshold_bytes", self.work.threshold_bytes, 0)
        require_at_least("max_bytes", self.held_bytes, 1)
        require_at_least("threads", self.threads, 1)
        if self.store.get(_GENERATOR, "sha256") != "sha256":
            raise ConfigurationError(
                _GENERATOR,
                "must be sha256: Spark may repeat tasks, and each attempt would leave payloads with other names behind",
            )
        open_store(self.store).close()


@dataclass(frozen=True, slots=True)
class Offloaded(Generic[Place]):
    """A record that has been through the offloader.

    Attributes:
        place: what the caller handed in with the record.
        record: with a reference in place of its value, if that was large.
        payload_bytes: how many bytes the value had; None if it was not published.
    """

    place: Place
    record: RecordLike
    payload_bytes: int | None = None


class Offloader:
    """Offloads the records of one task. Not thread-safe.

    Args:
        settings: what to do.

    Raises:
        ConfigurationError: see `OffloaderSettings.check`.
    """

    def __init__(self, settings: OffloaderSettings) -> None:
        self._work = settings.work
        self._keyring = keyring_of(settings.store)
        self._encrypts = self._keyring is not None and self._keyring.writes
        self._store = open_store(settings.store)
        self._window = Window(settings.threads, settings.held_bytes)

    def close(self) -> None:
        """Waits for the uploads that are under way, and closes the store."""
        self._window.close()
        self._store.close()

    def offloaded(
        self, records: Iterable[tuple[Place, RecordLike, str | None]], where: Callable[[Place], str]
    ) -> Iterator[Offloaded[Place]]:
        """Every record, in order. Uploads continue while the caller is at work.

        Args:
            records: each with a place of the caller's, and the topic that it goes to; None to leave it alone.
            where: a place for people.

        Raises:
            JobFailedError: the store failed, or the record has the headers of a reference and must not.
        """
        return self._window.in_order(self._task(where, *each) for each in records)

    def _task(
        self, where: Callable[[Place], str], place: Place, record: RecordLike, topic: str | None
    ) -> Task[Offloaded[Place]]:
        held = len(record.value or b"")
        if topic is None or not self._work.wants(record):
            return held, Offloaded(place, record if topic is None else self._work.keep(record)), None
        held *= 1 + int(self._work.codec is not None) + int(self._encrypts)
        return held, Offloaded(place, record), partial(self._published, where, topic)

    def _published(self, where: Callable[[Place], str], topic: str, found: Offloaded[Place]) -> Offloaded[Place]:
        value = found.record.value or b""
        try:
            self._work.check(found.record)
            payload = self._work.payload(value, hashed=not self._encrypts)
            reference = publish(self._store, check_topic(topic), payload, by_digest=True, keyring=self._keyring)
            return Offloaded(found.place, self._work.refer(found.record, reference), payload.size)
        except ReferenceClaimedError as exc:
            raise JobFailedError(f"{where(found.place)}: {exc}") from exc
        except (PayloadStoreError, MalformedReferenceError, ConfigurationError) as exc:
            reason = f"a value of {len(value):,} bytes cannot be stored: {exc}"
            raise JobFailedError(f"{where(found.place)}: {reason}") from exc
