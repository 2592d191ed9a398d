"""Stores by name, and a user's own class."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from stores.filesystem import FilesystemStore
from stores.memory import MemoryStore
from stores.payload import publish
from stores.registry import STORE_CLASS, STORE_NAMES, get, open_store, put, store_keys
from stores.s3 import S3Store
from stores.store import Check, Delete, Get, List, PayloadInfo, Put, Stat, Store
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
)
from transforms.offload import Offload

HERE = __name__


class SeedStore:
    """The seed's interface and not a method more: `publish` and `download`."""

    payloads: ClassVar[dict[str, bytes]] = {}

    def publish(self, topic: str, data: bytes) -> str:
        """Stores under a name of its own."""
        path = f"seed:{topic}:{len(self.payloads)}"
        self.payloads[path] = data
        return path

    def download(self, full_path: str) -> bytes:
        """Raises KeyError for what is not there."""
        return self.payloads[full_path]

    def get(self, name: str, default: object = None) -> object:
        """No `Get`, though it is called so."""
        return default


class FullStore(SeedStore, Put, Get, Stat, Delete, List, Check):
    """All that a store may offer, said by inheriting it."""

    config: ClassVar[Mapping[str, object]] = {}
    closed: ClassVar[list[bool]] = []

    def configure(self, config: Mapping[str, object]) -> None:
        """Keeps what it is given."""
        type(self).config = config

    def id(self, data: bytes) -> str:
        """A name by length."""
        return f"by-length-{len(data)}"

    def close(self) -> None:
        """Notes it."""
        self.closed.append(True)

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """Stores under the name given."""
        self.payloads[f"full:{topic}:{object_id}"] = data
        return f"full:{topic}:{object_id}"

    def get(self, full_path: str, max_bytes: int) -> bytes:  # type: ignore[override]  # another `get` than SeedStore's
        """Bounded."""
        if len(self.payloads[full_path]) > max_bytes:
            raise PayloadTooLargeError(full_path, len(self.payloads[full_path]), max_bytes)
        return self.payloads[full_path]

    def stat(self, full_path: str) -> PayloadInfo:
        """Made in 2020."""
        return PayloadInfo(full_path, len(self.payloads[full_path]), datetime(2020, 1, 1, tzinfo=UTC))

    def delete(self, full_path: str) -> None:
        """Removes."""
        self.payloads.pop(full_path, None)

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """Lists one, and then breaks."""
        yield PayloadInfo(f"full:{topic}:1", 1, datetime(2020, 1, 1, tzinfo=UTC))
        raise OSError("the listing broke")

    def check(self, *, writing: bool = True) -> None:
        """Only a reader may use it."""
        if writing:
            raise RuntimeError("not for writers")


class Listing(SeedStore):
    """Lists a key that begins as ours do."""

    KEYS: ClassVar[Sequence[str]] = ["large.message.own"]


class RaisingStore(SeedStore):
    """Raises what it is told."""

    error: ClassVar[Exception] = Exception()

    def publish(self, topic: str, data: bytes) -> str:
        """Raises."""
        raise self.error

    def download(self, full_path: str) -> bytes:
        """Raises."""
        raise self.error


class WronglyTypedStore(SeedStore):
    """Returns what it must not."""

    def publish(self, topic: str, data: bytes) -> str:
        """No path."""
        return None  # type: ignore[return-value]  # on purpose

    def download(self, full_path: str) -> bytes:
        """Text."""
        return "text"  # type: ignore[return-value]  # on purpose


class NeedsArguments(SeedStore):
    """Cannot be made by its name alone."""

    def __init__(self, bucket: str) -> None:
        """Wants a bucket."""


class RefusesConfiguration(SeedStore):
    """Fails when it is configured."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Raises."""
        raise KeyError("my.key")


class OnlyPublish:
    """Half a store."""

    def publish(self, topic: str, data: bytes) -> str:
        """Goes nowhere."""
        return topic


NOT_A_CLASS = SeedStore()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({STORE_CLASS: "memory"}, MemoryStore),
        ({STORE_CLASS: "filesystem", "filesystem.root": "payloads"}, FilesystemStore),
        ({STORE_CLASS: "s3", "s3.bucket": "payloads", "s3.access.key": "a", "s3.secret.key": "s"}, S3Store),
    ],
)
def test_a_built_in_store_opens_by_its_short_name(config: dict[str, object], kind: type[Store]) -> None:
    """The class is taken out, and the rest configures the store."""
    store = open_store(config)
    assert type(store) is kind
    assert STORE_CLASS in config
    store.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("s3.secret.key", "${env:PAYLOADS_SECRET}"),
        ("s3.endpoint", "http://${env:HOST}:9000"),
        ("large.message.signing.key", "${file:/run/secrets/the-key-of-all-references}"),
        ("large.message.signing.previous.keys", ["${file:/run/secrets/the-key-of-all-references}"]),
    ],
)
def test_a_placeholder_that_nobody_fills_in_is_refused(key: str, value: object) -> None:
    """In the configuration of a program, `${env:NAME}` would be a key of that very text."""
    config = {STORE_CLASS: "s3", "s3.bucket": "payloads", "s3.access.key": "a", "s3.secret.key": "s", key: value}
    with pytest.raises(
        ConfigurationError, match=r"\$\{(env|file):…\}, which is replaced only in the worker's file .*os.environ"
    ):
        open_store(config)


