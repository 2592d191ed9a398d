"""How far into the store the references of a topic may lead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from app.config.reference_scope import ReferenceScopeSettings, reference_scope
from stores.memory import MemoryStore
from stores.registry import open_store
from stores.root import Root
from tests.app.pipeline.chains import apply, chain_of
from tests.app.pipeline.plain_store import PlainStore
from tests.app.pipeline.test_termination import Read
from transforms.errors import ConfigurationError, ReferenceRefusedError
from transforms.record import Header


@dataclass(frozen=True)
class Referring(Read):
    """A record of topic `orders`."""

    topic: str = "orders"
    headers: tuple[Header, ...] = (("large-message", b"true"),)


class Watched(MemoryStore):
    """A store that counts what it is asked."""

    asked = 0

    def get(self, full_path: str, limit: int) -> bytes:
        """See `Store.get`."""
        self.asked += 1
        return super().get(full_path, limit)


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({}, {"orders", "salaries", "mirrored"}),
        ({"large.message.root": "store"}, {"orders", "salaries", "mirrored"}),
        ({"large.message.root": "topic"}, {"orders"}),
        ({"large.message.root": "topic", "large.message.root.topics": ["mirrored"]}, {"orders", "mirrored"}),
    ],
)
def test_scope_of_references(keys: dict[str, Any], allowed: set[str]) -> None:
    """Only payloads of the record's own topic, and of those that are listed, are read; for others nobody is asked."""
    store = Watched()
    store.configure({"memory.name": "reference_scope"})
    chain = chain_of(["inflate"], store, **keys)
    for topic in ("orders", "salaries", "mirrored"):
        record = Referring(value=store.publish(topic, b"payload").encode())
        before = store.asked
        if topic in allowed:
            (found,), _ = apply(chain, record)
            assert (found.value, store.asked) == (b"payload", before + 1)
            continue
        with pytest.raises(ReferenceRefusedError) as caught:
            apply(chain, record)
        assert (caught.value.root, caught.value.retriable) == (f"{store.root.uri}orders/", False)
        assert store.asked == before


def test_scope_needs_a_root() -> None:
    """A user's class that does not say where its payloads are cannot be held to topics."""
    store = open_store({"large.message.payload.store.class": f"{PlainStore.__module__}:PlainStore"})
    with pytest.raises(ConfigurationError, match="a custom store class does not report"):
        reference_scope(ReferenceScopeSettings(root="topic", topics=()), store)


def test_topic_of_a_path() -> None:
    """The topic is the first part below the root, in other writers' folders too; a path that is refused has none."""
    root = Root("s3://b/p/")
    assert [root.topic(f"s3://b/p/{tail}") for tail in ("orders/id", "orders/values/id")] == ["orders"] * 2
    for path in ("s3://b/p/orders", "s3://b/orders/id", "s3://b/p/../id", "s3://b/p/orders/other/id"):
        with pytest.raises(ReferenceRefusedError):
            root.topic(path)
