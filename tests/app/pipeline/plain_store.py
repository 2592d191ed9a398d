"""A store of a user's own."""

from __future__ import annotations


class PlainStore:
    """A user's own store: the seed's two methods, nothing else."""

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {}

    def publish(self, topic: str, data: bytes) -> str:
        path = f"plain://{topic}/{len(self.payloads)}"
        self.payloads[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        return self.payloads[full_path]
