"""Payloads on disk and records that refer to them, for tests of sweeps as commands."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.integration.topics import send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

DAY = 86_400


def put(root: Path, topic: str, names: Sequence[str]) -> list[str]:
    """Files as the store has them, a day old; their paths."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    then, first = time.time() - DAY, root / topic / digest(names[0])
    first.write_bytes(b"payload")
    os.utime(first, (then, then))
    for name in names[1:]:
        os.link(first, root / topic / digest(name))
    return [f"file://{root}/{topic}/{digest(name)}" for name in names]


def digest(name: str) -> str:
    """What a payload is called; a name that is as long as one stays."""
    return name if len(name) == 64 else hashlib.sha256(name.encode()).hexdigest()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def digests(*names: str) -> list[str]:
    return sorted(map(digest, names))


def refer(broker: str, topic: str, paths: Sequence[str]) -> None:
    """A record for each path."""
    records = [WIDELOAD.write_reference(Record(b"k", b"?"), Reference(path)) for path in paths]
    send(broker, topic, [(0, r.key, r.value, list(r.headers), 1) for r in records])


def options(broker: str, root: Path, topic: str, *more: str) -> list[str]:
    return [
        *("--bootstrap-servers", broker, "--topic", topic, "--store", f"filesystem.root={root}"),
        *("--store", "large.message.payload.store.class=filesystem", *more),
    ]
