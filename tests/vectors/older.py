"""What an earlier version wrote: `older.json`, read by `tests/transforms/test_older_vectors.py`.

    PYTHONPATH=DIRECTORY python tests/vectors/older.py COMMIT > tests/vectors/older.json

DIRECTORY has the code of that commit: `git archive COMMIT app transforms stores wideload | tar -x -C DIRECTORY`. The
file is not made again for a change of the code: after a release, add a file written by that release.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from transforms.chunk import Chunking
from transforms.commit_metadata import note
from transforms.control_record import Restart, TargetStateRequest, record_of
from transforms.record import Record
from wideload import LargeMessageSerializer

VALUE = b"".join(b"%d a value of an earlier version, " % number for number in range(200))
KEYS = {"signing": "00ff" * 16, "encryption": "0ff0" * 16}
SIGNED = {"large.message.signing.key": KEYS["signing"]}
ENCRYPTED = {
    "large.message.encryption.type": "aes-256-gcm",
    "large.message.encryption.key.id": "first",
    "large.message.encryption.key.secret": KEYS["encryption"],
}
WRITERS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    **{codec: {"large.message.compression.type": codec} for codec in ("gzip", "snappy", "lz4", "zstd")},
    "signed": SIGNED,
    "encrypted": ENCRYPTED,
    "signed, encrypted, zstd": {**SIGNED, **ENCRYPTED, "large.message.compression.type": "zstd"},
    "bakdata, in headers": {"reference.format": "bakdata-headers"},
    "bakdata, with a flag": {"reference.format": "bakdata-flag"},
}


def text(data: bytes | None) -> str | None:
    """Bytes in JSON."""
    return None if data is None else base64.b64encode(data).decode()


def pairs(headers: Iterable[tuple[str, bytes | None]]) -> list[list[str | None]]:
    """Headers in JSON."""
    return [[name, text(value)] for name, value in headers]


class Payloads:
    """A store in memory, whose paths are the same wherever it runs."""

    def configure(self, _: Mapping[str, object]) -> None:
        """It has no properties."""
        self.found: dict[str, bytes] = {}

    def publish(self, topic: str, data: bytes) -> str:
        """Stores a payload."""
        path = f"payloads://{topic}/{hashlib.sha256(data).hexdigest()}"
        self.found[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        """A payload."""
        return self.found[full_path]


def reference(name: str, keys: Mapping[str, object], *, is_key: bool = False) -> dict[str, Any]:
    """A reference, and the object in the store."""
    store: list[Payloads] = []

    class Kept(Payloads):
        def __init__(self) -> None:
            store.append(self)

    config = {"large.message.payload.store.class": Kept, "large.message.threshold.bytes": 1_000, **keys}
    serializer = LargeMessageSerializer(config, is_key=is_key)
    headers: list[tuple[str, bytes | None]] = [("trace", b"1")]
    written = serializer.serialize("orders", headers, VALUE)
    serializer.close()
    ((path, payload),) = store[0].found.items()
    return {
        "name": name,
        "is_key": is_key,
        "config": keys,
        "reference": text(written),
        "headers": pairs(headers),
        "path": path,
        "payload": text(payload),
    }


def requests() -> list[TargetStateRequest | Restart]:
    """Requests to the pipelines of a group."""
    started, paused, stopped = (
        TargetStateRequest("orders", "STARTED", "7f"),
        TargetStateRequest("orders", "PAUSED", "80"),
        TargetStateRequest("orders", "STOPPED"),
    )
    return [started, paused, stopped, Restart("orders", only_failed=True, id="8")]


def main(commit: str) -> None:
    """Prints the document."""
    chunks = Chunking(1_000).split(Record(b"k", VALUE, (("trace", b"1"),), 1_700_000_000_000), "a" * 36)
    ids = ["a" * 22, "-_" * 11]
    document = {
        "commit": commit,
        "value": text(VALUE),
        "references": [
            *(reference(name, keys) for name, keys in WRITERS.items()),
            reference("key", {}, is_key=True),
            reference("key, signed", SIGNED, is_key=True),
        ],
        "chunks": [[text(each.key), text(each.value), pairs(each.headers)] for each in chunks],
        "commits": [[note(5, 11, ()), 11, []], [note(5, 2**63 - 1, ids), 2**63 - 1, ids]],
        "control": [[*map(text, record_of(each))] for each in requests()],
    }
    print(json.dumps(document, indent=1))  # noqa: T201  # what the shell redirects


if __name__ == "__main__":
    main(sys.argv[1])
