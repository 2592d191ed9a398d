"""The packer of `produce` without a broker: many at once, in order, and what comes before an error."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing

import pytest

from app.commands.packer import Packer, _Warning
from app.kafka.sender import SendError
from app.kafka.topics import Topic
from app.pipeline.chain import Chain
from tests.app.pipeline.chains import offload_stage
from transforms.errors import PayloadStoreError
from transforms.record import Record

_LONG_S = 30.0


class Meeting:
    """A store whose calls wait for each other: none ends before so many are made at once. It does not take `bad`."""

    def __init__(self, calls: int) -> None:
        self._barrier = threading.Barrier(calls)

    def configure(self, config: Mapping[str, object]) -> None:
        """Takes any."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        if data.startswith(b"bad"):
            raise PayloadStoreError("it is bad")
        self._barrier.wait(_LONG_S)
        return f"meeting://{topic}/{data.decode().strip()}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        raise NotImplementedError

    def id(self, data: bytes) -> str:
        """See `PayloadStore.id`."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""


async def packed(values: Sequence[str], at_once: int, broken: str | None = None) -> list[tuple[str, bytes | None]]:
    """Name and value of each message that comes before an error; the error comes last, with its text."""

    async def records() -> AsyncIterator[tuple[Record, str]]:
        for value in values:
            yield Record(None, value.encode()), value.strip()
        if broken is not None:
            raise SendError(broken)

    stage = offload_stage(Meeting(at_once), 10)
    chain = Chain([stage], Topic("t", 1, 1_000_000, "delete"))
    found: list[tuple[str, bytes | None]] = []
    try:
        async with aclosing(Packer(chain, 0).packed(records())) as messages:
            async for message, name in messages:
                (record,) = message.records
                found.append((name, record.value))
    except SendError as exc:
        found.append((str(exc), None))
    return found


def large(name: str) -> str:
    """A value that is offloaded."""
    return name.ljust(20)


async def test_several_are_packed_at_once_and_come_in_order() -> None:
    """Store calls do not wait for each other; small messages between keep their places."""
    found = await packed([large("a"), "b", large("c"), "d"], at_once=2)
    assert found == [("a", b"meeting://orders/a"), ("b", b"b"), ("c", b"meeting://orders/c"), ("d", b"d")]


async def test_what_comes_before_an_error_is_given() -> None:
    """Of a message, or of what gives the messages: each one before it, and none behind it."""
    found = await packed(["a", large("bad"), "c"], at_once=1)
    assert found == [("a", b"a"), ("bad: it is bad", None)]
    found = await packed([large("a"), "b"], at_once=1, broken="c cannot be read")
    assert found == [("a", b"meeting://orders/a"), ("b", b"b"), ("c cannot be read", None)]


def test_a_store_that_is_down_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """However often it is asked."""
    warning = _Warning()
    for _ in range(2):
        warning.report(PayloadStoreError("off"))
    assert capsys.readouterr().err == "wideload: the store has failed, so large values are sent as chunks: off\n"
