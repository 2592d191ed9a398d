"""The worker with encrypted payloads, against a real broker."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from stores.encryption import keyring_of
from stores.payload import publish
from stores.registry import open_store
from tests.integration.topics import Found, Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeWay, Way, reason_of
from tests.integration.worker_process import WorkerProcess, until
from tests.kms_server import KmsServer, refusal
from transforms.offload import Offload
from transforms.reference import VALUE

KEY, NEW, OTHER = "1f" * 32, "2e" * 32, "3d" * 32
ENCRYPTED = {"large.message.encryption.type": "aes-256-gcm"}


def keys(key: str, name: str) -> dict[str, object]:
    """What a reader needs."""
    return {"large.message.encryption.key.secret": key, "large.message.encryption.key.id": name}


def file_of(record: Found) -> Path:
    return Path((record.value or b"").decode().removeprefix("file://"))


def written(way: Way, key: bytes, secret: str, name: str) -> Sent:
    """A record with a reference to a payload that another writer has put into the store."""
    config = ENCRYPTED | keys(secret, name)
    keyring = keyring_of(config)
    with closing(open_store(way.store)) as store:
        value = os.urandom(THRESHOLD + 1)
        reference = publish(store, way.orders, Offload().payload(value), by_digest=True, keyring=keyring)
    return 0, key, reference.value(), list(reference.headers()), 5


def offload(way: Way, records: list[Sent], count: int, **more: object) -> dict[bytes | None, Found]:
    """Lets a worker offload records; gives the references by key, once there are `count`."""
    send(way.broker, way.raw, records)
    with WorkerProcess(way.folder, way.settings(), way.offload(**more)) as worker:
        until(lambda: end_offsets(way.broker, way.orders) == {0: count}, "all are offloaded")
        assert worker.terminate() == 0
    return {record.key: record for record in read_all(way.broker, way.orders)[0]}


def test_worker_encrypts(make_way: MakeWay) -> None:
    """Values come out as they went in, by two keys in a rotation; the store shows neither them nor which are equal."""
    way = make_way(partitions=1, large=3_000_000)
    value = b"top secret, " * 250_000
    own = [("trace", b"1"), ("trace", None)]
    old = ENCRYPTED | keys(KEY, "orders-1")
    new = ENCRYPTED | keys(NEW, "orders-2") | {"large.message.encryption.previous.keys": [f"orders-1:{KEY}"]}
    first: list[Sent] = [(0, b"a", value, own, 5), (0, b"b", value, [], 6), (0, b"small", b"top secret", [], 7)]
    offload(way, first, 3, **old)
    references = offload(way, [(0, b"c", value, [], 8)], 4, **new, **{"large.message.compression.type": "zstd"})
    files = [file_of(references[key]) for key in (b"a", b"b", b"c")]
    assert len(set(files)) == 3
    assert all(b"top secret" not in file.read_bytes() for file in files)
    assert [file.stat().st_size == len(value) + 16 for file in files] == [True, True, False]
    reader = keys(NEW, "orders-2") | {"large.message.encryption.previous.keys": [f"orders-1:{KEY}"]}
    with WorkerProcess(way.folder, way.settings(), way.inflate(**reader)) as worker:
        until(lambda: way.arrived(4), "all are inflated")
        assert worker.terminate() == 0
        assert not any(key in worker.log.read_text() for key in (KEY, NEW))
    found = [(r.key, r.value, list(r.headers), r.timestamp) for r in read_all(way.broker, way.inflated)[0]]
    assert found == [(k, v, h, t) for _, k, v, h, t in [*first, (0, b"c", value, [], 8)]]


def test_worker_refuses_what_was_changed(make_way: MakeWay) -> None:
    """Each attack on a payload or its reference ends in a dead letter with its coordinates; the others pass."""
    way = make_way(partitions=1)
    writer = ENCRYPTED | keys(KEY, "orders-1")
    names = [b"good", b"byte", b"exchanged", b"stripped", b"moved"]
    values = {key: os.urandom(THRESHOLD + 1) for key in names}
    references = offload(way, [(0, key, values[key], [], 5) for key in names], 5, **writer)
    others = [written(way, b"unknown", NEW, "orders-2"), written(way, b"wrong", OTHER, "orders-1")]
    changed = bytearray(file_of(references[b"byte"]).read_bytes())
    changed[100] ^= 1
    file_of(references[b"byte"]).write_bytes(changed)
    file_of(references[b"exchanged"]).write_bytes(file_of(references[b"good"]).read_bytes())
    stripped = [header for header in references[b"stripped"].headers if not header[0].startswith(VALUE.encryption[0])]
    moved = references[b"good"].value  # the headers of another record
    more: list[Sent] = [
        (0, b"headers gone", references[b"stripped"].value, stripped, 6),
        (0, b"place changed", moved, list(references[b"moved"].headers), 6),
        (0, b"copied", references[b"good"].value, list(references[b"good"].headers), 6),
    ]
    send(way.broker, way.orders, [*others, *more])
    with WorkerProcess(way.folder, way.settings(), way.inflate(**keys(KEY, "orders-1"), **way.tolerant)) as worker:
        until(lambda: end_offsets(way.broker, way.dead) == {0: 6}, "six are dead letters")
        until(lambda: end_offsets(way.broker, way.inflated) == {0: 4}, "four have passed")
        assert worker.terminate() == 0
    passed = [(r.key, r.value) for r in read_all(way.broker, way.inflated)[0]]
    # A whole reference can be copied to another record, as with signatures: topic and offset are not part of it.
    assert passed == [(key, values[key]) for key in (b"good", b"stripped", b"moved")] + [(b"copied", values[b"good"])]
    letters = {record.key or b"": record for record in read_all(way.broker, way.dead)[0]}
    said = {
        b"byte": "checksum is ",
        b"exchanged": "checksum is ",
        b"unknown": "it was encrypted with key orders-2, known here are: orders-1",
        b"wrong": "key orders-1 cannot decrypt its data key",
        b"headers gone": "large-message.checksum is 'sha256-stored:",
        b"place changed": "key orders-1 cannot decrypt its data key",
    }
    assert {key: said[key] in reason_of(letter) for key, letter in letters.items()} == dict.fromkeys(said, True)
    assert dict(letters[b"wrong"].headers)["__connect.errors.offset"] == b"6"


def test_worker_with_keys_of_kms(make_way: MakeWay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of AWS KMS encrypt and decrypt; while it is away records wait, as with a store that is away, and go on."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    way = make_way(partitions=1)
    values = {b"%d" % number: os.urandom(THRESHOLD + 1) for number in range(6)}
    records: list[Sent] = [(0, key, value, [], 5) for key, value in values.items()]
    with KmsServer() as kms, way.worker(**kms.config(), **{"errors.retry.delay.max.ms": 100}) as worker:
        send(way.broker, way.raw, records[:3])
        until(lambda: way.arrived(3), "the first have arrived")
        kms.trouble = lambda _: refusal("ThrottlingException", "slow down")
        send(way.broker, way.raw, records[3:])
        until(lambda: "ThrottlingException" in worker.log.read_text(), "the worker is refused")
        assert not way.arrived(4)
        kms.trouble = lambda _: None
        until(lambda: way.arrived(6), "the others have arrived")
        assert worker.terminate() == 0
    assert [(r.key, r.value) for r in read_all(way.broker, way.inflated)[0]] == list(values.items())
    assert {name for name, _ in kms.calls} == {"GenerateDataKey", "Decrypt"}
