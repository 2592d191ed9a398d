"""A store that a test takes down and up again, from outside the worker's process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from transforms.errors import PayloadStoreError

__all__ = ["SwitchedStore"]


class SwitchedStore:
    """Payloads in a folder, `switched.root`; down while there is a file `down` in it, silent while there is `hang`."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Takes the folder."""
        self._root = Path(str(config["switched.root"]))

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        self._check()
        name = f"{topic}-{uuid.uuid4()}"
        (self._root / name).write_bytes(data)
        return f"switched://{name}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        self._check()
        return (self._root / full_path.removeprefix("switched://")).read_bytes()

    def _check(self) -> None:
        while (self._root / "hang").exists():
            time.sleep(0.05)
        if (self._root / "down").exists():
            raise PayloadStoreError("the store is switched off", retriable=True)
