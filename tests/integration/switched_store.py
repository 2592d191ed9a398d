"""A store that a test takes down and up again, from outside the worker's process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from transforms.errors import PayloadStoreError

STUCK = b"stuck"
"""What the payloads begin with that are stuck."""


class SwitchedStore:
    """Payloads in a folder, `switched.root`; down while there is a file `down` in it, silent while there is `hang`.

    While there is a file `publish` or `download`, so it is to that call for payloads that begin with `STUCK`.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """Takes the folder."""
        self._root = Path(str(config["switched.root"]))

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        self._check("publish", data)
        name = f"{topic}-{uuid.uuid4()}"
        (self._root / name).write_bytes(data)
        return f"switched://{name}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        data = (self._root / full_path.removeprefix("switched://")).read_bytes()
        self._check("download", data)
        return data

    def _check(self, call: str, data: bytes) -> None:
        while (self._root / "hang").exists() or (data.startswith(STUCK) and (self._root / call).exists()):
            time.sleep(0.05)
        if (self._root / "down").exists():
            raise PayloadStoreError("the store is switched off", retriable=True)
