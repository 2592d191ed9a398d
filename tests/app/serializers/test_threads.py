"""Serializers on an event loop: which stage runs where."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, ClassVar

import pytest

from app.chunks.allowance import PARALLEL
from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    SerializationError,
)
from app.serializers.threads import Threads
from tests.app.serializers.conftest import to_json

TOPIC = "orders"
SERIALIZES, DESERIALIZES, LOOP, POOL = "serializes", "deserializes", "MainThread", "wideload-store-call"


class Where:
    """A store that notes the threads in which it is called."""

    payloads: ClassVar[dict[str, bytes]] = {}
    seen: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def note(cls, act: str) -> None:
        cls.seen.append((act, threading.current_thread().name))

    def configure(self, config: dict[str, object]) -> None:
        self.seen.clear()

    def publish(self, topic: str, data: bytes) -> str:
        self.note("put")
        self.payloads[f"where://{topic}"] = data
        return f"where://{topic}"

    def download(self, full_path: str) -> bytes:
        self.note("get")
        return self.payloads[full_path]


def configured(store: type = Where) -> dict[str, object]:
    return {"large.message.payload.store.class": store, "large.message.threshold.bytes": 100}


@pytest.mark.parametrize("nested", [False, True])
async def test_only_store_calls_leave_the_loop(nested: bool) -> None:  # noqa: FBT001
    """Small values stay on the loop, and begin no thread; of large ones the store's part leaves it alone."""

    def writes(value: object) -> bytes:
        Where.note(SERIALIZES)
        return to_json(value)

    def reads(data: bytes) -> Any:
        Where.note(DESERIALIZES)
        return json.loads(data)

    serializer = ComposableSerializer([writes, LargeMessageSerializer], configured())
    deserializer = ComposableDeserializer([LargeMessageDeserializer, reads], configured())
    if nested:
        serializer, deserializer = ComposableSerializer([serializer]), ComposableDeserializer([deserializer])
    threads, others = Threads(), set(threading.enumerate())
    for value, begun in (("small", False), (None, False), ("l" * 200, True)):
        headers: list[Any] = []
        data = await threads.run(serializer, TOPIC, headers, value)
        assert await threads.run(deserializer, TOPIC, headers, data) == value
        assert headers == []
        assert any(each.name.startswith("wideload-store") for each in set(threading.enumerate()) - others) is begun
    await threads.close()
    assert Where.seen == [
        *((SERIALIZES, LOOP), (DESERIALIZES, LOOP)),
        *((SERIALIZES, LOOP), ("put", POOL), ("get", POOL), (DESERIALIZES, LOOP)),
    ]


async def test_a_call_that_waits_for_a_thread_ends_with_its_client() -> None:
    """It is not made, and its caller gets an error, as in a TaskGroup a cancelled call would pass for a done one."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    class Held(Where):
        def publish(self, topic: str, data: bytes) -> str:
            begun.release()
            assert may_end.wait(20)
            return super().publish(topic, data)

    threads = Threads()
    serializer = ComposableSerializer([LargeMessageSerializer], configured(Held))
    calls = [asyncio.ensure_future(threads.run(serializer, TOPIC, [], b"x" * 200)) for _ in range(PARALLEL + 1)]
    for _ in range(PARALLEL):  # together, and beside the loop
        assert await asyncio.to_thread(begun.acquire, timeout=20)
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    *done, waiting = await asyncio.gather(*calls, return_exceptions=True)
    assert done == [b"where://orders"] * PARALLEL
    assert isinstance(waiting, SerializationError)
    assert "value.serializers, item 1, LargeMessageSerializer, the client was closed before" in str(waiting)
    with pytest.raises(SerializationError, match="the client was closed before the store was called"):
        await threads.offload(LargeMessageSerializer(configured()), TOPIC, [], b"x" * 200)


async def test_a_stage_that_gives_no_bytes_is_named() -> None:
    """Wherever it runs."""
    wrong = ComposableSerializer([ComposableSerializer([str.encode]), lambda data: data.decode()])
    with pytest.raises(SerializationError, match=r"item 2, .* returned str, allowed are bytes and None"):
        await Threads().run(wrong, TOPIC, [], "text")
