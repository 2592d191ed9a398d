"""A real Faust worker, in a process of its own, and what its agent has written down."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka import SerializingProducer

from app.serializers import LargeMessageSerializer
from app.serializers.confluent import producer_config
from tests.forks import fork
from tests.integration.chunk_records import write as write_records
from tests.integration.client_config import Config
from tests.integration.topics import Found, end_offsets, read_all
from tests.integration.worker_process import until
from transforms.record import Record

_ROOT = Path(__file__).parents[2]
STARTS_S = 40.0
NO_STORE: Config = {"large.message.strategy": "chunk"}


def produce(
    broker: str, store: Config, topic: str, values: list[bytes | None], key: bytes = b"k", partition: int = -1
) -> None:
    """Writes values in order, with another client."""
    large = {"value.serializer": LargeMessageSerializer, "key.serializer": LargeMessageSerializer}
    config = producer_config({"bootstrap.servers": broker, **large, **store})
    with SerializingProducer(config) as producer:
        for value in values:
            producer.produce(topic, value=value, key=key, partition=partition, headers=[("a", b"1"), ("b", b"2")])
        assert producer.flush(STARTS_S) == 0
    config["key.serializer"].close()
    config["value.serializer"].close()


def write(broker: str, topic: str, records: Sequence[Record], partition: int = 0) -> None:
    """Writes records as they are."""
    asyncio.run(write_records(broker, topic, records, partition))


def arrived(broker: str, topic: str, count: int) -> list[Found]:
    """The records of a topic, once there are so many."""
    until(lambda: end_offsets(broker, topic)[0] >= count, f"{count} records arrive", STARTS_S)
    return read_all(broker, topic)[0]


class FaustProcess:
    """`python faust_reader.py worker`, forked; killed when the block ends, whatever happened.

    Args:
        store: the configuration of its schema.
        more: `to` is where events are sent on, or forwarded with `forward`; `twice` a second agent; `slow_s` how long
            the agent takes for an event, with room for two; `on_discarded` is `write` or `raise`; `session_s` and
            `max_poll_s` are times of its group; `keys`, `wrapped`, `on_failure`, `plain_topic`, `table`,
            `transactions` and `on_commit` are switches.
    """

    def __init__(self, folder: Path, broker: str, topic: str, store: Config, **more: object) -> None:
        folder.mkdir(exist_ok=True)
        self.out = folder / "events.jsonl"
        self.log = folder / "faust.log"
        config = {"broker": broker, "topic": topic, "store": store, "out": str(self.out), **more}
        self.environ = {**os.environ, "PYTHONPATH": str(_ROOT), "FAUST_READER": json.dumps(config)}

    def __enter__(self) -> Self:
        script = str(_ROOT / "tests" / "integration" / "faust_reader.py")
        with self.log.open("ab") as log:
            self.process = fork(
                [sys.executable, script, "worker", "-l", "info", "--without-web"],
                environ=self.environ,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if kind is not None:
            print(self.log.read_text())  # noqa: T201  # pytest shows it beside the failure

    def lines(self) -> list[dict[str, Any]]:
        whole, _, _ = (self.out.read_text() if self.out.exists() else "").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def events(self, count: int) -> list[dict[str, Any]]:
        until(lambda: len(self.lines()) >= count or self.process.poll() is not None, f"{count} events", STARTS_S)
        return self.lines()

    def says(self, text: str) -> None:
        until(lambda: text in self.log.read_text(), f"the log says {text!r}", STARTS_S)

    def ends(self) -> int:
        return self.process.wait(STARTS_S)


def digest(value: bytes | None) -> str | None:
    """How the reader writes down a value."""
    return None if value is None else hashlib.sha256(value).hexdigest()
