"""What is the memory store's own."""

from __future__ import annotations

import uuid

import pytest

from stores.memory import MemoryStore
from transforms.errors import ConfigurationError, PayloadNotFoundError


def opened(name: str) -> MemoryStore:
    store = MemoryStore()
    store.configure({"memory.name": name})
    return store


def test_stores_of_one_name_share_their_payloads() -> None:
    """A writer and a reader in one process meet by name, and closing one leaves the other what it had."""
    name = str(uuid.uuid4())
    writer, reader = opened(name), opened(name)
    path = writer.publish("orders", b"shared")
    writer.close()
    assert path.startswith(f"memory://{name}/orders/")
    assert reader.download(path) == b"shared"


def test_the_name_has_a_default() -> None:
    """Without a name a store is the one called `default`."""
    store = MemoryStore()
    store.configure({})
    assert store.root.uri == "memory://default/"


def test_clear_forgets_every_name() -> None:
    """A test can begin with nothing."""
    store, other = opened(str(uuid.uuid4())), opened(str(uuid.uuid4()))
    path = store.publish("orders", b"data")
    other.publish("orders", b"data")
    MemoryStore.clear()
    assert list(store.list()) == list(other.list()) == []
    with pytest.raises(PayloadNotFoundError):
        store.download(path)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_a_name_that_is_no_segment_is_refused(name: str) -> None:
    """A name is part of the path, so it has the alphabet of one."""
    with pytest.raises(ConfigurationError, match="allowed are 1 to 249 characters") as caught:
        opened(name)
    assert caught.value.key == "memory.name"
