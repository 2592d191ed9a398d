"""Serializers on an event loop: which stage runs where."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from app.chunks.allowance import PARALLEL
from app.serializers import (
    ComposableDeserializer,
    ComposableSerializer,
    LargeMessageDeserializer,
    LargeMessageSerializer,
    PayloadNotFoundError,
    SerializationError,
)
from app.serializers.threads import Threads
from tests.app.serializers.conftest import Config

TOPIC = "orders"


class Where:
    """A store class of its own that notes the threads in which it is called."""

    payloads: dict[str, bytes] = {}  # noqa: RUF012  # one for both sides
    seen: list[str] = []  # noqa: RUF012  # the same

    def configure(self, config: dict[str, object]) -> None:
        """Takes any."""

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        self.seen.append(f"put in {threading.current_thread().name}")
        self.payloads[f"where://{topic}"] = data
        return f"where://{topic}"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`."""
        self.seen.append(f"get in {threading.current_thread().name}")
        if full_path not in self.payloads:
            raise PayloadNotFoundError(full_path)
        return self.payloads[full_path]


CONFIG = {"large.message.payload.store.class": Where, "large.message.threshold.bytes": 100}


def noted_json(value: object) -> bytes:
    """A stage of the application."""
    Where.seen.append(f"dumps in {threading.current_thread().name}")
    return json.dumps(value).encode()


def noted_value(data: bytes) -> Any:
    """The reverse."""
    Where.seen.append(f"loads in {threading.current_thread().name}")
    return json.loads(data)


@pytest.mark.parametrize("nested", [False, True])
async def test_only_store_calls_leave_the_loop(nested: bool) -> None:  # noqa: FBT001
    """Small values stay on the loop altogether; of large ones the store's part leaves it, also out of a composable."""
    Where.seen.clear()
    serializer = ComposableSerializer([noted_json, LargeMessageSerializer], CONFIG)
    deserializer = ComposableDeserializer([LargeMessageDeserializer, noted_value], CONFIG)
    if nested:
        serializer, deserializer = ComposableSerializer([serializer]), ComposableDeserializer([deserializer])
    threads = Threads()
    try:
        for value in ("small", "l" * 200, None):
            headers: list[Any] = []
            data = await threads.run(serializer, TOPIC, headers, value)
            assert await threads.run(deserializer, TOPIC, headers, data) == value
            assert headers == []
    finally:
        await threads.close()
    on_loop, in_pool = "in MainThread", "in wideload-store-call"
    assert Where.seen == [
        *(f"dumps {on_loop}", f"loads {on_loop}"),
        *(f"dumps {on_loop}", f"put {in_pool}", f"get {in_pool}", f"loads {on_loop}"),
    ]


async def test_small_values_begin_no_thread(config_of: Config) -> None:
    """A client that never offloads has no thread for it."""
    threads = Threads()
    serializer = ComposableSerializer([LargeMessageSerializer], config_of())
    assert await threads.run(serializer, TOPIC, [], b"x" * 100) == b"x" * 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wideload-store")]
    await threads.close()


async def test_errors_are_those_of_the_composable() -> None:
    """A store's failure has its cause, and a stage that gives no bytes is named, wherever it ran."""
    threads = Threads()
    deserializer = ComposableDeserializer([LargeMessageDeserializer], CONFIG)
    with pytest.raises(SerializationError) as caught:
        await threads.run(deserializer, TOPIC, [("large-message", b"true")], b"where://gone")
    assert isinstance(caught.value.__cause__, PayloadNotFoundError)
    wrong = ComposableSerializer([ComposableSerializer([str.encode]), lambda data: data.decode()])
    with pytest.raises(SerializationError, match=r"stage 2, .* gave str, allowed are bytes and None"):
        await threads.run(wrong, TOPIC, [], "text")
    await threads.close()


async def test_the_loop_runs_while_a_store_is_slow(config_of: Config) -> None:
    """Two slow store calls need each other to end, and so show that they run together, beside the loop."""
    met = threading.Barrier(2, timeout=20)

    class Meeting(Where):
        def publish(self, topic: str, data: bytes) -> str:
            met.wait()
            return super().publish(topic, data)

    threads = Threads()
    serializer = ComposableSerializer(
        [LargeMessageSerializer], {**CONFIG, "large.message.payload.store.class": Meeting}
    )
    calls = [threads.run(serializer, TOPIC, [], b"x" * 200) for _ in range(2)]
    assert await asyncio.gather(*calls) == [b"where://orders"] * 2
    await threads.close()


async def test_a_call_that_waits_for_a_thread_ends_with_its_client() -> None:
    """It is not made, and its caller gets an error, as in a TaskGroup a cancelled call would pass for a done one."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    class Held(Where):
        def publish(self, topic: str, data: bytes) -> str:
            begun.release()
            assert may_end.wait(20)
            return super().publish(topic, data)

    threads = Threads()
    serializer = ComposableSerializer([LargeMessageSerializer], {**CONFIG, "large.message.payload.store.class": Held})
    calls = [asyncio.ensure_future(threads.run(serializer, TOPIC, [], b"x" * 200)) for _ in range(PARALLEL + 1)]
    for _ in range(PARALLEL):
        assert await asyncio.to_thread(begun.acquire, timeout=20)
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    *done, waiting = await asyncio.gather(*calls, return_exceptions=True)
    assert done == [b"where://orders"] * PARALLEL
    assert isinstance(waiting, SerializationError)
    assert "value.serializers, stage 1, LargeMessageSerializer, the client was closed before" in str(waiting)


async def test_offloading_when_the_client_was_closed() -> None:
    """The caller is told in words; it is not cancelled, and the store is not called."""
    threads = Threads()
    large = LargeMessageSerializer(CONFIG)
    headers: list[Any] = []
    assert await threads.offload(large, TOPIC, headers, b"x" * 200) == b"where://orders"
    assert headers
    await threads.close()
    with pytest.raises(SerializationError, match="the client was closed before the store was called"):
        await threads.offload(large, TOPIC, [], b"x" * 200)