def test_every_name_has_keys() -> None:
    """Settings and documentation can ask for the keys of each built-in store."""
    assert set(STORE_NAMES) == {"azure", "filesystem", "gcs", "memory", "s3"}
    for name in STORE_NAMES:
        keys = store_keys(name)
        assert keys
        assert all(key.name.startswith(f"{name}.") for key in keys)
    assert store_keys("my.package.Store") is None
    assert store_keys("my.package:Store") is None


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_class_of_the_seed_works(separator: str) -> None:
    """`publish` and `download` are all that a user's class needs; ids are by content, and it offers nothing more."""
    store = open_store({STORE_CLASS: f"{HERE}{separator}SeedStore", "my.key": 1})
    path = store.publish("orders", b"data")
    assert store.download(path) == b"data"
    assert store.id(b"data") == hashlib.sha256(b"data").hexdigest()
    assert not isinstance(store, (Put, Get, Stat, Delete, List, Check))
    store.close()
    store.close()


def test_a_class_with_ids_names_its_payloads() -> None:
    """Its own `id` holds for `put`, with each generator; without `put`, its `publish` does as it likes."""
    payload = Offload(1).payload(b"data")
    for generator in ("uuid", "sha256"):
        store = open_store({STORE_CLASS: f"{HERE}.FullStore", "large.message.id.generator": generator})
        reference = publish(store, "orders", payload, by_digest=generator == "sha256")
        assert reference.path == "full:orders:by-length-4"
        assert store.publish("orders", b"data!") == "full:orders:by-length-5"


def test_a_class_without_ids_takes_the_configured_generator() -> None:
    """`large.message.id.generator` holds where the class does not say."""
    store = open_store({STORE_CLASS: f"{HERE}.SeedStore", "large.message.id.generator": "uuid"})
    assert str(uuid.UUID(store.id(b"data"))) != str(uuid.UUID(store.id(b"data")))


def test_a_class_gets_all_other_keys() -> None:
    """The configuration is handed on as it is, with its own keys and the common ones."""
    open_store({STORE_CLASS: f"{HERE}.FullStore", "my.key": 1, "large.message.max.bytes": 9}).close()
    assert FullStore.config == {"my.key": 1, "large.message.max.bytes": 9}
    assert FullStore.closed


def test_a_class_gets_no_misspelt_key_of_ours() -> None:
    """A worker, a job and a command all open the store this way. A key that the class lists is its own."""
    with pytest.raises(ConfigurationError, match=r"^large\.message\.max\.byts: .* mean large\.message\.max\.bytes"):
        open_store({STORE_CLASS: Listing, "large.message.max.byts": 1})
    with pytest.raises(ConfigurationError, match=r"^large\.mesage\.what: .* list it in its KEYS"):
        open_store({STORE_CLASS: Listing, "large.mesage.what": 1})
    open_store({STORE_CLASS: Listing, "large.message.own": 1}).close()


def test_a_class_offers_what_it_inherits() -> None:
    """Each capability that the class says it has can be used through the store, and its errors are made ours."""
    store = open_store({STORE_CLASS: f"{HERE}.FullStore"})
    assert isinstance(store, Put)
    assert isinstance(store, Get)
    assert isinstance(store, Stat)
    assert isinstance(store, Delete)
    assert isinstance(store, List)
    assert isinstance(store, Check)
    path = store.put("orders", "1", b"data")
    assert (path, store.get(path, 4), store.stat(path).size) == ("full:orders:1", b"data", 4)
    assert store.id(b"data") == "by-length-4"
    with pytest.raises(PayloadTooLargeError):
        store.get(path, 3)
    listing = store.list("orders")
    assert next(listing).path == path
    with pytest.raises(PayloadStoreError, match=r"FullStore\.list raised OSError: the listing broke"):
        next(listing)
    store.delete(path)
    with pytest.raises(PayloadStoreError, match=r"FullStore\.stat raised KeyError"):
        store.stat(path)
    store.check(writing=False)
    with pytest.raises(PayloadStoreError, match=r"FullStore\.check raised RuntimeError: not for writers"):
        store.check()


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ValueError("why"), False),
        (OSError("why"), False),
        (TimeoutError("why"), True),
        (ConnectionResetError("why"), True),
    ],
)
def test_what_a_class_raises_is_made_ours(error: Exception, may_pass: bool) -> None:  # noqa: FBT001
    """Any exception becomes a `PayloadStoreError` with class, method and cause; a lost connection may pass."""
    RaisingStore.error = error
    store = open_store({STORE_CLASS: f"{HERE}.RaisingStore"})
    for method, call in (("publish", lambda: store.publish("t", b"")), ("download", lambda: store.download("p"))):
        with pytest.raises(
            PayloadStoreError, match=rf"RaisingStore\.{method} raised {type(error).__name__}: why"
        ) as caught:
            call()
        assert caught.value.retriable is may_pass
        assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no answer from https://me:hunter2@host:1/x", "no answer from https://***@host:1/x"),
        ("GET https://host/x?a=1&X-Amz-Signature=hunter2&b=2", "GET https://host/x?a=1&***&b=2"),
        ("'https://host/x?sv=1&sig=hunter2'", "'https://host/x?sv=1&***'"),
        ("s3://bucket/a@b:c and 12:30", "s3://bucket/a@b:c and 12:30"),
    ],
)
def test_what_a_class_says_has_no_credentials(said: str, told: str) -> None:
    """The password of a URL, and what it is signed with, are left out of what is logged and shown on /health."""
    RaisingStore.error = ValueError(said)
    with pytest.raises(PayloadStoreError) as caught:
        open_store({STORE_CLASS: f"{HERE}.RaisingStore"}).download("p")
    assert str(caught.value).endswith(f"raised ValueError: {told}")


