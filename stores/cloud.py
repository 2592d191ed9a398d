"""What the stores for Google's and Microsoft's clouds share. obstore sends the requests (`stores.cloud_client`)."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

from stores.bucket import PROBE, BucketStore
from stores.keys import Key, Value
from stores.store import PayloadInfo, Removal
from transforms.errors import PayloadNotFoundError, PayloadStoreError

if TYPE_CHECKING:
    from stores.cloud_client import CloudClient, Found, Times

_GROUP = 250


def client_keys(start: str, whole: str) -> Sequence[Key]:
    """The keys for the place of payloads and for the times of requests, which both stores have.

    Args:
        start: the first word of the keys.
        whole: the form of a path, for the documentation.
    """
    return (
        Key(
            f"{start}.prefix",
            "string",
            f"The prefix of all object names, without a slash at either end: `{whole}`.",
            default="",
        ),
        Key(
            f"{start}.connection.timeout.ms",
            "int",
            "The maximum time in milliseconds to wait for a connection, and, on average, for the server to accept "
            "1 MiB of a payload.",
            default=5_000,
            minimum=1,
        ),
        Key(
            f"{start}.read.timeout.ms",
            "int",
            "The maximum time in milliseconds to wait for the next bytes of a response.",
            default=9_000,
            minimum=1,
        ),
        Key(
            f"{start}.retry.attempts",
            "int",
            "The maximum number of attempts of a request, including the first. The pause before the second attempt is "
            "up to 1 second, and doubles with each attempt, up to 20 seconds.",
            default=3,
            minimum=1,
        ),
        Key(
            f"{start}.max.connections",
            "int",
            "How many idle connections are kept open. Connections beyond this number are closed after use.",
            default=16,
            minimum=1,
        ),
    )


class CloudStore(BucketStore):
    """One client for all threads, with a pool of connections. No credentials are looked up when it is opened."""

    def connect(self, values: Mapping[str, Value | None]) -> None:
        """See `BucketStore.connect`. The search for credentials may ask the instance's metadata service."""
        self._client = self.client(values)

    @abstractmethod
    def client(self, values: Mapping[str, Value | None]) -> CloudClient:
        """Makes the client; see `connect`."""

    @abstractmethod
    def delete_found(self, found: Found, path: str) -> bool:
        """Deletes an object if it is still the one that was found, not one that has replaced it.

        Returns:
            Whether the service keeps what was deleted as an old version.

        Raises:
            PayloadNotFoundError: it is gone.
            ChangedError: another object has its name.
            PayloadStoreError: it could not be done.
        """

    @abstractmethod
    def delete_key(self, key: str, path: str) -> None:
        """Deletes the object of this name, whichever it is; may raise PayloadNotFoundError if there is none."""

    def times(self, values: Mapping[str, Value | None]) -> Times:
        """The configured timeouts of requests."""
        from stores.cloud_client import Times

        connect_ms, read_ms, attempts = (
            cast("int", values[f"{self.START}.{name}"])
            for name in ("connection.timeout.ms", "read.timeout.ms", "retry.attempts")
        )
        return Times(self.timeout_ms, connect_ms, read_ms, attempts)

    def put_object(self, path: str, data: bytes) -> None:
        """See `BucketStore.put_object`."""
        self._client.put(self._key(path), data, path)

    def get(self, full_path: str, max_bytes: int) -> bytes:
        self.root.check_readable(full_path)
        return self._client.get(self._key(full_path), max_bytes, full_path)

    def stat(self, full_path: str) -> PayloadInfo:
        self.root.check_readable(full_path)
        return self._info(self._client.head(self._key(full_path), full_path))

    def delete(self, full_path: str) -> None:
        """See `Delete.delete`. A bucket with versions, or with soft delete, keeps what it had."""
        self.root.split(full_path)
        with contextlib.suppress(PayloadNotFoundError):
            self.delete_key(self._key(full_path), full_path)

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """See `DeleteUnchanged.delete_unchanged`. Each is deleted on the condition that it is what was looked at."""
        waiting = iter(payloads)
        with ThreadPoolExecutor(self._threads, thread_name_prefix=f"wideload-{self.START}-removal") as executor:
            while some := list(itertools.islice(waiting, _GROUP)):
                yield from list(executor.map(self._remove, [self._checked(payload) for payload in some]))

    def _remove(self, payload: PayloadInfo) -> Removal:
        from stores.cloud_client import ChangedError

        try:
            found = self._client.head(self._key(payload.path), payload.path)
            if found.modified != payload.modified.replace(microsecond=0):
                return Removal(payload, "changed")
            return Removal(payload, "versioned" if self.delete_found(found, payload.path) else "deleted")
        except PayloadNotFoundError:
            return Removal(payload, "gone")
        except ChangedError:
            return Removal(payload, "changed")
        except PayloadStoreError as exc:
            return Removal(payload, "failed", str(exc))

    def found_below(self, prefix: str) -> Iterator[Iterable[PayloadInfo]]:
        """See `BucketStore.found_below`."""
        for page in self.pages_below(prefix):
            yield map(self._info, page)

    @abstractmethod
    def pages_below(self, prefix: str) -> Iterator[Sequence[Found]]:
        """As `found_below`, with all that the service says."""

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        """See `Check.check`: puts a probe and removes it, or gets a payload that never exists.

        If the caller may not remove the probe, it stays. Each probe has a different name: Google accepts about one put
        of a name per second, and Azure may refuse to replace a blob.
        """
        if not writing:
            absent = self.root.probe(topic)
            with contextlib.suppress(PayloadNotFoundError):
                self._client.get(self._key(absent), 0, absent)
            return
        path = self.root.probe(topic, f"-{uuid.uuid4().hex}")
        self._client.put(self._key(path), PROBE, path)
        with contextlib.suppress(PayloadStoreError):
            self.delete_key(self._key(path), path)

    def close(self) -> None:
        """See `PayloadStore.close`. obstore closes connections when they have been idle for a time."""

    def _info(self, found: Found) -> PayloadInfo:
        return PayloadInfo(f"{self._container_uri}{found.key}", found.size, found.modified)
