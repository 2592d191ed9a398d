"""A gate for the filesystem store, at one payload, so that a test knows what it interrupts. Shipped to executors.

Next to the root of the store is a directory `gate`. A process that accesses the payload named in its file `closed`
writes a file with its process id there, and waits for the file `open`.
"""

from __future__ import annotations

import os
from threading import Event
from typing import Any

_PAUSE_S = 0.02


def gate(store: Any) -> None:
    """Sets the gate before each read, write and removal of a class that has the methods of `FilesystemStore`."""
    put, get, delete_unchanged = store.put, store.get, store.delete_unchanged

    def passed(self: Any, path: str) -> None:
        folder = self._folder.parent / "gate"
        if path.endswith((folder / "closed").read_text()):
            (folder / f"{os.getpid()}.pid").touch()
            while not (folder / "open").exists():
                Event().wait(_PAUSE_S)

    def gated_put(self: Any, topic: str, object_id: str, data: bytes) -> Any:
        passed(self, object_id)
        return put(self, topic, object_id, data)

    def gated_get(self: Any, full_path: str, max_bytes: int) -> Any:
        passed(self, full_path)
        return get(self, full_path, max_bytes)

    def gated_delete_unchanged(self: Any, payloads: Any) -> Any:
        def passing() -> Any:
            for payload in payloads:
                passed(self, payload.path)
                yield payload

        return delete_unchanged(self, passing())

    store.put, store.get, store.delete_unchanged = gated_put, gated_get, gated_delete_unchanged
