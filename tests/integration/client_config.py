"""For the tests of clients: their configuration, their store's, and a worker that reads and writes as they do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from tests.faults.proxy import FaultProxy
from tests.integration.client_stores import GatedStore
from tests.integration.worker_process import WorkerProcess
from tests.s3_server import S3Server

THRESHOLD = 1_000
LARGE = b"x" * 5_000
MIXED: list[tuple[object, str | None]] = [
    ({"n": 1}, "small"),
    ({"n": 2, "x": "x" * 5_000}, "large"),
    (None, "tombstone"),
    ({"n": 3}, "k" * 5_000),
    ({"n": 4, "x": "x" * 3_000_000}, "k" * 5_000),
    ({"n": 5}, None),
]
"""Values and keys: the large ones are over the threshold, and two of the keys."""

Config = dict[str, Any]

LIMIT = 20_000
SMALL_TOPIC: Config = {"max.message.bytes": LIMIT}
"""What the larger values of many tests do not fit into."""

ON_GATE: Config = {"large.message.payload.store.class": GatedStore}
REFERENCES: Config = {"value.deserializer": LargeMessageDeserializer, **ON_GATE}
"""Of a consumer that restores them from that store."""


def to_json(value: object) -> bytes:
    """As applications write it."""
    return json.dumps(value).encode()


def on_s3(server: S3Server) -> Config:
    """The keys of a store on a server; the times allow for a machine that has much else to do."""
    return {
        "large.message.payload.store.class": "s3",
        "large.message.store.timeout.ms": 20_000,
        "large.message.threshold.bytes": THRESHOLD,
        "s3.retry.attempts": 1,
        "s3.connection.timeout.ms": 2_000,
        "s3.read.timeout.ms": 10_000,
        **server.config("clients"),
    }


def through(proxy: FaultProxy, server: S3Server) -> Config:
    """The same behind a proxy, which may have the server down."""
    return on_s3(replace(server, endpoint=proxy.endpoint))


def producing(broker: str, store: Config, **more: Any) -> Config:
    """The configuration of a producer."""
    return {
        "bootstrap.servers": broker,
        "value.serializer": LargeMessageSerializer,
        "large.message.threshold.bytes": THRESHOLD,
        **store,
        **more,
    }


def consuming(broker: str, store: Config, **more: Any) -> Config:
    """The configuration of a consumer that reads from the beginning."""
    return {
        "bootstrap.servers": broker,
        "value.deserializer": LargeMessageDeserializer,
        "auto.offset.reset": "earliest",
        **store,
        **more,
    }


def worker_both_ways(
    folder: Path, broker: str, store: Config, *, offload: tuple[str, str], inflate: tuple[str, str]
) -> WorkerProcess:
    """A worker that offloads from one topic to another, and inflates from one to another."""
    pipelines: dict[str, dict[str, object]] = {
        name: {
            "topics": [source],
            "output.topic": sink,
            "transforms": [name],
            "group.id": f"{source}-{name}",  # a group of its own: another worker's members would take partitions
            **store,
        }
        for name, (source, sink) in (("offload", offload), ("inflate", inflate))
    }
    # No short session: nobody is killed here, and a worker that was thought dead would write some records twice.
    return WorkerProcess(folder, {"bootstrap.servers": broker}, pipelines)