@pytest.mark.parametrize("error", [PayloadStoreError("why", retriable=True), PayloadNotFoundError("p")])
def test_what_a_class_raises_of_ours_passes(error: Exception) -> None:
    """A class that knows the project's errors has the last word."""
    RaisingStore.error = error
    with pytest.raises(PayloadStoreError) as caught:
        open_store({STORE_CLASS: f"{HERE}.RaisingStore"}).download("p")
    assert caught.value is error


def test_what_a_class_returns_is_checked() -> None:
    """A method that returns the wrong thing is named, before the wrong thing becomes a record."""
    store = open_store({STORE_CLASS: f"{HERE}.WronglyTypedStore"})
    with pytest.raises(PayloadStoreError, match=r"WronglyTypedStore\.publish returned NoneType, it must return str"):
        store.publish("t", b"")
    with pytest.raises(PayloadStoreError, match=r"WronglyTypedStore\.download returned str, it must return bytes"):
        store.download("p")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "is missing; allowed are azure, filesystem, gcs, memory, s3, or a class as package.module.Class"),
        (7, "found 7; allowed are"),
        ("", "found '', allowed are"),
        ("filesytem", "did you mean filesystem"),
        ("S3", "allowed are azure, filesystem, gcs, memory, s3"),
        ("no_such_package.module.Store", "module no_such_package.module cannot be imported .* PYTHONPATH"),
        (f"{HERE}.NoSuchClass", "has no NoSuchClass"),
        (f"{HERE}:No.Such", "has no No.Such"),
        (f"{HERE}.NOT_A_CLASS", "is not a class but a SeedStore"),
        (f"{HERE}.OnlyPublish", "lacks download"),
        ("builtins.dict", "lacks publish and download"),
        (f"{HERE}.NeedsArguments", "cannot be instantiated without arguments .*bucket"),
        (f"{HERE}.RefusesConfiguration", r"RefusesConfiguration\.configure raised KeyError: 'my\.key'"),
        ("a..b", "allowed are"),
        ("../../evil", "allowed are"),
    ],
)
def test_a_class_that_is_no_store_is_refused(name: object, message: str) -> None:
    """Each mistake is said of the key, with what was found and what is allowed."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_store({} if name is None else {STORE_CLASS: name})
    assert caught.value.key == STORE_CLASS


def test_store_keys_refuses_an_unknown_name() -> None:
    """The settings meet the same error as the opening would."""
    with pytest.raises(ConfigurationError, match="did you mean s3"):
        store_keys("s33")


def test_put_and_get_use_what_the_store_offers() -> None:
    """A store that takes names is given one, and is told the limit beforehand."""
    store = open_store({STORE_CLASS: f"{HERE}.FullStore"})
    path = put(store, "orders", "chosen", b"data")
    assert path == "full:orders:chosen"
    assert get(store, path, 4) == b"data"


def test_put_and_get_make_do_with_the_seeds_methods() -> None:
    """A store without them publishes under its own name, and the limit holds afterwards."""
    store = open_store({STORE_CLASS: f"{HERE}.SeedStore"})
    path = put(store, "orders", "chosen", b"data")
    assert path.startswith("seed:orders:")
    assert get(store, path, 5) == get(store, path, 4) == b"data"
    with pytest.raises(PayloadTooLargeError) as caught:
        get(store, path, 3)
    assert (caught.value.size, caught.value.limit) == (4, 3)


def test_download_of_a_users_store_is_bounded() -> None:
    """`large.message.max.bytes` holds for every store."""
    store = open_store({STORE_CLASS: f"{HERE}.SeedStore", "large.message.max.bytes": 3})
    path = store.publish("orders", b"data")
    with pytest.raises(PayloadTooLargeError):
        store.download(path)


def test_stores_without_s3_do_not_load_boto3() -> None:
    """Who keeps payloads in files needs neither boto3 nor the time to import it."""
    code = (
        "import sys\n"
        "from stores.registry import open_store\n"
        f"open_store({{'{STORE_CLASS}': 'memory'}})\n"
        f"open_store({{'{STORE_CLASS}': 'filesystem', 'filesystem.root': 'x'}})\n"
        "print('botocore' in sys.modules or 'boto3' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
