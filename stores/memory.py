"""The store for tests: payloads in a dict of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar, cast

from stores.keys import Key, Value
from stores.root import Root, check_object_id
from stores.store import PayloadInfo, Removal, Store
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadTooLargeError

__all__ = ["MemoryStore"]

# All payloads of the process by full path, each with the time of its last publish. Access needs the lock.
_payloads: dict[str, tuple[bytes, datetime]] = {}
_lock = threading.Lock()


class MemoryStore(Store):
    """Paths are `memory://<name>/<topic>/<id>`. Stores of one process with the same name share their payloads."""

    KEYS: ClassVar[Sequence[Key]] = (
        Key(
            "memory.name",
            "string",
            "Stores of one process with the same name share their payloads. 1 to 249 characters of `[a-zA-Z0-9._-]`.",
            default="default",
        ),
    )

    def open(self, values: Mapping[str, Value | None]) -> None:
        name = cast("str", values["memory.name"])
        try:
            self.root = Root(f"memory://{check_object_id(name)}/")
        except ValueError:
            raise ConfigurationError(
                "memory.name", f"found {name!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]"
            ) from None

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        path = self.root.path(topic, object_id)
        payload = bytes(data), datetime.now(UTC)
        with _lock:
            _payloads[path] = payload
        return path

    def get(self, full_path: str, max_bytes: int) -> bytes:
        data, _ = self._find(full_path)
        if len(data) > max_bytes:
            raise PayloadTooLargeError(full_path, len(data), max_bytes)
        return data

    def stat(self, full_path: str) -> PayloadInfo:
        data, modified = self._find(full_path)
        return PayloadInfo(full_path, len(data), modified)

    def delete(self, full_path: str) -> None:
        self.root.split(full_path)
        with _lock:
            _payloads.pop(full_path, None)

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """See `DeleteUnchanged.delete_unchanged`; nothing can come between the look and the removal."""
        for payload in payloads:
            self.root.split(payload.path)
            with _lock:
                found = _payloads.get(payload.path)
                unchanged = found is not None and found[1] == payload.modified
                if unchanged:
                    del _payloads[payload.path]
            yield Removal(payload, "gone" if found is None else "deleted" if unchanged else "changed")

    def topics(self) -> Iterator[str]:
        with _lock:
            found = {self.root.split(path)[0] for path in _payloads if path.startswith(self.root.uri)}
        yield from found

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """See `List.list`; a snapshot, taken at the first step."""
        start = self.root.uri if topic is None else f"{self.root.uri}{check_object_id(topic)}/"
        with _lock:
            found = [(path, *payload) for path, payload in _payloads.items() if path.startswith(start)]
        for path, data, modified in found:
            yield PayloadInfo(path, len(data), modified)

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        """Nothing can be amiss."""

    def close(self) -> None:
        """Payloads stay for the other stores of that name."""

    @classmethod
    def clear(cls) -> None:
        """Forgets the payloads of every name."""
        with _lock:
            _payloads.clear()

    def _find(self, full_path: str) -> tuple[bytes, datetime]:
        self.root.split(full_path)
        with _lock:
            payload = _payloads.get(full_path)
        if payload is None:
            raise PayloadNotFoundError(full_path)
        return payload
