"""Payloads on disk and records that refer to them, for tests of audits and sweeps; what retention and users do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.integration.topics import send
from transforms.formats import FORMATS, FormatName
from transforms.record import Header, Record
from transforms.reference import Reference

DAY = 86_400


def filesystem(root: Path) -> dict[str, object]:
    """The keys of a store in a folder."""
    return {"large.message.payload.store.class": "filesystem", "filesystem.root": str(root), "filesystem.fsync": False}


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


def referring(path: str, key: bytes | None = b"k", *own: Header, name: FormatName = "wideload") -> Record:
    """A record whose value is elsewhere."""
    return FORMATS[name].write_reference(Record(key, b"?", own), Reference(path))


def refer(broker: str, topic: str, paths: Iterable[str]) -> None:
    """A record for each path."""
    write(broker, topic, *map(referring, paths))


def write(broker: str, topic: str, *records: Record, partition: int = 0, at_ms: int | None = None) -> None:
    """Writes records, all of one time or each of its own."""
    times = [max(r.timestamp, 1) if at_ms is None else at_ms for r in records]
    rows = zip(records, times, strict=True)
    send(broker, topic, [(partition, r.key, r.value, list(r.headers), at) for r, at in rows])


def write_aborted(broker: str, topic: str, *records: Record, partition: int = 0) -> None:
    """Writes records in a transaction that is then aborted."""

    async def abort() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{topic}-aborts") as producer:
            await producer.begin_transaction()
            for r in records:
                await producer.send_and_wait(topic, r.value, r.key, partition, 1, list(r.headers))
            await producer.abort_transaction()

    asyncio.run(abort())


def delete_records(broker: str, topic: str, before: int) -> None:
    """What retention does, at once: partition 0 begins at this offset."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})
        finally:
            await admin.close()

    asyncio.run(delete())


def options(broker: str, root: Path, topic: str, *more: str) -> list[str]:
    return [
        *("--bootstrap-servers", broker, "--topic", topic, "--store", f"filesystem.root={root}"),
        *("--store", "large.message.payload.store.class=filesystem", *more),
    ]
