"""The format's test vectors, against the serializers and a store of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from stores.filesystem import FilesystemStore
from stores.root import Root
from stores.store import PayloadStore
from tests.vectors.case import Case, cases
from transforms.errors import SerializationError
from transforms.record import Header, Record

CASES = cases()


def config(case: Case, folder: Path) -> dict[str, object]:
    """The configuration that the case asks for, with its payloads in `folder`."""
    keys = [f"{name}:{key}" for name, key in case.keys.items()]
    return {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(folder),
        "filesystem.fsync": False,
        "large.message.threshold.bytes": case.threshold,
        "large.message.compression.type": case.compression,
        "large.message.max.bytes": case.max_bytes,
        "large.message.id.generator": "sha256",
        **({"large.message.encryption.previous.keys": keys} if keys else {}),
    }


def settle(store: PayloadStore, case: Case) -> None:
    """Lets the store call its folder by the root of the case, since paths are literal in the vectors."""
    assert isinstance(store, FilesystemStore)
    store.root = Root(case.root)


def files(folder: Path) -> dict[str, bytes]:
    """What is in the store: path below the root, and bytes."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def data_of(record: Record, case: Case) -> bytes | None:
    """The field that the case is about."""
    return record.key if case.part == "key" else record.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_vector_is_deserialized(case: Case, tmp_path: Path) -> None:
    """Each record comes back with the headers that it had, or the error is what `__cause__` says."""
    deserializer = LargeMessageDeserializer(config(case, tmp_path), is_key=case.part == "key")
    settle(deserializer.store, case)
    if case.payload is not None:
        path, stored = case.payload
        file = tmp_path / path.removeprefix(case.root)
        file.parent.mkdir()
        file.write_bytes(stored)
    headers: list[Header] = list(case.wire.headers)
    data = data_of(case.wire, case)
    if case.error is not None:
        with pytest.raises(SerializationError) as raised:
            deserializer.deserialize("orders", headers, data)
        assert type(raised.value.__cause__).__name__ == case.error
        assert not raised.value.retriable
        assert tuple(headers) == case.wire.headers
        return
    assert case.plain is not None
    assert deserializer.deserialize("orders", headers, data) == data_of(case.plain, case)
    assert tuple(headers) == case.plain.headers


@pytest.mark.parametrize("case", [case for case in CASES if case.write], ids=lambda case: case.name)
def test_vector_is_serialized(case: Case, tmp_path: Path) -> None:
    """Each record is written as the vector has it, and the store holds its payload and nothing else."""
    assert case.plain is not None
    serializer = LargeMessageSerializer(config(case, tmp_path), is_key=case.part == "key")
    settle(serializer.store, case)
    headers: list[Header] = list(case.plain.headers)
    written = serializer.serialize(case.topic, headers, data_of(case.plain, case))
    assert tuple(headers) == case.wire.headers
    found = files(tmp_path)
    if case.write == "exact":
        assert written == data_of(case.wire, case)
        assert found == ({case.payload[0].removeprefix(case.root): case.payload[1]} if case.payload else {})
        return
    ((name, stored),) = found.items()
    assert name == f"{case.topic}/{hashlib.sha256(stored).hexdigest()}"
    assert written == f"{case.root}{name}".encode()
    deserializer = LargeMessageDeserializer(config(case, tmp_path))
    settle(deserializer.store, case)
    assert deserializer.deserialize("orders", headers, written) == data_of(case.plain, case)
