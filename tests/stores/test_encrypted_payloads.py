"""One encrypted payload to the store and back: what is stored, under which name, and what is refused."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from stores.encryption import keyring_of
from stores.memory import MemoryStore
from stores.payload import download, publish
from stores.registry import STORE_CLASS, get, open_store
from stores.store import PayloadStore
from transforms.errors import EncryptionError, PayloadCorruptError, PayloadTooLargeError, WideloadError
from transforms.inflate import Inflate
from transforms.keyring import Keyring
from transforms.offload import Offload
from transforms.reference import Reference

VALUE = b"hello world " * 50
HERE = "tests.stores.test_encrypted_payloads"
KINDS = ["memory sha256", "memory uuid", "filesystem sha256", "filesystem uuid", "own sha256"]


def ring(key: str = "0f", name: str = "new", **more: object) -> Keyring:
    """A keyring that writes."""
    found = keyring_of(
        {
            "large.message.encryption.type": "aes-256-gcm",
            "large.message.encryption.key.secret": key * 32,
            "large.message.encryption.key.id": name,
            **more,
        }
    )
    assert found is not None
    return found


class OwnStore:
    """A user's class with the seed's two methods, and names of its own."""

    payloads: ClassVar[dict[str, bytes]] = {}

    def publish(self, topic: str, data: bytes) -> str:
        """Names a payload by another digest."""
        path = f"own://{topic}/{hashlib.sha1(data).hexdigest()}"  # noqa: S324
        self.payloads[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        """What was published."""
        return self.payloads[full_path]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PayloadStore]:
    """Stores with every way to name a payload."""
    kind, generator = request.param.split()
    config: dict[str, object] = {
        STORE_CLASS: f"{HERE}.OwnStore" if kind == "own" else kind,
        "large.message.id.generator": generator,
        "large.message.max.bytes": len(VALUE),
        "large.message.encryption.previous.keys": ["new:" + "0f" * 32],
    }
    if kind == "memory":
        config["memory.name"] = str(uuid.uuid4())
    if kind == "filesystem":
        config |= {"filesystem.root": str(tmp_path), "filesystem.fsync": False}
    made = open_store(config)
    yield made
    made.close()
    MemoryStore.clear()
    OwnStore.payloads.clear()


def written(store: PayloadStore, keyring: Keyring, value: bytes = VALUE, codec: str | None = None) -> Reference:
    by_digest = getattr(store, "_by_digest", True)
    payload = Offload(codec="zstd" if codec else None).payload(value)
    return publish(store, "orders", payload, by_digest=by_digest, keyring=keyring)


def read(store: PayloadStore, reference: Reference, keyring: Keyring | None) -> bytes:
    inflate = Inflate(len(VALUE))
    return inflate.restore(reference, download(store, reference, inflate, keyring))


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_payload_comes_back(store: PayloadStore, codec: str | None) -> None:
    """A value as long as the limit comes back; the store has other bytes, 16 more than the value or what it became."""
    reference = written(store, ring(), codec=codec)
    assert read(store, reference, ring()) == VALUE
    stored = get(store, reference.path, 1000)
    assert b"hello" not in stored
    assert hashlib.sha256(stored).hexdigest() == reference.checksum
    assert reference.size == len(VALUE)
    assert len(stored) == len(VALUE) + 16 if codec is None else len(stored) < len(VALUE)


def test_publish_again_loses_nothing(store: PayloadStore) -> None:
    """A writer that crashed before its reference was written publishes again, with another data key: both are read.

    The object of the second does not take the place of the first, whose reference may have been written after all.
    """
    first = written(store, ring())
    again = written(store, ring())  # a new process: nothing is left of the first one
    other_key = written(store, ring("f0", "newer"))
    assert len({each.path for each in (first, again, other_key)}) == 3
    reader = ring("f0", "newer", **{"large.message.encryption.previous.keys": ["new:" + "0f" * 32]})
    assert [read(store, each, reader) for each in (first, again, other_key)] == [VALUE] * 3


def test_payload_in_place_of_another_is_refused(store: PayloadStore) -> None:
    """No payload, and no reference, can be put in the place of another, though all have one master key."""
    one, other = written(store, ring(), b"a" * 100), written(store, ring(), b"b" * 100)
    assert one.encryption is not None
    mixed = [
        (replace(one, path=other.path), EncryptionError),
        (replace(one, path=other.path, checksum=other.checksum), EncryptionError),
        (replace(one, encryption=other.encryption), EncryptionError),
        (replace(one, encryption=replace(one.encryption, key_id="newer")), EncryptionError),
    ]
    for reference, kind in mixed:
        with pytest.raises(kind):
            read(store, reference, ring())


class _Unasked:
    """A store that must not be asked."""

    def download(self, full_path: str) -> bytes:
        raise AssertionError(full_path)


def test_key_is_looked_for_first() -> None:
    """Without the key nothing is downloaded; nor with the key for a reference that was changed."""
    memory = open_store({STORE_CLASS: "memory", "memory.name": "first"})
    reference = written(memory, ring())
    unasked: PayloadStore = _Unasked()  # type: ignore[assignment]
    for keyring, changed in ((None, reference), (ring("f0"), reference), (ring(), replace(reference, size=1))):
        with pytest.raises(EncryptionError):
            download(unasked, changed, Inflate(), keyring)
    MemoryStore.clear()


def test_exchanged_object_is_refused(tmp_path: Path) -> None:
    """Who owns the store can put nothing in the place of a payload, neither longer nor as long, and not a plain one."""
    store = open_store({STORE_CLASS: "filesystem", "filesystem.root": str(tmp_path), "filesystem.fsync": False})
    reference, other = written(store, ring()), written(store, ring())
    file, bytes_of_other = (Path(each.path.removeprefix("file://")) for each in (reference, other))
    stored = file.read_bytes()
    forgeries: list[tuple[bytes, type[WideloadError]]] = [
        (bytes_of_other.read_bytes(), PayloadCorruptError),
        (VALUE, PayloadCorruptError),
        (VALUE + bytes(16), PayloadCorruptError),
        (b"", PayloadCorruptError),
        (stored[:-1], PayloadCorruptError),
        (stored + b"x", PayloadTooLargeError),  # it is as long as the limit, so the limit speaks first
    ]
    for forged, kind in forgeries:
        file.write_bytes(forged)
        with pytest.raises((kind, PayloadCorruptError)):
            read(store, reference, ring())
    file.write_bytes(stored)
    assert read(store, reference, ring()) == VALUE


def test_class_of_ones_own_is_not_handed_the_keys() -> None:
    """Keys that encrypt are for serializers and pipelines, not for stores."""
    handed: list[dict[str, object]] = []

    class Curious(OwnStore):
        def configure(self, config: dict[str, object]) -> None:
            handed.append(config)

    open_store({STORE_CLASS: Curious, "large.message.encryption.key.secret": "0f" * 32, "own.key": 1})
    assert handed == [{"own.key": 1}]
