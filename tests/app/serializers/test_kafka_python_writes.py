"""What kafka-python's producer does before a record leaves it, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

kafka = pytest.importorskip("kafka")

from kafka.errors import IllegalStateError  # noqa: E402

from app.serializers.kafka_python import SerializingProducer  # noqa: E402


class Sent(list[Any]):
    """The values that come to kafka-python; its `close` sends one in a callback, or raises an error."""

    fails = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = kafka.KafkaProducer
        monkeypatch.setattr(client, "__init__", lambda _self, **_: None)
        monkeypatch.setattr(client, "send", lambda _self, _topic, value, *_: self.append(value))
        monkeypatch.setattr(client, "close", self.close)
        self.producer: Any = SerializingProducer(
            {"bootstrap.servers": "-", "value.serializer": lambda data: b"!" + data}
        )

    def close(self, *_: object, **__: object) -> None:
        if self.fails:
            raise ValueError("Invalid timeout")
        self.producer.send("t", b"late")


def test_what_is_sent_while_it_closes_is_serialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that sends in the last flush gets its value serialized; afterwards nothing is, nor sent."""
    sent = Sent(monkeypatch)
    sent.producer.send("t", b"x")
    sent.producer.close()
    for value in (b"x", bytes(2_000)):
        with pytest.raises(IllegalStateError):
            sent.producer.send("t", value)
    assert sent == [b"!x", b"!late"]


def test_a_client_that_cannot_close_still_serializes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If kafka-python refuses to close, as for its time, the producer goes on."""
    sent = Sent(monkeypatch)
    sent.fails = True
    with pytest.raises(ValueError, match="timeout"):
        sent.producer.close(timeout=-1)
    sent.producer.send("t", b"x")
    assert sent == [b"!x"]


def test_headers_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kafka-python itself, and before a value is stored."""
    sent = Sent(monkeypatch)
    with pytest.raises(TypeError, match="headers must be list-type"):
        sent.producer.send("t", b"x", headers=(("a", b"1"),))
    assert sent == []
