"""A Faust app for the tests: writes down what its agent gets, and sends it on.

What it does stands in the environment variable FAUST_READER, as JSON: see `told`, and `FaustProcess`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.types.tuples import Message

from app.chunks.discarded import warn
from app.serializers.faust import LargeMessageSchema, LargeMessageTopic
from transforms.chunked_message import Discarded
from transforms.errors import SerializationError


class Tables(TableManager):
    """Faust waits a second in case that there are tables in modules that are imported later; here are all of them."""

    async def sleep(self, n: Any) -> None:
        await super().sleep(0.01)


class Worker(faust.Worker):
    """mode waits a second before it closes its loop, whatever there is to do."""

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0.01)


told: dict[str, Any] = json.loads(os.environ["FAUST_READER"])
out = Path(told["out"])
written = out.open("a", buffering=1)

app = faust.App(
    f"{told['topic']}-faust",
    broker=f"kafka://{told['broker']}",
    datadir=str(out.parent / "faust"),
    store="memory://",
    web_enabled=False,
    topic_disable_leader=True,
    consumer_auto_offset_reset="earliest",
    broker_session_timeout=told.get("session_s", 60),
    broker_heartbeat_interval=0.3,
    broker_commit_interval=0.2,
    broker_max_poll_interval=told.get("max_poll_s", 1000.0),
    processing_guarantee="exactly_once" if told.get("transactions") else "at_least_once",
    stream_buffer_maxsize=2 if told.get("slow_s") else 4096,
    stream_publish_on_commit=told.get("on_commit", False),
    TableManager=Tables,
    Worker=Worker,
    Topic=faust.Topic if told.get("plain_topic") else LargeMessageTopic,
)


def on_failure(error: SerializationError, message: Message) -> object:
    """Stands for a record that cannot be had."""
    return {"failed": type(error.__cause__).__name__, "offset": error.offset, "key": str(message.key)}


async def on_discarded(discarded: Discarded) -> None:
    """Writes down a message that is not whole."""
    if told["on_discarded"] == "raise":
        raise ValueError(f"a message that is not whole: {discarded.reason}")
    line = {"value": {"discarded": discarded.reason, "offsets": [each.offset for each in discarded.records]}}
    written.write(json.dumps(line) + "\n")


def schema() -> LargeMessageSchema:
    """One for each topic."""
    return LargeMessageSchema(
        told["store"],
        keys=told.get("keys", False),
        wrapped=told.get("wrapped", False),
        on_failure=on_failure if told.get("on_failure") else None,
        on_discarded=on_discarded if told.get("on_discarded") else warn,
    )


def topic(name: str) -> Any:
    """A topic of bytes; without the codec, Faust takes JSON for them too."""
    return app.topic(
        name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", schema=schema()
    )


source = topic(told["topic"])
sink = topic(told["to"]) if told.get("to") else None
counts = app.Table("counts", default=int, partitions=1) if told.get("table") else None


@app.agent(source)
async def read(stream: Any) -> None:
    """Writes down each event."""
    async for event in stream.events():
        if counts is not None:
            counts["events"] += 1
        value = event.value
        line = {
            "offset": event.message.offset,
            "key": None if event.key is None else event.key.decode(),
            "value": hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value,
            "headers": {name: value and value.decode() for name, value in event.headers.items()},
            "raw": [name for name, _ in event.message.headers],
        }
        written.write(json.dumps(line) + "\n")
        await asyncio.sleep(told.get("slow_s", 0.0))
        if told.get("forward"):
            await event.forward(sink)
        elif sink is not None:
            await sink.send(key=event.key, value=value, headers=event.headers)


async def tell_pending(*_: Any, **__: Any) -> None:
    """Writes down, in a file of its own, how many messages are incomplete after a rebalance."""
    with out.with_name("pending").open("a") as pending:
        pending.write(f"{source.schema.stats().get('pendingChunkedMessages', 0)}\n")


app.on_partitions_assigned.connect(tell_pending)


if told.get("twice"):

    @app.agent(source)
    async def read_too(stream: Any) -> None:
        """Writes down the values alone."""
        async for event in stream.events():
            value = event.value
            written.write(json.dumps({"too": None if value is None else hashlib.sha256(value).hexdigest()}) + "\n")


if __name__ == "__main__":
    app.main()
