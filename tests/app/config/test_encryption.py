"""Which pipelines can encrypt payloads."""

from __future__ import annotations

import pytest

from app.config.effective import pipeline_values
from app.config.parsing import parse
from transforms.errors import ConfigurationError

ENCRYPTED = {
    "large.message.encryption.type": "aes-256-gcm",
    "large.message.encryption.key.id": "one",
    "large.message.encryption.key.secret": "${env:SECRET}",
}


def settings(**more: object) -> object:
    keys = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": ["offload"],
        "large.message.payload.store.class": "memory",
        **ENCRYPTED,
        **more,
    }
    keys = {name: value for name, value in keys.items() if value is not None}
    return parse({"bootstrap.servers": "b:1", "pipeline": {"p": keys}}, {"SECRET": "1f" * 32}).pipelines[0].encryption


@pytest.mark.parametrize("transforms", [["offload"], ["inflate"], ["inflate", "offload"]])
def test_keys_are_taken(transforms: list[str]) -> None:
    """Pipelines with payloads take the keys, and none of them prints."""
    found = settings(transforms=transforms)
    assert "current='one'" in repr(found)
    assert "1f1f" not in repr(found)
    assert repr(b"\x1f" * 3)[2:-1] not in repr(found)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reference.format": "bakdata-headers", "large.message.payload.store.class": "own.Store"}, "cannot decrypt"),
        ({"large.message.strategy": "chunk"}, "writes no payloads to encrypt"),
        ({"transforms": ["chunk"], "large.message.payload.store.class": None}, "writes no payloads to encrypt"),
        ({"large.message.encryption.key.secret": None}, "needs large.message.encryption.key.secret beside it"),
    ],
)
def test_what_cannot_be_encrypted_is_refused(more: dict[str, object], said: str) -> None:
    """Formats whose readers cannot decrypt, and pipelines without payloads, are refused at the start."""
    with pytest.raises(ConfigurationError) as raised:
        settings(**more)
    assert raised.value.key.startswith("large.message.encryption.")
    assert said in str(raised.value)


def test_chunks_beside_stored_letters() -> None:
    """A pipeline of chunks may encrypt the dead letters that it stores."""
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead"}
    assert settings(**{"large.message.strategy": "chunk", **letters}) is not None


def test_pages_show_no_key() -> None:
    """What is shown of a pipeline are its keys of the configuration, and nothing that was made of secret ones."""
    keys = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"], **ENCRYPTED}
    keys |= {"large.message.payload.store.class": "memory"}
    (pipeline,) = parse({"bootstrap.servers": "b:1", "pipeline": {"p": keys}}, {"SECRET": "1f" * 32}).pipelines
    shown = pipeline_values(pipeline)
    assert "one" not in shown
    assert "1f1f" not in repr(shown)
    assert not [value for value in shown.values() if isinstance(value, bytes)]
    assert shown["large.message.encryption.key.id"] == "one"
